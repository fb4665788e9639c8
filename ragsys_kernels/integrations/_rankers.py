"""What the Haystack rankers share: options, saved components, and documents that have one id."""

from __future__ import annotations

from enum import Enum
from inspect import signature
from typing import Any, TypeVar

import numpy as np
from haystack import Document, default_from_dict, default_to_dict


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


class Saved:
    """A component that is saved by the arguments it was made of, which are its attributes."""

    def to_dict(self) -> dict[str, Any]:
        """Return the component as a dictionary."""
        values = {name: getattr(self, name) for name in signature(type(self).__init__).parameters if name != "self"}
        values = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
        self._write(values)
        found: dict[str, Any] = default_to_dict(self, **values)
        return found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Make the component of a dictionary, ours or one that Haystack's own class of that name has saved."""
        package, _, name = str(data.get("type")).rpartition(".")
        if name == cls.__name__ and package.startswith(("haystack.", "haystack_integrations.")):
            data = {**data, "type": f"{cls.__module__}.{name}"}
        cls._read(data.get("init_parameters", {}))
        return default_from_dict(cls, data)

    # Components are made anew with another metaclass, and have no `super()`.

    def _write(self, values: dict[str, Any]) -> None:
        """Make of arguments what is saved."""

    @staticmethod
    def _read(values: dict[str, Any]) -> None:
        """Make arguments of what was saved."""


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
