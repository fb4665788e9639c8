"""The kernels of regime c, which ``dense.py`` launches, and those of a search (``whole_corpus.py``).

A product kernel multiplies the rows picked last (Q, D), or the queries, with the corpus (N, D). Its epilogue brings the
running vectors (Q, N) up to date and leaves the best value of each tile with its lowest row in ``part_best`` and
``part_row`` (Q, tiles). A second kernel, one program a query, takes the best of the tiles, writes the outputs and the
next row to multiply. ``v`` (Q, N) is the relevance with bias (VRSD: without), ``state`` m or t = s·e; NaN in either
marks what may not be picked. Queries are numbered within a chunk that begins at q0; workspaces are those of the chunk.

With ``order`` and ``count``, the queries are those that a proof has left (``proof.py``): the first ``count`` numbers in
``order``. The host does not know this number, so a few programs share the work; if all is proven, there is none.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from .launch import queries_here
from .objective import (
    CANCELS,
    NO_PICK,
    best_of,
    comparable,
    group_count,
    inverse,
    mmr_value,
    running_max,
    store_pick,
    vrsd_value,
    with_bias,
)


@triton.jit
def row_lengths_kernel(
    rows,
    scales,
    factors,
    lengths,
    row_stride,
    N,
    D,
    COMPUTED: tl.constexpr,
    VRSD: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """COMPUTED: 1 / |row|, which makes it the vector of the formulas, into factors. VRSD: the vectors' lengths."""
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, DIMS)
    squares = tl.zeros([ROWS, DIMS], tl.float32)
    for d0 in range(0, D, DIMS):
        mask = (n < N)[:, None] & (d0 + d < D)[None, :]
        x = tl.load(rows + n[:, None] * row_stride + (d0 + d)[None, :], mask=mask, other=0).to(tl.float32)
        squares += x * x
    norm = tl.sqrt_rn(tl.sum(squares, 1))
    if COMPUTED:
        tl.store(factors + n, inverse(norm), mask=n < N)
    if VRSD:
        length = norm
        if COMPUTED:
            length = tl.where(norm == 0, 0.0, 1.0)
        if scales is not None:
            length *= tl.load(scales + n, mask=n < N, other=0.0)
        tl.store(lengths + n, length, mask=n < N)


@triton.jit
def _turns(count, here, num_ids, QUERIES: tl.constexpr, ROWS: tl.constexpr):
    """Return how many tiles this program takes; one if every tile has a program."""
    turns = 1
    if count is not None:
        work = tl.cdiv(tl.maximum(here, 0), QUERIES) * tl.cdiv(num_ids, ROWS)
        turns = tl.cdiv(tl.maximum(work - tl.program_id(0), 0), tl.num_programs(0))
    return turns


@triton.jit
def _tile_of(turn, order, here, q0, QUERIES: tl.constexpr, ROWS: tl.constexpr):
    """Return a program's places of queries, their numbers, and which exist; its rows and its tile.

    Programs that share a tile of the corpus are neighbours.
    """
    blocks = tl.cdiv(here, QUERIES)
    program = tl.program_id(0) + turn * tl.num_programs(0)
    i = (program % blocks).to(tl.int64) * QUERIES + tl.arange(0, QUERIES)
    tile = (program // blocks).to(tl.int64)
    real = i < here
    q = q0 + i
    if order is not None:
        q = tl.load(order + q, mask=real, other=0).to(tl.int64)
    return i, q, real, tile * ROWS + tl.arange(0, ROWS), tile


@triton.jit
def _store_best(w, i, n, tile, real, num_queries, part_best, part_row):
    """Store the best value of each query in the tile and its lowest row."""
    best, at = tl.max(w, 1, return_indices=True, return_indices_tie_break_left=True)
    row = tl.min(n, 0) + at
    # Laid out by tiles, so that neighbouring threads store neighbouring queries.
    tl.store(part_best + tile * num_queries + i, best, mask=real)
    tl.store(part_row + tile * num_queries + i, row, mask=real)


@triton.jit
def _with_parts(x, parts, real, plane, acc, DOT: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr):
    """Add rows x [ROWS, DIMS] times queries, whose 16-bit parts lie a plane from one another."""
    x = tl.trans(x.to(DOT))
    for part in tl.static_range(PARTS):
        y = tl.load(parts + part * plane, mask=real, other=0.0)  # [QUERIES, DIMS]
        acc = tl.dot(y, x, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _key(w, n):
    """Return a number for value w of row n, larger for the larger value and of equal ones for the lower row."""
    bits = tl.where(w == 0, 0.0, w).to(tl.int32, bitcast=True)  # -0 equals 0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return (ordered << 32) | (0xFFFFFFFF - n)


@triton.jit(do_not_specialize=("q0", "num_ids", "num_queries"))
def corpus_relevance_kernel(
    rows,
    factors,
    lengths,
    query_parts,
    query_back,
    relevance,
    bias,
    groups,
    query_groups,
    lambda_b,
    order,
    count,
    v_out,
    tile_keys,
    part_best,
    part_row,
    row_stride,
    q0,
    num_queries,
    num_ids,
    tiles,
    D,
    stride,
    VRSD: tl.constexpr,
    BIAS_BY_ROW: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    PARTS: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Relevance with bias, NaN where an item may not be picked; the first pick's value is v.

    With ``tile_keys`` (C, tiles) int64 instead of the bests of tiles, for a search: keys of the tiles by their bests.
    """
    here = queries_here(count, q0, num_queries)
    for turn in tl.range(0, _turns(count, here, num_ids, QUERIES, ROWS), disable_licm=True):
        i, q, real, n, tile = _tile_of(turn, order, here, q0, QUERIES, ROWS)
        ok = real[:, None] & (n < num_ids)[None, :]
        if relevance is None:
            d = tl.arange(0, DIMS)
            base = rows + n[:, None] * row_stride
            parts = query_parts + i[:, None] * D
            plane = (tl.zeros([], tl.int64) + num_queries) * D
            inside = (n < num_ids)[:, None]
            acc = tl.zeros([QUERIES, ROWS], tl.float32)
            full = D // DIMS * DIMS
            # Full slices need no mask along D: with one, 16-byte loads become one load an element.
            for d0 in range(0, full, DIMS):
                x = tl.load(base + (d0 + d)[None, :], mask=inside, other=0)  # [ROWS, DIMS]
                acc = _with_parts(x, parts + (d0 + d)[None, :], real[:, None], plane, acc, DOT, PARTS, PRECISION)
            if not EVEN_D:
                tail = (full + d < D)[None, :]
                x = tl.load(base + (full + d)[None, :], mask=inside & tail, other=0)
                acc = _with_parts(
                    x, parts + (full + d)[None, :], real[:, None] & tail, plane, acc, DOT, PARTS, PRECISION
                )
            r = acc * tl.load(query_back + i, mask=real, other=0.0)[:, None]
            f = tl.full([ROWS], 1.0, tl.float32)
            if factors is not None:
                f = tl.load(factors + n, mask=n < num_ids, other=0.0)
            if VRSD:
                f *= inverse(tl.load(lengths + n, mask=n < num_ids, other=0.0))
            r *= f[None, :]
        else:
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
        tl.store(v_out + i[:, None] * stride + n[None, :], tl.where(free, v, float("nan")), mask=ok)
        w = comparable(v, free)
        if tile_keys is not None:
            tl.store(tile_keys + i * tiles + tile, _key(tl.max(w, 1), tile), mask=real)
        else:
            _store_best(w, i, n, tile, real, num_queries, part_best, part_row)


@triton.jit(do_not_specialize=("num_ids", "looked_at"))
def corpus_candidates_kernel(v, tile_keys, keys, stride, num_ids, looked_at, ROWS: tl.constexpr):
    """Make keys (C, looked_at, ROWS) of the rows of the tiles that a search looks at, by their own keys."""
    at = tl.program_id(0).to(tl.int64)  # a grid of queries by tiles may have 65,535 tiles at most
    i = at // looked_at
    n = (0xFFFFFFFF - (tl.load(tile_keys + at) & 0xFFFFFFFF)) * ROWS + tl.arange(0, ROWS)
    value = tl.load(v + i * stride + n, mask=n < num_ids, other=float("nan"))
    key = _key(comparable(value, n < num_ids), n)
    tl.store(keys + at * ROWS + tl.arange(0, ROWS), tl.where(n < num_ids, key, -0x7FFFFFFFFFFFFFFF - 1))


@triton.jit(do_not_specialize=("q0", "found", "k"))
def corpus_found_kernel(keys, out_index, out_score, q0, found, k, BLOCK: tl.constexpr):
    """Make rows and values of the largest keys (C, found), -1 and -inf where there are no more."""
    i = tl.program_id(0).to(tl.int64)
    for j0 in range(0, k, BLOCK):
        j = j0 + tl.arange(0, BLOCK)
        key = tl.load(keys + i * found + j, mask=j < found, other=0)
        ordered = (key >> 32).to(tl.int32)
        score = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        there = (j < found) & (score > float("-inf"))
        tl.store(out_score + (q0 + i) * k + j, tl.where(there, score, float("-inf")), mask=j < k)
        tl.store(out_index + (q0 + i) * k + j, tl.where(there, 0xFFFFFFFF - (key & 0xFFFFFFFF), -1), mask=j < k)


@triton.jit
def _sum_squares(
    squares, cancels, i, n, rows, factors, sums, row_stride, N, D, DIMS: tl.constexpr, QUERIES: tl.constexpr
):
    """Return |s + e|² from the rows themselves for the queries of the tile that have an item where it cancels."""
    d = tl.arange(0, DIMS)
    lane = tl.arange(0, QUERIES)
    f = tl.full(n.shape, 1.0, tl.float32)
    if factors is not None:
        f = tl.load(factors + n, mask=n < N, other=0.0)
    for b in range(QUERIES):
        mine = (lane == b)[:, None]
        if tl.max(tl.max((cancels & mine).to(tl.int32), 1), 0) > 0:
            query = tl.sum(tl.where(lane == b, i, 0), 0)
            exact = tl.zeros(n.shape, tl.float32)
            for d0 in range(0, D, DIMS):
                mask = (n < N)[:, None] & (d0 + d < D)[None, :]
                e = tl.load(rows + n[:, None] * row_stride + (d0 + d)[None, :], mask=mask, other=0).to(tl.float32)
                s = tl.load(sums + query * D + d0 + d, mask=d0 + d < D, other=0.0)
                z = e * f[:, None] + s[None, :]
                exact += tl.sum(z * z, 1)
            squares = tl.where(cancels & mine, exact[None, :], squares)
    return squares


@triton.jit(do_not_specialize=("q0", "num_ids", "num_queries"))
def corpus_step_kernel(
    rows,
    factors,
    lengths,
    groups,
    lambda_d,
    order,
    count,
    v_in,
    state,
    taken_rows,
    barred,
    num_taken,
    sums,
    sum_scalars,
    part_best,
    part_row,
    row_stride,
    q0,
    num_queries,
    num_ids,
    D,
    stride,
    VRSD: tl.constexpr,
    FIRST: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """What the rows taken last (-1: none) change, and the best value of each tile; FIRST: there is no state yet."""
    here = queries_here(count, q0, num_queries)
    for turn in tl.range(0, _turns(count, here, num_ids, QUERIES, ROWS), disable_licm=True):
        # 1. Similarities of the rows taken with those of the tile.
        i, q, real, n, tile = _tile_of(turn, order, here, q0, QUERIES, ROWS)
        taken = tl.load(taken_rows + i, mask=real, other=-1)
        has = taken >= 0
        taken_row = tl.where(has, taken, 0)
        d = tl.arange(0, DIMS)
        base = rows + n[:, None] * row_stride
        taken_base = rows + taken_row[:, None] * row_stride
        inside = (n < num_ids)[:, None]
        similarity = tl.zeros([QUERIES, ROWS], tl.float32)
        full = D // DIMS * DIMS
        # Full slices need no mask along D: with one, 16-byte loads become one load an element.
        for d0 in range(0, full, DIMS):
            y = tl.load(taken_base + (d0 + d)[None, :], mask=has[:, None], other=0).to(DOT)  # [QUERIES, DIMS]
            x = tl.load(base + (d0 + d)[None, :], mask=inside, other=0).to(DOT)  # [ROWS, DIMS]
            similarity = tl.dot(y, tl.trans(x), similarity, input_precision=PRECISION)
        if not EVEN_D:
            tail = (full + d < D)[None, :]
            y = tl.load(taken_base + (full + d)[None, :], mask=has[:, None] & tail, other=0).to(DOT)
            x = tl.load(base + (full + d)[None, :], mask=inside & tail, other=0).to(DOT)
            similarity = tl.dot(y, tl.trans(x), similarity, input_precision=PRECISION)
        if factors is not None:
            f_taken = tl.load(factors + taken_row, mask=has, other=0.0)
            similarity *= f_taken[:, None] * tl.load(factors + n, mask=n < num_ids, other=0.0)[None, :]

        # 2. The running vectors.
        ok = real[:, None] & (n < num_ids)[None, :]
        at = i[:, None] * stride + n[None, :]
        v = tl.load(v_in + at, mask=ok, other=0.0)  # [QUERIES, ROWS]
        if FIRST:
            m = tl.where(v == v, 0.0 if VRSD else NO_PICK, float("nan"))
        else:
            m = tl.load(state + at, mask=ok, other=float("nan"))
        if D > 0:  # always so; without the branch the compiler of Triton 3.6 dies for sm_100, as in `gram_row`
            if VRSD:
                m = tl.where(has[:, None], m + similarity, m)
            else:
                m = tl.where(has[:, None], running_max(m, similarity), m)
        m = tl.where(n[None, :] == taken[:, None], float("nan"), m)
        if barred is not None:
            bar = tl.load(barred + i, mask=real, other=0) != 0
            taken_group = tl.load(groups + taken_row, mask=has, other=0)
            same = tl.load(groups + n, mask=n < num_ids, other=0)[None, :] == taken_group[:, None]
            m = tl.where(same & bar[:, None], float("nan"), m)
        tl.store(state + at, m, mask=ok)

        # 3. Values.
        first = (tl.load(num_taken + i, mask=real, other=0) == 0)[:, None]
        if VRSD:
            s_square = tl.load(sum_scalars + i, mask=real, other=0.0)[:, None]
            s_query = tl.load(sum_scalars + num_queries + i, mask=real, other=0.0)[:, None]
            s_length = tl.load(sum_scalars + 2 * num_queries + i, mask=real, other=0.0)[:, None]
            length = tl.load(lengths + n, mask=n < num_ids, other=0.0)[None, :]
            square = s_square + 2.0 * m + length * length
            cancels = ok & (square < CANCELS * (s_square + length * length))
            if tl.max(tl.max(cancels.to(tl.int32), 1), 0) > 0:
                square = _sum_squares(square, cancels, i, n, rows, factors, sums, row_stride, num_ids, D, 16, QUERIES)
            w = vrsd_value(v, length, square, s_query, s_length, first)
        else:
            w = mmr_value(v, m, tl.load(lambda_d + q, mask=real, other=0.0)[:, None], first)
        _store_best(comparable(w, ok & (m == m)), i, n, tile, real, num_queries, part_best, part_row)


@triton.jit(do_not_specialize=("q0", "num_ids", "num_queries", "step", "tiles", "S", "K", "cap"))
def corpus_pick_kernel(
    rows,
    factors,
    lengths,
    queries,
    query_factors,
    query_back,
    initial,
    groups,
    ks,
    lambda_d,
    order,
    count,
    v_in,
    state,
    part_best,
    part_row,
    taken_rows,
    barred,
    num_taken,
    sums,
    sum_scalars,
    out_index,
    out_score,
    out_relevance,
    out_redundancy,
    out_length,
    row_stride,
    q0,
    num_queries,
    num_ids,
    step,
    tiles,
    S,
    K,
    D,
    cap,
    stride,
    VRSD: tl.constexpr,
    PICK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """PICK: merges the tiles and picks. Otherwise takes the initial item ``step``. Then the state of what is taken."""
    i = tl.program_id(0).to(tl.int64)
    if count is not None:  # noqa: SIM102 - the next is of the device
        if i >= queries_here(count, q0, num_queries):
            return
    q = q0 + i
    if order is not None:
        q = tl.load(order + q).to(tl.int64)
    j = tl.arange(0, BLOCK)
    before = 0
    if (not PICK) or (initial is None):
        if step > 0:
            before = tl.load(num_taken + i)
    else:
        before = tl.load(num_taken + i)

    # 1. The row to take.
    if PICK:
        lane_best = tl.full([BLOCK], float("-inf"), tl.float32)
        lane_row = tl.zeros([BLOCK], tl.int64)
        for t0 in range(0, tiles, BLOCK):
            at = (t0 + j).to(tl.int64) * num_queries + i
            w = tl.load(part_best + at, mask=t0 + j < tiles, other=float("-inf"))
            better = w > lane_best
            lane_best = tl.where(better, w, lane_best)
            lane_row = tl.where(better, tl.load(part_row + at, mask=t0 + j < tiles, other=0), lane_row)
        best, row = best_of(lane_best, lane_row)
        found = best > float("-inf")
        if ks is not None:
            found &= step < tl.load(ks + q)
        row = tl.where(found, row, 0)
        v = tl.load(v_in + i * stride + row)
        first = before == 0
        m = float("nan")
        score = best
        if not VRSD:
            m = tl.where(first, 0.0, tl.load(state + i * stride + row))
            score = tl.where(first, tl.load(lambda_d + q) * v, best)
        store_pick(q * K + step, found, row, score, v, m, out_index, out_score, out_relevance, out_redundancy)
        tl.store(out_length + q, tl.where(found, step + 1, 0), mask=found | (step == 0))
    else:
        row = tl.load(initial + q * S + step).to(tl.int64)
        found = (row >= 0) & (row < num_ids)
        row = tl.where(found, row, 0)
    tl.debug_barrier()  # every thread has read num_taken, and sees the pick
    tl.store(taken_rows + i, tl.where(found, row, -1))
    tl.store(num_taken + i, before + found.to(tl.int32))

    # 2. Whether its group has reached its cap.
    if cap is not None:
        group = tl.load(groups + row)
        if PICK:
            count = group_count(group, groups, q, step + 1, K, 0, num_ids, initial, S, S, out_index, BLOCK)
        else:
            count = group_count(group, groups, q, 0, K, 0, num_ids, initial, S, step + 1, out_index, BLOCK)
        tl.store(barred + i, (found & (count >= cap)).to(tl.int32))

    # 3. The sum and its product with the query.
    if VRSD:
        f = tl.where(found, 1.0, 0.0)
        if factors is not None:
            f *= tl.load(factors + row)
        squares = tl.zeros([BLOCK], tl.float32)
        products = squares
        factor = tl.load(query_factors + q)
        for d0 in range(0, D, BLOCK):
            inside = d0 + j < D
            e = f * tl.load(rows + row * row_stride + d0 + j, mask=inside, other=0).to(tl.float32)
            s = tl.load(sums + i * D + d0 + j, mask=inside, other=0.0)
            s = tl.where(before > 0, s, 0.0) + e
            tl.store(sums + i * D + d0 + j, s, mask=inside)
            squares += s * s
            if not PICK:
                products += e * (factor * tl.load(queries + q * D + d0 + j, mask=inside, other=0.0))
        length = tl.where(found, tl.load(lengths + row), 0.0)
        if PICK:
            own = tl.where(found, v * length, 0.0)
        else:
            own = tl.sum(products, 0)
        s_query = 0.0
        s_length = 0.0
        if before > 0:
            s_query = tl.load(sum_scalars + num_queries + i)
            s_length = tl.load(sum_scalars + 2 * num_queries + i)
        tl.debug_barrier()
        tl.store(sum_scalars + i, tl.sum(squares, 0))
        tl.store(sum_scalars + num_queries + i, s_query + own)
        tl.store(sum_scalars + 2 * num_queries + i, s_length + length)
