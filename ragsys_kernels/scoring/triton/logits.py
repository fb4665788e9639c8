"""The logits form: one program sums one split of one slot, with the split in registers.

Where slots need no launch of their own, the program of a slot that comes last merges its splits, in the same launch.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..._base import arrays
from ..._gpu.plans import counters, launch
from ..problem import Pairs
from . import top
from .finish import named, outputs, store_pair, store_row
from .merge import Parts, merge_shape, merged, workspace
from .pairs import NO_TEMPERATURES, counts, inverse_of, is_ignored, masked, temperatures
from .scale import LN2, LOG2E, UNROUNDED, finite, scaled, scales, unrounded

# Columns of a split.
BLOCKS = (128, 512, 2048)

NOT_FINISHED = named({})
_MOST_COLUMNS = 2**31 - 1


@triton.jit
def _put_together(words, shift, ITEM: tl.constexpr, PACKS: tl.constexpr):
    """Return the four words of packs of 16 bytes that lie ``shift`` elements behind the aligned packs at ``words``.

    Each is put together of the two aligned ones that it lies in.
    """
    word = tl.arange(0, PACKS)[:, None] * 4 + tl.arange(0, 4)[None, :]
    w0, w1, w2, w3 = _words(tl.load(words + word), PACKS)
    w4, w5, w6, w7 = _words(tl.load(words + 4 + word), PACKS)
    whole = shift
    if ITEM == 2:
        half = shift % 2 == 1
        whole = shift // 2
        w0, w1, w2, w3 = _half(w0, w1, half), _half(w1, w2, half), _half(w2, w3, half), _half(w3, w4, half)
        w4, w5, w6 = _half(w4, w5, half), _half(w5, w6, half), _half(w6, w7, half)
    one, two = whole % 2 == 1, whole >= 2
    w0, w1, w2 = tl.where(one, w1, w0), tl.where(one, w2, w1), tl.where(one, w3, w2)
    w3, w4, w5 = tl.where(one, w4, w3), tl.where(one, w5, w4), tl.where(one, w6, w5)
    return tl.where(two, w2, w0), tl.where(two, w3, w1), tl.where(two, w4, w2), tl.where(two, w5, w3)


@triton.jit
def _one_by_one(base, first, num_columns, W: tl.constexpr, ITEM: tl.constexpr, PACKS: tl.constexpr):
    """Return word ``W`` of packs whose elements are loaded one by one; those behind the row are -inf."""
    at = first + tl.arange(0, PACKS) * (16 // ITEM) + W * (4 // ITEM)
    if ITEM == 4:
        word = tl.load(base + at, mask=at < num_columns, other=float("-inf")).to(tl.int32, bitcast=True)
    else:
        low = tl.load(base + at, mask=at < num_columns, other=float("-inf")).to(tl.int16, bitcast=True)
        high = tl.load(base + at + 1, mask=at + 1 < num_columns, other=float("-inf")).to(tl.int16, bitcast=True)
        word = (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)
    return word


@triton.jit
def _words(x, PACKS: tl.constexpr):
    """Return the four words of packs [PACKS, 4]."""
    even, odd = tl.split(tl.reshape(x, [PACKS, 2, 2]))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@triton.jit
def _half(low, high, shifted):
    """Return ``low``, or the upper half of it and the lower half of ``high``."""
    return tl.where(shifted, ((low >> 16) & 0xFFFF) | (high << 16), low)


@triton.jit
def _widened(w0, w1, w2, w3, DTYPE: tl.constexpr, PACKS: tl.constexpr):
    """Return the elements of packs as float32, where a load of 16 bytes would leave them: sums have its order."""
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [PACKS * 4])
    if DTYPE.is_fp32():
        x = words.to(tl.float32, bitcast=True)
    else:
        if DTYPE.is_bf16():
            low, high = (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
        else:
            low = words.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
            high = (words >> 16).to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
        x = tl.reshape(tl.join(low, high), [PACKS * 8])
    return x


@triton.jit
def _powers(x, inner, factor, SOFTCAP: tl.constexpr):
    """Return the largest z, what its rounding leaves of it, and t of each x, with exp(z - the largest) = 2^t.

    t is 0 of the largest, and no z is rounded: its difference from the largest is that of x, and so has the same bits
    wherever the logits of a row lie. A factor below 0 makes t NaN.
    """
    base, unit = x, factor
    if SOFTCAP:
        base, unit = scaled(x, inner, factor, SOFTCAP), 1.0
    found = tl.max(base, 0)  # ignores NaN, which shows in the sum
    top = found * unit
    scale = tl.where(factor >= 0, unit, float("nan")) * LOG2E
    rest = tl.where(tl.abs(top) < UNROUNDED, tl.fma(found, unit, -top), 0.0)
    return top, rest, (base - finite(found, 0.0)) * scale


@triton.jit(do_not_specialize=["begin_at"])
def logprob_logits_kernel(
    logits,
    rows,  # None: slot i is row i and has pair i, which `Pairs` says whether it counts and at what temperature
    inverse_temperature,
    allowed,  # None: all columns enter
    pair_begin,
    columns,
    than,  # None: ranks count what exceeds the targets in these logits
    part_max,  # [R, splits]
    part_rest,
    part_sum,
    part_weighted,  # None without entropy
    rank,  # [M]; None without ranks
    done,  # zeros of each slot, left so; None: splits are merged elsewhere, and all to `entropy` is None
    logp,  # [M]; None where not wanted, as all that follow
    logp64,
    state,
    lse,
    largest,
    entropy,
    stride,
    begin_at,  # elements between the last multiple of 16 bytes and the first of the logits
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
    SPLITS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ITEM: tl.constexpr,  # bytes of an element where rows do not begin at multiples of 16 bytes, else 0
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
            # As int32 (`parts_of` refuses more), so that a column takes one register; -1 is beyond all.
            column = tl.minimum(column.to(tl.uint64), 0x7FFFFFFF).to(tl.int32)
            inside = column < num_columns
            x = tl.load(base + column, mask=inside, other=float("-inf")).to(tl.float32)
        else:
            # Full splits have no mask: it would narrow their loads unless the compiler knew it for a multiple of 16.
            if ITEM > 0:
                PACK: tl.constexpr = 16 // ITEM
                PACKS: tl.constexpr = BLOCK // PACK
                first = begin_at + row * stride
                shift = (first % PACK).to(tl.int32)
                # No aligned pack begins before the array or ends behind the row.
                if (row * stride + split * BLOCK >= shift) & ((split + 1) * BLOCK + PACK - shift <= num_columns):
                    words = tl.multiple_of((logits - begin_at).to(tl.pointer_type(tl.int32), bitcast=True), 16)
                    words += (first // PACK + split * PACKS) * 4
                    w0, w1, w2, w3 = _put_together(words, shift, ITEM, PACKS)
                else:
                    w0 = _one_by_one(base, split * BLOCK, num_columns, 0, ITEM, PACKS)
                    w1 = _one_by_one(base, split * BLOCK, num_columns, 1, ITEM, PACKS)
                    w2 = _one_by_one(base, split * BLOCK, num_columns, 2, ITEM, PACKS)
                    w3 = _one_by_one(base, split * BLOCK, num_columns, 3, ITEM, PACKS)
                x = _widened(w0, w1, w2, w3, logits.dtype.element_ty, PACKS)
            elif (split + 1) * BLOCK <= num_columns:
                x = tl.load(base + at).to(tl.float32)
            else:
                x = tl.load(base + at, mask=at < num_columns, other=float("-inf")).to(tl.float32)
        if rows is not None:
            factor = tl.load(inverse_temperature + slot) * outer
        else:
            factor = inverse_of(slot, inverse, temperature, begin, answers, num_answers, PER_PAIR) * outer
        if rank is not None:  # first, so that no z takes a register after it
            z = scaled(x, inner, factor, SOFTCAP)
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
        top, rest, power = _powers(x, inner, factor, SOFTCAP)  # power: [BLOCK]
        e = tl.exp2(power)
        # Where z is infinite of a finite x too: above it makes the sum NaN, below it has no part in it.
        seen = tl.where(top < float("inf"), tl.where(top > float("-inf"), 1.0, 0.0), float("nan"))
        part = slot * splits + split
        tl.store(part_max + part, top)
        tl.store(part_rest + part, rest)
        tl.store(part_sum + part, tl.sum(e, 0) * seen)
        if part_weighted is not None:
            tl.store(part_weighted + part, tl.sum(tl.where(e > 0, power * e, 0.0), 0) * (seen * LN2))
    if done is not None:
        tl.debug_barrier()  # all threads have written before one counts
        if tl.atomic_add(done + slot, 1) == splits - 1:
            tl.store(done + slot, 0)
            live = row >= 0
            most, rest, total, weighted = merged(
                part_max, part_rest, part_sum, part_weighted, slot, splits, live, SPLITS
            )
            target = tl.load(columns + slot)
            enters = tl.where(live, masked(target, allowed, num_entering), -1) >= 0
            own = tl.load(logits + slot * stride + target, mask=enters, other=float("-inf")).to(tl.float32)
            factor = inverse_of(slot, inverse, temperature, begin, answers, num_answers, PER_PAIR) * outer
            z = scaled(own, inner, factor, SOFTCAP)
            exact = unrounded(own, inner, factor, SOFTCAP)
            store_pair(slot, z, exact, most, rest, total, live, is_ignored(target, ignore), logp, logp64, state)
            if (lse is not None) or (largest is not None) or (entropy is not None):
                store_row(slot, most, rest, total, weighted, live, lse, largest, entropy)


def split_size(num_entering: int) -> tuple[int, int]:
    """Return the columns of a split and its warps, by the number of columns alone: one warp waits for no other."""
    return next((block for block in BLOCKS if num_entering <= block), BLOCKS[-1]), 1


def splits_of(num_entering: int) -> int:
    return -(-num_entering // split_size(num_entering)[0])


def merges(problem: Any) -> bool:
    """Return whether the launch that sums the splits of a slot can merge them: a warp has room, and nothing has a rank.

    Ranks take a launch of their own in any case, and registers.
    """
    return not problem.rank and problem.num_entering > 0 and merge_shape(splits_of(problem.num_entering))[1] == 1


def item_bytes(logits: Any, block: int, allowed: Any) -> int:
    """Return the bytes of an element where packs have to be put together of aligned ones, else 0."""
    size = int(logits.element_size())
    aligned = logits.stride(0) * size % 16 == 0 and arrays.pointer(logits) % 16 == 0
    return 0 if aligned or allowed is not None or block < BLOCKS[-1] else size


def results(problem: Any, pairs: Pairs, wanted: frozenset[str]) -> dict[str, Any]:
    """Return what is wanted of pairs and rows where slot i is row i and has pair i, in one launch."""
    found = outputs(pairs, wanted)
    parts_of(problem, pairs, finished=named(found))
    return found


def parts_of(
    problem: Any, pairs: Pairs | None = None, rank: Any = None, finished: dict[str, Any] | None = None
) -> Parts:
    """Launch the sums of a problem with logits; ``pairs`` are given where it has no slots. ``rank`` (M,) is zero.

    ``finished`` are the arrays of the results, if the launch is to merge the splits too.
    """
    logits, like, M = problem.logits, problem.columns, len(problem.columns)
    R = M if problem.rows is None else len(problem.rows)
    if problem.allowed is not None and problem.num_columns > _MOST_COLUMNS:
        raise ValueError(f"backend 'triton' takes allowed columns of up to {_MOST_COLUMNS}, got {problem.num_columns}")
    block, warps = split_size(problem.num_entering)
    splits = splits_of(problem.num_entering)
    parts = workspace(problem, R, splits)._replace(rest=arrays.empty(like, (R, splits), "float32"))
    item = item_bytes(logits, block, problem.allowed)
    if problem.rank and rank is None:
        rank = arrays.full(like, (M,), 0, "int64")
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
        part_rest=parts.rest,
        part_sum=parts.sum,
        part_weighted=parts.weighted,
        rank=rank,
        done=None if finished is None else counters(like, R),
        **(NOT_FINISHED if finished is None else finished),
        stride=logits.stride(0),
        begin_at=arrays.pointer(logits) % 16 // item if item else 0,
        num_columns=problem.num_columns,
        num_entering=problem.num_entering,
        splits=splits,
        **scales(problem),
        ignore=None if pairs is None else pairs.ignore_index,
        **(NO_TEMPERATURES if pairs is None else temperatures(pairs)),
        BLOCK=block,
        SPLITS=merge_shape(splits)[0],
        ITEM=item,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return parts._replace(rank=rank)


def largest(problem: Any, parts: Parts) -> tuple[Any, Any]:
    """Return the largest z and their columns (R, k), from the best splits, which are read once more."""
    choice, width = top.chosen_splits(parts.max, problem.top), split_size(problem.num_entering)[0]
    return top.largest(problem, parts.max, choice, width, None, problem.rows, problem.inverse_temperature)
