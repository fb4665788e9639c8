"""Arguments of metrics: arrays of numbers, and rows that are picked, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._base import arrays
from .._base.types import NDArray as Array
from ..selection.problem import Rows, compacted


def array(op: str, name: str, values: Any, kinds: str, rule: str) -> Array:
    """Return an array of these kinds of dtype, given as one of any library on the host."""
    return _widened(*_stored(op, name, values, kinds, rule))


def _stored(op: str, name: str, values: Any, kinds: str, rule: str) -> tuple[Array, str]:
    """Return an array as it is stored, and its element type."""
    view, dtype = arrays.host_view(op, name, values)
    result = np.asarray(view)  # rows of a matrix are matrices
    kind = "f" if dtype == "bfloat16" else result.dtype.kind
    if kind not in kinds or (kinds == "iu" and dtype == "uint64"):  # which may hold what int64 does not
        raise TypeError(f"{op}: {name} must be {rule}, got dtype {dtype}")
    return result, dtype


def _widened(stored: Array, dtype: str) -> Array:
    return arrays.widen(stored, dtype) if dtype == "bfloat16" else stored


def matrix(op: str, name: str, values: Any) -> Array:
    """Return all rows of a matrix, or of a corpus, in float64."""
    _, vectors = _rows(op, name, values)
    return _finite(op, name, vectors(slice(None)))


def picked(op: str, embeddings: Any, indices: Any) -> tuple[Array, Array]:
    """Return the rows that are picked in float64, and the picks as places among these."""
    size, vectors = _rows(op, "embeddings", embeddings)
    picks = ids(op, indices)
    within(op, picks, size)
    rows, places = compacted(picks)
    return _finite(op, "embeddings", vectors(rows), rows), places


def _rows(op: str, name: str, values: Any) -> tuple[int, Callable[[Array | slice], Array]]:
    """Return the number of rows, and what reads some of them in float64: those of a large corpus need not be copied."""
    if isinstance(values, Rows):
        if (device := arrays.device_of(values.data)) != "cpu":
            raise ValueError(f"{op}: {name} must be on the host, got a corpus on {device}")
        return len(values.data), values.vectors
    stored, dtype = _stored(op, name, values, "f", "floating point")
    if stored.ndim != 2:
        raise ValueError(f"{op}: {name} must have two axes, got shape {stored.shape}")
    if stored.shape[1] == 0:
        raise ValueError(f"{op}: {name} must have at least one dimension, got shape {stored.shape}")
    return len(stored), lambda rows: _widened(stored[rows], dtype).astype(np.float64)


def _finite(op: str, name: str, vectors: Array, rows: Array | None = None) -> Array:
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        first = int(np.argmax(bad))
        row = first if rows is None else rows[first]
        raise ValueError(f"{op}: {name} must be finite, got NaN or inf in row {row}")
    return vectors


def ids(op: str, indices: Any) -> Array:
    rows = array(op, "indices", indices, "iu", "integers")
    if rows.ndim != 2:
        raise ValueError(f"{op}: indices must be of shape (Q, K), got {rows.shape}")
    return rows.astype(np.int64)


def within(op: str, ids: Array, size: int) -> None:
    bad = (ids < -1) | (ids >= size)
    if bad.any():
        raise ValueError(f"{op}: indices must be from -1 to {size - 1}, got {first(ids, bad)}")


def first(values: Array, bad: Array) -> Any:
    return values[bad].flat[0]
