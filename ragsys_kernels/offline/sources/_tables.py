"""Columns of tables: a file, or several whose rows follow each other."""

from __future__ import annotations

import copy
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import accumulate
from typing import Any, Protocol

import numpy.typing as npt
import pyarrow as pa

from ..._base.checks import line
from ...corpus.folder import DESCRIPTION, MOST_BYTES
from ._arrow import ArrowPart
from ._column import Column
from ._databases import LANCE, DatabasePart, LancePart, is_database
from ._parquet import ParquetPart
from ._place import Place, ServerError
from ._rows import RowSource, span
from ._text import CSV, JSON, TextPart, is_text, suffix

ARROW: tuple[str, ...] = (".arrow", ".feather", ".ipc")
PARQUET: tuple[str, ...] = (".parquet",)

_VALUES_PER_BYTE = 4  # of a file; more are read before memory is taken for them


class Part(Protocol):
    """One file of a table, that is read in units of its own: row groups, record batches."""

    place: Place
    version: dict[str, Any]  # of the file, as `Place.shared` opened it
    schema: pa.Schema
    bounds: list[int]  # the first row of each unit, and the number of all rows

    def reader(self) -> AbstractContextManager[Callable[[int, str, int, int, int], Iterator[pa.Array]]]:
        """Give ``read(unit, column, size, start, stop)``: rows of a unit, at most `size` at a time."""


_PARTS: dict[str, Callable[[Place], Part]] = {
    "Arrow": ArrowPart,
    "Parquet": ParquetPart,
    "JSON lines": TextPart,
    "CSV": TextPart,
    "database": DatabasePart,
    "Lance": LancePart,
}
_READ_LATER = (ParquetPart, ArrowPart)  # of the file itself; the others are copies, or one version


class ChangedError(OSError):
    """A file is another than when it was opened."""


class Table:
    """Files with the same columns, one after the other."""

    def __init__(self, place: Place, argument: str) -> None:
        self.place, self._argument = place, argument
        kind = place.kind()
        if kind == "folder" and place.suffix == LANCE and place.local is not None:
            places, kinds = [place], None
        elif kind == "folder":
            places, kinds = _folder(place, argument)
            for each in places:
                if each.local is not None and each.kind() != "file":  # a pipe would be waited for
                    raise FileNotFoundError(f"select: {argument} must be a folder of files, got {each}")
        else:
            places, kinds = [place] if kind else _matching(place, argument), None
        self.parts: list[Part] = []
        for each in places:
            form = kinds or _format(each)
            with self._reading(each, form):
                self.parts.append(each.shared(_PARTS[form]))
                _ = self.parts[-1].schema.names  # which fails where one is no UTF-8
        self.schema = self.parts[0].schema
        self._firsts = list(accumulate((part.bounds[-1] for part in self.parts), initial=0))
        self.rows = self._firsts[-1]

    def kind(self, name: str) -> pa.DataType:
        """Return a column's type, which all files have to agree in."""
        for part in self.parts:
            if part.schema.names.count(name) > 1:
                raise ValueError(
                    f"select: {self._argument} must have one column {name!r}, got {part.schema.names} in {part.place}"
                )
        kind = self.schema.field(name).type
        for part in self.parts:
            found = part.schema.field(name).type if name in part.schema.names else "none"
            if found != kind:
                raise ValueError(
                    f"select: {self._argument} must have the same column {name!r} in all files, got {found} in "
                    f"{part.place} and {kind} in {self.parts[0].place}"
                )
        return kind

    def field(self, name: str) -> pa.Field:
        """Return a column's name, type, and whether values of some file may be null."""
        return pa.field(name, self.kind(name), any(part.schema.field(name).nullable for part in self.parts))

    @property
    def is_csv(self) -> bool:
        return isinstance(self.parts[0], TextPart) and _format(self.parts[0].place) == "CSV"

    def as_written(self, name: str) -> Table:
        """Return the table with a column as the text that it is in the files; itself where a reader changes none.

        Readers of CSV take 007 and 0x10 for integers, NA and null for nothing, and those of JSON lines text that looks
        like one for a date.
        """
        kinds = [part.schema.field(name).type for part in self.parts if part.schema.names.count(name) == 1]
        form = _format(self.parts[0].place) if isinstance(self.parts[0], TextPart) else None
        if self.is_csv:
            guessed = not all(map(pa.types.is_string, kinds))
        else:
            guessed = form is not None and any(map(pa.types.is_timestamp, kinds)) and "." not in name
        if not guessed or len(kinds) < len(self.parts):  # which `kind` refuses
            return self
        written = copy.copy(self)
        written.parts = []
        for part in self.parts:
            with self._reading(part.place, form):
                written.parts.append(TextPart(part.place, name))
            self._check_unchanged(part, copied=True)
        written.schema = written.parts[0].schema
        return written

    def where(self, row: int) -> str:
        part = bisect_right(self._firsts, row, hi=len(self.parts)) - 1
        return f"row {row - self._firsts[part]} of {self.parts[part].place}"

    def arrays(
        self, name: str, size: int, start: int, stop: int, bad: dict[int, str] | None = None
    ) -> Iterator[pa.Array]:
        """Yield the values of a column, at most `size` at a time; nulls for what cannot be read if `bad` takes it."""
        kind = self.schema.field(name).type
        for part, first in zip(self.parts, self._firsts, strict=False):
            begin, end = max(start - first, 0), min(stop - first, part.bounds[-1])
            if begin >= end:
                continue
            opened = part.reader(end) if isinstance(part, ParquetPart) else part.reader()
            with self._reading(part.place), opened as read:
                for unit in range(bisect_right(part.bounds, begin) - 1, len(part.bounds) - 1):
                    low, high = part.bounds[unit], min(part.bounds[unit + 1], end)
                    if low >= end:
                        break
                    row = max(begin, low)
                    try:
                        for values in read(unit, name, size, row - low, high - low):
                            row += len(values)
                            self._check_unchanged(part)
                            yield values
                        if row < high:
                            raise pa.ArrowInvalid("there are no more")
                    except (MemoryError, ChangedError, ServerError):  # Arrow's of memory is an ArrowException too
                        raise
                    except (pa.ArrowException, OSError) as error:
                        reason = f"rows {row} to {high - 1} cannot be read: {line(error)}"
                        if bad is None:
                            raise pa.ArrowException(reason) from error
                        reason = f"{self._argument} must be readable, got {part.place}: {reason}"
                        bad.update(dict.fromkeys(range(first + row, first + high), reason))
                        yield pa.nulls(high - row, kind)

    def _check_unchanged(self, part: Part, copied: bool = False) -> None:
        """Refuse a local file that has changed since it was opened: its columns would be of different rows."""
        if part.place.local is None or not (copied or type(part) in _READ_LATER):
            return
        with suppress(FileNotFoundError):
            if part.place.version() == part.version:
                return
        raise ChangedError(
            f"select: {self._argument} must stay as it is while it is read, got a change of {part.place}"
        )

    def check_there(self, name: str, values: int) -> None:
        """Read a column once if its files are too small for so many values: all may be the same, or not be there."""
        if values > _VALUES_PER_BYTE * sum(part.place.size() for part in self.parts):
            for _ in self.arrays(name, 1 << 16, 0, self.rows):
                pass

    def identity(self, full: bool, known: dict[str, Any] | None) -> list[dict[str, Any]]:
        return [part.place.identity(full, known) for part in self.parts]

    @contextmanager
    def _reading(self, place: Place, form: str | None = None) -> Iterator[None]:
        try:
            yield
        except (MemoryError, ChangedError, ServerError):
            raise
        except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
            why = line(error)
            if "CSV conversion error" in why:
                why += " (the first 8 MB tell the types of columns)"
            raise ValueError(
                f"select: {self._argument} must be a readable {form or _format(place)} file, got {place}: {why}"
            ) from error


class TableColumn(Column):
    """A column of a table, its values converted by `convert(values, rows)`."""

    def __init__(
        self,
        table: Table,
        argument: str,
        name: str,
        convert: Callable[[pa.Array, RowSource], Any],
        dims: int = 0,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.path, self.rows, self.dims = table.place.path, table.rows, dims
        self._table, self._argument, self._name, self._convert, self._dtype = table, argument, name, convert, dtype
        table.check_there(name, table.rows * max(1, dims))

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[Any]:
        start, stop = span(self.rows, start, stop)
        for values in steps(self._table.arrays(self._name, size, start, stop, bad), size):
            yield self._convert(values, RowSource(self._argument, start, self._table.where, bad))
            start += len(values)

    def where(self, row: int) -> str:
        return self._table.where(row)

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"path": str(self.path), "column": self._name, "files": self._table.identity(full, known)}


def find_column(
    kinds: dict[str, Any],
    place: Place,
    argument: str,
    column: str | None,
    what: str,
    accepts: Callable[[Any], bool],
    usual: Sequence[str] = (),
    noun: str = "column",
) -> str:
    """Find the column of that name, else the only one that fits, else the one that fits and has a usual name."""
    if column is not None:
        if column not in kinds:
            raise ValueError(f"select: {argument} must have a {noun} {column!r}, got {list(kinds)} in {place}")
        if not accepts(kinds[column]):
            raise ValueError(
                f"select: {argument} must hold {what} in {noun} {column!r}, got {kinds[column]} in {place}"
            )
        return column
    fitting = [name for name, kind in kinds.items() if accepts(kind)]
    if len(fitting) > 1:
        fitting = [name for name in usual if name in fitting] or fitting
    if len(fitting) != 1:
        raise ValueError(
            f"select: {argument} must have one {noun} of {what}, or it be named, "
            f"got {fitting or list(kinds)} in {place}"
        )
    return fitting[0]


def _format(place: Place) -> str:
    """Return the format of a file, in words."""
    if is_text(place):
        return "JSON lines" if suffix(place) in JSON else "CSV"
    if is_database(place):
        return "database"
    if place.suffix == LANCE:
        return "Lance"
    return "Arrow" if place.suffix in ARROW else "Parquet"


def _matching(pattern: Place, argument: str) -> list[Place]:
    """Return the files that match a pattern, in the order of their names."""
    places = pattern.matches()
    if not places:
        raise FileNotFoundError(f"select: {argument} must be an existing file, got {pattern}, which none matches")
    known = (*PARQUET, *ARROW, *JSON, *CSV)
    for place in places:
        if suffix(place) not in known:
            raise ValueError(f"select: {argument} must match files of {', '.join(known)}, got {place}")
    return places


def _folder(place: Place, argument: str) -> tuple[list[Place], str]:
    """Return the files of a folder in the order of their rows, and their format."""
    names = place.names()
    kind, wanted = "Parquet", PARQUET
    if "dataset_dict.json" in names:
        splits = ", ".join(str(place.child(name)) for name in names if name != "dataset_dict.json")
        raise ValueError(
            f"select: {argument} must be one split of a saved DatasetDict, got {place}; name one: {splits}"
        )
    if DESCRIPTION in names:
        way = "name those that it was made of" + (", or copy it to a local folder" if place.local is None else "")
        raise ValueError(f"select: {argument} must be files of vectors, got the saved corpus {place}; {way}")
    state_file = place.child("state.json")
    if "state.json" in names and state_file.kind() == "file":  # the package datasets' save_to_disk
        state = json.loads(state_file.read(0, min(state_file.size(), MOST_BYTES)))
        if state.get("_indices_data_files"):
            raise ValueError(
                f"select: {argument} must be saved without indices, got {place}; call flatten_indices() first"
            )
        names = [file["filename"] for file in state.get("_data_files", ())]
        kind, wanted = "Arrow", ARROW
    elif names and all("=" in name for name in names):  # the values of a column, in the manner of Hive
        parts = [_folder(place.child(name), argument)[0] for name in names]
        return [each for part in parts for each in part], kind
    other = [name for name in names if not name.lower().endswith(wanted)]
    if other or not names:
        raise ValueError(
            f"select: {argument} must be a folder of {kind} files and of nothing else, "
            f"got {other[0] if other else 'no file'} in {place}"
        )
    return [place.child(name) for name in names], kind


def steps(arrays: Iterator[pa.Array], size: int) -> Iterator[pa.Array]:
    """Yield exactly `size` values at a time, however many come at once."""
    pending: list[pa.Array] = []
    for values in arrays:
        pending.append(values)
        while sum(map(len, pending)) >= size:
            joined = pa.concat_arrays(pending) if len(pending) > 1 else pending[0]
            yield joined[:size]
            pending = [joined[size:]]
    if any(map(len, pending)):
        yield pa.concat_arrays(pending)
