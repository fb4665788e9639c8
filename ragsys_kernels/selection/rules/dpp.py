"""Determinantal point process: greedy search of the most probable set."""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from .pool import ROUNDING, Pool, in_range
from .rule import Rule


class DPP(Rule):
    """d_i, what the determinant of L_ij = q_i s_ij q_j grows by with item i, by a Cholesky factor row by row."""

    def __init__(self, problem: Problem, q: int, pool: Pool) -> None:
        own = pool.own()
        quality = problem.options.quality
        if quality is None:
            exponent = problem.options.scale * float(problem.lambda_d[q]) * pool.z
            with np.errstate(over="ignore"):  # reported below
                weights = np.exp(exponent)
        else:
            weights = (quality[pool.rows] if quality.ndim == 1 else quality[q, pool.positions]).astype(np.float64)
        # Whatever quality an initial item has, the others keep the same d.
        self.weights = np.concatenate([weights, np.ones(len(pool.initial))])
        self.relevance = pool.v
        self.first = self.weights**2 * own
        in_range(problem, q, self.first)
        self.d = self.first.copy()
        self.factor: list[np.ndarray] = []  # its columns, of which row i is c_i

    def values(self) -> np.ndarray:
        n = len(self.relevance)
        return np.where(self.d[:n] > ROUNDING * self.first[:n], self.d[:n], -np.inf)

    def take(self, j: int, similarity: np.ndarray) -> None:
        if self.d[j] <= ROUNDING * self.first[j]:  # an initial item that those before it span
            return
        left = self.weights * similarity * self.weights[j] - sum(c * c[j] for c in self.factor)
        column = left / np.sqrt(self.d[j])
        self.factor.append(column)
        self.d = self.d - column**2
