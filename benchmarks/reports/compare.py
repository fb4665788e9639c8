"""What `make compare-demo` found, into results/compare.md, without times and texts.

python -m benchmarks.reports.compare [FOLDER]
"""

from __future__ import annotations

import argparse
import csv
import re
import textwrap
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from benchmarks.harness.ledger import RESULTS
from benchmarks.reports import style
from benchmarks.reports.tables import table, write
from ragsys_kernels.comparison.measures import MEASURES
from ragsys_kernels.comparison.plot import write_labels

OUT = RESULTS / "compare.md"
SETS = {
    "Cranfield": "1,400 abstracts and 225 questions with judgements, by latent semantic indexing (128), k = 10.",
    "AG News": "7,600 news, and 1,000 others as queries, by latent semantic indexing (128), k = 6.",
    "GloVe": "399,000 words, and 1,000 others as queries (50 dimensions), k = 6.",
}
COLUMNS = ("relevance", "similarity", "sum", "coverage", "near_duplicates", "ndcg", "recall", "mrr", "certified")


def section(name: str, about: str, folder: Path) -> Iterator[str]:
    """Yield heading, recommendation and table of a comparison's folder."""
    text = (folder / "report.md").read_text(encoding="utf-8")
    _, _, words, rule, *_ = text.split("\n\n")
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        found = {(line["label"], line["measure"]): line for line in csv.DictReader(file)}
    labels = list(dict.fromkeys(label for label, _ in found))
    columns = [MEASURES[measure] for measure in COLUMNS if any((label, measure) in found for label in labels)]
    judged = any(measure.name == "ndcg" for measure in columns)
    head = ["method", *(measure.label for measure in columns), *(["nDCG against top-k"] if judged else [])]
    rows = []
    for label in labels:
        cells = [_number(found.get((label, measure.name)), measure.shown) for measure in columns]
        if judged:
            cells.append(_difference(found[label, "ndcg"]))
        rows.append([label, *cells])
    yield from (
        f"## {name}",
        *(textwrap.fill(part, 120) for part in (about, words, rule)),
        table(head, rows, tight=True),
    )
    if judged:
        yield "![nDCG falls as picks get less alike, with MSD and VRSD less than with MMR](compare.svg)"
    parts = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    weights = [line for line in parts["Which λ"].splitlines() if line.startswith("- ")]
    yield "\n".join(textwrap.fill(line, 120, subsequent_indent="  ") for line in weights)
    if sizes := re.findall(r"^\|.*", parts.get("How large a pool", ""), re.M):
        yield "\n".join(sizes)


def _number(line: dict[str, str] | None, shown: object) -> str:
    return "–" if line is None or not line["mean"] else shown(float(line["mean"]))  # type: ignore[operator]


def _difference(line: dict[str, str]) -> str:
    mean, low, high = (float(line[name]) for name in ("difference", "difference_low", "difference_high"))
    return "" if mean == 0 else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def draw(out: Path) -> None:
    """Draw nDCG against the likeness of the picks from the page's table of Cranfield."""
    text = (out / "compare.md").read_text(encoding="utf-8").partition("## Cranfield")[2].partition("\n![")[0]
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^\|.*", text, re.M)]
    alike, useful = head.index("between picks"), head.index("nDCG")
    families: dict[str, list[tuple[str, float, float]]] = {}
    for row in rows:
        label, _, weight = row[0].partition(", λ ")
        families.setdefault(label, []).append((weight, float(row[alike]), float(row[useful])))
    figure, axes = style.figure(4.2)
    labels = []
    for label, colour, marker in FAMILIES:
        points = sorted(families[label])
        if label in ("MMR", "MSD"):  # which are top-k with λ = 1
            points += [("1", x, y) for _, x, y in families["Top-k (λ = 1)"]]
        axes.plot(*zip(*[point[1:] for point in points], strict=True), marker=marker, color=colour, label=label)
        labels += [(f"λ {weight}", x, y) for weight, x, y in points[:-1] if label == "MMR"]
    axes.set_xlabel("mean cosine between picks")
    axes.set_ylabel("nDCG")
    axes.invert_xaxis()
    axes.set_title("Cranfield. Up: more useful. Right: less alike.")
    axes.grid(True)
    axes.legend(ncols=2)
    figure.draw_without_rendering()
    write_labels(axes, labels)
    style.save(figure, out / "compare.svg")


FAMILIES = (
    ("MMR", style.BLUE, "o"),
    ("MSD", style.ORANGE, "s"),
    ("DPP", style.GREEN, "^"),
    ("VRSD", style.RED, "*"),
    ("SIFT", style.GREY, "X"),
    ("COVER", "#8c6d31", "p"),
    ("Random of the pool", style.GREY, "+"),
    ("Top-k (λ = 1)", style.INK, "o"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("demo-output/compare"), help="(%(default)s)")
    folder = parser.parse_args().folder
    about = (
        "Written by `python -m benchmarks.reports.compare` after `make compare-demo`. Every method picks out of the "
        "100 nearest of a query. Means over the queries; differences with 95 % paired bootstrap intervals."
    )
    made = (section(name, what, folder / name.lower().replace(" ", "_") / "report") for name, what in SETS.items())
    write(OUT, "Which rule for three corpora", about, *chain.from_iterable(made))
    draw(OUT.parent)


if __name__ == "__main__":
    main()
