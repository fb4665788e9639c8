"""The linear form: tiles of a product of hidden states and weights, whose values are summed and forgotten."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ..._base import arrays, env
from ..._gpu.compilers import float32_precision, is_hopper
from ..._gpu.plans import launch
from . import top
from .merge import Parts, workspace
from .scale import nan_for_inf, scaled, scales
from .tile import COLUMNS, columns_of, enter, leave_unread, slots_of

# Splits of the vocabulary: as many tiles as columns make up to FEW_SPLITS, which fill any device, and no more than
# MOST_SPLITS, which the merge holds in registers.
FEW_SPLITS, MOST_SPLITS = 512, 1024

# Targets to a slot, on average, that the tiles look for themselves.
MOST_TARGETS = 4

# On AMD, where a warp has 64 lanes.
AMD_WARPS = 4

_NO_SPLIT = tl.constexpr(0x7FFFFFFF)

# Of splits that are looked at again: the most z at a time, rows of a tile, which also holds where they go, and programs
# that share those of few slots.
MOST_HELD = 1 << 24
MOST_SPLIT_ROWS = 32
FEW_PROGRAMS = 512

# Loads in flight of the kernel of targets, which makes one tile: more would only take registers.
TARGET_STAGES = 2


class Tile(NamedTuple):
    """Tile sizes of a linear kernel, and how it is compiled."""

    rows: int
    dims: int
    even: bool  # whether dims divides D
    num_stages: int
    num_warps: int
    # Left to itself the assembler spills a few bytes to stay at a number of registers that lets one more block in.
    maxnreg: int | None = 255

    def constants(self) -> dict[str, Any]:
        """Return what the kernels of sums and of targets take of it."""
        return {"ROWS": self.rows, "COLUMNS": COLUMNS, "DIMS": self.dims, "EVEN_D": self.even}

    def options(self, num_stages: int) -> dict[str, Any]:
        """Return how a launch is compiled; AMD's compiler takes no bound of registers."""
        how: dict[str, Any] = {
            "num_warps": self.num_warps,
            "num_stages": num_stages,
            "enable_fp_fusion": False,
        }
        if torch.version.hip:
            how["num_warps"] = AMD_WARPS
        elif self.maxnreg is not None:
            how["maxnreg"] = self.maxnreg
        return how


def tile_of(dot16: bool, D: int, num_rows: int = 64, hopper: bool = True) -> Tile:
    """Return the tile of products, by the kind of product, D and the number of rows; bits do not depend on its rows.

    64 rows keep the matrix units less busy than the memory where rows are few, which is what answers have; on Hopper
    fewer leave registers for more programs, and so more loads in flight. Where no slice divides D, loads are of single
    elements, whose addresses take registers.
    """
    rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
    if not dot16 and hopper and D % 16 == 0:
        return Tile(rows, 32 if D % 32 == 0 else 16, True, 3, rows // 16, None)
    if not dot16:
        # Of 64 rows Triton before 3.8 makes tf32 on sm_100, whatever is asked for.
        return Tile(32, 16, True, 3, 8) if D % 16 == 0 else Tile(16, 16, False, 3, 8)
    if D % 64 == 0:
        return Tile(rows, 64, True, 4, 4, None) if hopper else Tile(64, 64, True, 3, 8, None)
    for dims in (32, 16):
        if D % dims == 0:
            return Tile(64, dims, True, 3, 8)
    return Tile(64, 32, False, 2, 8)


def tiles_of_a_split(num_entering: int) -> int:
    """Return the tiles of columns in a split, by their number alone."""
    tiles = -(-num_entering // COLUMNS)
    return 1 if tiles <= FEW_SPLITS else 2 * -(-tiles // (2 * MOST_SPLITS))


@triton.jit
def _products(
    hidden,
    row,
    stride_hidden,
    weight,
    column,
    stride_weight,
    dims,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIMS: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT16: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the products of ROWS rows and COLUMNS columns.

    Matrix units add with truncation, which over a chain of D dimensions is a bias beyond the gate. So each slice of at
    most 64 has an accumulator of its own, and slices are added in float32. ``max_num_imprecise_acc`` says so to the
    compiler, which would make one chain of ``x += tl.dot(a, b)``. float32 is multiplied as ``PRECISION`` says.
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
            x += tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION, max_num_imprecise_acc=DIMS)
    return x


@triton.jit(do_not_specialize=["num_slots", "num_pairs"])
def logprob_linear_kernel(
    hidden,
    weight,
    bias,  # None: no bias is added
    rows,
    inverse_temperature,
    allowed,  # None: all columns enter
    pair_begin,
    columns,
    than,  # [M]
    part_max,  # [R, splits]
    part_sum,
    part_weighted,  # None without entropy
    target,  # [M]; None: all are known
    rank,  # [M]; None without ranks
    stride_hidden,
    stride_weight,
    dims,
    num_slots,
    num_pairs,
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
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Sums of one split, ``tiles`` tiles of columns, for ROWS slots, and z of the targets among its columns.

    Programs of a split are neighbours: its weights are read from memory once and from the cache after that.
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    split = tl.program_id(1)
    row, factor = slots_of(first, num_slots, rows, inverse_temperature, outer, ROWS)
    if target is not None and split == 0:
        leave_unread(first, target, columns, pair_begin, num_slots, num_pairs, num_columns, ROWS)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    s = tl.zeros([ROWS], tl.float32)
    w = tl.zeros([ROWS], tl.float32)
    end = tl.minimum(split * tiles + tiles, tl.cdiv(num_entering, COLUMNS))
    if tl.max(row, 0) < 0:
        end = 0  # nothing reads these slots
    source = tl.maximum(row, 0)  # a program reads row 0 where it has no slot: a mask would narrow the loads
    for tile in range(split * tiles, end):
        column, inside = columns_of(tile, allowed, num_columns, num_entering, COLUMNS)
        x = _products(
            hidden,
            source,
            stride_hidden,
            weight,
            column,
            stride_weight,
            dims,
            ROWS,
            COLUMNS,
            DIMS,
            EVEN_D,
            DOT16,
            PRECISION,
        )
        top, s, w = enter(
            x,
            top,
            s,
            w,
            tile,
            column,
            inside,
            first,
            row,
            factor,
            bias,
            pair_begin,
            columns,
            than,
            part_weighted,
            target,
            rank,
            num_slots,
            num_columns,
            inner,
            ROWS,
            COLUMNS,
            SOFTCAP,
        )
    slot = first + tl.arange(0, ROWS)
    part = slot * splits + split
    is_slot = slot < num_slots
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
    rank,  # [M], to begin at 0; None without ranks
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
    PRECISION: tl.constexpr,
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
        dims,
        ROWS,
        COLUMNS,
        DIMS,
        EVEN_D,
        DOT16,
        PRECISION,
    )
    if bias is not None:
        x += tl.load(bias + tl.maximum(column, 0))[None, :]
    z = scaled(x, inner, factor[:, None], SOFTCAP)
    z = tl.sum(tl.where(along[None, :] == tl.arange(0, ROWS)[:, None], z, 0.0), 1)
    tl.store(target + i, tl.where((row >= 0) & (own >= 0), z, float("-inf")), mask=i < num_pairs)
    if rank is not None:
        tl.store(rank + i, tl.zeros([ROWS], tl.int64), mask=i < num_pairs)


@triton.jit(do_not_specialize=["num_pairs", "pairs_each"])
def logprob_linear_split_kernel(
    hidden,
    weight,
    bias,  # None: no bias is added
    rows,
    inverse_temperature,
    allowed,  # None: all columns enter
    choice,  # [num_pairs]: the split that slot i // chosen is to have of pair i
    order,  # [num_pairs]: pairs by their splits
    held,  # [num_pairs, tiles * COLUMNS]
    stride_hidden,
    stride_weight,
    dims,
    num_pairs,
    pairs_each,
    chosen,
    num_columns,
    num_entering,
    tiles,
    inner,
    outer,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIMS: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT16: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """z of ``pairs_each`` slots with a split each, of which neighbours often have the same."""
    lane = tl.arange(0, ROWS)
    i = tl.program_id(0).to(tl.int64) * pairs_each + lane
    pair = tl.load(order + i, mask=(lane < pairs_each) & (i < num_pairs), other=-1)
    split = tl.load(choice + pair, mask=pair >= 0, other=_NO_SPLIT)
    slot = pair // chosen
    row = tl.load(rows + slot, mask=pair >= 0, other=-1)
    factor = tl.load(inverse_temperature + slot, mask=pair >= 0, other=1.0) * outer
    source = tl.maximum(row, 0)
    current = tl.min(split, 0)
    while current < _NO_SPLIT:
        first = current * tiles
        for tile in range(first, tl.minimum(first + tiles, tl.cdiv(num_entering, COLUMNS))):
            column, inside = columns_of(tile, allowed, num_columns, num_entering, COLUMNS)
            x = _products(
                hidden,
                source,
                stride_hidden,
                weight,
                column,
                stride_weight,
                dims,
                ROWS,
                COLUMNS,
                DIMS,
                EVEN_D,
                DOT16,
                PRECISION,
            )
            if bias is not None:
                x += tl.load(bias + column)[None, :]
            z = tl.where(inside[None, :], scaled(x, inner, factor[:, None], SOFTCAP), float("-inf"))
            to = ((pair * tiles + tile - first) * COLUMNS).to(tl.int32)  # `MOST_HELD` fit
            tl.store(held + (to[:, None] + tl.arange(0, COLUMNS)[None, :]), z, mask=(split == current)[:, None])
        current = tl.min(tl.where(split > current, split, _NO_SPLIT), 0)


def _products_of(problem: Any, most_rows: int) -> tuple[Tile, dict[str, Any]]:
    """Return the tile of products of at most so many rows, and arguments that say what is multiplied, and z of it."""
    hidden, weight = problem.hidden, problem.weight
    dot16, hopper = hidden.dtype == weight.dtype != problem.inverse_temperature.dtype, is_hopper()
    tile = tile_of(dot16, hidden.shape[1], min(len(problem.rows), most_rows), hopper)
    return tile, {
        "hidden": hidden,
        "weight": weight,
        "bias": problem.head_bias,
        "rows": problem.rows,
        "inverse_temperature": problem.inverse_temperature,
        "stride_hidden": hidden.stride(0),
        "stride_weight": weight.stride(0),
        "dims": hidden.shape[1],
        **scales(problem),
        # The interpreter holds bfloat16 as its bits, which it can widen but not multiply.
        "DOT16": dot16 and not (env.triton_interpreter() and problem.hidden_dtype == "bfloat16"),
        "PRECISION": float32_precision(hopper),
        **tile.constants(),
    }


def parts_of(problem: Any, rank: Any = None) -> Parts:
    """Launch the sums of a problem with hidden states and weights; ``rank`` is room for ranks (M,)."""
    like, R, M = problem.rows, len(problem.rows), len(problem.columns)
    tiles = tiles_of_a_split(problem.num_entering)
    splits = -(-problem.num_entering // (COLUMNS * tiles))
    parts = workspace(problem, R, splits)
    target = arrays.empty(like, (M,), "float32")
    if problem.rank and rank is None:
        rank = arrays.empty(like, (M,), "int64")
    than = target if problem.target_logits is None else problem.target_logits
    tile, products = _products_of(problem, R)
    # What the kernels of targets and of sums have in common.
    common: dict[str, Any] = {
        **products,
        "pair_begin": problem.pair_begin,
        "columns": problem.columns,
        "rank": rank,
        "num_slots": R,
        "num_pairs": M,
    }
    # Ranks compare with targets, which must be known by then. A tile of ``allowed`` columns is no range, and of many
    # targets to a slot a tile would have to look for each.
    known = problem.rank or problem.allowed is not None or M > MOST_TARGETS * R
    if known and M:
        launch(
            logprob_linear_target_kernel,
            (-(-M // tile.rows),),
            **common,
            **tile.options(TARGET_STAGES),
            target=target,
            steps=(R + 1).bit_length(),
        )
    sums = {
        "part_max": parts.max,
        "part_sum": parts.sum,
        "target": None if known else target,
        "num_columns": problem.num_columns,
        "splits": splits,
        "tiles": tiles,
    }
    launch(
        logprob_linear_kernel,
        (-(-R // tile.rows), splits),
        **common,
        **sums,
        **tile.options(tile.num_stages),
        allowed=problem.allowed,
        than=than,
        part_weighted=parts.weighted,
        num_entering=problem.num_entering,
    )
    return parts._replace(target=target, rank=rank)


def largest(problem: Any, parts: Parts) -> tuple[Any, Any]:
    """Return the largest z and their columns (R, k), from z of the best splits, some slots at a time."""
    choice, R = top.chosen_splits(parts.max, problem.top), len(problem.rows)
    tiles = tiles_of_a_split(problem.num_entering)
    chosen, width = choice.shape[1], COLUMNS * tiles
    tile, products = _products_of(problem, MOST_SPLIT_ROWS)
    each = max(1, MOST_HELD // (chosen * width))
    found = []
    for first in range(0, R, each):
        some = slice(first, first + each)
        fields = {name: products[name][some] for name in ("rows", "inverse_temperature")}
        splits = choice[some]
        held = arrays.empty(parts.max, (*splits.shape, width), "float32")
        num_pairs = splits.numel()
        pairs_each = min(tile.rows, -(-num_pairs // FEW_PROGRAMS))
        launch(
            logprob_linear_split_kernel,
            (-(-num_pairs // pairs_each),),
            **{**products, **fields},
            allowed=problem.allowed,
            choice=splits,
            order=splits.reshape(-1).argsort(stable=True),
            held=held,
            num_pairs=num_pairs,
            pairs_each=pairs_each,
            chosen=chosen,
            num_columns=problem.num_columns,
            num_entering=problem.num_entering,
            tiles=tiles,
            **tile.options(TARGET_STAGES),
        )
        found.append(top.largest(problem, parts.max[some], splits, width, held, **fields))
    return torch.cat([z for z, _ in found]), torch.cat([ids for _, ids in found])
