"""NumPy in float64, written like the formulas: the specification of every other backend.

A rule is a file of ``rules/``; here is the loop that all of them share, with what limits the picks.
"""

from __future__ import annotations

import numpy as np

from .._base import arrays
from .._base.types import Array
from . import certificate, validate
from .problem import Problem, Selection, SelectionPath, unit
from .rules import RULES, path
from .rules import gist as together
from .rules.limits import Limits
from .rules.pool import Pool, in_range, pool_of, products

# How many float32 scores a search holds at a time, and how many rows it widens at a time.
_SCORES = 1 << 24
_ROW_BLOCK = 1 << 16

# What an item costs at least where values are divided by costs: a share of a finite budget, and not nothing. Without
# the share, the rounding of a gain that is 0 would make an item of cost 0 better than every item that costs something.
_LEAST_SHARE, _LEAST_COST = 1e-4, 1e-30


def _select(problem: Problem) -> Selection:
    out = Selection.empty(problem.num_queries, problem.k)
    density = problem.op == "coverage" and problem.options.density
    if problem.outside is not None:
        out.pool_needed = np.full(problem.num_queries, np.nan, np.float32)
    for q in range(problem.num_queries):
        pool = pool_of(problem, q)
        order = _pick(problem, q, pool, out, density)
        if order is not None and problem.outside is not None:
            out.pool_needed[q] = _needed(problem, q, pool, order, out)
    return out


def _needed(problem: Problem, q: int, pool: Pool, order: list[int], out: Selection) -> float:
    """Return `Selection.pool_needed` of a query, given its picks as items of the pool."""
    k = problem.k if problem.ks is None else int(problem.ks[q])
    if len(order) < k and problem.constraints.costs is None:
        return -np.inf
    cosines = None
    if problem.relevance is None:
        assert pool.query is not None
        cosines = products(np.concatenate([pool.e_initial, pool.e[order]]), pool.query)
    known = len(pool.initial) + np.arange(len(order))
    values = np.where(known == 0, out.relevance[q, : len(order)], out.scores[q, : len(order)]).astype(np.float64)
    weights = float(problem.lambda_d[q]), float(problem.lambda_b[q])
    found = certificate.reach(values, cosines, known, *weights, certificate.most_bias(problem))
    return float(found.min(initial=np.inf))


def _pick(problem: Problem, q: int, pool: Pool, out: Selection, density: bool) -> list[int] | None:
    """Make the picks of a query; return them as items of the pool, or None where one was tied with a lower row."""
    rule, limits = RULES[problem.op](problem, q, pool), Limits(problem, q, pool)
    n = len(pool.rows)
    total_items = n + len(pool.initial)

    def take(j: int) -> None:
        similarity = pool.to(j)
        in_range(problem, q, similarity)
        rule.take(j, similarity)
        limits.take(j, similarity)

    def made(step: int, i: int) -> float:
        score = rule.score(i)
        in_range(problem, q, np.asarray(score))
        out.indices[q, step] = pool.rows[i] - q * problem.pool_stride
        out.scores[q, step] = score
        out.relevance[q, step] = rule.relevance[i]
        redundancy = rule.redundancy(i)
        if np.isnan(redundancy) and limits.most is not None:
            redundancy = limits.m[i] if np.isfinite(limits.m[i]) else 0.0
        out.redundancy[q, step] = redundancy
        out.lengths[q] = step + 1
        return score

    for j in range(n, total_items):
        take(j)
    single, single_value = -1, -np.inf
    order, tied, total = [], False, 0.0  # of the scores, not rounded to float32
    wanted = problem.k if problem.ks is None else int(problem.ks[q])
    for step in range(wanted):
        values = np.where(limits.open(), rule.values(), -np.inf)
        values = np.where(limits.for_minima(values > -np.inf, wanted - step), values, -np.inf)
        if not (values > -np.inf).any():
            break
        if density:
            assert limits.costs is not None
            if step == 0 and not limits.minima:  # one item would leave them unmet
                single = int(np.argmax(values))
                single_value = float(values[single])
            share = _LEAST_SHARE * limits.budget if np.isfinite(limits.budget) else 0.0
            values = values / np.maximum(limits.costs, max(share, _LEAST_COST))
        i = int(np.argmax(values))  # the first maximum: ties go to the lowest position
        tied |= bool((pool.rows[values == values[i]] < pool.rows[i]).any())
        order.append(i)
        total += made(step, i)
        take(i)
    if density and single_value > total:
        for field, nothing in zip(out, Selection.empty(1, problem.k), strict=True):
            field[q] = nothing[0]
        rule, limits = RULES[problem.op](problem, q, pool), Limits(problem, q, pool)
        for j in range(n, total_items):
            take(j)
        made(0, single)
    return None if tied else order


def mmr(problem: Problem, num_threads: int) -> Selection:
    """Pick the argmax of v_i = λ_b r_i + (1-λ_b) b_i, then of w_i = λ_d v_i - (1-λ_d) max_j cos(e_i, e_Cj)."""
    return _select(problem)


def vrsd(problem: Problem, num_threads: int) -> Selection:
    """Pick the argmax of cos(e_i, q), then of cos(s + e_i, q) with s the sum of the picks."""
    return _select(problem)


def msd(problem: Problem, num_threads: int) -> Selection:
    """Pick the argmax of v_i, then of λ_d v_i + (1-λ_d) Σ_j (1 - cos(e_i, e_Cj))."""
    return _select(problem)


def dpp(problem: Problem, num_threads: int) -> Selection:
    """Pick the argmax of what the determinant of q_i s_ij q_j grows by."""
    return _select(problem)


def ssd(problem: Problem, num_threads: int) -> Selection:
    """Pick the argmax of z_i, then of λ_d z_i + (1-λ_d) γ |the part of [e_i, 1] that the last picks do not span|."""
    return _select(problem)


def sift(problem: Problem, num_threads: int) -> Selection:
    """Pick the argmax of what the variance at the query gets less by."""
    return _select(problem)


def coverage(problem: Problem, num_threads: int) -> Selection:
    """Pick the argmax of λ_d v_i + (1-λ_d) times what the coverage of the aspects grows by."""
    return _select(problem)


def gist(problem: Problem, num_threads: int) -> Selection:
    """Pick the best of what thresholds of distance give by λ_d Σ v_i + (1-λ_d) times the least distance of two."""
    out = Selection.empty(problem.num_queries, problem.k)
    for q in range(problem.num_queries):
        together.select(problem, q, out)
    return out


def mmr_path(problem: Problem, low: float, high: float, num_threads: int) -> SelectionPath:
    """Return the picks of MMR for every λ_d from low to high."""
    return path.path_of(problem, low, high)


def relevance(problem: Problem, num_threads: int) -> Array:
    """Return v of the items of each pool (Q, P) float32; -inf where there is none."""
    values = np.full((problem.num_queries, problem.pool), -np.inf, np.float32)
    for q in range(problem.num_queries):
        pool = pool_of(problem, q)
        values[q, pool.positions] = pool.v
    return values


def search(problem: Problem, num_threads: int) -> tuple[Array, Array]:
    """Return the k rows of largest v, ties to the lowest row. float32 products leave a few rows, float64 ranks them."""
    indices = np.full((problem.num_queries, problem.k), -1, np.int64)
    scores = np.full(indices.shape, -np.inf, np.float32)
    block = max(1, _SCORES // problem.pool)
    for begin in range(0, problem.num_queries, block):
        part = slice(begin, min(begin + block, problem.num_queries))
        pools = [None] * block if problem.candidates is not None else _near(problem, part)
        for q, near in zip(range(part.start, part.stop), pools, strict=False):
            pool = pool_of(problem, q, near)
            order = np.argsort(-pool.v, kind="stable")[: problem.k]
            indices[q, : len(order)] = pool.rows[order]
            scores[q, : len(order)] = pool.v[order]
    return indices, scores


def _near(problem: Problem, part: slice) -> list[np.ndarray | None]:
    """Return, for each of some queries, the rows that may be among its best k, ascending; None: any row may."""
    rows, num_rows = problem.rows, problem.pool
    queries = problem.query_vectors(part)
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
        np.matmul(vectors, arrays.widen(rows.data[block], rows.dtype).T, out=values[:, block])
        if rows.scales is not None:
            values[:, block] *= rows.scales[block]
        if rows.dtype == "binary":
            values[:, block] /= np.float32(np.sqrt(rows.dims))
    # How far off a value may be, in whatever order the BLAS adds.
    eps = float(np.finfo(np.float32).eps)
    error = (rows.dims + 12) * 2 * eps * largest
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
