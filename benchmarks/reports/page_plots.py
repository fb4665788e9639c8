"""The plots of results that are pages: what λ does, and the papers' tables. They are drawn from the pages themselves.

python -m benchmarks.reports.page_plots [FOLDER]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.ticker import NullLocator

from benchmarks.harness.ledger import RESULTS
from benchmarks.reports.style import BLUE, GREEN, GREY, INK, ORANGE, RED, figure, save

Table = list[dict[str, str]]


def table(page: Path, heading: str, column: str = "") -> Table:
    """Return the first table below a heading of a page, or the first there whose first column has that name."""
    text = page.read_text(encoding="utf-8")
    _, found, below = text.partition(f"# {heading}\n")
    lines = re.search(rf"(?:^\| {re.escape(column)}.*\n)(?:^\|.*\n)+", below, re.MULTILINE)
    if not found or lines is None:
        raise SystemExit(f"error: {page} must have a table below {heading!r}")
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


def numbers(text: str) -> list[float]:
    """Return the numbers of a cell: ``0.25 [0.22, 0.28]`` has three."""
    return [float(number) for number in re.findall(r"[-+]?\d+\.?\d*", text)]


# --- What λ does.


def _lambda(page: Path) -> Any:
    rows = table(page, "What λ does to the picks")
    sweep, vrsd = [row for row in rows if row["λ"] != "VRSD"], next(row for row in rows if row["λ"] == "VRSD")
    drawn, axes = figure(3.4)
    at = [float(row["λ"]) for row in sweep]
    lines = {
        "of the sum": ("query and sum of the picks", GREEN),
        "cosine with the question": ("relevance: query and pick", BLUE),
        "between picks": ("redundancy: two picks", RED),
    }
    for column, (label, colour) in lines.items():
        axes.plot(at, [float(row[column]) for row in sweep], color=colour, marker="o", markersize=3.5, label=label)
        axes.plot([1.06], [float(vrsd[column])], "D", color=colour, markersize=5, clip_on=False)
    axes.axvline(0.75, color=GREY, linewidth=0.8, linestyle=":")
    axes.annotate("default", (0.75, 0.02), (-4, 0), textcoords="offset points", color="#666666", fontsize=9, ha="right")
    axes.set(
        xlim=(-0.02, 1.1), ylim=(0, 0.8), xlabel="λ_d: diverse on the left, plain search at 1", ylabel="mean cosine"
    )
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1, 1.06], ["0", "0.25", "0.5", "0.75", "1", "\nVRSD"])
    axes.grid()
    drawn.legend(loc="outside upper left", ncols=2)
    return drawn


# --- The papers: a mean with its interval for each method.


class Mean(NamedTuple):
    """A row of a plot."""

    name: str
    value: float
    low: float
    high: float
    paper: float | None = None
    colour: str = BLUE


def _means(axes: Any, groups: dict[str, list[Mean]], label: str) -> None:
    """Draw groups of rows, each a point with its interval, beside the paper's figure where there is one."""
    place, ticks, names = 0.0, [], []
    for title, rows in groups.items():
        if title:
            axes.annotate(title, (0, place), (2, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                          va="center", weight="bold", fontsize=9)  # fmt: skip
            place += 1
        for row in rows:
            axes.plot([row.low, row.high], [place, place], color=row.colour, linewidth=1.6)
            axes.plot([row.value], [place], "o", color=row.colour, markersize=4.5)
            if row.paper is not None:
                axes.plot([row.paper], [place], "D", markerfacecolor="none", markeredgecolor=ORANGE, markersize=7)
            ticks.append(place)
            names.append(row.name)
            place += 1
        place += 0.4
    axes.set_yticks(ticks, names, fontsize=9)
    axes.set_ylim(place - 0.6, -0.8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label)
    axes.grid(axis="x")


def _grouped(
    rows: Table, value: str, colours: dict[str, str], interval: str = "95 % interval"
) -> dict[str, list[Mean]]:
    groups: dict[str, list[Mean]] = {}
    for row in rows:
        paper = float(row["paper"]) if row.get("paper") else None
        mean = Mean(row["method"], float(row[value]), *numbers(row[interval]), paper, colours.get(row["method"], GREY))
        groups.setdefault(row["set"], []).append(mean)
    return groups


def _vrsd(page: Path) -> Any:
    drawn, axes = figure(4.6)
    rows = table(page, "Table 1: mean cosine of the sum")
    _means(axes, _grouped(rows, "mean", {"VRSD": BLUE}), "cosine of the query with the sum of four picks")
    (here,) = axes.plot([], [], "o-", color=GREY, markersize=4.5)
    (paper,) = axes.plot([], [], "D", markerfacecolor="none", markeredgecolor=ORANGE, markersize=7)
    drawn.legend([here, paper], ["here, with a 95 % interval", "the paper"], loc="outside upper left", ncols=2)
    return drawn


def _vrsd_answers(page: Path) -> Any:
    drawn, axes = figure(5.6)
    groups = _grouped(table(page, "Table 2: answer quality"), "ROUGE-L", {"VRSD": BLUE}, "ROUGE-L, 95 % interval")
    _means(axes, groups, "ROUGE-L of the answers, with 95 % intervals")
    return drawn


def _ragsys(page: Path) -> Any:
    rows = table(page, "Tables 1 and 2: metrics by retriever")
    drawn, panels = figure(5.4, 2, 2, sharey="row")
    colours = dict.fromkeys(("Fix", "Bias", "random", "none"), GREY)  # those that do not look at the question
    for axes, metric in zip(panels.flat, ("MC1", "MC2", "MC3", "DPO"), strict=True):
        found = [
            Mean(row["demonstrations"], *numbers(row[metric])[:3], None, colours.get(row["demonstrations"], BLUE))
            for row in rows
        ]
        _means(axes, {"": found}, f"{metric}, with 95 % intervals")
    return drawn


def _aicl(page: Path) -> Any:
    drawn, axes = figure(5.6)
    groups = _grouped(table(page, "Table 1: macro precision, recall and F1"), "F1", {"SAICL": BLUE, "QPP-AICL": GREEN})
    _means(axes, groups, "macro F1, with 95 % intervals")
    return drawn


def _ralm(page: Path) -> Any:
    drawn, (above, below) = figure(6.2, 2, 1, height_ratios=(1.7, 1))
    # Two columns are "95 % interval". The second, which is of the change, is the one that a row keeps.
    rows = [row for row in table(page, "Table 1 and Figure 3: perplexity by method") if row["against no document"]]
    means = [
        Mean(
            row["method"],
            *numbers(row["against no document"]),
            *numbers(row["95 % interval"]),
            colour=BLUE if "BM25" in row["method"] else GREY,
        )
        for row in rows
    ]
    _means(above, {"": means}, "change of word perplexity, %")
    above.axvline(0, color=INK, linewidth=0.8)
    ranked = table(page, "Figures 5, 6 and 7: stride, query length, documents ranked", "documents n")
    at = [int(row["documents n"]) for row in ranked]
    for name, colour in (("random", GREY), ("reranked", BLUE), ("predictive", ORANGE), ("oracle", GREEN)):
        column = f"{name}: word perplexity"
        if column in ranked[0]:
            means = [numbers(row[column])[0] for row in ranked]
            below.plot(at, means, color=colour, marker="o", markersize=4, label=name)
    below.set(xscale="log", xlabel="documents n that the model chooses among", ylabel="word perplexity")
    below.set_xticks(at, [str(n) for n in at])
    below.xaxis.set_minor_locator(NullLocator())
    below.grid()
    below.legend(loc="lower left")
    return drawn


PLOTS = {
    "lambda": _lambda,
    "papers-vrsd": _vrsd,
    "papers-vrsd-answers": _vrsd_answers,
    "papers-ragsys": _ragsys,
    "papers-aicl": _aicl,
    "papers-ralm": _ralm,
}


def draw(out: Path, names: Sequence[str] = tuple(PLOTS)) -> None:
    """Draw the plots of the pages that are in the folder."""
    for name in names:
        page = out / f"{name}.md"
        if page.is_file():
            save(PLOTS[name](page), page.with_suffix(".svg"))


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
