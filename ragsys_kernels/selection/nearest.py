"""Which earlier pick or initial item each pick is most similar to: read off the picks, whichever kernel made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._base import arrays
from .._base.arrays import HOST, Place
from .filters import arange, library_of_array
from .problem import Problem, Rows, Selection
from .rules.pool import given_row

# What the picks of some queries take at a time, in float64.
_BLOCK_BYTES = 1 << 26


def nearest_of(problem: Problem, picks: Selection, place: Place) -> Any:
    """Return `Selection.nearest`, (Q, K) int32: O(Q K (K + S) D) time, with S initial items.

    Similarities are sums in float64, rounded to float32: equal rows tie, in any batch and on any device.
    """
    indices = picks.indices
    x, initial = library_of_array(indices), problem.constraints.initial
    taken = indices if initial is None else x.concatenate([place.int64(initial), indices], 1)
    taken = x.where((taken >= 0) & (taken < problem.num_ids), taken, -1)
    num_queries, most = taken.shape
    found = arrays.full(indices, tuple(indices.shape), -1, "int32")
    width = problem.rows.dims if problem.rows.similarity is None else most
    step = max(1, _BLOCK_BYTES // (8 * most * width))
    with np.errstate(over="ignore"):  # a rule without products of picks may have rows whose products are inf
        for begin in range(0, num_queries, step):
            part = slice(begin, begin + step)
            to_earlier = _similarities(problem, begin, taken[part], place)
            found[part] = nearest_earlier(taken[part], most - indices.shape[1], to_earlier)[0]
    return found


def nearest_earlier(taken: Any, shown: int, to_earlier: Callable[[int], Any]) -> tuple[Any, Any]:
    """Return what is nearest to each item in ``taken`` (q, shown + K) after those that were shown, and its similarity.

    Parameters
    ----------
    taken
        Items in the order in which they count; -1: none.
    to_earlier
        Returns the similarities (q, column) of the items in a column to those before it.

    Returns
    -------
    (q, K) int32, (q, K) float32
        As `Selection.nearest`; -inf where there is none.
    """
    x, shape = library_of_array(taken), (len(taken), taken.shape[1] - shown)
    nearest, largest = arrays.full(taken, shape, -1, "int32"), arrays.full(taken, shape, -np.inf, "float32")
    for column in range(max(1, shown), taken.shape[1]):
        alike = x.asarray(to_earlier(column), dtype=x.float32)
        real = (taken[:, :column] >= 0) & (taken[:, column : column + 1] >= 0) & (alike == alike)
        alike = x.where(real, alike, -np.inf)
        at = alike.argmax(1)  # the first of the largest
        largest[:, column - shown] = x.amax(alike, 1)
        nearest[:, column - shown] = x.where(real.any(1), x.where(at < shown, -2 - at, at - shown), -1)
    return nearest, largest


def _similarities(problem: Problem, begin: int, taken: Any, place: Place) -> Callable[[int], Any]:
    """Return a function of a column: the similarities (q, column) of what stands there to all before it."""
    x, rows = library_of_array(taken), problem.rows
    queries = arange(x, len(taken), taken)[:, None]
    at = x.where(taken >= 0, taken, 0)
    if rows.similarity is None:
        vectors = _vectors(rows, at + (queries + begin) * problem.pool_stride, place)
        return lambda column: x.einsum("qd,qtd->qt", vectors[:, column], vectors[:, :column])
    if hasattr(rows.similarity, "of"):
        pairs, at = _called(problem, begin, taken), np.broadcast_to(np.arange(taken.shape[1]), taken.shape)
    else:
        pairs = rows.similarity[begin : begin + len(taken)]
    return lambda column: pairs[queries, at[:, :column], at[:, column : column + 1]]


def _vectors(rows: Rows, at: Any, place: Place) -> Any:
    """Return the vectors of the formulas of some rows, float64, in their place."""
    if place is HOST:
        return rows.vectors(at)
    vectors = place.float64(rows.data[at], rows.dtype)
    if rows.norm == "scaled":
        return vectors * rows.scales[at][..., None]
    if rows.norm == "computed":
        norms = (vectors * vectors).sum(-1)[..., None] ** 0.5
        return vectors / library_of_array(at).where(norms > 0, norms, 1.0)
    return vectors


def _called(problem: Problem, begin: int, taken: np.ndarray) -> np.ndarray:
    """Return what a function says of the items that some queries have taken, of later ones to earlier: (q, T, T)."""
    found = np.full((*taken.shape, taken.shape[1]), -np.inf)
    for q, items in enumerate(taken):
        real = np.flatnonzero(items >= 0)
        for place, column in enumerate(real[:-1].tolist(), 1):
            later = real[place:]
            found[q, column, later] = given_row(problem, begin + q, items[later], int(items[column]))
    return found
