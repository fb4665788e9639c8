"""Input files: one column of a ``.npy`` or ``.parquet`` file at a time, read in steps.

A column knows its number of rows, and for vectors their length, when it is opened, so that a job can check all its
inputs against each other before it starts. Errors name the file and the row in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Array = npt.NDArray[Any]
PathLike = str | os.PathLike[str]

# With these pyarrow reads a row group in pieces of a buffer (bytes), not whole: some files are one large row group.
_STREAMED: dict[str, Any] = {"buffer_size": 1 << 20, "pre_buffer": False}
_FLOATS = ("float32", "float16", "float64")
_INTEGERS = ("int64", "int32")


class Column(Protocol):
    """Rows of one kind: vectors, ids, numbers or candidate lists."""

    path: str | Path
    rows: int
    dims: int  # length of each row; 0 where rows are single values or lists of any length

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[Any]:
        """Yield rows `start` to `stop` in file order, `size` at a time (fewer in the last step)."""

    def whole(self) -> Any:
        """Return all rows; for the corpus, which has to fit."""

    def identity(self, full: bool = False) -> dict[str, Any]:
        """Return what tells this input from another: its files with size, time and a hash."""


def vectors(path: Path, argument: str, column: str | None = None) -> Column:
    """Open a file of vectors: ``.npy`` of rank 2, or a ``.parquet`` column of lists of floats."""
    if not _is_parquet(path, argument, column):
        return _NpyColumn(path, argument, rank=2, dtypes=("float32", "float16"))
    name, kind = _find_column(path, argument, column, "lists of floats", _is_float_list, ("embedding", "vector"))
    dims = kind.list_size if pa.types.is_fixed_size_list(kind) else _first_length(path, argument, name)
    dtype = np.dtype(np.float16 if kind.value_type == pa.float16() else np.float32)

    def convert(lists: pa.Array, start: int) -> Array:
        return _vectors_from_lists(lists, dims, dtype, start, argument, path)

    return _ParquetColumn(path, argument, name, convert, dims, dtype)


def candidates(file: PathLike | None, column: str | None = None) -> Column | None:
    """Open candidate rows: ``.npy`` of shape (Q, P), or a ``.parquet`` column of lists, padded with -1 where short."""
    if file is None:
        if column is not None:
            raise ValueError(f"select: candidate_column must come with candidates, got {column!r} alone")
        return None
    path = Path(file)
    if not _is_parquet(path, "candidates", column):
        return _NpyColumn(path, "candidates", rank=2, dtypes=("int32", "int64"))
    name, _ = _find_column(path, "candidates", column, "lists of integers", _is_int_list, ("candidates",))

    def convert(lists: pa.Array, start: int) -> Array:
        return _padded_from_lists(lists, start, path)

    return _ParquetColumn(path, "candidates", name, convert)


def ids(path: Path, argument: str, column: str | None = None) -> Column | None:
    """Open an id column; None if the file has none, and rows are known by their numbers."""
    if not _is_parquet(path, argument, column):
        return None
    with _reading(path, argument):
        names = pq.read_schema(path).names
    if column is None and "id" not in names:
        return None
    name, kind = _find_column(path, argument, column or "id", "single values", lambda t: not pa.types.is_nested(t))
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind

    def convert(values: pa.Array, start: int) -> pa.Array:
        _refuse_nulls(values, start, f"{argument}'s id column", path)
        return values.cast(plain)

    return _ParquetColumn(path, argument, name, convert)


def numbers(argument: str, kind: type, file: PathLike | None, column: str | None, owner: Path) -> Column | None:
    """Open one ``float`` or ``int`` a row: a ``.npy`` file of rank 1, or a column of the ``.parquet`` file `owner`."""
    if file is not None:
        path = Path(file)
        if column is not None:
            raise ValueError(f"select: {argument} must be a file or a column, got both {path} and {column!r}")
        if _is_parquet(path, argument):
            raise ValueError(f"select: {argument} must be a .npy file, or a column of the vectors' file, got {path}")
        return _NpyColumn(path, argument, rank=1, dtypes=_FLOATS if kind is float else _INTEGERS)
    if column is None:
        return None
    if not _is_parquet(owner, argument):
        raise ValueError(f"select: {argument} must be a .npy file where the vectors are one, got column {column!r}")
    what, accepts = ("floats", pa.types.is_floating) if kind is float else ("integers", pa.types.is_integer)
    name, _ = _find_column(owner, argument, column, what, accepts)

    def convert(values: pa.Array, start: int) -> Array:
        _refuse_nulls(values, start, argument, owner)
        return _numpy(values.cast(pa.float32() if kind is float else pa.int64()))

    return _ParquetColumn(owner, argument, name, convert)


class _NpyColumn:
    """A memory-mapped ``.npy`` file."""

    def __init__(self, path: Path, argument: str, rank: int, dtypes: Sequence[str]) -> None:
        self.path: str | Path = path
        try:
            array = np.lib.format.open_memmap(path, mode="r")
        except (ValueError, EOFError, SyntaxError) as error:
            raise ValueError(f"select: {argument} must be a complete .npy file, got {path}: {error}") from None
        if array.dtype not in [np.dtype(name) for name in dtypes]:
            raise ValueError(f"select: {argument} must be {' or '.join(dtypes)}, got {array.dtype} in {path}")
        if array.ndim != rank:
            raise ValueError(f"select: {argument} must be of rank {rank}, got shape {array.shape} in {path}")
        self.rows = array.shape[0]
        self.dims = array.shape[1] if rank == 2 else 0

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[Array]:
        end = self.rows if stop is None else stop
        for first in range(start, end, size):
            # A new map each time: its pages leave the process with it, a map that is kept grows to the whole file.
            yield np.array(np.lib.format.open_memmap(self.path, mode="r")[first : min(first + size, end)], order="C")

    def whole(self) -> Array:
        return np.lib.format.open_memmap(self.path, mode="r")

    def identity(self, full: bool = False) -> dict[str, Any]:
        return _identity(self.path, full)


class _ParquetColumn:
    """A column of a Parquet file, its values converted by `convert(values, first row)`."""

    def __init__(
        self,
        path: Path,
        argument: str,
        name: str,
        convert: Callable[[pa.Array, int], Any],
        dims: int = 0,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.path: str | Path = path
        self.dims = dims
        self._argument, self._name, self._convert, self._dtype = argument, name, convert, dtype
        with _reading(path, argument):
            self.rows = int(pq.read_metadata(path).num_rows)

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[Any]:
        end, first = self.rows if stop is None else stop, 0
        for values in self._arrays(size):
            if first >= end:
                return
            kept = values[max(0, start - first) : end - first]
            if len(kept):
                yield self._convert(kept, max(first, start))
            first += len(values)

    def identity(self, full: bool = False) -> dict[str, Any]:
        return {**_identity(self.path, full), "column": self._name}

    def whole(self) -> Any:
        if not self.dims:
            chunks = list(self.chunks(1 << 16))
            return np.concatenate(chunks) if isinstance(chunks[0], np.ndarray) else pa.chunked_array(chunks)
        array, start = np.empty((self.rows, self.dims), self._dtype), 0
        for chunk in self.chunks(1 << 14):
            array[start : start + len(chunk)] = chunk
            start += len(chunk)
        return array

    def _arrays(self, size: int) -> Iterator[pa.Array]:
        """Yield exactly `size` values at a time, wherever the file's row groups end."""
        pending: list[pa.Array] = []
        with _reading(self.path, self._argument), pq.ParquetFile(self.path, **_STREAMED) as file:
            for batch in file.iter_batches(batch_size=size, columns=[self._name]):
                pending.append(batch.column(0))
                if sum(map(len, pending)) < size:
                    continue
                values = pa.concat_arrays(pending)
                yield values[:size]
                pending = [values[size:]]
        if any(map(len, pending)):
            yield pa.concat_arrays(pending)


def _identity(path: str | Path, full: bool) -> dict[str, Any]:
    path = Path(path)
    state = path.stat()
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        samples = (0, state.st_size // 2, max(0, state.st_size - (1 << 20)))
        for place in range(0, state.st_size, 1 << 20) if full else samples:
            file.seek(place)
            digest.update(file.read(1 << 20))
    described = {"name": path.name, "size": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": digest.hexdigest()}
    return {"path": str(path.resolve()), "files": [described]}


@contextmanager
def _reading(path: str | Path, argument: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"select: {argument} must be a readable Parquet file, got {path}: {error}") from error


def _is_parquet(path: Path, argument: str, column: str | None = None) -> bool:
    """Say whether `path` is a Parquet file; refuse a missing file, another format, and a column name for a .npy."""
    if not path.is_file():
        raise FileNotFoundError(f"select: {argument} must be an existing file, got {path}")
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".parquet"):
        raise ValueError(f"select: {argument} must be a .npy or .parquet file, got {path}")
    if suffix == ".npy" and column is not None:
        raise ValueError(f"select: {argument} must be a .parquet file to have a column {column!r}, got {path}")
    return suffix == ".parquet"


def _find_column(
    path: Path,
    argument: str,
    column: str | None,
    what: str,
    accepts: Callable[[pa.DataType], bool],
    usual: Sequence[str] = (),
) -> tuple[str, pa.DataType]:
    """Find the column asked for, else the only one that fits, else the one that fits and has a usual name."""
    with _reading(path, argument):
        schema = pq.read_schema(path)
    if column is not None:
        if column not in schema.names:
            raise ValueError(f"select: {argument} must have a column {column!r}, got {schema.names} in {path}")
        kind = schema.field(column).type
        if not accepts(kind):
            raise ValueError(f"select: {argument} must hold {what} in column {column!r}, got {kind} in {path}")
        return column, kind
    fitting = [field.name for field in schema if accepts(field.type)]
    if len(fitting) > 1:
        fitting = [name for name in usual if name in fitting] or fitting
    if len(fitting) != 1:
        raise ValueError(
            f"select: {argument} must have one column of {what}, or it be named, "
            f"got {fitting or schema.names} in {path}"
        )
    return fitting[0], schema.field(fitting[0]).type


def _is_list(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _is_float_list(kind: pa.DataType) -> bool:
    return _is_list(kind) and bool(pa.types.is_floating(kind.value_type))


def _is_int_list(kind: pa.DataType) -> bool:
    return _is_list(kind) and bool(pa.types.is_integer(kind.value_type))


def _first_length(path: Path, argument: str, name: str) -> int:
    column = _ParquetColumn(path, argument, name, lambda lists, start: lists)
    first = next(column.chunks(1), None)
    if first is None:
        return 0
    _refuse_nulls(first, 0, argument, path)
    return len(first[0])


def _vectors_from_lists(
    lists: pa.Array, dims: int, dtype: np.dtype[Any], start: int, argument: str, path: Path
) -> Array:
    values = _flat(lists, start, argument, path)
    if not pa.types.is_fixed_size_list(lists.type):
        lengths = _numpy(lists.value_lengths())
        if (lengths != dims).any():
            row = int(np.argmax(lengths != dims))
            raise ValueError(
                f"select: {argument} must have {dims} values in each row as in the first, "
                f"got {lengths[row]} in row {start + row} of {path}"
            )
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is refused with its row
        return _numpy(values).reshape(len(lists), dims).astype(dtype, copy=False)


def _padded_from_lists(lists: pa.Array, start: int, path: Path) -> Array:
    values = _numpy(_flat(lists, start, "candidates", path).cast(pa.int64()))
    if pa.types.is_fixed_size_list(lists.type):
        return values.reshape(len(lists), lists.type.list_size)
    lengths = _numpy(lists.value_lengths())
    padded = np.full((len(lists), max(1, int(lengths.max(initial=0)))), -1, np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = values
    return padded


def _flat(lists: pa.Array, start: int, argument: str, path: Path) -> pa.Array:
    """Return the values of all lists, end to end; refuse a missing list and a missing value in one."""
    _refuse_nulls(lists, start, argument, path)
    values = lists.flatten()
    if values.null_count:
        row = next(row for row, item in enumerate(lists) if item.values.null_count)
        raise ValueError(f"select: {argument} must have no null values, got one in row {start + row} of {path}")
    return values


def _refuse_nulls(values: pa.Array, start: int, argument: str, path: Path) -> None:
    if values.null_count:
        row = start + int(np.argmax(_numpy(values.is_null())))
        raise ValueError(f"select: {argument} must have no null rows, got one in row {row} of {path}")


def _numpy(values: pa.Array) -> Array:
    array: Array = values.to_numpy(zero_copy_only=False)
    return array
