"""Parquet files, read a row group at a time and that in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ._place import Place

# With these pyarrow reads a row group in pieces of a buffer (bytes), not whole: some files are one large row group.
_STREAMED = {"buffer_size": 1 << 20, "pre_buffer": False}


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
    def reader(self) -> Iterator[Callable[[int, str, int, int, int], Iterator[pa.Array]]]:
        """Give a function that yields the values of a column in the rows `start` to `stop` of a row group."""
        with self.place.source() as source, pq.ParquetFile(source, metadata=self._metadata, **_STREAMED) as file:

            def read(group: int, name: str, size: int, start: int, stop: int) -> Iterator[pa.Array]:
                first = 0
                for batch in batches(file, size, row_groups=[group], columns=[name]):
                    values = batch.column(name)[max(0, start - first) : stop - first]
                    if len(values):
                        values.validate(full=True)  # text may be no UTF-8
                        yield values
                    first += batch.num_rows
                    if first >= stop:
                        return

            yield read


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
