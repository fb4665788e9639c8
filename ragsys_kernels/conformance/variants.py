"""What functions called MMR differ in: a small model in float64, with an option for each respect, and its picks.

It is written from the formulas, for pools of a few dozen rows, and shares nothing with `ragsys_kernels.selection`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

# Values nearer than this are ties. Those of designed sets are equal but for rounding, or a thousand times as far apart.
_TIE = 1e-9


@dataclass(frozen=True)
class Question:
    """A designed set with the call that is made on it."""

    name: str
    query: tuple[float, ...]  # (D,)
    rows: tuple[tuple[float, ...], ...]  # (n, D)
    weight: float  # what the argument that weighs gets
    k: int  # picks
    scores: tuple[float, ...] | None = None  # (n,), the relevance to give where it may be given; None: the cosines

    def relevance(self, kind: str) -> list[float]:
        """Return the relevance of each row: by a similarity, or "given"."""
        if kind == "given":
            return list(self.scores) if self.scores is not None else self.relevance("cosine")
        key = f"{kind} to the query"
        if key not in self._kept:
            self._kept[key] = [[SIMILARITIES[kind](self.query, row) for row in self.rows]]
        return self._kept[key][0]

    def similarity(self, kind: str) -> list[list[float]]:
        """Return the similarity of each row to each."""
        if kind not in self._kept:
            of = SIMILARITIES[kind]
            self._kept[kind] = [[of(a, b) for b in self.rows] for a in self.rows]
        return self._kept[kind]

    @cached_property
    def _kept(self) -> dict[str, list[list[float]]]:
        return {}


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    lengths = math.sqrt(_dot(a, a)) * math.sqrt(_dot(b, b))
    return _dot(a, b) / lengths if lengths else 0.0


SIMILARITIES: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "cosine": _cosine,
    "dot": _dot,
    "euclidean": lambda a, b: -math.dist(a, b),
    "squared": lambda a, b: -(math.dist(a, b) ** 2),
}


@dataclass(frozen=True)
class Variant:
    """One function of all that are called MMR. The defaults are the textbook's, ties to the lowest position.

    Every attribute is a respect, `RESPECTS` has its values in words.
    """

    relevance: str = "cosine"
    similarity: str = "cosine"
    negative: str = "kept"
    first: str = "relevance"
    penalty: str = "max"
    weighs: str = "relevance"
    zero_weight: str = "zero"
    first_ties: str = "lowest"
    ties: str = "lowest"
    pool: str = "all"
    order: str = "picks"

    @property
    def but_for_order(self) -> tuple[str, ...]:
        """All respects that decide what is picked."""
        return tuple(vars(self).values())[:-1]

    def picks(self, question: Question) -> tuple[int, ...]:
        """Return the positions that this function answers, in its order."""
        return ordered(self.order, *self.chosen(question))

    def chosen(self, question: Question) -> tuple[list[int], list[float]]:
        """Return the picks in the order in which they are made, and the relevance of every row."""
        relevance = question.relevance(self.relevance)
        similarity = question.similarity(self.similarity)
        penalty = _PENALTIES[self.penalty]
        share, against = self._weights(question.weight)
        left = self._pool(question, relevance)
        if self.ties == "ranked list":
            # Whoever takes the last of equal values finds the lowest position first if that comes last in the list.
            sign = 1 if self.first_ties == "highest" else -1
            left.sort(key=lambda i: (-relevance[i], sign * i))
        picks: list[int] = []
        for _ in range(min(question.k, len(left))):
            if picks:
                values = [
                    share * relevance[i] - against * penalty([self._clamped(similarity[i][j]) for j in picks])
                    for i in left
                ]
                place = _largest(values, [relevance[i] for i in left], self.ties, left)
            elif self.first == "position":
                place = left.index(min(left))
            else:
                factor = share if self.first == "weighted" else 1.0
                values = [factor * relevance[i] for i in left]
                place = _largest(values, [relevance[i] for i in left], self.first_ties, left)
            picks.append(left[place])
            if self.ties in ("list", "ranked list"):
                left[place] = left[-1]
                left.pop()
            else:
                del left[place]
        return picks, relevance

    def _weights(self, weight: float) -> tuple[float, float]:
        """Return the factors of relevance and penalty."""
        w = 0.5 if weight == 0 and self.zero_weight == "default" else weight
        return {
            "relevance": (w, 1 - w),
            "diversity": (1 - w, w),
            "penalty": (1.0, w),
            "gain": (w, 1.0),
            "nothing": (0.5, 0.5),
            "no relevance": (0.0, 1.0),
        }[self.weighs]

    def _pool(self, question: Question, relevance: list[float]) -> list[int]:
        """Return the positions that take part."""
        rows = range(len(question.rows))
        if self.pool == "all":
            return list(rows)
        sign = -1 if self.pool == "k, highest" else 1
        return sorted(sorted(rows, key=lambda i: (-relevance[i], sign * i))[: question.k])

    def _clamped(self, similarity: float) -> float:
        if self.negative == "zero":
            return max(0.0, similarity)
        if self.negative == "absolute":
            return abs(similarity)
        return (1 + similarity) / 2 if self.negative == "shifted" else similarity


_PENALTIES: dict[str, Callable[[list[float]], float]] = {
    "max": max,
    "mean": lambda s: sum(s) / len(s),
    "last": lambda s: s[-1],
    "sum": sum,
    "min": min,
    "first": lambda s: s[0],
    "none": lambda s: 0.0,
}


def _largest(values: list[float], relevance: list[float], ties: str, rows: list[int]) -> int:
    """Return the place of the largest value."""
    best = max(values)
    tied = [place for place, value in enumerate(values) if value >= best - _TIE]
    if len(tied) == 1:
        return tied[0]
    keys: dict[str, Callable[[int], tuple[float, ...]]] = {
        "lowest": lambda place: (rows[place],),
        "highest": lambda place: (-rows[place],),
        "more relevant, lowest": lambda place: (-relevance[place], rows[place]),
        "more relevant, highest": lambda place: (-relevance[place], -rows[place]),
        "less relevant, lowest": lambda place: (relevance[place], rows[place]),
        "less relevant, highest": lambda place: (relevance[place], -rows[place]),
        "list": lambda place: (-place,),
        "ranked list": lambda place: (-place,),
    }
    return min(tied, key=keys[ties])


def ordered(order: str, picks: list[int], relevance: list[float]) -> tuple[int, ...]:
    """Return picks as a function hands them over."""
    if order == "relevance":
        return tuple(sorted(picks, key=lambda i: (-relevance[i], i)))
    if order == "input":
        return tuple(sorted(picks))
    return tuple(reversed(picks)) if order == "reversed" else tuple(picks)
