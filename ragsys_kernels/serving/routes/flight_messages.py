"""Messages of Arrow Flight as they are sent: FlightData of its protobuf definition, whose parts are Arrow's own.

FlightData has a descriptor in its first message (field 1), the metadata of an Arrow message (2) and its body (1000).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ..limits import RefusedError

DESCRIPTOR, HEADER, BODY = 1, 2, 1000
TYPE, COMMAND = 1, 2  # fields of a descriptor
IS_COMMAND = 2  # the type of one that is a command
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5  # how fields are written
_CONTINUATION, _ALIGNMENT = b"\xff\xff\xff\xff", 8
_END = _CONTINUATION + bytes(4)


def fields_of(message: bytes | memoryview) -> dict[int, Any]:
    """Return the fields of a protobuf message: numbers, and bytes as views; the last of each.

    Raises
    ------
    ValueError
        It is none.
    """
    view, place = memoryview(message), 0
    found: dict[int, Any] = {}
    while place < len(view):
        tag, place = _varint(view, place)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            found[number], place = _varint(view, place)
            continue
        if kind == _BYTES:
            size, place = _varint(view, place)
        elif kind in (_FIXED_64, _FIXED_32):
            size = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if size > len(view) - place:
            raise ValueError("a field that leads beyond its message")
        found[number] = view[place : place + size]
        place += size
    return found


def flight_data(metadata: Any, body: Any) -> bytes:
    """Return the FlightData of an Arrow message."""
    parts = [_tag(HEADER), _as_varint(len(metadata)), metadata]
    if len(body):
        parts += [_tag(BODY), _as_varint(len(body)), body]
    return b"".join(parts)


def arrow_stream(messages: Sequence[Mapping[int, Any]]) -> bytes:
    """Return messages, the schema first, as an Arrow stream."""
    parts: list[Any] = []
    for fields in messages:
        metadata = fields[HEADER]
        padding = -len(metadata) % _ALIGNMENT
        parts += [_CONTINUATION, struct.pack("<I", len(metadata) + padding), metadata, bytes(padding)]
        parts.append(fields.get(BODY, b""))
    return b"".join([*parts, _END])


def trailers(error: RefusedError, kind: bytes, more: bytes) -> tuple[tuple[str, Any], ...]:
    """Return what pyarrow's clients make their error of: Arrow's status for I/O, its words, Flight's kind, and more."""
    return (
        ("x-arrow-status", "5"),
        ("x-arrow-status-message-bin", str(error).encode()),
        ("x-arrow-status-detail-bin", kind),
        ("grpc-status-details-bin", more),
    )


def _tag(number: int) -> bytes:
    return _as_varint(number << 3 | _BYTES)


def _as_varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    """Return a number of up to ten bytes, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(view):
            break
        byte = view[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("a number without an end")
