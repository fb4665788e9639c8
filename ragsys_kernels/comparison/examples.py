"""Queries with the picks of some methods side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._base.types import NDArray as Array
from .problem import Problem
from .settings import TOP, Setting

RULE = (
    "The query whose top-k picks are most alike, and those at three quarters, half and one quarter of the way: where "
    "top-k repeats itself most, a rule has most to change."
)
_PLACES = (1.0, 0.75, 0.5, 0.25)
_WIDTH = 150  # characters of a text
_WANTED = ("mmr:0.5", "vrsd", "dpp:0.5", "mmr:0.75", "msd:0.9", "sift")
_METHODS = 4  # side by side


class Pick(NamedTuple):
    """A pick as it is shown."""

    name: str  # its id
    text: str  # empty without texts
    new: bool  # whether top-k has it not
    relevant: bool | None  # None without judgements


class Example(NamedTuple):
    """A query and what methods pick for it."""

    name: str
    text: str
    picks: dict[str, list[Pick]]  # by label


def shown(settings: Sequence[Setting], recommended: str) -> list[Setting]:
    """Return the methods that examples show: top-k, what is recommended, and rules that differ from both."""
    by_name = {setting.name: setting for setting in settings}
    wanted = dict.fromkeys((TOP, recommended, *_WANTED, *by_name))
    return [by_name[name] for name in wanted if name in by_name and by_name[name].rule != "random"][:_METHODS]


def examples(
    problem: Problem,
    settings: Sequence[Setting],
    indices: Mapping[str, Array],
    alike: Array,
    texts: Any,
    query_texts: Any,
) -> list[Example]:
    """Return queries that are spread over how alike their top-k picks are; ``alike`` is (Q,)."""
    order = np.argsort(np.where(np.isnan(alike), -np.inf, alike), kind="stable")
    numbers = dict.fromkeys(int(order[round(place * (len(order) - 1))]) for place in _PLACES)
    found = []
    for q in numbers:
        top = set(indices[TOP][q].tolist())
        relevant = None if problem.judged is None else problem.judged.relevant_rows(q)
        picks = {}
        for setting in settings:
            rows = [row for row in indices[setting.name][q].tolist() if row >= 0]
            names = [str(name) for name in problem.corpus.ids[np.array(rows, np.int64)]]
            picks[setting.label] = [
                Pick(name, text_of(texts, row), row not in top, None if relevant is None else row in relevant)
                for name, row in zip(names, rows, strict=True)
            ]
        found.append(Example(problem.query_ids[q], text_of(query_texts, int(problem.numbers[q])), picks))
    return found


def text_of(texts: Any, place: int) -> str:
    """Return the text at a place, in one line and cut to what is shown; empty without texts."""
    if texts is None:
        return ""
    text = " ".join(str(texts[place]).split())
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1].rsplit(" ", 1)[0] + " …"
