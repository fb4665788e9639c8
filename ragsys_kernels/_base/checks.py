"""Checks of single arguments, and the wording of every error: ``<op>: <argument> must <rule>, got <value>``."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection
from datetime import date, timedelta
from typing import Any

import numpy as np

from . import arrays as _arrays
from . import env
from .arrays import HOST, Place
from .tables import holds_text, padded
from .warn import warn

# Types of which NumPy has one object each.
_FLOAT32, _INT64 = np.dtype(np.float32), np.dtype(np.int64)


class ConversionWarning(UserWarning):
    """Embeddings are copied in each call: from float64, which is not stored, to float32, or into the order of rows."""


def counted(number: int, one: str, more: str = "") -> str:
    """Return a number of things: ``1 row``, ``2 rows``; ``more`` is the plural that has more than an s."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as errors write it, ``(3,)`` or ``(3, 4)``."""
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def shown(value: Any) -> str:
    """Return what an error says it got: the value if it is short, else its type."""
    if isinstance(value, (np.datetime64, np.timedelta64, date, timedelta)):
        return str(value)
    scalar = value is None or isinstance(value, (str, float, bool, np.generic)) or (type(value) is int)
    if not scalar or (type(value) is int and value.bit_length() > 512):  # Python refuses to print the longest ones
        return type(value).__name__
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 200 else f"{text[:200]}.."


def line(message: object) -> str:
    """Return the words of an error, of a library that may write several lines, as one line."""
    return " ".join(str(message).split())


def count(op: str, name: str, value: Any) -> int:
    """Check a whole number of at least 1."""
    if type(value) is int and 1 <= value < 2**63:  # the common case first
        return value
    number = whole(op, name, value)
    if number < 1:
        raise ValueError(f"{op}: {name} must be at least 1, got {shown(value)}")
    return number


def whole(op: str, name: str, value: Any, rule: str = "an integer") -> int:
    """Check a whole number that fits in 64 bits; True and False, which Python counts as such, are none."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{op}: {name} must be {rule}, got {bool(value)}")
    try:
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: from tensors
        raise TypeError(f"{op}: {name} must be {rule}, got {type(value).__name__}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{op}: {name} must be a number of 64 bits, got one of {number.bit_length()}")
    return number


def number(op: str, name: str, value: Any) -> float:
    """Return a number as a float."""
    of_time = isinstance(value, np.timedelta64)  # an integer to NumPy
    if of_time or isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{op}: {name} must be within the range of float64, got {shown(value)}") from None


def choice(op: str, name: str, value: Any, allowed: Collection[str]) -> str:
    """Check one of the allowed names."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{op}: {name} must be one of {', '.join(map(repr, allowed))}, got {shown(value)}")
    return str(value)


def size(op: str, name: str, value: Any) -> int:
    """Return a number of bytes, given as one or as text such as "2G": powers of 1,024."""
    if not isinstance(value, str):
        return count(op, name, value)
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMGT]?)(?:I?B)?", value.strip().upper())
    number = 0 if found is None else int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))
    if number < 1:
        raise ValueError(f"{op}: {name} must be a number of bytes, such as 2G, got {shown(value)}")
    return number


def flag(op: str, name: str, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError(f"{op}: {name} must be True or False, got {shown(value)}")


def function(op: str, name: str, value: Any) -> Any:
    """Return a function that is called back, or None."""
    if value is None or callable(value):
        return value
    raise TypeError(f"{op}: {name} must be a function, got {shown(value)}")


def check_values(op: str, value: Any) -> bool:
    if value is None or isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError(f"{op}: check_values must be None, True or False, got {shown(value)}")


def threads(op: str, num_threads: Any) -> int:
    return env.num_threads() if num_threads is None else min(count(op, "num_threads", num_threads), env.MOST_THREADS)


def skipped(op: str, on_error: Any) -> dict[int, str] | None:
    """Return the dictionary that takes the errors of single queries, or None where they are raised."""
    return {} if choice(op, "on_error", on_error, ("raise", "skip")) == "skip" else None


def floats(op: str, name: str, x: Any, place: Place = HOST, more: tuple[str, ...] = ()) -> Any:
    """Return a floating-point array of any type, or one of ``more``, as contiguous float32."""
    if type(x) is np.ndarray and x.dtype is _FLOAT32 and x.flags.carray and place is HOST:  # the common case first
        return x
    array, dtype = place.view(op, name, x)
    if dtype == "float32":
        return place.packed(array) if array.ndim else array
    if "float" not in dtype and dtype not in more:
        raise TypeError(f"{op}: {name} must be floating point, got {dtype}")
    return place.float32(array, dtype)


def doubles(op: str, name: str, x: Any, place: Place = HOST) -> Any:
    """Return an array of numbers of any type as contiguous float64."""
    array, dtype = place.view(op, name, x)
    if "float" not in dtype and "int" not in dtype:
        raise TypeError(f"{op}: {name} must be numbers, got {dtype}")
    return place.float64(array, dtype)


def integers(op: str, name: str, x: Any, place: Place = HOST, others: str = "") -> Any:
    """Return an integer array of any type as contiguous int64; ``others`` says what else the caller takes."""
    array, dtype = place.view(op, name, x)
    if "int" not in dtype or dtype == "uint64":
        raise TypeError(f"{op}: {name} must be integers{others}, got {dtype}")
    return place.int64(array)


def ids(op: str, name: str, x: Any, num_queries: int | None, place: Place = HOST) -> Any:
    """Return ids (Q, P), int32 or int64, as they are but contiguous; lists of unequal lengths are padded."""
    if type(x) is np.ndarray and x.dtype is _INT64 and x.flags.carray and place is HOST:  # the common case first
        array = x
    else:
        array, dtype = place.view(op, name, padded(x))
        if dtype not in ("int32", "int64"):
            raise TypeError(f"{op}: {name} must be int32 or int64, got {dtype}")
        array = place.packed(array)
    rows = "Q" if num_queries is None else str(num_queries)
    if array.ndim != 2 or (num_queries is not None and array.shape[0] != num_queries):
        raise ValueError(f"{op}: {name} must have shape ({rows}, any), got {shape_text(array.shape)}")
    return array


def storage(op: str, name: str, x: Any, place: Place = HOST, more: tuple[str, ...] = ()) -> tuple[Any, str]:
    """Return embeddings without copying them, and their element type, also one of ``more``; float64, which the caller
    converts, warns."""
    array, dtype = place.view(op, name, x)
    if dtype not in (*_arrays.STORAGE, "float64", *more):
        *others, last = *_arrays.STORAGE, *more
        signs = "; packed signs go into Corpus(dtype='binary')" if dtype == "uint8" else ""
        raise TypeError(
            f"{op}: {name} must be {', '.join(others)} or {last}, got {dtype}; convert it once with .astype('float32')"
            f"{signs}"
        )
    if array.ndim < 2 or 0 in array.shape[-2:]:
        raise ValueError(
            f"{op}: {name} must have at least one row and one dimension, got shape {shape_text(array.shape)}"
        )
    if not place.is_native(array):
        raise ValueError(f"{op}: {name} must be aligned and in native byte order; copy it once with np.array")
    if dtype == "float64":
        warn(f"{op}: {name} are float64 and are converted to float32; pass float32 to spare that", ConversionWarning)
    return array, dtype


def _disorder(array: Any, place: Place) -> str:
    """Return what the rows of a matrix lack for the kernels to read them where they are; an empty string: nothing."""
    strides, itemsize = place.strides(array), array.dtype.itemsize
    rows, columns = array.shape
    if not rows:
        return ""
    if columns > 1 and strides[1] != itemsize:
        return "a contiguous last axis"
    odd = strides[0] % itemsize or (rows > 1 and strides[0] < 0)
    return "rows in the order of memory, whole elements apart" if odd else ""


def rows_in_order(op: str, name: str, array: Any, place: Place = HOST) -> None:
    """Refuse a matrix whose rows the kernels cannot read where they are."""
    if rule := _disorder(array, place):
        strides = place.strides(array)
        raise ValueError(
            f"{op}: {name} must have {rule}, got strides {strides}; copy it once with np.ascontiguousarray"
        )


def in_rows(op: str, name: str, array: Any, place: Place = HOST) -> Any:
    """Return an array whose rows the kernels can read where they are: a copy, with a warning, where they cannot."""
    if not _disorder(array, place) if array.ndim == 2 else place.is_packed(array):
        return array
    got = f"strides {place.strides(array)}"
    warn(f"{op}: {name} have {got} and are copied; pass rows that are contiguous to spare that", ConversionWarning)
    return place.packed(array)


def per_query(
    op: str,
    name: str,
    x: Any,
    num_queries: int,
    low: float,
    high: float,
    place: Place = HOST,
    errors: dict[int, str] | None = None,
    unread: Any = None,
) -> Any:
    """Return a number, or one per query, in [low, high], as (Q,) float32; values on a device are not checked.

    With ``errors``, a query whose own number is out of range is put there and gets ``high`` instead. ``unread``: what
    to return for a number that nothing reads.
    """
    if type(x) is float or (isinstance(x, (float, int)) and not isinstance(x, bool)):  # the common case first
        if not low <= x <= high:
            raise ValueError(f"{op}: {name} must be {_within(low, high)}, got {shown(x)}")
        x = x if type(x) is float else number(op, name, x)
        return place.filled(num_queries, x) if unread is None else unread
    if x is None or isinstance(x, str):
        raise TypeError(f"{op}: {name} must be a number or a float array of shape (Q,), got {shown(x)}")
    if place is not HOST and _arrays.device_of(x) != "cpu":
        on_device = floats(op, name, x, place)
        expect_shape(op, name, on_device, ((num_queries,), "(Q,)"))
        return on_device
    array = np.asarray(_arrays.host_view(op, name, x)[0])
    if array.dtype.kind not in "fiu" or (array.dtype == np.uint16):
        raise TypeError(f"{op}: {name} must be a number or a float array of shape (Q,), got {array.dtype}")
    good = (array >= low) & (array <= high)
    array = one_or_each(op, name, array, good, num_queries, _within(low, high), high, errors)
    return place.upload(np.array(array, np.float32))


def _within(low: float, high: float) -> str:
    widest = high == np.finfo(np.float32).max
    return "within the range of float32" if widest else f"within [{low:g}, {high:g}]"


def one_or_each(
    op: str,
    name: str,
    array: np.ndarray,
    good: np.ndarray,
    num_queries: int,
    rule: str,
    instead: float,
    errors: dict[int, str] | None,
) -> np.ndarray:
    """Return one number, or one per query, as (Q,), or raise where it is not good.

    With ``errors``, a query whose own number is bad is put there and gets ``instead``.
    """
    if array.shape not in ((), (num_queries,)):
        raise ValueError(f"{op}: {name} must be a number or have shape ({num_queries},), got {shape_text(array.shape)}")
    if not good.all():
        if errors is None or array.shape == ():
            raise ValueError(f"{op}: {name} must be {rule}, got {array[~good].flat[0]:g}")
        for q in np.flatnonzero(~good).tolist():
            errors.setdefault(q, f"{op}: {name} must be {rule}, got {array[q]:g}")
        array = np.where(good, array, instead)
    return np.broadcast_to(array, (num_queries,))


def good_values(
    op: str, name: str, values: np.ndarray, good: np.ndarray, rule: str, errors: dict[int, str] | None
) -> None:
    """Raise for the first bad value of items (N,) or (Q, P), or for the first bad vector of (Q, P, D).

    With ``errors``, queries that have bad values of their own are put there instead.
    """

    def message(*at: int) -> str:
        got = f"{values[at]:g}" if good.ndim == values.ndim else "NaN or inf"
        return f"{op}: {name} must be {rule}, got {got}"

    if good.all():
        return
    if good.ndim == 1:
        row = int(np.argmin(good))
        raise ValueError(f"{message(row)} in row {row}")
    for q in np.flatnonzero(~good.all(axis=1)).tolist():
        position = int(np.argmin(good[q]))
        if errors is None:
            raise ValueError(f"{message(q, position)} in row {q}, position {position}")
        errors.setdefault(q, f"{message(q, position)} at position {position}")


def expect_shape(op: str, name: str, array: np.ndarray, *shapes: tuple[tuple[int, ...], str], hint: str = "") -> None:
    if not any(array.shape == shape for shape, _ in shapes):
        rule = " or ".join(f"{symbols} = {shape_text(shape)}" for shape, symbols in shapes)
        raise ValueError(f"{op}: {name} must have shape {rule}, got {shape_text(array.shape)}{hint}")


def library_and_device(op: str, arrays: dict[str, Any]) -> tuple[str, str]:
    """Return the library of the results, and the one device that all the arrays are on."""
    for x in arrays.values():  # the common case first
        if x is not None and type(x) is not np.ndarray:
            break
    else:
        return "numpy", "cpu"
    given = {name: x for name, x in arrays.items() if x is not None}
    return _arrays.library_of(*given.values()), same_device(op, given)


def same_device(op: str, arrays: dict[str, Any]) -> str:
    """Return the one device that all the arrays are on; strings are on none."""
    devices = {name: _arrays.device_of(x) for name, x in arrays.items() if x is not None and not holds_text(x)}
    if len(set(devices.values())) > 1:
        found = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"{op}: all arrays must be on one device, got {found}")
    return next(iter(devices.values()), "cpu")
