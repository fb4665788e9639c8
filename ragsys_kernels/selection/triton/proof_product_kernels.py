"""The product of all rows with the columns of drafts: which rows are contenders, and the best of each tile."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from .bit_search_kernels import in_16_bits, ordered, row_scale
from .objective import comparable

# Of a bias, weighted and added in float32: a part of it.
BIASED = tl.constexpr(1e-6)
# Less than any key of a best row.
NO_PEAK = tl.constexpr(-(2**31))


@triton.jit
def _several(x, at, real, plane, products, DOT: tl.constexpr, TERMS: tl.constexpr):
    """Add a slice of rows x [ROWS, DIMS] times that of each column, which lie a plane from one another."""
    x = tl.trans(x)
    new = ()
    for j in tl.static_range(TERMS):
        y = tl.load(at + j * plane, mask=real[:, None], other=0.0).to(DOT)  # [QUERIES, DIMS]
        new = new + (tl.dot(y, x, products[j]),)  # noqa: RUF005 - Triton unpacks no tuple
    return new


@triton.jit
def _contenders(
    t0, value, kept, v, group, after, products, back, error, bars, barred, barred_group, peaks, ok, place, tile, tiles,
    i, real, num_queries, TERMS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Return the value of rows after the columns from t0 on, and whether it may reach that of a pick.

    ``peaks`` get the best row of the tile after each column as a key: its value, in the last bits its place.
    """
    for j in tl.static_range(TERMS):
        at = (t0 + j) * num_queries.to(tl.int64) + i
        this = products[j] * tl.load(back + at, mask=real, other=0.0)[:, None]
        if after is not None:
            this *= after
        this += tl.load(error + at, mask=real, other=0.0)[:, None]
        value = tl.minimum(value, this, propagate_nan=tl.PropagateNan.ALL)
        if barred is not None:
            full = tl.load(barred + at, mask=real, other=0)[:, None] != 0
            same = tl.load(barred_group + at, mask=real, other=0)[:, None] == group[None, :]
            value = tl.where(full & same, float("-inf"), value)
        bar = tl.load(bars + at, mask=real, other=float("inf"))[:, None]
        w = value
        if v is not None:
            w += v
        w = comparable(w, ok)
        kept |= ((w >= bar) & (w > float("-inf"))).to(tl.int32)
        if peaks is not None:
            key = (ordered(w) & -ROWS) | (ROWS - 1 - place)[None, :]
            best = tl.max(tl.where(w > float("-inf"), key, NO_PEAK), 1)
            tl.store(peaks + (tl.cast(tiles, tl.int64) * (t0 + j) + tile) * num_queries + i, best, mask=real)
    return value, kept


@triton.jit(do_not_specialize=("num_ids", "num_queries", "terms"))
def proof_product_kernel(
    rows,
    factors,
    high,
    back,
    error,
    bars,
    barred,
    barred_group,
    bias,
    groups,
    query_groups,
    lambda_d,
    lambda_b,
    order,
    count,
    bits,
    peaks,
    row_stride,
    num_queries,
    num_ids,
    tiles,
    terms,
    shrink,
    grow,
    D,
    stride,
    BIAS_BY_ROW: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT: tl.constexpr,
    SHRUNK: tl.constexpr,
    TERMS: tl.constexpr,
    ONCE: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """A bit a row, ``bits`` (C, tiles, ROWS / 32), that says whether it may be worth as much as a drafted pick.

    ``peaks`` (T, tiles, C), or None: the best row of each tile after each column. TERMS columns are multiplied while a
    tile of rows is read; ONCE: these are all. SHRUNK as in `filter_product_kernel`. With ``peaks`` few programs share
    the work, of which there may be none.
    """
    unproven, turns = num_queries, 1  # in the first check
    if peaks is not None:
        unproven = tl.load(count)
        work = tl.cdiv(unproven, QUERIES) * tiles
        turns = tl.cdiv(tl.maximum(work - tl.program_id(0), 0), tl.num_programs(0))
    blocks = tl.cdiv(unproven, QUERIES)
    for turn in tl.range(0, turns, disable_licm=True):
        program = tl.program_id(0) + turn * tl.num_programs(0)
        tile = (program // blocks).to(tl.int64)  # programs that share a tile of the corpus are neighbours
        i = (program % blocks).to(tl.int64) * QUERIES + tl.arange(0, QUERIES)
        n = tile * ROWS + tl.arange(0, ROWS)
        real, there = i < unproven, n < num_ids
        d = tl.arange(0, DIMS)
        at_rows = rows + n[:, None] * row_stride
        plane = (tl.zeros([], tl.int64) + num_queries) * stride
        full = D // DIMS * DIMS
        value = tl.full([QUERIES, ROWS], float("inf"), tl.float32)
        kept = tl.zeros([QUERIES, ROWS], tl.int32)
        f = row_scale(factors, n, there, shrink)
        after = None
        if SHRUNK:
            after = grow
        elif factors is not None:
            after = f[None, :]
        ok = real[:, None] & there[None, :]
        if query_groups is not None:
            own = tl.load(query_groups + tl.load(order + i, mask=real, other=0), mask=real, other=0)
            ok &= tl.load(groups + n, mask=there, other=0)[None, :] != own[:, None]
        for t0 in range(0, TERMS if ONCE else terms, TERMS):
            at_high = high + t0 * plane + i[:, None] * stride
            products = ()
            for _ in tl.static_range(TERMS):
                products = products + (tl.zeros([QUERIES, ROWS], tl.float32),)  # noqa: RUF005 - as above
            # Full slices need no mask along D: with one, 16-byte loads become one load an element.
            for d0 in range(0, full, DIMS):
                x = tl.load(at_rows + (d0 + d)[None, :], mask=there[:, None], other=0)
                x = in_16_bits(x, f, SHRUNK, DOT)
                products = _several(x, at_high + (d0 + d)[None, :], real, plane, products, DOT, TERMS)
            if not EVEN_D:
                tail = (full + d < D)[None, :]
                x = tl.load(at_rows + (full + d)[None, :], mask=there[:, None] & tail, other=0)
                x = in_16_bits(x, f, SHRUNK, DOT)
                products = _several(x, at_high + (full + d)[None, :], real, plane, products, DOT, TERMS)
            v = None
            if bias is not None:
                q = tl.load(order + i, mask=real, other=0).to(tl.int64)
                weight = tl.load(lambda_d + q, mask=real, other=0.0) * (
                    1.0 - tl.load(lambda_b + q, mask=real, other=0.0)
                )
                if BIAS_BY_ROW:
                    v = weight[:, None] * tl.load(bias + n, mask=there, other=0.0)[None, :]
                else:
                    pair = real[:, None] & there[None, :]
                    v = weight[:, None] * tl.load(bias + q[:, None] * num_ids + n[None, :], mask=pair, other=0.0)
                v += BIASED * tl.abs(v)
            group = None
            if barred is not None:
                group = tl.load(groups + n, mask=there, other=0)
            value, kept = _contenders(
                t0, value, kept, v, group, after, products, back, error, bars, barred, barred_group, peaks, ok,
                tl.arange(0, ROWS), tile, tiles, i, real, num_queries, TERMS, ROWS,
            )  # fmt: skip
        bit = tl.full([ROWS], 1, tl.int32) << (tl.arange(0, ROWS) % 32)
        words = tl.sum(tl.reshape(tl.where(kept != 0, bit[None, :], 0), [QUERIES, ROWS // 32, 32]), 2)
        w = tile * (ROWS // 32) + tl.arange(0, ROWS // 32)
        tl.store(bits + i[:, None] * (tiles * (ROWS // 32)) + w[None, :], words, mask=real[:, None])
