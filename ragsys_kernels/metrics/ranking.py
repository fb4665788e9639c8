"""Metrics of rankings: nDCG, alpha-nDCG, recall, reciprocal rank, and normalised query commitment."""

from __future__ import annotations

import numpy as np

from .._base.checks import number
from .._base.types import ArrayLike
from .._base.types import NDArray as Array
from . import _values


def ndcg(grades: ArrayLike, judged: ArrayLike, cu_judged: ArrayLike) -> Array:
    """Return nDCG at K: the gain of the ranked items, discounted by rank, as a share of the most that is possible.

    With g_k the grade of the item at rank k, and g*_1 >= g*_2 >= ... those of all judged items::

        DCG  = sum_{k=1..K} g_k / log2(1 + k)
        nDCG = DCG / sum_{k=1..K} g*_k / log2(1 + k)

    The gain is the grade itself, as in Järvelin and Kekäläinen (2002) and in trec_eval; pass ``2.0**grades - 1`` and
    ``2.0**judged - 1`` for the exponential one.

    Parameters
    ----------
    grades : (Q, K) numbers
        Grade of each ranked item, best rank first; 0 for items that are not judged and for padding. Below 0 is 0.
    judged : (J,) numbers
        Grades of all judged items of each query, end to end, those among the ranked items included.
    cu_judged : (Q + 1,) integers
        Where each query's judged items begin: 0 first, J last.

    Returns
    -------
    (Q,) float64
        NaN for a query without a grade above 0.

    Raises
    ------
    ValueError, TypeError
        Shapes that do not fit, NaN or inf.

    Notes
    -----
    O(Q K + J log J) time.

    Examples
    --------
    >>> from ragsys_kernels.metrics import ndcg
    >>> ndcg([[0, 3, 2]], [3, 2, 1], [0, 3]).round(4)
    array([0.6075])
    """
    op = "ndcg"
    ranked, best, cu = _graded(op, grades, judged, cu_judged)
    discounts = 1 / np.log2(np.arange(2, ranked.shape[1] + 2))
    of_query = np.repeat(np.arange(len(ranked)), np.diff(cu))
    order = np.lexsort((-best, of_query))  # best first within each query
    rank = np.arange(len(best)) - cu[of_query]
    counts = rank < ranked.shape[1]
    ideal = np.bincount(
        of_query[counts], best[order][counts] * discounts[rank[counts]], minlength=len(ranked)
    )  # fmt: skip
    return _shares(ranked @ discounts, ideal)


def recall(grades: ArrayLike, judged: ArrayLike, cu_judged: ArrayLike) -> Array:
    """Return recall at K: the share of the relevant items, those of a grade above 0, that are ranked.

    Parameters, results and errors are those of `ndcg`.

    Examples
    --------
    >>> from ragsys_kernels.metrics import recall
    >>> recall([[0, 3, 2]], [3, 2, 1], [0, 3]).round(4)
    array([0.6667])
    """
    ranked, best, cu = _graded("recall", grades, judged, cu_judged)
    of_query = np.repeat(np.arange(len(ranked)), np.diff(cu))
    return _shares((ranked > 0).sum(axis=1), np.bincount(of_query[best > 0], minlength=len(ranked)))


def reciprocal_rank(grades: ArrayLike) -> Array:
    """Return one over the rank of the first relevant item, one of a grade above 0; its mean over queries is the MRR.

    Parameters
    ----------
    grades : (Q, K) numbers
        As of `ndcg`.

    Returns
    -------
    (Q,) float64
        0 where no ranked item is relevant.

    Raises
    ------
    ValueError, TypeError
        As `ndcg`.

    Examples
    --------
    >>> from ragsys_kernels.metrics import reciprocal_rank
    >>> reciprocal_rank([[0, 3, 2], [0, 0, 0]])
    array([0.5, 0. ])
    """
    relevant = _grades("reciprocal_rank", grades) > 0
    if not relevant.shape[1]:
        return np.zeros(len(relevant))
    return np.where(relevant.any(axis=1), 1 / (relevant.argmax(axis=1) + 1), 0.0)


def _grades(op: str, grades: ArrayLike) -> Array:
    ranked = _values.array(op, "grades", grades, "fiu", "numbers").astype(np.float64)
    if ranked.ndim != 2:
        raise ValueError(f"{op}: grades must be of shape (Q, K), got {ranked.shape}")
    if not np.isfinite(ranked).all():
        raise ValueError(f"{op}: grades must be finite, got {_values.first(ranked, ~np.isfinite(ranked))}")
    return np.maximum(ranked, 0)


def _graded(op: str, grades: ArrayLike, judged: ArrayLike, cu_judged: ArrayLike) -> tuple[Array, Array, Array]:
    """Check grades of ranked items and of all judged items; none is below 0 any more."""
    ranked = _grades(op, grades)
    best = _values.array(op, "judged", judged, "fiu", "numbers").astype(np.float64)
    if best.ndim != 1 or not np.isfinite(best).all():
        raise ValueError(f"{op}: judged must be finite numbers of shape (J,), got shape {best.shape}")
    cu = _values.array(op, "cu_judged", cu_judged, "iu", "integers")
    rule = f"{op}: cu_judged must rise from 0 to {len(best)} in {len(ranked) + 1} steps"
    if cu.shape != (len(ranked) + 1,):
        raise ValueError(f"{rule}, got shape {cu.shape}")
    if cu[0] != 0 or cu[-1] != len(best) or (np.diff(cu.astype(np.int64)) < 0).any():
        raise ValueError(f"{rule}, got {cu.tolist()}")
    return ranked, np.maximum(best, 0), cu.astype(np.int64)


def _shares(parts: Array, wholes: Array) -> Array:
    """Return parts / wholes, NaN where the whole is 0."""
    return np.asarray(np.divide(parts, wholes, out=np.full(len(parts), np.nan), where=wholes > 0))


def alpha_ndcg(indices: ArrayLike, judgements: ArrayLike, *, alpha: float = 0.5) -> Array:
    """Return alpha-nDCG at K, which rewards new aspects and discounts repeated ones (Clarke et al. 2008).

    With J(d, i) = 1 if item d covers aspect i of the query, and r_i the items ranked before d that cover it::

        gain(d) = sum_i J(d, i) (1 - alpha)^{r_i}
        DCG     = sum_{k=1..K} gain(d_k) / log2(1 + k)
        alpha-nDCG = DCG / DCG of the ideal ranking

    The ideal ranking is made greedily, as in the authors' program ndeval: the item of largest gain next, the exact one
    being NP-hard. So a value can exceed 1. Ties go to the lowest item; ndeval's go to the last name, which can change
    the ideal ranking and thus the value.

    Parameters
    ----------
    indices : (Q, K) integers
        Ranked items of each query, padded with -1 at the end; no item twice in a row.
    judgements : (N, S) or (Q, N, S) bool
        Which of S aspects each item covers, for all queries or for each.
    alpha : float, in [0, 1]
        0 is nDCG with the number of aspects as gain; 1 counts an aspect only once.

    Returns
    -------
    (Q,) float64
        0 for a query no aspect of which is covered by any item.

    Raises
    ------
    ValueError, TypeError
        Shapes that do not fit, ids out of range, an item that is ranked twice.

    Notes
    -----
    O(Q K N S) time.

    Examples
    --------
    >>> from ragsys_kernels.metrics import alpha_ndcg
    >>> alpha_ndcg([[0, 2]], [[True, False], [True, False], [False, True]])
    array([1.])
    """
    op = "alpha_ndcg"
    ids = _values.ids(op, indices)
    judged = _values.array(op, "judgements", judgements, "b", "bool")
    if judged.ndim not in (2, 3) or (judged.ndim == 3 and len(judged) != len(ids)):
        raise ValueError(f"{op}: judgements must be of shape (N, S) or ({len(ids)}, N, S), got {judged.shape}")
    alpha = number(op, "alpha", alpha)
    if not 0 <= alpha <= 1:
        raise ValueError(f"{op}: alpha must be in [0, 1], got {alpha}")
    _values.within(op, ids, judged.shape[-2])
    discounts = 1 / np.log2(np.arange(2, ids.shape[1] + 2))
    result = np.zeros(len(ids))
    for q, row in enumerate(ids):
        covers = judged[q] if judged.ndim == 3 else judged
        ranked = row[row >= 0]
        if len(np.unique(ranked)) != len(ranked):
            raise ValueError(f"{op}: indices must not repeat an item, got {row.tolist()} for query {q}")
        weights, gains = np.ones(covers.shape[1]), np.zeros(len(row))
        for k, item in enumerate(row):
            if item >= 0:
                gains[k] = weights @ covers[item]
                weights = np.where(covers[item], weights * (1 - alpha), weights)
        ideal = _ideal_gains(covers, len(row), alpha) @ discounts
        result[q] = gains @ discounts / ideal if ideal else 0.0
    return result


def _ideal_gains(covers: Array, depth: int, alpha: float) -> Array:
    weights, left, gains = np.ones(covers.shape[1]), np.ones(len(covers), np.bool_), np.zeros(depth)
    for k in range(min(depth, len(covers))):
        value = np.where(left, covers @ weights, -1)
        best = int(np.argmax(value))
        gains[k], left[best] = value[best], False
        weights = np.where(covers[best], weights * (1 - alpha), weights)
    return gains


def nqc(scores: ArrayLike, *, corpus_score: ArrayLike | None = None) -> Array:
    """Return normalised query commitment: the spread of a query's best scores predicts how well they rank.

    ::

        NQC(q) = sqrt(1/k sum_j (s_j - mean(s))^2) / |s_C|      over the k best scores s_j

    Adaptive in-context learning takes it for how many examples a query needs.

    Parameters
    ----------
    scores : (Q, k) floating point
        The k best scores of each query; -inf, or NaN, where there are fewer.
    corpus_score : (Q,) or scalar floating point, optional
        s_C, the score of the whole collection as one document. Default: 1, the plain deviation.

    Returns
    -------
    (Q,) float64
        NaN for a query without a score; inf or NaN where its corpus score is 0.

    Raises
    ------
    ValueError, TypeError
        Not (Q, k) floats; a score of inf.

    Notes
    -----
    Source: Shtok et al., Predicting query performance by query-drift estimation (TOIS 2012); used in "One size doesn't
    fit all: predicting the number of examples for in-context learning".

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import nqc
    >>> nqc(np.array([[3.0, 1.0], [2.0, 2.0]]))
    array([1., 0.])
    """
    op = "nqc"
    values = _values.array(op, "scores", scores, "f", "floating point")
    if values.ndim != 2:
        raise ValueError(f"{op}: scores must be of shape (Q, k), got {values.shape}")
    values = values.astype(np.float64)
    if (values == np.inf).any():
        raise ValueError(f"{op}: scores must be below inf, got inf")
    of_corpus = np.ones(())
    if corpus_score is not None:
        of_corpus = np.abs(_values.array(op, "corpus_score", corpus_score, "fiu", "floating point").astype(np.float64))
        if of_corpus.shape not in ((), (len(values),)):
            raise ValueError(f"{op}: corpus_score must be a number or of shape ({len(values)},), got {of_corpus.shape}")
    there = np.isfinite(values)
    count = there.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean = np.where(there, values, 0).sum(axis=1) / count
        off = np.where(there, values - mean[:, None], 0)
        scale = np.abs(off).max(axis=1, initial=0)  # so that squares stay in range
        scale[scale == 0] = 1
        spread = scale * np.sqrt(((off / scale[:, None]) ** 2).sum(axis=1) / count)
        return np.asarray(spread / of_corpus)
