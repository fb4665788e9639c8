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


@dataclass
class Fit:
    """The variants that are left after some stages.

    Attributes
    ----------
    left : list of Variant
    nearest : set of str
        Respects of stages no variant of which gave every answer; ``left`` is the one that gave most.
    matched, asked : int
        Answers that the variants left do give, of how many.
    errors : dict
        Of sets that could not be answered, by name.
    """

    left: list[Variant]
    nearest: set[str]
    matched: int
    asked: int
    errors: dict[str, str]

    @property
    def best(self) -> Variant:
        """The variant that stands for those that are left: of the textbook's values where it may have them."""
        return self.left[0]

    def values(self, respect: str) -> list[str]:
        return list(dict.fromkeys(getattr(variant, respect) for variant in self.left))


def start(base: Variant) -> Fit:
    return Fit([base], set(), 0, 0, {})


def refined(fit: Fit, stage: Stage, answers: Mapping[str, Answer]) -> Fit:
    """Return the variants that give the answers to a stage's sets too; if there are none, those that give most."""
    given: list[tuple[Question, tuple[int, ...]]] = []
    errors = dict(fit.errors)
    for question in stage.questions:
        answer = answers[question.name]
        if answer.error is None:
            given.append((question, answer.picks))
        else:
            errors[question.name] = answer.error
    # A grid of one variant is met again and again, one of many hardly ever.
    grid = _kept_grid(fit.best, stage) if len(fit.left) == 1 else _grid(fit.left, stage)
    left = grid.matching(given)
    nearest, matched = fit.nearest, len(given)
    if not left:
        matched, best = _nearest(grid, fit.best, given)
        left, nearest = [best], nearest | set(stage.refine)
    return Fit(left, nearest, fit.matched + matched, fit.asked + len(given), errors)


class _Grid:
    """All variants that a stage tells apart. Their picks are kept: the next function is compared with the same ones."""

    def __init__(self, variants: tuple[Variant, ...]) -> None:
        self.variants = variants
        self._picks: dict[str, list[tuple[int, ...]]] = {}

    def matching(self, given: Sequence[tuple[Question, tuple[int, ...]]]) -> list[Variant]:
        """Return the variants that give every answer."""
        left = list(self.variants)
        for question, wanted in given:
            if len(left) == len(self.variants):
                if question.name not in self._picks:
                    self._picks[question.name] = _predictions(left, question)
                predicted = self._picks[question.name]
            else:
                predicted = _predictions(left, question)
            left = [variant for variant, picks in zip(left, predicted, strict=True) if picks == wanted]
        return left


@lru_cache(maxsize=32)
def _kept_grid(variant: Variant, stage: Stage) -> _Grid:
    return _grid([variant], stage)


def _grid(left: Sequence[Variant], stage: Stage) -> _Grid:
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
