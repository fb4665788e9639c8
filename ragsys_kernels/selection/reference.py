"""NumPy in float64, written like the formulas: the specification of every other backend.

MMR with quality bias is Algorithm 1 of RAGSys, VRSD Algorithm 1 of its paper; ``README.md`` beside this file has both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import _arrays
from .._types import Array
from . import validate
from .problem import Problem, Selection, divide, unit

# A sum of vectors is zero if it is shorter than this share of the lengths of its terms, the precision of float32 data.
ZERO_SUM = 1e-6

# How many float32 scores a search holds at a time, and how many rows it widens at a time.
_SCORES = 1 << 24
_ROW_BLOCK = 1 << 16


def _products(rows: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return rows @ vector. Equal rows get equal bits and tie; a BLAS may round a row by its place in the matrix."""
    products: np.ndarray = np.einsum("nd,d->n", rows, vector)
    return products


@dataclass
class _Pool:
    """What one query may pick from."""

    rows: np.ndarray
    e: np.ndarray  # (n, D) vectors
    initial: np.ndarray  # rows picked before the first
    e_initial: np.ndarray
    r: np.ndarray  # relevance
    v: np.ndarray  # relevance with bias
    query: np.ndarray | None  # unit vector, but for MMR with metric "dot"


def _pool(problem: Problem, q: int, near: np.ndarray | None = None) -> _Pool:
    """Return what query q may pick from; for a search, only the rows that are near."""
    if near is None:
        validate.values(problem, q)
        rows, positions = problem.eligible(q)
    else:
        rows = positions = (
            near
            if problem.constraints.query_groups is None
            else near[problem.constraints.groups[near] != problem.constraints.query_groups[q]]
        )
        if problem.constraints.filter is not None:
            rows = positions = rows[problem.constraints.filter.keeps(q, rows)]
    initial = problem.initial_rows(q)
    e = problem.rows.vectors(rows)
    query = None
    if problem.queries is not None:
        query = unit(problem.queries[q]) if problem.unit_queries else problem.queries[q].astype(np.float64)
    if problem.relevance is not None:
        r = problem.relevance[q, positions].astype(np.float64)
    else:
        assert query is not None
        r = _products(e, query)
        if problem.op == "vrsd":
            r = divide(r, np.linalg.norm(e, axis=1))
    bias = problem.item_bias(q, rows, positions)
    lambda_b = float(problem.lambda_b[q])
    v = r if bias is None else lambda_b * r + (1 - lambda_b) * bias
    _in_range(problem, q, r, v)
    return _Pool(rows, e, initial, problem.rows.vectors(initial), r, v, query)


def _in_range(problem: Problem, q: int, *values: np.ndarray) -> None:
    """Raise if a value leaves float32, the type of results and of the kernels' products."""
    if any((np.abs(x) > np.finfo(np.float32).max).any() for x in values):
        validate.overflow(problem, q)


def _barred(problem: Problem, rows: np.ndarray, picked: list[int]) -> np.ndarray:
    """Return which rows belong to a group that has reached its cap."""
    if not problem.constraints.max_per_group:
        return np.zeros(len(rows), bool)
    assert problem.constraints.groups is not None
    groups, counts = np.unique(problem.constraints.groups[picked], return_counts=True)
    barred: np.ndarray = np.isin(problem.constraints.groups[rows], groups[counts >= problem.constraints.max_per_group])
    return barred


def _wanted(problem: Problem, q: int) -> int:
    """Return how many picks query q asks for."""
    return problem.k if problem.ks is None else int(problem.ks[q])


def mmr(problem: Problem, num_threads: int) -> Selection:
    """Pick the argmax of v_i = λ_b r_i + (1-λ_b) b_i, then of w_i = λ_d v_i - (1-λ_d) max_j cos(e_i, e_Cj)."""
    out = Selection.empty(problem.num_queries, problem.k)
    for q in range(problem.num_queries):
        pool = _pool(problem, q)
        lambda_d = float(problem.lambda_d[q])
        m = np.full(len(pool.rows), -np.inf)
        picked = list(pool.initial)
        for e in pool.e_initial:
            m = np.maximum(m, _products(pool.e, e))
        free = ~_barred(problem, pool.rows, picked)
        for step in range(_wanted(problem, q)):
            if not free.any():
                break
            first = not picked
            w = pool.v if first else lambda_d * pool.v - (1 - lambda_d) * m
            i = int(np.argmax(np.where(free, w, -np.inf)))  # the first maximum: ties go to the lowest position
            out.indices[q, step] = pool.rows[i] - q * problem.pool_stride
            out.scores[q, step] = lambda_d * pool.v[i] if first else w[i]
            out.relevance[q, step] = pool.v[i]
            out.redundancy[q, step] = 0 if first else m[i]
            out.lengths[q] = step + 1
            picked.append(pool.rows[i])
            similarity = _products(pool.e, pool.e[i])
            _in_range(problem, q, similarity)
            m = np.maximum(m, similarity)
            free[i] = False
            free &= ~_barred(problem, pool.rows, picked)
    return out


def vrsd(problem: Problem, num_threads: int) -> Selection:
    """Pick the argmax of cos(e_i, q), then of cos(s + e_i, q) with s the sum of the picks."""
    out = Selection.empty(problem.num_queries, problem.k)
    for q in range(problem.num_queries):
        pool = _pool(problem, q)
        assert pool.query is not None
        lengths = np.linalg.norm(pool.e, axis=1)
        products = pool.r * lengths  # of the items with the unit query
        picked = list(pool.initial)
        s = pool.e_initial.sum(axis=0)
        s_query = s @ pool.query
        s_lengths = np.linalg.norm(pool.e_initial, axis=1).sum()
        free = ~_barred(problem, pool.rows, picked)
        for step in range(_wanted(problem, q)):
            if not free.any():
                break
            norms = np.linalg.norm(s + pool.e, axis=1)
            norms[norms <= ZERO_SUM * (s_lengths + lengths)] = 0
            w = divide(s_query + products, norms) if picked else pool.r
            i = int(np.argmax(np.where(free, w, -np.inf)))  # the first maximum: ties go to the lowest position
            out.indices[q, step] = pool.rows[i] - q * problem.pool_stride
            out.scores[q, step] = w[i]
            out.relevance[q, step] = pool.r[i]
            out.lengths[q] = step + 1
            picked.append(pool.rows[i])
            s = s + pool.e[i]
            s_query += products[i]
            s_lengths += lengths[i]
            free[i] = False
            free &= ~_barred(problem, pool.rows, picked)
    return out


def search(problem: Problem, num_threads: int) -> tuple[Array, Array]:
    """Return the k rows of largest v, ties to the lowest row. float32 products leave a few rows, float64 ranks them."""
    indices = np.full((problem.num_queries, problem.k), -1, np.int64)
    scores = np.full(indices.shape, -np.inf, np.float32)
    block = max(1, _SCORES // problem.pool)
    for begin in range(0, problem.num_queries, block):
        part = slice(begin, min(begin + block, problem.num_queries))
        pools = [None] * block if problem.candidates is not None else _near(problem, part)
        for q, near in zip(range(part.start, part.stop), pools, strict=False):
            pool = _pool(problem, q, near)
            order = np.argsort(-pool.v, kind="stable")[: problem.k]
            indices[q, : len(order)] = pool.rows[order]
            scores[q, : len(order)] = pool.v[order]
    return indices, scores


def _near(problem: Problem, part: slice) -> list[np.ndarray | None]:
    """Return, for each of some queries, the rows that may be among its best k, ascending; None: any row may."""
    rows, num_rows = problem.rows, problem.pool
    assert problem.queries is not None
    queries = problem.queries[part]
    if rows.max_norm is None:  # no Corpus has checked these rows
        return [None] * len(queries)
    for q in np.flatnonzero(~np.isfinite(queries).all(axis=1)):
        validate.values(problem, part.start + int(q))
    vectors = (unit(queries) if problem.unit_queries else queries).astype(np.float32)
    largest = np.linalg.norm(vectors.astype(np.float64), axis=1) * rows.max_norm
    if problem.k >= num_rows or largest.max() > np.finfo(np.float32).max / 4:
        return [None] * len(queries)
    values = np.empty((len(queries), num_rows), np.float32)
    for begin in range(0, num_rows, _ROW_BLOCK):
        block = slice(begin, begin + _ROW_BLOCK)
        np.matmul(vectors, _arrays.widen(rows.data[block], rows.dtype).T, out=values[:, block])
        if rows.scales is not None:
            values[:, block] *= rows.scales[block]
    # How far off a value may be, in whatever order the BLAS adds.
    eps = float(np.finfo(np.float32).eps)
    error = (rows.data.shape[1] + 12) * 2 * eps * largest
    if problem.bias is not None:
        values *= problem.lambda_b[part, None]
        values += (1 - problem.lambda_b[part, None]) * problem.bias
        error += 8 * eps * float(np.abs(problem.bias).max())
    if problem.constraints.query_groups is not None:
        assert problem.constraints.groups is not None
        values[problem.constraints.groups == problem.constraints.query_groups[part, None]] = -np.inf
    if problem.constraints.filter is not None:
        for i, of_query in enumerate(values):
            of_query[~problem.constraints.filter.keeps(part.start + i, np.arange(num_rows))] = -np.inf
    least = np.partition(values, num_rows - problem.k, axis=1)[:, num_rows - problem.k] - error
    return [np.flatnonzero(v >= x) for v, x in zip(values, least, strict=True)]
