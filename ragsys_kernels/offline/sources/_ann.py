"""Files of the nearest-neighbour benchmarks.

In ``.fvecs``, ``.bvecs`` and ``.ivecs`` a row is its length, an int32, and so many float32, uint8 or int32. Files
``.fbin``, ``.u8bin``, ``.i8bin`` and ``.ibin`` begin with the number of rows and their length, two int32, and hold
float32, uint8, int8 or int32. All are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._base.types import NDArray as Array
from ._place import Place
from ._raw import RawColumn

_VECS = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}
_BIN = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1", ".ibin": "<i4"}
SUFFIXES: tuple[str, ...] = (*_VECS, *_BIN)
BYTES = (".bvecs", ".u8bin", ".i8bin")
_LENGTH = np.dtype("<i4")


def column(place: Place, argument: str, ids: bool, convert: Callable[[Array], Any] | None) -> RawColumn:
    """Open a file of vectors, or with `ids` one of rows of integers; `convert` takes its rows as they are stored.

    Without it they stay as they are.
    """
    suffix = place.suffix
    dtype = np.dtype(_VECS.get(suffix) or _BIN[suffix])
    if ids != (dtype.kind == "i" and dtype.itemsize == 4):
        kinds = [name for name in SUFFIXES if (name in (".ivecs", ".ibin")) == ids]
        raise ValueError(f"select: {argument} must be {_or(kinds)}, got {place}")
    size = place.size()
    if suffix in _BIN:
        rows, dims = _header(place, argument, 2)
        _complete(place, argument, size, 8 + rows * dims * dtype.itemsize)
        return RawColumn(place, dtype, (rows, dims), 8, convert=convert, finish=convert)
    if not size:
        raise ValueError(f"select: {argument} must be a complete {suffix} file, got {place}: it is empty")
    (dims,) = _header(place, argument, 1)
    row_bytes = _LENGTH.itemsize + dims * dtype.itemsize
    _complete(place, argument, size, -(-size // row_bytes) * row_bytes)

    def values(stored: Array) -> Any:
        lengths = np.ascontiguousarray(stored[:, : _LENGTH.itemsize]).view(_LENGTH)[:, 0]
        if (wrong := lengths[lengths != dims]).size:
            raise ValueError(f"select: {argument} must have {dims} values in each row, got {wrong[0]} in {place}")
        found = np.ascontiguousarray(stored[:, _LENGTH.itemsize :]).view(dtype)
        return found if convert is None else convert(found)

    shape, kind = (size // row_bytes, row_bytes), "float32" if convert is not None else dtype.name
    return RawColumn(place, "u1", shape, 0, convert=values, finish=values, dims=dims, converted=kind)


def as_floats(stored: Array) -> Array:
    """Return stored vectors as float32, which holds bytes exactly."""
    return stored.astype(np.float32)


def _header(place: Place, argument: str, count: int) -> list[int]:
    begin = place.read(0, count * _LENGTH.itemsize)
    numbers: list[int] = np.frombuffer(begin[: len(begin) // _LENGTH.itemsize * _LENGTH.itemsize], _LENGTH).tolist()
    if len(numbers) < count or min(numbers) < 0 or numbers[-1] == 0:
        raise ValueError(f"select: {argument} must be a complete {place.suffix} file, got {place}: it begins {numbers}")
    return numbers


def _complete(place: Place, argument: str, size: int, end: int) -> None:
    if size != end:
        raise ValueError(
            f"select: {argument} must be a complete {place.suffix} file, got {place}: it has {size} bytes, not {end}"
        )


def _or(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
