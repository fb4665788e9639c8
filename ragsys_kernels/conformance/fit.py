"""Which variants of the model give the answers that came back, stage by stage.

The sets of a stage give the same picks for all values of the respects of later stages. So a stage refines the variants
that the stages before have left, by its own respects, and keeps those that give every answer. A respect is told if all
that are left agree on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from .variants import Question, Variant, ordered


class Answer(NamedTuple):
    """What a function answered: its picks, or why it has none; ``padded`` counts the places that have no item."""

    picks: tuple[int, ...] = ()
    padded: int = 0
    error: str | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"error: {self.error}"
        return " ".join([*map(str, self.picks), *["-"] * self.padded]) or "nothing"


@dataclass(frozen=True, eq=False)
class Stage:
    """Sets, and what they refine: of each respect the values that one of the stages before may turn out to be."""

    questions: tuple[Question, ...]
    refine: Mapping[str, Mapping[str, tuple[str, ...]]]


class Fit(NamedTuple):
    """The variants that are left after some stages."""

    left: tuple[Variant, ...]
    nearest: frozenset[str] = frozenset()  # respects of stages no variant of which gave every answer: left is the best
    matched: int = 0  # answers that the variants left do give
    asked: int = 0  # of how many

    @property
    def best(self) -> Variant:
        """The variant that stands for those that are left: of the textbook's values where it may have them."""
        return self.left[0]

    def values(self, respect: str) -> list[str]:
        return list(dict.fromkeys(getattr(variant, respect) for variant in self.left))


def refined(fit: Fit, stage: Stage, answers: Mapping[str, Answer]) -> Fit:
    """Return the variants that give the answers to a stage's sets too; if there are none, those that give most."""
    given = [(question, answers[question.name]) for question in stage.questions]
    picks = [(question, answer.picks) for question, answer in given if answer.error is None]
    grid = _grid(fit.left, stage)
    left, matched, nearest = grid.matching(picks), len(picks), fit.nearest
    if not left:
        matched, best = _nearest(grid, fit.best, picks)
        left, nearest = (best,), nearest | set(stage.refine)
    return Fit(left, nearest, fit.matched + matched, fit.asked + len(picks))


class _Grid:
    """All variants that a stage tells apart. Their picks are kept: the next function is compared with the same ones."""

    def __init__(self, variants: tuple[Variant, ...]) -> None:
        self.variants = variants
        self._picks: dict[str, list[tuple[int, ...]]] = {}

    def matching(self, given: Sequence[tuple[Question, tuple[int, ...]]]) -> tuple[Variant, ...]:
        """Return the variants that give every answer."""
        left = self.variants
        for question, wanted in given:
            if len(left) < len(self.variants):
                predicted = _predictions(left, question)
            else:
                predicted = self._picks.get(question.name) or _predictions(left, question)
                self._picks[question.name] = predicted
            left = tuple(variant for variant, picks in zip(left, predicted, strict=True) if picks == wanted)
        return left


@lru_cache(maxsize=32)
def _grid(left: tuple[Variant, ...], stage: Stage) -> _Grid:
    names = list(stage.refine)
    found = []
    for variant in left:
        options = [stage.refine[name].get(getattr(variant, name), (getattr(variant, name),)) for name in names]
        for values in product(*options):
            changes: dict[str, Any] = dict(zip(names, values, strict=True))
            found.append(replace(variant, **changes))
    return _Grid(tuple(found))


# The nearest variant is looked for among those that depart in so many respects at most from what is known before.
_DEPARTURES = 2


def _nearest(grid: _Grid, base: Variant, given: list[tuple[Question, tuple[int, ...]]]) -> tuple[int, Variant]:
    """Return how many answers the variant gives that gives the most, the first of these, and that variant."""
    known = tuple(vars(base).values())
    near = [
        variant
        for variant in grid.variants
        if sum(a != b for a, b in zip(vars(variant).values(), known, strict=True)) <= _DEPARTURES
    ]
    counts = [0] * len(near)
    for question, wanted in given:
        for i, picks in enumerate(_predictions(near, question)):
            counts[i] += picks == wanted
    most = max(counts)
    return most, near[counts.index(most)]


def _predictions(variants: Sequence[Variant], question: Question) -> list[tuple[int, ...]]:
    """Return the picks of each; variants that differ in the order alone share theirs."""
    chosen: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
    found = []
    for variant in variants:
        key = variant.but_for_order
        if key not in chosen:
            chosen[key] = variant.chosen(question)
        found.append(ordered(variant.order, *chosen[key]))
    return found
