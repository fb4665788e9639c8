"""The logits form: one program sums one split of one slot, with the split in registers."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .. import _arrays
from .._gpu.plans import launch
from .problem import Pairs
from .triton_merge import Parts, workspace
from .triton_pairs import NO_TEMPERATURES, counts, inverse_of, masked, temperatures
from .triton_scale import LOG2E, factors, finite, nan_for_inf, scaled


@triton.jit
def logprob_logits_kernel(
    logits,
    rows,  # None: slot i is row i and has pair i, which `Pairs` says whether it counts and at what temperature
    inverse_temperature,
    allowed,  # None: all columns enter
    pair_begin,
    columns,
    than,  # None: ranks count what exceeds the targets in these logits
    part_max,  # [R, splits]
    part_sum,
    part_weighted,  # None without entropy
    rank,  # [M]; None without ranks
    stride,
    num_columns,
    num_entering,
    splits,
    inner,
    outer,
    ignore,
    inverse,
    temperature,
    begin,
    answers,
    num_answers,
    PER_PAIR: tl.constexpr,
    BLOCK: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Sums of one split of one slot. Registers hold the whole split, so each column takes one exp."""
    program = tl.program_id(0)
    slot = (program // splits).to(tl.int64)
    split = program % splits
    if rows is not None:
        row = tl.load(rows + slot)
    else:
        row = tl.where(counts(tl.load(columns + slot), ignore, num_columns), slot, -1)
    if row >= 0:
        base = logits + row * stride
        at = split * BLOCK + tl.arange(0, BLOCK)
        if allowed is not None:
            column = tl.load(allowed + at, mask=at < num_entering, other=-1)
            inside = (column >= 0) & (column < num_columns)
            x = tl.load(base + column, mask=inside, other=float("-inf")).to(tl.float32)
        else:
            # Full splits have no mask: it would narrow their loads unless the compiler knew it for a multiple of 16.
            if (split + 1) * BLOCK <= num_columns:
                x = tl.load(base + at).to(tl.float32)
            else:
                x = tl.load(base + at, mask=at < num_columns, other=float("-inf")).to(tl.float32)
        if rows is not None:
            factor = tl.load(inverse_temperature + slot) * outer
        else:
            factor = inverse_of(slot, inverse, temperature, begin, answers, num_answers, PER_PAIR) * outer
        z = scaled(x, inner, factor, SOFTCAP)  # [BLOCK]
        top = tl.max(z, 0)  # ignores NaN, which shows in the sum
        d = z - finite(top, 0.0)
        e = tl.exp2(d * LOG2E)
        part = slot * splits + split
        tl.store(part_max + part, top)
        tl.store(part_sum + part, nan_for_inf(tl.sum(e, 0)))
        if part_weighted is not None:
            tl.store(part_weighted + part, tl.sum(tl.where(e > 0, d * e, 0.0), 0))
        if rank is not None:
            first, last = slot, slot + 1
            if rows is not None:
                first, last = tl.load(pair_begin + slot), tl.load(pair_begin + slot + 1)
            for i in range(first, last):
                if than is not None:
                    t = tl.load(than + i)
                else:
                    own = tl.load(columns + i)
                    if rows is None:
                        own = masked(own, allowed, num_entering)
                    t = tl.load(base + own, mask=own >= 0, other=float("-inf")).to(tl.float32)
                    t = scaled(t, inner, factor, SOFTCAP)
                tl.atomic_add(rank + i, tl.sum((z > t).to(tl.int32), 0).to(tl.int64))


def split_size(num_entering: int) -> tuple[int, int]:
    """Return the columns of a split and its warps, by the number of columns alone: one warp waits for no other."""
    return next((block for block in (128, 512) if num_entering <= block), 2048), 1


def parts_of(problem: Any, pairs: Pairs | None = None, rank: Any = None) -> Parts:
    """Launch the sums of a problem with logits; ``pairs`` are given where it has no slots. ``rank`` (M,) is zero."""
    logits, like, M = problem.logits, problem.columns, len(problem.columns)
    R = M if problem.rows is None else len(problem.rows)
    block, warps = split_size(problem.num_entering)
    splits = -(-problem.num_entering // block)
    parts = workspace(problem, R, splits)
    if problem.rank and rank is None:
        rank = _arrays.full(like, (M,), 0, "int64")
    inner, outer = factors(problem)
    launch(
        logprob_logits_kernel,
        (R * splits,),
        logits=logits,
        rows=problem.rows,
        inverse_temperature=problem.inverse_temperature,
        allowed=problem.allowed,
        pair_begin=problem.pair_begin,
        columns=problem.columns,
        than=problem.target_logits,
        part_max=parts.max,
        part_sum=parts.sum,
        part_weighted=parts.weighted,
        rank=rank,
        stride=logits.stride(0),
        num_columns=problem.num_columns,
        num_entering=problem.num_entering,
        splits=splits,
        inner=inner,
        outer=outer,
        ignore=None if pairs is None else pairs.ignore_index,
        **(NO_TEMPERATURES if pairs is None else temperatures(pairs)),
        BLOCK=block,
        SOFTCAP=problem.softcap is not None,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return parts._replace(rank=rank)
