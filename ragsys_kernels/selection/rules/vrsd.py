"""Vector retrieval with similarity and diversity: the sum of the picks follows the query."""

from __future__ import annotations

import numpy as np

from ..problem import Problem, divide
from .pool import Pool
from .rule import Rule

# A sum of vectors is zero if it is shorter than this share of the lengths of its terms, the precision of float32 data.
ZERO_SUM = 1e-6


class VRSD(Rule):
    """w_i = cos(s + e_i, q), s the sum of the picks."""

    def __init__(self, problem: Problem, q: int, pool: Pool) -> None:
        assert pool.query is not None
        self.relevance = pool.r
        self.items = pool.items
        self.lengths = np.linalg.norm(self.items, axis=1)
        n = len(pool.r)
        # Of the items with the unit query. Initial items have their own.
        self.products = np.concatenate([pool.r * self.lengths[:n], pool.e_initial @ pool.query])
        self.s = np.zeros(self.items.shape[1])
        self.s_query = self.s_lengths = 0.0
        self.empty = True

    def values(self) -> np.ndarray:
        if self.empty:
            return self.relevance
        n = len(self.relevance)
        norms = np.linalg.norm(self.s + self.items[:n], axis=1)
        norms[norms <= ZERO_SUM * (self.s_lengths + self.lengths[:n])] = 0
        return divide(self.s_query + self.products[:n], norms)

    def take(self, j: int, similarity: np.ndarray) -> None:
        self.s = self.s + self.items[j]
        self.s_query += self.products[j]
        self.s_lengths += self.lengths[j]
        self.empty = False
