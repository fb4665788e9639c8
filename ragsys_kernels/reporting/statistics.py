"""Confidence intervals by the bootstrap over queries.

The intervals are expanded percentile intervals (Hesterberg, What teachers should know about the bootstrap, 2015,
section 3.3), whose percentiles depend on the number of rows. Plain percentile intervals are too narrow with few rows
(they hold 90 of 100 times for ten normal values at a level of 95), since draws spread less than means do, and a normal
variable less than Student's. From a hundred rows on the two differ by less than 0.2 percentage points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from .._base.types import NDArray as Array

_CELLS = 1 << 22  # counts of drawn queries held at once: 32 MB


class Interval(NamedTuple):
    """A mean with the ends of its confidence interval."""

    mean: float
    low: float
    high: float

    def span(self, form: str = "{:.3f}") -> str:
        """Return the ends in the form: ``[0.120, 0.340]``; with up to three digits more where one would read as 0."""
        for _ in range(3):
            if all(end == 0 or re.search("[1-9a-z]", form.format(end)) for end in (self.low, self.high)):
                break
            form = re.sub(r"\.(\d)", lambda digits: f".{int(digits[1]) + 1}", form)
        return f"[{form.format(self.low)}, {form.format(self.high)}]"

    @property
    def bar(self) -> list[list[float]]:
        """Below and above the mean, as matplotlib's error bars of one point are given.

        Where all draws are the same, rounding may put an end on the other side of the mean.
        """
        return [[max(self.mean - self.low, 0.0)], [max(self.high - self.mean, 0.0)]]

    def cells(self, form: str = "{:.3f}") -> tuple[str, str]:
        """Return the mean in the form, and `span`: two columns of a table."""
        return form.format(self.mean), self.span(form)

    def signed(self, form: str = "{:+.3f}") -> str:
        """Return a difference with its ends: ``+0.120 [-0.010, +0.250]``."""
        return " ".join(self.cells(form))

    def times(self, factor: float) -> Interval:
        return Interval(*(factor * end for end in self))

    @property
    def sign(self) -> int:
        """1 above 0, -1 below; 0 where the interval includes 0, also as an end, or has NaN."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def place(self) -> str:
        """How the first compares with the second."""
        return {1: "above", -1: "below", 0: "not distinguishable from"}[self.sign]

    @property
    def verdict(self) -> str:
        """How the first compares with the second, in one word."""
        return {1: "higher", -1: "lower", 0: "undecided"}[self.sign]

    def same(self, *others: float) -> str:
        """Return whether a difference has the sign of others, a paper's by model: yes, no, undecided, models differ."""
        signs = {int(np.sign(round(other, 6))) for other in others}
        if len(signs) > 1:
            return "models differ"
        return "undecided" if not self.sign else "yes" if signs == {self.sign} else "no"

    def marked(self, form: str = "{:+.3f}") -> str:
        """Return the text of `signed`, bold where 0 is outside."""
        return f"**{self.signed(form)}**" if self.sign else self.signed(form)


def bootstrap_ratios(
    columns: Any, counts: Any, *, samples: int = 10_000, level: float = 0.95, seed: int = 0
) -> list[Interval]:
    """Return intervals of each column's sum over the sum of the counts, by percentiles of this ratio over rows drawn
    with replacement.

    All columns are drawn together, so that a column of differences between two methods has the paired interval. With
    counts of 1 the ratios are means. With negative log-probabilities of texts as columns and their numbers of words as
    counts, the exponentials of the result are word perplexities with their intervals; with differences of two such
    columns, ratios of perplexities.

    Parameters
    ----------
    columns : (Q, S) or (Q,) floating point or bool
        One row a query.
    counts : (Q,) or (Q, S) floating point or integers, at least 0
        For all columns or for each. Not all 0; a draw in which they are has no ratio, and then the interval is NaN.
    samples : int
        Draws, at least 1.
    level : float
        Between 0 and 1.
    seed : int
        The same numbers at every run.

    Examples
    --------
    >>> bootstrap_ratios([1.0, 2.0, 3.0], [1, 2, 3], samples=1000)
    [Interval(mean=1.0, low=1.0, high=1.0)]
    """
    op = "bootstrap_ratios"
    values, weights = columns_of(op, columns, samples, level), np.asarray(counts, np.float64)
    if weights.shape not in (values.shape[:1], values.shape):
        raise ValueError(f"{op}: counts must be of shape {values.shape[:1]} or {values.shape}, got {weights.shape}")
    if not (weights >= 0).all() or not weights.any(axis=0).all():
        raise ValueError(f"{op}: counts must be at least 0, and one above, got {weights.tolist()}")
    weights = weights.reshape(len(values), -1)
    with np.errstate(invalid="ignore", divide="ignore"):  # a draw without a count
        drawn = [counts @ values / (counts @ weights) for counts in drawn_counts(len(values), samples, seed)]
    return intervals(values.sum(axis=0) / weights.sum(axis=0), np.concatenate(drawn), level, len(values))


def columns_of(op: str, columns: Any, samples: int, level: float) -> Array:
    """Return columns as (Q, S) float64, after all checks."""
    values = np.asarray(columns, np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not len(values):
        raise ValueError(f"{op}: columns must be of shape (Q, S), Q at least 1, got {values.shape}")
    if samples < 1:
        raise ValueError(f"{op}: samples must be at least 1, got {samples}")
    if not 0 < level < 1:
        raise ValueError(f"{op}: level must be within (0, 1), got {level}")
    return values


def drawn_counts(size: int, samples: int, seed: int | tuple[int, ...]) -> Iterator[Array]:
    """Yield how often each row is drawn: blocks of (B, size), `samples` rows in all."""
    rng, step = np.random.default_rng(seed), max(1, _CELLS // size)
    for begin in range(0, samples, step):
        yield rng.multinomial(size, np.full(size, 1 / size), size=min(step, samples - begin))


def intervals(whole: Array, drawn: Array, level: float, size: int) -> list[Interval]:
    """Return the intervals of values (S,) from what draws (B, S) of `size` rows give."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    if size > 1:  # the draws of one row are all the same
        z = _student(z, size - 1) * (size / (size - 1)) ** 0.5
    tail = 100 * NormalDist().cdf(-z)  # per cent of the draws below the interval, and above it
    low, high = np.percentile(drawn, [tail, 100 - tail], axis=0)
    return [Interval(*map(float, ends)) for ends in zip(whole, low, high, strict=True)]


def _student(z: float, freedom: int) -> float:
    """Return the quantile of Student's distribution that is the normal one's z.

    Source: Abramowitz and Stegun, Handbook of mathematical functions, 26.7.5, to the fourth term: within 0.02 % of the
    quantile of 97.5 % from five degrees of freedom on.
    """
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + sum(term / float(freedom**power) for power, term in enumerate(terms, 1))
