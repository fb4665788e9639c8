"""Pools of a corpus's own exact search: what no row outside them exceeds, and pools that grow until they are proven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _dispatch
from .._base import arrays
from .._base.checks import shown
from ..selection.problem import SearchResult, Selection
from ..selection.request import Request

BACKENDS = ("auto", "cpu", "reference")

# The first pool, and by what each is larger than the one before, up to a share of the corpus.
_FIRST, _GROWTH, _SHARE = 100, 4, 1 / 8
# A larger pool is tried for a query that needs it to reach at most this many times as deep below the best v as its
# picks do; for another, selecting from the whole corpus takes less time than several pools.
_DEPTH = 2.0


def is_exact(corpus: Any, backend: str) -> bool:
    """Return whether the scores of a search are those by which picks are proven."""
    return corpus.device == "cpu" and _named(backend) in BACKENDS


def _named(backend: str) -> str:
    """Return the backend that is asked for, by the argument or the environment."""
    return _dispatch.wanted(backend, _dispatch.NAMES["selection"])[0]


def outside(found: SearchResult, num_rows: int, sizes: Any = None) -> Any:
    """Return an upper bound of v (Q,) over the rows outside pools: those found, or the first ``sizes`` (Q,) of them."""
    most = found.indices.shape[1]
    if sizes is None:
        return np.full(len(found.scores), -np.inf, np.float32) if most == num_rows else found.scores[:, -1]
    sizes = np.minimum(np.asarray(sizes), most)
    last = found.scores[np.arange(len(sizes)), sizes - 1]  # -inf if no more rows may be picked
    return np.where(sizes < num_rows, last, np.float32(-np.inf))


def of_all_rows(picks: Selection) -> None:
    """Say that picks are those of the whole corpus, which they are out of."""
    certified = np.ones(len(picks.lengths), bool)
    certified[list(picks.errors or ())] = False
    picks.certified = arrays.to_library(certified, arrays.library_of(picks.indices))


def _check(corpus: Any, request: Request, index: Any) -> None:
    """Refuse what no pool can be certified for."""
    op = "select"
    names = ("candidates", "relevance", "min_per_group")
    given = None if index is False else index
    for name, value in (*((name, getattr(request, name)) for name in names), ("index", given)):
        if value is not None:
            raise ValueError(f"{op}: pool 'certified' must come without {name}, got both")
    rules = (
        ("method", "'mmr'", request.op, ("mmr",)),
        ("metric", "'cosine'", corpus.metric, ("cosine",)),
        ("backend", " or ".join(map(repr, BACKENDS)), _named(request.backend), BACKENDS),
        ("a corpus on", "the host", corpus.device, ("cpu",)),
    )
    for name, rule, value, allowed in rules:
        if value not in allowed:
            of = f" of {_dispatch.VARIABLE}" if name == "backend" and request.backend == "auto" else ""
            raise ValueError(f"{op}: pool 'certified' must come with {name} {rule}, got {shown(value)}{of}")


def select(corpus: Any, request: Request, index: Any, call: Callable[..., Selection]) -> Selection:
    """Select out of pools that grow until all queries are certified, at last out of the whole corpus.

    ``call`` selects out of pools of one size: `retrieve.select`.
    """
    _check(corpus, request, index)
    most = np.asarray(arrays.to_host(request.k)).max(initial=1)
    pool = max(_FIRST, 2 * int(most))
    picks = call(corpus, request, min(pool, max(1, corpus.num_live)), False)
    library = arrays.library_of(picks.indices)
    # Not by `np.array`: some releases of torch warn of its copies.
    result = picks.mapped(lambda array: np.asarray(array).copy())
    needed, certified = result.pool_needed, result.certified
    errors = dict(picks.errors or {})
    waiting = np.setdiff1d(np.flatnonzero(~certified), list(errors))
    while waiting.size:
        pool *= _GROWTH
        larger = waiting[_near(result.relevance[waiting], needed[waiting])]
        if pool > _SHARE * corpus.num_live or not larger.size:
            larger = waiting[:0]
        for queries, size in ((larger, pool), (np.setdiff1d(waiting, larger), None)):
            if not queries.size:
                continue
            found = call(corpus, request.take(queries), size, False)
            for column, values in zip(result.columns, map(np.asarray, found.columns), strict=True):
                # Columns of padding are missing where the largest k is another query's.
                column[queries, : values.shape[1]] = values
            result.lengths[queries] = found.lengths
            if result.cost is not None:
                result.cost[queries] = found.cost
            certified[queries] = found.certified
            needed[queries] = -np.inf if size is None else found.pool_needed
            errors.update({int(queries[q]): why for q, why in (found.errors or {}).items()})
        waiting = np.setdiff1d(larger[~certified[larger]], list(errors))
    result = result.mapped(lambda array: arrays.to_library(array, library))
    return result.with_errors(None if picks.errors is None else dict(sorted(errors.items())))


def _near(relevance: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """Return for which queries a pool that is some times as large may reach as deep as their picks need it."""
    best = relevance[:, 0]
    with np.errstate(invalid="ignore"):  # NaN: no picks, or no pool that certifies them
        return np.asarray(best - needed <= _DEPTH * (best - np.nanmin(relevance, axis=1, initial=np.inf)))
