"""The papers' evaluations: their reports as pages of results/, and the tables of docs/papers/ from those pages.

    python -m benchmarks.reports.papers [--root FOLDER] [--out FOLDER] [--suffix TEXT] [REPORT ...]

A REPORT is the folder that `python -m benchmarks.papers` wrote. Without one only the tables are made again. One of
RAGSys with further rules becomes a page of its own, papers-ragsys-rules.md, and so does one of another model than
SmolLM2, and one of VRSD's answers that were scored and not written.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

from benchmarks.harness.ledger import RESULTS, ROOT
from benchmarks.reports import directions, places

NAMES = ("vrsd", "vrsd-answers", "vrsd-answers-scores", "ragsys", "aicl", "ralm", "ralm-news", "ralm-python", "boolq")
TEXTS = {"wikitext": "", "ag-news": "-news"}  # what a page of In-Context RALM is named by its text, if not as the text
DIRECTIONS = "papers-directions"


def take(report: Path, out: Path, suffix: str = "") -> Path:
    """Make a page of a report, its plots beside it; return its path."""
    about = json.loads((report / "report.json").read_text(encoding="utf-8"))
    text = (report / "report.md").read_text(encoding="utf-8")
    settings = about["settings"]
    name = about["evaluation"] + ("-rules" if "further rules" in settings else "")
    name += "-scores" if "--scores-only" in str(settings.get("command", "")) else ""
    text_of = settings.get("texts", "wikitext")
    name += TEXTS.get(text_of, f"-{text_of}")
    model = re.split(r", | \(", str(settings.get("model", "smollm2")))[0]
    page = out / f"papers-{name}{'' if model == 'smollm2' else f'-{Path(model).stem}'}{suffix}.md"
    for plot in re.findall(r"^!\[.*\]\((.+)\)$", text, flags=re.M):
        shutil.copyfile(report / plot, out / f"{page.stem}-{plot}")
    page.write_text(re.sub(r"^(!\[.*\]\()", rf"\g<1>{page.stem}-", text, flags=re.M), encoding="utf-8")
    return page


def summary(page: Path) -> str:
    """Return title, first paragraph and first table of numbers of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    title, first = lines[0].removeprefix("# "), next(line for line in lines[1:] if line)
    rule = next(i for i, line in enumerate(lines) if re.fullmatch(r"\| --- (\| ---: )+\|", line))
    table = [lines[rule - 1]]
    for line in lines[rule:]:
        if not line.startswith("|"):
            break
        table.append(line)
    link = f"../../benchmarks/results/{page.name}"
    return "\n\n".join((f"**{title}** ([all tables]({link})). {first}", "\n".join(table))) + "\n"


def summaries(out: Path) -> dict[str, str]:
    """Return the parts of docs/papers/ by their names, as far as there are pages to take them from."""
    pages = [out / f"papers-{name}.md" for name in NAMES]
    found = {page.stem: summary(page) for page in pages if page.is_file()}
    table = directions.page(out)
    return found | ({DIRECTIONS: table} if table else {})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="*", type=Path)
    parser.add_argument("--suffix", default="", help="of the pages' names, for runs of another kind: -short")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that has docs/papers/")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the pages")
    given = parser.parse_args(arguments)
    for report in given.reports:
        print(take(report, given.out, given.suffix))
    for part, text in summaries(given.out).items():
        places.fill(given.root, part, text)


if __name__ == "__main__":
    main()
