"""Rows in the Triton kernels of large pools: initial items, and items that meet the picks that they lack."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from .objective import inverse, running_max


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
def initial_item(
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


@triton.jit
def _taken(taken_rows, taken_factors, rows, turn, turns, row_stride):
    """Return whether a turn took a row, the row and its factor."""
    row = tl.load(taken_rows + turn, mask=turn < turns, other=-1)
    took = row >= 0
    factor = tl.load(taken_factors + turn, mask=took, other=0.0)
    return took, rows + tl.where(took, row, 0) * row_stride, factor


@triton.jit
def everywhere(flag, SIZE: tl.constexpr):
    """Return a mask of one value, which does not split a load."""
    return tl.zeros([SIZE], tl.int32) + flag.to(tl.int32) > 0


@triton.jit
def similarity(products, f, f_taken):
    return tl.sum(products, 1) * f * f_taken


@triton.jit
def _meet(x, d, use0, use1, use2, use3, row0, row1, row2, row3, products0, products1, products2, products3):
    """Add the products of a slice of rows x [ROWS, DIMS] and four taken rows."""
    x = x.to(tl.float32)
    products0 += x * tl.load(row0 + d, mask=use0, other=0).to(tl.float32)[None, :]
    products1 += x * tl.load(row1 + d, mask=use1, other=0).to(tl.float32)[None, :]
    products2 += x * tl.load(row2 + d, mask=use2, other=0).to(tl.float32)[None, :]
    products3 += x * tl.load(row3 + d, mask=use3, other=0).to(tl.float32)[None, :]
    return products0, products1, products2, products3


@triton.jit
def _after(m, products, f, f_taken, which):
    return tl.where(which, running_max(m, similarity(products, f, f_taken)), m)


@triton.jit
def catch_up(
    rows,
    base,
    f,
    m,
    met,
    these,
    taken_rows,
    taken_factors,
    turns,
    row_stride,
    D,
    EVEN_D: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Return m of a tile after these items have met what they lacked of the turns, four at a time."""
    d = tl.arange(0, DIMS)
    full = D // DIMS * DIMS
    for turn in range(tl.min(tl.where(these, met, turns), 0), turns, 4):
        lack = these & (met < turn + 4)
        took0, row0, f0 = _taken(taken_rows, taken_factors, rows, turn, turns, row_stride)
        took1, row1, f1 = _taken(taken_rows, taken_factors, rows, turn + 1, turns, row_stride)
        took2, row2, f2 = _taken(taken_rows, taken_factors, rows, turn + 2, turns, row_stride)
        took3, row3, f3 = _taken(taken_rows, taken_factors, rows, turn + 3, turns, row_stride)
        use0, use1 = everywhere(took0, DIMS), everywhere(took1, DIMS)
        use2, use3 = everywhere(took2, DIMS), everywhere(took3, DIMS)
        products0 = tl.zeros([ROWS, DIMS], tl.float32)
        products1 = products0
        products2 = products0
        products3 = products0
        for d0 in range(0, full, DIMS):
            x = tl.load(base + (d0 + d)[None, :], mask=lack[:, None], other=0)
            products0, products1, products2, products3 = _meet(
                x, d0 + d, use0, use1, use2, use3, row0, row1, row2, row3,
                products0, products1, products2, products3,
            )  # fmt: skip
        if not EVEN_D:
            tail = full + d < D
            x = tl.load(base + (full + d)[None, :], mask=lack[:, None] & tail[None, :], other=0)
            products0, products1, products2, products3 = _meet(
                x, full + d, tail & use0, tail & use1, tail & use2, tail & use3, row0, row1, row2, row3,
                products0, products1, products2, products3,
            )  # fmt: skip
        # To meet one twice changes nothing.
        m = _after(m, products0, f, f0, lack & everywhere(took0, ROWS))
        m = _after(m, products1, f, f1, lack & everywhere(took1, ROWS))
        m = _after(m, products2, f, f2, lack & everywhere(took2, ROWS))
        m = _after(m, products3, f, f3, lack & everywhere(took3, ROWS))
    return m
