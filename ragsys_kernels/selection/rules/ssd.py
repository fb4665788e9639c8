"""Sliding spectrum decomposition: relevance, and what an item adds to the volume of the last picks."""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from .pool import ROUNDING, Pool


class SSD:
    """λ_d z_i + (1-λ_d) γ sqrt(n_i), n_i the squared distance of [e_i, 1] from the span of the last picks.

    The last picks have orthogonal vectors b_t, each pick's part that those before it leave. With u_t(i) = <e_i, b_t>
    n_i = s_ii - Σ u_t(i)²/|b_t|². When the window is full its oldest term is given back before the new one is taken.
    """

    def __init__(self, problem: Problem, q: int, pool: Pool) -> None:
        self.lambda_d = float(problem.lambda_d[q])
        self.gamma = problem.options.gamma
        self.window = problem.options.window or problem.k + len(pool.initial)
        self.relevance = pool.v
        self.z = pool.z
        self.own = np.einsum("nd,nd->n", pool.items, pool.items) + 1
        self.n = self.own.copy()
        self.terms: list[tuple[np.ndarray, float]] = []  # u_t and |b_t|², the oldest first

    def values(self) -> np.ndarray:
        if not self.terms:
            return self.z
        return self._worth()

    def _worth(self) -> np.ndarray:
        norms = np.sqrt(np.maximum(self.n[: len(self.z)], 0))
        return np.asarray(self.lambda_d * self.z + (1 - self.lambda_d) * self.gamma * norms)

    def score(self, i: int) -> float:
        return float(self._worth()[i])

    def redundancy(self, i: int) -> float:
        return np.nan

    def take(self, j: int, similarity: np.ndarray) -> None:
        square = max(self.own[j] - sum(u[j] ** 2 / b for u, b in self.terms if b), 0.0)
        u = similarity + 1 - sum(t * t[j] / b for t, b in self.terms if b)
        if len(self.terms) == self.window:
            oldest, b = self.terms.pop(0)
            if b:
                self.n = self.n + oldest**2 / b
        if square <= ROUNDING * self.own[j]:  # nothing of it is left; it has its place in the window all the same
            square = 0.0
        else:
            self.n = self.n - u**2 / square
        self.terms.append((u, square))
