"""The ids of the rows of several segments as one, and of rows of which some are deleted."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from .ids import Ids, texts_again


class Joined(Ids):
    """Ids of the rows of segments, one after the other, or of rows of which some are deleted.

    A deleted row keeps its id; `rows_of` finds the row that is not deleted. Among these each id is there once.
    """

    def __init__(self, parts: list[Ids], live: np.ndarray | None = None, starts: list[int] | None = None) -> None:
        """``starts``: the first rows of the parts, where these are some of the segments, and the number of all rows."""
        self.kind = parts[0].kind if parts else "row"
        super().__init__(sum(map(len, parts)) if starts is None else starts[-1])
        if self.kind == "row":
            parts = [Ids(len(self))]
        self.parts, self.live = parts, live
        self._starts = np.cumsum([0, *map(len, parts)]) if starts is None else np.array(starts)

    def with_live(self, live: np.ndarray | None) -> Joined:
        """Return the ids with other rows deleted."""
        return Joined(self.parts, live)

    def whole(self) -> np.ndarray:
        """Return the ids of all rows: int64, or objects that are str."""
        return self._of(np.arange(len(self)))

    def twice(self, new: Collection[int]) -> Any:
        """Return an id that two rows have, one of them in some of the parts and neither deleted, or None.

        Within a part ids are unique. O(M log N) of M rows in these parts, O(N log N) if they are most.
        """
        if self.kind == "row":
            return None
        if 2 * sum(len(self.parts[number]) for number in new) > len(self):
            keys, order = self.sorted_keys()
            if self.kind == "str":
                rows = [row for row, _ in texts_again(self, keys, order)]
            else:
                rows = order[1:][keys[1:] == keys[:-1]].tolist()
            return self[rows[0]] if rows else None
        for number in new:
            some = self._starts[number] + self._likely(self.parts[number], but=number)
            some = some if self.live is None else some[self.live[some]]
            wanted = self.parts[0]._read(self._of(some))
            for other, (part, start) in enumerate(zip(self.parts, self._starts.tolist(), strict=False)):
                if other == number:
                    continue
                found = part._found(wanted)[0]
                there = found >= 0
                if self.live is not None:
                    there &= self.live[np.where(there, found + start, 0)]
                if there.any():
                    return self[int(some[np.argmax(there)])]
        return None

    def rows_with(self, ids: Ids) -> np.ndarray:
        """Return the row that has each of some ids, -1 for those that none has. O(M) where few are here."""
        rows, some = np.full(len(ids), -1, np.int64), self._likely(ids)
        rows[some] = self._rows_of(ids[some])[0]
        return rows

    def _likely(self, ids: Ids, but: int | None = None) -> np.ndarray:
        """Return the places of those ids whose keys a part has, but for one part: few strings are compared then."""
        keys, order = ids.sorted_keys()
        found = np.zeros(len(ids), bool)
        for number, part in enumerate(self.parts):
            if number != but and len(part):
                theirs, _ = part.sorted_keys()
                places = np.minimum(np.searchsorted(theirs, keys), len(theirs) - 1)
                found[order[theirs[places] == keys]] = True
        return np.flatnonzero(found)

    def sorted_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of all rows that are not deleted, in ascending order, and which rows these are."""
        sorted_parts = [part.sorted_keys() for part in self.parts]
        keys = np.concatenate([keys for keys, _ in sorted_parts])
        rows = np.concatenate([rows + start for (_, rows), start in zip(sorted_parts, self._starts, strict=False)])
        if self.live is not None:
            keys, rows = keys[self.live[rows]], rows[self.live[rows]]
        order = np.argsort(keys, kind="stable")
        return keys[order], rows[order]

    def _of(self, rows: np.ndarray) -> np.ndarray:
        found = np.full(rows.shape, -1 if self.kind != "str" else None, np.int64 if self.kind != "str" else object)
        of_part = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(of_part[rows >= 0]).tolist():
            some = (of_part == number) & (rows >= 0)
            found[some] = self.parts[number]._of(rows[some] - self._starts[number])
        return found

    def _rows_of(self, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
        first = self.parts[0]
        wanted = first._read(wanted)  # once for all of them
        found = self._in_part(0, wanted)
        rows, known = (each.reshape(-1) for each in found)
        left = np.flatnonzero(~known)
        for number in range(1, len(self.parts)):
            rows[left], known[left] = self._in_part(number, first._some(wanted, left))
            left = left[~known[left]]
        return rows.reshape(found[0].shape), known.reshape(found[0].shape)

    def _in_part(self, number: int, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of ids that a part has and that are not deleted, and which these are or stand for no row."""
        found, known = self.parts[number]._found(wanted)
        rows = np.where(found >= 0, found + self._starts[number], -1)
        if self.live is not None:
            gone = (rows >= 0) & ~self.live[rows]
            rows[gone], known = -1, known & ~gone
        return rows, known

    def _read(self, wanted: Any) -> Any:
        return self.parts[0]._read(wanted)

    def _found(self, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError


def joined(parts: list[Ids], live: np.ndarray | None) -> Ids:
    """Return the ids of segments, one after the other."""
    if live is None and (len(parts) == 1 or parts[0].kind == "row"):
        return parts[0] if len(parts) == 1 else Ids(sum(map(len, parts)))
    return Joined(parts, live)
