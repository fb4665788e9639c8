"""Headers of ``.npy`` files, compared with the bytes that are there before memory is taken for what they say."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

HEADER = 1 << 16  # bytes; the longest header of a file of numbers
_SHORT = 10_000  # bytes; NumPy refuses to parse a longer one


class Header(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    offset: int  # where the array begins
    end: int


def header(begin: bytes, size: int) -> Header:
    """Return what the first `HEADER` bytes of a file of `size` bytes say.

    Raises
    ------
    ValueError
        They are no header, or one of an array that such a file cannot hold.
    """
    try:
        found = _parsed(io.BytesIO(begin))
    except Exception as error:  # damaged ones raise many kinds, even those of Python's parser
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
    if found.dtype.hasobject:
        raise ValueError("it holds Python objects")
    if min(found.shape, default=0) < 0 or not can_be(found.shape, found.dtype):
        raise ValueError(f"its shape is {found.shape}")
    if size < found.end:
        raise ValueError(f"it ends after {size} of {found.end} bytes")
    return found


def can_be(shape: Sequence[int], dtype: np.dtype[Any]) -> bool:
    """Return whether NumPy can make an array of a shape; for an empty array too, it multiplies all axes but zeros."""
    return dtype.itemsize * math.prod(filter(None, shape)) < 1 << 63


def _parsed(file: io.BytesIO) -> Header:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):  # 3.0 differs in the names of fields only
        raise ValueError(f"its version is {version}")
    begin = file.tell()
    size = 2 if version == (1, 0) else 4  # of the number that says how long the text is
    length = int.from_bytes(file.read(size), "little")
    text = file.read(length)
    if len(text) < length or length > _SHORT:  # which NumPy refuses, or may
        file.seek(begin)
        shape, fortran_order, dtype = _read(version, file)
    else:
        shape, fortran_order, dtype = _of_text(version, text.rstrip(b" \n") + b"\n")
    end = file.tell() + dtype.itemsize * math.prod(shape)  # of Python's integers, which do not overflow
    return Header(shape, fortran_order, dtype, file.tell(), end)


@lru_cache(maxsize=256)
def _of_text(version: tuple[int, int], text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return what a text says. Segments have the same but for the spaces at its end; to parse it takes 100 µs."""
    return _read(version, io.BytesIO(len(text).to_bytes(2 if version == (1, 0) else 4, "little") + text))


def _read(version: tuple[int, int], file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    return shape, fortran_order, dtype
