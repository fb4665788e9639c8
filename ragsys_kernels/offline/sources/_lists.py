"""Candidates of queries: lists of rows or ids of any length."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._base.checks import shown
from ..._base.types import NDArray as Array
from ...corpus.ids import Ids
from ._column import Column
from ._rows import RowSource, holding

_CELLS = 1 << 22  # 32 MB of rows, beside which a chunk of queries is small


@dataclass(frozen=True)
class Lists:
    """Lists end to end; list i has the values from ``offsets[i]`` to ``offsets[i + 1]``. Strings are objects."""

    values: Array
    offsets: Array

    @classmethod
    def of(cls, values: Array, lengths: Array) -> Lists:
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @classmethod
    def of_array(cls, array: Array) -> Lists:
        """Return the rows of an array (Q, P)."""
        return cls.of(array.reshape(-1), np.full(len(array), array.shape[1]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, part: slice) -> Lists:
        begin, end, _ = part.indices(len(self))
        offsets = self.offsets[begin : end + 1]
        return Lists(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    @property
    def lengths(self) -> Array:
        return np.diff(self.offsets)

    def padded(self) -> Array:
        """Return an array (Q, P) of the longest list's length; -1 where a list has ended, among strings None."""
        lengths = self.lengths
        width = max(1, int(lengths.max(initial=0)))
        if (lengths == width).all():
            return self.values.reshape(-1, width)
        array = np.full((len(self), width), None if self.values.dtype == object else -1, self.values.dtype)
        array[np.arange(width) < lengths[:, None]] = self.values
        return array

    def without(self, rows: Array) -> Lists:
        """Return the lists with those of some rows empty."""
        lengths, kept = self.lengths, np.ones(len(self), bool)
        kept[rows] = False
        return Lists.of(self.values[np.repeat(kept, lengths)], np.where(kept, lengths, 0))

    def runs(self, most: int = _CELLS) -> Iterator[slice]:
        """Yield runs of lists that take at most so many cells when they are padded; a longer list is a run itself.

        One long list would make each of thousands as long.
        """
        lengths = np.maximum(self.lengths, 1)
        if len(self) * int(lengths.max(initial=0)) <= most:
            yield slice(0, len(self))
            return
        begin = width = 0
        for row, length in enumerate(lengths.tolist()):
            width = max(width, length)
            if row > begin and width * (row + 1 - begin) > most:
                yield slice(begin, row)
                begin, width = row, length
        yield slice(begin, len(self))


class ByIds:
    """A column of lists of ids, as lists of the rows of the corpus that has these ids; one of another type is refused.

    -1 in an array is padding, and so are the ids ``dropped``; lists with other ids than those of the corpus, or with
    one twice, are rows that cannot be used. With ``skip`` such other ids are -1 in the lists, in which there is no
    padding then.
    """

    def __init__(self, column: Column, ids: Ids, dropped: Collection[Any] = (), skip: bool = False) -> None:
        self._column, self._ids, self._dropped, self._skip = column, ids, frozenset(dropped), skip
        given, expected = (
            "strings" if text else "integers"
            for text in (next(iter(column.chunks(1, 0, 1, {}))).values.dtype == object, ids.kind == "str")
        )
        if given != expected:
            raise ValueError(
                f"select: candidates must be {expected} as the ids of the corpus are, got {given} in {column.path}"
            )

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[Lists]:
        for lists in self._column.chunks(size, start, stop, bad):
            yield self._rows_of(lists, RowSource("candidates", start, self._column.where, bad))
            start += len(lists)

    def _rows_of(self, lists: Lists, rows: RowSource) -> Lists:
        padding = None if lists.values.dtype == object else -1
        found = self._ids.rows_of(lists.values, unknown="pad")
        unknown = (found < 0) & (lists.values != padding)
        if self._dropped:
            unknown[unknown] = [each not in self._dropped for each in lists.values[unknown].tolist()]
        if not self._skip:
            self._refuse(unknown, "be ids of the corpus", "", lists, rows)
        elif not (kept := (found >= 0) | unknown).all():
            of_list = np.repeat(np.arange(len(lists)), lists.lengths)
            lengths = lists.lengths - np.bincount(of_list[~kept], minlength=len(lists))
            lists, found = Lists.of(lists.values[kept], lengths), found[kept]
        keys = np.repeat(np.arange(len(lists)), lists.lengths) * len(self._ids) + found
        ordered = np.sort(keys[found >= 0])
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if twice.size:
            self._refuse((found >= 0) & np.isin(keys, twice), "not repeat an id within a query", " twice", lists, rows)
        return Lists(found, lists.offsets)

    def _refuse(self, wrong: Array, rule: str, how: str, lists: Lists, rows: RowSource) -> None:
        def first(row: int) -> str:
            part = slice(lists.offsets[row], lists.offsets[row + 1])
            return shown(lists.values[part][wrong[part]][0]) + how

        if wrong.any():
            rows.refuse(holding(wrong, lists.lengths), rule, first)
