"""What the Haystack rankers share: options, saved components, and documents that have one id."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

import numpy as np
from haystack import Document, default_from_dict


class Choice(str, Enum):
    """Members that equal their values, where Haystack's do not."""

    def __str__(self) -> str:
        return str(self.value)


_C = TypeVar("_C", bound=Choice)


def member(op: str, kind: type[_C], string: str, one: str, several: str) -> _C:
    """Return the member of that value."""
    known = [each.value for each in kind]
    if string not in known:
        raise ValueError(f"{op}: Unknown {one} '{string}'. Supported {several} are: {known}")
    return kind(string)


def component_of(kind: type, data: dict[str, Any]) -> Any:
    """Return a component from its dictionary, also from one that Haystack's own class of that name has saved."""
    package, _, name = str(data.get("type")).rpartition(".")
    if name == kind.__name__ and package.startswith(("haystack.", "haystack_integrations.")):
        data = {**data, "type": f"{kind.__module__}.{name}"}
    return default_from_dict(kind, data)


def best_of_each_id(documents: list[Document]) -> list[Document]:
    """Return one document of each id: the one with the highest score, in the place of the first."""
    found: dict[str, Document] = {}
    for each in documents:
        known = found.get(each.id)
        if known is None or _score(each) > _score(known):
            found[each.id] = each
    return list(found.values())


def _score(document: Document) -> float:
    return -np.inf if document.score is None else document.score


def checked_top_k(op: str, top_k: int | None, rule: str = "be > 0") -> int | None:
    """Return the number of documents to give back; None is all of them."""
    if top_k is not None and top_k <= 0:
        raise ValueError(f"{op}: top_k must {rule}, got {top_k}")
    return top_k


def within(op: str, name: str, value: float) -> float:
    """Return a weight between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{op}: {name} must be in [0, 1], got {value}")
    return value
