"""Given relevance: on another scale, where that is asked for, and a look at its range.

A rule weighs relevance against similarity, which is a cosine. Scores of BM25 or logits of a reranker are tens of times
as large, and then every selection is top-k. Scaling is a pass before the kernels, the same for all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.arrays import Place
from .._base.checks import choice, shown
from .._base.warn import warn
from .filters import library_of_array
from .parameters import SCALES
from .problem import Problem

# Relevance that spreads over more than this times the largest similarity is not weighed against it.
_MOST = 10.0
# Nor is relevance that spreads over less than this share of what similarities to a pick spread over, by the weights of
# both: such as reciprocal ranks, 1 / (60 + rank).
_LEAST = 1 / 20
# Up to so many values are compared in Python.
_FEW = 128
# It is looked for in no more than so many queries of a call, and items of each.
_QUERIES, _ITEMS = 8, 32
# Rules whose value does not depend on the unit of relevance, and those without a weight of it in the problem.
_BY_ZSCORES, _UNWEIGHTED = ("dpp", "ssd"), ("vrsd", "sift", "mmr_path")
# Rules that take the similarity to picks itself, or sums of it, from relevance: any other may rank by narrow relevance.
_BY_SIMILARITY = ("mmr", "msd")
_CURE = "relevance_scale='minmax' puts it on the scale of similarity"


class RelevanceRangeWarning(UserWarning):
    """Given relevance spreads so far that redundancy has no say, or so little that relevance has none."""


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
    """Warn where relevance on the host spreads so far that redundancy has no say in the picks, or the other way round.

    Relevance that is the same for all items is taken to be meant so.
    """
    relevance, rows = problem.relevance, problem.rows
    if not isinstance(relevance, np.ndarray) or problem.op in _BY_ZSCORES or not relevance.size:
        return
    cosine = rows.metric == "cosine"
    most = 1.0 if cosine else rows.max_norm
    if most is None or (rows.similarity is not None and not cosine):  # nobody has looked at the rows, or there are none
        return
    most = _MOST * (most if cosine else most * most)
    if _range(relevance) > most:  # padding included; rarely more than this is computed
        wide = _spread(problem, slice(None)) > most
        if problem.op not in _UNWEIGHTED:
            wide &= problem.lambda_d < 1
        if wide.any():
            top_k = "" if problem.op in _UNWEIGHTED else ", lambda_d=1 is top-k"
            warn(
                f"{problem.op}: relevance spreads over more than {_MOST:g} times the largest similarity, so that "
                f"redundancy has no say; {_CURE}{top_k}",
                RelevanceRangeWarning,
            )
            return
    if cosine and problem.op in _BY_SIMILARITY and _narrow(problem):
        warn(
            f"{problem.op}: relevance spreads over less than {_LEAST:g} times what similarities spread over, by the "
            f"weights of both, so that it has no say but in the first pick; {_CURE}",
            RelevanceRangeWarning,
        )


def _range(values: np.ndarray) -> float:
    if values.size <= _FEW:  # NumPy would take longer than all else in the call of one query
        few = values.ravel().tolist()
        return float(max(few) - min(few))
    with np.errstate(invalid="ignore", over="ignore"):
        return float(values.max() - values.min())


def glance(problem: Problem) -> bool:
    """Return whether a few values of one query's relevance make `warn_range`, which takes longer, worth a call."""
    last = problem.relevance.shape[1] - 1
    some = [problem.relevance.item(at) for at in (0, last // 3, 2 * last // 3, last)]
    return not _LEAST <= max(some) - min(some) <= _MOST / 2


def _narrow(problem: Problem) -> bool:
    """Return whether the relevance of most queries spreads over too little: of one query first, by two of its items."""
    relevance, candidates, weights = problem.relevance, problem.candidates, problem.lambda_d
    if (problem.k == 1 and problem.constraints.initial is None) or hasattr(problem.rows.similarity, "function"):
        return False
    at = problem.pool // 2 if candidates is None or candidates.item(problem.pool // 2) >= 0 else 0
    if not abs(relevance.item(0) - relevance.item(at)) < _least(weights.item(0)):
        return False
    queries = range(0, problem.num_queries, -(-problem.num_queries // _QUERIES))
    least = [_least(weights.item(q)) for q in queries]
    spread = _spread(problem, slice(None, None, queries.step)).tolist()
    narrow = (
        0 < each < most and each < most * _similarities(problem, q)
        for q, each, most in zip(queries, spread, least, strict=True)
    )
    return bool(2 * sum(narrow) > len(queries))


def _least(weight: float) -> float:
    """Return what relevance of a weight has to spread over, beside similarities that spread over 1.

    A weight below a half is no reason to warn.
    """
    return _LEAST * min(1.0, (1 - weight) / weight) if weight else 0.0


def _similarities(problem: Problem, q: int) -> float:
    """Return over how much the similarities of some items of a query spread, to the one of most relevance."""
    ids = np.arange(problem.pool) if problem.candidates is None else problem.candidates[q].astype(np.int64)
    real = np.flatnonzero((ids >= 0) & (ids < problem.num_ids))
    some = real[:: max(1, -(-len(real) // _ITEMS))]
    if len(some) < 3:
        return 0.0
    best = int(some[np.argmax(problem.relevance[q, some])])
    others = some[some != best]
    if problem.rows.similarity is not None:
        found = problem.rows.similarity[q, best, others]
    else:
        rows = ids[[best, *others]] + q * problem.pool_stride
        with np.errstate(all="ignore"):  # rows with bad values are refused later
            vectors = problem.rows.vectors(rows)
            found = vectors[1:] @ vectors[0]
    return float(found.max() - found.min())


def _spread(problem: Problem, queries: slice) -> np.ndarray:
    """Return over how much the relevance of the items of some queries spreads."""
    relevance = problem.relevance[queries]
    real = np.isfinite(relevance)
    if problem.candidates is not None:
        real &= problem.candidates[queries] >= 0
    elif problem.rows.live is not None and not problem.pool_stride:
        real &= problem.rows.live
    with np.errstate(invalid="ignore", over="ignore"):
        spread: np.ndarray = np.where(real, relevance, -np.inf).max(axis=1) - np.where(real, relevance, np.inf).min(
            axis=1
        )
    return spread
