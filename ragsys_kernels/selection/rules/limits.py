"""Which items of a pool a query may still pick, for every rule."""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from .pool import Pool


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
        self.cap = limits.max_per_group
        if self.cap:
            self.groups = limits.groups[np.concatenate([pool.rows, pool.initial])]
            self.counts: dict[int, int] = {}

    def open(self) -> np.ndarray:
        """Return which items may be picked now."""
        found: np.ndarray = self.free.copy()
        if self.cap:
            full = [group for group, count in self.counts.items() if count >= self.cap]
            found &= ~np.isin(self.groups[: len(found)], full)
        if self.costs is not None:
            found &= self.spent + self.costs <= self.budget
        if self.most is not None:
            with np.errstate(over="ignore"):  # out of range: reported where it is picked
                found &= np.asarray(self.m.astype(np.float32) <= self.most)
        return found

    def take(self, j: int, similarity: np.ndarray) -> None:
        """Count an initial item, or a pick."""
        if self.cap:
            group = int(self.groups[j])
            self.counts[group] = self.counts.get(group, 0) + 1
        if self.most is not None:
            self.m = np.maximum(self.m, similarity[: len(self.m)])
        if j < len(self.free):
            self.free[j] = False
            if self.costs is not None:
                self.spent += float(self.costs[j])
