"""One tile of logits of the linear form: where its columns are, and how it enters what is left of a split.

Nothing here depends on the shape of a tile but its width: so kernels with other tiles leave the same bits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from .scale import LOG2E, finite, scaled

# Columns of a tile, which is what one step of the online sums takes.
COLUMNS = 128
_HALVINGS = tl.constexpr(COLUMNS.bit_length() - 1)

# Targets that are looked for together.
PAIRS_AT_ONCE = tl.constexpr(128)


@triton.jit
def _row_sums(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the sums of rows: of the two halves of their columns, of those of each sum, and so on.

    `tl.sum` adds in the order in which columns lie in registers, which is another for every shape of tile.
    """
    for halving in tl.static_range(_HALVINGS):
        left, right = tl.split(tl.permute(tl.reshape(x, [ROWS, 2, COLUMNS >> (halving + 1)]), (0, 2, 1)))
        x = left + right
    return tl.reshape(x, [ROWS])


@triton.jit
def slots_of(first, num_slots, rows, inverse_temperature, outer, ROWS: tl.constexpr):
    """Return the row (-1: none) and the factor of ROWS slots."""
    slot = first + tl.arange(0, ROWS)
    row = tl.load(rows + slot, mask=slot < num_slots, other=-1)
    factor = tl.load(inverse_temperature + slot, mask=slot < num_slots, other=1.0) * outer
    return row, factor


@triton.jit
def columns_of(tile, allowed, num_columns, num_entering, COLUMNS: tl.constexpr):
    """Return the columns of a tile and whether they enter; those that do not are some column all the same."""
    at = tile * COLUMNS + tl.arange(0, COLUMNS)
    if allowed is not None:
        column = tl.load(allowed + at, mask=at < num_entering, other=-1)
        inside = (column >= 0) & (column < num_columns)
        column = tl.where(inside, column, 0)
    else:
        inside = at < num_columns
        column = tl.minimum(at, num_columns - 1).to(tl.int64)
    return column, inside


@triton.jit
def leave_unread(first, target, columns, pair_begin, num_slots, num_pairs, num_columns, ROWS: tl.constexpr):
    """Write -inf for the targets that no tile has: of the slots from ``first`` on, and those of no slot."""
    begin = tl.load(pair_begin + first)
    of_slots = tl.load(pair_begin + num_slots)
    end = tl.load(pair_begin + tl.minimum(first + ROWS, num_slots))
    end = tl.where(first + ROWS < num_slots, end, num_pairs)
    for chunk in range(begin, end, PAIRS_AT_ONCE):
        i = chunk + tl.arange(0, PAIRS_AT_ONCE)
        c = tl.load(columns + i, mask=i < end, other=-1)
        tl.store(target + i, float("-inf"), mask=(i < end) & ((c < 0) | (c >= num_columns) | (i >= of_slots)))


@triton.jit
def _note_targets(
    z, tile, first, target, columns, pair_begin, num_slots, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Write z of the targets in this tile. Most tiles have none; so nothing of a slot is kept for it in registers."""
    begin = tl.load(pair_begin + first)
    end = tl.load(pair_begin + tl.minimum(first + ROWS, num_slots))
    low = tile * COLUMNS
    for chunk in range(begin, end, PAIRS_AT_ONCE):
        i = chunk + tl.arange(0, PAIRS_AT_ONCE)
        c = tl.load(columns + i, mask=i < end, other=-1)
        here = (c >= low) & (c < tl.minimum(low + COLUMNS, num_columns))
        at = tl.min(tl.where(here, i, end), 0)
        while at < end:
            slot = first + tl.arange(0, ROWS)
            before = tl.load(pair_begin + slot + 1, mask=slot < num_slots, other=0x7FFFFFFFFFFFFFFF) <= at
            own_row = tl.arange(0, ROWS) == tl.sum(before.to(tl.int32), 0)
            own_column = tl.arange(0, COLUMNS) == (tl.load(columns + at) - low).to(tl.int32)
            of_column = tl.sum(tl.where(own_column[None, :], z, 0.0), 1)
            tl.store(target + at, tl.sum(tl.where(own_row, of_column, 0.0), 0))
            at = tl.min(tl.where(here & (i > at), i, end), 0)


@triton.jit
def _count_ranks(z, first, row, pair_begin, than, rank, num_slots, ROWS: tl.constexpr):
    """Add what exceeds each target to its rank."""
    slot = first + tl.arange(0, ROWS)
    begin = tl.load(pair_begin + slot, mask=row >= 0, other=0)
    count = tl.load(pair_begin + slot + 1, mask=row >= 0, other=0) - begin
    for p in range(tl.max(count, 0)):
        has = p < count
        t = tl.load(than + begin + p, mask=has, other=float("inf"))
        above = tl.sum((z > t[:, None]).to(tl.int32), 1)
        tl.atomic_add(rank + begin + p, above.to(tl.int64), mask=has)


@triton.jit
def enter(
    x,  # [ROWS, COLUMNS]
    top,
    s,
    w,
    tile,
    column,
    inside,
    first,
    row,
    factor,
    bias,  # None: no bias is added
    pair_begin,
    columns,
    than,
    part_weighted,  # None without entropy
    target,  # None: all z of targets are known
    rank,  # None without ranks
    num_slots,
    num_columns,
    inner,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Return the largest z, the sum and the weighted sum of a split with one more tile; note its targets and ranks."""
    if bias is not None:
        x += tl.load(bias + column)[None, :]
    z = tl.where(inside[None, :], scaled(x, inner, factor[:, None], SOFTCAP), float("-inf"))
    if target is not None:
        _note_targets(z, tile, first, target, columns, pair_begin, num_slots, num_columns, ROWS, COLUMNS)
    if rank is not None:
        _count_ranks(z, first, row, pair_begin, than, rank, num_slots, ROWS)
    before = top
    top = tl.maximum(top, tl.max(z, 1))  # ignores NaN, which shows in the sum
    base = finite(top, 0.0)
    d = z - base[:, None]
    e = tl.exp2(d * LOG2E)
    drop = tl.where(before == float("-inf"), 0.0, before - base)
    shrink = tl.exp2(drop * LOG2E)
    if part_weighted is not None:
        w = shrink * (w + drop * s) + _row_sums(tl.where(e > 0, d * e, 0.0), ROWS, COLUMNS)
    s = shrink * s + _row_sums(e, ROWS, COLUMNS)
    return top, s, w
