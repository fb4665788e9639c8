"""Max-sum dispersion."""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from .pool import Pool
from .rule import Rule


class MSD(Rule):
    """w_i = λ_d v_i + (1-λ_d) Σ over picks of (1 - s_ij), of -s_ij with dot products; the first is the argmax of v."""

    def __init__(self, problem: Problem, q: int, pool: Pool) -> None:
        self.lambda_d = float(problem.lambda_d[q])
        self.relevance = pool.v
        self.one = 1.0 if problem.rows.metric == "cosine" else 0.0
        self.sums = np.zeros(len(pool.v))  # of similarities
        self.count = 0

    def values(self) -> np.ndarray:
        if not self.count:
            return self.relevance
        distances = self.one * self.count - self.sums
        return np.asarray(self.lambda_d * self.relevance + (1 - self.lambda_d) * distances)

    def score(self, i: int) -> float:
        return float(self.values()[i] if self.count else self.lambda_d * self.relevance[i])

    def redundancy(self, i: int) -> float:
        return float(self.sums[i] / self.count) if self.count else 0.0

    def take(self, j: int, similarity: np.ndarray) -> None:
        self.sums = self.sums + similarity[: len(self.sums)]
        self.count += 1
