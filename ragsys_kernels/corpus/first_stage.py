"""A second corpus of the same rows as a retriever, such as their signs: it finds rows, the kernels rank them."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np

from .._base import arrays
from ..selection import validate
from ..selection.problem import Problem, Rows
from . import index_rows
from .faiss_index import ranked


def search(
    problem: Problem, index: Rows, implementation: ModuleType, num_threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k rows that the other corpus finds for each query, ranked by v, as ``search`` of a backend does."""
    _check(problem, index)
    index_rows.once(index, problem.rows, (len(index.data), index.dims, False), lambda: _compare(problem, index))
    queries = problem.query_vectors(slice(None))
    for q in np.flatnonzero(~np.isfinite(queries).all(axis=1)):
        validate.values(problem, int(q))
    asked: Any = np.ascontiguousarray(queries[:, : index.dims])
    if index.dtype == "binary":
        asked = problem.queries[:, : index.dims // 8] if problem.queries.dtype == np.uint8 else asked
        asked = np.ascontiguousarray(asked) if asked.dtype == np.uint8 else arrays.narrow(asked, "binary")
    unit = index.metric == "cosine"
    first = dataclasses.replace(problem, rows=index, queries=asked, unit_queries=unit, bias=index.bias)
    first.clip()
    candidates = np.sort(implementation.search(first, num_threads)[0], axis=1)  # ties go to the lowest row
    return ranked(problem, candidates, implementation, num_threads)


def _check(problem: Problem, index: Rows) -> None:
    rows = problem.rows
    if not isinstance(index.data, np.ndarray):
        raise ValueError(f"{problem.op}: index must be a Corpus on the host, got one on a device")
    if len(index.data) != len(rows.data) or index.dims > rows.dims:
        raise ValueError(
            f"{problem.op}: index must hold the corpus's N = {len(rows.data)} rows of D = {rows.dims} dimensions, or "
            f"the first of these, got {len(index.data)} of {index.dims}"
        )


def _compare(problem: Problem, index: Rows) -> bool:
    some = index_rows.sampled(problem.rows)
    exact, lengths = index.dtype != "binary", index.metric == "dot"
    index_rows.compare(problem.op, problem.rows, some, index.vectors(some), exact, index.dtype, lengths=lengths)
    return False
