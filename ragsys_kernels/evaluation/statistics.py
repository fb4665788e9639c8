"""Confidence intervals by the bootstrap over queries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_CELLS = 1 << 22  # counts of drawn queries held at once: 32 MB


class Interval(NamedTuple):
    """A mean with the ends of its confidence interval."""

    mean: float
    low: float
    high: float


def bootstrap_means(columns: Any, *, samples: int = 10_000, level: float = 0.95, seed: int = 0) -> list[Interval]:
    """Percentile intervals of the mean of each column, over rows drawn with replacement.

    All columns are drawn together, so that a column of differences between two methods has the paired interval.

    Parameters
    ----------
    columns : (Q, S) or (Q,) floating point or bool
        One row a query.
    samples : int
        Draws, at least 1.
    level : float
        Between 0 and 1.
    seed : int
        The same numbers at every run.

    Examples
    --------
    >>> bootstrap_means([0.0, 1.0, 1.0, 0.0], samples=1000)
    [Interval(mean=0.5, low=0.0, high=1.0)]
    """
    values = np.asarray(columns, np.float64)
    return _bootstrap("bootstrap_means", values, np.ones(len(values) if values.ndim else 0), samples, level, seed)


def bootstrap_ratios(
    columns: Any, counts: Any, *, samples: int = 10_000, level: float = 0.95, seed: int = 0
) -> list[Interval]:
    """As `bootstrap_means`, of each column's sum over the sum of the counts, which are drawn with it.

    With negative log-probabilities of texts as columns and their numbers of words as counts, the exponentials of the
    result are word perplexities with their intervals; with differences of two such columns, ratios of perplexities.

    Parameters
    ----------
    columns : (Q, S) or (Q,) floating point
    counts : (Q,) floating point or integers, at least 0
        Not all 0; a draw in which they are has no ratio, and then the interval is NaN.
    samples, level, seed
        As for `bootstrap_means`.

    Examples
    --------
    >>> bootstrap_ratios([1.0, 2.0, 3.0], [1, 2, 3], samples=1000)
    [Interval(mean=1.0, low=1.0, high=1.0)]
    """
    op = "bootstrap_ratios"
    values, weights = np.asarray(columns, np.float64), np.asarray(counts, np.float64)
    if weights.shape != values.shape[:1]:
        raise ValueError(f"{op}: counts must be of shape {values.shape[:1]}, got {weights.shape}")
    if not (weights >= 0).all() or not weights.any():
        raise ValueError(f"{op}: counts must be at least 0, and one above, got {weights.tolist()}")
    return _bootstrap(op, values, weights, samples, level, seed)


def _bootstrap(op: str, values: Array, weights: Array, samples: int, level: float, seed: int) -> list[Interval]:
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not len(values):
        raise ValueError(f"{op}: columns must be of shape (Q, S), Q at least 1, got {values.shape}")
    if samples < 1 or not 0 < level < 1:
        raise ValueError(f"{op}: samples and level must be above 0, got {samples} and {level}")
    size, rng = len(values), np.random.default_rng(seed)
    ratios = np.empty((samples, values.shape[1]))
    step = max(1, _CELLS // size)
    for begin in range(0, samples, step):
        count = min(step, samples - begin)
        drawn = rng.multinomial(size, np.full(size, 1 / size), size=count)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios[begin : begin + count] = drawn @ values / (drawn @ weights)[:, None]
    tail = 50 * (1 - level)
    low, high = np.percentile(ratios, [tail, 100 - tail], axis=0)
    means = values.sum(axis=0) / weights.sum()
    return [Interval(*map(float, ends)) for ends in zip(means, low, high, strict=True)]
