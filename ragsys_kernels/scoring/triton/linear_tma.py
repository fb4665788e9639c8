"""The linear form in tiles of 128 rows, weights loaded by tensor descriptors: a variant for many rows (``linear=tma``).

Larger tiles read a third less through the second-level cache, which bounds many rows, and a program of each
multiprocessor goes from split to split. Bits are those of ``linear.py``. Rows are gathered, so hidden states
have no descriptor.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..._gpu import plans
from .scale import nan_for_inf
from .tile import COLUMNS, columns_of, enter, leave_unread, slots_of

ROWS, DIMS, STAGES, WARPS = 128, 64, 3, 8

# Arguments that are those of `logprob_linear_kernel`.
SHARED = (
    "hidden",
    "rows",
    "inverse_temperature",
    "pair_begin",
    "columns",
    "stride_hidden",
    "dims",
    "num_slots",
    "num_pairs",
    "inner",
    "outer",
)

# Of so many rows two tiles of 64 are one.
LEAST_ROWS = 65


def fits(problem: Any, dot16: bool) -> bool:
    """Return whether the kernel takes a problem: logp alone, aligned rows of whole slices, Hopper or later."""
    hidden, weight = problem.hidden, problem.weight
    if not dot16 or problem.rank or problem.entropy or problem.softcap is not None or problem.head_bias is not None:
        return False  # which take registers that the larger tile needs
    if problem.allowed is not None or len(problem.rows) < LEAST_ROWS or hidden.shape[1] % DIMS:
        return False
    if hidden.data_ptr() % 16 or hidden.stride(0) % 16 or weight.data_ptr() % 16 or weight.stride(0) % 16:
        return False
    return not hidden.is_cuda or (torch.version.hip is None and torch.cuda.get_device_capability(hidden.device)[0] >= 9)


def launch(problem: Any, **given: Any) -> None:
    """Launch the kernel; ``given`` are arguments that it shares with `logprob_linear_kernel`."""
    weight, row_tiles = problem.weight, -(-len(problem.rows) // ROWS)
    items, programs = row_tiles * given["splits"], 2  # of the interpreter
    if weight.is_cuda:
        programs = torch.cuda.get_device_properties(weight.device).multi_processor_count
    plans.launch(
        logprob_linear_tma_kernel,
        (min(items, programs),),
        **given,
        weight=TensorDescriptor(weight, list(weight.shape), list(weight.stride()), [COLUMNS, DIMS]),
        row_tiles=row_tiles,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        DIMS=DIMS,
        num_warps=WARPS,
        num_stages=STAGES,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["num_slots", "num_pairs", "row_tiles"])
def logprob_linear_tma_kernel(
    hidden,
    weight,  # a descriptor of [COLUMNS, DIMS]
    rows,
    inverse_temperature,
    pair_begin,
    columns,
    part_max,  # [R, splits]
    part_sum,
    target,  # [M]; None: all are known
    stride_hidden,
    dims,
    num_slots,
    num_pairs,
    num_columns,
    splits,
    tiles,
    row_tiles,
    inner,
    outer,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """As `logprob_linear_kernel`; a program goes from split to split."""
    k = tl.arange(0, DIMS)
    for item in range(tl.program_id(0), splits * row_tiles, tl.num_programs(0)):
        first = (item % row_tiles).to(tl.int64) * ROWS
        split = item // row_tiles
        row, factor = slots_of(first, num_slots, rows, inverse_temperature, outer, ROWS)
        if target is not None and split == 0:
            leave_unread(first, target, columns, pair_begin, num_slots, num_pairs, num_columns, ROWS)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        s = tl.zeros([ROWS], tl.float32)
        w = tl.zeros([ROWS], tl.float32)
        end = tl.minimum(split * tiles + tiles, tl.cdiv(num_columns, COLUMNS))
        if tl.max(row, 0) < 0:
            end = 0  # nothing reads these slots
        h = hidden + (tl.maximum(row, 0) * stride_hidden)[:, None] + k[None, :]
        for tile in range(split * tiles, end):
            x = tl.zeros([ROWS, COLUMNS], tl.float32)
            for d in range(0, dims, DIMS):
                a = tl.load(h + d)
                b = weight.load([tile * COLUMNS, d])
                x += tl.dot(a, b.T, max_num_imprecise_acc=DIMS)
            column, inside = columns_of(tile, None, num_columns, num_columns, COLUMNS)
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
                None,
                pair_begin,
                columns,
                None,
                None,
                target,
                None,
                num_slots,
                num_columns,
                inner,
                ROWS,
                COLUMNS,
                False,
            )
        slot = first + tl.arange(0, ROWS)
        part = slot * splits + split
        is_slot = slot < num_slots
        tl.store(part_max + part, top, mask=is_slot)
        tl.store(part_sum + part, nan_for_inf(s), mask=is_slot)
