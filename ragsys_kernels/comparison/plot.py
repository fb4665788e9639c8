"""The trade-off as a plot: what the picks gain in diversity against what they lose."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base.extras import needed
from .curve import Curve
from .measures import MEASURES
from .settings import RANDOM, TOP, Setting
from .table import Figures, usefulness

INK, GRID = "#333333", "#e6e6e6"
# Label, colour, colour on a dark page and marker of each rule; text and marker tell them apart too.
_FAMILIES = {
    "mmr": ("MMR", "#08519c", "#6baed6", "o"), "msd": ("MSD", "#e08214", "#fdb863", "s"),
    "dpp": ("DPP", "#238b45", "#74c476", "^"), "ssd": ("SSD", "#54278f", "#b39ddb", "v"),
    "facility": ("Facility location", "#b2182b", "#ef6a6a", "D"), "cover": ("COVER", "#8c6d31", "#c9a75c", "p"),
    "xquad": ("xQuAD", "#c51b7d", "#f178b6", "h"), "vrsd": ("VRSD", "#01665e", "#4fc3b5", "*"),
    "sift": ("SIFT", "#636363", "#bdbdbd", "X"), "ceiling": ("Ceiling", "#4292c6", "#9ecae1", "P"),
    "gist": ("GIST", "#a6761d", "#e6ab02", "<"),
}  # fmt: skip
ON_DARK = {family: dark for family, (_, _, dark, _) in _FAMILIES.items()}
_OTHER = ("Others", "#8c8c8c", "#8c8c8c", "o")
_POINTS = 400  # of the line
_WIDTH, _HEIGHT = 5.6, 4.0  # inches: on a page 400 pixels wide text of 9.5 points is 8.5 pixels high
_SILENT = {"Date": None, "Creator": None}
# Of all plots here and in the benchmarks: text of an SVG stays text, in the first of these fonts that the reader has.
LOOK = {
    "font.size": 9.5, "svg.fonttype": "none", "svg.hashsalt": "ragsys_kernels", "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK,
    "ytick.color": INK, "grid.color": GRID, "grid.linewidth": 0.7, "axes.axisbelow": True, "legend.frameon": False,
    "legend.fontsize": 8.5, "axes.titlesize": 9.5, "axes.titlelocation": "left", "axes.titleweight": "bold",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica", "sans-serif"],
}  # fmt: skip


def panels(found: Figures) -> list[tuple[str, str]]:
    """Return what is plotted: pairs of measures, across and up."""
    useful = usefulness(found)
    return [("relevance", "similarity"), *([("similarity", useful)] if useful else [])]


def draw(settings: Sequence[Setting], found: Figures, curve: Curve) -> dict[str, bytes]:
    """Return the plot as ``png`` and ``svg``, and as ``inline``, an SVG without a ground for `inline`."""
    with needed("compare", "compare"):
        import matplotlib
        from matplotlib.figure import Figure
    pairs = panels(found)
    images = {}
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(_WIDTH, _HEIGHT * len(pairs)), layout="constrained")
        for axes, (across, up) in zip(figure.subplots(len(pairs), 1, squeeze=False)[:, 0], pairs, strict=True):
            _panel(axes, settings, found, curve, across, up)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, columnspacing=1, handletextpad=0.3)
        drawn: dict[str, dict[str, Any]] = {
            "png": {"format": "png", "dpi": 160, "facecolor": "white", "metadata": {"Software": None}},
            "svg": {"format": "svg", "facecolor": "white", "metadata": _SILENT},
            "inline": {"format": "svg", "transparent": True, "metadata": _SILENT},
        }
        for kind, options in drawn.items():
            image = io.BytesIO()
            figure.savefig(image, **options)
            images[kind] = image.getvalue()
    return images


def inline(svg: bytes) -> str:
    """Return an SVG as a part of a page, whose colours of text and grid are the page's."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r'(<svg[^>]*?) width="[^"]+" height="[^"]+"', r"\1", text, count=1)
    for family, (_, colour, _, _) in _FAMILIES.items():
        text = text.replace(colour, f"var(--{family}, {colour})")
    return text.replace(INK, "var(--ink)").replace(GRID, "var(--line)")


def _panel(axes: Any, settings: Sequence[Setting], found: Figures, curve: Curve, across: str, up: str) -> None:
    if across in curve.values and up in curve.values:
        shown = np.unique(np.linspace(0, len(curve.ends) - 1, _POINTS).astype(int))
        xs, ys = (curve.values[name][shown] for name in (across, up))
        axes.plot(xs, ys, color=_FAMILIES["mmr"][1], linewidth=1.2, zorder=2)
    families: dict[str, list[Setting]] = {}
    for setting in settings:
        if setting.name not in (TOP, RANDOM) and across in found[setting.name] and up in found[setting.name]:
            family = setting.name.partition(":")[0]
            families.setdefault(family if family in _FAMILIES else "", []).append(setting)
    for family, members in families.items():
        label, colour, _, marker = _FAMILIES.get(family, _OTHER)
        points = [(found[each.name][across].mean.mean, found[each.name][up].mean.mean) for each in members]
        xs, ys = zip(*points, strict=True)
        style = "none" if family in ("mmr", "") else "-"
        axes.plot(
            xs, ys, marker=marker, color=colour, linestyle=style, linewidth=0.8, markersize=6, label=label, zorder=3
        )
        if family == "mmr":
            for each, (x, y) in zip(members, points, strict=True):
                if each.lambda_d is not None and each.lambda_d < 0.85:  # nearer to 1 they lie upon top-k
                    axes.annotate(
                        f"λ {each.lambda_d:g}", (x, y), (-6, -9), textcoords="offset points", ha="right", fontsize=8
                    )
    for name, text, place in ((TOP, "top-k, λ 1", (0, -17)), (RANDOM, "random", (0, 8))):
        if across in found[name] and up in found[name]:
            mean_x, mean_y = (found[name][measure].mean for measure in (across, up))
            axes.errorbar(
                mean_x.mean, mean_y.mean, xerr=mean_x.bar, yerr=mean_y.bar, marker="o", color=INK, markersize=7,
                linewidth=0.8, markerfacecolor="none",
            )  # fmt: skip
            axes.annotate(
                text, (mean_x.mean, mean_y.mean), place, textcoords="offset points", ha="center", fontsize=8.5
            )
    axes.grid(True)
    axes.margins(0.1)
    names = {"relevance": "mean relevance", "similarity": "mean cosine between picks"}
    axes.set_xlabel(names.get(across, MEASURES[across].label))
    axes.set_ylabel(names.get(up, MEASURES[up].label))
    if up == "similarity":
        axes.invert_yaxis()
        axes.set_title("Up: less alike. Right: more relevant.")
    else:
        axes.invert_xaxis()
        axes.set_title("Up: more useful. Right: less alike.")
