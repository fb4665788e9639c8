"""The values of all rows at each step, for queries whose drafts are not proven after all checks."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from .bit_search_kernels import NO_KEY, Asked, key_of, products_of, row_of, values_of
from .objective import NO_PICK, mmr_value, running_max, store_pick


@triton.jit
def _taken(initial, keys, q, i, t, num_queries, num_ids, parts, S, PARTS: tl.constexpr):
    """Return initial item or pick t, numbered one after the other, and whether there is one."""
    p = tl.arange(0, PARTS)
    t += tl.zeros([], tl.int32)  # of the interpreter a plain number
    at = ((t - S) * num_queries.to(tl.int64) + i) * parts
    row = row_of(tl.max(tl.load(keys + at + p, mask=p < tl.where(t >= S, parts, 0), other=NO_KEY), 0))
    if initial is not None:
        row = tl.where(t < S, tl.load(initial + q * S + t, mask=t < S, other=-1).to(tl.int64), row)
    has = (row >= 0) & (row < num_ids)
    return tl.where(has, row, 0), has


@triton.jit
def _worth(
    asked, n, ok, q, i, step, initial, keys, lambda_d, num_queries, parts, S, cap,
    BIAS_BY_ROW: tl.constexpr, PARTS: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Return v, m and the value of rows n at a step, and which may be picked; whether nothing was taken before."""
    v, ok = values_of(asked, n, ok, q, BIAS_BY_ROW, DIMS)
    m = tl.full([n.shape[0]], NO_PICK, tl.float32)
    same = tl.zeros([n.shape[0]], tl.int32)
    taken = tl.zeros([], tl.int32)
    for t in range(S + step):
        row, has = _taken(initial, keys, q, i, t, num_queries, asked.num_ids, parts, S, PARTS)
        if has:
            scale = 1.0
            if asked.factors is not None:
                scale = tl.load(asked.factors + row)
            m = running_max(m, products_of(asked, n, ok, asked.rows + row * asked.row_stride, scale, DIMS))
            ok &= n != row
            if cap is not None:
                same += (tl.load(asked.groups + n, mask=ok, other=0) == tl.load(asked.groups + row)).to(tl.int32)
                ok &= same < cap
        taken += has.to(tl.int32)
    first = taken == 0
    return v, m, mmr_value(v, m, tl.load(lambda_d + q), first), ok, first


@triton.jit(do_not_specialize=("num_queries", "num_ids", "step", "parts", "S", "K", "cap"))
def proof_rest_kernel(
    order,
    count,
    keys,
    rows,
    factors,
    queries,
    query_factors,
    back,
    bias,
    groups,
    query_groups,
    initial,
    ks,
    lambda_d,
    lambda_b,
    row_stride,
    num_queries,
    num_ids,
    step,
    parts,
    S,
    D,
    cap,
    BIAS_BY_ROW: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Keys (K, C, parts) of the best row of each part of the corpus at a step, for what is not proven.

    Programs share the work of a number of queries that the host does not know.
    """
    asked = Asked(
        rows, factors, queries, query_factors, back, bias, groups, query_groups, lambda_b, row_stride, num_ids, D
    )
    tiles = tl.cdiv(num_ids, ROWS)
    for work in range(tl.program_id(0), tl.load(count) * parts, tl.num_programs(0)):
        i = tl.zeros([], tl.int64) + work // parts  # as in `_item`
        part = tl.zeros([], tl.int32) + work % parts
        q = tl.load(order + i).to(tl.int64)
        best = tl.full([ROWS], NO_KEY, tl.int64)
        wanted = step + 1
        if ks is not None:
            wanted = tl.load(ks + q).to(tl.int32)
        for tile in range(tl.where(step < wanted, part, tiles), tiles, parts):
            n = (tl.zeros([], tl.int64) + tile) * ROWS + tl.arange(0, ROWS)
            _, _, w, ok, _ = _worth(
                asked, n, n < num_ids, q, i, step, initial, keys, lambda_d, num_queries, parts, S, cap,
                BIAS_BY_ROW, PARTS, DIMS,
            )  # fmt: skip
            best = tl.maximum(best, key_of(w, n, ok))
        tl.store(keys + (step * num_queries.to(tl.int64) + i) * parts + part, tl.max(best, 0))


@triton.jit(do_not_specialize=("num_queries", "num_ids", "parts", "S", "K"))
def proof_taken_kernel(
    order,
    count,
    keys,
    rows,
    factors,
    queries,
    query_factors,
    back,
    bias,
    groups,
    query_groups,
    initial,
    lambda_d,
    lambda_b,
    out_index,
    out_score,
    out_relevance,
    out_redundancy,
    out_length,
    row_stride,
    num_queries,
    num_ids,
    parts,
    S,
    K,
    D,
    BIAS_BY_ROW: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """The outputs of the picks that `proof_rest_kernel` has found."""
    asked = Asked(rows, factors, queries, query_factors, back, bias, None, None, lambda_b, row_stride, num_ids, D)
    i = tl.program_id(0).to(tl.int64)
    if i >= tl.load(count):
        return
    q = tl.load(order + i).to(tl.int64)
    lane = tl.arange(0, ROWS)
    made = tl.zeros([], tl.int32)
    for step in range(K):
        row, found = _taken(initial, keys, q, i, S + step, num_queries, num_ids, parts, S, PARTS)
        n = tl.where(lane == 0, row, 0)
        v, m, w, _, first = _worth(
            asked, n, lane == 0, q, i, step, initial, keys, lambda_d, num_queries, parts, S, None,
            BIAS_BY_ROW, PARTS, DIMS,
        )  # fmt: skip
        score = tl.where(first, tl.load(lambda_d + q) * v, w)
        m = tl.where(first, 0.0, m)
        score = tl.sum(tl.where(lane == 0, score, 0.0), 0)
        v = tl.sum(tl.where(lane == 0, v, 0.0), 0)
        m = tl.sum(tl.where(lane == 0, m, 0.0), 0)
        store_pick(q * K + step, found, row, score, v, m, out_index, out_score, out_relevance, out_redundancy)
        made += found.to(tl.int32)
    tl.store(out_length + q, made)
