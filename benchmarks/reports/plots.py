"""The plots of the report, from the ledger's rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from benchmarks.reports.speed import AXES, SOURCES, Row, Runs
from benchmarks.suites import shapes
from benchmarks.suites.selection import DENSE, FAISS, FLOOR, GIVEN, OURS, PRODUCT

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator, PercentFormatter

INK, GRID, BLUE = "#333333", "#e6e6e6", "#08519c"

# (contender, dtype): label, colour, line style; in the order of the legend.
STYLES = {
    ("pyversity", "float32"): ("pyversity", "#e08214", "-"),
    (FAISS, "float32"): ("one FAISS search, top K", "#b2182b", "-"),
    (OURS, "float32"): ("ragsys_kernels", BLUE, "-"),
    (GIVEN, "float32"): ("ragsys_kernels, relevance given", "#6baed6", "-"),
    (OURS, "bfloat16"): ("ragsys_kernels, bfloat16 rows", "#238b45", "-"),
    (PRODUCT, "float32"): ("matrix product alone", "#5f5f5f", "-"),
    (FLOOR, "float32"): ("read floor", "#9e9e9e", "--"),
}


def draw(runs: Runs, out: Path) -> None:
    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": INK,
            "axes.titlesize": 10,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
            "savefig.dpi": 150,
        }
    )
    for name, figure in (("scaling", _scaling(runs)), ("work", _work(runs)), ("whole_corpus", _whole(runs))):
        figure.savefig(out / f"{name}.png")
        plt.close(figure)


def _scaling(runs: Runs) -> Any:
    figure, panels = plt.subplots(2, 3, figsize=(11, 6.8), layout="constrained")
    seen = {}
    for axes, (what, (vary, fixed)) in zip(panels.flat, AXES.items(), strict=True):
        lines = runs.points(vary, lambda_d=0.75, **fixed)
        drawn = [key for key in STYLES if len(lines.get(key, [])) > 1]
        for key in drawn:
            label, colour, style = STYLES[key]
            x, y = (np.array([float(row[name]) for row in lines[key]]) for name in (vary, "us_per_query"))
            floor = key[0] == FLOOR
            (seen[label],) = axes.plot(
                x, y, style, color=colour, marker="" if floor else "o", markersize=3.5, linewidth=1.2 if floor else 1.6
            )
            if floor:
                axes.fill_between(x, y, 1e-9, color=colour, alpha=0.15, linewidth=0)
        _log(axes, what, "queries in one call, 10,000 at most" if vary == "Q" else vary)
        times = [float(row["us_per_query"]) for key in drawn for row in lines[key]]
        if times:
            axes.set_ylim(min(times) / 2, max(times) * 2)
            if vary != "Q":  # powers of ten as they are
                axes.set_xticks(sorted({float(row[vary]) for key in drawn for row in lines[key]}))
    for axes in panels[:, 0]:
        axes.set_ylabel("µs a query")
    order = [label for label, *_ in STYLES.values() if label in seen]
    if order:
        figure.legend([seen[label] for label in order], order, loc="outside lower center", ncols=4)
    figure.suptitle(
        "Time a query, MMR at λ = 0.75 (MiniLM; where not on the axis: P = 100, K = 10, D = 384)",
        fontsize=11,
        color=INK,
    )
    return figure


def _log(axes: Any, title: str, label: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=label)
    axes.set_title(title[:1].upper() + title[1:])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(which="major", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _short(value: float) -> str:
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (limit if unit == 'M' else 1e3):g}{unit}"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _work(runs: Runs) -> Any:
    """Dot products of rows over those of the dense rule; products of codes are not counted."""
    figure, (*panels, right) = plt.subplots(1, 3, figsize=(11, 4.4), layout="constrained", width_ratios=(1, 1, 1.3))
    for axes, what in zip(panels, ("pool size P", "picks K"), strict=True):
        vary, fixed = AXES[what]
        line = runs.points(vary, lambda_d=0.75, **fixed).get((OURS, "float32"), [])
        axes.plot([float(row[vary]) for row in line], _shares(line), color=BLUE, marker="o", markersize=4)
        _log(axes, f"{what}, λ = 0.75", vary)
        axes.set(yscale="linear", ylim=(0, 1.05))
        axes.set_xticks([float(row[vary]) for row in line])
        axes.tick_params(axis="x", labelsize=7)
    cases = [*shapes.MMR, *shapes.WHOLE]
    found = [(shape, lambda_d, runs.row("mmr", shape, lambda_d, OURS)) for shape, lambda_d in cases]
    bars = [(_name(shape, lambda_d), row) for shape, lambda_d, row in found if row is not None]
    right.barh(range(len(bars)), _shares([row for _, row in bars]), color=BLUE, height=0.7)
    right.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=6.5)
    right.tick_params(axis="y", length=0)
    right.invert_yaxis()
    right.set(xlim=(0, 1.05), title="Pools and whole corpora: P, K, D, λ")
    right.grid(axis="x", color=GRID, linewidth=0.7)
    right.set_axisbelow(True)
    for axis in (*(axes.yaxis for axes in panels), right.xaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    figure.suptitle(
        "Dot products of rows done, of those of the dense rule (products of 8-bit codes not counted)",
        fontsize=11,
        color=INK,
    )
    return figure


def _name(shape: shapes.Shape, lambda_d: float) -> str:
    pool = f"all {shape.N:,}" if shape.P is None else str(shape.P)
    source = "" if shape.source == "minilm" else f" {SOURCES[shape.source]}"
    return f"{pool}, {shape.K}, {shape.D}{source}{' dup.' if shape.duplicates else ''}, {lambda_d}"


def _shares(rows: Sequence[Row]) -> list[float]:
    return [float(row["products"]) / float(row["dense_products"]) for row in rows]


def _whole(runs: Runs) -> Any:
    keys = ((OURS, "float32"), (FAISS, "float32"), (PRODUCT, "float32"))
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    ticks, labels = [], []
    cases = [case for case in shapes.WHOLE if runs.row("mmr", *case, OURS)]
    for place, (shape, lambda_d) in enumerate(cases):
        for offset, key in enumerate(keys):
            time = runs.number("us_per_query", "mmr", shape, lambda_d, *key)
            label, colour, _ = STYLES[key]
            at = place * 4 + offset
            axes.barh(at, time, color=colour, height=0.85, label=label if place == 0 else None)
            axes.annotate(f"{time:,.0f}", (time, at), (4, 0), textcoords="offset points", va="center", color=INK)
        dense = runs.number("us_per_query", "mmr", shape, lambda_d, DENSE)
        ticks.append(place * 4 + 1)
        labels.append(
            f"{shape.N:,} {SOURCES[shape.source]} rows, D = {shape.D}\nλ = {lambda_d}, K = {shape.K}"
            + ("" if np.isnan(dense) else f"\n(dense rule: {dense:,.0f})")
        )
    axes.set_yticks(ticks, labels)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("µs a query, one thread, batches of 256")
    axes.set_title("Exact MMR over the whole corpus, against one exact search")
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.1)
    if cases:
        figure.legend(loc="outside lower center", ncols=3)
    return figure
