"""The arguments of a selection that requests have as fields, by the table of parameters.

A new line there is a new field of every wire: what is read, checked and handed on is listed nowhere else.
"""

from __future__ import annotations

import inspect
from typing import Any

from ..selection import mmr_path
from ..selection.parameters import OF_RESULT, RECENCY, RULES, TABLE, Parameter

# What comes with vectors alone, for a corpus has its own. Costs are float64, as their sums are.
OF_VECTORS = ("bias", "groups", "costs", "query_groups")


def _names(kind: str, *of: str) -> tuple[str, ...]:
    return tuple(each.name for each in TABLE if each.kind == kind and each.of in of)


NUMBERS = _names("number", "query")
ID_LISTS = _names("ids", "query")
# Lists of numbers: one for each candidate of a query, and one for each of its aspects.
OF_CANDIDATES, OF_ASPECTS = _names("values", "candidate", "item"), _names("values", "aspect")
VECTORS = _names("vectors", "aspect")
# What stands where a list is shorter than another query's.
PADDING = {**dict.fromkeys(ID_LISTS, -1), **dict.fromkeys(OF_CANDIDATES, 0), "quality": 1}

# What is one value for all queries that are answered together.
OF_CALL: dict[str, Parameter] = {each.name: each for each in (*TABLE, *RECENCY) if each.of == "call"}
# What one value must be, and its types in JSON; a choice is a word.
TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "number": ("a number", (int, float)), "count": ("an integer", (int,)), "flag": ("true or false", (bool,))
}  # fmt: skip


class ByGroup(dict[Any, int]):
    """An argument that has a number for each of some groups. Requests with equal ones share a call of the kernels."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def wording(parameter: Parameter) -> str:
    """Return what an error says that one value must be."""
    what = TYPES[parameter.kind][0]
    return f"{what}, or an object with one for each group" if parameter.by_group else what


# Fields that a rule does not have; a cursor holds what was shown before.
LACKS = {rule: frozenset(each.name for each in TABLE if rule not in each.rules) for rule in RULES}
LACKS = {rule: names | {"cursor"} if "initial" in names else names for rule, names in LACKS.items()}
_of_path = inspect.signature(mmr_path).parameters.keys() - OF_VECTORS
OF_PATH = tuple(each for each in TABLE if each.name in _of_path)
# Of documents, whose relevance nobody sends, and which come without vectors: numbers and words, and lists. Answers have
# the form of other services.
OF_RERANK = (*NUMBERS, *(name for name in OF_CALL if name not in ("relevance_scale", "metric", *OF_RESULT)))
LISTS_OF_RERANK = (*ID_LISTS[1:], *VECTORS, *OF_ASPECTS)
