"""Arrow IPC files and streams, mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pyarrow as pa

from ._place import Place

_MAGIC = b"ARROW1"  # of the format for random access; a stream has none


class ArrowPart:
    """One file; ``bounds`` are the first rows of its record batches, and the number of all rows.

    A stream is read through once when it is opened, for the places of its batches; for batches that are not compressed
    that reads their headers only.
    """

    def __init__(self, place: Place) -> None:
        self.place, self._file = place, place.mapped()
        self._offsets: list[int] = []
        with self._map() as source:
            self._random_access = source.read(len(_MAGIC)) == _MAGIC
            source.seek(0)
            sizes = self._scan_file(source) if self._random_access else self._scan_stream(source)
        self.bounds = list(accumulate(sizes, initial=0))

    @contextmanager
    def reader(self) -> Iterator[Callable[[int, str, int, int, int], Iterator[pa.Array]]]:
        """Give a function that yields the values of a column in the rows `start` to `stop` of a record batch."""
        yield self._read

    def _read(self, batch: int, name: str, size: int, start: int, stop: int) -> Iterator[pa.Array]:
        # A new map for each step: its pages leave the process with it, a map that is kept grows to the whole file.
        step = stop if self._compressed else size
        for begin in range(start, stop, step):
            values = self._column(batch, name)
            end = min(begin + step, stop)
            for first in range(begin, end, size):
                yield values[first : min(first + size, end)]

    def _column(self, batch: int, name: str) -> pa.Array:
        with self._map() as source:
            if self._random_access:
                # Of compressed batches only this column is read; it would be copied out of a map as well.
                fields = [self.schema.get_field_index(name)] if self._compressed else []
                options = pa.ipc.IpcReadOptions(included_fields=fields)
                return pa.ipc.open_file(source, options=options).get_batch(batch).column(name)
            source.seek(self._offsets[batch])
            return pa.ipc.read_record_batch(pa.ipc.read_message(source), self.schema).column(name)

    def _map(self) -> Any:
        return pa.memory_map(os.fsencode(self._file.path))  # a str would have to be UTF-8

    def _scan_file(self, source: Any) -> list[int]:
        reader = pa.ipc.open_file(source)
        self.schema = reader.schema
        batches = reader.num_record_batches
        self._compressed = bool(batches) and not _is_mapped(reader.get_batch(0), source)
        if self._compressed:  # the number of rows comes with any column: the one that is quickest to decompress
            cheap = sorted(range(len(self.schema)), key=lambda field: pa.types.is_nested(self.schema.field(field).type))
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=cheap[:1]))
        return [reader.get_batch(batch).num_rows for batch in range(batches)]

    def _scan_stream(self, source: Any) -> list[int]:
        reader = pa.ipc.open_stream(source)
        self.schema, self._compressed = reader.schema, False
        if any(pa.types.is_dictionary(field.type) for field in self.schema):
            raise pa.ArrowInvalid("a stream with dictionaries cannot be read from its middle; write an Arrow file")
        sizes: list[int] = []
        while True:
            offset = source.tell()
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            if not sizes:
                self._compressed = not _is_mapped(batch, source)
            self._offsets.append(offset)
            sizes.append(batch.num_rows)
        if source.tell() == offset:
            raise pa.ArrowInvalid("it ends without the mark of its end")
        return sizes


def _is_mapped(batch: pa.RecordBatch, source: Any) -> bool:
    """Say whether the batch's values lie in the map, that is, are not decompressed ones."""
    position = source.tell()
    source.seek(0)
    content = source.read_buffer(source.size())
    source.seek(position)
    held = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None and buffer.size]
    return all(content.address <= buffer.address < content.address + content.size for buffer in held)
