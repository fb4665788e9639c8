"""Selecting informative data: what leaves the least uncertainty about the query."""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from .pool import Pool, products
from .rule import Rule


class SIFT(Rule):
    """u_i²/(d_i + ν): by how much item i lowers the variance left at the query, in a Gaussian process with noise ν."""

    def __init__(self, problem: Problem, q: int, pool: Pool) -> None:
        assert pool.query is not None
        self.noise, self.min_gain = problem.options.noise, problem.options.min_gain
        self.relevance = pool.r
        self.u = np.concatenate([pool.r, products(pool.e_initial, pool.query)])  # covariances with the query
        self.d = np.einsum("nd,nd->n", pool.items, pool.items)  # variances
        self.left = 1.0
        self.factor: list[np.ndarray] = []

    def values(self) -> np.ndarray:
        gain = self._gain()
        return np.where(gain >= self.min_gain, gain, -np.inf)

    def _gain(self) -> np.ndarray:
        n = len(self.relevance)
        return np.asarray(self.u[:n] ** 2 / (np.maximum(self.d[:n], 0) + self.noise))

    def score(self, i: int) -> float:
        return self.left - float(self._gain()[i])

    def take(self, j: int, similarity: np.ndarray) -> None:
        root = np.sqrt(max(self.d[j], 0) + self.noise)
        column = (similarity - sum(c * c[j] for c in self.factor)) / root
        at_query = self.u[j] / root
        self.factor.append(column)
        self.d = self.d - column**2
        self.u = self.u - column * at_query
        self.left -= float(at_query**2)
