"""The largest z of each slot, for both forms, after the sums.

They lie in few splits, and the kernels of the sums leave the largest z of each: a split that is not among the k best,
of equal ones the lower, has no z among the k best, since k others have one that goes before all of its. So only the
best splits are looked at again. Those of logits are read once more. Those of the linear form are multiplied once more,
by the same products: for 20 of 594 splits a thirtieth of the work.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ..._base import arrays
from ..._gpu.plans import launch
from ..finish import descending
from .scale import scaled, scales

# The most that a program holds.
MOST = 1024

# Columns that a program looks at together.
BLOCK = 128

_NO_ID = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def _candidate(z, column, best, ids):
    """Return the largest z and its column, the worst of the best and its id, and whether the first is to replace it."""
    most = tl.max(z, 0)  # ignores NaN, which shows in the sum
    first = tl.min(tl.where(z == most, column, _NO_ID), 0)
    least = tl.min(best, 0)
    last = tl.max(tl.where(best == least, ids, -1), 0)
    better = (most > least) | ((most == least) & (first < last))
    return most, first, least, last, better & (most > float("-inf"))


@triton.jit(do_not_specialize=["chosen", "k"])
def logprob_top_kernel(
    logits,  # None: `held` has the z
    held,  # [R, chosen, width]
    rows,
    inverse_temperature,
    allowed,  # None: all columns enter
    part_max,  # [R, splits]
    choice,  # [R, chosen]: splits, that of the largest z first
    top,  # [R, k], in no order
    top_ids,
    stride,
    num_columns,
    num_entering,
    splits,
    width,
    chosen,
    k,
    inner,
    outer,
    BLOCK: tl.constexpr,
    K: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """The k largest z of one slot. A block's largest replaces the worst of the best, until it is no better."""
    slot = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + slot)
    factor = tl.load(inverse_temperature + slot) * outer
    place = tl.arange(0, K)
    best = tl.where(place < k, float("-inf"), float("inf"))  # places from k on are never the worst
    ids = tl.where(place < k, _NO_ID - place.to(tl.int64), -1)
    for c in range(tl.where(row < 0, 0, chosen)):
        split = tl.load(choice + slot * chosen + c)
        below = tl.load(part_max + slot * splits + split) < tl.min(best, 0)
        for begin in range(0, tl.where(below, 0, width), BLOCK):
            lane = begin + tl.arange(0, BLOCK)
            at = split * width + lane
            inside = at < num_entering
            column = at
            if allowed is not None:
                column = tl.load(allowed + at, mask=inside, other=-1)
                inside = (column >= 0) & (column < num_columns)
            if logits is not None:
                x = tl.load(logits + row * stride + column, mask=inside, other=float("-inf")).to(tl.float32)
                z = scaled(x, inner, factor, SOFTCAP)  # [BLOCK]
            else:
                z = tl.load(held + (slot * chosen + c) * width + lane, mask=inside, other=float("-inf"))
            most, first, least, last, better = _candidate(z, column, best, ids)
            while better:
                worst = (best == least) & (ids == last)
                best = tl.where(worst, most, best)
                ids = tl.where(worst, first, ids)
                z = tl.where(column == first, float("-inf"), z)
                most, first, least, last, better = _candidate(z, column, best, ids)
    tl.store(top + slot * k + place, best, mask=place < k)
    tl.store(top_ids + slot * k + place, tl.where(best > float("-inf"), ids, -1), mask=place < k)


def list_shape(k: int) -> tuple[int, int]:
    """Return the items that a program holds, a power of two, and its warps."""
    size = max(16, 1 << (k - 1).bit_length())
    return size, 1 if size <= 256 else 4


def chosen_splits(part_max: Any, k: int) -> Any:
    """Return the splits (R, min(k, splits)) that may have one of the k largest z, that of the largest first."""
    if k > MOST:
        raise ValueError(f"backend 'triton' takes k up to {MOST}, got {k}")
    order = torch.sort(part_max, dim=1, descending=True, stable=True).indices
    return order[:, :k].contiguous()


def largest(
    problem: Any, part_max: Any, choice: Any, width: int, held: Any, rows: Any, inverse_temperature: Any
) -> tuple[Any, Any]:
    """Return the largest z and their columns (R, k), in order; ``held`` is z of the chosen splits, None in logits."""
    k, logits = problem.top, problem.logits
    R, chosen = choice.shape
    size, warps = list_shape(k)
    top = arrays.empty(choice, (R, k), "float32")
    ids = arrays.empty(choice, (R, k), "int64")
    launch(
        logprob_top_kernel,
        (R,),
        logits=logits,
        held=held,
        rows=rows,
        inverse_temperature=inverse_temperature,
        allowed=problem.allowed,
        part_max=part_max,
        choice=choice,
        top=top,
        top_ids=ids,
        stride=0 if logits is None else logits.stride(0),
        num_columns=problem.num_columns,
        num_entering=problem.num_entering,
        splits=part_max.shape[1],
        width=width,
        chosen=chosen,
        k=k,
        **scales(problem),
        BLOCK=BLOCK,
        K=size,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return descending(top, ids)
