"""Regime a: pools of up to 128 items. One program a query, the Gram matrix of the pool on chip.

Every row is read once. The slots of a program are the P positions of the pool, then the S initial items, which take
part as picks made before the first.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..._gpu.compilers import is_hopper
from ..._gpu.plans import launch
from ..problem import Problem, Selection
from .launch import (
    GROWTH,
    NUM_PARTS,
    OPTIONS,
    Tile,
    dot_type,
    limits,
    next_power_of_2,
    num_initial,
    pool_arguments,
    query_parts,
)
from .objective import comparable, inverse, may_be_picked, running_max, with_bias
from .objectives import OBJECTIVES, most_taken, rule_of
from .objectives.objective import Items
from .products import diagonal, gram_matrix, gram_row, held_rows, part_products, row_products

# The most positions and initial items together: a Gram matrix of 256 rows spills on every architecture.
GRAM_SLOTS = 128

# Float32 rows are taken in slices of so many dimensions: eight lanes share a row, 16 bytes of it at a time.
ROW_DIMS = 32

# How many slices stay in registers, on Hopper for MMR and VRSD and for rules that keep more; elsewhere for MMR without
# options, for all else, and for those rules. Each takes 16 registers of a thread. The rest of a row is read again from
# the cache at each pick.
HOPPER_SLICES = (12, 2)
HELD_SLICES = (9, 3, 2)

# The RANK of rules that keep no rows of so many numbers: another one for each k would be compiled, to the same code.
NO_RANK = 16


def gram_tile(dtype: str, slots: int, dims: int, whole: bool = False, hopper: bool = True) -> Tile:
    """Return the tile, whose rows are the slots; ``whole``: the rule asks for the matrix."""
    rows = max(16, next_power_of_2(slots))
    if dtype == "float32" and whole:  # six operands of products are more than a thread of sm_80 has with two stages
        return Tile(rows, ROW_DIMS // 2, 1, min(8, rows // 8), 3)
    if dtype == "float32":
        return Tile(rows, ROW_DIMS, 1, min(8, rows // 8) if hopper else rows // 16, 2, 255 if hopper else None)
    # The matrix and the operands of its products fill the registers.
    dims = min(64, max(16, next_power_of_2(dims)))
    # Rows that meet the query in registers and one another in the matrix units have one buffer, whatever the number of
    # stages: with two, Triton loads the next slice while the units still read the last (seen on an H200).
    stages = 2 if dtype == "int8" else 1
    if hopper and not whole and dtype != "int8":
        # A pick waits for all warps, so few of them are fast: one, or the four that share a product.
        return Tile(rows, dims, 1, 1 if rows <= 32 else 4, stages, 128 if rows == 16 else None)
    most = 144 if dtype == "int8" and rows == 32 else 128  # where quotients of VRSD spill at 128
    return Tile(rows, dims, 1, min(8, rows // 8), stages, most if rows <= 32 else None)


def staged(tile: Tile, plain: bool, hopper: bool = True) -> Tile:
    """Return the tile where rows go to the matrix units past the registers: several slices can be in flight.

    Where there are eight warps, half of them leave registers for two blocks of 128 slots a multiprocessor; options
    would spill.
    """
    halved = tile.rows == 128 and plain and not hopper
    return tile._replace(num_stages=4, num_warps=tile.num_warps // 2 if halved else tile.num_warps)


def form(
    dtype: str, tile: Tile, dims: int, plain: bool, parts: int = 0, rule: str = "mmr", hopper: bool = True
) -> dict[str, Any]:
    """Return how the kernel comes to products: by a matrix, or by rows, some held; ``plain`` is MMR without options."""
    whole, keeps_more = OBJECTIVES[rule].whole, rule not in ("mmr", "vrsd")
    matrix, even = whole or dtype != "float32", dims % tile.dims == 0
    held = HOPPER_SLICES[keeps_more] if hopper else HELD_SLICES[0 if plain else 1 + keeps_more]
    held -= rule == "ssd window"  # which with two spills by Triton 3.6
    held = 0 if matrix else min(dims // tile.dims, held)
    return {
        "MATRIX": matrix,
        "HELD": held,
        "REST": held < dims // tile.dims,
        "EVEN_D": even,
        "DOT": dot_type("bfloat16" if whole and dtype == "float32" else dtype),
        "SPLIT": whole and dtype == "float32",
        "PARTS": parts,
        "GROWTH": GROWTH[dtype] if parts else 1.0,
        "SLOTS": tile.rows,
        "DIMS": tile.dims,
    }


@triton.jit
def _of(x, p, i):
    """Return what x has for slot i."""
    return tl.sum(tl.where(p == i, x, 0), 0)


@triton.jit
def _below_cap(free, taken, group, p, i, cap):
    """Return ``free`` without the group of slot i if that has reached its cap."""
    same = group == _of(group, p, i)
    count = tl.sum((same & taken).to(tl.int32), 0)
    return free & (tl.where(same, count, 0) < cap)


@triton.jit(do_not_specialize=("P", "S", "K", "num_ids", "cap", "window"))
def select_gram_kernel(
    rows,
    scales,
    queries,
    query_factors,
    query_parts,
    query_back,
    candidates,
    initial,
    relevance,
    bias,
    groups,
    query_groups,
    costs,
    budget,
    max_similarity,
    quality,
    ks,
    lambda_d,
    lambda_b,
    order,
    count,
    out_index,
    out_score,
    out_relevance,
    out_redundancy,
    out_length,
    row_stride,
    pool_stride,
    num_ids,
    P,
    S,
    K,
    D,
    cap,
    far,
    number,
    second,
    window,
    START: tl.constexpr,
    VALUE: tl.constexpr,
    TAKE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    LENGTHS: tl.constexpr,
    INITIAL_RELEVANCE: tl.constexpr,
    COSINE: tl.constexpr,
    WHOLE: tl.constexpr,
    REDUNDANT: tl.constexpr,
    RANK: tl.constexpr,
    COMPUTED: tl.constexpr,
    BIAS_BY_ROW: tl.constexpr,
    COSTS_BY_ROW: tl.constexpr,
    QUALITY_BY_ROW: tl.constexpr,
    EVEN_D: tl.constexpr,
    MATRIX: tl.constexpr,
    HELD: tl.constexpr,
    REST: tl.constexpr,
    DOT: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTS: tl.constexpr,
    GROWTH: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
):
    # 1. The items of the slots.
    q = tl.program_id(0).to(tl.int64)
    if count is not None:
        if q >= tl.load(count):
            return
        q = tl.load(order + q).to(tl.int64)
    p = tl.arange(0, SLOTS)
    inside = p < P
    shown = (p >= P) & (p < P + S)
    if candidates is None:
        ids = p.to(tl.int64)
    else:
        ids = tl.load(candidates + q * P + p, mask=inside, other=-1).to(tl.int64)
    if initial is not None:
        ids = tl.where(shown, tl.load(initial + q * S + p - P, mask=shown, other=-1).to(tl.int64), ids)
    valid = (inside | shown) & (ids >= 0) & (ids < num_ids)
    row = tl.where(valid, ids, 0) + q * pool_stride  # [SLOTS]

    # 2. Products with the query; those of the rows with one another, or the rows themselves.
    SCALED: tl.constexpr = COMPUTED or (scales is not None)
    QUERY: tl.constexpr = (relevance is None) or (INITIAL_RELEVANCE and (initial is not None))
    NORMS: tl.constexpr = COMPUTED or LENGTHS or COSINE
    factor = 1.0
    if QUERY and (query_factors is not None):
        factor = tl.load(query_factors + q)
    offset = row * row_stride
    base = rows + offset[:, None]
    query = queries
    if QUERY and PARTS == 0:
        query = queries + q * D
    if PARTS > 0:
        part = p - (SLOTS - PARTS)
        base = tl.where((part >= 0)[:, None], query_parts + ((q * PARTS + part) * D)[:, None], base)
        base = tl.multiple_of(base, (16, 16))  # bytes, which the choice between arrays has made the compiler forget
        gram, r = gram_matrix(base, valid | (part >= 0), query, factor, D, False, EVEN_D, DOT, SPLIT, SLOTS, DIMS)
        r = part_products(gram, P, PARTS, GROWTH, SLOTS) * tl.load(query_back + q)
    elif MATRIX:
        gram, r = gram_matrix(base, valid, query, factor, D, QUERY, EVEN_D, DOT, SPLIT, SLOTS, DIMS)
    else:
        held, r, square = held_rows(base, valid, query, factor, D, QUERY, NORMS, EVEN_D, HELD, REST, SLOTS, DIMS)

    # 3. From stored rows to the vectors of the formulas: vector = f * row.
    f = tl.full([SLOTS], 1.0, tl.float32)
    length = f
    if NORMS:
        if MATRIX:
            square = diagonal(gram, p, P)
        norm = tl.sqrt_rn(square)
        length = norm
        if COMPUTED:
            f = inverse(norm)
            length = tl.where(norm == 0, 0.0, 1.0)
    if scales is not None:
        f = tl.load(scales + row, mask=valid, other=0.0)
        length *= f
    if COSINE:
        r *= inverse(norm)
    else:
        r *= f
    if relevance is not None:
        r = tl.where(shown, r, tl.load(relevance + q * P + p, mask=inside, other=0.0))
    if BIAS_BY_ROW:
        v = with_bias(r, bias, row, valid, tl.load(lambda_b + q))
    else:
        v = with_bias(r, bias, q * P + p, inside, tl.load(lambda_b + q))

    # 4. Who may be picked, and what the initial items leave.
    free = may_be_picked(ids, row, valid & inside, q, initial, S, groups, query_groups)
    taken = valid & shown
    started = tl.sum(taken.to(tl.int32), 0) > 0
    similar = 0.0
    if WHOLE:
        if SCALED:
            gram = gram * f[:, None] * f[None, :]
        similar = gram
    worth = None
    if quality is not None:
        worth = tl.load(quality + (row if QUALITY_BY_ROW else q * P + p), mask=valid & inside, other=1.0)
    items = Items(
        v, length, tl.load(lambda_d + q), rows, offset, f, valid, D, similar, far, worth, number, second, window
    )
    state = START(items, free, RANK)
    nearest = tl.zeros([SLOTS], tl.float32)
    most = 0.0
    if max_similarity is not None:
        nearest += float("-inf")
        most = tl.load(max_similarity + q)
    if initial is not None:
        for slot in range(P, P + S):
            pick = taken & (p == slot)
            if tl.max(pick.to(tl.int32), 0) > 0:
                if MATRIX:
                    similarity = gram_row(gram, slot, P)
                else:
                    similarity = row_products(
                        held, base, valid, rows + _of(row, p, slot) * row_stride, D, EVEN_D, HELD, REST, SLOTS, DIMS
                    )
                if SCALED and not WHOLE:
                    similarity *= f * _of(f, p, slot)
                state = TAKE(state, items, similarity, pick, taken & (p <= slot), True)
                if max_similarity is not None:
                    nearest = running_max(nearest, similarity)
    group = tl.zeros([SLOTS], tl.int64)
    if cap is not None:
        group = tl.load(groups + row, mask=valid, other=0)
        if initial is not None:
            for slot in range(P, P + S):
                free = _below_cap(free, taken, group, p, slot, cap)

    spent = tl.zeros([], tl.float64)

    # 5. The picks. Each slot remembers its own; a store in the loop would wait for the layout of its values to change.
    wanted = K
    if ks is not None:
        wanted = tl.minimum(tl.load(ks + q), K).to(tl.int32)
    made = 0
    picked_at = tl.full([SLOTS], -1, tl.int32)
    picked_score = tl.zeros([SLOTS], tl.float32)
    picked_redundancy = tl.zeros([SLOTS], tl.float32)
    for step in range(wanted):
        first = (step == 0) & (started == 0)
        open_ = free
        if costs is not None:  # read again, as they would take registers
            cost = tl.load(costs + (row if COSTS_BY_ROW else q * P + p), mask=valid & inside, other=0.0)
            open_ = open_ & (spent + cost <= tl.load(budget + q))
        if max_similarity is not None:
            open_ = open_ & (nearest <= most)
        w, state = VALUE(state, items, open_, taken, first)
        w = comparable(w, open_)
        best, i = tl.max(w, 0, return_indices=True, return_indices_tie_break_left=True)
        found = best > float("-inf")
        pick = p == i
        score, redundancy = OUTPUTS(state, items, w, first)
        if (max_similarity is not None) and not REDUNDANT:
            redundancy = tl.where(first, 0.0, nearest)
        pick = pick & (w > float("-inf"))
        picked_at = tl.where(pick, step, picked_at)
        picked_score = tl.where(pick, score, picked_score)
        picked_redundancy = tl.where(pick, redundancy, picked_redundancy)
        made += found.to(tl.int32)

        if costs is not None:
            spent += tl.sum(tl.where(pick, cost, 0.0), 0)
        free = free & (pick == 0)
        taken = taken | pick
        if found & (step + 1 < wanted):  # nothing meets the last pick
            if MATRIX:
                similarity = gram_row(gram, i, P)
            else:
                similarity = row_products(
                    held, base, valid, rows + _of(row, p, i) * row_stride, D, EVEN_D, HELD, REST, SLOTS, DIMS
                )
            if SCALED and not WHOLE:
                similarity *= f * _of(f, p, i)
            state = TAKE(state, items, similarity, pick, taken, False)
            if max_similarity is not None:
                nearest = running_max(nearest, similarity)
        if cap is not None:
            free = _below_cap(free, taken, group, p, i, cap)
    picked = picked_at >= 0
    item = p.to(tl.int64)
    if candidates is not None:  # read again, as all ids would take registers
        item = tl.load(candidates + q * P + p, mask=picked, other=-1).to(tl.int64)
    at = q * K + picked_at
    tl.store(out_index + at, item, mask=picked)
    tl.store(out_score + at, picked_score, mask=picked)
    tl.store(out_relevance + at, v, mask=picked)
    tl.store(out_redundancy + at, picked_redundancy, mask=picked)
    nan = float("nan")
    for step in range(made, K):
        tl.store(out_index + q * K + step, -1)
        tl.store(out_score + q * K + step, float("-inf"))
        tl.store(out_relevance + q * K + step, nan)
        tl.store(out_redundancy + q * K + step, nan)
    tl.store(out_length + q, made)


def in_tile(problem: Problem) -> bool:
    """Return whether the query goes through the matrix instructions with the rows.

    It does where the tile has room for it and all that it reads can be read 16 bytes at a time.
    """
    objective, slots = OBJECTIVES[rule_of(problem)], problem.pool + num_initial(problem)
    data = problem.rows.data
    aligned = data.shape[1] % 8 == 0 and data.stride(0) % 8 == 0 and data.data_ptr() % 16 == 0
    wanted = problem.relevance is None or (objective.initial and problem.constraints.initial is not None)
    parts = NUM_PARTS.get(problem.rows.dtype, 0)
    return aligned and wanted and parts > 0 and gram_tile(problem.rows.dtype, slots, 16).rows >= slots + parts


def limits_and_options(problem: Problem) -> dict[str, Any]:
    """Return the arguments of budgets and ceilings, and of what belongs to the rule alone."""
    options = problem.options
    quality = getattr(options, "quality", None)
    number, second = (
        next((getattr(options, name) for name in names if hasattr(options, name)), 0.0) for names in NUMBERS
    )
    return {
        **limits(problem),
        "quality": quality,
        "QUALITY_BY_ROW": quality is not None and quality.ndim == 1,
        "far": 1.0 if problem.rows.metric == "cosine" else 0.0,
        "number": float(number),
        "second": float(second),
        "window": _remembered(problem),
    }


def _remembered(problem: Problem) -> int:
    """Return how many picks and initial items have a say in the next, at most."""
    taken = most_taken(problem)
    return min(getattr(problem.options, "window", 0) or taken, taken)


# The options that are one number for all queries: a rule has one of the first, and may have one of the second.
NUMBERS = (("scale", "gamma", "noise"), ("min_gain",))


def power_of(quality: Any) -> Any:
    """Return a power of two near the largest quality, of each query or of all: the kernel squares what is left of them.

    Where values are not checked, NaN and inf are but of items that are not picked.
    """
    _, exponent = quality.nan_to_num(0.0, 0.0, 0.0).amax(-1, keepdim=True).frexp()
    return exponent.clamp(-126, 126).float().exp2()


def select(
    problem: Problem,
    out: Selection,
    apart: tuple[Any, Any] | None = None,
    queries: tuple[Any, Any] = (None, None),
) -> None:
    """Launch regime a, one program a query.

    ``apart`` is what `query_parts` gave for these queries before. ``queries``: only those of these numbers, an array of
    which the first are meant, as many as the other says.
    """
    dtype, D = problem.rows.dtype, problem.rows.data.shape[1]
    parts = NUM_PARTS[dtype] if in_tile(problem) else 0
    arguments: dict[str, Any] = pool_arguments(problem, out, factors=not parts)
    apart = (apart or query_parts(problem)) if parts else (None, None)
    arguments |= dict(zip(("query_parts", "query_back"), apart, strict=True))
    arguments |= limits_and_options(problem)
    power = None if arguments["quality"] is None else power_of(arguments["quality"])
    if power is not None:
        arguments["quality"] = arguments["quality"] / power
    objective = OBJECTIVES[rule_of(problem)]
    plain = problem.op == "mmr" and all(arguments.get(name) is None for name in OPTIONS)
    hopper = is_hopper()
    tile = gram_tile(dtype, problem.pool + num_initial(problem), D, objective.whole, hopper)
    if parts:
        tile = staged(tile, plain, hopper)
    launch(
        select_gram_kernel,
        (problem.num_queries,),
        **arguments,
        order=queries[0],
        count=queries[1],
        **objective.constexprs(),
        RANK=next_power_of_2(_remembered(problem)) if objective.ranked else NO_RANK,
        **form(dtype, tile, D, plain, parts, rule_of(problem), hopper),
        **tile.options(),
    )
    if power is not None:  # twice, as the square may leave float32
        out.scores.mul_(power).mul_(power)
