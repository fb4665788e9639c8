"""The kernels of a search by bits, which ``bit_search.py`` launches: no array of queries by rows exists.

Rows are multiplied with the queries in 16 bits. What that can cost is bounded (`filter_queries_kernel`), so that each
row has a least and a largest value. The least values of a sample of the rows give a bar, and a bit of each row says
whether its largest value reaches the bar. Values of those rows are then computed in float32. If n of them are not below
the bar, the n best rows of all are among them: the value of any other row is below the bar.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .launch import query_factor
from .objective import comparable, with_bias

# Of a relevance and a bias, weighted and added in float32: a part of either.
BIASED = tl.constexpr(3e-7)
# Less than the key of any row.
NO_KEY = tl.constexpr(-0x7FFFFFFFFFFFFFFF)
# The sample has one of so many rows that follow one another.
SHARE = tl.constexpr(4)
# A tile of the sample has so many groups of rows, of each of which the largest least value counts.
PARTS = tl.constexpr(4)


@triton.jit
def filter_queries_kernel(
    queries, factors, back, high, error, most, longest, rounding, D, UNIT: tl.constexpr, BLOCK: tl.constexpr
):
    """For each query what `query_factor` says, the query times its factor in 16 bits, and what that costs a product.

    The error is that of the product with a row of the length ``longest``, or so many times ``most`` on the device,
    times ``back``: what the query loses, and the part ``rounding`` of the lengths for all else.
    """
    q = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    factor, undo = query_factor(queries, q, D, UNIT, BLOCK)
    tl.store(factors + q, factor)
    tl.store(back + q, undo)
    rest, whole = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for d0 in range(0, D, BLOCK):
        x = factor * tl.load(queries + q * D + d0 + d, mask=d0 + d < D, other=0.0)
        rounded = x.to(high.dtype.element_ty)
        tl.store(high + q * D + d0 + d, rounded, mask=d0 + d < D)
        lost = x - rounded.to(tl.float32)
        rest += lost * lost
        whole += x * x
    lost = 1.01 * tl.sqrt_rn(tl.sum(rest, 0)) + rounding * tl.sqrt_rn(tl.sum(whole, 0))
    if most is not None:
        lost *= tl.load(most)
    tl.store(error + q, longest * undo * lost)


@triton.jit
def row_scale(factors, n, there, shrink):
    """Return the factors of rows, or a number in the place of each."""
    f = tl.zeros([n.shape[0]], tl.float32) + shrink
    if factors is not None:
        f = tl.load(factors + n, mask=there, other=0.0)
    return f


@triton.jit
def in_16_bits(x, f, SHRUNK: tl.constexpr, DOT: tl.constexpr):
    """Return rows as they are multiplied; SHRUNK: float32 ones, by which no float16 is infinite or loses its digits."""
    if SHRUNK:
        x *= f[:, None]
    return x.to(DOT)


@triton.jit
def _sampled(m):
    """Return the row that is number m of the sample: one of four in a row, chosen by the golden ratio.

    No period of the corpus, such as that of documents of four parts, puts all of its best rows into the sample or none.
    """
    m = m.to(tl.uint32)  # as registers are few: no row has a number of more bits
    return (m * SHARE + (m * 0x61C88647 >> 30)).to(tl.int64)


@triton.jit(do_not_specialize=("num_ids", "num_queries"))
def filter_product_kernel(
    rows,
    factors,
    high,
    back,
    error,
    bias,
    groups,
    query_groups,
    lambda_b,
    least,
    bars,
    bits,
    row_stride,
    num_queries,
    num_ids,
    tiles,
    shrink,
    grow,
    D,
    BIAS_BY_ROW: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT: tl.constexpr,
    SHRUNK: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """The least values of a sample of the rows into ``least``, or with ``bars`` (C,) a bit of every row into ``bits``.

    ``least`` (C, tiles, PARTS): the largest of each group. ``bits`` (C, tiles, ROWS / 32): whether a row's largest
    value reaches the bar. SHRUNK: rows are float32, multiplied as float16 times ``shrink`` or their factors; ``grow``
    undoes the former.
    """
    blocks = tl.cdiv(num_queries, QUERIES)
    program = tl.program_id(0)
    tile = (program // blocks).to(tl.int64)  # programs that share a tile of the corpus are neighbours
    i = (program % blocks).to(tl.int64) * QUERIES + tl.arange(0, QUERIES)
    n = tile * ROWS + tl.arange(0, ROWS)
    if bars is None:  # rows that lie far apart: neighbours are often alike, and of a group one counts
        n = _sampled(tl.arange(0, ROWS).to(tl.int64) * tiles + program // blocks)
    real, there = i < num_queries, n < num_ids
    d = tl.arange(0, DIMS)
    at_rows = rows + n[:, None] * row_stride
    at_queries = high + i[:, None] * D
    product = tl.zeros([QUERIES, ROWS], tl.float32)
    f = row_scale(factors, n, there, shrink)
    full = D // DIMS * DIMS
    # Full slices need no mask along D: with one, 16-byte loads become one load an element.
    for d0 in range(0, full, DIMS):
        x = tl.load(at_rows + (d0 + d)[None, :], mask=there[:, None], other=0)
        x = in_16_bits(x, f, SHRUNK, DOT)
        y = tl.load(at_queries + (d0 + d)[None, :], mask=real[:, None], other=0.0).to(DOT)
        product = tl.dot(y, tl.trans(x), product)
    if not EVEN_D:
        tail = (full + d < D)[None, :]
        x = tl.load(at_rows + (full + d)[None, :], mask=there[:, None] & tail, other=0)
        x = in_16_bits(x, f, SHRUNK, DOT)
        y = tl.load(at_queries + (full + d)[None, :], mask=real[:, None] & tail, other=0.0).to(DOT)
        product = tl.dot(y, tl.trans(x), product)
    v = product * tl.load(back + i, mask=real, other=0.0)[:, None]
    if SHRUNK:
        v *= grow
    elif factors is not None:
        v *= f[None, :]
    off = tl.load(error + i, mask=real, other=0.0)[:, None]
    ok = real[:, None] & there[None, :]
    if bias is not None:
        weight = tl.load(lambda_b + i, mask=real, other=0.0)[:, None]
        relevance = v
        if BIAS_BY_ROW:
            v = with_bias(relevance, bias, n[None, :], there[None, :], weight)
        else:
            v = with_bias(relevance, bias, i[:, None] * num_ids + n[None, :], ok, weight)
        off = weight * off + BIASED * (tl.abs(v) + 2.0 * tl.abs(weight * relevance))
    if query_groups is not None:
        own = tl.load(query_groups + i, mask=real, other=0)
        ok &= tl.load(groups + n, mask=there, other=0)[None, :] != own[:, None]
    if bars is None:
        of_groups = tl.reshape(comparable(v - off, ok), [QUERIES, PARTS, ROWS // PARTS])
        g = tile * PARTS + tl.arange(0, PARTS)
        at = least + i[:, None] * (tiles * PARTS) + g[None, :]
        tl.store(at, tl.max(of_groups, 2), mask=real[:, None])
    else:
        bar = tl.load(bars + i, mask=real, other=float("inf"))[:, None]
        kept = ok & (v + off >= bar)
        bit = tl.full([ROWS], 1, tl.int32) << (tl.arange(0, ROWS) % 32)
        words = tl.sum(tl.reshape(tl.where(kept, bit[None, :], 0), [QUERIES, ROWS // 32, 32]), 2)
        w = tile * (ROWS // 32) + tl.arange(0, ROWS // 32)
        tl.store(bits + i[:, None] * (tiles * (ROWS // 32)) + w[None, :], words, mask=real[:, None])


@triton.jit
def ordered(x):
    """Return float32 as int32 in the same order; -0 equals 0."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _float(x):
    """Return the float32 that `ordered` made a number of."""
    return (x ^ ((x >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=("parts", "rank"))
def filter_bars_kernel(least, bars, parts, rank, GROUPS: tl.constexpr):
    """The value of a rank among ``least`` (C, parts), bit by bit from the highest; -inf where they are fewer."""
    i = tl.program_id(0).to(tl.int64)
    g = tl.arange(0, GROUPS)
    x = tl.full([GROUPS], float("-inf"), tl.float32)
    for g0 in range(0, parts, GROUPS):  # of every GROUPS-th the largest
        x = tl.maximum(x, tl.load(least + i * parts + g0 + g, mask=g0 + g < parts, other=float("-inf")))
    key = ordered(x).to(tl.int64) + 0x80000000
    best = tl.zeros([], tl.int64)
    for b in range(32):
        larger = best + (tl.full([], 0x80000000, tl.int64) >> b)
        best = tl.where(tl.sum((key >= larger).to(tl.int32), 0) >= rank, larger, best)
    bar = _float((best - 0x80000000).to(tl.int32))
    tl.store(bars + i, tl.where(bar > float("-inf"), bar, float("-inf")))


@triton.jit
def bits_set(x):
    c = x - ((x >> 1) & 0x55555555)
    c = (c & 0x33333333) + ((c >> 2) & 0x33333333)
    c = (c + (c >> 4)) & 0x0F0F0F0F
    return ((c * 0x01010101) >> 24) & 0x3F


@triton.jit(do_not_specialize=("words", "room"))
def filter_list_kernel(bits, listed, count, words, room, WORDS: tl.constexpr):
    """The rows of a query's bits in ascending order, ``room`` of them at most, and how many there are."""
    i = tl.program_id(0).to(tl.int64)
    total = tl.zeros([], tl.int32)
    for w0 in range(0, words, WORDS):
        w = w0 + tl.arange(0, WORDS)
        x = tl.load(bits + i * words + w, mask=w < words, other=0)
        set_here = bits_set(x)
        at = total + tl.cumsum(set_here, 0) - set_here
        total += tl.sum(set_here, 0)
        while tl.max(tl.where(x != 0, 1, 0), 0) > 0:  # a bit of each word at a time, from the lowest
            low = x & -x
            tl.store(listed + i * room + at, w * 32 + bits_set(low - 1), mask=(x != 0) & (at < room))
            at += tl.where(x != 0, 1, 0)
            x ^= low
    tl.store(count + i, total)


class Asked(NamedTuple):
    """What the relevance of rows is made of."""

    rows: Any
    factors: Any
    queries: Any
    query_factors: Any
    back: Any
    bias: Any
    groups: Any
    query_groups: Any
    lambda_b: Any
    row_stride: Any
    num_ids: Any
    D: Any


@triton.jit
def products_of(asked, n, ok, vector, scale, DIMS: tl.constexpr):
    """Return the products of rows n with a vector times its scale, in float32."""
    d = tl.arange(0, DIMS)
    sums = tl.zeros([n.shape[0], DIMS], tl.float32)
    for d0 in range(0, asked.D, DIMS):
        mask = ok[:, None] & (d0 + d < asked.D)[None, :]
        x = tl.load(asked.rows + n[:, None] * asked.row_stride + (d0 + d)[None, :], mask=mask, other=0).to(tl.float32)
        y = scale * tl.load(vector + d0 + d, mask=d0 + d < asked.D, other=0).to(tl.float32)
        sums += x * y[None, :]
    products = tl.sum(sums, 1)
    if asked.factors is not None:
        products *= tl.load(asked.factors + n, mask=ok, other=0.0)
    return products


@triton.jit
def values_of(asked, n, ok, q, BIAS_BY_ROW: tl.constexpr, DIMS: tl.constexpr):
    """Return the relevance with bias of rows n, and which of them query q may pick."""
    v = products_of(asked, n, ok, asked.queries + q * asked.D, tl.load(asked.query_factors + q), DIMS)
    v *= tl.load(asked.back + q)
    if asked.bias is not None:
        if BIAS_BY_ROW:
            v = with_bias(v, asked.bias, n, ok, tl.load(asked.lambda_b + q))
        else:
            v = with_bias(v, asked.bias, q * asked.num_ids + n, ok, tl.load(asked.lambda_b + q))
    if asked.query_groups is not None:
        ok &= tl.load(asked.groups + n, mask=ok, other=0) != tl.load(asked.query_groups + q)
    return v, ok


@triton.jit
def key_of(v, n, ok):
    """Return a key of each row: larger for the larger value, of equal values for the lower row; the least if not ok."""
    key = (ordered(comparable(v, ok)).to(tl.int64) << 32) | (0x7FFFFFFF - n)
    return tl.where(ok & (v > float("-inf")), key, NO_KEY)


@triton.jit
def row_of(key):
    """Return the row of a key; -1 of one that is no row's."""
    return tl.where(key > NO_KEY, 0x7FFFFFFF - (key & 0xFFFFFFFF), -1)


@triton.jit
def value_of(key):
    """Return the value of a key; -inf of one that is no row's."""
    return tl.where(key > NO_KEY, _float((key >> 32).to(tl.int32)), float("-inf"))


@triton.jit(do_not_specialize=("num_ids", "room"))
def filter_keys_kernel(
    listed,
    count,
    keys,
    rows,
    factors,
    queries,
    query_factors,
    back,
    bias,
    groups,
    query_groups,
    lambda_b,
    row_stride,
    num_ids,
    room,
    programs,
    D,
    BIAS_BY_ROW: tl.constexpr,
    EACH: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Keys (C, room) of the rows that are listed, EACH of them by each of a query's programs."""
    i = (tl.program_id(0) // programs).to(tl.int64)
    at = (tl.program_id(0) % programs) * EACH + tl.arange(0, EACH)
    total = tl.load(count + i)
    if (total <= room) & (tl.min(at, 0) < total):  # what overflows goes another way, in `filter_best_kernel`
        ok = at < total
        n = tl.load(listed + i * room + at, mask=ok, other=0).to(tl.int64)
        asked = Asked(
            rows, factors, queries, query_factors, back, bias, groups, query_groups, lambda_b, row_stride, num_ids, D
        )
        v, free = values_of(asked, n, ok, i, BIAS_BY_ROW, DIMS)
        tl.store(keys + i * room + at, key_of(v, n, free), mask=at < room)


@triton.jit
def _merged(best, new, TOP: tl.constexpr):
    """Return the TOP best of two lists of keys in descending order."""
    both = tl.sort(tl.reshape(tl.join(best, new), [2 * TOP]), descending=True)
    first, _ = tl.split(tl.trans(tl.reshape(both, [2, TOP])))
    return first


@triton.jit(do_not_specialize=("num_ids", "room", "n"))
def filter_best_kernel(
    count,
    bars,
    keys,
    out_index,
    out_score,
    rows,
    factors,
    queries,
    query_factors,
    back,
    bias,
    groups,
    query_groups,
    lambda_b,
    row_stride,
    num_ids,
    room,
    n,
    D,
    BIAS_BY_ROW: tl.constexpr,
    TOP: tl.constexpr,
    DIMS: tl.constexpr,
):
    """The rows and values of a query's n best keys, -1 and -inf where there are no more.

    Where more rows reach the bar than there is room for, such as many equal ones, or fewer than n, all rows get keys
    here.
    """
    i = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, TOP)
    total = tl.load(count + i)
    best = tl.full([TOP], NO_KEY, tl.int64)
    if total <= room:
        for j0 in range(0, total, TOP):
            new = tl.load(keys + i * room + j0 + j, mask=j0 + j < total, other=NO_KEY)
            best = _merged(best, new, TOP)
    reaching = tl.sum((value_of(best) >= tl.load(bars + i)).to(tl.int32), 0)
    if (total > room) | (reaching < n):
        asked = Asked(
            rows, factors, queries, query_factors, back, bias, groups, query_groups, lambda_b, row_stride, num_ids, D
        )
        best = tl.full([TOP], NO_KEY, tl.int64)
        for j0 in range(0, num_ids, TOP):
            row = (j0 + j).to(tl.int64)
            v, free = values_of(asked, row, row < num_ids, i, BIAS_BY_ROW, DIMS)
            best = _merged(best, key_of(v, row, free), TOP)
    at = i * n + j
    tl.store(out_index + at, row_of(best), mask=j < n)
    tl.store(out_score + at, value_of(best), mask=j < n)
