"""Regime b, VRSD and MSD: pools of any size. One program a query; every step reads the pool's rows again, tile by tile.

The cosine of VRSD falls and rises from pick to pick, and MSD's sum of distances rises, so that no bound outlives one,
as those of MMR do (``bounds.py``). A step needs the pick of the one before it, so that splitting a pool over
programs would take a barrier across the device for every pick; with as many programs as queries the device is full.
Blocks at work on a device hold more rows than its cache, so each step reads its rows from memory.

A program's running vectors lie in ``work`` (4, Q, stride): the relevance (MSD: with bias), 0 or NaN, the factor f of
the row (vector = f * row), the length of the vector (MSD: its product with the sum of the picks); with a ceiling a
fifth has the largest similarity to a pick. NaN marks what may not be picked. The sum of the picks is in ``sums``
(Q, D), and |s + e|² comes from the rows themselves, so nothing cancels.

Threads that hold the same item may find it written by another of them before they read it. That changes nothing: a mark
is made from what does not change, and is the same when it is made again.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from ..._base import arrays
from ..._gpu.plans import launch
from ..problem import Problem, Selection
from .launch import Tile, chunks, limits, padded, pool_arguments, row_tile
from .objective import (
    best_of,
    comparable,
    group_count,
    inverse,
    may_be_picked,
    pool_ids,
    running_max,
    still_open,
    store_pick,
    vrsd_value,
    with_bias,
    within_budget,
)
from .rows import initial_item, similarity

# The running vectors of the queries that run together take no more than this.
WORKSPACE_BYTES = 1 << 28


@triton.jit
def _slice_products(x, y, products, squares):
    """Add a slice of rows x [ROWS, DIMS] times y [DIMS], and the rows' own squares, lane by lane."""
    x = x.to(tl.float32)
    return products + x * y[None, :], squares + x * x


@triton.jit
def _towards_sum(x, f, s, products, MSD: tl.constexpr):
    """Add a slice of the rows' products with the sum s of the picks, or of the squares of both together."""
    x = x.to(tl.float32)
    if MSD:
        return products + x * s[None, :]
    else:
        x = x * f[:, None] + s[None, :]
        return products + x * x


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
    costs,
    budget,
    max_similarity,
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
    far,
    MSD: tl.constexpr,
    COMPUTED: tl.constexpr,
    BIAS_BY_ROW: tl.constexpr,
    COSTS_BY_ROW: tl.constexpr,
    EVEN_D: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    q = q0 + program
    plane = tl.num_programs(0).to(tl.int64) * stride
    r_at = work + program * stride
    state_at = r_at + plane
    f_at = state_at + plane
    length_at = f_at + plane
    near_at = length_at + plane  # with a ceiling
    s_at = sums + program * D
    n = tl.arange(0, ROWS)
    d = tl.arange(0, DIMS)
    full = D // DIMS * DIMS
    nan = float("nan")
    QUERY: tl.constexpr = relevance is None
    # The products of initial items are needed even where the pool's relevance is given.
    factor = 1.0
    if query_factors is not None:
        factor = tl.load(query_factors + q)
    wanted = K
    if ks is not None:
        wanted = tl.minimum(tl.load(ks + q), K).to(tl.int32)
    most = None
    if max_similarity is not None:
        most = tl.load(max_similarity + q)
    spent = tl.zeros([], tl.float64)
    weight = 1.0
    if MSD:
        weight = tl.load(lambda_d + q)

    # 1. Relevance, norms and who may be picked; the first pick's value is r.
    lane_best = tl.full([ROWS], float("-inf"), tl.float32)
    lane_at = tl.zeros([ROWS], tl.int64)
    for p0 in range(0, P, ROWS):
        p = p0 + n
        ids, valid = pool_ids(candidates, q, p, P, num_ids)
        row = ids + q * pool_stride
        f = tl.full([ROWS], 1.0, tl.float32)
        base = rows + row[:, None] * row_stride
        products = tl.zeros([ROWS, DIMS], tl.float32)
        squares = products
        y = tl.zeros([DIMS], tl.float32)
        # Full slices need no mask along D: with one, 16-byte loads become one load an element.
        for d0 in range(0, full, DIMS):
            x = tl.load(base + (d0 + d)[None, :], mask=valid[:, None], other=0)
            if QUERY:
                y = tl.load(queries + q * D + d0 + d) * factor
            products, squares = _slice_products(x, y, products, squares)
        if not EVEN_D:
            tail = full + d < D
            x = tl.load(base + (full + d)[None, :], mask=valid[:, None] & tail[None, :], other=0)
            if QUERY:
                y = tl.load(queries + q * D + full + d, mask=tail, other=0.0) * factor
            products, squares = _slice_products(x, y, products, squares)
        norm = tl.sqrt_rn(tl.sum(squares, 1))
        length = norm
        if COMPUTED:
            f = inverse(norm)
            length = tl.where(norm == 0, 0.0, 1.0)
        if scales is not None:
            f = tl.load(scales + row, mask=valid, other=0.0)
            length *= f
        if MSD:
            r = tl.sum(products, 1) * f
            length = tl.zeros([ROWS], tl.float32)
        else:
            r = tl.sum(products, 1) * inverse(norm)
        if relevance is not None:
            r = tl.load(relevance + q * P + p, mask=p < P, other=0.0)
        if MSD:
            r = with_bias(r, bias, row if BIAS_BY_ROW else q * P + p, valid, tl.load(lambda_b + q))
        free = may_be_picked(ids, row, valid, q, initial, S, groups, query_groups)
        if costs is not None:
            free &= within_budget(costs, budget, spent, q, p, row, valid, P, COSTS_BY_ROW)
        if max_similarity is not None:
            tl.store(near_at + p, tl.full([ROWS], float("-inf"), tl.float32), mask=p < P)
        tl.store(r_at + p, r, mask=p < P)
        tl.store(state_at + p, tl.where(free, 0.0, nan), mask=p < P)
        tl.store(f_at + p, f, mask=p < P)
        tl.store(length_at + p, length, mask=p < P)
        w = comparable(r, free)
        better = w > lane_best
        lane_best = tl.where(better, w, lane_best)
        lane_at = tl.where(better, p.to(tl.int64), lane_at)
    for d0 in range(0, D, DIMS):
        tl.store(s_at + d0 + d, tl.zeros([DIMS], tl.float32), mask=d0 + d < D)
    tl.debug_barrier()  # what follows reads what other threads have stored

    # 2. Initial items, then picks: each brings the running vectors up to date and finds the next best.
    s_query = 0.0
    s_length = 0.0
    terms = 0.0  # how many items are in the sum
    made = 0
    for turn in range(S + wanted):
        best, best_at = best_of(lane_best, lane_at)
        if turn >= S:
            taken = best > float("-inf")
            position = tl.where(taken, best_at, 0)
            item = position
            if candidates is not None:
                item = tl.load(candidates + q * P + position).to(tl.int64)
            f_taken = tl.load(f_at + position)
            r_taken = tl.load(r_at + position)
            own_length = tl.load(length_at + position)
            own = r_taken * own_length
            score = best
            redundancy = tl.full([], nan, tl.float32)
            if MSD:
                score = tl.where(terms == 0, weight * r_taken, best)
                redundancy = tl.div_rn(own_length, tl.maximum(terms, 1.0))
            elif max_similarity is not None:
                redundancy = tl.where(terms == 0, 0.0, tl.load(near_at + position))
            store_pick(
                q * K + turn - S,
                taken,
                item,
                score,
                r_taken,
                redundancy,
                out_index,
                out_score,
                out_relevance,
                out_redundancy,
            )
            made += taken.to(tl.int32)
            if costs is not None:
                at = item + q * pool_stride if COSTS_BY_ROW else q * P + position
                spent += tl.load(costs + at, mask=taken, other=0.0)
        else:
            item, f_taken, own, own_length = initial_item(
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
                not MSD,
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
        # Nothing needs to be known after the last pick; where nothing was found, nothing can be.
        if taken & (turn < S + wanted - 1):
            terms += 1.0
            s_query += own
            s_length += own_length
            for d0 in range(0, D, DIMS):
                inside = d0 + d < D
                e = f_taken * tl.load(taken_row + d0 + d, mask=inside, other=0).to(tl.float32)
                total = tl.load(s_at + d0 + d, mask=inside, other=0.0) + e
                tl.debug_barrier()  # no thread adds to what another has added to already
                tl.store(s_at + d0 + d, total, mask=inside)
            tl.debug_barrier()
            lane_best = tl.full([ROWS], float("-inf"), tl.float32)
            for p0 in range(0, P, ROWS):
                p = p0 + n
                ids, valid = pool_ids(candidates, q, p, P, num_ids)
                row = ids + q * pool_stride
                base = rows + row[:, None] * row_stride
                f = tl.load(f_at + p, mask=p < P, other=0.0)
                state = tl.load(state_at + p, mask=p < P, other=nan)
                r = tl.load(r_at + p, mask=p < P, other=0.0)
                length = tl.load(length_at + p, mask=p < P, other=0.0)
                products = tl.zeros([ROWS, DIMS], tl.float32)
                near = products
                for d0 in range(0, full, DIMS):
                    x = tl.load(base + (d0 + d)[None, :], mask=valid[:, None], other=0)
                    products = _towards_sum(x, f, tl.load(s_at + d0 + d), products, MSD)
                    if max_similarity is not None:
                        near += x.to(tl.float32) * tl.load(taken_row + d0 + d).to(tl.float32)[None, :]
                if not EVEN_D:
                    tail = full + d < D
                    x = tl.load(base + (full + d)[None, :], mask=valid[:, None] & tail[None, :], other=0)
                    products = _towards_sum(x, f, tl.load(s_at + full + d, mask=tail, other=0.0), products, MSD)
                    if max_similarity is not None:
                        y = tl.load(taken_row + full + d, mask=tail, other=0).to(tl.float32)
                        near += x.to(tl.float32) * y[None, :]
                state = tl.where(p == position, nan, state)
                if cap is not None:
                    same = tl.load(groups + row, mask=valid, other=0) == taken_group
                    state = tl.where(tl.where(same, count, 0) >= cap, nan, state)
                if costs is not None:
                    fits = within_budget(costs, budget, spent, q, p, row, valid, P, COSTS_BY_ROW)
                    state = tl.where(fits, state, nan)
                if max_similarity is not None:
                    m = tl.load(near_at + p, mask=p < P, other=nan)
                    m = running_max(m, similarity(near, f, f_taken))
                    tl.store(near_at + p, m, mask=p < P)
                    state = tl.where(still_open(m, most), state, nan)
                tl.store(state_at + p, state, mask=p < P)
                if MSD:
                    t = tl.sum(products, 1) * f
                    tl.store(length_at + p, t, mask=p < P)
                    w = weight * r + (1.0 - weight) * (far * terms - t)
                else:
                    w = vrsd_value(r, length, tl.sum(products, 1), s_query, s_length, False)
                w = comparable(w, state == state)
                better = w > lane_best
                lane_best = tl.where(better, w, lane_best)
                lane_at = tl.where(better, p.to(tl.int64), lane_at)
            tl.debug_barrier()
    for step in range(wanted, K):
        store_pick(q * K + step, False, -1, 0.0, 0.0, 0.0, out_index, out_score, out_relevance, out_redundancy)
    tl.store(out_length + q, made)


def stream_tile(dtype: str, dims: int, ceiling: bool) -> Tile:
    """Return the tile of VRSD and MSD out of large pools; with a ceiling rows meet the pick too."""
    # 128 lets two blocks of 8 warps live on a multiprocessor; left to itself the assembler spills for one more. With a
    # ceiling Triton 3.6 spills 56 bytes at 128 on sm_80, and 3.9 spills 72 bytes of int8 there to stay at 128.
    halves = dtype in ("float16", "bfloat16")
    return row_tile(dtype, dims)._replace(maxnreg=(168 if halves else 255) if ceiling else (128 if halves else None))


def select(problem: Problem, out: Selection) -> None:
    """Launch VRSD or MSD of regime b, one program a query, in chunks of queries."""
    data, D = problem.rows.data, problem.rows.data.shape[1]
    arguments, stride = pool_arguments(problem, out) | limits(problem), padded(problem.pool)
    msd, ceiling = problem.op == "msd", arguments["max_similarity"] is not None
    tile, planes = stream_tile(problem.rows.dtype, D, ceiling), 4 + ceiling
    if not msd:
        for name in ("bias", "lambda_d", "lambda_b"):
            arguments[name] = None
    for q0, num_queries in chunks(problem.num_queries, 4 * planes * stride + 4 * D, WORKSPACE_BYTES, 1):
        launch(
            select_stream_kernel,
            (num_queries,),
            **arguments,
            work=arrays.empty(data, (planes, num_queries, stride), "float32"),
            sums=arrays.empty(data, (num_queries, D), "float32"),
            q0=q0,
            stride=stride,
            far=1.0 if problem.rows.metric == "cosine" else 0.0,
            MSD=msd,
            EVEN_D=D % tile.dims == 0,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **tile.options(),
        )
