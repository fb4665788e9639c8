"""The kernels of regime c that look through a corpus by its 8-bit codes (``triton_coded_corpus.py``).

Queries are numbered within a chunk that begins at q0. Code rows (``codes.py``) are read in whole cache lines, so that
no slice needs a mask along D: beyond D the other operand, a *term*, has zeros. The terms (T, C, bytes) int8 of a query
are its own codes, then those of its initial items and of its drafted picks.
"""

# ruff: noqa: RUF005 - Triton knows no (*a, b)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from .triton_draft_kernels import relevance_with_bias, store_best_keys
from .triton_objective import NO_PICK, mmr_value

# Code rows are whole cache lines. Where D fills its last one, the header has one of its own, whose last sector is read.
LINE = 64
HEADER_BYTES = 32


@triton.jit
def _header(x):
    """Return scales and errors of code rows whose ends x [ROWS, BYTES] are on the chip.

    A matrix instruction takes eight bytes of each out of the tile: loaded by themselves they would be another sector.
    """
    byte = tl.arange(0, 16)
    at = tl.arange(0, x.shape[1])
    chosen = (at[None, :] == x.shape[1] - 12 + byte[:, None]).to(tl.int8)
    bytes_ = (tl.dot(chosen, tl.trans(x)) & 255) << (byte % 4 * 8)[:, None]  # [16, ROWS]
    scale = tl.sum(tl.where(byte[:, None] < 4, bytes_, 0), 0)
    error = tl.sum(tl.where((byte[:, None] >= 4) & (byte[:, None] < 8), bytes_, 0), 0)
    return scale.to(tl.float32, bitcast=True), error.to(tl.float32, bitcast=True)


@triton.jit
def _slice(x, terms, at, real, NUM: tl.constexpr, products):
    """Add a slice of code rows x [ROWS, SLICE] times NUM terms at ``at`` [QUERIES, SLICE] to the products."""
    x = tl.trans(x)
    found = ()
    for term in tl.static_range(NUM):
        y = tl.load(terms[term] + at, mask=real, other=0)
        found = found + (tl.dot(y, x, products[term], out_dtype=tl.int32),)
    return found


@triton.jit
def _multiply(
    base,
    inside,
    terms,
    real,
    full,
    code_stride,
    NUM: tl.constexpr,
    APART: tl.constexpr,
    HELD: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    SLICE: tl.constexpr,
    HEADER_BYTES: tl.constexpr,
):
    """Return code rows' scales and errors, and what `_product` has their products with NUM terms from.

    HELD: rows are one slice, which is that; else the products are made while slices are on the chip. APART: headers are
    not in the last line of the codes.
    """
    d = tl.arange(0, SLICE)[None, :]
    products = ()
    if not HELD:
        for _ in tl.static_range(NUM):
            products = products + (tl.zeros([QUERIES, ROWS], tl.int32),)
        for d0 in range(0, full - SLICE, SLICE):
            x = tl.load(base + d0 + d, mask=inside, other=0)
            products = _slice(x, terms, d0 + d, real, NUM, products)
    x = tl.load(base + (full - SLICE) + d, mask=inside, other=0)
    if HELD:
        products = (tl.trans(x),)
    else:
        products = _slice(x, terms, full - SLICE + d, real, NUM, products)
    if APART:
        end = tl.load(base + (code_stride - HEADER_BYTES) + tl.arange(0, HEADER_BYTES)[None, :], mask=inside, other=0)
        scale, error = _header(end)
    else:
        scale, error = _header(x)
    return products, scale, error


@triton.jit
def _product(products, terms, term: tl.constexpr, HELD: tl.constexpr):
    """Return the products of code rows with a term [QUERIES, ROWS]."""
    if HELD:
        product = tl.dot(terms[term], products[0])
    else:
        product = products[term]
    return product.to(tl.float32)


@triton.jit
def _terms(
    terms, i, num_queries, full, real, FIRST: tl.constexpr, NUM: tl.constexpr, HELD: tl.constexpr, SLICE: tl.constexpr
):
    """Return NUM terms of queries, from FIRST on: their places, or HELD, themselves."""
    found = ()
    for term in tl.static_range(FIRST, FIRST + NUM):
        at = terms + ((term * num_queries + i) * full)[:, None]
        if HELD:
            found = found + (tl.load(at + tl.arange(0, SLICE)[None, :], mask=real, other=0),)
        else:
            found = found + (at,)
    return found


@triton.jit(do_not_specialize=("q0", "num_ids", "num_queries", "tiles"))
def coded_pool_kernel(
    codes,
    terms,
    scales,
    relevance,
    bias,
    groups,
    query_groups,
    lambda_b,
    keys_out,
    code_stride,
    q0,
    num_queries,
    num_ids,
    tiles,
    full,
    BIAS_BY_ROW: tl.constexpr,
    APART: tl.constexpr,
    HELD: tl.constexpr,
    KEPT: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    SLICE: tl.constexpr,
    HEADER_BYTES: tl.constexpr,
):
    """The KEPT largest values of each tile as keys (tiles, KEPT, C) int32, by the codes.

    As `corpus_pool_kernel`: a tile has every ``tiles``-th row.
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
        term = _terms(terms, i, num_queries, full, real[:, None], 0, 1, HELD, SLICE)
        products, scale, _ = _multiply(
            codes + n[:, None] * code_stride, (n < num_ids)[:, None], term, real[:, None], full, code_stride,
            1, APART, HELD, QUERIES, ROWS, SLICE, HEADER_BYTES,
        )  # fmt: skip
        r = _product(products, term, 0, HELD) * tl.load(scales + i, mask=real, other=0.0)[:, None] * scale[None, :]
    v, free = relevance_with_bias(
        r, q, n, ok, num_ids, relevance, bias, groups, query_groups, lambda_b, real, BIAS_BY_ROW
    )
    store_best_keys(v, free, place, i, tile, num_queries, real, keys_out, KEPT, ROWS)


@triton.jit
def _append(
    row,
    gap,
    contender,
    i,
    found,
    found_rows,
    found_gaps,
    num_queries,
    ROOM: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Add the contenders of a tile [QUERIES, ROWS] that begins at ``row`` to lists, to that of level l every 8^l-th."""
    n = tl.arange(0, contender.shape[1])[None, :]
    for level in tl.static_range(LEVELS):
        these = (contender & (((row + n) & (8**level - 1)) == 0)).to(tl.int32)
        many = tl.sum(these, 1)
        begin = tl.atomic_add(found + level * num_queries + i, many, mask=many > 0, sem="relaxed")
        place = begin[:, None] + tl.cumsum(these, 1) - 1
        kept = (these > 0) & (place < ROOM)
        place += ((level * num_queries + i.to(tl.int32)) * ROOM)[:, None]
        tl.store(found_rows + place, row + n + tl.zeros_like(place), mask=kept)
        tl.store(found_gaps + place, gap, mask=kept)


@triton.jit(do_not_specialize=("q0", "num_ids", "num_queries", "span"))
def coded_check_kernel(
    codes,
    terms,
    scales,
    errors,
    relevance,
    bias,
    groups,
    query_groups,
    lambda_d,
    lambda_b,
    item_scales,
    item_errors,
    bars,
    order,
    count,
    found,
    found_rows,
    found_gaps,
    code_stride,
    q0,
    num_queries,
    num_ids,
    span,
    full,
    slack,
    SHOWN: tl.constexpr,
    ITEMS: tl.constexpr,
    BIAS_BY_ROW: tl.constexpr,
    APART: tl.constexpr,
    HELD: tl.constexpr,
    ROOM: tl.constexpr,
    LEVELS: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    SLICE: tl.constexpr,
    HEADER_BYTES: tl.constexpr,
):
    """Find the *contenders* of unfinished queries: the rows that may be worth as much as a drafted pick at its step.

    A row's value at a step is bounded by its relevance from above, and from below by its similarities to the SHOWN
    initial items and the picks before that step; an item that there is not has an infinite error. A row that has been
    picked may be a contender too. A program takes ``span`` tiles of rows, and holds what it can of the queries.
    """
    # 1. The queries, and what is the same for all rows.
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
    weight = tl.load(lambda_d + q, mask=real, other=0.0)[:, None]
    OWN: tl.constexpr = 1 if relevance is None else 0
    held = _terms(terms, i, num_queries, full, real[:, None], 1 - OWN, OWN + ITEMS, HELD, SLICE)
    query_scale = tl.zeros([QUERIES], tl.float32)
    query_error = query_scale
    if relevance is None:
        query_scale = tl.load(scales + i, mask=real, other=0.0)
        query_error = tl.load(errors + i, mask=real, other=0.0)

    item_scale = ()
    item_error = ()
    bar = ()
    for t in tl.static_range(ITEMS):
        item_scale = item_scale + (tl.load(item_scales + t * num_queries + i, mask=real, other=0.0),)
        item_error = item_error + (tl.load(item_errors + t * num_queries + i, mask=real, other=float("inf")),)
    for step in tl.static_range(ITEMS - SHOWN + 1):
        bar = bar + (tl.load(bars + step * num_queries + i, mask=real, other=float("inf")),)

    # 2. Tile by tile.
    for turn in range(span):
        n = (part * span + turn) * ROWS + tl.arange(0, ROWS)
        inside = n < num_ids
        products, scale, error = _multiply(
            codes + n[:, None] * code_stride, inside[:, None], held, real[:, None], full, code_stride,
            OWN + ITEMS, APART, HELD, QUERIES, ROWS, SLICE, HEADER_BYTES,
        )  # fmt: skip
        scale = scale[None, :]
        error = error[None, :]
        r = tl.zeros([QUERIES, ROWS], tl.float32)
        if relevance is None:
            r = _product(products, held, 0, HELD) * scale * query_scale[:, None] + error
            r += (1.0 + error) * query_error[:, None] + slack
        v, free = relevance_with_bias(
            r, q, n, real[:, None] & inside[None, :], num_ids, relevance, bias, groups, query_groups, lambda_b, real,
            BIAS_BY_ROW,
        )  # fmt: skip
        v = tl.where(free, v, float("nan"))
        m = tl.full([QUERIES, ROWS], NO_PICK, tl.float32)
        taken = tl.zeros([QUERIES], tl.int32)
        gap = tl.full([QUERIES, ROWS], float("-inf"), tl.float32)
        for t in tl.static_range(ITEMS + 1):
            if t >= SHOWN:
                over = mmr_value(v, m, weight, (taken == 0)[:, None] & (t == SHOWN)) - bar[t - SHOWN][:, None]
                gap = tl.where(over > gap, over, gap)  # of what may not be picked NaN
            if t < ITEMS:
                least = _product(products, held, OWN + t, HELD) * scale * item_scale[t][:, None]
                m = tl.maximum(m, least - (error + (1.0 + error) * item_error[t][:, None] + slack))
                if t < SHOWN:
                    taken += tl.where(item_error[t] < float("inf"), 1, 0)
        # Some roundings of numbers of the size of v, of this bound and of the drafted pick's own value.
        contender = gap >= -2e-6 * (1.0 + tl.abs(v))
        if tl.max(tl.max(contender.to(tl.int32), 1), 0) > 0:
            row = (part * span + turn) * ROWS
            _append(row, gap, contender, i, found, found_rows, found_gaps, num_queries, ROOM, LEVELS)
