"""The papers' evaluations: their reports as pages of results/, and the README's tables from those pages.

    python -m benchmarks.reports.papers [--readme FILE] [--out FOLDER] [REPORT ...]

A REPORT is the folder that `ragsys-kernels evaluate` wrote. Without one only the README is made again.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from benchmarks.harness import ledger
from benchmarks.reports import readme

RESULTS = ledger.PATH.parent
ORDER = ("vrsd", "vrsd-answers", "ragsys", "aicl", "ralm")


def take(report: Path, out: Path) -> Path:
    """The page of a report, without its plots."""
    name = json.loads((report / "report.json").read_text(encoding="utf-8"))["evaluation"]
    text = (report / "report.md").read_text(encoding="utf-8")
    page = out / f"papers-{name}.md"
    page.write_text(re.sub(r"^!\[.*\]\(.*\)\n\n", "", text, flags=re.M), encoding="utf-8")
    return page


def summary(page: Path) -> str:
    """Title, first paragraph and first table of numbers of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    title, first = lines[0].removeprefix("# "), next(line for line in lines[1:] if line)
    rule = next(i for i, line in enumerate(lines) if re.fullmatch(r"\| --- (\| ---: )+\|", line))
    table = [lines[rule - 1]]
    for line in lines[rule:]:
        if not line.startswith("|"):
            break
        table.append(line)
    return "\n\n".join((f"**{title}** ([all of it](benchmarks/results/{page.name})). {first}", "\n".join(table))) + "\n"


def summaries(out: Path) -> str:
    pages = [out / f"papers-{name}.md" for name in ORDER]
    return "\n".join(summary(page) for page in pages if page.is_file())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="*", type=Path)
    parser.add_argument("--readme", type=Path, default=readme.PATH)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the pages")
    given = parser.parse_args(arguments)
    for report in given.reports:
        print(take(report, given.out))
    readme.fill(given.readme, "papers", summaries(given.out))


if __name__ == "__main__":
    main()
