"""Write the pages, tables and plots that are made from the ledgers of selection and of scoring.

python -m benchmarks.reports [--ledger CSV] [--root FOLDER] [--out FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.harness import ledger
from benchmarks.reports import page_plots, places, plots, scoring, speed
from benchmarks.reports.runs import Runs
from benchmarks.suites import scoring_shapes, selection


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reports", description=__doc__.splitlines()[0])
    parser.add_argument("--ledger", type=Path, default=selection.LEDGER.path, help="of selection, scoring's beside it")
    parser.add_argument("--root", type=Path, default=ledger.ROOT, help="folder that has README.md and docs/speed.md")
    parser.add_argument("--out", type=Path, default=ledger.RESULTS, help="folder for the pages and plots")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)

    runs = Runs(ledger.read(given.ledger))
    (given.out / "report.md").write_text(speed.full_report(runs), encoding="utf-8")
    (given.out / "whole_corpus.md").write_text(speed.whole_page(runs), encoding="utf-8")
    plots.draw(runs, given.out)
    page_plots.draw(given.out)
    parts = {"speed": speed.short(runs), "ledger": speed.summary(runs), "drop-ins": speed.drop_ins(runs)}
    parts |= {"rules-speed": speed.rules(runs), "scoring": ""}
    if rows := scoring_shapes.LEDGER.within(given.ledger.parent).read():
        scores = Runs(rows)
        (given.out / "scoring.md").write_text(scoring.page(scores), encoding="utf-8")
        parts["scoring"] = scoring.summary(scores)
    for part, text in parts.items():
        places.fill(given.root, part, text)


main()
