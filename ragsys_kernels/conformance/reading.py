"""Positions of picks out of whatever a function returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# Where objects and mappings have the picks.
_PLACES = ("indices", "ids", "picks", "selected", "selected_indices", "index", "id", "idx", "position", "node_id")
# Two rows as near as this are one: functions may store float16.
_NEAR = 2e-3


class UnreadableError(TypeError):
    """What came back has no positions; the message is what an error says it got."""


def positions(found: Any, rows: np.ndarray) -> list[int | None]:
    """Return positions in ``rows`` out of what a function returned; None stands for padding.

    Read are whole numbers, also as text: a sequence or an array of them, an array of one row, pairs of a position and a
    score in either order, mappings and objects that have them by a usual name, a tuple one of whose parts is such a
    thing; and rows themselves, each of which is looked up, equal ones in their order.
    """
    read = _positions(found, rows)
    if read is None:
        raise UnreadableError(f"{shown(found)}, not positions or rows it was given")
    return read


def _positions(found: Any, rows: np.ndarray, depth: int = 0) -> list[int | None] | None:
    if found is None or depth > 3:
        return None
    if hasattr(found, "tolist") and not isinstance(found, np.ndarray):  # a tensor
        found = found.tolist()
    inner = _inner(found)
    if inner is not None:
        return _positions(inner, rows, depth + 1)
    if isinstance(found, (str, bytes)):
        return None
    try:
        items = list(found)
    except TypeError:
        return None
    if not items:
        return []
    numbers = [_number(item) for item in items]
    if all(number is not None for number in numbers):
        return [None if number == -1 else number for number in numbers]
    if isinstance(found, tuple):  # scores and positions, say
        for part in items:
            read = _positions(part, rows, depth + 1)
            if read is not None:
                return read
    if len(items) == 1 and isinstance(items[0], (list, np.ndarray)) and len(items[0]) != rows.shape[1]:
        return _positions(items[0], rows, depth + 1)  # of one query
    vectors = _looked_up(items, rows)
    return _one_each(items) if vectors is None else vectors


def _inner(found: Any) -> Any:
    """Return the part of an object or a mapping that has the picks."""
    if isinstance(found, Mapping):
        return next((found[name] for name in _PLACES if name in found), None)
    if isinstance(found, (list, str, np.ndarray)) or type(found) is tuple:
        return None
    parts = (getattr(found, name, None) for name in _PLACES)
    return next((part for part in parts if part is not None and not callable(part)), None)


def _number(item: Any) -> int | None:
    if isinstance(item, (bool, np.bool_)):
        return None
    if isinstance(item, (int, np.integer)):
        return int(item)
    if isinstance(item, str) and item.lstrip("-").isdecimal():
        return int(item)
    return int(item) if isinstance(item, np.ndarray) and item.ndim == 0 and item.dtype.kind in "iu" else None


def _looked_up(items: list[Any], rows: np.ndarray) -> list[int | None] | None:
    """Return the positions of rows of vectors."""
    try:
        vectors = np.array(items, np.float64)
    except (TypeError, ValueError):
        return None
    if vectors.ndim != 2 or vectors.shape[1] != rows.shape[1]:
        return None
    left = list(range(len(rows)))
    read: list[int | None] = []
    for vector in vectors:
        place = next((i for i in left if np.allclose(rows[i], vector, atol=_NEAR, equal_nan=True)), None)
        if place is None:
            return None
        left.remove(place)
        read.append(place)
    return read


def _one_each(items: list[Any]) -> list[int | None] | None:
    """Return the position that each item has: in a mapping, an object, or a pair with a score."""
    read: list[int | None] = []
    for item in items:
        inner = _inner(item)
        parts = [inner] if inner is not None else item if isinstance(item, (tuple, list)) else []
        number = next((n for n in map(_number, parts) if n is not None), None)
        if number is None:
            return None
        read.append(number)
    return read


def shown(found: Any) -> str:
    text = repr(found)
    return f"{type(found).__name__} {text[:100]}"
