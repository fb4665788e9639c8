"""Rows of a `Corpus` in their storage type: normalised, rounded and checked block by block; its columns."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import _dispatch
from .._base import arrays as _arrays
from .._base import checks, env, times
from .._base.arrays import HOST, Host, Place, Torch
from .._base.extras import absent
from .._base.tables import holds_text
from ..selection import codes
from ..selection.problem import COLUMNS, divide, unit
from . import groups, torch_rows

# Bytes of a block of rows while they are normalised, in float64.
_BLOCK_BYTES = 1 << 24
# Of a part of them that a thread takes at a time, which stays in its cache.
_STEP_BYTES = 1 << 20

_FINITE = "embeddings must be finite, got NaN or inf in row {row}"
_WITHIN = "embeddings must be within the range of {dtype}, got a larger value in row {row}"


@dataclass(frozen=True)
class Blocks:
    """Embeddings on the host that `read` yields from the first row to the last, so many rows at a time."""

    shape: tuple[int, int]
    dtype: str
    read: Callable[[int], Iterator[np.ndarray]]


def as_is(op: str, embeddings: Any, place: Host | Torch) -> tuple[Any, str]:
    """Return embeddings (N, D) as they are given, and their element type."""
    if isinstance(embeddings, Blocks):
        return embeddings, embeddings.dtype
    array, dtype = checks.storage(op, "embeddings", embeddings, place, _arrays.BYTES)
    if dtype in _arrays.BYTES and isinstance(place, Torch):
        rule = "floating point on a device"
        raise TypeError(
            f"{op}: embeddings must be {rule}, got {dtype}; make the corpus on the host and use .to(device)"
        )
    if array.ndim != 2:
        raise ValueError(f"{op}: embeddings must have shape (N, D), got {checks.shape_text(array.shape)}")
    return array, dtype


def store(array: Any, given: str, metric: str, dtype: str, place: Host | Torch) -> tuple[Any, Any, float]:
    """Return rows in their storage type, their scales where this type has them, and the largest norm.

    ``array`` may be `Blocks` where the rows are held on the host.
    """
    if isinstance(place, Torch):
        scaled = _arrays.scaled(metric, dtype)
        data, scales, max_norm, not_finite, beyond = torch_rows.store(place, array, given, metric, dtype, scaled)
        for bad, rule in ((not_finite, _FINITE), (beyond, _WITHIN)):
            if bad.any():
                raise ValueError("Corpus: " + rule.format(row=int(np.argmax(bad)), dtype=dtype))
        return data, scales, max_norm
    if dtype == "binary":
        return _signs(array, given)
    num_rows, dims = array.shape
    cosine, exact = metric == "cosine", given == dtype == "int8"
    shared = not cosine and given == dtype and isinstance(array, np.ndarray) and array.flags.c_contiguous
    kind = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
    # A view of a map, which itself would be copied when it is pickled for other processes.
    data = np.asarray(array) if shared else _arrays.cache_aligned(num_rows, dims, kind)
    scales = np.ones(num_rows, np.float32) if _arrays.scaled(metric, dtype) else None
    compiled = not shared and given in (*_arrays.STORAGE, "float64") and _dispatch.why_not("cpu") is None

    def stored(begin: int, block: np.ndarray) -> float:
        """Store some rows, from the one of that number on; return the largest of their norms."""
        part = slice(begin, begin + len(block))
        if compiled and given != "float64":
            return _stored(begin, block, given, data[part], dtype, None if scales is None else scales[part], cosine)
        with np.errstate(over="ignore"):  # reported below
            rows = _arrays.widen(block, given)
        if not (finite := np.isfinite(rows).all(axis=1)).all():
            row = begin + int(np.argmin(finite))
            rule = _WITHIN if given == "float64" and np.isfinite(block[row - begin]).all() else _FINITE
            raise ValueError("Corpus: " + rule.format(row=row, dtype="float32"))
        if compiled:
            return _stored(begin, rows, "float32", data[part], dtype, None if scales is None else scales[part], cosine)
        vectors = unit(rows) if cosine else rows.astype(np.float64)
        if not shared:
            with np.errstate(over="ignore"):  # reported below
                data[part] = block if exact else _arrays.narrow(vectors.astype(np.float32), dtype)
            if cosine and scales is None:  # no element is larger than 1
                return 1.0
            held = _arrays.widen(data[part], dtype)
            if not (fits := np.isfinite(held).all(axis=1)).all():
                raise ValueError("Corpus: " + _WITHIN.format(row=begin + int(np.argmin(fits)), dtype=dtype))
            if scales is None:
                vectors = held.astype(np.float64)
            elif cosine:
                norms = np.linalg.norm(held.astype(np.float64), axis=1)
                scales[part] = divide(np.ones_like(norms), norms)
            elif not exact:
                scales[part] = np.abs(vectors).max(axis=1) / 127
        return 1.0 if cosine else float(np.linalg.norm(vectors, axis=1).max())

    max_norm, begin, step = 0.0, 0, max(1, _STEP_BYTES // (8 * dims))
    with ThreadPoolExecutor(env.num_threads()) as threads:
        for block in _blocks(array, max(1, _BLOCK_BYTES // (8 * dims))):
            steps = range(0, len(block), step)
            parts = [block[at : at + step] for at in steps]
            each = threads.map if len(parts) > 1 else map  # in their order: the first error is told
            norms = each(stored, [begin + at for at in steps], parts)
            max_norm = max(max_norm, *norms) if parts else max_norm
            begin += len(block)
    _expect_all(begin, num_rows)
    # Rounding to int8 lengthens a row by at most half a step in each of its D elements.
    return data, scales, max_norm * (1 + dims**0.5 / 254) if dtype == "int8" else max_norm


def _signs(array: Any, given: str) -> tuple[np.ndarray, None, float]:
    """Return what `store` does of packed signs, or the signs of floats."""
    num_rows, width = array.shape
    packed = given in _arrays.BYTES
    if not packed and width % 8:
        raise ValueError(f"Corpus: embeddings must have a multiple of 8 dimensions for dtype 'binary', got D = {width}")
    width = width if packed else width // 8
    data, begin = _arrays.cache_aligned(num_rows, width, np.dtype(np.uint8)), 0
    for block in _blocks(array, max(1, _BLOCK_BYTES // (64 * width))):
        if packed:
            data[begin : begin + len(block)] = _arrays.signs(np.asarray(block))
        else:
            if not (finite := np.isfinite(_arrays.widen(block, given)).all(axis=1)).all():
                raise ValueError("Corpus: " + _FINITE.format(row=begin + int(np.argmin(finite))))
            data[begin : begin + len(block)] = _arrays.narrow(_arrays.widen(block, given), "binary")
        begin += len(block)
    _expect_all(begin, num_rows)
    return data, None, 1.0


def _expect_all(read: int, num_rows: int) -> None:
    if read != num_rows:
        raise ValueError(f"Corpus: embeddings must keep their rows while they are read, got {read} of {num_rows}")


def _stored(
    begin: int, rows: np.ndarray, given: str, data: np.ndarray, dtype: str, scales: np.ndarray | None, cosine: bool
) -> float:
    """Store rows by the compiled kernel, in the way of `store`; ``begin`` is the number of the first."""
    if rows.strides[1] != rows.itemsize:
        rows = np.ascontiguousarray(rows)
    row, status, largest_norm = _dispatch.extension().store(
        rows, given, data, dtype, scales, cosine, _dispatch.isa_index()
    )
    if status:
        rule = _FINITE if status == 1 else _WITHIN
        raise ValueError("Corpus: " + rule.format(row=begin + row, dtype=dtype))
    return float(largest_norm)


def equal(
    array: np.ndarray,
    given: str,
    metric: str,
    data: np.ndarray,
    dtype: str,
    scales: np.ndarray | None,
    places: np.ndarray,
) -> np.ndarray:
    """Return which rows (N, D) ``data`` has at their places, bit by bit as `store` makes them; -1: nowhere."""
    if given in _arrays.STORAGE and given != "int8" and dtype != "binary" and _dispatch.why_not("cpu") is None:
        rows = array if array.strides[1] == array.itemsize else np.ascontiguousarray(array)
        isa = _dispatch.isa_index()
        found, row, status = _dispatch.extension().same(
            rows, given, data, dtype, scales, places, metric == "cosine", isa, env.num_threads()
        )
        if status:
            raise ValueError("Corpus: " + (_FINITE if status == 1 else _WITHIN).format(row=row, dtype=dtype))
        return np.asarray(found, bool)
    found, there = np.zeros(len(array), bool), np.flatnonzero(places >= 0)
    step = max(1, _STEP_BYTES // (8 * array.shape[1]))
    for rows in (there[begin : begin + step] for begin in range(0, len(there), step)):
        made, made_scales, _ = store(array[rows], given, metric, dtype, HOST)
        found[rows] = (made == data[places[rows]]).all(axis=1)
        if scales is not None:
            found[rows] &= made_scales == scales[places[rows]]
    return found


def _blocks(array: Any, size: int) -> Iterator[np.ndarray]:
    if isinstance(array, Blocks):
        return array.read(size)
    return (array[begin : begin + size] for begin in range(0, len(array), size))


def columns(op: str, given: dict[str, Any], num_rows: int, place: Place) -> dict[str, Any]:
    """Check what belongs to rows (`COLUMNS`), one value per row; ``group_names`` comes with groups."""
    found: dict[str, Any] = {}
    for name, x in given.items():
        if name == "groups":
            found["group_names"] = None
            if x is not None and holds_text(x):
                x, found["group_names"] = groups.read(op, x)
        found[name] = None if x is None else _column(op, name, x, num_rows, place)
    return found


def _column(op: str, name: str, x: Any, num_rows: int, place: Place) -> Any:
    read: Any = _READ[COLUMNS[name]]
    if name == "groups":
        read = partial(read, others=" or strings")
    try:
        array = read(op, name, times.seconds(x) if name == "time" else x, place)
    except TypeError as error:
        if name != "time":
            raise
        raise TypeError(f"{error}; np.array(times, 'datetime64[us]') makes one of times in UTC") from None
    if array.shape != (num_rows,):
        levels = "; give levels with the call of a selection" if name == "groups" and array.ndim == 2 else ""
        got = checks.shape_text(array.shape)
        raise ValueError(f"{op}: {name} must have shape (N,) = ({num_rows},), got {got}{levels}")
    if name == "bias" and not (finite := np.isfinite(_arrays.to_host(array))).all():
        raise ValueError(f"{op}: bias must be finite, got NaN or inf in row {int(np.argmin(finite))}")
    if name == "costs":
        host = _arrays.to_host(array)
        if (bad := ~(np.isfinite(host) & (host >= 0))).any():
            row = int(np.argmax(bad))
            raise ValueError(f"{op}: costs must be finite and at least 0, got {host[row]:g} in row {row}")
    if name == "time" and (bad := np.abs(host := _arrays.to_host(array)) > times.MOST).any():
        row = int(np.argmax(bad))
        got = f"{host[row]:g}{times.likely_unit(host[row])}"
        raise ValueError(f"{op}: time must be {times.RULE}, or NaN for none, got {got} in row {row}")
    return array


_READ = {"float32": checks.floats, "int64": checks.integers, "float64": checks.doubles}


def place_of(op: str, device: str) -> Host | Torch:
    """Return the place of the rows, or raise the reason that they cannot be there."""
    if isinstance(device, str) and device == "cpu":
        return HOST
    if not isinstance(device, str) or not re.fullmatch(r"cuda(:\d+)?", device):
        got = checks.shown(device)
        raise ValueError(f"{op}: device must be None, 'cpu', 'cuda' or 'cuda:<number>', got {got}")
    try:
        place = Torch(device)
        place.torch.empty(0, device=place.device)
        return place
    except ModuleNotFoundError:
        reason = absent("torch", "cuda")
    except (RuntimeError, AssertionError) as error:  # torch asserts that it is built with CUDA
        reason = f"{error}; a GPU needs NVIDIA's driver and a build of torch with CUDA: without them leave device out"
    raise _dispatch.BackendUnavailableError(f"{op}: device must be one of this machine, got {device!r}: {reason}")


def check_type(op: str, dtype: str, metric: str, place: Place) -> None:
    """Refuse packed signs where there are no kernels for them."""
    if dtype != "binary":
        return
    if metric != "cosine":
        raise ValueError(f"{op}: metric must be 'cosine' with dtype 'binary', got {metric!r}")
    if not isinstance(place, Host):
        raise _dispatch.BackendUnavailableError(
            f"{op}: dtype 'binary' must stay on the host, as no kernel of a device takes it"
        )


def lies_on(rows: Any, place: Place) -> bool:
    """Return whether the rows are in that place already."""
    here = isinstance(rows.data, np.ndarray)
    return here if isinstance(place, Host) else not here and rows.data.device == place.device


def encoded(place: Place, data: Any, dtype: str, metric: str, scales: Any) -> tuple[Any, float]:
    """Return the 8-bit codes of rows, and their largest error; none on a device, whose kernels have no use for them."""
    return codes.encode(data, dtype, metric, scales) if isinstance(place, Host) else (None, 0.0)


def moved(rows: Any, place: Place, names: Iterable[str]) -> Any:
    """Return a copy of a corpus in another place. Its arrays of these names move; the host makes codes again."""
    names = [name for name in names if name != "codes" and getattr(rows, name) is not None]
    arrays = {name: _arrays.to_host(getattr(rows, name)) for name in names}
    if isinstance(place, Torch):
        for name, array in arrays.items():
            arrays[name] = _arrays.tensor(array, rows.dtype if name == "data" else "").to(place.device)
    made, error = encoded(place, arrays["data"], rows.dtype, rows.metric, arrays.get("scales"))
    return _arrays.changed(rows, **arrays, codes=made, code_error=error)


def with_columns(op: str, rows: Any, given: dict[str, Any], place: Host | Torch) -> Any:
    """Return the same rows with other columns, where these are given."""
    other = copy.copy(rows)
    given = {name: values for name, values in given.items() if values is not None}
    for name, values in given.items():
        checks.same_device(op, {name: values, "the corpus": rows.data})
    for name, values in columns(op, given, len(rows), place).items():
        object.__setattr__(other, name, values)
    return other
