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


class Windowed(Rule):
    """A rule by its last picks: one after the other, and all that stay anew when one leaves the window."""

    def __init__(self, window: int) -> None:
        self.window = window  # 0: all picks
        self.last: list[tuple[int, np.ndarray]] = []  # the picks that count, the oldest first, and similarities to them

    def take(self, j: int, similarity: np.ndarray) -> None:
        self.last.append((j, similarity))
        if not self.window or len(self.last) <= self.window:
            self.count(j, similarity)
            return
        del self.last[0]
        self.forget()
        for pick in self.last:
            self.count(*pick)

    def forget(self) -> None:
        """No pick counts."""
        raise NotImplementedError

    def count(self, j: int, similarity: np.ndarray) -> None:
        raise NotImplementedError
