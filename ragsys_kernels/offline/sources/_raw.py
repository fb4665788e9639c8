"""Arrays as they lie in a file, row after row: ``.npy`` files, and the tensors of ``.safetensors`` files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..._base import checks, times
from ..._base.arrays import HOST
from ..._base.npy import HEADER, can_be, header
from ..._base.types import NDArray as Array
from ...corpus.rows import Blocks
from ._column import BLOCK_BYTES, Column
from ._place import Place

# What a corpus takes as it lies in the file; uint16 are the bits of bfloat16.
_AS_STORED = ("float32", "float16", "uint16")


class ArrayColumn(Column):
    """The rows of an array in a file.

    `convert` is applied to each chunk, `finish` to the whole; `dims` is the length of rows that `convert` shortens, and
    `converted` the type of what it makes.
    """

    def __init__(
        self,
        place: Place,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        *,
        name: str | None = None,
        convert: Callable[[Array], Any] | None = None,
        finish: Callable[[Array], Any] | None = None,
        dims: int | None = None,
        converted: str = "float32",
    ) -> None:
        self.path, self.rows = place.path, shape[0]
        self.dims = dims if dims is not None else shape[1] if len(shape) == 2 else 0
        self._place, self._dtype, self._shape, self._name = place, np.dtype(dtype), shape, name
        if not can_be(shape, self._dtype):
            raise ValueError(f"select: {name} must have a shape that an array can have, got {shape} in {place}")
        self._convert, self._finish, self._converted = convert, finish, converted

    def _read(self, begin: int, end: int, bad: dict[int, str] | None) -> Array:
        """Return some rows as they are stored."""
        raise NotImplementedError

    def _some(self, begin: int, end: int, bad: dict[int, str] | None) -> Any:
        stored = self._read(begin, end, bad)
        return stored if self._convert is None else self._convert(stored)

    def whole(self) -> Any:
        array = self._stored()
        return array if self._finish is None else self._finish(array)

    def _stored(self) -> Array:
        array = np.empty(self._shape, self._dtype)
        step = max(1, BLOCK_BYTES // max(1, self._row_bytes))
        for begin in range(0, self.rows, step):
            end = min(begin + step, self.rows)
            array[begin:end] = self._read(begin, end, None)
        return array

    def embeddings(self) -> Any:
        if not all(self._shape):
            return self.whole()
        known = self._convert is None or self._dtype.name in _AS_STORED  # of the other byte order they keep their type
        return Blocks((self.rows, self.dims), self._dtype.name if known else self._converted, self.chunks)

    def narrowed(self) -> ArrayColumn:
        """Return the column, float64 as float32: what is beyond its range is inf, which is refused with its row."""
        if self._dtype == np.float64 and self._convert is None:
            self._convert = self._finish = partial(HOST.float32, dtype="float64")
        return self

    def as_floats(self, kinds: Sequence[str]) -> ArrayColumn:
        """Return the column, elements of these types as float32."""
        if self._dtype.name in kinds:
            self._convert = self._finish = partial(np.asarray, dtype=np.float32)
        return self

    def as_seconds(self) -> ArrayColumn:
        """Return the column, times as seconds since 1970 in float64, numbers as they are stored."""
        self._convert = self._finish = times.seconds
        return self

    def as_texts(self) -> ArrayColumn:
        """Return the column, strings as Arrow's, numbers as they are stored."""
        if self._dtype.kind == "U":
            self._convert, self._finish = self._texts, lambda array: pa.chunked_array([self._texts(array)])
        return self

    def _texts(self, stored: Array) -> pa.Array:
        try:
            return pa.array(stored)
        except ValueError as error:
            raise ValueError(f"select: {self.path} must hold text, got what is none: {checks.line(error)}") from None

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        named = {} if self._name is None else {"tensor": self._name}
        return {"path": str(self.path), **named, "files": [self._place.identity(full, known)]}

    @property
    def _row_bytes(self) -> int:
        return int(self._dtype.itemsize * math.prod(self._shape[1:]))


class RawColumn(ArrayColumn):
    """An array that lies at an offset of a file, row after row: a map of it, or ranges of a remote one."""

    def __init__(
        self,
        place: Place,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        offset: int,
        *,
        fortran_order: bool = False,
        copied: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(place, dtype, shape, **options)
        self._offset = offset
        self._order: Any = "F" if fortran_order else "C"
        self._file = copied or (place.mapped() if place.local is not None else None)

    def embeddings(self) -> Any:
        mapped = self._dtype.name in _AS_STORED and self._dtype.isnative
        return self.whole() if self._file is not None and mapped else super().embeddings()

    def _stored(self) -> Array:
        return self._map() if self._file is not None else super()._stored()

    def _map(self) -> Array:
        assert self._file is not None
        return np.memmap(self._file.path, self._dtype, "r", self._offset, self._shape, self._order)

    def _read(self, begin: int, end: int, bad: dict[int, str] | None) -> Array:
        if self._file is not None and self._order == "F":
            # A new map each time: its pages leave the process with it, a map that is kept grows to the whole file.
            return np.array(self._map()[begin:end], order="C")
        first, last = (self._offset + row * self._row_bytes for row in (begin, end))
        if self._file is None:
            values: Array = np.frombuffer(self._place.read(first, last), self._dtype)
        else:  # a third faster than a map, and no bus error where the file is cut short meanwhile
            values = np.fromfile(self._file.path, self._dtype, (last - first) // self._dtype.itemsize, offset=first)
        if values.nbytes < last - first:
            raise ValueError(f"select: {self.path} must keep its rows while it is read, got fewer than {end}")
        return values.reshape(end - begin, *self._shape[1:])


def npy(place: Place, argument: str, rank: int, dtypes: Sequence[str], **options: Any) -> RawColumn:
    """Open a ``.npy`` file of that rank and one of those element types."""
    try:
        shape, fortran_order, dtype, offset, _ = header(place.read(0, HEADER), place.size())
    except ValueError as error:
        raise ValueError(f"select: {argument} must be a complete .npy file, got {place}: {error}") from None
    if not dtype.isnative and dtype.newbyteorder("=").name in dtypes:
        swapped = options.pop("convert", None)
        options = {**dict.fromkeys(("convert", "finish"), native(dtype, swapped)), **options}
    elif dtype not in [np.dtype(name) for name in dtypes] and not (dtype.kind == "U" and "str" in dtypes):
        raise ValueError(f"select: {argument} must be {' or '.join(dtypes)}, got {dtype} in {place}")
    if len(shape) != rank:
        raise ValueError(f"select: {argument} must be of rank {rank}, got shape {shape} in {place}")
    if fortran_order and place.local is None:
        raise ValueError(f"select: {argument} must be in C order to be read from a URL, got Fortran order in {place}")
    return RawColumn(place, dtype, shape, offset, fortran_order=fortran_order, **options)


def native(dtype: np.dtype[Any], convert: Callable[[Array], Any] | None) -> Callable[[Array], Any]:
    """Return what gives an array of the other byte order this machine's, float64 as float32, and converts it then."""
    native = dtype.newbyteorder("=")

    def converted(stored: Array) -> Any:
        array: Any = stored.astype(native)
        if native == np.float64:
            array = HOST.float32(array, dtype="float64")
        return array if convert is None else convert(array)

    return converted
