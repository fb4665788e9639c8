"""The trade-off as a plot: what the picks gain in diversity against what they lose."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base.extras import needed
from .._base.types import NDArray as Array
from .curve import Curve
from .measures import MEASURES
from .settings import RANDOM, TOP, Setting
from .table import Figures, usefulness

Label = tuple[str, float, float]  # and the point that it names
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
# Where a label may stand beside its point, the better first, and how far from it, in points.
_SIDES = ((-1, -1), (0, -1), (1, -1), (-1, 0), (1, 0), (0, 1), (-1, 1), (1, 1))
_AWAY = (8, 14, 22, 32, 44)
_CLEAR = 3  # points between a label and what it must not cover
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
        every = figure.subplots(len(pairs), 1, squeeze=False)[:, 0]
        labels = [_panel(axes, settings, found, curve, *pair) for axes, pair in zip(every, pairs, strict=True)]
        handles, names = every[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, columnspacing=1, handletextpad=0.3)
        figure.draw_without_rendering()  # which makes the layout: where points are in pixels
        for axes, texts in zip(every, labels, strict=True):
            write_labels(axes, texts)
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


def write_labels(axes: Any, labels: Sequence[Label]) -> None:
    """Write labels beside their points where they cover least of markers, lines and each other: greedily, in order.

    The figure must have its layout (`draw_without_rendering`), and the axes all else that they show.
    """
    scale = axes.figure.dpi / 72  # pixels of a point
    paths = [line.get_xydata() for line in axes.lines if line.get_linestyle() != "None"]
    paths += [segment for bars in axes.collections for segment in bars.get_segments()]
    marks = [np.zeros((0, 2)), *(line.get_xydata() for line in axes.lines if line.get_marker() not in ("None", ""))]
    lines = np.concatenate([np.zeros((0, 2)), *(_dense(axes.transData.transform(path)) for path in paths)])
    markers = axes.transData.transform(np.concatenate(marks))
    texts: list[Array] = []
    for text, x, y in labels:
        drawn = axes.annotate(text, (x, y), (0, 0), textcoords="offset points", fontsize=8, in_layout=False)
        size = np.array(drawn.get_window_extent().size)
        point = axes.transData.transform((x, y))
        best = (np.inf, _SIDES[0], _AWAY[0], np.zeros((2, 2)))
        for away in _AWAY:
            for side in _SIDES:
                offset = away * np.array(side) / np.hypot(*side)
                low = point + offset * scale - size * (1 - np.array(side)) / 2
                box = np.array([low, low + size])
                cost = (
                    100 * sum(_meet(box, other, _CLEAR * scale) for other in texts)
                    + 100 * (not _within(box, axes.bbox.get_points()))
                    + 10 * _covered(box, markers, (_CLEAR + 3) * scale)
                    + _covered(box, lines, _CLEAR * scale)
                    + away / 100
                )
                if cost < best[0]:
                    best = (cost, side, away, box)
        _, (right, up), away, box = best
        drawn.remove()
        texts.append(box)
        axes.annotate(
            text, (x, y), away * np.array((right, up)) / np.hypot(right, up), textcoords="offset points", fontsize=8,
            ha=("center", "left", "right")[right], va=("center", "bottom", "top")[up], in_layout=False,
            arrowprops=None if away == _AWAY[0] else {"arrowstyle": "-", "color": INK, "linewidth": 0.5},
        )  # fmt: skip


def _dense(path: Array) -> Array:
    """Return the points of a path, in pixels, that are two apart; no value, no point."""
    path = path[np.isfinite(path).all(axis=1)]
    if not len(path):
        return path
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(path, axis=0).T))])
    at = np.arange(0, along[-1] + 1, 2)
    return np.column_stack([np.interp(at, along, path[:, axis]) for axis in (0, 1)])


def _covered(box: Array, points: Array, clear: float) -> int:
    """Return how many points a box covers or nearly touches."""
    return int(((points > box[0] - clear) & (points < box[1] + clear)).all(axis=1).sum())


def _meet(box: Array, other: Array, clear: float) -> bool:
    return bool(((box[0] - clear < other[1]) & (other[0] < box[1] + clear)).all())


def _within(box: Array, whole: Array) -> bool:
    return bool((box[0] >= whole[0]).all() and (box[1] <= whole[1]).all())


def _panel(axes: Any, settings: Sequence[Setting], found: Figures, curve: Curve, across: str, up: str) -> list[Label]:
    """Draw one pair of measures; return the labels that its points get."""
    labels: list[Label] = []
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
        if family == "mmr":  # nearer to 1 they lie upon top-k
            labels += [
                (f"λ {each.lambda_d:g}", *point)
                for each, point in zip(members, points, strict=True)
                if each.lambda_d is not None and each.lambda_d < 0.85
            ]
    for name, text in ((TOP, "top-k, λ 1"), (RANDOM, "random")):
        if across in found[name] and up in found[name]:
            mean_x, mean_y = (found[name][measure].mean for measure in (across, up))
            axes.errorbar(
                mean_x.mean, mean_y.mean, xerr=mean_x.bar, yerr=mean_y.bar, marker="o", color=INK, markersize=7,
                linewidth=0.8, markerfacecolor="none",
            )  # fmt: skip
            labels.append((text, mean_x.mean, mean_y.mean))
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
    return labels
