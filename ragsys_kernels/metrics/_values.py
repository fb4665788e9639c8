"""Arguments of metrics: arrays of numbers, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _arrays
from .._checks import shown

Array = npt.NDArray[Any]


def array(op: str, name: str, values: Any, kinds: str, rule: str) -> Array:
    """Return an array of these kinds of dtype, given as one of any library on the host."""
    view, dtype = _arrays.host_view(op, name, values)
    result = np.asarray(view)  # rows of a matrix are matrices
    if dtype == "bfloat16":
        result = _arrays.widen(result, dtype)
    if result.dtype.kind not in kinds or (kinds == "iu" and dtype == "uint64"):  # which may hold what int64 does not
        raise TypeError(f"{op}: {name} must be {rule}, got dtype {dtype}")
    return result


def number(op: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{op}: {name} must be within the range of float64, got {shown(value)}") from None


def matrix(op: str, name: str, values: Any) -> Array:
    rows = array(op, name, values, "f", "floating point")
    if rows.ndim != 2:
        raise ValueError(f"{op}: {name} must have two axes, got shape {rows.shape}")
    if rows.shape[1] == 0:
        raise ValueError(f"{op}: {name} must have at least one dimension, got shape {rows.shape}")
    rows = rows.astype(np.float64)
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise ValueError(f"{op}: {name} must be finite, got NaN or inf in row {int(np.argmax(bad))}")
    return rows


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
