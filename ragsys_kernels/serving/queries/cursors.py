"""Cursors: where a next page goes on. They hold the ids that the pages before have shown, and nothing else.

A cursor is not secret and gives no right: its ids are checked as those of ``initial`` are.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
import orjson

# The first letter of a cursor: what its bytes are.
_NUMBERS, _NAMES = "n", "s"


def encoded(ids: np.ndarray) -> str:
    """Return the cursor of a page after these ids, int64 or strings."""
    if ids.dtype.kind == "O":
        return _NAMES + _text(orjson.dumps(ids.tolist()))
    return _NUMBERS + _text(ids.astype("<i8", copy=False).tobytes())


def decoded(cursor: object) -> list[Any] | None:
    """Return the ids of a cursor; None if it is not one."""
    if not isinstance(cursor, str):  # of any length: ids may have any, and the body is limited
        return None
    try:
        content = base64.b64decode(cursor[1:], validate=True)
        if cursor[:1] == _NUMBERS:
            ids: list[Any] = np.frombuffer(content, "<i8").tolist()
        elif cursor[:1] == _NAMES:
            ids = orjson.loads(content)
        else:
            return None
    except ValueError:
        return None
    return ids if isinstance(ids, list) else None


def _text(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode()
