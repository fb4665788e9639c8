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
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not len(values):
        raise ValueError(f"bootstrap_means: columns must be of shape (Q, S), Q at least 1, got {np.shape(columns)}")
    if samples < 1 or not 0 < level < 1:
        raise ValueError(f"bootstrap_means: samples and level must be above 0, got {samples} and {level}")
    size, rng = len(values), np.random.default_rng(seed)
    means = np.empty((samples, values.shape[1]))
    step = max(1, _CELLS // size)
    for begin in range(0, samples, step):
        count = min(step, samples - begin)
        drawn = rng.multinomial(size, np.full(size, 1 / size), size=count)
        means[begin : begin + count] = drawn @ values / size
    tail = 50 * (1 - level)
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return [Interval(*map(float, ends)) for ends in zip(values.mean(axis=0), low, high, strict=True)]
