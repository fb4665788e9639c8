"""How every plot looks and is written: an SVG of one width, legible at 400 pixels, and the same bytes on every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from ragsys_kernels.comparison.plot import INK as INK
from ragsys_kernels.comparison.plot import LOOK

GREY, BLUE, ORANGE, GREEN, RED = "#8c8c8c", "#08519c", "#e08214", "#238b45", "#b2182b"

# Inches. A page 400 pixels wide leaves 360 for a plot: text of 9.5 points is then 8.5 pixels high.
WIDTH = 5.6

_LOOK = {
    **LOOK,
    "figure.constrained_layout.w_pad": 0.09,
    "figure.facecolor": "white",  # pages may be dark
    "figure.titlesize": 10.5,
    "legend.fontsize": 9,
}


def figure(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Return a figure of the common width and its axes."""
    plt.rcParams.update(_LOOK)
    return plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", **options)


def save(drawn: Any, path: Path) -> None:
    drawn.savefig(path, metadata={"Date": None})
    plt.close(drawn)
