"""LangChain's maximal marginal relevance as a function, without an import of LangChain."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from .._base.types import NDArray as Array
from ..selection.problem import unit
from ._pools import greedy, matrix, number_of_picks, run, vector


def maximal_marginal_relevance(
    query_embedding: Any, embedding_list: Any, lambda_mult: float = 0.5, k: int = 4
) -> list[int]:
    """``langchain_core.vectorstores.utils.maximal_marginal_relevance``, on `mmr`.

    ::

        C_1 = argmax_i cos(q, e_i)
        m_i = max over picks C of cos(e_i, e_C)
        C_s = argmax over unpicked i of lambda_mult * cos(q, e_i) - (1 - lambda_mult) * m_i

    Ties go to the lowest position. Negative cosines count as they are.

    Parameters
    ----------
    query_embedding : (D,) or (1, D) numbers
    embedding_list : (N, D) numbers
        An array, or a list of lists or arrays.
    lambda_mult : float
        Weight of relevance: 1 is plain top-k, lower is more diverse. Values outside [0, 1] are accepted, as by
        LangChain, and run in NumPy.
    k : int
        Picks; no more than N are made, and none for k <= 0.

    Returns
    -------
    list of int
        Positions in the order they were picked.

    Raises
    ------
    ValueError
        The query or every row is zero or not finite (LangChain's "NaN values found"), lambda_mult is not finite, shapes
        that do not fit.

    Warns
    -----
    RuntimeWarning
        NaN or inf in a row, which then has cosine 0 with everything, as a zero row has.
    PoolSizeWarning
        N <= k, so that the call only reorders.

    Notes
    -----
    As langchain-core 1.7 does, with these differences. Cosines are float32 sums, where LangChain takes the type of the
    array, float64 for lists; picks differ only where values are nearer to each other than about 1e-6. Equal rows are
    exactly equal here. A zero row that is picked first raises no error. The query may be a list; one of several rows is
    refused, where LangChain answers the first. -1 is never returned. The answer does not depend on simsimd being
    installed. Norms that are not 0 and outside [1e-15, 1e15] are refused. O(k N D) time.

    Examples
    --------
    >>> from ragsys_kernels.integrations.langchain import maximal_marginal_relevance
    >>> maximal_marginal_relevance([1, 0.2], [[1, 0], [1, 0.1], [0, 1]], lambda_mult=0.3, k=2)
    [1, 2]
    """
    op = "maximal_marginal_relevance"
    if min(k, len(embedding_list)) <= 0:
        return []
    if not math.isfinite(lambda_mult):
        raise ValueError(f"{op}: lambda_mult must be finite, got {lambda_mult}")
    rows = matrix(op, "embedding_list", embedding_list)
    query, rows = _finite(vector(op, "query_embedding", query_embedding, rows.shape[1]), rows)
    if not (query.any() and rows.any()):
        raise ValueError(f"NaN values found: {op} needs a query and a row that are finite and not zero")
    k = number_of_picks(op, len(rows), int(k))
    if 0 <= lambda_mult <= 1:
        picks: list[int] = run("mmr", rows, k, query[None], lambda_d=float(lambda_mult)).indices[0].tolist()
        return picks
    vectors = unit(rows)
    relevance = vectors @ unit(query)
    first = int(np.argmax(relevance))
    return greedy(relevance, lambda i: vectors @ vectors[i], k, weight=lambda_mult, first=first, fold=np.maximum)[0]


def _finite(query: Array, rows: Array) -> tuple[Array, Array]:
    """Return both with zeros in the place of vectors that have NaN or inf."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(query.sum() + rows.sum()):
            return query, rows
    bad = np.asarray(~np.isfinite(rows).all(axis=1))
    if bad.any() or not np.isfinite(query).all():
        warnings.warn(
            "NaN or inf found in embeddings, which count as zero vectors; remove them", RuntimeWarning, stacklevel=3
        )
    return query if np.isfinite(query).all() else np.zeros_like(query), np.where(bad[:, None], np.float32(0), rows)
