"""The splits of each slot put together in a fixed order, for both forms."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..._base import arrays
from ..._gpu.plans import launch
from ..problem import Partials
from .scale import LOG2E, finite, scaled, scales

# Targets of a slot that are loaded together.
PAIRS_AT_ONCE = 32


@triton.jit
def merged(part_max, part_rest, part_sum, part_weighted, slot, splits, live, SPLITS: tl.constexpr):
    """Return the largest z of a slot, what rounding left of it, and the sums about it; 0 where ``live`` is false.

    ``part_rest`` is None where the largest of the splits are taken for what they are rounded to.
    """
    at = tl.arange(0, SPLITS)
    inside = at < tl.where(live, splits, 0)
    # Past the first-level cache, which may hold what was there before other multiprocessors wrote.
    first = slot * splits
    top = tl.load(part_max + first + at, mask=inside, other=float("-inf"), cache_modifier=".cg")
    s = tl.load(part_sum + first + at, mask=inside, other=0.0, cache_modifier=".cg")
    most = tl.max(top, 0)
    # A split without a finite column has sum 0 and takes d = 0, not the NaN of -inf - -inf.
    d = tl.where(top == float("-inf"), 0.0, top - finite(most, 0.0))
    rest = finite(most, 0.0) * 0.0
    if part_rest is not None:
        left = tl.load(part_rest + first + at, mask=inside, other=0.0, cache_modifier=".cg")
        rest = tl.max(tl.where(top == most, left, float("-inf")), 0)
        d += tl.where(top == float("-inf"), 0.0, left - rest)
    shrink = tl.exp2(d * LOG2E).to(tl.float64)
    sums = tl.sum(shrink * s.to(tl.float64), 0)
    weighted = sums
    if part_weighted is not None:
        w = tl.load(part_weighted + first + at, mask=inside, other=0.0, cache_modifier=".cg")
        weighted = tl.sum(shrink * (w.to(tl.float64) + d.to(tl.float64) * s.to(tl.float64)), 0)
    return most, rest.to(tl.float64), sums, weighted


@triton.jit
def reference(most):
    """Return what the sums of a slot are about: -inf where they are NaN for a +inf."""
    return tl.where(most < float("inf"), most, float("-inf"))


@triton.jit(do_not_specialize=["num_slots", "num_pairs"])
def logprob_merge_kernel(
    logits,  # None: the targets have been found already
    rows,
    inverse_temperature,
    pair_begin,
    columns,
    part_max,  # [R, splits]
    part_sum,
    part_weighted,  # None without entropy
    ref,  # [R]
    largest,
    total,
    total_weighted,
    target,  # [M]
    stride,
    num_slots,
    num_pairs,
    splits,
    inner,
    outer,
    SPLITS: tl.constexpr,
    PAIRS: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """The splits of one slot about one reference, and its targets; the last program has the pairs of no slot."""
    slot = tl.program_id(0).to(tl.int64)
    is_slot = slot < num_slots
    row = tl.load(rows + slot, mask=is_slot, other=-1)
    live = row >= 0
    if is_slot:
        most, _, sums, weighted = merged(part_max, None, part_sum, part_weighted, slot, splits, live, SPLITS)
        tl.store(ref + slot, reference(most))
        tl.store(largest + slot, tl.where((sums != sums) & (most < float("inf")), float("nan"), most))
        tl.store(total + slot, sums)
        if part_weighted is not None:
            tl.store(total_weighted + slot, weighted)
    if logits is not None:
        factor = tl.load(inverse_temperature + slot, mask=is_slot, other=1.0) * outer
        end = tl.load(pair_begin + slot + 1, mask=is_slot, other=num_pairs)
        for first in range(tl.load(pair_begin + slot), end, PAIRS):
            i = first + tl.arange(0, PAIRS)
            column = tl.load(columns + i, mask=i < end, other=-1)
            enters = tl.where(live, column, -1) >= 0
            x = tl.load(logits + row * stride + column, mask=enters, other=float("-inf")).to(tl.float32)
            tl.store(target + i, scaled(x, inner, factor, SOFTCAP), mask=i < end)


class Parts(NamedTuple):
    """What the kernels of a form leave of each split of each slot (R, splits)."""

    max: Any
    sum: Any
    weighted: Any  # None without entropy
    rest: Any = None  # of max, what rounding left of it; None: it is z
    target: Any = None  # (M,) z of the targets; None: they are in the logits
    rank: Any = None  # (M,); None without ranks


def workspace(problem: Any, R: int, splits: int) -> Parts:
    """Return room for the splits of R slots."""
    made = [arrays.empty(problem.columns, (R, splits), "float32") for _ in range(3 if problem.entropy else 2)]
    return Parts(made[0], made[1], made[2] if problem.entropy else None)


def merge_shape(splits: int) -> tuple[int, int]:
    """Return the splits that a program of the merge kernel holds, a power of two, and its warps."""
    size = max(16, 1 << (splits - 1).bit_length())
    return size, 1 if size <= 256 else 4


def merge(problem: Any, parts: Parts) -> Partials:
    """Return the partials of a problem."""
    like, logits, R, splits = problem.rows, problem.logits, len(problem.rows), parts.max.shape[1]
    ref, largest = (arrays.empty(like, (R,), "float32") for _ in range(2))
    total = arrays.empty(like, (R,), "float64")
    weighted = arrays.empty(like, (R,), "float64") if problem.entropy else None
    target = arrays.empty(like, problem.columns.shape, "float32") if parts.target is None else parts.target
    size, warps = merge_shape(splits)
    launch(
        logprob_merge_kernel,
        (R + (logits is not None),),
        logits=logits,
        rows=problem.rows,
        inverse_temperature=problem.inverse_temperature,
        pair_begin=problem.pair_begin,
        columns=problem.columns,
        part_max=parts.max,
        part_sum=parts.sum,
        part_weighted=parts.weighted,
        ref=ref,
        largest=largest,
        total=total,
        total_weighted=weighted,
        target=target,
        stride=0 if logits is None else logits.stride(0),
        num_slots=R,
        num_pairs=len(problem.columns),
        splits=splits,
        **scales(problem),
        SPLITS=size,
        PAIRS=PAIRS_AT_ONCE,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return Partials(ref, largest, total, weighted, target, parts.rank)
