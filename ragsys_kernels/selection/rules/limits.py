"""Which items of a pool a query may still pick, for every rule."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from ..problem import Problem
from .pool import Pool


class _Level(NamedTuple):
    """The groups of items and initial items of a level, (n + S,), their caps, and how many of each are picked."""

    groups: np.ndarray
    own: dict[int, int]
    others: int
    counts: Counter[int]

    def full(self) -> list[int]:
        return [g for g in {*self.own, *self.counts} if self.counts[g] >= self.own.get(g, self.others)]


class Limits:
    """Which items of a pool are still open to a query, by what has been picked."""

    def __init__(self, problem: Problem, q: int, pool: Pool) -> None:
        limits = problem.constraints
        self.free = np.ones(len(pool.rows), bool)  # not picked
        self.costs = limits.item_costs(q, pool.rows, pool.positions) if limits.costs is not None else None
        self.budget = 0.0 if limits.budget is None else float(limits.budget[q])
        self.spent = 0.0
        self.most = None if limits.max_similarity is None else np.float32(limits.max_similarity[q])
        self.m = np.full(len(pool.rows), -np.inf)  # largest similarity to what has been picked
        rows, quotas = np.concatenate([pool.rows, pool.initial]), limits.quotas
        self.levels: list[_Level] = []
        if limits.max_per_group:
            self.levels.append(_Level(limits.groups[rows], {}, limits.max_per_group, Counter()))
        elif quotas is not None:
            for level, groups in enumerate(quotas.groups):
                self.levels.append(_Level(groups[rows], *quotas.caps_of(level), Counter()))
        self.minima = {} if quotas is None else quotas.least()

    def open(self) -> np.ndarray:
        """Return which items may be picked now."""
        found: np.ndarray = self.free.copy()
        for level in self.levels:
            found &= ~np.isin(level.groups[: len(found)], level.full())
        if self.costs is not None:
            found &= self.spent + self.costs <= self.budget
        if self.most is not None:
            with np.errstate(over="ignore"):  # out of range: reported where it is picked
                found &= np.asarray(self.m.astype(np.float32) <= self.most)
        return found

    def for_minima(self, open: np.ndarray, left: int) -> np.ndarray:
        """Return which of the open items may be picked where ``left`` picks are to be made, this one among them.

        A group lacks what its minimum is above its picks, but no more than it has open items. While all groups lack
        fewer than ``left``, any open item may be picked; else only items of groups that lack some.
        """
        if not self.minima:
            return open
        (level,) = self.levels
        groups = level.groups[: len(open)]
        there = Counter(groups[open].tolist())
        lacks = {g: min(self.minima.get(g, 0) - level.counts[g], n) for g, n in there.items()}
        lacking = [g for g, n in lacks.items() if n > 0]
        return open if sum(lacks[g] for g in lacking) < left else open & np.isin(groups, lacking)

    def take(self, j: int, similarity: np.ndarray) -> None:
        """Count an initial item, or a pick."""
        for level in self.levels:
            level.counts[int(level.groups[j])] += 1
        if self.most is not None:
            self.m = np.maximum(self.m, similarity[: len(self.m)])
        if j < len(self.free):
            self.free[j] = False
            if self.costs is not None:
                self.spent += float(self.costs[j])
