"""The linear form: tiles of a product of hidden states and weights, whose values are summed and forgotten."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .. import _arrays
from .triton_merge import Parts, workspace
from .triton_scale import LOG2E, factors, finite, nan_for_inf, scaled

# Splits of the vocabulary: with one tile of rows they fill a large device.
MOST_SPLITS = 256

# Loads in flight of the kernel of targets, which makes one tile: more would only take registers.
TARGET_STAGES = 2


class Tile(NamedTuple):
    """Tile sizes of a linear kernel, and how it is compiled."""

    rows: int
    columns: int
    dims: int
    even: bool  # whether dims divides D
    num_warps: int
    num_stages: int


def tile_of(dot16: bool, D: int) -> Tile:
    """Return the tile of products, by the kind of product and D alone.

    64 rows keep the matrix units less busy than the memory where rows are few, which is what answers have. Eight warps
    share the registers of two tiles, the logits and the products of one slice. Where no slice divides D, loads are of
    single elements, whose addresses take registers.
    """
    if not dot16:
        return Tile(64, 64, 16, True, 4, 3) if D % 16 == 0 else Tile(64, 64, 16, False, 8, 3)
    for dims in (64, 32, 16):
        if D % dims == 0:
            return Tile(64, 128, dims, True, 8, 3)
    return Tile(64, 128, 32, False, 8, 2)


@triton.jit
def _products(
    hidden,
    row,
    stride_hidden,
    weight,
    column,
    stride_weight,
    bias,
    dims,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIMS: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT16: tl.constexpr,
):
    """Return x of ROWS rows and COLUMNS columns. Every x of a call is computed here, in tiles of one shape.

    Matrix units add with truncation, which over a chain of D dimensions is a bias beyond the gate. So each slice of at
    most 64 has an accumulator of its own, and slices are added in float32. ``max_num_imprecise_acc`` says so to the
    compiler, which would make one chain of ``x += tl.dot(a, b)``.
    """
    k = tl.arange(0, DIMS)
    h = hidden + (row * stride_hidden)[:, None] + k[None, :]  # [ROWS, DIMS]
    w = weight + (column * stride_weight)[None, :] + k[:, None]  # [DIMS, COLUMNS]
    x = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, dims, DIMS):
        if EVEN_D:
            a = tl.load(h + first)
            b = tl.load(w + first)
        else:
            a = tl.load(h + first, mask=(k < dims - first)[None, :], other=0.0)
            b = tl.load(w + first, mask=(k < dims - first)[:, None], other=0.0)
        if DOT16:
            x += tl.dot(a, b, max_num_imprecise_acc=DIMS)
        else:
            x = tl.dot(a.to(tl.float32), b.to(tl.float32), x, input_precision="ieee")
    if bias is not None:
        x += tl.load(bias + column)[None, :]
    return x


@triton.jit(do_not_specialize=["num_slots"])
def logprob_linear_kernel(
    hidden,
    weight,
    bias,  # None: no bias is added
    rows,
    inverse_temperature,
    allowed,  # None: all columns enter
    pair_begin,
    than,  # [M]
    part_max,  # [R, splits]
    part_sum,
    part_weighted,  # None without entropy
    rank,  # [M]; None without ranks
    stride_hidden,
    stride_weight,
    dims,
    num_slots,
    num_columns,
    num_entering,
    splits,
    tiles,
    inner,
    outer,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIMS: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT16: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Sums of one split, ``tiles`` tiles of columns, for ROWS slots.

    Programs of a split are neighbours: its weights are read from memory once and from the cache after that.
    """
    slot = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    is_slot = slot < num_slots
    row = tl.load(rows + slot, mask=is_slot, other=-1)
    live = row >= 0
    row = tl.maximum(row, 0)  # a program reads row 0 where it has no slot, and drops it: a mask would narrow the loads
    factor = tl.load(inverse_temperature + slot, mask=is_slot, other=1.0) * outer
    top = tl.full([ROWS], float("-inf"), tl.float32)
    s = tl.zeros([ROWS], tl.float32)
    w = tl.zeros([ROWS], tl.float32)
    begin = tl.load(pair_begin + slot, mask=live, other=0)
    count = tl.load(pair_begin + slot + 1, mask=live, other=0) - begin
    most = tl.max(count, 0)
    for tile in range(split * tiles, split * tiles + tiles):
        at = tile * COLUMNS + tl.arange(0, COLUMNS)
        if allowed is not None:
            column = tl.load(allowed + at, mask=at < num_entering, other=-1)
            inside = (column >= 0) & (column < num_columns)
            column = tl.where(inside, column, 0)
        else:
            inside = at < num_columns
            column = tl.minimum(at, num_columns - 1).to(tl.int64)
        x = _products(
            hidden,
            row,
            stride_hidden,
            weight,
            column,
            stride_weight,
            bias,
            dims,
            ROWS,
            COLUMNS,
            DIMS,
            EVEN_D,
            DOT16,
        )
        z = tl.where(inside[None, :], scaled(x, inner, factor[:, None], SOFTCAP), float("-inf"))  # [ROWS, COLUMNS]
        before = top
        top = tl.maximum(top, tl.max(z, 1))  # ignores NaN, which shows in the sum
        base = finite(top, 0.0)
        d = z - base[:, None]
        e = tl.exp2(d * LOG2E)
        drop = tl.where(before == float("-inf"), 0.0, before - base)
        shrink = tl.exp2(drop * LOG2E)
        if part_weighted is not None:
            w = shrink * (w + drop * s) + tl.sum(tl.where(e > 0, d * e, 0.0), 1)
        s = shrink * s + tl.sum(e, 1)
        if rank is not None:
            for p in range(most):
                has = p < count
                t = tl.load(than + begin + p, mask=has, other=float("inf"))
                above = tl.sum((z > t[:, None]).to(tl.int32), 1)
                tl.atomic_add(rank + begin + p, above.to(tl.int64), mask=has)
    part = slot * splits + split
    tl.store(part_max + part, top, mask=is_slot)
    tl.store(part_sum + part, nan_for_inf(s), mask=is_slot)
    if part_weighted is not None:
        tl.store(part_weighted + part, w, mask=is_slot)


@triton.jit(do_not_specialize=["num_slots", "num_pairs", "steps"])
def logprob_linear_target_kernel(
    hidden,
    weight,
    bias,  # None: no bias is added
    rows,
    inverse_temperature,
    pair_begin,
    columns,
    target,  # [M]
    stride_hidden,
    stride_weight,
    dims,
    num_slots,
    num_pairs,
    steps,
    inner,
    outer,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIMS: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT16: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """z of ROWS targets: the diagonal of a tile of their rows and their columns."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    i = first + tl.arange(0, ROWS)
    # The slot of a pair is the last that begins at or before it; ``steps`` halvings find it.
    low = tl.zeros([ROWS], tl.int64)
    high = tl.zeros([ROWS], tl.int64) + num_slots + 1
    for _ in range(steps):
        middle = (low + high) // 2
        open_ = low < high
        begun = open_ & (tl.load(pair_begin + middle, mask=open_, other=0) <= i)
        low = tl.where(begun, middle + 1, low)
        high = tl.where(open_ & (begun == 0), middle, high)
    slot = low - 1
    is_slot = (i < num_pairs) & (slot < num_slots)
    row = tl.load(rows + slot, mask=is_slot, other=-1)
    factor = tl.load(inverse_temperature + slot, mask=is_slot, other=1.0) * outer
    own = tl.load(columns + i, mask=i < num_pairs, other=-1)
    along = tl.arange(0, COLUMNS)
    column = tl.load(columns + first + along, mask=(along < ROWS) & (first + along < num_pairs), other=0)
    x = _products(
        hidden,
        tl.maximum(row, 0),
        stride_hidden,
        weight,
        tl.maximum(column, 0),
        stride_weight,
        bias,
        dims,
        ROWS,
        COLUMNS,
        DIMS,
        EVEN_D,
        DOT16,
    )
    z = scaled(x, inner, factor[:, None], SOFTCAP)
    z = tl.sum(tl.where(along[None, :] == tl.arange(0, ROWS)[:, None], z, 0.0), 1)
    tl.store(target + i, tl.where((row >= 0) & (own >= 0), z, float("-inf")), mask=i < num_pairs)


def parts_of(problem: Any) -> Parts:
    """Launch the sums of a problem with hidden states and weights."""
    hidden, weight, like = problem.hidden, problem.weight, problem.rows
    R, M, D = len(problem.rows), len(problem.columns), hidden.shape[1]
    dot16 = hidden.dtype == weight.dtype != problem.inverse_temperature.dtype
    tile = tile_of(dot16, D)
    tiles = -(-problem.num_entering // tile.columns)
    tiles_a_split = -(-tiles // MOST_SPLITS)
    splits = -(-tiles // tiles_a_split)
    parts = workspace(problem, splits)
    target = _arrays.empty(like, (M,), "float32")
    rank = _arrays.full(like, (M,), 0, "int64") if problem.rank else None
    inner, outer = factors(problem)
    # What the kernels of targets and of sums have in common.
    common = {
        "hidden": hidden,
        "weight": weight,
        "bias": problem.head_bias,
        "rows": problem.rows,
        "inverse_temperature": problem.inverse_temperature,
        "pair_begin": problem.pair_begin,
        "stride_hidden": hidden.stride(0),
        "stride_weight": weight.stride(0),
        "dims": D,
        "num_slots": R,
        "inner": inner,
        "outer": outer,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DIMS": tile.dims,
        "EVEN_D": tile.even,
        # The interpreter holds bfloat16 as its bits, which it can widen but not multiply.
        "DOT16": dot16 and not (hidden.device.type == "cpu" and problem.hidden_dtype == "bfloat16"),
        "SOFTCAP": problem.softcap is not None,
        "num_warps": tile.num_warps,
        "enable_fp_fusion": False,
    }
    if M:
        logprob_linear_target_kernel[(-(-M // tile.rows),)](
            **common,
            columns=problem.columns,
            target=target,
            num_pairs=M,
            steps=(R + 1).bit_length(),
            num_stages=TARGET_STAGES,
        )
    logprob_linear_kernel[(-(-R // tile.rows), splits)](
        **common,
        allowed=problem.allowed,
        than=target if problem.target_logits is None else problem.target_logits,
        part_max=parts.max,
        part_sum=parts.sum,
        part_weighted=parts.weighted,
        rank=rank,
        num_columns=problem.num_columns,
        num_entering=problem.num_entering,
        splits=splits,
        tiles=tiles_a_split,
        num_stages=tile.num_stages,
    )
    return parts._replace(target=target, rank=rank)
