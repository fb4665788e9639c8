"""Which rows queries may pick: ``allowed`` and ``exclude``, a mask or lists of rows.

In a pool an item that may not be picked becomes padding, before any kernel. A whole corpus has a `Filter`, which the
compiled kernels and the reference take; ``filtered_problems.py`` says what becomes of it elsewhere.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np

from .._base.arrays import Cupy, Host, Place, library_of
from .._base.checks import shape_text
from .._base.tables import padded

# Up to so many comparisons of ids with rows of lists are made at once; more are looked up among the sorted rows.
_COMPARISONS = 1 << 16


@dataclasses.dataclass(slots=True)
class Filter:
    """What queries may pick of N rows; each part that is not None restricts them further."""

    num_rows: int
    mask: Any = None  # (N,) or (Q, N) bool
    # Of a whole corpus ascending; what is outside [0, N) is padding.
    rows: Any = None  # (Q, M) int64, rows that may be picked
    exclude: Any = None  # (Q, M) int64, rows that may not be picked

    def take(self, queries: np.ndarray | slice) -> Filter:
        """Return the filter of some of the queries."""
        mask = self.mask if self.mask is None or self.mask.ndim == 1 else self.mask[queries]
        lists = (None if rows is None else rows[queries] for rows in (self.rows, self.exclude))
        return Filter(self.num_rows, mask, *lists)

    def and_also(self, other: Filter | None) -> Filter:
        """Return the filter of what both leave; this one has nothing but a mask."""
        if other is None:
            return self
        return Filter(
            self.num_rows, self.mask if other.mask is None else self.mask & other.mask, other.rows, other.exclude
        )

    @property
    def per_query(self) -> bool:
        """Return whether queries differ in what they may pick."""
        return self.rows is not None or self.exclude is not None or (self.mask is not None and self.mask.ndim == 2)

    def keeps(self, q: int, ids: np.ndarray) -> np.ndarray:
        """Return which of some rows query q may pick, on the host."""
        return np.asarray(self.take(slice(q, q + 1)).keep(np, ids[None])[0])

    def keep(self, library: Any, ids: Any) -> Any:
        """Return which ids (Q, P) the queries may pick, in a library's arrays; none that is out of range."""
        keep = (ids >= 0) & (ids < self.num_rows)
        if self.mask is not None:
            at = library.where(keep, ids, 0)
            if self.mask.ndim == 2:
                at = at + arange(library, len(ids), ids)[:, None] * self.num_rows
            keep = keep & self.mask.reshape(-1)[at]
        if self.rows is not None:
            keep = keep & self.among(library, ids, self.rows)
        if self.exclude is not None:
            keep = keep & ~self.among(library, ids, self.exclude)
        return keep

    def among(self, library: Any, ids: Any, rows: Any) -> Any:
        """Return which ids (Q, P) are among the rows (Q, M) of their query."""
        if len(rows) * ids.shape[1] * rows.shape[1] <= _COMPARISONS:
            return (ids[:, :, None] == rows[:, None, :]).any(2)
        step = self.num_rows + 1  # one number that no row has
        first = arange(library, len(rows), rows)[:, None] * step
        rows = library.where((rows >= 0) & (rows < self.num_rows), rows, self.num_rows)
        known, asked = (in_order(library, rows) + first).reshape(-1), ids + first
        # The last that is not above an id, of at least one. A device would be waited for by ``isin``.
        return known[library.searchsorted(known, asked, side="right") - 1] == asked


def read(
    op: str,
    allowed: Any,
    exclude: Any,
    num_queries: int,
    num_rows: int,
    place: Place,
    errors: dict[int, str] | None,
    ascending: bool,
) -> Filter:
    """Return the filter that two arguments describe, or raise the error that names the bad one.

    With ``errors``, a query whose own list has a row out of range is put there instead. ``ascending``: sort the lists.
    """
    library = module(place)
    found = Filter(num_rows)
    for name, given in (("allowed", allowed), ("exclude", exclude)):
        if given is None:
            continue
        array = _array(op, name, given, num_queries, num_rows, place)
        if str(array.dtype).removeprefix("torch.") == "bool":
            mask = array
        else:
            _check_range(op, name, array, num_rows, errors)
            if array.ndim == 2:
                array = in_order(library, array) if ascending else array
                found = dataclasses.replace(found, **{"rows" if name == "allowed" else name: array})
                continue
            mask = arange(library, num_rows + 1, array) < 0  # none
            mask[library.where((array >= 0) & (array < num_rows), array, num_rows)] = True
            mask = mask[:num_rows]
        mask = mask if name == "allowed" else ~mask
        found.mask = mask if found.mask is None else found.mask & mask
    if found.mask is not None:
        found.mask = place.packed(found.mask)
    return found


def restricted(found: Filter, candidates: Any, num_queries: int, place: Place) -> Any:
    """Return the candidates, of a dense pool its positions, with -1 in the place of those that may not be picked.

    Ids out of range stay, to be found as such.
    """
    library = module(place)
    if candidates is None:
        like = next(part for part in (found.mask, found.rows, found.exclude) if part is not None)
        candidates = arange(library, found.num_rows, like) + arange(library, num_queries, like)[:, None] * 0
    if isinstance(candidates, np.ndarray):
        candidates = np.asarray(candidates)  # of NumPy's own class: a matrix has other axes
    outside = (candidates < 0) | (candidates >= found.num_rows)
    return place.packed(library.where(outside | found.keep(library, candidates), candidates, -1))


def module(place: Place) -> Any:
    """Return the module of a place's arrays."""
    if isinstance(place, Host):
        return np
    return place.cupy if isinstance(place, Cupy) else place.torch


def library_of_array(array: Any) -> Any:
    return sys.modules[library_of(array)]


def arange(library: Any, n: int, like: Any, dtype: str = "int64") -> Any:
    """Return the numbers below n where an array is."""
    if library.__name__ == "torch":
        return library.arange(n, dtype=getattr(library, dtype), device=like.device)
    return library.arange(n, dtype=dtype)


def in_order(library: Any, rows: Any) -> Any:
    """Return the elements of each row in order."""
    return library.sort(rows, dim=-1).values if library.__name__ == "torch" else library.sort(rows, axis=-1)


def _array(op: str, name: str, given: Any, num_queries: int, num_rows: int, place: Place) -> Any:
    """Return a mask (N,) or (Q, N), or rows (M,) or (Q, M) int64."""
    array, dtype = place.view(op, name, padded(given))
    array = np.asarray(array) if isinstance(array, np.ndarray) else array  # as in `restricted`
    if 0 in array.shape:  # an empty list has no type
        array, dtype = place.int64(array), "int64"
    if dtype not in ("bool", "int32", "int64"):
        raise TypeError(f"{op}: {name} must be a mask of bool or rows of int32 or int64, got {dtype}")
    if dtype == "bool":
        right = tuple(array.shape) in ((num_rows,), (num_queries, num_rows))
        rule = f"({num_rows},) or ({num_queries}, {num_rows})"
    else:
        right = array.ndim == 1 or (array.ndim == 2 and array.shape[0] == num_queries)
        rule, array = f"(any,) or ({num_queries}, any)", place.int64(array)
    if not right:
        what = "a mask of shape" if dtype == "bool" else "rows of shape"
        raise ValueError(f"{op}: {name} must be {what} {rule}, got {shape_text(array.shape)}")
    return array


def _check_range(op: str, name: str, rows: Any, num_rows: int, errors: dict[int, str] | None) -> None:
    """Refuse rows out of range, on the host; on a device they are padding."""
    if not isinstance(rows, np.ndarray) or not (outside := (rows < -1) | (rows >= num_rows)).any():
        return
    bad = [-1] if rows.ndim == 1 else np.flatnonzero(outside.any(axis=1)).tolist()
    for q in bad:
        row = int(rows[outside][0] if q < 0 else rows[q][outside[q]][0])
        message = f"{op}: {name} must be -1 or rows below {num_rows}, got {row}"
        if q < 0 or errors is None:
            raise ValueError(message + (f" for query {q}" if q >= 0 else ""))
        errors.setdefault(q, message)
