"""Groups of rows that are strings: every name once, and for each row the number of its name.

The names of a segment continue those of the segments before it: numbers count all names, and a segment stores only
the names that are new in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .._base import arrays as _arrays
from .._base.tables import numbered
from ..selection.problem import Rows
from .ids import Ids, Strings
from .joined_ids import Joined

# Arrays of a folder.
ARRAYS = ("group_text", "group_offsets", "group_keys", "group_order")


class Names(Strings):
    """Names of groups; ``names[numbers]`` gives them, `rows_of` their numbers."""

    what, may_be_empty = "groups", True

    @classmethod
    def none(cls) -> Names:
        """Return the names of a segment that has no new ones."""
        return cls(np.zeros(0, np.uint8), np.zeros(1, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.int64))

    @classmethod
    def opened(cls, arrays: dict[str, np.ndarray]) -> Names:
        return cls(*(arrays[name] for name in ARRAYS)) if arrays else cls.none()

    def arrays(self) -> dict[str, np.ndarray]:
        return dict(zip(ARRAYS, super().arrays().values(), strict=True)) if len(self) else {}


def read(op: str, groups: Any) -> tuple[np.ndarray, Names]:
    """Return the numbers of strings, in their shape, and the names."""
    names, numbers = numbered(op, "groups", groups)
    return numbers, Names.of(op, names)


def joined(parts: Iterable[Ids | None]) -> Ids:
    """Return the names of segments, one after the other."""
    found = [each for part in parts for each in (part.parts if isinstance(part, Joined) else [part]) if each]
    return found[0] if len(found) == 1 else Joined(found)


def continued(rows: Rows, before: Ids | None) -> Rows:
    """Return rows with the numbers that groups have among the names before, and only the names that are new."""
    if rows.group_names is None or before is None:
        return rows
    names = rows.group_names[:].tolist()
    numbers = before.rows_of(names, unknown="pad")
    new = np.flatnonzero(numbers < 0)
    numbers[new] = len(before) + np.arange(len(new))
    added = Names.of("Corpus", [names[i] for i in new.tolist()]) if new.size else Names.none()
    return _arrays.changed(rows, groups=numbers[_arrays.to_host(rows.groups)], group_names=added)


def whole(rows: Rows) -> Rows:
    """Return rows on the host with only the names that they have, as a corpus of its own."""
    if rows.group_names is None:
        return rows
    used, numbers = np.unique(rows.groups, return_inverse=True)
    if len(used) == len(rows.group_names) and not isinstance(rows.group_names, Joined):
        return rows
    names = Names.of("Corpus", rows.group_names[used].tolist())
    return _arrays.changed(rows, groups=numbers.reshape(-1).astype(np.int64), group_names=names)


def check(rows: Rows, names: Ids | None) -> None:
    """Raise `ValueError` unless each row has the number of a name."""
    if names is not None and not (rows.groups.min() >= 0 and rows.groups.max() < len(names)):
        raise ValueError("groups must be numbers of their names, got others")
