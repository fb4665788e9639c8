"""Sliding spectrum decomposition: relevance, and what an item adds to the volume of the last picks."""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from .pool import ROUNDING, Pool
from .rule import Windowed


class SSD(Windowed):
    """λ_d z_i + (1-λ_d) γ sqrt(n_i), n_i the squared distance of [e_i, 1] from the span of the last picks.

    The last picks have orthogonal vectors b_t, each pick's part that those before it in the window leave. With
    u_t(i) = <e_i, b_t> n_i = s_ii - Σ u_t(i)²/|b_t|². When a pick leaves the window the others' b_t are made anew.
    """

    def __init__(self, problem: Problem, q: int, pool: Pool) -> None:
        super().__init__(problem.options.window)
        self.lambda_d = float(problem.lambda_d[q])
        self.gamma = problem.options.gamma
        self.relevance = pool.v
        self.z = pool.z
        self.own = np.einsum("nd,nd->n", pool.items, pool.items) + 1
        self.forget()

    def values(self) -> np.ndarray:
        if not self.last:
            return self.z
        return self._worth()

    def _worth(self) -> np.ndarray:
        norms = np.sqrt(np.maximum(self.n[: len(self.z)], 0))
        return np.asarray(self.lambda_d * self.z + (1 - self.lambda_d) * self.gamma * norms)

    def score(self, i: int) -> float:
        return float(self._worth()[i])

    def forget(self) -> None:
        self.n = self.own.copy()
        self.terms: list[tuple[np.ndarray, float]] = []  # u_t and |b_t|²

    def count(self, j: int, similarity: np.ndarray) -> None:
        square = self.own[j] - sum(u[j] ** 2 / b for u, b in self.terms)
        if square <= ROUNDING * self.own[j]:  # nothing of it is left; it has its place in the window all the same
            return
        u = similarity + 1 - sum(t * t[j] / b for t, b in self.terms)
        self.n = self.n - u**2 / square
        self.terms.append((u, square))
