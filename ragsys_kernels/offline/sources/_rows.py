"""Rows as they are read: the first bad row is an error, or all bad rows are noted and left empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..._base import times
from ..._base.types import NDArray as Array


@dataclass(frozen=True)
class RowSource:
    """Where a chunk of rows comes from, and what happens to rows that cannot be used.

    ``where(row)`` says in words where a row of the column is. ``bad`` takes the reason of each unusable row; None makes
    the first one an error.
    """

    argument: str
    first: int
    where: Callable[[int], str]
    bad: dict[int, str] | None

    def refuse(self, unusable: Array, rule: str, got: str | Callable[[int], str]) -> None:
        """Raise for, or note, the rows of the chunk that the mask marks."""
        for row in np.flatnonzero(unusable).tolist():
            reason = f"{self.argument} must {rule}, got {got if isinstance(got, str) else got(row)}"
            if self.bad is None:
                raise ValueError(f"select: {reason} in {self.where(self.first + row)}")
            self.bad.setdefault(self.first + row, reason)


def span(rows: int, start: int, stop: int | None) -> tuple[int, int]:
    """Return these rows, all of which must exist."""
    stop = rows if stop is None else stop
    if not 0 <= start <= stop <= rows:
        raise ValueError(f"select: rows must be from 0 to {rows}, got {start} to {stop}")
    return start, stop


def vectors(lists: pa.Array, rows: RowSource, dims: int, rule: str, dtype: np.dtype[Any]) -> Array:
    """Return lists of floats as an array (rows, dims); zeros for the rows that cannot be used."""
    unusable, values, lengths = _checked(lists, rows)
    short = (lengths != dims) & ~unusable
    rows.refuse(short, rule, lambda row: str(lengths[row]))
    unusable |= short
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is refused with its row
        if not unusable.any():
            # A copy: what is read may be a map of the file, to be read here and to be left.
            return np.array(numpy(values).reshape(len(lists), dims), dtype)
        array = np.zeros((len(lists), dims), dtype)
        array[~unusable] = numpy(lists.filter(pa.array(~unusable)).flatten()).reshape(-1, dims)
    return array


def lists(arrays: pa.Array, rows: RowSource) -> tuple[Array, Array]:
    """Return the values of lists of integers or strings end to end, and the lengths, 0 of those that cannot be used."""
    unusable, values, lengths = _checked(arrays, rows)
    large = holding(_beyond_int64(values), lengths)
    rows.refuse(large, "be row numbers", "one above 2^63 - 1")
    unusable |= large
    values, lengths = _left(arrays, values, lengths, unusable)
    # A copy: what is read may be a map of the file, to be read here and to be left.
    return np.array(numpy(values.cast(pa.int64() if pa.types.is_integer(values.type) else pa.large_string()))), lengths


def scores(arrays: pa.Array, rows: RowSource) -> tuple[Array, Array]:
    """Return the numbers of lists end to end as float32, and the lengths, 0 of those that cannot be used."""
    unusable, values, lengths = _checked(arrays, rows)
    values, lengths = _left(arrays, values, lengths, unusable)
    with np.errstate(over="ignore"):  # seen as inf
        return np.array(numpy(values), np.float32), lengths


def vector_lists(arrays: pa.Array, rows: RowSource, dims: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the vectors (n, D) of lists of vectors end to end, and the lengths, 0 of those that cannot be used."""
    unusable, inner, lengths = _checked(arrays, rows)
    if pa.types.is_fixed_size_list(inner.type):
        sizes = np.full(len(inner), inner.type.list_size)
    else:
        sizes = np.array(numpy(inner.value_lengths().fill_null(0)))
    wrong = sizes != dims
    if inner.flatten().null_count:
        wrong |= np.array([each is None or None in each for each in inner.to_pylist()], bool)
    others = holding(wrong, lengths)
    rows.refuse(others, f"hold vectors of the queries' {dims} dimensions, without nulls", "another")
    unusable |= others
    inner, lengths = _left(arrays, inner, lengths, unusable)
    return np.array(numpy(inner.flatten()), dtype).reshape(-1, dims), lengths


def numbers(values: pa.Array, rows: RowSource, kind: pa.DataType) -> Array:
    """Return single numbers as an array; 0 for the rows that cannot be used."""
    present(values, rows, rows.argument)
    large = _beyond_int64(values)
    rows.refuse(large, "be at most 2^63 - 1", lambda row: str(values[row]))
    return np.array(numpy(values.cast(kind, safe=not large.any()).fill_null(0)))


def seconds(values: pa.Array) -> Array:
    """Return times, or numbers, as seconds since 1970 in float64; NaN where there is none."""
    found = times.seconds(numpy(values))
    return np.array(found, np.float64)


def present(values: pa.Array, rows: RowSource, what: str) -> pa.Array:
    """Return the values; refuse missing ones."""
    if values.null_count:
        RowSource(what, rows.first, rows.where, rows.bad).refuse(numpy(values.is_null()), "have no null rows", "one")
    return values


def numpy(values: pa.Array) -> Array:
    array: Array = values.to_numpy(zero_copy_only=False)
    return array


def _checked(lists: pa.Array, rows: RowSource) -> tuple[Array, pa.Array, Array]:
    """Return which lists are missing or miss a value, the values of all lists end to end, and the lists' lengths."""
    present(lists, rows, rows.argument)
    unusable = np.array(numpy(lists.is_null()))
    values = lists.flatten()
    if pa.types.is_fixed_size_list(lists.type):
        lengths = np.where(unusable, 0, lists.type.list_size)
    else:
        lengths = np.array(numpy(lists.value_lengths().fill_null(0)))
    if values.null_count:
        holed = holding(numpy(values.is_null()), lengths)
        rows.refuse(holed, "have no null values", "one")
        unusable |= holed
    return unusable, values, lengths


def _left(arrays: pa.Array, values: pa.Array, lengths: Array, unusable: Array) -> tuple[pa.Array, Array]:
    """Return the values of lists end to end, and their lengths, without those of the unusable, which are empty."""
    if not unusable.any():
        return values, lengths
    return arrays.filter(pa.array(~unusable)).flatten(), np.where(unusable, 0, lengths)


def holding(mask: Array, lengths: Array) -> Array:
    """Return which of the lists, whose values are end to end, have one that the mask marks."""
    found = np.zeros(len(lengths), bool)
    found[np.repeat(np.arange(len(lengths)), lengths)[mask]] = True
    return found


def _beyond_int64(values: pa.Array) -> Array:
    if not pa.types.is_uint64(values.type):
        return np.zeros(len(values), bool)
    return np.asarray(numpy(values.fill_null(0)) > np.iinfo(np.int64).max)
