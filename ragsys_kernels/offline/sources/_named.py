"""Arrays by name: the members of ``.npz`` files, and the data sets of HDF5 files, as ann-benchmarks has them."""

from __future__ import annotations

import shutil
import weakref
import zipfile
import zlib
from typing import IO, Any, Protocol

import numpy as np

from ..._base.checks import line
from ..._base.extras import needed
from ..._base.npy import HEADER, header
from ..._base.types import NDArray as Array
from ._place import Place, unnamed
from ._raw import ArrayColumn, RawColumn, native
from ._safetensors import Tensor

HDF5: tuple[str, ...] = (".hdf5", ".h5", ".hdf")
_BLOCK_BYTES = 1 << 24
_DAMAGE = (zipfile.BadZipFile, zlib.error, NotImplementedError, OSError, ValueError, EOFError, RuntimeError, KeyError)


class Arrays(Protocol):
    """A file of arrays by name."""

    place: Place
    kinds: dict[str, Tensor]

    def column(self, name: str, **options: Any) -> ArrayColumn:
        """Return an array's rows by its name; options as of `ArrayColumn`."""


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

        def unpack(file: IO[bytes]) -> None:
            with zipfile.ZipFile(self._file.path) as archive, archive.open(member) as packed:
                shutil.copyfileobj(packed, file, _BLOCK_BYTES)
            if file.tell() != end:
                raise ValueError(f"{member} has {file.tell()} bytes, not {end}")

        try:
            copy = unnamed(unpack)
        except _DAMAGE as error:
            raise self._damaged(error) from error
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
        self.place, self.argument, self._copy = place, argument, place.mapped()
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

    def column(self, name: str, **options: Any) -> HdfColumn:
        return HdfColumn(self, self._file[name], name=name, **options)


class HdfColumn(ArrayColumn):
    """The rows of a data set, read a block at a time."""

    def __init__(self, owner: Hdf, data: Any, **options: Any) -> None:
        super().__init__(owner.place, data.dtype.newbyteorder("="), tuple(data.shape), **options)
        self._owner, self._data = owner, data

    def _read(self, begin: int, end: int, bad: dict[int, str] | None) -> Array:
        try:
            return np.asarray(self._data[begin:end], self._dtype)
        except _DAMAGE as error:
            reason = (
                f"{self._owner.argument} must be readable, got {self.path}: rows {begin} to {end - 1} of {self._name} "
                f"cannot be read: {line(error)}"
            )
            if bad is None:
                raise ValueError(f"select: {reason}") from error
            bad.update(dict.fromkeys(range(begin, end), reason))
            return np.zeros((end - begin, *self._shape[1:]), self._dtype)

    def where(self, row: int) -> str:
        return f"row {row} of {self._name} in {self.path}"
