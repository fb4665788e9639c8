"""Maximal marginal relevance with a quality bias."""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from .pool import Pool
from .rule import Rule


class MMR(Rule):
    """w_i = λ_d v_i - (1-λ_d) m_i, m_i the largest similarity to a pick; the first pick is the argmax of v."""

    def __init__(self, problem: Problem, q: int, pool: Pool) -> None:
        self.lambda_d = float(problem.lambda_d[q])
        self.relevance = pool.v
        self.m = np.full(len(pool.v), -np.inf)
        self.empty = True

    def values(self) -> np.ndarray:
        if self.empty:
            return self.relevance
        return np.asarray(self.lambda_d * self.relevance - (1 - self.lambda_d) * self.m)

    def score(self, i: int) -> float:
        return float(self.lambda_d * self.relevance[i] if self.empty else self.values()[i])

    def redundancy(self, i: int) -> float:
        return 0.0 if self.empty else float(self.m[i])

    def take(self, j: int, similarity: np.ndarray) -> None:
        self.m = np.maximum(self.m, similarity[: len(self.m)])
        self.empty = False
