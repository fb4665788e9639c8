"""The plots of the ledger's rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator, PercentFormatter

from benchmarks.harness.contender import FLOOR, OURS, PRODUCT
from benchmarks.harness.ledger import Row
from benchmarks.reports.runs import Runs
from benchmarks.reports.style import BLUE, GREEN, GREY, ORANGE, RED, figure, save
from benchmarks.suites import shapes
from benchmarks.suites.peers import FAISS
from benchmarks.suites.selection import DENSE, GIVEN
from benchmarks.suites.shapes import AXES, SOURCES

# (contender, dtype): label, colour, line style; in the order of the legend.
STYLES = {
    ("LlamaIndex", "float32"): ("LlamaIndex (another rule)", "#c51b7d", "-"),
    ("LangChain", "float32"): ("LangChain", "#7b3294", "-"),
    ("pyversity", "float32"): ("pyversity", ORANGE, "-"),
    (FAISS, "float32"): ("one FAISS search, top K", RED, "-"),
    (OURS, "float32"): ("ragsys_kernels", BLUE, "-"),
    (GIVEN, "float32"): ("the same, relevance given", "#6baed6", "-"),
    (OURS, "bfloat16"): ("the same, bfloat16 rows", GREEN, "-"),
    (PRODUCT, "float32"): ("matrix product alone", "#5f5f5f", "-"),
    (FLOOR, "float32"): ("read floor", GREY, "--"),
}
PEERS = [("LlamaIndex", "float32"), ("LangChain", "float32"), ("pyversity", "float32"), (OURS, "float32")]


def draw(runs: Runs, out: Path) -> None:
    made = {"peers": _peers, "scaling": _scaling, "work": _work, "whole_corpus": _whole}
    for name, plot in made.items():
        save(plot(runs), out / f"{name}.svg")


def _peers(runs: Runs) -> Any:
    """What the README shows: the peers against the size of the pool, named at the ends of their lines."""
    drawn, axes = figure(3.2)
    vary, fixed = AXES["pool size P"]
    lines = runs.points(vary, lambda_d=0.75, **fixed)
    sizes: set[float] = set()
    for key in (key for key in PEERS if lines.get(key)):
        label, colour, _ = STYLES[key]
        x, y = (np.array([float(row[name]) for row in lines[key]]) for name in (vary, "us_per_query"))
        axes.plot(x, y, color=colour, marker="o", markersize=3.5, linewidth=1.8)
        times = "" if key[0] == OURS else f"\n{float(lines[key][-1]['ratio']):,.0f} times"
        above = {"LlamaIndex": 9, "LangChain": -9}.get(key[0], 0)  # their lines end near each other
        axes.annotate(label.partition(" (")[0] + times, (x[-1], y[-1]), (8, above), textcoords="offset points",
                      va="center", color=colour, fontsize=9)  # fmt: skip
        sizes.update(x)
    _log(axes, "Time of a query, µs", "candidates P, of which 10 are picked")
    axes.set_xticks(sorted(sizes))
    return drawn


def _scaling(runs: Runs) -> Any:
    drawn, panels = figure(8.2, 3, 2)
    seen = {}
    for axes, (what, (vary, fixed)) in zip(panels.flat, AXES.items(), strict=True):
        lines = runs.points(vary, lambda_d=0.75, **fixed)
        shown = [key for key in STYLES if len(lines.get(key, [])) > 1]
        for key in shown:
            label, colour, style = STYLES[key]
            x, y = (np.array([float(row[name]) for row in lines[key]]) for name in (vary, "us_per_query"))
            floor = key[0] == FLOOR
            (seen[label],) = axes.plot(
                x, y, style, color=colour, marker="" if floor else "o", markersize=3, linewidth=1.2 if floor else 1.5
            )
            if floor:
                axes.fill_between(x, y, 1e-9, color=colour, alpha=0.15, linewidth=0)
        title, _, given = what.partition(", ")
        _log(axes, title[:1].upper() + title[1:], given or vary)
        times = [float(row["us_per_query"]) for key in shown for row in lines[key]]
        if times:
            axes.set_ylim(min(times) / 2, max(times) * 2)
            if vary != "Q":  # powers of ten as they are
                axes.set_xticks(sorted({float(row[vary]) for key in shown for row in lines[key]}))
                axes.tick_params(axis="x", labelsize=7.5, rotation=40 if vary in "NP" else 0)
    for axes in panels[:, 0]:
        axes.set_ylabel("µs a query")
    order = [label for label, *_ in STYLES.values() if label in seen]
    if order:
        drawn.legend([seen[label] for label in order], order, loc="outside lower center", ncols=2)
    return drawn


def _log(axes: Any, title: str, label: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=label, title=title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(which="major")


def _short(value: float) -> str:
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (limit if unit == 'M' else 1e3):g}{unit}"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _work(runs: Runs) -> Any:
    """Dot products of rows over those of the dense rule; products of codes are not counted."""
    drawn, panels = figure(8.4, 2, 2, height_ratios=(1, 2.6))
    (*above, _, _), grid = panels.flat, panels[0, 0].get_gridspec()
    for axes, what in zip(above, ("pool size P", "picks K"), strict=True):
        vary, fixed = AXES[what]
        line = runs.points(vary, lambda_d=0.75, **fixed).get((OURS, "float32"), [])
        axes.plot([float(row[vary]) for row in line], _shares(line), color=BLUE, marker="o", markersize=4)
        _log(axes, f"{what[:1].upper()}{what[1:]}, λ = 0.75", vary)
        axes.set(yscale="linear", ylim=(0, 1.05))
        axes.set_xticks([float(row[vary]) for row in line])
        axes.tick_params(axis="x", labelsize=7.5, rotation=40)
    for axes in panels[1]:
        axes.remove()
    below = drawn.add_subplot(grid[1, :])
    cases = [*shapes.MMR, *shapes.WHOLE]
    found = [(_name(*case), runs.race("mmr", *case).rows.get((OURS, "float32"))) for case in cases]
    bars = [(name, row) for name, row in found if row is not None]
    shares = _shares([row for _, row in bars])
    below.barh(range(len(bars)), shares, color=BLUE, height=0.7)
    for place, share in enumerate(shares):
        text = f"{share:.1%}" if share > 0.001 else f"{share:.2%}" if share > 0.0001 else "< 0.01%"
        below.annotate(text, (share, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    below.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=8)
    below.tick_params(axis="y", length=0)
    below.invert_yaxis()
    below.set(xlim=(0, 1.05), title="Pools and whole corpora: P, K, D, λ")
    below.grid(axis="x")
    for axis in (*(axes.yaxis for axes in above), below.xaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    return drawn


def _name(shape: shapes.Shape, lambda_d: float) -> str:
    pool = f"all {shape.N:,}" if shape.P is None else str(shape.P)
    source = "" if shape.source == "minilm" else f" {SOURCES[shape.source]}"
    return f"{pool}, {shape.K}, {shape.D}{source}{' dup.' if shape.duplicates else ''}, {lambda_d}"


def _shares(rows: Sequence[Row]) -> list[float]:
    return [float(row["products"]) / float(row["dense_products"]) for row in rows]


def _whole(runs: Runs) -> Any:
    keys = ((OURS, "float32"), (FAISS, "float32"), (PRODUCT, "float32"))
    drawn, axes = figure(4.6)
    ticks, labels = [], []
    cases = [case for case in shapes.WHOLE if runs.race("mmr", *case).has(OURS)]
    for place, (shape, lambda_d) in enumerate(cases):
        race = runs.race("mmr", shape, lambda_d)
        for offset, key in enumerate(keys):
            time = race.number("us_per_query", *key)
            label, colour, _ = STYLES[key]
            at = place * 4 + offset
            axes.barh(at, time, color=colour, height=0.85, label=label if place == 0 else None)
            axes.annotate(f"{time:,.0f}", (time, at), (4, 0), textcoords="offset points", va="center")
        dense = race.number("us_per_query", DENSE)
        ticks.append(place * 4 + 1)
        labels.append(
            f"{shape.N:,} {SOURCES[shape.source]}\nD = {shape.D}, K = {shape.K}, λ = {lambda_d}"
            + ("" if np.isnan(dense) else f"\n(dense rule: {dense:,.0f})")
        )
    axes.set_yticks(ticks, labels)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("µs a query, one thread, batches of 256")
    axes.grid(axis="x")
    axes.margins(x=0.14)
    if cases:
        drawn.legend(loc="outside lower center", ncols=2)
    return drawn
