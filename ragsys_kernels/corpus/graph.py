"""The rows near each row of a corpus: what coverage of a whole corpus goes by."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.arrays import HOST
from ..selection import validate
from ..selection.options import Graph
from ..selection.request import Request

_BLOCK = 4096  # rows that are searched with at a time


def graph_of(request: Request, neighbors: int, index: Any) -> Graph:
    """Return which rows each row covers: itself, and those that have it among their nearest ``neighbors``.

    These are found among the rows that the request may pick and its initial ones: exactly, or by an index.
    """
    corpus = request.embeddings
    problem = validate.problem_of(request, HOST)
    rows = np.union1d(problem.eligible(0)[0], problem.initial_rows(0))
    allowed = None
    if len(rows) < len(corpus):
        allowed = np.zeros(len(corpus), bool)
        allowed[rows] = True
    neighbors = min(neighbors, max(0, len(rows) - 1))
    near = np.empty((len(rows), neighbors + 2), np.int32)
    similarity = np.empty(near.shape, np.float32)
    for begin in range(0, len(rows), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        own = rows[block, None]
        vectors = corpus.vectors(rows[block])
        found = corpus.search(
            vectors.astype(np.float32), neighbors + 1, lambda_b=1.0, allowed=allowed, index=index,
            backend=request.backend, num_threads=request.num_threads,
        )  # fmt: skip
        others = np.where(found.indices == own, -1, found.indices)
        others[(others >= 0).all(axis=1), -1] = -1  # one too many, where the row itself is not among them
        near[block] = np.concatenate([own, others], axis=1)
        similarity[block] = np.column_stack([np.einsum("nd,nd->n", vectors, vectors), found.scores])
    if corpus.metric == "cosine" or request.kind == "xquad":
        np.minimum(similarity, 1, out=similarity)
    kept = (near >= 0) & (similarity > 0)
    by_row, near, similarity = np.repeat(rows.astype(np.int32), kept.sum(axis=1)), near[kept], similarity[kept]
    order = np.argsort(near, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(near, minlength=len(corpus)))])
    return Graph(begins, by_row[order], similarity[order])
