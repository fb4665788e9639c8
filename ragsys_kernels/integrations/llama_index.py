"""LlamaIndex's maximal marginal relevance, and a node postprocessor, on the kernels.

`get_top_k_mmr_embeddings` does not need LlamaIndex; the postprocessor needs llama-index-core (extra ``llama-index``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from .._base.checks import choice
from .._base.types import NDArray as Array
from ..selection.problem import unit
from . import _peers
from ._pools import greedy, matrix, newest, number_of_picks, run, vector

if TYPE_CHECKING:
    from .llama_index_components import SelectionPostprocessor

__all__ = ["SelectionPostprocessor", "get_top_k_mmr_embeddings"]

_OP = "get_top_k_mmr_embeddings"

__getattr__ = _peers.later(__name__, "llama-index", llama_index_components=("SelectionPostprocessor",))


def get_top_k_mmr_embeddings(
    query_embedding: Any,
    embeddings: Any,
    similarity_fn: Callable[..., float] | None = None,
    similarity_top_k: int | None = None,
    embedding_ids: Sequence[Any] | None = None,
    similarity_cutoff: float | None = None,
    mmr_threshold: float | None = None,
    *,
    penalty: Literal["last", "max"] | None = None,
) -> tuple[list[float], list[Any]]:
    """``llama_index.core.indices.query.embedding_utils.get_top_k_mmr_embeddings``.

    With w the ``mmr_threshold``::

        C_1 = argmax_i w * sim(q, e_i)
        C_s = argmax over unpicked i of w * sim(q, e_i) - (1 - w) * p_i

    where p_i is the similarity with the newest pick (``penalty="last"``) or the largest with any pick ("max", MMR as it
    is published). Ties go to the lowest position; with w = 0 the first pick is position 0.

    Parameters
    ----------
    query_embedding : (D,) numbers
    embeddings : (N, D) numbers
    similarity_fn : callable, optional
        Similarity of two embeddings, called for each pair. Default: the cosine.
    similarity_top_k : int, optional
        Picks. None: all; no more than N are made, and none if it is negative. 0: what the installed LlamaIndex does;
        all, as in llama-index-core 0.14, without one.
    embedding_ids : sequence of N, optional
        What to return for each row. Default, also for an empty list: the positions.
    similarity_cutoff : float, optional
        Plays no part, as in LlamaIndex.
    mmr_threshold : float, optional
        Weight of relevance, despite its name: 1 is plain top-k, lower is more diverse. None: 0.5.
    penalty : {"last", "max"}, optional
        None: what the installed LlamaIndex does, which the first call imports to see, and "last", the rule of
        llama-index-core 0.14, without one.

    Returns
    -------
    values : list of float
        The value of each pick when it was made.
    ids : list

    Raises
    ------
    ValueError
        A query that is zero or not finite, shapes that do not fit, another number of ids than rows.

    Warns
    -----
    PoolSizeWarning
        No more embeddings have a cosine than ``similarity_top_k`` asks for, so that the call only reorders.

    Notes
    -----
    As llama-index-core 0.14 does, with these differences. Embeddings may be an array. Rows without a cosine (zero, NaN
    or inf) are never picked, as there, and where no others are left the lists end instead of a KeyError. An id that is
    given twice stands for its last row, as there, and is returned once. Near-ties may fall the other way.

    "max" with the cosine is the kernel of `ragsys_kernels.mmr`; the rest is NumPy, since the kernels do not have the
    penalty against the newest pick alone. O(k N D) time.
    """
    penalty = _installed().penalty if penalty is None else penalty
    choice(_OP, "penalty", penalty, ("last", "max"))
    n = len(embeddings)
    ids = list(range(n)) if embedding_ids is None or len(embedding_ids) == 0 else list(embedding_ids)
    if len(ids) != n:
        raise ValueError(f"{_OP}: embedding_ids must have one id for each of the {n} embeddings, got {len(ids)}")
    if similarity_top_k == 0 and _installed().zero_is_all:
        similarity_top_k = None
    if n == 0 or (similarity_top_k is not None and similarity_top_k <= 0):
        return [], []
    weight = 0.5 if mmr_threshold is None else mmr_threshold
    keep = list(dict(zip(ids, range(n), strict=True)).values())
    rows: Any
    if similarity_fn is None:
        query, rows, closed = _vectors(query_embedding, embeddings, keep)
    else:
        similarity, rows = similarity_fn, [embeddings[i] for i in keep]
        relevance = np.array([similarity(query_embedding, row) for row in rows], np.float64)
        closed = np.isnan(relevance)
    k = number_of_picks(_OP, int(np.count_nonzero(~closed)), similarity_top_k)
    if k == 0:
        return [], []
    if similarity_fn is None and penalty == "max" and 0 < weight <= 1:
        pool = np.flatnonzero(~closed)[None]
        found = run("mmr", rows, k, query[None], candidates=pool, lambda_d=float(weight))
        return found.scores[0].tolist(), [ids[keep[i]] for i in found.indices[0]]
    if similarity_fn is None:
        vectors = unit(rows)
        relevance = vectors @ unit(query)

    def with_pick(i: int) -> Array:
        if similarity_fn is None:
            return np.asarray(vectors @ vectors[i])
        return np.array([similarity(row, rows[i]) for row in rows], np.float64)

    first = int(np.argmax(np.where(closed, -np.inf, weight * relevance)))
    fold = np.maximum if penalty == "max" else newest
    picks, values = greedy(relevance, with_pick, k, weight=weight, first=first, fold=fold, closed=closed)
    return values, [ids[keep[i]] for i in picks]


def _vectors(query_embedding: Any, embeddings: Any, keep: list[int]) -> tuple[Array, Array, Array]:
    """Return the query, the rows to keep, and which of them have no cosine, which are zeros."""
    rows = matrix(_OP, "embeddings", embeddings)
    query = vector(_OP, "query_embedding", query_embedding, rows.shape[1])
    if not (np.isfinite(query).all() and query.any()):
        raise ValueError(f"{_OP}: query_embedding must be finite and not zero, got {query}")
    if len(keep) < len(rows):
        rows = rows[keep]
    closed = np.asarray(~(np.isfinite(rows).all(axis=1) & rows.any(axis=1)))
    return query, np.where(closed[:, None], np.float32(0), rows) if closed.any() else rows, closed


class _Installed(NamedTuple):
    """Behaviour in which LlamaIndex's versions differ, or may; the defaults are those of llama-index-core 0.14."""

    penalty: Literal["last", "max"] = "last"
    zero_is_all: bool = True  # similarity_top_k=0


@lru_cache(maxsize=1)
def _installed() -> _Installed:
    """Return what the installed LlamaIndex does, found by calling a copy of its function."""
    try:
        theirs = _peers.copy_of_module("llama_index.core.indices.query.embedding_utils").get_top_k_mmr_embeddings
    except (ImportError, AttributeError):
        return _Installed()
    # Their third pick is the copy of the first if only the second counts.
    query, rows = [1.0, 0.0], [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.6, 0.8]]
    _, picks = theirs(query, rows, similarity_top_k=3, mmr_threshold=0.1)
    _, of_zero = theirs(query, rows, similarity_top_k=0)
    return _Installed("last" if picks[2] == 2 else "max", len(of_zero) > 0)
