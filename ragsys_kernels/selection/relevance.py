"""Given relevance: on another scale, where that is asked for, and a look at its range.

A rule weighs relevance against similarity, which is a cosine. Scores of BM25 or logits of a reranker are tens of times
as large, and then every selection is top-k. Scaling is a pass before the kernels, the same for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from .._base.arrays import Place
from .._base.checks import choice, shown
from .._base.warn import warn
from .filters import library_of_array
from .parameters import SCALES
from .problem import Problem, Selection

# Relevance that spreads over more than this times the largest similarity is not weighed against it.
_MOST = 10.0
# Relevance that spreads over less than this share of what similarities to a pick spread over, by the weights of both,
# is looked at: wider relevance seldom leaves the picks as they are without it, and then by chance.
_LEAST = 1 / 10
# So many values of the first query tell whether to look at so many queries of a call, and items of each.
_VALUES, _QUERIES, _ITEMS = 16, 8, 32
# Of calls of one query whose relevance is narrow, so many are looked at, and then one in so many.
_ALL_LOOKS, _ONE_LOOK_IN, _looks = 16, 64, itertools.count()
# Rules whose value does not depend on the unit of relevance, and those without a weight of it in the problem.
_BY_ZSCORES, _UNWEIGHTED = ("dpp", "ssd"), ("vrsd", "sift", "mmr_path")
# Rules that take the similarity to picks itself, or sums of it, from relevance: any other may rank by narrow relevance.
_BY_SIMILARITY = ("mmr", "msd")
_CURE = "relevance_scale='minmax' puts it on the scale of similarity"


class RelevanceRangeWarning(UserWarning):
    """Relevance spreads so far that redundancy has no say, or so little that relevance has none, as where none is left
    by a short half-life; or it was to fall with the age, and no row has one."""


def check_scale(op: str, scale: Any, relevance: Any) -> None:
    """Refuse an unknown scale, and a scale without relevance."""
    choice(op, "relevance_scale", scale, SCALES)
    if relevance is None:
        raise ValueError(f"{op}: relevance_scale must come with relevance, got {shown(scale)} alone")


def scaled(relevance: Any, candidates: Any, live: Any, scale: str, place: Place) -> Any:
    """Return relevance on another scale, each query's by its own pool: (Q, P) float32 in and out, in one place.

    Sums run in the order of the pool in float64, so that a query's values are the same in any batch. What is no item of
    the pool, or not finite, stays as it is.

    Parameters
    ----------
    candidates : (Q, P) integers, optional
        Below 0: no item.
    live : (P,) bool, optional
        Rows of the whole corpus that are not deleted.
    """
    xp = library_of_array(relevance)
    values = place.float64(relevance, "float32")
    real = xp.isfinite(values)
    if candidates is not None:
        real = real & (candidates >= 0)
    elif live is not None:
        real = real & live
    if not all(relevance.shape):
        return relevance
    low = xp.amin(xp.where(real, values, np.inf), 1)[:, None]
    high = xp.amax(xp.where(real, values, -np.inf), 1)[:, None]
    apart = high > low
    if scale == "minmax":
        made = _over(xp, values - xp.where(apart, low, 0.0), xp.where(apart, high - low, 1.0))
    else:
        count = _total(xp, xp.where(real, xp.ones_like(values), 0.0))
        if scale == "zscore":
            centred = values - _total(xp, xp.where(real, values, 0.0)) / xp.where(count > 0, count, 1.0)
            variance = _total(xp, xp.where(real, centred * centred, 0.0)) / xp.where(count > 0, count, 1.0)
            made = _over(xp, centred, xp.sqrt(xp.where(apart, variance, 1.0)))
        else:
            made = _over(xp, _ranks(xp, xp.where(real, values, np.inf)), xp.where(apart, count - 1, 1.0))
    return place.float32(xp.where(real, xp.where(apart, made, 0.0), values), "float64")


def _over(xp: Any, values: Any, by: Any) -> Any:
    return xp.where(xp.isfinite(values), values, 0.0) / by


def _total(xp: Any, values: Any) -> Any:
    """Return the sums of rows (Q, 1), whose bits do not depend on zeros behind or between what is summed."""
    return xp.cumsum(values, 1)[:, -1:]


def _ranks(xp: Any, values: Any) -> Any:
    """Return how many values of a row are less than each, and half as many again as are equal to it."""
    along = getattr(xp, "take_along_axis", None) or xp.take_along_dim
    order = xp.argsort(values, 1)
    ordered = along(values, order, 1)
    steps = xp.cumsum(ordered[:, 1:] != ordered[:, :-1], 1)
    begins = (xp.cumsum(xp.ones_like(order), 0) - 1) * values.shape[1]  # of rows that stand end to end
    runs = xp.zeros_like(order)
    runs[:, 1:] = steps
    flat = (begins + runs).reshape(-1)  # ascending, equal where values of a row are
    first, last = (xp.searchsorted(flat, flat, side=side).reshape(values.shape) for side in ("left", "right"))
    ranks = (first + last - 1) / 2 - begins
    return along(ranks, xp.argsort(order, 1), 1)


def warn_range(problem: Problem) -> None:
    """Warn where relevance on the host spreads so far that redundancy has no say in the picks."""
    relevance, rows = problem.relevance, problem.rows
    if not isinstance(relevance, np.ndarray) or problem.op in _BY_ZSCORES or not relevance.size:
        return
    cosine = rows.metric == "cosine"
    most = 1.0 if cosine else rows.max_norm
    if most is None or (rows.similarity is not None and not cosine):  # nobody has looked at the rows, or there are none
        return
    most = _MOST * (most if cosine else most * most)
    # Padding included; rarely more than this is computed. NumPy's maximum takes longer.
    if relevance.item(relevance.argmax()) - relevance.item(relevance.argmin()) > most:
        wide = np.subtract(*_ends(relevance, _real(problem, slice(None)))) > most
        if problem.op not in _UNWEIGHTED:
            wide &= problem.lambda_d < 1
        if wide.any():
            top_k = "" if problem.op in _UNWEIGHTED else ", lambda_d=1 is top-k"
            warn(
                f"{problem.op}: relevance spreads over more than {_MOST:g} times the largest similarity, so that "
                f"redundancy has no say; {_CURE}{top_k}",
                RelevanceRangeWarning,
            )


def warn_narrow(problem: Problem, picks: Selection, select: Callable[[Problem], Selection]) -> None:
    """Warn where, but for the first, picks on the host are those without relevance, though it is not equal.

    Up to eight queries are looked at, if the first one's relevance is narrow. Where that of most is narrow beside their
    similarities, these are selected once more, with relevance that is nearly constant, in O(8 K P D) time. More than
    half of all that are looked at must keep their picks. Of calls of one query, which this would make twice as long,
    only the first few are looked at, and then one in 64.

    Parameters
    ----------
    picks : Selection
        Of the problem; queries without an answer have none.
    select
        Returns the picks of a problem as those were made.
    """
    rows, initial = problem.rows, problem.constraints.initial
    if (
        problem.op not in _BY_SIMILARITY
        or not isinstance(problem.relevance, np.ndarray)
        or rows.metric != "cosine"
        or hasattr(rows.similarity, "function")
        or (problem.k == 1 and initial is None)
        or not _first_is_narrow(problem)
        or (problem.num_queries == 1 and ((look := next(_looks)) >= _ALL_LOOKS and look % _ONE_LOOK_IN))
    ):
        return
    queries = np.arange(0, problem.num_queries, -(-problem.num_queries // _QUERIES))
    real = _real(problem, queries)
    high, low = _ends(problem.relevance[queries], real)
    least = np.array([_least(weight) for weight in problem.lambda_d[queries].tolist()])
    begun = initial is not None
    narrow = (low < high) & (high - low < least) & (picks.lengths[queries] > (0 if begun else 1))
    for at in np.flatnonzero(narrow).tolist():
        narrow[at] = high[at] - low[at] < least[at] * _similarities(problem, int(queries[at]), real[at])
    looked = queries[narrow]
    if 2 * len(looked) <= len(queries):
        return
    without = problem.take(looked)
    ids = np.arange(problem.pool) if problem.candidates is None else without.candidates
    # Reversed and a thousandth as wide, so that of items that are alike not the most relevant is picked again.
    level = low[narrow, None]
    level = level - (without.relevance - level) / 1024
    first = False if begun else ids == picks.indices[looked, :1]
    without.relevance = np.where(first, without.relevance, level).astype(np.float32)
    without.outside = None
    same = (select(without).indices == picks.indices[looked, : problem.k]).all(axis=1)
    if 2 * np.count_nonzero(same) > len(queries):
        warn(
            f"{problem.op}: relevance differs so little that, but for the first, the picks are those without it; "
            f"{_CURE}",
            RelevanceRangeWarning,
        )


def _first_is_narrow(problem: Problem) -> bool:
    """Return whether some values of the first query's relevance are close to each other."""
    if problem.constraints.query_groups is not None:
        high, low = _ends(problem.relevance[:1], _real(problem, slice(1)))
        return bool(high[0] - low[0] < _least(problem.lambda_d.item(0)))
    some = slice(None, None, -(-problem.pool // _VALUES))
    values = problem.relevance[0, some].tolist()
    if problem.candidates is not None:
        ids = problem.candidates[0, some].tolist()
        values = [value for value, each in zip(values, ids, strict=True) if each >= 0]
    elif (found := problem.constraints.filter) is not None:
        values = problem.relevance[0, some][found.keeps(0, np.arange(problem.pool)[some])].tolist()
    return not values or max(values) - min(values) < _least(problem.lambda_d.item(0))


def _least(weight: float) -> float:
    """Return what relevance of a weight has to spread over, beside similarities that spread over 1, to be no case.

    A weight below a half is no reason to warn.
    """
    return _LEAST * min(1.0, (1 - weight) / weight) if weight else 0.0


def _similarities(problem: Problem, q: int, real: np.ndarray) -> float:
    """Return over how much the similarities of some items of a query spread, to the one of most relevance.

    0 where two items or fewer leave no choice after the first.
    """
    some = np.flatnonzero(real)
    some = some[:: max(1, -(-len(some) // _ITEMS))]
    if len(some) < 2:
        return 0.0
    best = int(some[np.argmax(problem.relevance[q, some])])
    others = some[some != best]
    if problem.rows.similarity is not None:
        found = problem.rows.similarity[q, best, others]
    else:
        at = np.array([best, *others])
        ids = at if problem.candidates is None else problem.candidates[q, at].astype(np.int64)
        vectors = problem.rows.vectors(ids + q * problem.pool_stride)
        found = vectors[1:] @ vectors[0]
    return float(found.max() - found.min())


def _real(problem: Problem, queries: slice | np.ndarray) -> np.ndarray:
    """Return which values of some queries' relevance are finite and of items that these may pick."""
    real: np.ndarray = np.isfinite(problem.relevance[queries])
    if problem.candidates is not None:  # of a query without an answer they may be any numbers
        real &= (problem.candidates[queries] >= 0) & (problem.candidates[queries] < problem.num_ids)
    elif (found := problem.constraints.filter) is not None:
        real &= found.take(queries).keep(np, np.broadcast_to(np.arange(problem.pool), real.shape))
    if (own := problem.constraints.query_groups) is not None:
        ids = np.arange(problem.pool) if problem.candidates is None else problem.candidates[queries]
        rows = np.where(real, ids, 0) + problem.pool_stride * np.arange(problem.num_queries)[queries, None]
        real &= problem.constraints.groups[rows] != own[queries, None]
    return real


def _ends(relevance: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest and the least of the real values of each row."""
    return np.where(real, relevance, -np.inf).max(axis=1), np.where(real, relevance, np.inf).min(axis=1)
