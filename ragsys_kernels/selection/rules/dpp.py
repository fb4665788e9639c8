"""Determinantal point process: greedy search of the most probable set."""

from __future__ import annotations

import numpy as np

from .. import definite
from ..problem import Problem
from .pool import ROUNDING, Pool, in_range
from .rule import Windowed


class DPP(Windowed):
    """d_i, what the determinant of L_ij = q_i s_ij q_j grows by with item i, by a Cholesky factor row by row."""

    def __init__(self, problem: Problem, q: int, pool: Pool) -> None:
        super().__init__(problem.options.window)
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
        self.forget()
        self.given = None if pool.given is None else _Given(problem, q, pool, own)

    def values(self) -> np.ndarray:
        n = len(self.relevance)
        return np.where(self.d[:n] > ROUNDING * self.first[:n], self.d[:n], -np.inf)

    def forget(self) -> None:
        self.d = self.first.copy()
        self.factor: list[np.ndarray] = []  # its columns, of which row i is c_i

    def take(self, j: int, similarity: np.ndarray) -> None:
        if self.given is not None:
            self.given.met(j, similarity)
            self.given.sound &= not self.window or len(self.last) < self.window
        super().take(j, similarity)

    def count(self, j: int, similarity: np.ndarray) -> None:
        if self.d[j] <= ROUNDING * self.first[j]:  # an initial item that those before it span
            return
        left = self.weights * similarity * self.weights[j] - sum(c * c[j] for c in self.factor)
        column = left / np.sqrt(self.d[j])
        self.factor.append(column)
        sound = self.d[j] >= definite.SOUND * self.first[j]
        self.d = self.d - column**2
        if self.given is not None:
            self.given.left(self.d, self.first, sound)


class _Given:
    """What the picks show about given similarities, which need not come from vectors."""

    def __init__(self, problem: Problem, q: int, pool: Pool, own: np.ndarray) -> None:
        self.of_query, self.own = f" for query {q}", own
        self.positions = np.concatenate([pool.positions, pool.initial - q * problem.pool_stride])
        self.first: tuple[int, np.ndarray] | None = None  # the first pick or initial item, and similarities to it
        self.sound = True  # each item taken had at least the share SOUND of its first value left
        if (own < 0).any():
            definite.refuse_negative("dpp", self.of_query)

    def met(self, j: int, similarity: np.ndarray) -> None:
        """Compare the two similarities of an item and the first one."""
        if self.first is None:
            self.first = j, similarity
        i, row = self.first
        if definite.unequal(row[j], similarity[i], self.own[i] * self.own[j]):
            of_pair = int(self.positions[i]), int(self.positions[j])
            definite.refuse_unequal("dpp", *of_pair, row[j], similarity[i], self.of_query)

    def left(self, d: np.ndarray, first: np.ndarray, sound: bool) -> None:
        self.sound &= sound
        if self.sound and (d < -definite.NEGATIVE * first).any():
            definite.refuse_negative("dpp", self.of_query)
