"""Tables of DuckDB and SQLite, which are converted to an Arrow stream once, as text files are; data sets of Lance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa

from ..._base.checks import line
from ..._base.extras import needed
from ._arrow import ArrowPart, filled, streamed
from ._place import DATABASES, Copy, Place

LANCE = ".lance"
_SQLITE = b"SQLite format 3\x00"
_ROWS = 4096  # read at a time


def is_database(place: Place) -> bool:
    return place.local is not None and str(place.local).lower().endswith(DATABASES)


class DatabasePart(ArrowPart):
    """A table of a DuckDB or SQLite file, in the order of its rows."""

    def content(self, place: Place) -> Copy:
        sqlite = place.read(0, len(_SQLITE)) == _SQLITE
        return streamed((_of_sqlite if sqlite else _of_duckdb)(place))


def _table(place: Place, tables: list[str]) -> str:
    """Return the name of the table to read, quoted."""
    if place.table is None and len(tables) == 1:
        name = tables[0]
    elif place.table in tables and place.table is not None:
        name = place.table
    else:
        raise pa.ArrowInvalid(
            f"one of its tables must be named, as {place.local}::TABLE: {', '.join(tables) or 'none'}"
        )
    return '"' + name.replace('"', '""') + '"'


def _of_duckdb(place: Place) -> Iterator[pa.RecordBatch]:
    with needed(f"select: {place}", "duckdb"):
        import duckdb
    try:
        with closing(duckdb.connect(str(place.local), read_only=True)) as base:
            tables = [name for (name,) in base.execute("SHOW TABLES").fetchall()]
            found = base.sql(f"SELECT * FROM {_table(place, tables)}")
            read = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader  # before version 1.4
            yield from filled(read(_ROWS))
    except duckdb.Error as error:
        raise pa.ArrowInvalid(line(error)) from error


def _of_sqlite(place: Place) -> Iterator[pa.RecordBatch]:
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{place.local.absolute().as_uri()}?mode=ro", uri=True)) as base:  # type: ignore[union-attr]
            listed = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            table = _table(place, [name for (name,) in base.execute(listed)])
            found = base.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in found.description]
            schema: pa.Schema | None = None
            while rows := found.fetchmany(_ROWS):
                columns = list(zip(*rows, strict=True))
                if schema is None:
                    arrays = [_first(values) for values in columns]
                    schema = pa.schema(list(zip(names, (array.type for array in arrays), strict=True)))
                else:
                    arrays = [_as(values, field.type) for values, field in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            if schema is None:
                yield pa.RecordBatch.from_arrays([pa.nulls(0)] * len(names), names=names)
    except sqlite3.Error as error:
        raise pa.ArrowInvalid(line(error)) from error


def _first(values: tuple[Any, ...]) -> pa.Array:
    """Return the first values of a column; blobs of one length, which float32 fill, are vectors."""
    lengths = {len(value) for value in values if isinstance(value, bytes)}
    if len(lengths) == 1 and all(value is None or isinstance(value, bytes) for value in values):
        (length,) = lengths
        if length and length % 4 == 0:
            return _as(values, pa.list_(pa.float32(), length // 4))
    if any(isinstance(value, float) for value in values):
        return _as(values, pa.float64())
    return pa.array(values)


def _as(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_fixed_size_list(kind):
        return pa.array(values, kind)
    blobs = pa.array(values, pa.binary(4 * kind.list_size))
    floats = pa.Array.from_buffers(pa.float32(), len(blobs) * kind.list_size, [None, blobs.buffers()[1]])
    return pa.FixedSizeListArray.from_arrays(floats, kind.list_size, mask=blobs.is_null())


class LancePart:
    """A data set of Lance, the version that it has when it is opened."""

    version: dict[str, Any]  # by `Place.shared`

    def __init__(self, place: Place) -> None:
        with needed(f"select: {place}", "lance", "pylance"):
            import lance
        self.place = place
        try:
            self._data = lance.dataset(str(place.local))
            self.schema, self.bounds = self._data.schema, [0, self._data.count_rows()]
        except (ValueError, OSError, RuntimeError) as error:
            raise pa.ArrowInvalid(line(error)) from error

    @contextmanager
    def reader(self) -> Iterator[Callable[[int, str, int, int, int], Iterator[pa.Array]]]:
        """Give a function that yields the values of a column in the rows `start` to `stop`."""

        def read(unit: int, name: str, size: int, start: int, stop: int) -> Iterator[pa.Array]:
            try:
                scan = self._data.scanner([name], offset=start, limit=stop - start, batch_size=size, scan_in_order=True)
                for batch in scan.to_batches():
                    yield batch.column(name)
            except (ValueError, RuntimeError) as error:
                raise pa.ArrowInvalid(line(error)) from error

        yield read
