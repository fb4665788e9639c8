"""What no model is fitted to: edges of the call, the depth of the pool, the second page."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from .adapters import Adapter, NoFormError, told
from .fit import Answer
from .sets import CORE, EDGE, ENDS, EQUAL_ROWS, NAN_ROW, POOLS, TIES, ZERO_PLACE, ZERO_ROW
from .variants import Question, Variant


class CannotAskError(Exception):
    """This kind of call has no way to ask that."""


class Edge(NamedTuple):
    """The value of a respect; None: it cannot be asked, or is not one of the values that have a name."""

    value: str | None
    question: Question | None = None
    answer: Answer | None = None
    expected: dict[str, tuple[int, ...]] | None = None  # the picks that each value leads to, where it is known
    says: str = ""


def ask(adapter: Adapter, question: Question, shown: tuple[int, ...] = ()) -> Answer:
    """Return the answer to a question; whatever the function raises is an answer too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = adapter.ask(question, shown)
    except CannotAskError:
        raise
    except NoFormError as error:
        return Answer(error=str(error))
    except Exception as error:  # of the function, whatever it is
        return Answer(error=told(error))
    picks = tuple(i for i in found if i is not None)
    return Answer(picks, len(found) - len(picks))


def edges(adapter: Adapter, variant: Variant) -> dict[str, Edge]:
    """Return what the function does at the edges; ``variant`` describes it otherwise."""
    found = {
        "duplicates": _duplicates(adapter, variant),
        "more": _more(adapter),
        "none": _none(adapter),
        "pages": _pages(adapter, variant),
    }
    for name, question in (("zero_row", ZERO_ROW), ("nan_row", NAN_ROW)):
        try:
            found[name] = _odd_row(adapter, variant, question)
        except CannotAskError as error:
            found[name] = Edge(None, says=str(error))
    return found


_TIMES = 3  # that a question is asked again


def again(adapter: Adapter, before: Mapping[str, Answer]) -> Edge:
    """Tell whether questions have the same answers again; those with ties show who picks by chance."""
    for question in (TIES.questions[0], ENDS.questions[0], CORE.questions[0]):
        for _ in range(_TIMES):
            answer = ask(adapter, question)
            if answer != before[question.name]:
                return Edge("differs", question, answer, {"before": before[question.name].picks})
    return Edge("same")


def _more(adapter: Adapter) -> Edge:
    n = len(EDGE.rows)
    question = replace(EDGE, k=n + 2)
    answer = ask(adapter, question)
    value = None
    if answer.error is not None:
        value = "error"
    elif len(set(answer.picks)) < len(answer.picks):
        value = "repeats"
    elif len(answer.picks) == n:
        value = "padded" if answer.padded else "shorter"
    return Edge(value, question, answer)


def _duplicates(adapter: Adapter, variant: Variant) -> Edge:
    """Tell whether an answer of as many picks as rows has those that are equal."""
    answer = ask(adapter, EQUAL_ROWS)
    rows = EQUAL_ROWS.rows
    others = tuple(i for i in variant.picks(EQUAL_ROWS) if rows.index(rows[i]) == i)
    expected = {"kept": variant.picks(EQUAL_ROWS), "removed": others}
    value = {len(rows): "kept", len(others): "removed"}.get(len(set(answer.picks)))
    return Edge(value, EQUAL_ROWS, answer, expected)


def _none(adapter: Adapter) -> Edge:
    question = replace(EDGE, k=0)
    answer = ask(adapter, question)
    value = "error" if answer.error is not None else {0: "none", 1: "one", len(EDGE.rows): "all"}.get(len(answer.picks))
    return Edge(value, question, answer)


def _odd_row(adapter: Adapter, variant: Variant, question: Question) -> Edge:
    """Tell what is done with one row of zeros or NaN: its place in an answer of all rows."""
    answer = ask(adapter, question)
    zero = variant.picks(ZERO_ROW)
    rest = tuple(i for i in zero if i != ZERO_PLACE)
    expected = {"zero": zero, "first": (ZERO_PLACE, *rest), "last": (*rest, ZERO_PLACE), "left out": rest}
    picks, n = answer.picks, len(question.rows)
    value = None
    if answer.error is not None:
        value = "error"
    elif len(set(picks)) < len(picks):
        value = "repeats"
    elif ZERO_PLACE not in picks:
        value = "left out"
    elif picks == zero:
        value = "zero"
    elif variant.order == "picks" and len(picks) == n:
        value = {0: "first", n - 1: "last"}.get(picks.index(ZERO_PLACE))
    return Edge(value, question, answer, expected)


def _pages(adapter: Adapter, variant: Variant) -> Edge:
    if not adapter.pages:
        return Edge("not offered")
    n, k = len(EDGE.rows), 2
    question = replace(EDGE, k=k)
    first = ask(adapter, question)
    second = ask(adapter, question, first.picks)
    whole = variant.picks(replace(EDGE, k=2 * k))
    left = [i for i in range(n) if i not in first.picks]
    rest = replace(EDGE, rows=tuple(EDGE.rows[i] for i in left), scores=None, k=k)
    expected = {"continues": whole[k:], "anew": tuple(left[i] for i in variant.picks(rest)), "repeats": first.picks}
    value = next((value for value, picks in expected.items() if picks == second.picks), None)
    if second.error is None and not second.picks:
        value = "empty"
    elif value is None and set(second.picks) & set(first.picks):
        value = "repeats"
    return Edge(value, question, second, expected)


def pool(adapter: Adapter, variant: Variant) -> tuple[str | None, Question, Answer]:
    """Return how many of the most relevant rows take part: "all", a number, a multiple of k, or None.

    The rows of these sets lie on an arc: the less relevant one is, the less it resembles the first pick, and the second
    pick, which weighs diversity, is the least relevant of the pool.
    """
    depths = []
    for question in POOLS:
        asked = replace(question, weight=1 - question.weight) if variant.weighs == "diversity" else question
        relevance = asked.relevance(variant.relevance)
        ranked = sorted(range(len(relevance)), key=lambda i: -relevance[i])
        answer = ask(adapter, asked)
        tied = variant.weighs == "nothing"  # all but the first are worth the same
        if tied or answer.error is not None or not answer.picks or ranked[-1] not in variant.picks(asked):
            return None, asked, answer
        depths.append(1 + max(ranked.index(i) for i in answer.picks))
    few, many = (question.k for question in POOLS)
    if depths[0] == depths[1]:
        value = "all" if depths[0] == len(ranked) else str(depths[0])
    elif depths[0] * many == depths[1] * few and depths[0] % few == 0:
        value = f"{depths[0] // few}k" if depths[0] > few else "k"
    else:
        return None, asked, answer
    return value, asked, answer
