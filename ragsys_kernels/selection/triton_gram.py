"""Regime a: pools of up to 128 items. One program a query, the Gram matrix of the pool on chip.

Every row is read once. The slots of a program are the P positions of the pool, then the S initial items, which take
part as picks made before the first.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .._gpu import compilers
from .problem import Problem, Selection
from .triton_launch import OPTIONS, Tile, dot_type, num_initial, pool_arguments
from .triton_objective import (
    CANCELS,
    NO_PICK,
    comparable,
    inverse,
    may_be_picked,
    mmr_value,
    running_max,
    vrsd_value,
    with_bias,
)

# The most positions and initial items together: a Gram matrix of 256 rows spills on every architecture.
GRAM_SLOTS = 128


def gram_slots(dtype: str, dims: int) -> int:
    """Return how many slots a Gram matrix can have.

    128 float32 rows, which no matrix instruction multiplies, leave no registers for a last slice that is shorter.
    """
    return min(GRAM_SLOTS, 64) if dtype == "float32" and dims % 16 else GRAM_SLOTS


def gram_tile(dtype: str, slots: int, dims: int, plain: bool) -> Tile:
    """Return the tile, whose rows are the slots; ``plain`` is MMR without options."""
    rows = max(16, triton.next_power_of_2(slots))
    if dtype == "float32" and rows == 128:
        # All registers that there are: with options, eight elements of a row leave enough, which `tl.dot` takes from
        # Triton 3.8 on. Some single options spill 8 or 16 bytes on sm_90.
        narrow = not plain and compilers.version() >= (3, 8)
        return Tile(rows, 8 if narrow else 16, 1, 8, 2 if narrow else 1)
    # The matrix and the operands of its products fill the registers: float32 rows take twice the warps.
    widest, warps = (32, min(16, rows // 4)) if dtype == "float32" else (64, min(8, rows // 8))
    bounded = rows == 32 or (rows == 16 and dtype != "float32")
    dims = min(widest, max(16, triton.next_power_of_2(dims)))
    return Tile(rows, dims, 1, warps, 2, 128 if bounded else None)


@triton.jit
def _gram_slice(x, y, gram, r, QUERY: tl.constexpr, DOT: tl.constexpr):
    """Add a slice along D of the rows x [SLOTS, DIMS] and of the query y [DIMS] to the products."""
    if QUERY:
        r += tl.sum(x.to(tl.float32) * y[None, :], 1)
    x = x.to(DOT)
    return tl.dot(x, tl.trans(x), gram, input_precision="ieee"), r


@triton.jit
def _similarity(gram, f, p, i, SCALED: tl.constexpr):
    """Return the products of the slots' vectors with that of slot i, read along the rows of the matrix.

    A matrix instruction leaves a row in few lanes. The factors of its columns would take a register each.
    """
    similarity = tl.sum(tl.where(p[None, :] == i, gram, 0.0), 1)
    if SCALED:
        similarity *= f * tl.sum(tl.where(p == i, f, 0.0), 0)
    return similarity


@triton.jit
def _sum_squares(base, valid, factors, taken, D, SLOTS: tl.constexpr, DIMS: tl.constexpr):
    """Return |s + e|² of every slot from the rows themselves, where s is the sum of those taken."""
    d = tl.arange(0, DIMS)
    squares = tl.zeros([SLOTS], tl.float32)
    for d0 in range(0, D, DIMS):
        mask = valid[:, None] & (d0 + d < D)[None, :]
        e = tl.load(base + (d0 + d)[None, :], mask=mask, other=0).to(tl.float32) * factors[:, None]  # [SLOTS, DIMS]
        s = tl.sum(tl.where(taken[:, None], e, 0.0), 0)
        squares += tl.sum((e + s[None, :]) * (e + s[None, :]), 1)
    return squares


@triton.jit
def _below_cap(free, taken, group, p, i, cap):
    """Return ``free`` without the group of slot i if that has reached its cap."""
    same = group == tl.sum(tl.where(p == i, group, 0), 0)
    count = tl.sum((same & taken).to(tl.int32), 0)
    return free & (tl.where(same, count, 0) < cap)


@triton.jit(do_not_specialize=("P", "S", "K", "num_ids", "cap"))
def select_gram_kernel(
    rows,
    scales,
    queries,
    query_factors,
    candidates,
    initial,
    relevance,
    bias,
    groups,
    query_groups,
    ks,
    lambda_d,
    lambda_b,
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
    VRSD: tl.constexpr,
    COMPUTED: tl.constexpr,
    BIAS_BY_ROW: tl.constexpr,
    EVEN_D: tl.constexpr,
    DOT: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
):
    # 1. The items of the slots.
    q = tl.program_id(0).to(tl.int64)
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

    # 2. Gram matrix and products with the query, slice by slice along D.
    SCALED: tl.constexpr = COMPUTED or (scales is not None)
    QUERY: tl.constexpr = (relevance is None) or (VRSD and (initial is not None))
    gram = tl.zeros([SLOTS, SLOTS], tl.float32)
    r = tl.zeros([SLOTS], tl.float32)
    d = tl.arange(0, DIMS)
    y = tl.zeros([DIMS], tl.float32)
    factor = 1.0
    if QUERY and (query_factors is not None):
        factor = tl.load(query_factors + q)
    base = rows + row[:, None] * row_stride
    full = D // DIMS * DIMS
    # Full slices need no mask along D: with one, 16-byte loads become one load an element.
    for d0 in range(0, full, DIMS):
        x = tl.load(base + (d0 + d)[None, :], mask=valid[:, None], other=0)  # [SLOTS, DIMS]
        if QUERY:
            y = tl.load(queries + q * D + d0 + d) * factor
        gram, r = _gram_slice(x, y, gram, r, QUERY, DOT)
    if not EVEN_D:
        tail = full + d < D
        x = tl.load(base + (full + d)[None, :], mask=valid[:, None] & tail[None, :], other=0)
        if QUERY:
            y = tl.load(queries + q * D + full + d, mask=tail, other=0.0) * factor
        gram, r = _gram_slice(x, y, gram, r, QUERY, DOT)

    # 3. From stored rows to the vectors of the formulas: vector = f * row.
    f = tl.full([SLOTS], 1.0, tl.float32)
    length = f
    if COMPUTED or VRSD:
        norm = f
        # Always so, which the compiler cannot know: without the branch that of Triton 3.6 dies for sm_100, where it
        # follows the matrix from tensor memory through sums along its rows to sums of these.
        if K > 0:
            norm = tl.sqrt_rn(tl.sum(tl.where(p[:, None] == p[None, :], gram, 0.0), 1))
        length = norm
        if COMPUTED:
            f = inverse(norm)
            length = tl.where(norm == 0, 0.0, 1.0)
    if scales is not None:
        f = tl.load(scales + row, mask=valid, other=0.0)
        length *= f
    if VRSD:
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
    state = tl.full([SLOTS], 0.0 if VRSD else NO_PICK, tl.float32)  # MMR: m; VRSD: t = s·e
    s_square = 0.0
    s_query = 0.0
    s_length = 0.0
    if initial is not None:
        for slot in range(P, P + S):
            if tl.max(tl.where(p == slot, taken.to(tl.int32), 0), 0) > 0:
                similarity = _similarity(gram, f, p, slot, SCALED)
                if VRSD:
                    state += similarity
                else:
                    state = running_max(state, similarity)
        if VRSD:
            s_square = tl.sum(tl.where(taken, state, 0.0), 0)
            s_query = tl.sum(tl.where(taken, r * length, 0.0), 0)
            s_length = tl.sum(tl.where(taken, length, 0.0), 0)
    group = tl.zeros([SLOTS], tl.int64)
    if cap is not None:
        group = tl.load(groups + row, mask=valid, other=0)
        if initial is not None:
            for slot in range(P, P + S):
                free = _below_cap(free, taken, group, p, slot, cap)

    # 5. The picks.
    weight = tl.load(lambda_d + q)
    wanted = K
    if ks is not None:
        wanted = tl.minimum(tl.load(ks + q), K).to(tl.int32)
    made = 0
    nan = float("nan")
    for step in range(wanted):
        first = (step == 0) & (started == 0)
        if VRSD:
            own = length * length
            square = s_square + 2.0 * state + own
            cancels = free & (square < CANCELS * (s_square + own))
            if tl.max(cancels.to(tl.int32), 0) > 0:
                square = tl.where(cancels, _sum_squares(base, valid, f, taken, D, SLOTS, min(DIMS, 16)), square)
            w = vrsd_value(r, length, square, s_query, s_length, first)
        else:
            w = mmr_value(v, state, weight, first)
        w = comparable(w, free)
        best, i = tl.max(w, 0, return_indices=True, return_indices_tie_break_left=True)
        found = best > float("-inf")
        pick = p == i
        # The pick's own lane stores: no reduction to bring its values to the others.
        at = q * K + step + tl.zeros([SLOTS], tl.int64)
        tl.store(out_index + at, tl.where(found, ids, -1), mask=pick)
        tl.store(out_relevance + at, tl.where(found, v, nan), mask=pick)
        if VRSD:
            tl.store(out_score + at, w, mask=pick)
            tl.store(out_redundancy + at, tl.full([SLOTS], float("nan"), tl.float32), mask=pick)
        else:
            tl.store(out_score + at, tl.where(first & found, weight * v, w), mask=pick)
            tl.store(out_redundancy + at, tl.where(found, tl.where(first, 0.0, state), nan), mask=pick)
        made += found.to(tl.int32)

        pick = pick & (w > float("-inf"))
        free = free & (pick == 0)
        similarity = _similarity(gram, f, p, i, SCALED)
        if VRSD:
            state += similarity
            s_square = tl.sum(tl.where(pick, square, 0.0), 0)
            s_query += tl.sum(tl.where(pick, r * length, 0.0), 0)
            s_length += tl.sum(tl.where(pick, length, 0.0), 0)
        else:
            state = running_max(state, similarity)
        if VRSD or (cap is not None):
            taken = taken | pick
        if cap is not None:
            free = _below_cap(free, taken, group, p, i, cap)
    for step in range(wanted, K):
        tl.store(out_index + q * K + step, -1)
        tl.store(out_score + q * K + step, float("-inf"))
        tl.store(out_relevance + q * K + step, nan)
        tl.store(out_redundancy + q * K + step, nan)
    tl.store(out_length + q, made)


def select(problem: Problem, out: Selection) -> None:
    """Launch regime a, one program a query."""
    dtype, D = problem.rows.dtype, problem.rows.data.shape[1]
    arguments: dict[str, Any] = pool_arguments(problem, out)
    plain = problem.op == "mmr" and all(arguments.get(name) is None for name in OPTIONS)
    tile = gram_tile(dtype, problem.pool + num_initial(problem), D, plain)
    select_gram_kernel[(problem.num_queries,)](
        **arguments,
        EVEN_D=D % tile.dims == 0,
        DOT=dot_type(dtype),
        SLOTS=tile.rows,
        DIMS=tile.dims,
        **tile.options(),
    )
