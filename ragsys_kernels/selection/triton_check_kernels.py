"""The kernels of regime c that check drafted picks over all rows, and take those that are right (``triton_check.py``).

Queries are numbered within a chunk that begins at q0. ``known`` (C, S + K) has a query's initial items, then its picks
that are certain, ``made`` of them, then -1; ``draft`` (C, K) has the picks that are guessed to follow. Queries that are
not finished are ``order[:count]``, so that those which are take no program's time.
"""

# ruff: noqa: RUF005, SIM102 - Triton knows no (*a, b), and no test at compile time beside one at run time
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from .triton_draft_kernels import relevance_with_bias
from .triton_objective import NO_PICK, best_of, comparable, mmr_value, running_max, store_pick


@triton.jit
def _item(known, draft, made, i, t, real, num_ids, S, K):
    """Return the item of place t of the initial items and picks of queries i, and whether there is one."""
    place = t - S - made  # in the draft
    item = tl.load(known + i * (S + K) + t, mask=real & (place < 0), other=-1)
    # Nothing comes after the last pick.
    guess = tl.load(draft + i * K + place, mask=real & (place >= 0) & (place < K - 1 - made), other=-1)
    item = tl.where(place < 0, item, guess)
    has = (item >= 0) & (item < num_ids)
    return tl.where(has, item, 0), has


@triton.jit
def _offer(step, v, m, row, weight, first, free, best_w, best_row, best_v, best_m, STEPS: tl.constexpr):
    """Keep the best value of a tile that begins at ``row`` for a step [STEPS, QUERIES], its lowest row, v and m."""
    w = comparable(mmr_value(v, m, weight[:, None], first[:, None]), free & (m == m))
    # Two plain reductions take fewer registers than one of values with their places.
    place = tl.arange(0, v.shape[1])[None, :]
    best = tl.max(w, 1)
    at = tl.min(tl.where(w == best[:, None], place, v.shape[1]), 1)
    mine = place == at[:, None]
    better = (tl.arange(0, STEPS) == step)[:, None] & (best[None, :] > best_w)
    best_w = tl.where(better, best[None, :], best_w)
    best_row = tl.where(better, (row + at)[None, :], best_row)
    best_v = tl.where(better, tl.sum(tl.where(mine, v, 0.0), 1)[None, :], best_v)
    best_m = tl.where(better, tl.sum(tl.where(mine, m, 0.0), 1)[None, :], best_m)
    return best_w, best_row, best_v, best_m


@triton.jit
def _slice_products(x, at, has, d, tail, r, products, PARTS: tl.constexpr, TERMS: tl.constexpr, DOT: tl.constexpr):
    """Add a slice of rows x [ROWS, DIMS] times PARTS parts of each query to r, times TERMS items to products."""
    x = tl.trans(x.to(DOT))
    found = ()
    for term in tl.static_range(PARTS + TERMS):
        mask = has[term][:, None]
        if tail is not None:
            mask = mask & tail
        y = tl.load(at[term] + d[None, :], mask=mask, other=0).to(DOT)  # [QUERIES, DIMS]
        if term < PARTS:
            r = tl.dot(y, x, r, input_precision="ieee")
        else:
            found = found + (tl.dot(y, x, products[term - PARTS], input_precision="ieee"),)
    return r, found


@triton.jit
def _take(item, has, similarity, m, counts, n, num_ids, factors, f, groups, cap):
    """Bring m, and how many items of its group each row comes after, up to date with an item of each query."""
    if factors is not None:
        similarity *= tl.load(factors + item, mask=has, other=0.0)[:, None] * f[None, :]
    m = tl.where(has[:, None], running_max(m, similarity), m)
    m = tl.where(has[:, None] & (n[None, :] == item[:, None]), float("nan"), m)
    if cap is not None:
        group = tl.load(groups + item, mask=has, other=0)
        same = tl.load(groups + n, mask=n < num_ids, other=0)[None, :] == group[:, None]
        counts += (same & has[:, None]).to(tl.int32)
        m = tl.where(same & has[:, None] & (counts >= cap), float("nan"), m)
    return m, counts


@triton.jit(do_not_specialize=("q0", "num_ids", "num_queries", "parts", "span", "S", "K", "cap"))
def corpus_check_kernel(
    rows,
    items,
    factors,
    query_parts,
    query_back,
    relevance,
    bias,
    groups,
    query_groups,
    lambda_d,
    lambda_b,
    known,
    made,
    draft,
    order,
    count,
    part_w,
    part_row,
    part_v,
    part_m,
    row_stride,
    q0,
    num_queries,
    num_ids,
    parts,
    span,
    S,
    K,
    D,
    cap,
    BIAS_BY_ROW: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT: tl.constexpr,
    PARTS: tl.constexpr,
    SHOWN: tl.constexpr,
    TERMS: tl.constexpr,
    STEPS: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """The best row of every step if the draft is right so far, over the ``span`` tiles of a part of the corpus.

    The rows of a tile are multiplied with the query and TERMS of its items while they are loaded once. ``items`` is
    ``rows`` again. The outputs (K, parts, C) are the best value, its lowest row, and that row's v and m.
    """
    # 1. The queries.
    blocks = tl.cdiv(num_queries, QUERIES)
    program = tl.program_id(0)
    j = (program % blocks) * QUERIES + tl.arange(0, QUERIES)
    unfinished = tl.load(count)
    if (program % blocks) * QUERIES >= unfinished:
        return
    part = (program // blocks).to(tl.int64)
    real = j < unfinished
    i = tl.load(order + j, mask=real, other=0).to(tl.int64)
    q = q0 + i
    sure = tl.load(made + i, mask=real, other=0)
    weight = tl.load(lambda_d + q, mask=real, other=0.0)
    d = tl.arange(0, DIMS)
    back = tl.zeros([QUERIES], tl.float32)
    if relevance is None:
        back = tl.load(query_back + i, mask=real, other=0.0)
    USED: tl.constexpr = PARTS if relevance is None else 0

    # 2. The best of each step, tile by tile.
    best_w = tl.full([STEPS, QUERIES], float("-inf"), tl.float32)
    best_row = tl.zeros([STEPS, QUERIES], tl.int32)
    best_v = tl.zeros([STEPS, QUERIES], tl.float32)
    best_m = tl.zeros([STEPS, QUERIES], tl.float32)
    full = D // DIMS * DIMS
    for turn in range(span):
        n = (part * span + turn) * ROWS + tl.arange(0, ROWS)
        base = rows + n[:, None] * row_stride
        inside = (n < num_ids)[:, None]
        ok = real[:, None] & (n < num_ids)[None, :]
        f = tl.full([ROWS], 1.0, tl.float32)
        if factors is not None:
            f = tl.load(factors + n, mask=n < num_ids, other=0.0)
        m = tl.full([QUERIES, ROWS], NO_PICK, tl.float32)
        counts = tl.zeros([QUERIES, ROWS], tl.int32)
        taken = tl.zeros([QUERIES], tl.int32)  # SHOWN: how many of the items come before a step
        for t0 in range(0, S + K - 1, TERMS):
            item = ()
            has = ()
            at = ()
            products = ()
            r = tl.zeros([QUERIES, ROWS], tl.float32)
            for digit in tl.static_range(USED):
                has = has + (real,)
                at = at + (query_parts + ((digit * num_queries + i) * D)[:, None],)
            for term in tl.static_range(TERMS):
                this, there = _item(known, draft, sure, i, t0 + term, real, num_ids, S, K)
                item = item + (this,)
                has = has + (there,)
                at = at + (items + this[:, None] * row_stride,)
                products = products + (tl.zeros([QUERIES, ROWS], tl.float32),)
            # Full slices need no mask along D: with one, 16-byte loads become one load an element.
            for d0 in range(0, full, DIMS):
                x = tl.load(base + (d0 + d)[None, :], mask=inside, other=0)  # [ROWS, DIMS]
                r, products = _slice_products(x, at, has, d0 + d, None, r, products, USED, TERMS, DOT)
            if not EVEN_D:
                tail = (full + d < D)[None, :]
                x = tl.load(base + (full + d)[None, :], mask=inside & tail, other=0)
                r, products = _slice_products(x, at, has, full + d, tail, r, products, USED, TERMS, DOT)
            v, free = relevance_with_bias(
                r * back[:, None] * f[None, :],
                q, n, ok, num_ids, relevance, bias, groups, query_groups, lambda_b, real, BIAS_BY_ROW,
            )  # fmt: skip
            if not SHOWN:
                if t0 == 0:
                    best_w, best_row, best_v, best_m = _offer(
                        0, v, m, turn * ROWS, weight, real, free, best_w, best_row, best_v, best_m, STEPS
                    )
            for term in tl.static_range(TERMS):
                there = has[USED + term]
                m, counts = _take(item[term], there, products[term], m, counts, n, num_ids, factors, f, groups, cap)
                if SHOWN:
                    taken += there.to(tl.int32)
                step = t0 + term - S + 1
                if (step >= 0) & (step < K):
                    best_w, best_row, best_v, best_m = _offer(
                        step,
                        v,
                        m,
                        turn * ROWS,
                        weight,
                        SHOWN & (taken == 0),
                        free,
                        best_w,
                        best_row,
                        best_v,
                        best_m,
                        STEPS,
                    )
    step = tl.arange(0, STEPS)[:, None]
    out = (step * parts.to(tl.int64) + part) * num_queries + i[None, :]
    wanted = real[None, :] & (step < K) & (step >= sure[None, :])
    tl.store(part_w + out, best_w, mask=wanted)
    tl.store(part_row + out, best_row + part * span * ROWS, mask=wanted)
    tl.store(part_v + out, best_v, mask=wanted)
    tl.store(part_m + out, best_m, mask=wanted)


@triton.jit
def _best_parts(part_w, part_row, at, parts, num_queries, BLOCK: tl.constexpr):
    """Return the best value of each lane's parts, and its lowest row."""
    j = tl.arange(0, BLOCK)
    lane_best = tl.full([BLOCK], float("-inf"), tl.float32)
    lane_row = tl.zeros([BLOCK], tl.int64)
    for p0 in range(0, parts, BLOCK):
        p = at + (p0 + j).to(tl.int64) * num_queries
        w = tl.load(part_w + p, mask=p0 + j < parts, other=float("-inf"))
        better = w > lane_best
        lane_best = tl.where(better, w, lane_best)
        lane_row = tl.where(better, tl.load(part_row + p, mask=better, other=0), lane_row)
    return lane_best, lane_row


@triton.jit(do_not_specialize=("q0", "num_ids", "num_queries", "parts", "part_rows", "S", "K", "pool", "first"))
def corpus_settle_kernel(
    ks,
    lambda_d,
    known,
    made,
    draft,
    order,
    count,
    candidates,
    part_w,
    part_row,
    part_v,
    part_m,
    out_index,
    out_score,
    out_relevance,
    out_redundancy,
    out_length,
    q0,
    num_queries,
    num_ids,
    parts,
    part_rows,
    S,
    K,
    pool,
    first,
    ADDED: tl.constexpr,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take the picks that the check makes certain: the draft's as far as it is right, then one more.

    A query with picks left gets the rows that were ADDED best at each step behind the ``first`` ones of its pool
    (C, pool). The pool and the items of a query without are -1, so that the next draft reads no row.
    """
    if tl.program_id(0) >= tl.load(count):
        return
    i = tl.load(order + tl.program_id(0)).to(tl.int64)
    q = q0 + i
    wanted = tl.zeros([], tl.int32) + K
    if ks is not None:
        wanted = tl.minimum(tl.load(ks + q), K).to(tl.int32)
    shown = tl.zeros([], tl.int32)
    for s in range(S):
        item = tl.load(known + i * (S + K) + s)
        shown += ((item >= 0) & (item < num_ids)).to(tl.int32)
    weight = tl.load(lambda_d + q)
    before = tl.load(made + i)
    tl.debug_barrier()  # every thread has read what one of them overwrites

    # 1. The picks that are certain.
    sure = before
    right = before < wanted  # the draft, as far as this step
    for step in range(before, K):
        if right:
            lane_best, lane_row = _best_parts(
                part_w, part_row, step * parts.to(tl.int64) * num_queries + i, parts, num_queries, BLOCK
            )
            best, row = best_of(lane_best, lane_row)
            found = (wanted > step) & (best > float("-inf"))
            row = tl.where(found, row, 0)
            at = (step * parts.to(tl.int64) + row // part_rows) * num_queries + i
            v = tl.load(part_v + at)
            nothing = (shown == 0) & (step == 0)
            m = tl.where(nothing, 0.0, tl.load(part_m + at))
            score = tl.where(nothing, weight * v, best)
            store_pick(q * K + step, found, row, score, v, m, out_index, out_score, out_relevance, out_redundancy)
            guess = tl.load(draft + i * K + step - before)
            tl.debug_barrier()
            tl.store(known + i * (S + K) + S + step, tl.where(found, row, -1))
            sure += found.to(tl.int32)
            wanted = tl.where(found, wanted, sure)  # nothing is left to pick
            right = found & (row == guess)
    wanted = tl.where(before < wanted, wanted, before)
    finished = sure >= wanted
    for step in range(tl.where(finished, sure, K), K):
        store_pick(q * K + step, False, -1, 0.0, 0.0, 0.0, out_index, out_score, out_relevance, out_redundancy)
    tl.store(made + i, tl.where(finished, K, sure))
    tl.store(out_length + q, sure)

    # 2. The pool of the next draft.
    lane = tl.arange(0, POOL)
    tl.debug_barrier()
    if finished:
        tl.store(candidates + i * pool + lane, tl.full([POOL], -1, tl.int64), mask=lane < pool)
        for t in range(S + K):
            tl.store(known + i * (S + K) + t, -1)
    else:
        ids = tl.load(candidates + i * pool + lane, mask=lane < first, other=-1)
        for step in range(before, K):
            lane_best, lane_row = _best_parts(
                part_w, part_row, step * parts.to(tl.int64) * num_queries + i, parts, num_queries, BLOCK
            )
            for rank in range(ADDED):
                best, row = best_of(lane_best, lane_row)
                fresh = (best > float("-inf")) & (tl.max((ids == row).to(tl.int32), 0) == 0)
                ids = tl.where(lane == first + step * ADDED + rank, tl.where(fresh, row, -1), ids)
                lane_best = tl.where(lane_row == row, float("-inf"), lane_best)
        tl.store(candidates + i * pool + lane, ids, mask=lane < pool)
