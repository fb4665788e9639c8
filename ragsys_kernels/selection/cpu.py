"""The compiled kernels (csrc/cpu) on host arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _arrays, _dispatch, _validate
from .._problem import Problem, Selection, unit

_DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
_NORMS = {"as_given": 0, "scaled": 1, "computed": 2}
_METHODS = {"mmr": 0, "vrsd": 1}
_RULES = {"automatic": 0, "dense": 1, "pruned": 2}

# Scores of a block of queries against a block of rows take 8 MB, which stays in the last-level cache.
_QUERY_BLOCK = 256
_ROW_BLOCK = 8192


def mmr(problem: Problem, num_threads: int) -> Selection:
    return _select(problem, num_threads)[0]


def vrsd(problem: Problem, num_threads: int) -> Selection:
    return _select(problem, num_threads)[0]


def _select(problem: Problem, num_threads: int, rule: str = "automatic") -> tuple[Selection, tuple[int, int]]:
    """The selection, and the dot products done and rows read for it. The rules make the same picks."""
    module, rows = _dispatch.extension(), problem.rows
    *fields, status, work = module.select(
        _METHODS[problem.op],
        problem.num_queries,
        problem.pool,
        problem.pool_stride,
        rows.data,
        _DTYPES[rows.dtype],
        _NORMS[rows.norm],
        rows.scales,
        problem.queries,
        problem.unit_queries,
        rows.metric == "cosine",
        _RULES[rule],
        problem.candidates,
        problem.initial,
        problem.relevance,
        problem.bias,
        problem.k,
        problem.ks,
        problem.lambda_d,
        problem.lambda_b,
        problem.groups,
        problem.query_groups,
        problem.max_per_group,
        module.ISAS.index(_dispatch.isa()),
        num_threads,
    )
    _raise_for(problem, status)
    return Selection(*fields), work


def _raise_for(problem: Problem, status: np.ndarray) -> None:
    if status.any():
        q = int(np.flatnonzero(status)[0])
        _validate.values(problem, q)
        _validate.overflow(problem, q)


def search(problem: Problem, num_threads: int) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of largest v: a blocked matrix product drops what cannot be among them, the kernels' own dot
    product, whose bits do not depend on the block, ranks the rest."""
    indices = np.full((problem.num_queries, problem.k), -1, np.int64)
    scores = np.full(indices.shape, -np.inf, np.float32)
    for begin in range(0, problem.num_queries, _QUERY_BLOCK):
        block = slice(begin, begin + _QUERY_BLOCK)
        found, values = _search_block(problem, block, num_threads)
        indices[block, : found.shape[1]] = found
        scores[block, : found.shape[1]] = values
    return indices, scores


def _search_block(problem: Problem, block: slice, num_threads: int) -> tuple[np.ndarray, np.ndarray]:
    module, rows = _dispatch.extension(), problem.rows
    isa = module.ISAS.index(_dispatch.isa())
    assert problem.queries is not None
    assert rows.max_norm is not None
    given = problem.queries[block]
    for q in np.flatnonzero(~np.isfinite(given).all(axis=1)):
        _validate.values(problem, block.start + int(q))
    queries = np.ascontiguousarray(unit(given), np.float32) if problem.unit_queries else given
    lambda_b = problem.lambda_b[block]
    groups = problem.groups if problem.query_groups is not None else None
    query_groups = problem.query_groups[block] if problem.query_groups is not None else None

    # Bound of what two float32 evaluations of one value can differ by, with either order of summation.
    dims = rows.data.shape[1]
    eps = float(np.finfo(np.float32).eps)
    largest = np.linalg.norm(queries.astype(np.float64), axis=1) * rows.max_norm
    if not (largest < np.finfo(np.float32).max / 4).all():
        _validate.overflow(problem, block.start + int(np.argmax(largest)))
    if problem.bias is not None:
        largest += float(np.abs(problem.bias).max())
    margin = ((dims + 8) * eps * 2 * largest).astype(np.float32)

    top = module.TopN(len(queries), problem.k)
    for first in range(0, len(rows.data), _ROW_BLOCK):
        part = slice(first, first + _ROW_BLOCK)
        products = queries @ _arrays.widen(rows.data[part], rows.dtype).T
        if rows.scales is not None:
            products *= rows.scales[part]
        top.fold(
            products,
            first,
            None if problem.bias is None else problem.bias[part],
            lambda_b,
            margin,
            None if groups is None else groups[part],
            query_groups,
            isa,
            num_threads,
        )
    candidates = top.rows()
    if candidates.shape[1] == 0:  # every row is of the queries' own group
        return candidates, np.zeros(candidates.shape, np.float32)
    values, status = _relevance(problem, given, candidates, lambda_b, isa, num_threads)
    if status.any():
        _validate.overflow(problem, block.start + int(np.flatnonzero(status)[0]))
    order = np.argsort(-values, axis=1, kind="stable")[:, : problem.k]  # candidates ascend: ties to the lowest row
    return np.take_along_axis(candidates, order, 1), np.take_along_axis(values, order, 1)


def _relevance(
    problem: Problem, queries: np.ndarray, candidates: np.ndarray, lambda_b: np.ndarray, isa: int, num_threads: int
) -> Any:
    rows = problem.rows
    return _dispatch.extension().relevance(
        len(queries),
        candidates.shape[1],
        rows.data,
        _DTYPES[rows.dtype],
        _NORMS[rows.norm],
        rows.scales,
        queries,
        problem.unit_queries,
        candidates,
        problem.bias,
        lambda_b,
        isa,
        num_threads,
    )
