"""Headers of ``.npy`` files, compared with the bytes that are there before memory is taken for what they say."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

HEADER = 1 << 16  # bytes; the longest header of a file of numbers


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
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    end = file.tell() + dtype.itemsize * math.prod(shape)  # of Python's integers, which do not overflow
    return Header(shape, fortran_order, dtype, file.tell(), end)
