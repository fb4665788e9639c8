"""What every rule is: the state of one query, and what is told of its picks."""

from __future__ import annotations

import numpy as np


class Rule:
    """A rule has ``values`` and ``take``; what it reports of a pick is its value, unless it says something else."""

    relevance: np.ndarray

    def values(self) -> np.ndarray:
        raise NotImplementedError

    def score(self, i: int) -> float:
        return float(self.values()[i])

    def redundancy(self, i: int) -> float:
        return np.nan

    def take(self, j: int, similarity: np.ndarray) -> None:
        raise NotImplementedError
