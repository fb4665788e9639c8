"""Pictures of what each rule picks on a plane, for the pages of the rules.

python -m benchmarks.reports.rule_plots
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness.ledger import RESULTS
from benchmarks.reports.style import BLUE, GREY, INK, ORANGE, figure, save

K = 5
# Of each plot the panels: what stands above, the rule, its arguments.
PANELS: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "rule-mmr": [("λ_d = 0.75", "mmr", {}), ("λ_d = 0.5", "mmr", {"lambda_d": 0.5})],
    "rule-vrsd": [("VRSD", "vrsd", {})],
    "rule-msd": [("λ_d = 0.95", "msd", {"lambda_d": 0.95}), ("λ_d = 0.75", "msd", {"lambda_d": 0.75})],
    "rule-dpp": [("λ_d = 0.5", "dpp", {}), ("λ_d = 0", "dpp", {"lambda_d": 0.0})],
    "rule-ssd": [("λ_d = 0.75", "ssd", {"lambda_d": 0.75}), ("λ_d = 0.25", "ssd", {"lambda_d": 0.25})],
    "rule-sift": [("noise 0.1", "sift", {"noise": 0.1}), ("noise 0.001", "sift", {"noise": 0.001})],
    "rule-coverage": [
        ("facility, λ_d = 0", "coverage", {"lambda_d": 0.0}),
        ("cover, λ_d = 0.25", "coverage", {"lambda_d": 0.25, "kind": "cover"}),
    ],
    "rule-ceiling": [
        ("at most 0.98", "mmr", {"lambda_d": 1.0, "max_similarity": 0.98}),
        ("at most 0.9", "mmr", {"lambda_d": 1.0, "max_similarity": 0.9}),
    ],
}


def toy() -> np.ndarray:
    """Return (36, 2) places around a query at the origin: a heap that is near, two that are farther, single ones."""
    rng = np.random.default_rng(3)
    heaps = (((0.35, 0.15), 0.07, 9), ((-0.45, 0.45), 0.1, 8), ((0.1, -0.75), 0.12, 7))
    around = [np.array(at) + spread * rng.standard_normal((n, 2)) for at, spread, n in heaps]
    return np.concatenate([*around, rng.uniform(-1.1, 1.1, (12, 2))])


def on_sphere(places: np.ndarray) -> np.ndarray:
    """Return unit vectors, (n, n), whose cosines are exp(-2 d²) of the distances d of the places."""
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    cosines = np.exp(-2 * distances**2)
    return np.asarray(np.linalg.cholesky(cosines + 1e-9 * np.eye(len(places))), np.float32)


def _picture(panels: list[tuple[str, str, dict[str, Any]]]) -> Any:
    places = toy()
    query, items = np.split(on_sphere(np.concatenate([np.zeros((1, 2)), places])), [1])
    panels = [("top-k", "mmr", {"lambda_d": 1.0}), *panels]
    drawn, row = figure(2.2 if len(panels) == 3 else 2.8, 1, len(panels))
    for axes, (title, rule, arguments) in zip(row, panels, strict=True):
        picks = getattr(rk, rule)(query, items, K, backend="reference", **arguments).indices[0]
        axes.plot(*places.T, "o", color=GREY, markersize=3, alpha=0.7)
        axes.plot([0], [0], "*", color=ORANGE, markersize=10)
        for number, pick in enumerate(picks[picks >= 0], 1):
            axes.plot(*places[pick], "o", color=BLUE, markersize=9)
            axes.annotate(str(number), places[pick], ha="center", va="center_baseline", color="white", fontsize=9.5)
        axes.set(title=title, xticks=[], yticks=[], xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
        for side in ("left", "right", "top", "bottom"):
            axes.spines[side].set(visible=True, color=INK, linewidth=0.5)
    return drawn


ANGLES = (14, 19, 27, -22, -50, 75)  # of items from the query, in degrees


def _geometry() -> Any:
    """Two picks of each rule as arrows, and how far their sum is from the query."""
    turned = np.radians(ANGLES)
    items = np.stack([np.sin(turned), np.cos(turned)], axis=1).astype(np.float32)
    query = np.array([[0, 1]], np.float32)
    rules = (("top-k", "mmr", {"lambda_d": 1.0}), ("MMR, λ_d = 0.5", "mmr", {"lambda_d": 0.5}), ("VRSD", "vrsd", {}))
    drawn, row = figure(2.5, 1, 3)
    for axes, (title, rule, arguments) in zip(row, rules, strict=True):
        picks = getattr(rk, rule)(query, items, 2, backend="reference", **arguments).indices[0]
        for at, (x, y) in enumerate(items):
            colour, width = (BLUE, 2.0) if at in picks else (GREY, 0.8)
            axes.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "lw": width})
        total = items[picks].sum(axis=0)
        axes.annotate("", total, (0, 0), arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.4, "ls": "--"})
        axes.annotate("", (0, 2.1), (0, 0), arrowprops={"arrowstyle": "->", "color": ORANGE, "lw": 1.4})
        away = np.degrees(np.arctan2(abs(total[0]), total[1]))
        axes.text(0.98, 0.02, f"sum: {away:.0f}° off", transform=axes.transAxes, ha="right", color=INK)
        axes.set(title=title, xticks=[], yticks=[], xlim=(-1.1, 1.3), ylim=(-0.3, 2.2), aspect="equal")
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
    return drawn


def draw(out: Path) -> None:
    save(_geometry(), out / "vrsd-geometry.svg")
    for name, panels in PANELS.items():
        save(_picture(panels), out / f"{name}.svg")


if __name__ == "__main__":
    draw(RESULTS)
