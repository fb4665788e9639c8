"""Every selection of MMR by its weight λ: the specification of `mmr_path`, in float64 and fractions.

After some picks, the value of an item is a line in λ, λ v - (1-λ) m. The next pick is the item whose line is on top, so
what follows a prefix of picks divides its range of λ, and the prefixes are a tree. Where lines meet, or nearly do,
fractions decide: the path is that of exact arithmetic on the float64 numbers v and m.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from ..problem import Problem, SelectionPath
from .limits import Limits
from .pool import Pool, in_range, pool_of, products

# By what share of the sizes of its terms a value that float64 gives may be off, with room to spare.
_ROUNDING = 2.0**-48


def path_of(problem: Problem, low: float, high: float) -> SelectionPath:
    """Return the picks of every query for every float64 λ_d from low to high."""
    return SelectionPath.joined([_Query(problem, q).path(low, high) for q in range(problem.num_queries)], problem.k)


class _Query:
    """One query: its items, and their similarities to those that have been picked."""

    def __init__(self, problem: Problem, q: int) -> None:
        self.problem, self.q = problem, q
        self.pool: Pool = pool_of(problem, q)
        self.items = self.pool.items
        self.initial = range(len(self.pool.rows), len(self.items))
        self.wanted = problem.k if problem.ks is None else int(problem.ks[q])
        self.known: dict[int, np.ndarray] = {}

    def path(self, low: float, high: float) -> SelectionPath:
        """Walk the tree of prefixes, depth first, in increasing λ."""
        lows, highs, picks = [], [], []
        waiting: list[tuple[float, float, tuple[int, ...]]] = [(low, high, ())]
        while waiting:
            begin, end, prefix = waiting.pop()
            children = self.children(begin, end, prefix)
            waiting += reversed(children)
            if not children:
                lows.append(begin)
                highs.append(end)
                picks.append(prefix)
        indices = np.full((len(picks), self.problem.k), -1, np.int64)
        for row, of_segment in zip(indices, picks, strict=True):
            row[: len(of_segment)] = self.pool.rows[list(of_segment)] - self.q * self.problem.pool_stride
        return SelectionPath(np.array([0, len(picks)]), np.array(lows), np.array(highs), indices)

    def children(self, low: float, high: float, prefix: tuple[int, ...]) -> list[tuple[float, float, tuple[int, ...]]]:
        """Return the prefixes with one pick more and their ranges of λ; none where the picks are all made."""
        taken = [*self.initial, *prefix]
        limits = Limits(self.problem, self.q, self.pool)
        for j in taken:
            limits.take(j, self.similarity(j))
        items = np.flatnonzero(limits.open())
        if len(prefix) == self.wanted or not len(items):
            return []
        v = self.pool.v[items]
        if not taken:  # the first pick is the argmax of v, whatever λ is
            return [(low, high, (int(items[np.argmax(v)]),))]
        lines = _Lines(v, np.max([self.similarity(j)[items] for j in taken], axis=0))
        found = []
        while low <= high:
            i = lines.best(low)
            after = lines.overtaken(i, low, high)
            found.append((low, min(math.nextafter(after, -math.inf), high), (*prefix, int(items[i]))))
            low = after
        return found

    def similarity(self, j: int) -> np.ndarray:
        """Return the similarities of all items to one."""
        if j not in self.known:
            self.known[j] = products(self.items, self.items[j])
            in_range(self.problem, self.q, self.known[j])
        return self.known[j]


class _Lines:
    """The values of items as lines in λ, λ v - (1-λ) m = λ (v + m) - m."""

    def __init__(self, v: np.ndarray, m: np.ndarray) -> None:
        self.v, self.m = v, m
        self.rounding = _ROUNDING * float(np.abs(v).max() + np.abs(m).max())

    def value(self, i: int, weight: float) -> Fraction:
        exact = Fraction(weight)
        return exact * Fraction(float(self.v[i])) - (1 - exact) * Fraction(float(self.m[i]))

    def best(self, weight: float) -> int:
        """Return the line on top at a weight, the first of equal ones."""
        values = weight * self.v - (1 - weight) * self.m
        near = np.flatnonzero(values >= values.max() - 2 * self.rounding)
        return max(map(int, near), key=lambda i: (self.value(i, weight), -i))

    def overtaken(self, i: int, low: float, high: float) -> float:
        """Return the least float64 above low at which line i, which is on top at low, no longer is; inf beyond high."""
        rise, gap = self.v + self.m - (self.v[i] + self.m[i]), self.m - self.m[i]  # j is above i where λ rise > gap
        surely = rise > 2 * self.rounding
        latest = np.where(surely, (gap + self.rounding) / np.where(surely, rise - self.rounding, 1), np.inf)
        last = min(float(latest.min()), high)
        possible = (rise > -self.rounding) & (gap - self.rounding <= last * (rise + self.rounding))
        return min((self.crossed(i, int(j), high) for j in np.flatnonzero(possible)), default=math.inf)

    def crossed(self, i: int, j: int, high: float) -> float:
        """Return the least float64 at which line j is above line i, or as high and before it."""
        gap = Fraction(float(self.m[j])) - Fraction(float(self.m[i]))
        rise = Fraction(float(self.v[j])) - Fraction(float(self.v[i])) + gap
        if rise <= 0 or gap > rise * Fraction(high):
            return math.inf
        at = float(gap / rise)
        while Fraction(at) * rise < gap or (Fraction(at) * rise == gap and i < j):
            at = math.nextafter(at, math.inf)
        return at if at <= high else math.inf
