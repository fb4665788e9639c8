"""What Arrow messages unpack to, from the lengths in them: before anything is unpacked.

A compressed buffer begins with the length that it unpacks to, eight bytes. Where the buffers lie is in the message's
metadata, a FlatBuffer of the format's Message table, which pyarrow checks when it reads the message. Where the messages
of a file lie is in its footer, another FlatBuffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

# Places of fields in the tables of the format (Message.fbs), and the buffers of a batch: an offset and a length each.
_KIND, _HEADER, _DATA, _BUFFERS, _COMPRESSION = 1, 2, 1, 2, 3
_KINDS = {1: "schema", 2: "dictionary", 3: "record batch"}
_DICTIONARIES, _BATCHES = 2, 3  # of a footer
_BUFFER, _BLOCK = struct.Struct("<qq"), struct.Struct("<qiiq")
_PREFIX = 8
_NOT_COMPRESSED = -1  # in place of a length
# No byte unpacks to more: a block of Zstandard, at most 128 KiB, takes at least four. LZ4's are of 255 bytes a byte.
_MOST_RATIO = 1 << 16


def kind_of(metadata: Any) -> str:
    """Return the kind of a message, from its metadata alone, which need not have been checked.

    Raises
    ------
    ValueError
        It is none that streams have.
    """
    metadata = memoryview(metadata)
    try:
        place = _place(metadata, _u32(metadata, 0), _KIND)
        return _KINDS[0 if place is None else metadata[place]]
    except (struct.error, IndexError, KeyError):
        raise ValueError("a message of another kind") from None


def unpacked_bytes(messages: Iterable[Any], most: int) -> int:
    """Return the bytes that the compressed buffers of messages (`pyarrow.ipc.Message`) unpack to.

    Dictionaries count once for each that follows: a change of one is joined to the whole before it.

    Raises
    ------
    ValueError
        There are more messages than ``most``, or the lengths in them are wrong.
    """
    total = dictionaries = 0
    for count, message in enumerate(messages):
        if count > most:
            raise ValueError(f"more than {most} messages")
        kind = message.type
        if kind == "dictionary":
            dictionaries += len(message.body) + _of_message(message, True)
            total += dictionaries
        elif kind == "record batch":
            total += _of_message(message, False)
    return total


def check_unpacked(message: Any) -> None:
    """Refuse a message with a buffer that says it unpacks to more than its bytes can.

    Raises
    ------
    ValueError
        It does, or the lengths in it are wrong.
    """
    if message.type in ("dictionary", "record batch"):
        for length, size in _lengths(message, message.type == "dictionary"):
            if size > length * _MOST_RATIO:
                raise ValueError(f"a buffer of {length} bytes that unpacks to {size}")


def places(footer: Any) -> list[int]:
    """Return where the dictionaries and the batches of a file begin, from its footer.

    Raises
    ------
    ValueError
        The footer leads beyond itself.
    """
    footer, found = memoryview(footer), list[int]()
    try:
        for field in (_DICTIONARIES, _BATCHES):
            vector = _field(footer, _u32(footer, 0), field)
            if vector is not None:
                blocks = range(vector + 4, vector + 4 + _u32(footer, vector) * _BLOCK.size, _BLOCK.size)
                found += [_BLOCK.unpack_from(footer, block)[0] for block in blocks]
    except (struct.error, IndexError):
        raise ValueError("a footer that leads beyond itself") from None
    return found


def _of_message(message: Any, dictionary: bool) -> int:
    return sum(size for _, size in _lengths(message, dictionary))


def _lengths(message: Any, dictionary: bool) -> list[tuple[int, int]]:
    """Return the length of each compressed buffer, and the one that it says it unpacks to."""
    metadata, body = memoryview(message.metadata), memoryview(message.body or b"")
    try:
        return list(_of_batch(metadata, body, dictionary))
    except (struct.error, IndexError):
        raise ValueError("a message whose metadata leads beyond it") from None


def _of_batch(metadata: memoryview, body: memoryview, dictionary: bool) -> Iterator[tuple[int, int]]:
    table = _field(metadata, _u32(metadata, 0), _HEADER)
    if dictionary and table is not None:
        table = _field(metadata, table, _DATA)
    if table is None or _field(metadata, table, _COMPRESSION) is None:
        return
    vector = _field(metadata, table, _BUFFERS)
    if vector is None:
        return
    for i in range(_u32(metadata, vector)):
        offset, length = _BUFFER.unpack_from(metadata, vector + 4 + i * _BUFFER.size)
        if length < _PREFIX:
            continue
        if offset < 0:
            raise ValueError("a buffer before its message")
        (size,) = struct.unpack_from("<q", body, offset)
        if size < _NOT_COMPRESSED:
            raise ValueError(f"a buffer that unpacks to {size} bytes")
        yield length, max(size, 0)


def _field(metadata: memoryview, table: int, number: int) -> int | None:
    """Return where the table or vector of a field begins; None without one."""
    place = _place(metadata, table, number)
    return None if place is None else place + _u32(metadata, place)


def _place(metadata: memoryview, table: int, number: int) -> int | None:
    """Return where a field is; None without one."""
    fields = table - struct.unpack_from("<i", metadata, table)[0]
    place = 4 + 2 * number
    if fields < 0 or place >= struct.unpack_from("<H", metadata, fields)[0]:
        return None
    offset = struct.unpack_from("<H", metadata, fields + place)[0]
    return table + int(offset) if offset else None


def _u32(metadata: memoryview, place: int) -> int:
    if place < 0:
        raise IndexError
    return int(struct.unpack_from("<I", metadata, place)[0])
