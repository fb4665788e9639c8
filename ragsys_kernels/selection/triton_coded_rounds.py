"""The kernels of regime c by codes that keep its books: terms, lists of contenders, what is proved.

One program a query. ``triton_coded_kernels.py`` says what terms are, ``triton_coded_corpus.py`` in which order all run.
"""

# ruff: noqa: SIM102 - a test at compile time beside one at run time
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from .triton_rows import everywhere

# Above any row.
_NONE = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def code_queries_kernel(
    queries,
    factors,
    units,
    terms,
    scales,
    errors,
    q0,
    D,
    full,
    BLOCK: tl.constexpr,
):
    """Make unit queries (C, D) and their codes, the first term, as a row's are made (codes.py)."""
    i = tl.program_id(0).to(tl.int64)
    factor = tl.load(factors + i)
    d = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    for d0 in range(0, D, BLOCK):
        y = tl.load(queries + (q0 + i) * D + d0 + d, mask=d0 + d < D, other=0.0) * factor
        tl.store(units + i * D + d0 + d, y, mask=d0 + d < D)
        largest = tl.maximum(largest, tl.abs(y))
    most = tl.max(largest, 0)
    scale = tl.div_rn(most, 127.0)
    inverse = tl.where(most > 0, tl.div_rn(127.0, tl.where(most > 0, most, 1.0)), 0.0)
    lost = tl.zeros([BLOCK], tl.float32)
    for d0 in range(0, full, BLOCK):
        y = tl.load(queries + (q0 + i) * D + d0 + d, mask=d0 + d < D, other=0.0) * factor
        code = tl.floor(y * inverse + 0.5)
        tl.store(terms + i * full + d0 + d, code.to(tl.int8), mask=d0 + d < full)
        lost += (y - code * scale) * (y - code * scale)
    tl.store(scales + i, scale)
    tl.store(errors + i, tl.sqrt_rn(tl.sum(lost, 0)) * 1.0001 + 1e-6)  # more than float32 loses


@triton.jit(do_not_specialize=("num_queries",))
def coded_contenders_kernel(
    order,
    count,
    found,
    found_rows,
    found_gaps,
    pools,
    proves,
    num_queries,
    ROOM: tl.constexpr,
    LEVELS: tl.constexpr,
    POOL: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Make pools (C, POOL) of the contenders of each unfinished query, by their rows; empty its lists.

    ``proves``: whether all are in the pool. Of more the pool has those that seem best of the longest list with all
    that belongs to it, so that chance has no part in it, and of none whose lists are all too short, the pool is empty.
    """
    if tl.program_id(0) >= tl.load(count):
        return
    i = tl.load(order + tl.program_id(0)).to(tl.int64)
    level = tl.zeros([], tl.int64) + LEVELS
    many = tl.zeros([], tl.int32)
    for back in tl.static_range(LEVELS):
        known = tl.load(found + (LEVELS - 1 - back) * num_queries + i)
        level = tl.where(known <= ROOM, LEVELS - 1 - back, level)
        many = tl.where(known <= ROOM, known, many)
    tl.debug_barrier()  # every thread has read what one of them overwrites
    for each in tl.static_range(LEVELS):
        tl.store(found + each * num_queries + i, 0)
    tl.store(proves + i, ((level == 0) & (many <= POOL)).to(tl.int32))
    lane = tl.arange(0, ROOM)
    at = (level * num_queries + i) * ROOM + lane
    rows = tl.load(found_rows + at, mask=lane < many, other=_NONE)
    if many > POOL:
        gaps = tl.load(found_gaps + at, mask=lane < many, other=float("-inf"))
        chosen = lane < 0
        for _ in range(POOL):
            rest = tl.where(chosen, float("-inf"), gaps)
            best = tl.max(rest, 0)
            row = tl.min(tl.where((rest == best) & (chosen == 0), rows, _NONE), 0)
            chosen = chosen | (rows == row)
        rows = tl.where(chosen, rows, _NONE)
    slot = tl.arange(0, SLOTS)
    pool = tl.full([SLOTS], -1, tl.int64)
    row = tl.full([], -1, tl.int64)
    for turn in range(tl.minimum(many, POOL)):
        row = tl.min(tl.where(rows > row, rows, _NONE), 0)
        pool = tl.where(slot == turn, row, pool)
    tl.store(pools + i * POOL + slot, pool, mask=slot < POOL)


@triton.jit(do_not_specialize=("q0", "num_queries", "num_ids", "S", "K", "pool"))
def coded_settle_kernel(
    codes,
    words,
    terms,
    initial,
    ks,
    draft,
    scores,
    relevance,
    redundancy,
    lengths,
    last,
    proves,
    pools,
    candidates,
    made,
    order,
    count,
    order_out,
    count_out,
    item_scales,
    item_errors,
    bars,
    out_index,
    out_score,
    out_relevance,
    out_redundancy,
    out_length,
    code_stride,
    q0,
    num_queries,
    num_ids,
    S,
    K,
    D,
    full,
    pool,
    POOL: tl.constexpr,
    SLOTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Give a query its picks if its contenders led to the draft that they were found for, else check what they led to.

    ``draft`` (C, K) and its scores come from the contenders, ``last`` is the draft before, None where none was checked.
    What a check needs: the terms, and of each item the scale and the error of its codes (S + K - 1, C), an infinite
    error where there is none; the values that a row must reach at each step (K, C). ``words`` are the codes as float32.
    """
    if tl.program_id(0) >= tl.load(count):
        return
    i = tl.load(order + tl.program_id(0)).to(tl.int64)
    q = q0 + i
    step = tl.arange(0, LANES)
    inside = step < K
    picks = tl.load(draft + i * K + step, mask=inside, other=-1)
    if last is not None:
        differ = inside & (picks != tl.load(last + i * K + step, mask=inside, other=-1))
        if (tl.max(differ.to(tl.int32), 0) == 0) & (tl.load(proves + i) > 0):
            at = q * K + step
            from_ = i * K + step
            tl.store(out_index + at, picks, mask=inside)
            tl.store(out_score + at, tl.load(scores + from_, mask=inside), mask=inside)
            tl.store(out_relevance + at, tl.load(relevance + from_, mask=inside), mask=inside)
            tl.store(out_redundancy + at, tl.load(redundancy + from_, mask=inside), mask=inside)
            tl.store(out_length + q, tl.load(lengths + i))
            # The next drafts read no row of it.
            slot = tl.arange(0, SLOTS)
            nothing = tl.full([SLOTS], -1, tl.int64)
            tl.store(pools + i * POOL + slot, nothing, mask=slot < POOL)
            tl.store(candidates + i * pool + slot, nothing, mask=slot < pool)
            tl.store(made + i, K)
            return
    tl.store(order_out + tl.atomic_add(count_out, 1, sem="relaxed"), i.to(tl.int32))

    # What a row must reach: at the first step of all the relevance, then the score of the pick.
    shown = tl.zeros([], tl.int32)
    if initial is not None:
        for s in range(S):
            item = tl.load(initial + q * S + s).to(tl.int64)
            shown += ((item >= 0) & (item < num_ids)).to(tl.int32)
    bar = tl.load(scores + i * K + step, mask=inside, other=0.0)
    bar = tl.where((shown == 0) & (step == 0), tl.load(relevance + i * K + step, mask=inside, other=0.0), bar)
    bar = tl.where(picks < 0, float("-inf"), bar)
    if ks is not None:
        bar = tl.where(step < tl.load(ks + q), bar, float("inf"))
    tl.store(bars + step.to(tl.int64) * num_queries + i, bar, mask=inside)

    d = tl.arange(0, BLOCK)
    for t in range(S + K - 1):
        item = tl.load(draft + i * K + t - S, mask=t >= S, other=-1)
        if initial is not None:
            if t < S:
                item = tl.load(initial + q * S + t).to(tl.int64)
        has = (item >= 0) & (item < num_ids)
        row = tl.where(has, item, 0)
        at = t * num_queries.to(tl.int64) + i
        end = (row + 1) * (code_stride // 4)
        tl.store(item_scales + at, tl.where(has, tl.load(words + end - 3), 0.0))
        tl.store(item_errors + at, tl.where(has, tl.load(words + end - 2), float("inf")))
        for d0 in range(0, full, BLOCK):
            code = tl.load(codes + row * code_stride + d0 + d, mask=(d0 + d < D) & everywhere(has, BLOCK), other=0)
            tl.store(terms + (at + num_queries) * full + d0 + d, code, mask=d0 + d < full)
