"""Arrow IPC files and streams, mapped into memory.

pyarrow trusts the lengths and offsets of what it maps, and ends the process where they lie. Batches are validated:
their lengths when the file is opened, the values of a column before it is first read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, chain
from typing import IO, Any

import pyarrow as pa

from ..._base.arrow_sizes import check_unpacked, places
from ._place import Copy, Place, unnamed

_MAGIC = b"ARROW1"  # of the format for random access; a stream has none
_TAIL = struct.Struct("<i6s")  # the footer's length, and the magic again


class ArrowPart:
    """One file; ``bounds`` are the first rows of its record batches, and the number of all rows.

    A stream is read through once when it is opened, for the places of its batches; for batches that are not compressed
    that reads their headers only.
    """

    version: dict[str, Any]  # by `Place.shared`

    def __init__(self, place: Place) -> None:
        self.place, self._file = place, self.content(place)
        self._offsets: list[int] = []
        self._sound: set[tuple[int, str]] = set()  # batches and columns that have been validated
        with self._map() as source:
            self._random_access = source.read(len(_MAGIC)) == _MAGIC
            source.seek(0)
            sizes = self._scan_file(source) if self._random_access else self._scan_stream(source)
        self.bounds = list(accumulate(sizes, initial=0))

    def content(self, place: Place) -> Copy:
        """Return the file to map."""
        return place.mapped()

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
        values = self._unchecked(batch, name)
        if (batch, name) not in self._sound:
            values.validate(full=True)
            self._sound.add((batch, name))
        return values

    def _unchecked(self, batch: int, name: str) -> pa.Array:
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
        _check_messages(source)
        batches = reader.num_record_batches
        self._compressed = bool(batches) and not _is_mapped(reader.get_batch(0), source)
        if self._compressed:  # the number of rows comes with any column: the one that is quickest to decompress
            cheap = sorted(range(len(self.schema)), key=lambda field: pa.types.is_nested(self.schema.field(field).type))
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=cheap[:1]))
        return [_rows(reader.get_batch(batch)) for batch in range(batches)]

    def _scan_stream(self, source: Any) -> list[int]:
        self.schema, self._compressed = pa.ipc.open_stream(source).schema, False
        if any(pa.types.is_dictionary(field.type) for field in self.schema):
            raise pa.ArrowInvalid("a stream with dictionaries cannot be read from its middle; write an Arrow file")
        sizes: list[int] = []
        while True:
            offset = source.tell()
            try:
                message = pa.ipc.read_message(source)
            except EOFError:
                break
            _check(message)
            batch = pa.ipc.read_record_batch(message, self.schema)
            if not sizes:
                self._compressed = not _is_mapped(batch, source)
            self._offsets.append(offset)
            sizes.append(_rows(batch))
        if source.tell() == offset:
            raise pa.ArrowInvalid("it ends without the mark of its end")
        return sizes


def streamed(batches: Iterator[pa.RecordBatch]) -> Copy:
    """Write batches, at least one, as an Arrow stream of the first one's columns, without dictionaries."""

    def write(file: IO[bytes]) -> None:
        first = next(batches)
        kinds = [(field.name, _plain(field.type)) for field in first.schema]
        schema = pa.schema(kinds)
        with pa.ipc.new_stream(pa.PythonFile(file, "w"), schema) as writer:
            for batch in chain([first], batches):
                columns = [column.cast(kind) for column, (_, kind) in zip(batch.columns, kinds, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

    return unnamed(write)


def filled(reader: Any) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a reader that have rows, or an empty one where none has."""
    some = False
    for batch in reader:
        if len(batch):
            some = True
            yield batch
    if not some:
        yield pa.RecordBatch.from_pylist([], reader.schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_mapped(batch: pa.RecordBatch, source: Any) -> bool:
    """Say whether the batch's values lie in the map, that is, are not decompressed ones."""
    position = source.tell()
    source.seek(0)
    content = source.read_buffer(source.size())
    source.seek(position)
    held = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None and buffer.size]
    return all(content.address <= buffer.address < content.address + content.size for buffer in held)


def _check_messages(source: Any) -> None:
    """Look at the lengths in all messages of a file, which are unpacked when they are read."""
    size = source.size()
    source.seek(max(size - _TAIL.size, 0))
    length, _ = _TAIL.unpack(source.read(_TAIL.size))
    source.seek(size - _TAIL.size - length)
    try:
        begins = places(source.read(length))
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from error
    for begin in begins:
        source.seek(begin)
        _check(pa.ipc.read_message(source))


def _check(message: Any) -> None:
    try:
        check_unpacked(message)
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from error


def _rows(batch: pa.RecordBatch) -> int:
    batch.validate()  # lengths: offsets in the middle are looked at when they are read
    return int(batch.num_rows)
