"""Arrays by name: the members of ``.npz`` files, and the data sets of HDF5 files, as ann-benchmarks has them."""

from __future__ import annotations

import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..._base.arrays import HOST
from ..._base.checks import line
from ..._base.extras import needed
from ..._base.npy import HEADER, header
from ..._base.types import NDArray as Array
from ...corpus.rows import Blocks
from ._place import Copy, Place
from ._raw import RawColumn, native
from ._rows import span
from ._safetensors import Tensor

HDF5: tuple[str, ...] = (".hdf5", ".h5", ".hdf")
_BLOCK_BYTES = 1 << 24
_DAMAGE = (zipfile.BadZipFile, zlib.error, NotImplementedError, OSError, ValueError, EOFError, RuntimeError, KeyError)


class Arrays(Protocol):
    """A file of arrays by name."""

    place: Place
    kinds: dict[str, Tensor]

    @property
    def column(self) -> Callable[..., Any]:
        """What gives an array's rows by its name; ``convert`` and ``finish`` as of `RawColumn`."""


class Npz:
    """The arrays of a ``.npz`` file; each that is used is unpacked to a temporary file without a name, and mapped."""

    def __init__(self, place: Place, argument: str) -> None:
        self.place, self._argument, self._file = place, argument, place.mapped()
        self._headers: dict[str, Any] = {}
        try:
            with zipfile.ZipFile(self._file.path) as archive:
                for info in archive.infolist():
                    with archive.open(info) as member:
                        name = info.filename.removesuffix(".npy")
                        self._headers[name] = info.filename, header(member.read(HEADER), info.file_size)
        except _DAMAGE as error:
            raise self._damaged(error) from error
        self.kinds = {name: Tensor(found.dtype.name, found.shape) for name, (_, found) in self._headers.items()}

    def column(self, name: str, **options: Any) -> RawColumn:
        member, (shape, fortran_order, dtype, offset, end) = self._headers[name]
        file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the copy)
        try:
            with zipfile.ZipFile(self._file.path) as archive, archive.open(member) as packed:
                shutil.copyfileobj(packed, file, _BLOCK_BYTES)
            if file.tell() != end:
                raise ValueError(f"{member} has {file.tell()} bytes, not {end}")
            file.flush()
        except _DAMAGE as error:
            file.close()
            raise self._damaged(error) from error
        copy = Copy(Path(f"/proc/self/fd/{file.fileno()}"))
        weakref.finalize(copy, file.close)
        if not dtype.isnative:
            options = {**options, **dict.fromkeys(("convert", "finish"), native(dtype, options.pop("convert", None)))}
        return RawColumn(
            self.place, dtype, shape, offset, fortran_order=fortran_order, name=name, copied=copy, **options
        )

    def _damaged(self, error: Exception) -> ValueError:
        return ValueError(f"select: {self._argument} must be a readable .npz file, got {self.place}: {line(error)}")


class Hdf:
    """The data sets of an HDF5 file, those in groups by their path."""

    def __init__(self, place: Place, argument: str) -> None:
        with needed(f"select: {argument} {place}", "hdf5", "h5py"):
            import h5py
        self.place, self._argument, self._copy = place, argument, place.mapped()
        self.kinds: dict[str, Tensor] = {}

        def note(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.shape:
                self.kinds[name] = Tensor(item.dtype.name, tuple(item.shape))

        try:
            # A copy has no name for HDF5's own library to open.
            opened = None if place.local is not None else open(self._copy.path, "rb")  # noqa: SIM115
            if opened is not None:
                weakref.finalize(self, opened.close)
            self._file = h5py.File(opened or self._copy.path, "r")
            self._file.visititems(note)
        except _DAMAGE as error:
            text = f"select: {argument} must be a readable HDF5 file, got {place}: {line(error)}"
            raise ValueError(text) from error

    def column(
        self,
        name: str,
        convert: Callable[[Array], Any] | None = None,
        finish: Callable[[Array], Any] | None = None,
    ) -> HdfColumn:
        return HdfColumn(self, name, self._file[name], self._argument, convert, finish)


class HdfColumn:
    """The rows of a data set, read a block at a time."""

    def __init__(
        self,
        owner: Hdf,
        name: str,
        data: Any,
        argument: str,
        convert: Callable[[Array], Any] | None,
        finish: Callable[[Array], Any] | None,
    ) -> None:
        self.path, self.rows = owner.place.path, int(data.shape[0])
        self.dims = int(data.shape[1]) if len(data.shape) == 2 else 0
        self._owner, self._name, self._data, self._argument = owner, name, data, argument
        self._convert, self._finish = convert, finish

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[Any]:
        start, stop = span(self.rows, start, stop)
        for begin in range(start, stop, size):
            end = min(begin + size, stop)
            try:
                stored = np.asarray(self._data[begin:end])
            except _DAMAGE as error:
                reason = (
                    f"{self._argument} must be readable, got {self.path}: rows {begin} to {end - 1} of {self._name} "
                    f"cannot be read: {line(error)}"
                )
                if bad is None:
                    raise ValueError(f"select: {reason}") from error
                bad.update(dict.fromkeys(range(begin, end), reason))
                stored = np.zeros((end - begin, *self._data.shape[1:]), self._data.dtype)
            stored = stored.astype(stored.dtype.newbyteorder("="), copy=False)
            yield stored if self._convert is None else self._convert(stored)

    def whole(self) -> Any:
        size = max(1, _BLOCK_BYTES // max(1, self._data.dtype.itemsize * max(1, self.dims)))
        convert, self._convert = self._convert, None
        try:
            parts = list(self.chunks(size)) or [np.zeros(self._data.shape, self._data.dtype)]
        finally:
            self._convert = convert
        array = np.concatenate(parts)
        return array if self._finish is None else self._finish(array)

    def embeddings(self) -> Any:
        if not self.rows or not self.dims:
            return self.whole()
        return Blocks((self.rows, self.dims), np.dtype(next(self.chunks(1, 0, 1)).dtype).name, self.chunks)

    def narrowed(self) -> HdfColumn:
        """Return the column, float64 as float32: what is beyond its range is inf, which is refused with its row."""
        if self._data.dtype.name == "float64" and self._convert is None:
            self._convert = self._finish = lambda array: HOST.float32(array, "float64")
        return self

    def where(self, row: int) -> str:
        return f"row {row} of {self._name} in {self.path}"

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        files = [self._owner.place.identity(full, known)]
        return {"path": str(self.path), "tensor": self._name, "files": files}
