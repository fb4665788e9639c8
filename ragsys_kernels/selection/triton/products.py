"""The products of regime a: of a pool's rows with the query, with one another, with one of them.

Two forms. The *matrix* has all products of rows at once, from the matrix instructions of 16-bit rows. Float32 rows, for
which there are none, stay on chip and meet each pick: P products a pick, where a matrix takes P² in all.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _gram_slice(x, y, gram, r, QUERY: tl.constexpr, DOT: tl.constexpr, SPLIT: tl.constexpr):
    """Add a slice along D of the rows x [SLOTS, DIMS] and of the query y [DIMS] to the products.

    SPLIT: rows are float32, which three bfloat16 parts hold. What the products of the smallest add is below 2^-24.
    """
    if QUERY:
        r += tl.sum(x.to(tl.float32) * y[None, :], 1)
    if SPLIT:
        high = x.to(tl.bfloat16)
        x -= high.to(tl.float32)
        middle = x.to(tl.bfloat16)
        low = (x - middle.to(tl.float32)).to(tl.bfloat16).to(DOT)
        high = high.to(DOT)
        middle = middle.to(DOT)
        across = tl.trans(high)
        gram = tl.dot(low, across, gram, input_precision="ieee")
        gram = tl.dot(middle, across, gram, input_precision="ieee")
        gram = tl.dot(high, across, gram, input_precision="ieee")
        across = tl.trans(middle)
        gram = tl.dot(middle, across, gram, input_precision="ieee")
        gram = tl.dot(high, across, gram, input_precision="ieee")
        gram = tl.dot(high, tl.trans(low), gram, input_precision="ieee")
    else:
        x = x.to(DOT)
        gram = tl.dot(x, tl.trans(x), gram, input_precision="ieee")
    return gram, r


@triton.jit
def gram_matrix(
    base,
    valid,
    query,
    factor,
    D,
    QUERY: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT: tl.constexpr,
    SPLIT: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Return the products of the rows at ``base`` [SLOTS, 1] with one another and with the query, slice by slice."""
    gram = tl.zeros([SLOTS, SLOTS], tl.float32)
    r = tl.zeros([SLOTS], tl.float32)
    d = tl.arange(0, DIMS)
    y = tl.zeros([DIMS], tl.float32)
    full = D // DIMS * DIMS
    # Full slices need no mask along D: with one, 16-byte loads become one load an element.
    for d0 in range(0, full, DIMS):
        x = tl.load(base + (d0 + d)[None, :], mask=valid[:, None], other=0)  # [SLOTS, DIMS]
        if QUERY:
            y = tl.load(query + d0 + d) * factor
        gram, r = _gram_slice(x, y, gram, r, QUERY, DOT, SPLIT)
    if not EVEN_D:
        tail = full + d < D
        x = tl.load(base + (full + d)[None, :], mask=valid[:, None] & tail[None, :], other=0)
        if QUERY:
            y = tl.load(query + full + d, mask=tail, other=0.0) * factor
        gram, r = _gram_slice(x, y, gram, r, QUERY, DOT, SPLIT)
    return gram, r


@triton.jit
def _column(gram, i, EACH: tl.constexpr):
    """Return what each row has in column i; EACH: in one of its own.

    The group of columns first, then the column within it: to compare all columns with i would take a register of each,
    where the groups are numbers that the compiler knows.
    """
    WIDTH: tl.constexpr = min(gram.shape[1], 32)
    GROUPS: tl.constexpr = gram.shape[1] // WIDTH
    i += tl.zeros([], tl.int32)  # of the interpreter a number, which no constexpr divides
    group = i // WIDTH
    within = i % WIDTH
    if EACH:
        group = group[:, None, None]
        within = within[:, None]
    groups = tl.reshape(gram, [gram.shape[0], GROUPS, WIDTH])
    columns = tl.sum(tl.where(tl.arange(0, GROUPS)[None, :, None] == group, groups, 0.0), 1)
    return tl.sum(tl.where(tl.arange(0, WIDTH)[None, :] == within, columns, 0.0), 1)


@triton.jit
def gram_row(gram, i, P):
    """Return the products of all rows with row i, read along the rows of the matrix.

    A matrix instruction leaves a row in few lanes. Anything along the columns would take a register of each an element.
    """
    row = tl.zeros([gram.shape[0]], tl.float32)
    if P > 0:  # always so; else the compiler of Triton 3.6 dies for sm_100, where it follows sums to sums of sums
        row = _column(gram, i, False)
    return row


@triton.jit
def part_products(gram, P, PARTS: tl.constexpr, GROWTH: tl.constexpr, SLOTS: tl.constexpr):
    """Return the products with the query, whose parts are the last rows of the tile."""
    last = tl.full([], SLOTS - 1, tl.int32)
    r = gram_row(gram, last, P)
    for part in tl.static_range(1, PARTS):
        r = r * (1.0 / GROWTH) + gram_row(gram, last - part, P)
    return r


@triton.jit
def diagonal(gram, p, P):
    """Return the squared lengths of the rows."""
    squares = tl.zeros([gram.shape[0]], tl.float32)
    if P > 0:  # as above
        squares = _column(gram, p, True)
    return squares


@triton.jit
def _row_slice(x, y, products, squares, QUERY: tl.constexpr, SQUARES: tl.constexpr):
    """Add a slice of rows x [SLOTS, DIMS] times y [DIMS], and the rows' own squares, lane by lane."""
    if QUERY:
        products += x * y[None, :]
    if SQUARES:
        squares += x * x
    return products, squares


@triton.jit
def held_rows(
    base,
    valid,
    query,
    factor,
    D,
    QUERY: tl.constexpr,
    SQUARES: tl.constexpr,
    EVEN_D: tl.constexpr,
    HELD: tl.constexpr,
    REST: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Return the first HELD slices of the rows, to stay in registers; the rows' products with the query; |row|²."""
    d = tl.arange(0, DIMS)
    products = tl.zeros([SLOTS, DIMS], tl.float32)
    squares = products
    y = tl.zeros([DIMS], tl.float32)
    held = ()
    for c in tl.static_range(HELD):
        x = tl.load(base + (c * DIMS + d)[None, :], mask=valid[:, None], other=0).to(tl.float32)
        if QUERY:
            y = tl.load(query + c * DIMS + d) * factor
        products, squares = _row_slice(x, y, products, squares, QUERY, SQUARES)
        held = held + (x,)  # type: ignore[assignment] # noqa: RUF005 - Triton unpacks no tuple
    full = D // DIMS * DIMS
    if REST:
        for d0 in range(HELD * DIMS, full, DIMS):
            x = tl.load(base + (d0 + d)[None, :], mask=valid[:, None], other=0).to(tl.float32)
            if QUERY:
                y = tl.load(query + d0 + d) * factor
            products, squares = _row_slice(x, y, products, squares, QUERY, SQUARES)
    if not EVEN_D:
        tail = full + d < D
        x = tl.load(base + (full + d)[None, :], mask=valid[:, None] & tail[None, :], other=0).to(tl.float32)
        if QUERY:
            y = tl.load(query + full + d, mask=tail, other=0.0) * factor
        products, squares = _row_slice(x, y, products, squares, QUERY, SQUARES)
    return held, tl.sum(products, 1), tl.sum(squares, 1)


@triton.jit
def row_products(
    held,
    base,
    valid,
    row,
    D,
    EVEN_D: tl.constexpr,
    HELD: tl.constexpr,
    REST: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Return the products of all rows with one of them: those that are held, and the rest read again from the cache."""
    d = tl.arange(0, DIMS)
    products = tl.zeros([SLOTS, DIMS], tl.float32)
    for c in tl.static_range(HELD):
        products += held[c] * tl.load(row + c * DIMS + d).to(tl.float32)[None, :]
    full = D // DIMS * DIMS
    if REST:
        for d0 in range(HELD * DIMS, full, DIMS):
            x = tl.load(base + (d0 + d)[None, :], mask=valid[:, None], other=0).to(tl.float32)
            products += x * tl.load(row + d0 + d).to(tl.float32)[None, :]
    if not EVEN_D:
        tail = full + d < D
        x = tl.load(base + (full + d)[None, :], mask=valid[:, None] & tail[None, :], other=0).to(tl.float32)
        products += x * tl.load(row + full + d, mask=tail, other=0).to(tl.float32)[None, :]
    return tl.sum(products, 1)
