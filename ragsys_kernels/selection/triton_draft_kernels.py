"""The kernels of regime c that find the pools to draft picks from, and which queries are left (``triton_check.py``).

Queries are numbered within a chunk that begins at q0, as in ``triton_check_kernels.py``.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from .triton_objective import comparable, with_bias

# A key that no value has: nothing was found.
NO_KEY = tl.constexpr(-(2**31))


@triton.jit
def relevance_with_bias(
    r, q, n, ok, num_ids, relevance, bias, groups, query_groups, lambda_b, real, BIAS_BY_ROW: tl.constexpr
):
    """Return v of a tile from its products r, or from the relevance given, and which items may be picked."""
    if relevance is not None:
        r = tl.load(relevance + q[:, None] * num_ids + n[None, :], mask=ok, other=0.0)
    weight = tl.load(lambda_b + q, mask=real, other=0.0)[:, None]
    if BIAS_BY_ROW:
        v = with_bias(r, bias, n[None, :], (n < num_ids)[None, :], weight)
    else:
        v = with_bias(r, bias, q[:, None] * num_ids + n[None, :], ok, weight)
    free = ok
    if query_groups is not None:
        own = tl.load(query_groups + q, mask=real, other=0)
        free &= tl.load(groups + n, mask=n < num_ids, other=0)[None, :] != own[:, None]
    return v, free


@triton.jit
def store_best_keys(v, free, place, i, tile, num_queries, real, keys_out, KEPT: tl.constexpr, ROWS: tl.constexpr):
    """Store the KEPT largest values of a tile [QUERIES, ROWS] as keys: the value, in its last bits the place."""
    w = comparable(v, free)
    bits = tl.where(w == 0, 0.0, w).to(tl.int32, bitcast=True)  # -0 equals 0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = tl.where(w > float("-inf"), (ordered & -ROWS) | (ROWS - 1 - place)[None, :], NO_KEY)
    for rank in tl.static_range(KEPT):
        best = tl.max(keys, 1)
        tl.store(keys_out + (tile * KEPT + rank) * num_queries + i, best, mask=real)
        keys = tl.where(keys == best[:, None], NO_KEY, keys)


@triton.jit(do_not_specialize=("q0", "num_queries"))
def corpus_queries_kernel(
    queries,
    factors,
    back,
    query_parts,
    query_back,
    q0,
    num_queries,
    D,
    DOT: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take float32 queries times their factors apart into PARTS 16-bit parts (PARTS, C, D), for matrix units."""
    i = tl.program_id(0).to(tl.int64)
    # Elements of unit queries are small: scaled, the lowest part is a normal number in float16 too.
    scale = 1.0 if PARTS == 1 else 4096.0
    factor = tl.load(factors + i)
    d = tl.arange(0, BLOCK)
    for d0 in range(0, D, BLOCK):
        inside = d0 + d < D
        # In this order: the factor of a zero query is so large that its product with the scale would be infinite.
        y = tl.load(queries + (q0 + i) * D + d0 + d, mask=inside, other=0.0) * factor * scale
        for part in tl.static_range(PARTS):
            high = y.to(DOT)
            tl.store(query_parts + (part * num_queries + i) * D + d0 + d, high, mask=inside)
            y -= high.to(tl.float32)
    tl.store(query_back + i, tl.load(back + i) * (1.0 / scale))


@triton.jit(do_not_specialize=("q0", "num_ids", "num_queries", "tiles"))
def corpus_pool_kernel(
    rows,
    factors,
    query_parts,
    query_back,
    relevance,
    bias,
    groups,
    query_groups,
    lambda_b,
    keys_out,
    row_stride,
    q0,
    num_queries,
    num_ids,
    tiles,
    D,
    looked,
    share,
    BIAS_BY_ROW: tl.constexpr,
    DOT: tl.constexpr,
    EVEN_D: tl.constexpr,
    KEPT: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """The KEPT largest values of each tile as keys (tiles, KEPT, C) int32: the value, in its last bits the place.

    Values are guesses, good enough to draft from: a relevance comes from the first ``looked`` dimensions, times
    ``share``, and from the first part of the query. A tile has every ``tiles``-th row, as like rows often lie together.
    """
    blocks = tl.cdiv(num_queries, QUERIES)
    program = tl.program_id(0)
    i = (program % blocks).to(tl.int64) * QUERIES + tl.arange(0, QUERIES)
    tile = (program // blocks).to(tl.int64)
    place = tl.arange(0, ROWS)
    n = tile + place.to(tl.int64) * tiles
    q = q0 + i
    real = i < num_queries
    ok = real[:, None] & (n < num_ids)[None, :]
    r = tl.zeros([QUERIES, ROWS], tl.float32)
    if relevance is None:
        d = tl.arange(0, DIMS)
        base = rows + n[:, None] * row_stride
        query_base = query_parts + i[:, None] * D
        inside = (n < num_ids)[:, None]
        full = looked // DIMS * DIMS
        for d0 in range(0, full, DIMS):
            x = tl.load(base + (d0 + d)[None, :], mask=inside, other=0)  # [ROWS, DIMS]
            y = tl.load(query_base + (d0 + d)[None, :], mask=real[:, None], other=0.0)
            r = tl.dot(y, tl.trans(x.to(DOT)), r, input_precision="ieee")
        if not EVEN_D:
            tail = (full + d < looked)[None, :]
            x = tl.load(base + (full + d)[None, :], mask=inside & tail, other=0)
            y = tl.load(query_base + (full + d)[None, :], mask=real[:, None] & tail, other=0.0)
            r = tl.dot(y, tl.trans(x.to(DOT)), r, input_precision="ieee")
        r *= (tl.load(query_back + i, mask=real, other=0.0) * share)[:, None]
        if factors is not None:
            r *= tl.load(factors + n, mask=n < num_ids, other=0.0)[None, :]
    v, free = relevance_with_bias(
        r, q, n, ok, num_ids, relevance, bias, groups, query_groups, lambda_b, real, BIAS_BY_ROW
    )
    store_best_keys(v, free, place, i, tile, num_queries, real, keys_out, KEPT, ROWS)


@triton.jit(do_not_specialize=("q0", "num_queries", "num_ids", "tiles", "S", "K", "pool"))
def corpus_start_kernel(
    keys,
    places,
    initial,
    pools,
    candidates,
    known,
    made,
    order,
    count,
    q0,
    num_queries,
    num_ids,
    tiles,
    S,
    K,
    pool,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    FIRST: tl.constexpr,
    POOL: tl.constexpr,
):
    """Make rows of the best keys (C, FIRST), for the first pools (C, FIRST) and the later ones (C, pool)."""
    i = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, POOL)
    mine = lane < FIRST
    key = tl.load(keys + i * FIRST + lane, mask=mine, other=NO_KEY)
    tile = tl.load(places + i * FIRST + lane, mask=mine, other=0) // KEPT
    row = tl.where(key == NO_KEY, -1, tile + (ROWS - 1 - (key & (ROWS - 1))).to(tl.int64) * tiles)
    tl.store(pools + i * FIRST + lane, row, mask=mine)
    tl.store(candidates + i * pool + lane, row, mask=lane < pool)
    if initial is not None:
        for s in range(S):
            tl.store(known + i * (S + K) + s, tl.load(initial + (q0 + i) * S + s).to(tl.int64))
    for step in range(K):
        tl.store(known + i * (S + K) + S + step, tl.full([], -1, tl.int64))
    tl.store(made + i, 0)
    tl.store(order + i, i.to(tl.int32))
    tl.store(count, num_queries)  # by every program


@triton.jit(do_not_specialize=("num_queries", "K"))
def corpus_order_kernel(made, order, count, num_queries, K, BLOCK: tl.constexpr):
    """Put the queries with picks left into ``order``, as they lie. One program."""
    j = tl.arange(0, BLOCK)
    unfinished = tl.zeros([], tl.int32)
    for i0 in range(0, num_queries, BLOCK):
        left = (tl.load(made + i0 + j, mask=i0 + j < num_queries, other=K) < K).to(tl.int32)
        place = unfinished + tl.cumsum(left, 0) - left
        tl.store(order + place, i0 + j, mask=left > 0)
        unfinished += tl.sum(left, 0)
    tl.store(count, unfinished)
