"""The figures of a comparison: means with their intervals, and differences from top-k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .._base.types import NDArray as Array
from ..reporting.statistics import Interval, bootstrap_ratios
from .measures import MEASURES, ROUNDING, Measure, overlap
from .settings import RANDOM, TOP, Setting
from .work import Outcome


class Figure(NamedTuple):
    """One measure of one method."""

    mean: Interval
    difference: Interval  # from top-k, over the same queries
    certain: Interval  # the same difference at a level that holds for all methods together
    queries: int  # that have a value

    @property
    def sign(self) -> int:
        """1 where the difference from top-k is above 0, -1 below; 0 where that is not certain, or only rounding."""
        small = abs(self.difference.mean) <= ROUNDING
        return 0 if small else self.difference.sign


Figures = dict[str, dict[str, Figure]]


def per_query(settings: Sequence[Setting], outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Array]]:
    """Return the measures of each method, one value a query, in the order of the columns."""
    top = outcomes[TOP].indices
    found = {}
    for setting in settings:
        outcome = outcomes[setting.name]
        values = {**outcome.values, "overlap": overlap(outcome.indices, top)}
        found[setting.name] = {name: values[name] for name in MEASURES if name in values}
    return found


def figures(
    settings: Sequence[Setting],
    outcomes: Mapping[str, Outcome],
    values: Mapping[str, Mapping[str, Array]],
    *,
    samples: int,
    level: float,
    seed: int,
) -> Figures:
    """Return means, and differences from top-k, with bootstrap intervals over the queries.

    All methods and measures are drawn together, so that differences have paired intervals. Times are drawn by blocks of
    queries.
    """
    names = [(setting.name, measure) for setting in settings for measure in values[setting.name]]
    columns = np.stack([values[method][measure] for method, measure in names], axis=1)
    base = np.stack([values[TOP].get(m, np.full(len(columns), np.nan)) for _, m in names], axis=1)
    together = 1 - (1 - level) / max(1, len(settings) - 1)
    found: Figures = {setting.name: {} for setting in settings}
    for (method, measure), figure in zip(names, _figures(columns, base, samples, level, together, seed), strict=True):
        found[method][measure] = figure
    timed = [setting.name for setting in settings if setting.rule != RANDOM]
    seconds = np.stack([outcomes[name].seconds for name in timed], axis=1) * 1e6  # (B, S, 2)
    for method, figure in zip(
        timed, _figures(seconds[..., 0], seconds[..., 1], samples, level, together, seed), strict=True
    ):
        found[method]["time"] = figure
    return found


def _figures(columns: Array, base: Array, samples: int, level: float, together: float, seed: int) -> list[Figure]:
    apart = columns - base
    both = np.concatenate([columns, apart], axis=1)
    there = np.isfinite(both)
    some = there.any(axis=0)
    nothing = Interval(np.nan, np.nan, np.nan)
    drawn = {}
    for name, confidence in (("usual", level), ("together", together)):
        intervals = np.full(both.shape[1], None, object)
        if some.any():
            filled = np.where(there, both, 0)[:, some]
            made = bootstrap_ratios(filled, there[:, some], samples=samples, level=confidence, seed=seed)
            for place, interval in zip(np.flatnonzero(some), made, strict=True):
                intervals[place] = interval
        drawn[name] = [interval or nothing for interval in intervals]
    width = columns.shape[1]
    counts = there.sum(axis=0).tolist()
    return [
        Figure(drawn["usual"][i], drawn["usual"][width + i], drawn["together"][width + i], counts[i])
        for i in range(width)
    ]


def usefulness(found: Figures) -> str | None:
    """Return the measure by which picks are useful, where there are judgements: by subtopics if they name these."""
    return next((name for name in ("alpha_ndcg", "ndcg") if name in found[TOP]), None)


def columns(found: Figures) -> list[Measure]:
    """Return the measures that have a value for any method; the number of picks only where it is not the same."""
    there = []
    for name, measure in MEASURES.items():
        means = [figures[name].mean.mean for figures in found.values() if name in figures]
        means = [mean for mean in means if not np.isnan(mean)]
        if means and not (name == "picks" and max(means) == min(means)):
            there.append(measure)
    return there
