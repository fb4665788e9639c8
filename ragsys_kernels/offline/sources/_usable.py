"""Rows of files that can be used. The others are left out of all columns, and listed with id and reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..._base import times
from ..._base.checks import choice, shown
from ..._base.files import csv_of
from ..._base.types import NDArray as Array
from ...corpus.ids import Ids, Integers
from ._column import BLOCK_BYTES, Column
from ._fused import Fused
from ._lists import ByIds
from ._rows import span

BAD_ROWS = ("raise", "skip")
ON_DUPLICATE = ("error", "first", "last")


@dataclass(frozen=True)
class Usable:
    """The columns of the rows that can be used, by name, and the others: their numbers, ascending, ids and reasons.

    ``kept`` are the numbers that the rows have in the file; None where all can be used.
    """

    columns: dict[str, Any] = field(default_factory=dict)
    kept: Array | None = None
    skipped: dict[int, str] = field(default_factory=dict)
    ids: dict[int, Any] = field(default_factory=dict)

    def alone(self) -> Usable:
        """Return what was found without the columns, for other processes, which then need not read the rows again."""
        return replace(self, columns={})

    def listed(self, lists: Column | Fused, by: Ids | None, skip: bool = False) -> Column | ByIds | Fused:
        """Return lists of rows of the file, or of ids, as lists of the rows that are kept; no others are in them.

        ``skip``: unknown ids are -1 there, and no error.
        """
        if isinstance(lists, Fused):
            return lists.each(lambda column: self.listed(column, by, skip))
        if by is not None:
            return ByIds(lists, by, self.ids.values() if self.ids else self.skipped, skip)
        return lists if self.kept is None else ByIds(lists, Integers.of("select", self.kept), self.skipped)


def usable(
    argument: str,
    columns: Mapping[str, Any],
    bad_rows: str = "raise",
    on_duplicate: str = "error",
    named: str = "ids",
    known: Usable | None = None,
) -> Usable:
    """Return the columns of rows, `argument` and others or None by name, without the rows that cannot be used.

    With neither option, and where none is bad, these are the columns as they are. Else they are read once, unless what
    that finds is `known`. Where ids, the column `named`, are None, rows keep the numbers that they have in the file as
    their ids.
    """
    choice("select", "bad_rows", bad_rows, BAD_ROWS)
    choice("select", "on_duplicate", on_duplicate, ON_DUPLICATE)
    given = {name: column for name, column in columns.items() if column is not None}
    rows = given[argument].rows
    if (bad_rows, on_duplicate) == ("raise", "error") or any(column.rows != rows for column in given.values()):
        return Usable(dict(columns))
    if on_duplicate != "error" and named not in given:
        raise ValueError(f"select: on_duplicate must come with ids, got none in {given[argument].path}")
    skipped, ids = (
        (known.skipped, known.ids) if known is not None else _found(argument, given, named, bad_rows, on_duplicate)
    )
    if not skipped:
        return Usable(dict(columns))
    kept = np.setdiff1d(np.arange(rows), list(skipped))
    if not kept.size:
        first = min(skipped)
        raise ValueError(f"select: {argument} must have a row that can be used, got none: {skipped[first]}")
    found: dict[str, Any] = {name: Kept(column, kept) for name, column in given.items()}
    found.setdefault(named, _Numbers(given[argument], kept))
    return Usable({**columns, **found}, kept, dict(sorted(skipped.items())), ids)


def _found(
    argument: str, given: dict[str, Column], named: str, bad_rows: str, on_duplicate: str
) -> tuple[dict[int, str], dict[int, Any]]:
    """Return which rows are left out, and why, and their ids."""
    skipped = _bad(argument, given, named) if bad_rows == "skip" else {}
    if named not in given:
        return skipped, {}
    if on_duplicate != "error":
        skipped.update(_repeated(given[named], skipped, on_duplicate))
    return skipped, _of_rows(given[named], sorted(skipped))


def _bad(argument: str, given: dict[str, Column], named: str) -> dict[int, str]:
    """Return which rows cannot be used, and why."""
    size = max(1, BLOCK_BYTES // (4 * max(1, given[argument].dims)))
    found: dict[int, str] = {}
    for name, column in given.items():
        bad: dict[int, str] = {}
        start = 0
        for values in column.chunks(size, bad=bad):
            if name == "costs":
                reason, good = "costs must be finite and at least 0, got another", np.isfinite(values) & (values >= 0)
            elif name == "time":  # NaN is none
                reason, good = f"time must be {times.RULE}, got another", ~(np.abs(values) > times.MOST)
            elif isinstance(values, np.ndarray) and values.dtype.kind == "f":
                reason = f"{name} must be finite, got NaN or inf"
                good = np.isfinite(values).reshape(len(values), -1).all(axis=1)
            else:
                reason, good = "ids must not be empty, got an empty string", np.ones(len(values), bool)
                if argument == "corpus" and name == named and not isinstance(values, np.ndarray):
                    good = np.array([each != "" for each in values.to_pylist()], bool)
            for row in (start + np.flatnonzero(~good)).tolist():
                bad.setdefault(row, reason)
            start += len(values)
        for row, reason in bad.items():
            found.setdefault(row, reason)
    return found


def _repeated(column: Column, skipped: dict[int, str], which: str) -> dict[int, str]:
    """Return the rows to leave out so that of rows with equal ids only the first, or the last, is kept."""
    parts = column.chunks(1 << 16, bad={})
    values = pa.chunked_array([pa.array(part) if isinstance(part, np.ndarray) else part for part in parts])
    codes = values.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = np.setdiff1d(np.flatnonzero(codes >= 0), list(skipped))
    ordered = rows if which == "first" else rows[::-1]
    _, firsts, places = np.unique(codes[ordered], return_index=True, return_inverse=True)
    owners = ordered[firsts][places.reshape(-1)]
    found = {}
    for row, owner in zip(ordered.tolist(), owners.tolist(), strict=True):
        if row != owner:
            found[row] = f"ids must be unique, got {shown(values[row].as_py())} in row {owner} too, the {which} one"
    return found


def _of_rows(column: Column, rows: list[int]) -> dict[int, Any]:
    """Return the ids of some rows, None where there is none."""
    found: dict[int, Any] = {}
    if rows:
        wanted, start = np.array(rows), 0
        for values in column.chunks(1 << 16, bad={}):
            for row in wanted[(wanted >= start) & (wanted < start + len(values))].tolist():
                each = values[row - start]
                found[row] = each.as_py() if hasattr(each, "as_py") else each.item()
            start += len(values)
    return found


class Kept(Column):
    """Some rows of a column."""

    def __init__(self, column: Column, kept: Array) -> None:
        self.path, self.rows, self.dims = column.path, len(kept), column.dims
        self._column, self._kept = column, kept

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[Any]:
        start, stop = span(self.rows, start, stop)
        kept, pending = self._kept[start:stop], []
        if not len(kept):
            return
        first, held = int(kept[0]), 0
        # An error here is of a row that was left out: the rows that are kept have been read before.
        for values in self._column.chunks(size, first, int(kept[-1]) + 1, {}):
            some = kept[(kept >= first) & (kept < first + len(values))] - first
            first += len(values)
            pending.append(values[some] if isinstance(values, np.ndarray) else values.take(pa.array(some)))
            held += len(some)
            if held >= size:
                joined = _joined(pending)
                yield joined[:size]
                pending, held = [joined[size:]], held - size
        if held:
            yield _joined(pending)

    @property
    def _dtype(self) -> Any:
        return next(self.chunks(1, 0, 1)).dtype

    def where(self, row: int) -> str:
        return self._column.where(int(self._kept[row]))

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._column.identity(full, known)


class _Numbers(Kept):
    """The row numbers in the file, as ids."""

    def __init__(self, column: Column, kept: Array) -> None:
        super().__init__(column, kept)
        self.dims = 0

    chunks = Column.chunks

    def _some(self, begin: int, end: int, bad: dict[int, str] | None) -> Any:
        return pa.array(self._kept[begin:end])


def _joined(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)


def listed(**found: Usable) -> bytes:
    """Return the rows that were left out as a file: of which input, its number there, its id, and why."""
    rows: list[tuple[object, ...]] = [("input", "row", "id", "reason")]
    for name, each in found.items():
        for row, reason in each.skipped.items():
            own = each.ids.get(row)
            rows.append((name, row, "" if own is None else own, reason))
    return csv_of(rows)
