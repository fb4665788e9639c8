"""The slots of pairs that name their rows, found in one launch, and what the linear form reads of any pairs."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..._base import arrays
from ..._gpu.plans import launch
from ..problem import Pairs, ScoringProblem
from .pairs import counts, inverse_of, masked, temperatures

# Pairs that the program of `logprob_slots_kernel` takes at a time.
SLOT_BLOCK = 1024
PAIR_BLOCK = 128


class Slots(NamedTuple):
    """The slots of a problem, the first fields of `ScoringProblem`, and where each pair is among theirs."""

    rows: Any
    inverse_temperature: Any
    pair_begin: Any
    columns: Any
    slot_of: Any  # (M,) -1: a pair that does not count
    slot_of_row: Any  # (T,) anything for a row without a slot
    place: Any  # (M,) of each pair in ``columns``
    rank: Any  # (M,) zeros; None without ranks


@triton.jit(do_not_specialize=["num_pairs", "num_rows", "num_slots", "ignore"])
def logprob_slots_kernel(
    targets,  # [M]
    row_of,  # [M]
    allowed,  # None: all columns enter
    leader,  # [T] workspace
    size,  # [R] workspace
    rows,  # [R]
    inverse_temperature,  # [R]
    pair_begin,  # [R + 1]
    columns,  # [M]
    slot_of,  # [M]
    slot_of_row,  # [T]
    place,  # [M]
    rank,  # [M]; None without ranks
    num_pairs,
    num_rows,
    num_slots,
    num_columns,
    num_allowed,
    ignore,
    inverse,
    temperature,
    BLOCK: tl.constexpr,
):
    """The slots of pairs that name their rows, by one program: each step needs the one before for all pairs.

    Arrays by row are not filled: a row's element is read only if a pair has written it. Slots, and the pairs of a slot,
    come in any order, which no result depends on. A barrier orders memory within a block, on AMD's processors too,
    where the waves of one share a cache.
    """
    lane = tl.arange(0, BLOCK)
    # A pair of each row.
    for start in range(0, num_pairs, BLOCK):
        i = start + lane
        row = tl.load(row_of + i, mask=i < num_pairs, other=-1)
        live = (row >= 0) & (row < num_rows)
        live = live & counts(tl.load(targets + i, mask=live, other=-1), ignore, num_columns)
        tl.store(slot_of + i, tl.where(live, 0, -1).to(tl.int64), mask=i < num_pairs)
        tl.store(leader + row, i.to(tl.int64), mask=live)  # whichever comes last
        tl.store(place + i, tl.where(live, row, -1), mask=i < num_pairs)  # the row, until there is a place
        if rank is not None:
            tl.store(rank + i, tl.zeros([BLOCK], tl.int64), mask=i < num_pairs)
    tl.debug_barrier()
    # A slot for each.
    factor = inverse_of(lane, inverse, temperature, None, None, 1, False) + tl.zeros([BLOCK], tl.float32)
    found = 0
    for start in range(0, num_pairs, BLOCK):
        i = start + lane
        row = tl.load(place + i, mask=i < num_pairs, other=-1)
        leads = (tl.load(leader + row, mask=row >= 0, other=-1) == i) & (row >= 0)
        number = found + tl.cumsum(leads.to(tl.int32), 0) - 1
        tl.store(rows + number, row, mask=leads)
        tl.store(slot_of_row + row, number.to(tl.int64), mask=leads)
        tl.store(inverse_temperature + number, factor, mask=leads)
        tl.store(size + number, tl.zeros([BLOCK], tl.int32), mask=leads)
        found += tl.sum(leads.to(tl.int32), 0)
    for start in range(found, num_slots, BLOCK):
        s = start + lane
        tl.store(rows + s, tl.zeros([BLOCK], tl.int64) - 1, mask=s < num_slots)
        tl.store(inverse_temperature + s, factor, mask=s < num_slots)
    tl.debug_barrier()
    # A place for each pair.
    for start in range(0, num_pairs, BLOCK):
        i = start + lane
        row = tl.load(place + i, mask=i < num_pairs, other=-1)
        slot = tl.load(slot_of_row + row, mask=row >= 0, other=-1)
        tl.store(slot_of + i, slot, mask=i < num_pairs)
        before = tl.atomic_add(size + slot, tl.zeros([BLOCK], tl.int32) + 1, mask=row >= 0, sem="relaxed")
        tl.store(place + i, before.to(tl.int64), mask=i < num_pairs)
    tl.debug_barrier()
    held = tl.zeros([], tl.int64)
    for start in range(0, num_slots, BLOCK):
        s = start + lane
        n = tl.load(size + s, mask=s < found, other=0).to(tl.int64)
        tl.store(pair_begin + s, held + tl.cumsum(n, 0) - n, mask=s < num_slots)
        held += tl.sum(n, 0)
    tl.store(pair_begin + num_slots, held)
    tl.debug_barrier()
    for start in range(0, num_pairs, BLOCK):
        i = start + lane
        slot = tl.load(slot_of + i, mask=i < num_pairs, other=-1)
        at = tl.load(pair_begin + slot, mask=slot >= 0, other=0) + tl.load(place + i, mask=slot >= 0, other=0)
        tl.store(place + i, at, mask=i < num_pairs)
        column = tl.load(targets + i, mask=slot >= 0, other=-1)
        tl.store(columns + at, masked(column, allowed, num_allowed), mask=slot >= 0)
        tl.store(columns + i, tl.zeros([BLOCK], tl.int64) - 1, mask=(i >= held) & (i < num_pairs))


@triton.jit(do_not_specialize=["num_pairs", "ignore", "num_answers"])
def logprob_aligned_slots_kernel(
    targets,  # [M]
    allowed,  # None: all columns enter
    rows,  # [M]
    inverse_temperature,  # [M]
    pair_begin,  # [M + 1]
    columns,  # [M]
    rank,  # [M]; None without ranks
    num_pairs,
    num_columns,
    num_allowed,
    ignore,
    inverse,
    temperature,
    begin,
    answers,
    num_answers,
    PER_PAIR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Slot i is row i, and has pair i."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num_pairs
    target = tl.load(targets + i, mask=inside, other=-1)
    live = counts(target, ignore, num_columns)
    tl.store(rows + i, tl.where(live, i, -1), mask=inside)
    column = tl.where(live, masked(target, allowed, num_allowed), -1)
    tl.store(columns + i, column, mask=inside)
    factor = inverse_of(tl.minimum(i, num_pairs - 1), inverse, temperature, begin, answers, num_answers, PER_PAIR)
    tl.store(inverse_temperature + i, factor + tl.zeros([BLOCK], tl.float32), mask=inside)
    tl.store(pair_begin + i, i, mask=i <= num_pairs)
    if rank is not None:
        tl.store(rank + i, tl.zeros([BLOCK], tl.int64), mask=inside)


def _room(problem: ScoringProblem, pairs: Pairs, R: int) -> dict[str, Any]:
    like, M = pairs.targets, len(pairs.targets)
    return {
        "rows": arrays.empty(like, (R,), "int64"),
        "inverse_temperature": arrays.empty(like, (R,), "float32"),
        "pair_begin": arrays.empty(like, (R + 1,), "int64"),
        "columns": arrays.empty(like, (M,), "int64"),
        "rank": arrays.empty(like, (M,), "int64") if problem.rank else None,
    }


def aligned(problem: ScoringProblem, pairs: Pairs) -> Slots:
    """Return the slots of pairs that each have a row of their own."""
    M, room = len(pairs.targets), _room(problem, pairs, len(pairs.targets))
    launch(
        logprob_aligned_slots_kernel,
        (M // PAIR_BLOCK + 1,),
        targets=pairs.targets,
        allowed=problem.allowed,
        **room,
        num_pairs=M,
        num_columns=problem.num_columns,
        num_allowed=problem.num_entering,
        ignore=pairs.ignore_index,
        **temperatures(pairs),
        BLOCK=PAIR_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return Slots(**room, slot_of=None, slot_of_row=None, place=None)


def grouped(problem: ScoringProblem, pairs: Pairs) -> Slots:
    """Return the slots of pairs that name their rows, at one temperature."""
    like, M, T = pairs.targets, len(pairs.targets), pairs.num_rows
    R = min(M, T)
    room = _room(problem, pairs, R)
    of_pairs = {name: arrays.empty(like, (M,), "int64") for name in ("slot_of", "place")}
    slot_of_row = arrays.empty(like, (T,), "int64")
    given = temperatures(pairs)
    launch(
        logprob_slots_kernel,
        (1,),
        targets=pairs.targets,
        row_of=pairs.rows,
        allowed=problem.allowed,
        leader=arrays.empty(like, (T,), "int64"),
        size=arrays.empty(like, (R,), "int32"),
        **room,
        **of_pairs,
        slot_of_row=slot_of_row,
        num_pairs=M,
        num_rows=T,
        num_slots=R,
        num_columns=problem.num_columns,
        num_allowed=problem.num_entering,
        ignore=pairs.ignore_index,
        inverse=given["inverse"],
        temperature=given["temperature"],
        BLOCK=SLOT_BLOCK,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return Slots(**room, **of_pairs, slot_of_row=slot_of_row)
