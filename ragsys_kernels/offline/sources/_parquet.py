"""Parquet files, read a row group at a time and that in pieces.

One thread decodes 0.3 to 0.5 GB of vectors a second, less than what a build or a job takes; so the next row groups are
decoded by other threads meanwhile, if they are small: what is ahead takes memory.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..._base import env
from ._place import Place

# With these pyarrow reads a row group in pieces of a buffer (bytes), not whole: some files are one large row group.
_STREAMED = {"buffer_size": 1 << 20, "pre_buffer": False}
_AHEAD_BYTES = 1 << 26  # of a column of a row group that is decoded whole; the default of many writers is 25 to 50 MB
_MOST_AHEAD = 4


class ParquetPart:
    """One file; ``bounds`` are the first rows of its row groups, and the number of all rows."""

    version: dict[str, Any]  # by `Place.shared`

    def __init__(self, place: Place) -> None:
        self.place = place
        with place.source() as source, pq.ParquetFile(source) as file:
            self._metadata, self.schema = file.metadata, file.schema_arrow
        groups = (self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups))
        self.bounds = list(accumulate(groups, initial=0))

    @contextmanager
    def reader(self, end: int = 0) -> Iterator[Callable[[int, str, int, int, int], Iterator[pa.Array]]]:
        """Give a function that yields the values of a column in the rows `start` to `stop` of a row group.

        It is called for one row group after the other, up to that of the row before ``end``.
        """
        depth = min(_MOST_AHEAD, env.num_threads())
        groups = bisect_left(self.bounds, end)  # of the rows before the end
        with ExitStack() as stack:
            file = self._opened(stack)
            pool, begun = None, dict[int, Future[list[pa.Array]]]()

            def read(group: int, name: str, size: int, start: int, stop: int) -> Iterator[pa.Array]:
                nonlocal pool
                if depth > 1 and group + 1 < groups and pool is None:
                    pool = ThreadPoolExecutor(depth)
                    stack.callback(pool.shutdown, cancel_futures=True)
                for each in range(group, min(group + depth, groups) if pool is not None else group):
                    if each not in begun and self._bytes(each, name) <= _AHEAD_BYTES:
                        begun[each] = pool.submit(self._decoded, each, name, size)  # type: ignore[union-attr]
                decoded, first = begun.pop(group, None), 0
                # What is damaged is read here, which yields what is before the damage.
                ready = None if decoded is None or decoded.exception() is not None else decoded.result()
                for values in ready or _values(file, group, name, size):
                    if len(some := values[max(0, start - first) : stop - first]):
                        if ready is None:
                            some.validate(full=True)  # text may be no UTF-8
                        yield some
                    first += len(values)
                    if first >= stop:
                        return

            yield read

    def _opened(self, stack: ExitStack) -> pq.ParquetFile:
        source = stack.enter_context(self.place.source())
        return stack.enter_context(pq.ParquetFile(source, metadata=self._metadata, **_STREAMED))

    def _decoded(self, group: int, name: str, size: int) -> list[pa.Array]:
        """Return the values of a row group, in pieces: new memory for all of them at once takes longer than they do."""
        with ExitStack() as stack:
            pieces = list(_values(self._opened(stack), group, name, size))
        for values in pieces:
            values.validate(full=True)
        return pieces

    def _bytes(self, group: int, name: str) -> int:
        """Return what a column takes in a row group, by what the file says."""
        described = self._metadata.row_group(group)
        columns = (described.column(each) for each in range(described.num_columns))
        return sum(
            max(8 * column.num_values, column.total_uncompressed_size)
            for column in columns
            if f"{column.path_in_schema}.".startswith(f"{name}.")
        )


def _values(file: pq.ParquetFile, group: int, name: str, size: int) -> Iterator[pa.Array]:
    for batch in batches(file, size, row_groups=[group], columns=[name]):
        yield batch.column(name)


def batches(file: pq.ParquetFile, size: int = 1 << 16, **of: Any) -> Iterator[pa.RecordBatch]:
    """Yield rows as ``iter_batches`` does; a page that says it is larger than the file's groups is damage, not a lack
    of memory."""
    try:
        yield from file.iter_batches(size, **of)
    except pa.ArrowMemoryError as error:
        asked, metadata = re.search(r"size (\d+)", str(error)), file.metadata
        there = max(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        if asked is not None and int(asked[1]) > 2 * there:
            raise pa.ArrowInvalid(f"a page of {asked[1]} bytes in a row group of {there}") from error
        raise
