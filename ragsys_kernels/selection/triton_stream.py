"""Regime b: pools of any size. One program a query; every step reads the pool's rows again, tile by tile.

A step needs the pick of the one before it, so that splitting a pool over programs would take a barrier across the
device for every pick; with as many programs as queries the device is full. A step finds the rows in the L2 cache if the
pools of all programs at work fit there together, and reads them from memory otherwise.

A program's running vectors lie in ``work`` (4, Q, stride): v (for VRSD r), the state, the factor f of the row
(vector = f * row), the length of the vector. The state is m for MMR and 0 for VRSD; NaN marks what may not be picked.
VRSD keeps the sum of the picks in ``sums`` (Q, D) and takes |s + e|² from the rows themselves, so nothing cancels.

Threads hold copies of an item's state, and nothing orders one's load before another's store of the same step. That
race is benign: the update, a maximum or NaN, is idempotent, so a copy that has read the new state finds the same value.
The sum of the picks is no such update; of its copies one alone is stored, by the thread that loaded it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from .. import _arrays
from .problem import Problem, Selection
from .triton_launch import chunks, padded, pool_arguments, row_tile
from .triton_objective import (
    NO_PICK,
    best_of,
    comparable,
    group_count,
    inverse,
    may_be_picked,
    mmr_value,
    pool_ids,
    running_max,
    store_pick,
    vrsd_value,
    with_bias,
)

# The running vectors of the queries that run together take no more than this.
WORKSPACE_BYTES = 1 << 28


@triton.jit
def _slice_products(x, y, products, squares, SQUARES: tl.constexpr):
    """Add a slice of rows x [ROWS, DIMS] times y [DIMS], and the rows' own squares, lane by lane."""
    x = x.to(tl.float32)
    products += x * y[None, :]
    if SQUARES:
        squares += x * x
    return products, squares


@triton.jit
def _row_square(row, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for d0 in range(0, D, BLOCK):
        x = tl.load(row + d0 + d, mask=d0 + d < D, other=0).to(tl.float32)
        squares += x * x
    return tl.sum(squares, 0)


@triton.jit
def _row_product(row, query, factor, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    products = tl.zeros([BLOCK], tl.float32)
    for d0 in range(0, D, BLOCK):
        x = tl.load(row + d0 + d, mask=d0 + d < D, other=0).to(tl.float32)
        products += x * (factor * tl.load(query + d0 + d, mask=d0 + d < D, other=0.0))
    return tl.sum(products, 0)


@triton.jit
def _initial_item(
    rows,
    scales,
    initial,
    queries,
    factor,
    q,
    turn,
    row_stride,
    pool_stride,
    num_ids,
    S,
    D,
    VRSD: tl.constexpr,
    COMPUTED: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Return the id of an initial item (-1: padding), its row's factor and, for VRSD, its product with the query and
    its length."""
    item = tl.full([], -1, tl.int64)
    f = 1.0
    own = 0.0
    length = 1.0
    if initial is not None:
        item = tl.load(initial + q * S + turn).to(tl.int64)
        known = (item >= 0) & (item < num_ids)
        at = tl.where(known, item, 0) + q * pool_stride
        item = tl.where(known, item, -1)
        row = rows + at * row_stride
        if COMPUTED or VRSD:
            norm = tl.sqrt_rn(_row_square(row, D, DIMS))
            length = norm
            if COMPUTED:
                f = inverse(norm)
                length = tl.where(norm == 0, 0.0, 1.0)
        if scales is not None:
            f = tl.load(scales + at)
            length *= f
        if VRSD:
            own = f * _row_product(row, queries + q * D, factor, D, DIMS)
    return item, f, own, length


@triton.jit(do_not_specialize=("q0", "P", "S", "K", "num_ids", "cap"))
def select_stream_kernel(
    rows,
    scales,
    queries,
    query_factors,
    candidates,
    initial,
    relevance,
    bias,
    groups,
    query_groups,
    ks,
    lambda_d,
    lambda_b,
    out_index,
    out_score,
    out_relevance,
    out_redundancy,
    out_length,
    work,
    sums,
    row_stride,
    pool_stride,
    num_ids,
    q0,
    P,
    S,
    K,
    D,
    cap,
    stride,
    VRSD: tl.constexpr,
    COMPUTED: tl.constexpr,
    BIAS_BY_ROW: tl.constexpr,
    EVEN_D: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    q = q0 + program
    plane = tl.num_programs(0).to(tl.int64) * stride
    v_at = work + program * stride
    state_at = v_at + plane
    f_at = state_at + plane
    length_at = f_at + plane
    s_at = sums
    if VRSD:
        s_at = sums + program * D
    n = tl.arange(0, ROWS)
    d = tl.arange(0, DIMS)
    full = D // DIMS * DIMS
    nan = float("nan")
    weight = tl.load(lambda_d + q)
    bias_weight = tl.load(lambda_b + q)
    QUERY: tl.constexpr = relevance is None
    NORMS: tl.constexpr = COMPUTED or VRSD
    # VRSD needs the products of initial items even where it is given the pool's relevance.
    factor = 1.0
    if query_factors is not None:
        factor = tl.load(query_factors + q)
    wanted = K
    if ks is not None:
        wanted = tl.minimum(tl.load(ks + q), K).to(tl.int32)

    # 1. Relevance, norms and who may be picked; the first pick's value is v.
    lane_best = tl.full([ROWS], float("-inf"), tl.float32)
    lane_at = tl.zeros([ROWS], tl.int64)
    for p0 in range(0, P, ROWS):
        p = p0 + n
        ids, valid = pool_ids(candidates, q, p, P, num_ids)
        row = ids + q * pool_stride
        f = tl.full([ROWS], 1.0, tl.float32)
        length = f
        r = f
        if QUERY or NORMS:
            base = rows + row[:, None] * row_stride
            products = tl.zeros([ROWS, DIMS], tl.float32)
            squares = products
            y = tl.zeros([DIMS], tl.float32)
            # Full slices need no mask along D: with one, 16-byte loads become one load an element.
            for d0 in range(0, full, DIMS):
                x = tl.load(base + (d0 + d)[None, :], mask=valid[:, None], other=0)
                if QUERY:
                    y = tl.load(queries + q * D + d0 + d) * factor
                products, squares = _slice_products(x, y, products, squares, NORMS)
            if not EVEN_D:
                tail = full + d < D
                x = tl.load(base + (full + d)[None, :], mask=valid[:, None] & tail[None, :], other=0)
                if QUERY:
                    y = tl.load(queries + q * D + full + d, mask=tail, other=0.0) * factor
                products, squares = _slice_products(x, y, products, squares, NORMS)
            r = tl.sum(products, 1)
            if NORMS:
                norm = tl.sqrt_rn(tl.sum(squares, 1))
                length = norm
                if COMPUTED:
                    f = inverse(norm)
                    length = tl.where(norm == 0, 0.0, 1.0)
        if scales is not None:
            f = tl.load(scales + row, mask=valid, other=0.0)
            length *= f
        if VRSD:
            r *= inverse(norm)
        else:
            r *= f
        if relevance is not None:
            r = tl.load(relevance + q * P + p, mask=p < P, other=0.0)
        if BIAS_BY_ROW:
            v = with_bias(r, bias, row, valid, bias_weight)
        else:
            v = with_bias(r, bias, q * P + p, p < P, bias_weight)
        free = may_be_picked(ids, row, valid, q, initial, S, groups, query_groups)
        start = 0.0 if VRSD else NO_PICK
        tl.store(v_at + p, v, mask=p < P)
        tl.store(state_at + p, tl.where(free, start, nan), mask=p < P)
        tl.store(f_at + p, f, mask=p < P)
        if VRSD:
            tl.store(length_at + p, length, mask=p < P)
        w = comparable(v, free)
        better = w > lane_best
        lane_best = tl.where(better, w, lane_best)
        lane_at = tl.where(better, p.to(tl.int64), lane_at)
    if VRSD:
        for d0 in range(0, D, DIMS):
            tl.store(s_at + d0 + d, tl.zeros([DIMS], tl.float32), mask=d0 + d < D)
    tl.debug_barrier()  # what follows reads what other threads have stored

    # 2. Initial items, then picks: each brings the running vectors up to date and finds the next best.
    s_query = 0.0
    s_length = 0.0
    made = 0
    num_taken = 0
    for turn in range(S + wanted):
        best, best_at = best_of(lane_best, lane_at)
        if turn >= S:
            taken = best > float("-inf")
            position = tl.where(taken, best_at, 0)
            item = position
            if candidates is not None:
                item = tl.load(candidates + q * P + position).to(tl.int64)
            f_taken = tl.load(f_at + position)
            v_taken = tl.load(v_at + position)
            first = num_taken == 0
            own_length = 1.0
            own = 0.0
            if VRSD:
                own_length = tl.load(length_at + position)
                own = v_taken * own_length
                m_taken = nan
                score = best
            else:
                m_taken = tl.where(first, 0.0, tl.load(state_at + position))
                score = tl.where(first, weight * v_taken, best)
            store_pick(
                q * K + turn - S,
                taken,
                item,
                score,
                v_taken,
                m_taken,
                out_index,
                out_score,
                out_relevance,
                out_redundancy,
            )
            made += taken.to(tl.int32)
        else:
            item, f_taken, own, own_length = _initial_item(
                rows,
                scales,
                initial,
                queries,
                factor,
                q,
                turn,
                row_stride,
                pool_stride,
                num_ids,
                S,
                D,
                VRSD,
                COMPUTED,
                DIMS,
            )
            taken = item >= 0
            position = tl.full([], -1, tl.int64)
        row_taken = tl.where(taken, item, 0) + q * pool_stride
        taken_row = rows + row_taken * row_stride
        tl.debug_barrier()
        if cap is not None:
            taken_group = tl.load(groups + row_taken)
            count = group_count(
                taken_group,
                groups,
                q,
                tl.maximum(turn - S + 1, 0),
                K,
                q * pool_stride,
                num_ids,
                initial,
                S,
                tl.minimum(turn + 1, S),
                out_index,
                ROWS,
            )
        num_taken += taken.to(tl.int32)
        # Nothing needs to be known after the last pick; where nothing was found, nothing can be.
        if taken & (turn < S + wanted - 1):
            if VRSD:
                s_query += own
                s_length += own_length
                for d0 in range(0, D, DIMS):
                    inside = d0 + d < D
                    e = f_taken * tl.load(taken_row + d0 + d, mask=inside, other=0).to(tl.float32)
                    tl.store(s_at + d0 + d, tl.load(s_at + d0 + d, mask=inside, other=0.0) + e, mask=inside)
                tl.debug_barrier()
            lane_best = tl.full([ROWS], float("-inf"), tl.float32)
            for p0 in range(0, P, ROWS):
                p = p0 + n
                ids, valid = pool_ids(candidates, q, p, P, num_ids)
                row = ids + q * pool_stride
                base = rows + row[:, None] * row_stride
                f = tl.load(f_at + p, mask=p < P, other=0.0)
                state = tl.load(state_at + p, mask=p < P, other=nan)
                v = tl.load(v_at + p, mask=p < P, other=0.0)
                products = tl.zeros([ROWS, DIMS], tl.float32)
                for d0 in range(0, full, DIMS):
                    x = tl.load(base + (d0 + d)[None, :], mask=valid[:, None], other=0).to(tl.float32)
                    if VRSD:
                        x = x * f[:, None] + tl.load(s_at + d0 + d)[None, :]
                        products += x * x
                    else:
                        products += x * tl.load(taken_row + d0 + d).to(tl.float32)[None, :]
                if not EVEN_D:
                    tail = full + d < D
                    x = tl.load(base + (full + d)[None, :], mask=valid[:, None] & tail[None, :], other=0)
                    x = x.to(tl.float32)
                    if VRSD:
                        x = x * f[:, None] + tl.load(s_at + full + d, mask=tail, other=0.0)[None, :]
                        products += x * x
                    else:
                        products += x * tl.load(taken_row + full + d, mask=tail, other=0).to(tl.float32)[None, :]
                product = tl.sum(products, 1)
                state = tl.where(p == position, nan, state)
                if cap is not None:
                    same = tl.load(groups + row, mask=valid, other=0) == taken_group
                    state = tl.where(tl.where(same, count, 0) >= cap, nan, state)
                if VRSD:
                    length = tl.load(length_at + p, mask=p < P, other=0.0)
                    w = vrsd_value(v, length, product, s_query, s_length, False)
                else:
                    state = running_max(state, product * f * f_taken)
                    w = mmr_value(v, state, weight, False)
                tl.store(state_at + p, state, mask=p < P)
                w = comparable(w, state == state)
                better = w > lane_best
                lane_best = tl.where(better, w, lane_best)
                lane_at = tl.where(better, p.to(tl.int64), lane_at)
            tl.debug_barrier()
    for step in range(wanted, K):
        store_pick(q * K + step, False, -1, 0.0, 0.0, 0.0, out_index, out_score, out_relevance, out_redundancy)
    tl.store(out_length + q, made)


def select(problem: Problem, out: Selection) -> None:
    """Launch regime b, one program a query, in chunks of queries."""
    data, D, vrsd = problem.rows.data, problem.rows.data.shape[1], problem.op == "vrsd"
    tile, stride = row_tile(problem.rows.dtype, D), padded(problem.pool)
    arguments = pool_arguments(problem, out)
    for q0, num_queries in chunks(problem.num_queries, 16 * stride + 4 * D * vrsd, WORKSPACE_BYTES, 1):
        select_stream_kernel[(num_queries,)](
            **arguments,
            work=_arrays.empty(data, (4, num_queries, stride), "float32"),
            sums=_arrays.empty(data, (num_queries, D), "float32") if vrsd else None,
            q0=q0,
            stride=stride,
            EVEN_D=D % tile.dims == 0,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **tile.options(),
        )
