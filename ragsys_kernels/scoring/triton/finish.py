"""Results of pairs and rows from the splits of their slots: the formulas of ``finish.py`` in one launch."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..._base import arrays
from ..._gpu.plans import launch
from ..problem import Pairs
from .merge import Parts, merge_shape, merged, reference
from .pairs import counts, inverse_of, is_ignored, masked, temperatures
from .scale import scaled, scales, unrounded
from .slots import Slots

# What `finish` says of each pair for the answers: bits.
COUNTED = tl.constexpr(1)
MISSED = tl.constexpr(2)  # a column has more than the target, or log p is NaN


@triton.jit
def store_pair(i, z, exact, most, rest, total, live, ignored, logp, logp64, state):
    """Write what is wanted of a pair, from z of its target and the merged sums of its slot; return its log p.

    ``exact`` is that z in float64, rounded or not: ``z`` is compared with the largest, which is rounded.
    """
    # z - lse would cancel where both are large. The bound: the sum has the target's own term in it, but rounded.
    value = (exact - reference(most).to(tl.float64) - rest) - tl.log(total)
    value = tl.where(value > 0, 0.0, value)
    value = tl.where(ignored, 0.0, tl.where(live, value, float("nan")))
    if logp is not None:
        tl.store(logp + i, value.to(tl.float32))
    if logp64 is not None:
        tl.store(logp64 + i, value)
    if state is not None:
        hit = (value == value) & (z >= most)
        tl.store(state + i, tl.where(ignored, 0, tl.where(hit, COUNTED, COUNTED + MISSED)).to(tl.int8))
    return value


@triton.jit
def store_row(row, most, rest, total, weighted, live, lse, largest, entropy):
    """Write what is wanted of a row, from the merged sums of its slot."""
    log_total = tl.log(total)
    none = float("nan")
    if lse is not None:
        tl.store(lse + row, tl.where(live, reference(most).to(tl.float64) + (rest + log_total), none).to(tl.float32))
    if largest is not None:
        tl.store(largest + row, tl.where(live & (total == total), most, none))
    if entropy is not None:
        value = log_total - weighted / total
        value = tl.where(value < 0, 0.0, value)
        tl.store(entropy + row, tl.where(live, value, none).to(tl.float32))


@triton.jit(do_not_specialize=["num_pairs", "num_rows", "num_slots", "ignore", "num_answers"])
def logprob_finish_kernel(
    logits,  # None: z of the targets is in ``target``
    columns,  # [M]
    rows,  # [R] the row of each slot; None: slot i is row i, and has pair i if that counts
    slot_of,  # [M] -1: a pair that does not count
    slot_of_row,  # [T] of rows that have one
    place,  # [M] where pairs are among those of the slots; None: in their places
    inverse_temperature,  # [R]
    target,  # [M] by place
    rank,  # [M] by place; None without ranks
    allowed,  # None: all columns enter
    part_max,  # [R, splits]
    part_rest,  # None where z are rounded
    part_sum,
    part_weighted,  # None without entropy
    logp,  # [M]; None where not wanted, as all that follow
    logp64,  # [M] for the sums of answers
    state,  # [M]
    rank_of_pair,  # [M]
    lse,  # [T]
    largest,  # [T]
    entropy,  # [T]
    stride,
    num_pairs,
    num_rows,
    num_slots,
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
    SPLITS: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """One pair, or after the pairs one row."""
    i = tl.program_id(0).to(tl.int64)
    if i < num_pairs:
        column = tl.load(columns + i)
        if rows is not None:
            slot = tl.load(slot_of + i)
            live = slot >= 0
        else:
            slot = i
            live = counts(column, ignore, num_columns)
        most, rest, total, weighted = merged(part_max, part_rest, part_sum, part_weighted, slot, splits, live, SPLITS)
        at = i
        if place is not None:
            at = tl.load(place + i, mask=live, other=0)
        if logits is not None:
            row = slot
            if rows is not None:
                row = tl.load(rows + slot, mask=live, other=0)
                factor = tl.load(inverse_temperature + slot, mask=live, other=1.0) * outer
            else:
                factor = inverse_of(i, inverse, temperature, begin, answers, num_answers, PER_PAIR) * outer
            enters = tl.where(live, masked(column, allowed, num_entering), -1) >= 0
            x = tl.load(logits + row * stride + column, mask=enters, other=float("-inf")).to(tl.float32)
            z = scaled(x, inner, factor, SOFTCAP)
            exact = unrounded(x, inner, factor, SOFTCAP)
        else:
            z = tl.load(target + at, mask=live, other=float("-inf"))
            exact = z.to(tl.float64)
        value = store_pair(i, z, exact, most, rest, total, live, is_ignored(column, ignore), logp, logp64, state)
        if rank_of_pair is not None:
            above = tl.load(rank + at, mask=live, other=0)
            tl.store(rank_of_pair + i, tl.where(value == value, above, -1))
    else:
        row = i - num_pairs
        if rows is not None:
            slot = tl.load(slot_of_row + row)
            live = (slot >= 0) & (slot < num_slots)  # memory that no pair of the row has written may hold anything
            live = live & (tl.load(rows + tl.where(live, slot, 0)) == row)
        else:
            slot = row
            live = counts(tl.load(columns + row), ignore, num_columns)
        most, rest, total, weighted = merged(part_max, part_rest, part_sum, part_weighted, slot, splits, live, SPLITS)
        store_row(row, most, rest, total, weighted, live, lse, largest, entropy)


OF_PAIRS = {"logp": "float32", "logp64": "float64", "state": "int8", "rank": "int64"}
OF_SLOTS = ("rows", "slot_of", "slot_of_row", "place", "inverse_temperature")
OF_ROWS = {"lse": "float32", "max": "float32", "entropy": "float32"}


def outputs(pairs: Pairs, wanted: frozenset[str]) -> dict[str, Any]:
    """Return room for what is wanted of pairs and rows."""
    return {
        name: arrays.empty(pairs.targets, (size,), dtype)
        for size, dtypes in ((len(pairs.targets), OF_PAIRS), (pairs.num_rows, OF_ROWS))
        for name, dtype in dtypes.items()
        if name in wanted
    }


def named(found: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of kernels for what is wanted but ranks."""
    names = (name for name in (*OF_PAIRS, *OF_ROWS) if name != "rank")
    return {"largest" if name == "max" else name: found.get(name) for name in names}


def finish(problem: Any, pairs: Pairs, slots: Slots | None, parts: Parts, wanted: frozenset[str]) -> dict[str, Any]:
    """Return what is wanted of pairs and rows; ``slots`` is None where each pair has a row of its own.

    ``logp64`` and ``state`` are what the results of answers need.
    """
    logits, M, T = problem.logits, len(pairs.targets), pairs.num_rows
    found = outputs(pairs, wanted)
    num_slots, splits = parts.max.shape
    size, warps = merge_shape(splits)
    launch(
        logprob_finish_kernel,
        (M + (T if found.keys() & OF_ROWS.keys() else 0),),
        logits=logits,
        columns=pairs.targets,
        **{name: getattr(slots, name, None) for name in OF_SLOTS},
        target=parts.target,
        rank=parts.rank,
        allowed=problem.allowed,
        part_max=parts.max,
        part_rest=parts.rest,
        part_sum=parts.sum,
        part_weighted=parts.weighted,
        **named(found),
        rank_of_pair=found.get("rank"),
        stride=0 if logits is None else logits.stride(0),
        num_pairs=M,
        num_rows=T,
        num_slots=num_slots,
        num_columns=problem.num_columns,
        num_entering=problem.num_entering,
        splits=splits,
        **scales(problem),
        ignore=pairs.ignore_index,
        **temperatures(pairs),
        SPLITS=size,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return found
