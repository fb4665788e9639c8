"""How every plot looks and is written: an SVG of one width, legible at 400 pixels, and the same bytes on every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

INK, GRID, GREY, BLUE, ORANGE, GREEN, RED = "#333333", "#e6e6e6", "#8c8c8c", "#08519c", "#e08214", "#238b45", "#b2182b"

# Inches. A page 400 pixels wide leaves 360 for a plot: text of 9.5 points is then 8.5 pixels high.
WIDTH = 5.6

_LOOK = {
    "font.size": 9.5,
    # Text stays text, in the first of these that the reader has. The others are no wider than the first, with which
    # the layout is made.
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica", "sans-serif"],
    "svg.fonttype": "none",
    "svg.hashsalt": "ragsys_kernels",  # ids of paths
    "figure.constrained_layout.w_pad": 0.09,
    "figure.facecolor": "white",  # pages may be dark
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "figure.titlesize": 10.5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def figure(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Return a figure of the common width and its axes."""
    plt.rcParams.update(_LOOK)
    return plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", **options)


def save(drawn: Any, path: Path) -> None:
    drawn.savefig(path, metadata={"Date": None})
    plt.close(drawn)
