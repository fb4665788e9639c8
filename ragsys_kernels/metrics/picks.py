"""Metrics over the picks of queries: what they cover, how alike they are, and which rule is ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._base.checks import number, shown
from .._base.types import ArrayLike, Metric
from .._base.types import NDArray as Array
from ..selection.problem import Rows, unit
from ..selection.rules.vrsd import ZERO_SUM
from . import _values


class WinRate(NamedTuple):
    """Shares of the queries, which add up to 1."""

    wins: float
    ties: float
    losses: float


def sum_cosine(
    queries: ArrayLike, embeddings: ArrayLike | Rows, indices: ArrayLike, *, metric: Metric = "cosine"
) -> Array:
    """Return the cosine of each query with the sum of its picks, which VRSD maximises (its retrieval quality).

    ::

        cos(q, s),  s = sum_j e_j over the picks j

    Parameters
    ----------
    queries : (Q, D) floating point
    embeddings : (N, D) floating point, or Corpus
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1.
    metric : {"cosine", "dot"}
        Whether rows are made unit vectors before they are summed, as in `vrsd`. VRSD sums its model's vectors as they
        are, which are unit vectors. Not "dot" with a corpus of cosines, which keeps no lengths.

    Returns
    -------
    (Q,) float64
        0 where the sum or the query is zero, or nothing is picked. As in `vrsd` a sum is zero if it is shorter than
        1e-6 of the lengths of its terms, the precision of float32 data.

    Raises
    ------
    ValueError, TypeError
        Shapes that do not fit, ids out of range, NaN or inf in a query or a row that is picked.

    Notes
    -----
    In float64; of the embeddings only rows that are picked are read. The paper's table has the mean of these values
    over the queries. Source: VRSD (arXiv 2407.04573).

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import sum_cosine
    >>> sum_cosine(np.array([[1.0, 1.0]]), np.eye(2), [[0, 1]])
    array([1.])
    """
    op = "sum_cosine"
    vectors, ids = _picked(op, embeddings, indices, metric)
    q = _values.matrix(op, "queries", queries)
    if q.shape != (len(ids), vectors.shape[1]):
        raise ValueError(f"{op}: queries must be of shape {(len(ids), vectors.shape[1])}, got {q.shape}")
    sums = np.stack([_sum(vectors[row[row >= 0]]) for row in ids]) if len(ids) else np.zeros_like(q)
    return np.asarray((unit(q) * unit(sums)).sum(axis=1))


def _sum(vectors: Array) -> Array:
    """Return the sum of some vectors up to a factor, and 0 where their sum is nothing but rounding."""
    largest = np.abs(vectors).max(initial=0.0)
    if largest == 0:
        return np.zeros(vectors.shape[1])
    vectors = vectors / largest  # so that no square leaves float64
    total: Array = vectors.sum(axis=0)
    return total if np.linalg.norm(total) > ZERO_SUM * np.linalg.norm(vectors, axis=1).sum() else np.zeros_like(total)


def pairwise_cosine(embeddings: ArrayLike | Rows, indices: ArrayLike) -> Array:
    """Return the mean cosine between the picks of each query: how alike they are (RAGSys, Figure 1).

    ::

        2 / (n (n - 1)) * sum over i < j of cos(e_i, e_j)      for n picks

    Parameters
    ----------
    embeddings : (N, D) floating point, or Corpus
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1.

    Returns
    -------
    (Q,) float64
        NaN for fewer than two picks.

    Raises
    ------
    ValueError, TypeError
        As `sum_cosine`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import pairwise_cosine
    >>> pairwise_cosine(np.array([[1.0, 0.0], [3.0, 4.0]]), [[0, 1]])
    array([0.6])
    """
    return _pairwise("pairwise_cosine", embeddings, indices)


def _pairwise(op: str, embeddings: Any, indices: Any) -> Array:
    return _of_cosines(
        op, embeddings, indices, lambda cosines: cosines[np.triu_indices(len(cosines), 1)].mean(), least=2
    )


def intra_list_distance(embeddings: ArrayLike | Rows, indices: ArrayLike) -> Array:
    """Return the mean cosine distance between the picks of each query: 1 - `pairwise_cosine`.

    Parameters, results and errors are those of `pairwise_cosine`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import intra_list_distance
    >>> intra_list_distance(np.array([[1.0, 0.0], [3.0, 4.0]]), [[0, 1]])
    array([0.4])
    """
    return np.asarray(1 - _pairwise("intra_list_distance", embeddings, indices))


def log_determinant(embeddings: ArrayLike | Rows, indices: ArrayLike) -> Array:
    """Return the log-determinant of the cosines between the picks of each query: twice the log of their volume.

    Parameters
    ----------
    embeddings : (N, D) floating point, or Corpus
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1.

    Returns
    -------
    (Q,) float64
        At most 0; -inf where picks depend on one another, NaN where there are none.

    Raises
    ------
    ValueError, TypeError
        As `sum_cosine`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import log_determinant
    >>> log_determinant(np.array([[1.0, 0.0], [3.0, 4.0]]), [[0, 1]]).round(6)  # log of 0.8 ** 2
    array([-0.446287])
    """

    def of(cosines: Array) -> Any:
        values = _eigenvalues(cosines)
        dependent = values.min() <= len(values) * np.finfo(np.float64).eps * values.max()
        return -np.inf if dependent else np.log(values).sum()

    return _of_cosines("log_determinant", embeddings, indices, of)


def vendi_score(embeddings: ArrayLike | Rows, indices: ArrayLike) -> Array:
    """Return how many different items the picks of each query amount to (Vendi score, Friedman and Dieng 2023).

    The exponential of the entropy of the eigenvalues of the cosines between the picks, divided by their number: 1 where
    all picks are the same, their number where no two have anything in common.

    Parameters
    ----------
    embeddings : (N, D) floating point, or Corpus
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1. A row of zeros counts as like no other and not as itself.

    Returns
    -------
    (Q,) float64
        NaN where there are no picks.

    Raises
    ------
    ValueError, TypeError
        As `sum_cosine`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import vendi_score
    >>> vendi_score(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), [[0, 1], [0, 2]]).round(6)
    array([2., 1.])
    """

    def of(cosines: Array) -> Any:
        values = _eigenvalues(cosines)
        share = values[values > 0] / len(values)
        return np.exp(-(share * np.log(share)).sum())

    return _of_cosines("vendi_score", embeddings, indices, of)


def coverage(embeddings: ArrayLike | Rows, indices: ArrayLike, *, aspects: ArrayLike | None = None) -> Array:
    """Return how near the picks of each query are to what they are to cover: what facility location maximises.

    ::

        mean over aspects a of max(0, largest cosine of a pick with a)

    Parameters
    ----------
    embeddings : (N, D) floating point, or Corpus
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1.
    aspects : (A, D) floating point, optional
        What is to be covered, for all queries. Default: all embeddings, which are then all read.

    Returns
    -------
    (Q,) float64
        0 where there are no picks.

    Raises
    ------
    ValueError, TypeError
        As `sum_cosine`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import coverage
    >>> coverage(np.array([[1.0, 0.0], [3.0, 4.0]]), [[0], [1]])
    array([0.8, 0.8])
    """
    op = "coverage"
    vectors, ids = _picked(op, embeddings, indices)
    name, given = ("embeddings", embeddings) if aspects is None else ("aspects", aspects)
    wanted = unit(_values.matrix(op, name, given))
    if wanted.shape[1] != vectors.shape[1] or not len(wanted):
        raise ValueError(f"{op}: aspects must be of shape (A, {vectors.shape[1]}), got {wanted.shape}")
    found = [(wanted @ vectors[row[row >= 0]].T).max(axis=1, initial=0).mean() for row in ids]
    return np.asarray(found, np.float64)


def near_duplicates(embeddings: ArrayLike | Rows, indices: ArrayLike, *, threshold: float = 0.95) -> Array:
    """Return the share of the picks of each query that are nearly an earlier one: of a cosine above ``threshold``.

    Parameters
    ----------
    embeddings : (N, D) floating point, or Corpus
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1.
    threshold : float in [-1, 1]

    Returns
    -------
    (Q,) float64
        NaN where there are no picks.

    Raises
    ------
    ValueError, TypeError
        As `sum_cosine`; a threshold outside [-1, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import near_duplicates
    >>> near_duplicates(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.1]]), [[0, 1, -1], [0, 1, 2]]).round(3)
    array([0.   , 0.333])
    """
    op = "near_duplicates"
    least = number(op, "threshold", threshold)
    if not -1 <= least <= 1:
        raise ValueError(f"{op}: threshold must be within [-1, 1], got {shown(threshold)}")
    return _of_cosines(op, embeddings, indices, lambda cosines: np.tril(cosines > least, -1).any(axis=1).mean())


def _of_cosines(op: str, embeddings: Any, indices: Any, function: Callable[[Array], Any], *, least: int = 1) -> Array:
    """Return a function of the cosines (n, n) between the picks of each query; NaN for fewer than ``least`` picks."""
    vectors, ids = _picked(op, embeddings, indices)
    result = np.full(len(ids), np.nan)
    for q, row in enumerate(ids):
        chosen = vectors[row[row >= 0]]
        if len(chosen) >= least:
            result[q] = function(chosen @ chosen.T)
    return result


def _eigenvalues(cosines: Array) -> Array:
    """Return the eigenvalues of a matrix of cosines; rounding makes none of them negative."""
    return np.asarray(np.maximum(np.linalg.eigvalsh(cosines), 0))


def win_rate(ours: ArrayLike, theirs: ArrayLike, *, tolerance: float = 1e-7) -> WinRate:
    """Return the share of the queries on which one method is better than another (VRSD).

    ::

        wins   = |{q : ours_q - theirs_q >  tolerance}| / Q
        ties   = |{q : |ours_q - theirs_q| <= tolerance}| / Q
        losses = |{q : ours_q - theirs_q < -tolerance}| / Q

    VRSD's script counts every difference above 0. Where two methods pick the same items in another order the sums
    differ by rounding alone, which then decides; the tolerance keeps such queries apart. A figure counted as by the
    script lies between ``wins`` and ``wins + ties``.

    Parameters
    ----------
    ours, theirs : (Q,) floating point
        One value a query, more is better.
    tolerance : float
        At least 0. The default is a rounding error of float32 vectors.

    Raises
    ------
    ValueError, TypeError
        Shapes that do not fit, no query, NaN.

    Examples
    --------
    >>> from ragsys_kernels.metrics import win_rate
    >>> win_rate([0.5, 0.7, 0.6, 0.2], [0.4, 0.6, 0.6, 0.3])
    WinRate(wins=0.5, ties=0.25, losses=0.25)
    """
    difference = _differences("win_rate", ours, theirs)
    tolerance = number("win_rate", "tolerance", tolerance)
    if not tolerance >= 0:
        raise ValueError(f"win_rate: tolerance must be at least 0, got {tolerance}")
    size = len(difference)
    wins, losses = int((difference > tolerance).sum()), int((difference < -tolerance).sum())
    return WinRate(wins / size, (size - wins - losses) / size, losses / size)


def max_diff(ours: ArrayLike, theirs: ArrayLike) -> float:
    """Return the largest difference ``max_q (ours_q - theirs_q)`` between two methods on one query (VRSD).

    Parameters
    ----------
    ours, theirs : (Q,) floating point

    Raises
    ------
    ValueError, TypeError
        As `win_rate`.

    Examples
    --------
    >>> from ragsys_kernels.metrics import max_diff
    >>> max_diff([0.5, 0.75], [0.25, 0.75])
    0.25
    """
    return float(_differences("max_diff", ours, theirs).max())


def _picked(op: str, embeddings: Any, indices: Any, metric: str = "cosine") -> tuple[Array, Array]:
    """Return the vectors of the rows that are picked, and the picks as places among these."""
    if not isinstance(metric, str) or metric not in ("cosine", "dot"):
        raise ValueError(f"{op}: metric must be cosine or dot, got {shown(metric)}")
    if metric == "dot" and isinstance(embeddings, Rows) and embeddings.metric == "cosine":
        raise ValueError(f"{op}: metric must be cosine with a corpus of cosines, which keeps no lengths, got 'dot'")
    vectors, ids = _values.picked(op, embeddings, indices)
    return unit(vectors) if metric == "cosine" else vectors, ids


def _differences(op: str, ours: Any, theirs: Any) -> Array:
    first, second = (
        _values.array(op, name, values, "fiu", "numbers").astype(np.float64)
        for name, values in (("ours", ours), ("theirs", theirs))
    )
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"{op}: ours and theirs must be of one shape (Q,), got {first.shape} and {second.shape}")
    if not len(first):
        raise ValueError(f"{op}: ours must have at least one query, got none")
    difference = first - second
    if np.isnan(difference).any():
        raise ValueError(
            f"{op}: ours and theirs must be finite, got NaN for query {int(np.argmax(np.isnan(difference)))}"
        )
    return difference
