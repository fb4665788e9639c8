"""Regime b, MMR: pools of any size. One program a query, which reads a row again only where its bound calls for it.

Scores only fall as picks are added, so the score of an item that has not met the newest picks is a bound of its true
one. A step takes the items of the largest bounds, a tile at a time, and lets them meet the picks that they lack, until
the best score that is known is no less than any bound. An item meets its picks in order and by one sum of products, so
its score has the same bits whenever that happens.

The pass over the pool that finds the relevance also lets each tile meet the best item of the tiles before it. In a pool
that comes best first that is the first pick, so all but the first tile have met one pick when the choice begins. An
initial item, which is known, is met in its place.

What costs more than is left of a budget is marked after each pick. An item above a ceiling of similarity is closed by
any m that exceeds it, for m only grows; before it is picked an item has met all picks.

A program's running vectors lie in ``work`` (4, Q, stride): v, m, the factor f of the row (vector = f * row), the number
of turns that m takes into account. A turn is an initial item or a pick; ``taken_rows`` and ``taken_factors``
(Q, S + K) have the row of each, -1 for padding, and its factor. NaN as m marks what may not be picked.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from ..._base import arrays
from ..._gpu.compilers import is_hopper
from ..._gpu.plans import launch
from ..problem import Problem, Selection
from .launch import OPTIONS, Tile, chunks, limits, padded, pool_arguments, row_tile
from .objective import (
    NO_PICK,
    best_of,
    comparable,
    group_count,
    inverse,
    may_be_picked,
    mmr_value,
    pool_ids,
    running_max,
    still_open,
    store_pick,
    with_bias,
    within_budget,
)
from .rows import catch_up, everywhere, initial_item, similarity

# The running vectors of the queries that run together take no more than this.
WORKSPACE_BYTES = 1 << 28

# Slices of a tile that are on their way at a time in the first pass.
STAGES = 4

# A step looks for the items of the largest bounds at most this often, each time with a scan of all bounds. If that does
# not settle the pick, it goes through all tiles.
ROUNDS = tl.constexpr(16)
# In the first round of a step, only the lane with the largest bound of SHARE lanes computes a score. The scores found
# often rule out the items of the other lanes.
SHARE = tl.constexpr(4)
# Bounds that a scan compares at a time.
SCAN = tl.constexpr(1024)


@triton.jit
def _promising(v_at, m_at, met_at, P, turns, weight, most, ROWS: tl.constexpr):
    """Return the best known score and its position and, for each lane, the item of the largest bound.

    Lane i has positions i, i + ROWS, ...; the items of high relevance, which are neighbours, are in lanes of their own.
    """
    lanes = tl.arange(0, SCAN // ROWS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    known_best = tl.full([ROWS], float("-inf"), tl.float32)
    known_at = tl.zeros([ROWS], tl.int32)
    bound = known_best
    bound_at = known_at
    for p0 in range(0, P, SCAN):
        p = p0 + lanes
        inside = p < P
        m = tl.load(m_at + p, mask=inside, other=float("nan"))
        v = tl.load(v_at + p, mask=inside, other=0.0)
        w = comparable(mmr_value(v, m, weight, False), still_open(m, most))
        known = tl.load(met_at + p, mask=inside, other=0.0) == turns
        known_best, known_at = larger_in_lanes(tl.where(known, w, float("-inf")), p, known_best, known_at)
        bound, bound_at = larger_in_lanes(tl.where(known, float("-inf"), w), p, bound, bound_at)
    best, at = best_of(known_best, known_at.to(tl.int64))
    return best, at, bound, bound_at.to(tl.int64)


@triton.jit
def larger_in_lanes(w, p, lane_best, lane_at):
    """Return each lane's best and its lowest position after values w [.., ROWS] at positions p."""
    best = tl.max(w, 0)
    at = tl.min(tl.where(w == best[None, :], p, 0x7FFFFFFF), 0)
    better = best > lane_best
    return tl.where(better, best, lane_best), tl.where(better, at, lane_at)


@triton.jit
def close_group(
    row,
    groups,
    candidates,
    m_at,
    q,
    P,
    S,
    K,
    num_ids,
    pool_stride,
    initial,
    out_index,
    picks,
    cap,
    ROWS: tl.constexpr,
):
    """Mark all items of a row's group if so many of these picks and initial items are of it; -1: there is no row."""
    offset = q * pool_stride
    group = tl.load(groups + tl.maximum(row, 0))
    count = group_count(group, groups, q, picks, K, offset, num_ids, initial, S, S, out_index, ROWS)
    if (row >= 0) & (count >= cap):
        for p0 in range(0, P, SCAN):
            p = p0 + tl.arange(0, SCAN)
            ids, valid = pool_ids(candidates, q, p, P, num_ids)
            same = tl.load(groups + ids + offset, mask=valid, other=0) == group
            tl.store(m_at + p, float("nan"), mask=valid & same)
        tl.debug_barrier()


@triton.jit
def close_costly(
    costs, budget, spent, candidates, m_at, q, P, num_ids, pool_stride, BY_ROW: tl.constexpr
):  # fmt: skip
    """Mark all items that cost more than is left."""
    for p0 in range(0, P, SCAN):
        p = p0 + tl.arange(0, SCAN)
        ids, valid = pool_ids(candidates, q, p, P, num_ids)
        fits = within_budget(costs, budget, spent, q, p, ids + q * pool_stride, valid, P, BY_ROW)
        tl.store(m_at + p, float("nan"), mask=valid & (fits == 0))
    tl.debug_barrier()


@triton.jit(do_not_specialize=("q0", "P", "S", "K", "num_ids", "cap"))
def select_bounds_kernel(
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
    taken_rows,
    taken_factors,
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
    COMPUTED: tl.constexpr,
    BIAS_BY_ROW: tl.constexpr,
    COSTS_BY_ROW: tl.constexpr,
    EVEN_D: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    q = q0 + program
    plane = tl.num_programs(0).to(tl.int64) * stride
    v_at = work + program * stride
    m_at = v_at + plane
    f_at = m_at + plane
    met_at = f_at + plane
    taken_rows += program * (S + K)
    taken_factors += program * (S + K)
    n = tl.arange(0, ROWS)
    d = tl.arange(0, DIMS)
    s = tl.arange(0, SCAN)
    full = D // DIMS * DIMS
    nan = float("nan")
    weight = tl.load(lambda_d + q)
    bias_weight = tl.load(lambda_b + q)
    QUERY: tl.constexpr = relevance is None
    READ: tl.constexpr = QUERY or COMPUTED  # else the relevance takes no row
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

    # 1. Initial items. The first is what all tiles meet in the first pass.
    num_taken = 0
    guess_at = tl.full([], -1, tl.int64)
    guess = tl.full([], -1, tl.int64)
    f_guess = 1.0
    if initial is not None:
        for turn in range(S):
            item, f_item, _, _ = initial_item(
                rows, scales, initial, queries, factor, q, turn, row_stride, pool_stride, num_ids, S, D,
                False, COMPUTED, DIMS,
            )  # fmt: skip
            row_item = tl.where(item >= 0, item + q * pool_stride, -1)
            tl.store(taken_rows + turn, row_item)
            tl.store(taken_factors + turn, f_item)
            num_taken += (item >= 0).to(tl.int32)
            guess = tl.where(turn == 0, row_item, guess)
            f_guess = tl.where(turn == 0, f_item, f_guess)

    # 2. Relevance, norms and who may be picked; the first pick's value is v. From position `since` on items have met
    # the first turn.
    lane_best = tl.full([ROWS], float("-inf"), tl.float32)
    lane_at = tl.zeros([ROWS], tl.int64)
    since = P
    if READ and initial is not None:
        since = 0
    for p0 in range(0, P, ROWS):
        p = p0 + n
        ids, valid = pool_ids(candidates, q, p, P, num_ids)
        row = ids + q * pool_stride
        f = tl.full([ROWS], 1.0, tl.float32)
        r = f
        if READ:
            base = rows + row[:, None] * row_stride
            taken_row = rows + tl.maximum(guess, 0) * row_stride
            guessed = everywhere(guess >= 0, DIMS)
            products = tl.zeros([ROWS, DIMS], tl.float32)
            squares = products
            near = products
            # Full slices need no mask along D: with one, 16-byte loads become one load an element.
            for d0 in tl.range(0, full, DIMS, num_stages=STAGES):
                x = tl.load(base + (d0 + d)[None, :], mask=valid[:, None], other=0).to(tl.float32)
                near += x * tl.load(taken_row + d0 + d, mask=guessed, other=0).to(tl.float32)[None, :]
                if QUERY:
                    products += x * (tl.load(queries + q * D + d0 + d) * factor)[None, :]
                if COMPUTED:
                    squares += x * x
            if not EVEN_D:
                tail = full + d < D
                x = tl.load(base + (full + d)[None, :], mask=valid[:, None] & tail[None, :], other=0).to(tl.float32)
                near += x * tl.load(taken_row + full + d, mask=tail & guessed, other=0).to(tl.float32)[None, :]
                if QUERY:
                    products += x * (tl.load(queries + q * D + full + d, mask=tail, other=0.0) * factor)[None, :]
                if COMPUTED:
                    squares += x * x
            r = tl.sum(products, 1)
            if COMPUTED:
                f = inverse(tl.sqrt_rn(tl.sum(squares, 1)))
        if scales is not None:
            f = tl.load(scales + row, mask=valid, other=0.0)
        r *= f
        if READ:
            tl.store(met_at + p, similarity(near, f, f_guess), mask=p < P)
        if relevance is not None:
            r = tl.load(relevance + q * P + p, mask=p < P, other=0.0)
        if BIAS_BY_ROW:
            v = with_bias(r, bias, row, valid, bias_weight)
        else:
            v = with_bias(r, bias, q * P + p, p < P, bias_weight)
        free = may_be_picked(ids, row, valid, q, initial, S, groups, query_groups)
        if costs is not None:
            free &= within_budget(costs, budget, spent, q, p, row, valid, P, COSTS_BY_ROW)
        tl.store(v_at + p, v, mask=p < P)
        tl.store(m_at + p, tl.where(free, NO_PICK, nan), mask=p < P)
        tl.store(f_at + p, f, mask=p < P)
        w = comparable(v, free)
        better = w > lane_best
        lane_best = tl.where(better, w, lane_best)
        lane_at = tl.where(better, p.to(tl.int64), lane_at)
        if READ and initial is None:
            best, best_at = best_of(lane_best, lane_at)
            here = p == best_at
            changed = (best > float("-inf")) & (best_at != guess_at)
            guess_at = tl.where(changed, best_at, guess_at)
            guess = tl.where(changed, tl.sum(tl.where(here, row, 0), 0), guess)
            f_guess = tl.where(changed, tl.sum(tl.where(here, f, 0.0), 0), f_guess)
            since = tl.where(changed, p0 + ROWS, since)
    tl.debug_barrier()  # what follows reads what other threads have stored
    for p0 in range(0, P, SCAN):
        p = p0 + s
        has_met = (p >= since) & (p < P)
        similar = has_met & everywhere(guess >= 0, SCAN)
        m = tl.load(m_at + p, mask=similar, other=nan)
        near = tl.load(met_at + p, mask=similar, other=nan)
        tl.debug_barrier()
        tl.store(m_at + p, running_max(m, near), mask=similar)
        tl.store(met_at + p, has_met.to(tl.float32), mask=p < P)
    tl.debug_barrier()

    if cap is not None and initial is not None:
        for turn in range(S):
            close_group(
                tl.load(taken_rows + turn), groups, candidates, m_at, q, P, S, K, num_ids, pool_stride, initial,
                out_index, 0, cap, ROWS,
            )  # fmt: skip

    # 3. Picks.
    made = 0
    for step in range(wanted):
        turns = S + step
        first = num_taken == 0
        best, best_at = best_of(lane_best, lane_at)
        attempt = 0
        looking = num_taken > 0
        while looking:
            if attempt < ROUNDS:
                best, best_at, bound, at = _promising(v_at, m_at, met_at, P, turns, weight, most, ROWS)
                these = bound > float("-inf")
                if attempt == 0:
                    shared = tl.max(tl.reshape(bound, [ROWS // SHARE, SHARE]), 1)
                    shared = tl.reshape(tl.broadcast_to(shared[:, None], [ROWS // SHARE, SHARE]), [ROWS])
                    these &= bound == shared
            else:
                at = (attempt - ROUNDS).to(tl.int64) * ROWS + n
                these = at < P
            v = tl.load(v_at + at, mask=these, other=0.0)
            m = tl.load(m_at + at, mask=these, other=nan)
            met = tl.load(met_at + at, mask=these, other=0.0).to(tl.int32)
            f = tl.load(f_at + at, mask=these, other=0.0)
            w = comparable(mmr_value(v, m, weight, False), still_open(m, most))
            these &= (met < turns) & (w > float("-inf")) & ((w > best) | ((w == best) & (at < best_at)))
            looking = tl.max(these.to(tl.int32), 0) > 0
            if looking:
                ids, _ = pool_ids(candidates, q, at, P, num_ids)
                base = rows + (ids + q * pool_stride)[:, None] * row_stride
                m = catch_up(
                    rows, base, f, m, met, these, taken_rows, taken_factors, turns, row_stride, D,
                    EVEN_D, ROWS, DIMS,
                )  # fmt: skip
                # All threads have read before one writes: a thread that found its turns met would keep the older m.
                tl.debug_barrier()
                tl.store(m_at + at, m, mask=these)
                tl.store(met_at + at, (at * 0 + turns).to(tl.float32), mask=these)
                w = tl.where(these, comparable(mmr_value(v, m, weight, False), still_open(m, most)), float("-inf"))
                tile_best, tile_at = best_of(w, at)
                better = (tile_best > best) | ((tile_best == best) & (tile_at < best_at))
                best = tl.where(better, tile_best, best)
                best_at = tl.where(better, tile_at, best_at)
                tl.debug_barrier()
            attempt += 1
            looking = looking | (attempt > ROUNDS)
            looking = looking & ((attempt - ROUNDS) * ROWS < P)

        taken = best > float("-inf")
        position = tl.where(taken, best_at, 0)
        item = position
        if candidates is not None:
            item = tl.load(candidates + q * P + position).to(tl.int64)
        row_taken = tl.where(taken, item, 0) + q * pool_stride
        v_taken = tl.load(v_at + position)
        m_taken = tl.where(first, 0.0, tl.load(m_at + position))
        score = tl.where(first, weight * v_taken, best)
        f_taken = tl.load(f_at + position)
        tl.debug_barrier()  # all have read m
        store_pick(
            q * K + step,
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
        tl.store(taken_rows + turns, tl.where(taken, row_taken, -1))
        tl.store(taken_factors + turns, f_taken)
        tl.store(m_at + position, nan, mask=taken)
        tl.debug_barrier()
        made += taken.to(tl.int32)
        num_taken += taken.to(tl.int32)
        if costs is not None:
            cost = tl.load(costs + (row_taken if COSTS_BY_ROW else q * P + position), mask=taken, other=0.0)
            spent += cost
            close_costly(
                costs, budget, spent, candidates, m_at, q, P, num_ids, pool_stride, COSTS_BY_ROW
            )  # fmt: skip
        if cap is not None:
            close_group(
                tl.where(taken, row_taken, -1), groups, candidates, m_at, q, P, S, K, num_ids, pool_stride, initial,
                out_index, step + 1, cap, ROWS,
            )  # fmt: skip
    for step in range(wanted, K):
        store_pick(q * K + step, False, -1, 0.0, 0.0, 0.0, out_index, out_score, out_relevance, out_redundancy)
    tl.store(out_length + q, made)


def bounds_tile(dtype: str, dims: int, plain: bool, hopper: bool = True) -> Tile:
    """Return the tile of MMR out of large pools; ``plain``: without options, which take registers, as int8 does."""
    rows, warps, most = 16, 4, 255
    if hopper and dtype != "int8":  # one warp waits for no other
        rows, warps = 8 if dtype == "float32" else 16, 1
    elif plain and dtype != "int8":  # three blocks can live on a multiprocessor
        most = 168
    # 255 is no bound, but left to itself the assembler spills a few bytes to let one more block in.
    return row_tile(dtype, dims)._replace(rows=rows, num_warps=warps, num_stages=STAGES, maxnreg=most)


def select(problem: Problem, out: Selection) -> None:
    """Launch MMR of regime b, one program a query, in chunks of queries."""
    data, D = problem.rows.data, problem.rows.data.shape[1]
    arguments, stride = pool_arguments(problem, out), padded(problem.pool)
    arguments |= limits(problem)
    plain = all(arguments.get(name) is None for name in OPTIONS)
    tile = bounds_tile(problem.rows.dtype, D, plain, is_hopper())
    if not arguments["S"]:
        arguments["initial"] = None
    turns = arguments["S"] + problem.k
    for q0, num_queries in chunks(problem.num_queries, 16 * stride + 12 * turns, WORKSPACE_BYTES, 1):
        launch(
            select_bounds_kernel,
            (num_queries,),
            **arguments,
            work=arrays.empty(data, (4, num_queries, stride), "float32"),
            taken_rows=arrays.empty(data, (num_queries, turns), "int64"),
            taken_factors=arrays.empty(data, (num_queries, turns), "float32"),
            q0=q0,
            stride=stride,
            EVEN_D=D % tile.dims == 0,
            ROWS=tile.rows,
            DIMS=tile.dims,
            STAGES=tile.num_stages,
            **tile.options(),
        )
