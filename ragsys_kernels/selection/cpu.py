"""The compiled kernels (csrc/cpu) on host arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _arrays, _dispatch, _validate
from .._problem import Problem, Selection, divide, unit

_DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
_NORMS = {"as_given": 0, "scaled": 1, "computed": 2}
_METHODS = {"mmr": 0, "vrsd": 1}
_RULES = {"automatic": 0, "dense": 1, "pruned": 2}
_POOL_TOO_SMALL = 5

_EPS = float(np.finfo(np.float32).eps)

# Scores of a block of queries against a block of rows take 8 MB, which stays in the last-level cache.
_QUERY_BLOCK = 256
_ROW_BLOCK = 8192

# Whole corpus: smaller ones are simply pools. Pools retrieved first, and what a pool that was too small grows by.
_WHOLE_CORPUS = 2048
_FIRST_POOL = 128
_GROWTH = 8
_MOSTLY = 0.25
# Where all rows are the pool, their scores are held for so many queries at a time.
_SCORE_BYTES = 1 << 26


def mmr(problem: Problem, num_threads: int) -> Selection:
    whole = problem.candidates is None and not problem.pool_stride and problem.relevance is None
    if whole and problem.rows.metric == "cosine" and problem.pool >= _WHOLE_CORPUS:
        return _mmr_whole_corpus(problem, num_threads)[0]
    return _select(problem, num_threads)[0]


def vrsd(problem: Problem, num_threads: int) -> Selection:
    return _select(problem, num_threads)[0]


def _select(problem: Problem, num_threads: int, rule: str = "automatic") -> tuple[Selection, tuple[int, int]]:
    """The selection, and the dot products done and rows read for it. The rules make the same picks."""
    selection, status, work = _call(problem, num_threads, rule)
    _raise_for(problem, status)
    return selection, work


def _call(
    problem: Problem,
    num_threads: int,
    rule: str = "automatic",
    relevance_error: np.ndarray | None = None,
    outside: np.ndarray | None = None,
) -> tuple[Selection, np.ndarray, tuple[int, int]]:
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
        relevance_error,
        outside,
        0.0 if outside is None or problem.bias is None else float(problem.bias.max()),
        module.ISAS.index(_dispatch.isa()),
        num_threads,
    )
    return Selection(*fields), status, work


def _raise_for(problem: Problem, status: np.ndarray) -> None:
    if status.any():
        q = int(np.flatnonzero(status)[0])
        _validate.values(problem, q)
        _validate.overflow(problem, q)


def _take(problem: Problem, queries: np.ndarray | slice) -> Problem:
    """The problem of some of the queries; their pools are the whole corpus."""
    per_query = ("queries", "lambda_d", "lambda_b", "initial", "ks", "query_groups")
    changes = {name: array[queries] for name in per_query if (array := getattr(problem, name)) is not None}
    if problem.bias is not None and problem.bias.ndim == 2:
        changes["bias"] = problem.bias[queries]
    return dataclasses.replace(problem, num_queries=len(changes["lambda_d"]), **changes)


# Products of queries and rows by the BLAS that NumPy carries, whose last bits depend on the shape of the block: they
# only decide which rows are looked at, the kernels' own dot product decides among those.


def _check_queries(problem: Problem) -> np.ndarray:
    """The queries of the formulas, finite."""
    assert problem.queries is not None
    for q in np.flatnonzero(~np.isfinite(problem.queries).all(axis=1)):
        _validate.values(problem, int(q))
    return np.asarray(unit(problem.queries) if problem.unit_queries else problem.queries, np.float32)


def _products(problem: Problem, queries: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Blocks of rows and their products with the queries."""
    rows = problem.rows
    for first in range(0, len(rows.data), _ROW_BLOCK):
        part = slice(first, min(first + _ROW_BLOCK, len(rows.data)))
        data = _arrays.widen(rows.data[part], rows.dtype)
        products = queries @ data.T
        if rows.norm == "computed":
            norms = np.sqrt(np.einsum("nd,nd->n", data, data, dtype=np.float64))
            usable = (norms == 0) | ((norms >= _validate.NORM_MIN) & (norms <= _validate.NORM_MAX))
            if not usable.all():
                _validate.values(problem, 0)
            products *= divide(np.ones_like(norms), norms).astype(np.float32)
        elif rows.scales is not None:
            products *= rows.scales[part]
        yield part, products


def _product_error(problem: Problem, queries: np.ndarray) -> np.ndarray:
    """By how much two float32 evaluations of <query, row> may differ, whatever the order of summation; (Q,)."""
    largest = 1.0 if problem.rows.metric == "cosine" else problem.rows.max_norm
    assert largest is not None
    bound = np.linalg.norm(queries.astype(np.float64), axis=1) * largest
    if not (bound < np.finfo(np.float32).max / 4).all():
        _validate.overflow(problem, int(np.argmax(bound)))
    return np.asarray((problem.rows.data.shape[1] + 8) * _EPS * 2 * bound, np.float32)


def _top(problem: Problem, queries: np.ndarray, n: int, num_threads: int) -> tuple[Any, np.ndarray]:
    """The rows that may be among the best n by v, in a `_C.TopN`, and the error of v."""
    module = _dispatch.extension()
    isa = module.ISAS.index(_dispatch.isa())
    groups = problem.groups if problem.query_groups is not None else None
    error = _product_error(problem, queries)
    if problem.bias is not None:
        error = error + np.float32(8 * _EPS * float(np.abs(problem.bias).max()))
    top = module.TopN(len(queries), n)
    for part, products in _products(problem, queries):
        bias = None if problem.bias is None else problem.bias[part]
        part_groups = None if groups is None else groups[part]
        top.fold(
            products,
            part.start,
            bias,
            problem.lambda_b,
            error,
            part_groups,
            problem.query_groups,
            isa,
            num_threads,
        )
    return top, error


def search(problem: Problem, num_threads: int) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of largest v, ties to the lowest row."""
    indices = np.full((problem.num_queries, problem.k), -1, np.int64)
    scores = np.full(indices.shape, -np.inf, np.float32)
    queries = _check_queries(problem)
    for begin in range(0, problem.num_queries, _QUERY_BLOCK):
        block = slice(begin, begin + _QUERY_BLOCK)
        part = _take(problem, block)
        top, _ = _top(part, queries[block], problem.k, num_threads)
        candidates, _, _ = top.kept()
        if candidates.shape[1] == 0:  # every row is of the queries' own group
            continue
        values = _relevance(part, candidates, num_threads)
        order = np.argsort(-values, axis=1, kind="stable")[:, : problem.k]  # candidates ascend: ties to the lowest row
        indices[block, : order.shape[1]] = np.take_along_axis(candidates, order, 1)
        scores[block, : order.shape[1]] = np.take_along_axis(values, order, 1)
    return indices, scores


def _relevance(problem: Problem, candidates: np.ndarray, num_threads: int) -> np.ndarray:
    """v of the candidates by the kernels' own dot product; -inf for padding."""
    module, rows = _dispatch.extension(), problem.rows
    values: np.ndarray
    values, status = module.relevance(
        problem.num_queries,
        candidates.shape[1],
        rows.data,
        _DTYPES[rows.dtype],
        _NORMS[rows.norm],
        rows.scales,
        problem.queries,
        problem.unit_queries,
        candidates,
        problem.bias,
        problem.lambda_b,
        module.ISAS.index(_dispatch.isa()),
        num_threads,
    )
    _raise_for(dataclasses.replace(problem, candidates=candidates, pool=candidates.shape[1]), status)
    return values


def _mmr_whole_corpus(problem: Problem, num_threads: int) -> tuple[Selection, tuple[int, int]]:
    """Exact MMR over all rows from pools of the most relevant ones.

    The kernel stops at a pick that a row outside the pool might beat; such queries are run again with a larger pool,
    in the end with all rows. The estimates of the matrix product serve as relevance until a row is read.
    """
    out = Selection.empty(problem.num_queries, problem.k)
    queries = _check_queries(problem)
    work = np.zeros(2, np.int64)
    n = max(_FIRST_POOL, 2 * problem.k)
    row_bias = problem.bias is None or problem.bias.ndim == 1
    at_once = max(1, _SCORE_BYTES // (4 * problem.pool))  # queries whose scores of all rows are held
    for begin in range(0, problem.num_queries, _QUERY_BLOCK):
        waiting = np.arange(begin, min(begin + _QUERY_BLOCK, problem.num_queries))
        size = n
        while len(waiting):
            whole = not row_bias or size * _GROWTH >= problem.pool
            now = waiting[:at_once] if whole else waiting
            part = _take(problem, now)
            run = _from_all if whole else _from_pools
            found, status, done = run(part, queries[now], size, num_threads)
            work += done
            again = status == _POOL_TOO_SMALL
            _raise_for(part, np.where(again, 0, status))
            for field, values in zip(out, found, strict=True):
                field[now[~again]] = values[~again]
            if size == n and again.mean() > _MOSTLY:  # so will the next block
                n *= _GROWTH
            waiting = np.concatenate([now[again], waiting[len(now) :]])
            size = size if whole else size * _GROWTH
    return out, (int(work[0]), int(work[1]))


def _from_pools(problem: Problem, queries: np.ndarray, n: int, num_threads: int) -> Any:
    top, error = _top(problem, queries, n, num_threads)
    candidates, scores, outside = top.kept()
    pools = dataclasses.replace(problem, candidates=candidates, pool=candidates.shape[1], relevance=scores)
    return _call(pools, num_threads, "automatic", error, outside + error)


def _from_all(problem: Problem, queries: np.ndarray, n: int, num_threads: int) -> Any:
    scores = np.empty((problem.num_queries, problem.pool), np.float32)
    for part, products in _products(problem, queries):
        scores[:, part] = products
    error = _product_error(problem, queries)
    return _call(dataclasses.replace(problem, relevance=scores), num_threads, "automatic", error)
