"""The kernels that prove drafted picks of MMR to be those of a whole corpus, which ``proof.py`` launches.

After the picks c_1 .. c_t a row e is worth the smallest of <e, λ q - (1 - λ) c_j>, j <= t. So a draft of K picks is
proven by the products of all rows with K - 1 vectors of a query, its *columns*: a row whose largest possible value
reaches that of a drafted pick, at any step, is a *contender* and gets a bit. What products in 16 bits leave out is
bounded, as in ``bit_search_kernels.py``; README.md has the bound. Here are the columns and the pools,
``proof_product_kernels.py`` has the products.

Each kernel makes a list for the next: the first ``count`` numbers in ``order`` are the queries that are not proven yet.
Workspaces have a row for each place in the list, pools and drafts for each query.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from .bit_search_kernels import bits_set
from .proof_product_kernels import NO_PEAK

# No row: after all rows in ascending order.
NO_ROW = tl.constexpr(0x7FFFFFFF)
# What is known about the pool of a query. SAME: it is the pool of the last draft, which has too many contenders for a
# pool. BEST: it has the best rows after each column of that draft. ALL: it has all contenders.
SAME, BEST, ALL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _item(initial, draft, q, t, num_ids, S, K):
    """Return initial item or drafted pick t, numbered one after the other, and whether there is one."""
    t += tl.zeros([], tl.int32)  # of the interpreter a plain number
    item = tl.load(draft + q * K + t - S, mask=(t >= S) & (t < S + K), other=-1)
    if initial is not None:
        item = tl.where(t < S, tl.load(initial + q * S + t, mask=t < S, other=-1).to(tl.int64), item)
    has = (item >= 0) & (item < num_ids)
    return tl.where(has, item, 0), has


@triton.jit
def _answer(
    q, step, inside, picks, scores, relevance, redundancy, lengths, K,
    out_index, out_score, out_relevance, out_redundancy, out_length,
):  # fmt: skip
    """Make the draft the answer."""
    at = q * K + step
    tl.store(out_index + at, picks, mask=inside)
    tl.store(out_score + at, tl.load(scores + at, mask=inside, other=0.0), mask=inside)
    tl.store(out_relevance + at, tl.load(relevance + at, mask=inside, other=0.0), mask=inside)
    tl.store(out_redundancy + at, tl.load(redundancy + at, mask=inside, other=0.0), mask=inside)
    tl.store(out_length + q, tl.load(lengths + q))


@triton.jit
def _go_on(q, order, count):
    """Append a query to a list, and return its place."""
    i = tl.atomic_add(count, 1, sem="relaxed").to(tl.int64)
    tl.store(order + i, q.to(tl.int32))
    return i


@triton.jit(do_not_specialize=("num_queries", "num_ids", "terms", "S", "K", "cap"))
def proof_columns_kernel(
    rows,
    factors,
    queries,
    query_factors,
    query_back,
    groups,
    lambda_d,
    lambda_b,
    initial,
    ks,
    draft,
    scores,
    relevance,
    redundancy,
    lengths,
    last,
    known,
    order_in,
    count_in,
    order,
    count,
    left,
    num_left,
    high,
    back,
    error,
    bars,
    barred,
    barred_group,
    out_index,
    out_score,
    out_relevance,
    out_redundancy,
    out_length,
    most,
    longest,
    rounding,
    row_stride,
    num_queries,
    num_ids,
    terms,
    S,
    K,
    D,
    stride,
    cap,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Answer a query whose draft is proven, and give each of the others its columns and what a row has to reach.

    A draft is proven if it is the one before it too, made of all contenders of that one: no other row is better at any
    step. If it is the one before it, but out of the best rows after each column, all checks to come would find the
    same: the query is ``left`` without a proof, as are all without ``high``. ``high`` (T, C, stride) are columns times
    a power of two, in 16 bits, ``back`` (T, C) what undoes that, ``error`` what a product with them is off by, and
    ``bars`` (T, C) what a row must reach with the products up to that column.
    """
    place = tl.program_id(0).to(tl.int64)
    q = place
    if count_in is not None:
        if place >= tl.load(count_in):
            return
        q = tl.load(order_in + place).to(tl.int64)
    step = tl.arange(0, LANES)
    inside = step < K
    picks = tl.load(draft + q * K + step, mask=inside, other=-1)
    if last is not None:
        before = tl.load(last + q * K + step, mask=inside, other=-1)
        pool = tl.load(known + q)
        if (pool != SAME) & (tl.max((picks != before).to(tl.int32), 0) == 0):
            if pool == ALL:
                _answer(
                    q, step, inside, picks, scores, relevance, redundancy, lengths, K,
                    out_index, out_score, out_relevance, out_redundancy, out_length,
                )  # fmt: skip
            else:
                _go_on(q, left, num_left)
            return
    if high is None:
        _go_on(q, left, num_left)
    else:
        i = _go_on(q, order, count)
        wanted = K
        if ks is not None:
            wanted = tl.minimum(tl.load(ks + q), K).to(tl.int32)
        shown = tl.zeros([], tl.int32)
        size = longest
        if most is not None:
            size = longest * tl.load(most)
        weight = tl.load(lambda_d + q)
        of_query = weight * tl.load(query_back + q)
        if lambda_b is not None:  # there is a bias
            of_query *= tl.load(lambda_b + q)
        of_item = 1.0 - weight
        factor = tl.load(query_factors + q)
        d = tl.arange(0, BLOCK)
        for t in range(terms):
            row, has = _item(initial, draft, q, t, num_ids, S, K)
            shown += (has & (t < S)).to(tl.int32)
            scale = of_item
            if factors is not None:
                scale *= tl.load(factors + row)
            scale = tl.where(has, scale, 0.0)
            base = rows + row * row_stride
            largest = tl.zeros([BLOCK], tl.float32)
            for d0 in range(0, D, BLOCK):
                y = of_query * (factor * tl.load(queries + q * D + d0 + d, mask=d0 + d < D, other=0.0))
                x = scale * tl.load(base + d0 + d, mask=d0 + d < D, other=0).to(tl.float32)
                largest = tl.maximum(largest, tl.maximum(tl.abs(x), tl.abs(y)))
            # A power of two that brings the larger of the two into [1, 2), within the range where its inverse is a
            # normal number too.
            exponent = tl.max(largest, 0).to(tl.int32, bitcast=True) >> 23
            exponent = tl.minimum(tl.maximum(exponent, 1), 253)
            up = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
            down = (exponent << 23).to(tl.float32, bitcast=True)
            lost, xs, ys = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
            at = (t * num_queries.to(tl.int64) + i) * stride + d
            for d0 in range(0, stride, BLOCK):
                y = of_query * (factor * tl.load(queries + q * D + d0 + d, mask=d0 + d < D, other=0.0)) * up
                x = scale * tl.load(base + d0 + d, mask=d0 + d < D, other=0).to(tl.float32) * up
                rounded = (y - x).to(high.dtype.element_ty)
                tl.store(high + at + d0, tl.where(has, rounded, 0.0), mask=d0 + d < stride)
                rest = (y - x) - rounded.to(tl.float32)
                lost += rest * rest
                xs += x * x
                ys += y * y
            off = 1.01 * tl.sqrt_rn(tl.sum(lost, 0))
            off += rounding * (tl.sqrt_rn(tl.sum(xs, 0)) + tl.sqrt_rn(tl.sum(ys, 0)))
            place_of = t * num_queries.to(tl.int64) + i
            tl.store(back + place_of, tl.where(has, down, 0.0))
            tl.store(error + place_of, tl.where(has, size * down * off, float("inf")))
            # The first of all picks is the best of the search.
            at_step = t - S + 1
            there = (at_step >= 0) & (at_step < wanted) & ((at_step > 0) | (shown > 0))
            bar = tl.load(scores + q * K + at_step, mask=there, other=float("inf"))
            tl.store(bars + place_of, bar)  # -inf where the draft has no such pick
            if cap is not None:
                group = tl.load(groups + row)
                same = tl.zeros([], tl.int32)
                for earlier in range(t + 1):
                    other, real = _item(initial, draft, q, earlier, num_ids, S, K)
                    same += (real & (tl.load(groups + other) == group)).to(tl.int32)
                tl.store(barred + place_of, (has & (same >= cap)).to(tl.int32))
                tl.store(barred_group + place_of, group)


@triton.jit
def _count(x, at, size, limit, EQUAL: tl.constexpr):
    """Return how many of ``size`` rows in memory are below each of x; EQUAL: are the same, at a place below a limit.

    A few at a time: all against all would take a register each.
    """
    found = tl.zeros([x.shape[0]], tl.int32)
    for j0 in range(0, size, 16):
        j = j0 + tl.arange(0, 16)
        y = tl.load(at + j, mask=j < size, other=NO_ROW).to(tl.int32)[None, :]
        if EQUAL:
            found += tl.sum(((y == x[:, None]) & (j[None, :] < limit[:, None])).to(tl.int32), 1)
        else:
            found += tl.sum((y < x[:, None]).to(tl.int32), 1)
    return found


@triton.jit
def _best_of_tiles(peaks, bars, at, place, num_queries, tiles, terms, each, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Put the ``each`` best rows after each column into memory, each of another tile; return how many they are."""
    made = tl.zeros([], tl.int32)
    for t in range(terms):
        if tl.load(bars + t * num_queries.to(tl.int64) + place) < float("inf"):
            lane_key = tl.full([BLOCK], NO_PEAK, tl.int32)
            lane_tile = tl.arange(0, BLOCK)
            for tile0 in range(0, tiles, BLOCK):
                tile = tile0 + tl.arange(0, BLOCK)
                key_at = peaks + (t * tiles.to(tl.int64) + tile) * num_queries + place
                key = tl.load(key_at, mask=tile < tiles, other=NO_PEAK)
                lane_tile = tl.where(key > lane_key, tile, lane_tile)
                lane_key = tl.maximum(lane_key, key)
            for _ in range(each):
                best = tl.max(lane_key, 0)
                tile = tl.min(tl.where(lane_key == best, lane_tile, NO_ROW), 0)
                tl.store(at + made, tile * ROWS + ROWS - 1 - (best & (ROWS - 1)), mask=best > NO_PEAK)
                made += (best > NO_PEAK).to(tl.int32)
                lane_key = tl.where(lane_tile == tile, NO_PEAK, lane_key)
    return made


@triton.jit(do_not_specialize=("num_queries", "words", "tiles", "terms", "found", "each", "hopeless", "K"))
def proof_pool_kernel(
    bits,
    peaks,
    bars,
    order_in,
    count_in,
    order,
    count,
    listed,
    best,
    pools,
    known,
    left,
    num_left,
    draft,
    scores,
    relevance,
    redundancy,
    lengths,
    out_index,
    out_score,
    out_relevance,
    out_redundancy,
    out_length,
    num_queries,
    words,
    tiles,
    terms,
    found,
    each,
    hopeless,
    K,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    POOL: tl.constexpr,
    SLOTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Answer queries of which all contenders have been in the pool; make another pool for the others.

    It has the draft's picks, the contenders, or where these are too many the best after each column, and of the best
    rows of the search, ``best`` (C, found), as many as there is room for. Without ``bits`` it is the first pool.
    Queries of more than ``hopeless`` contenders in the first check are ``left``.
    """
    place = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    here = listed + place * (2 * SLOTS)
    row = tl.full([SLOTS], NO_ROW, tl.int32)
    taken = tl.zeros([], tl.int32)
    begun = tl.zeros([], tl.int32)
    q = place
    if bits is not None:
        if place >= tl.load(count_in):
            return
        q = tl.load(order_in + place).to(tl.int64)
        # 1. The list of contenders, unless they are too many.
        contenders = tl.zeros([], tl.int32)
        for w0 in range(0, words, WORDS):
            w = w0 + tl.arange(0, WORDS)
            x = tl.load(bits + place * words + w, mask=w < words, other=0)
            set_here = bits_set(x)
            at = contenders + tl.cumsum(set_here, 0) - set_here
            contenders += tl.sum(set_here, 0)
            while (contenders <= SLOTS) & (
                tl.max(tl.where(x != 0, 1, 0), 0) > 0
            ):  # a bit of each word, from the lowest
                low = x & -x
                tl.store(here + at, w * 32 + bits_set(low - 1), mask=x != 0)
                at += tl.where(x != 0, 1, 0)
                x ^= low
        few = contenders <= POOL - K  # the picks have to be in it too: nothing else holds the first of all
        taken = tl.where(few, contenders, 0)
        tl.debug_barrier()
        row = tl.load(here + slot, mask=slot < taken, other=NO_ROW)
        unseen = (slot < taken) & (_count(row, pools + q * POOL, POOL, slot * 0 + POOL, True) == 0)
        step = tl.arange(0, LANES)
        picks = tl.load(draft + q * K + step, mask=step < K, other=-1)
        tl.debug_barrier()  # every thread has read the pool
        if few & (tl.max(unseen.to(tl.int32), 0) == 0):
            _answer(
                q, step, step < K, picks, scores, relevance, redundancy, lengths, K,
                out_index, out_score, out_relevance, out_redundancy, out_length,
            )  # fmt: skip
            return
        if peaks is None:  # noqa: SIM102 - the next is of the device
            if contenders > hopeless:
                _go_on(q, left, num_left)
                return
        _go_on(q, order, count)
        tl.store(known + q, tl.where(few, ALL, SAME if peaks is None else BEST))
        if peaks is None:  # noqa: SIM102 - as above
            if few == 0:
                return  # the same draft again, with peaks
        # 2. What else is to be in the pool, the most important first.
        tl.store(here + SLOTS + step, picks.to(tl.int32), mask=step < K)
        begun += K
        if peaks is not None:  # noqa: SIM102 - as above
            if few == 0:
                begun += _best_of_tiles(
                    peaks, bars, here + SLOTS + K, place, num_queries, tiles, terms, each, ROWS, BLOCK
                )
    old = tl.load(best + q * found + slot - begun, mask=(slot >= begun) & (slot - begun < found), other=-1).to(tl.int32)
    tl.store(here + SLOTS + slot, old, mask=slot >= begun)
    tl.debug_barrier()
    old = tl.load(here + SLOTS + slot)
    again = _count(old, here, taken, slot * 0 + SLOTS, True) + _count(old, here + SLOTS, SLOTS, slot, True)
    fresh = (old >= 0) & (again == 0)
    fresh &= tl.cumsum(fresh.to(tl.int32), 0) <= POOL - taken
    old = tl.where(fresh, old, NO_ROW)
    tl.debug_barrier()
    tl.store(here + SLOTS + slot, old)
    tl.debug_barrier()
    # 3. In ascending order, as ties go to the lowest row: each to the place that as many others are below.
    total = taken + tl.sum(fresh.to(tl.int32), 0)
    place_of_row = slot + _count(row, here + SLOTS, SLOTS, slot, False)
    place_of_old = _count(old, here, taken, slot, False) + _count(old, here + SLOTS, SLOTS, slot, False)
    tl.store(pools + q * POOL + place_of_row, row.to(tl.int64), mask=slot < taken)
    tl.store(pools + q * POOL + place_of_old, old.to(tl.int64), mask=fresh)
    tl.store(pools + q * POOL + slot, tl.full([SLOTS], -1, tl.int64), mask=(slot >= total) & (slot < POOL))
