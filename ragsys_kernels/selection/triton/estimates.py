"""MMR out of float32 pools of 65 to 128 items on Hopper: similarities by TF32, and exact ones of what may be the pick.

The matrix of similarities is one TF32 product. What it may be off by is known, so it gives each item a lower bound of
m, its largest similarity to the picks, and with it an upper bound of its value. The item of the largest bound gets its
exact m; when it still has the largest, it is the pick. Rows meet the query, and picks, in the order of sums in which
`products.py` has them, so that the results are the same bits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..._base import arrays, env
from ..._gpu.compilers import is_hopper
from ..._gpu.plans import launch
from ..problem import Problem, Selection
from .launch import Tile, chunks, num_initial, pool_arguments
from .objective import NO_PICK, comparable, inverse, mmr_value, pool_ids, with_bias

SLOTS, DIMS = 128, 32

# Picks that an item meets at a time, and slices of a row, at most: the loads of all of them are in flight together.
PICKS, MOST_SLICES = 16, 24

# What a query keeps in memory: the matrix, and of each row its factor and the largest length that it may have.
NUMBERS = SLOTS * (SLOTS + 2)
# Bytes of device memory for the matrices of the queries that run together; others run in a further chunk.
WORKSPACE_BYTES = 1 << 28

# One stage: registers use the slices too, and with more Triton loads the next one while the matrix units read the last.
TILE = Tile(SLOTS, DIMS, 1, 4, 1, 255)

# Shortest and longest row that TF32 multiplies without losing what the bound does not know of.
_SHORTEST, _LONGEST = tl.constexpr(2.0**-40), tl.constexpr(2.0**60)


def error(dims: int) -> float:
    """Return what the similarity of two unit vectors may be off by, of float32 products too.

    TF32 keeps 10 bits of a fraction: an element loses at most 2^-10 of itself, a product (2^-9 + 2^-20) of it, and by
    Cauchy-Schwarz a sum of products that share of the lengths' product. Sums of D terms, by matrix units that truncate
    (eight products and the sum before them, each by 2^-23: 1.35e-7 D) and in float32 (6e-8 (D / 32 + 6)), are off by
    2e-7 D, with the factors and norms by 2e-7 (D + 16). One hundredth
    covers that lengths are rounded, and terms of second order.
    """
    return 1.01 * (2.0**-9 + 2.0**-20 + 2e-7 * (dims + 16))


@triton.jit
def _to_tf32(x, CUT: tl.constexpr):
    """Return x; CUT: with the bits that matrix units leave out, for the interpreter, which multiplies all bits."""
    if CUT:
        x = ((x.to(tl.int32, bitcast=True) >> 13) << 13).to(tl.float32, bitcast=True)
    return x


@triton.jit(do_not_specialize=("P", "K", "num_ids", "q0"))
def select_estimates_kernel(
    rows,
    queries,
    query_factors,
    candidates,
    bias,
    ks,
    lambda_d,
    lambda_b,
    work,
    out_index,
    out_score,
    out_relevance,
    out_redundancy,
    out_length,
    row_stride,
    pool_stride,
    num_ids,
    q0,
    P,
    K,
    D,
    error,
    COMPUTED: tl.constexpr,
    BIAS_BY_ROW: tl.constexpr,
    SLICES: tl.constexpr,
    CUT: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
    PICKS: tl.constexpr,
):
    # 1. Rows, their products with the query, and estimates of those with one another.
    q = q0 + tl.program_id(0).to(tl.int64)
    p = tl.arange(0, SLOTS)
    ids, valid = pool_ids(candidates, q, p, P, num_ids)
    base = rows + ((ids + q * pool_stride) * row_stride)[:, None]
    factor = 1.0
    if query_factors is not None:
        factor = tl.load(query_factors + q)
    d = tl.arange(0, DIMS)
    products = tl.zeros([SLOTS, DIMS], tl.float32)
    squares = products
    gram = tl.zeros([SLOTS, SLOTS], tl.float32)
    for d0 in range(0, D, DIMS):
        x = tl.load(base + (d0 + d)[None, :], mask=valid[:, None], other=0)
        y = tl.load(queries + q * D + d0 + d) * factor
        products += x * y[None, :]
        squares += x * x
        x = _to_tf32(x, CUT)
        gram = tl.dot(x, tl.trans(x), gram, input_precision="tf32")
    r = tl.sum(products, 1)
    norm = tl.sqrt_rn(tl.sum(squares, 1))
    f = tl.full([SLOTS], 1.0, tl.float32)
    if COMPUTED:
        f = inverse(norm)
    r *= f
    known = (norm >= _SHORTEST) & (norm <= _LONGEST)
    bound = tl.where(known, norm * f, float("inf"))

    # 2. Where a pick finds its column: to take it out of registers would take five times as many instructions.
    work += tl.program_id(0).to(tl.int64) * (SLOTS * (SLOTS + 2))
    tl.store(work + p[:, None] * SLOTS + tl.arange(0, SLOTS)[None, :], gram)
    tl.store(work + SLOTS * SLOTS + p, f)
    tl.store(work + SLOTS * SLOTS + SLOTS + p, bound)
    tl.debug_barrier()

    # 3. The picks.
    if BIAS_BY_ROW:
        ids, valid = pool_ids(candidates, q, p, P, num_ids)  # read again, as all ids would take registers
        v = with_bias(r, bias, ids + q * pool_stride, valid, tl.load(lambda_b + q))
    else:
        v = with_bias(r, bias, q * P + p, p < P, tl.load(lambda_b + q))
    wanted = K
    if ks is not None:
        wanted = tl.minimum(tl.load(ks + q), K).to(tl.int32)
    lam = tl.load(lambda_d + q)
    m = tl.full([SLOTS], NO_PICK, tl.float32)  # at most the largest similarity
    free = valid
    turn = tl.arange(0, PICKS)
    taken_rows = tl.zeros([PICKS], tl.int64)
    taken_f = tl.zeros([PICKS], tl.float32)
    picked_at = tl.full([SLOTS], -1, tl.int32)
    picked_score = tl.zeros([SLOTS], tl.float32)
    picked_redundancy = tl.zeros([SLOTS], tl.float32)
    made = tl.zeros([], tl.int32)
    last = tl.full([], -1, tl.int32)  # whose m is exact, and has met all picks
    more = wanted > 0
    while more:
        first = made == 0
        w = comparable(mmr_value(v, m, lam, first), free)
        best, i = tl.max(w, 0, return_indices=True, return_indices_tie_break_left=True)
        i = i.to(tl.int32)
        found = best > float("-inf")
        pick = (p == i) & (w > float("-inf"))
        item, _ = pool_ids(candidates, q, i, P, num_ids)
        item += q * pool_stride
        own = tl.load(work + SLOTS * SLOTS + i)
        if first | (last == i) | (best == float("-inf")):
            picked_at = tl.where(pick, made, picked_at)
            picked_score = tl.where(pick, tl.where(first, lam * v, w), picked_score)
            picked_redundancy = tl.where(pick, tl.where(first, 0.0, m), picked_redundancy)
            free = free & (pick == 0)
            taken_rows = tl.where(turn == made, item, taken_rows)
            taken_f = tl.where(turn == made, own, taken_f)
            made += found.to(tl.int32)
            more = (best > float("-inf")) & (made < wanted)
            length = tl.load(work + SLOTS * SLOTS + SLOTS + i)
            similarity = tl.load(work + i * SLOTS + p) * (f * own)
            m = tl.maximum(m, similarity - error * length * bound)  # NaN tells nothing
            last = tl.full([], -1, tl.int32)
        else:
            z = tl.zeros([PICKS, DIMS], tl.float32)
            taken_at = rows + (taken_rows * row_stride)[:, None]
            at = rows + item * row_stride
            for c in tl.static_range(SLICES):
                x = tl.load(taken_at + (c * DIMS + d)[None, :])
                z += x * tl.load(at + c * DIMS + d)[None, :]
            exact = tl.sum(z, 1)
            if COMPUTED:
                exact *= taken_f * own
            met = turn < made
            largest = tl.max(tl.where(met, exact, NO_PICK), 0)
            broken = tl.sum((met & (exact != exact)).to(tl.int32), 0) > 0
            m = tl.where(pick, tl.where(broken, float("nan"), largest), m)
            last = i
    picked = picked_at >= 0
    item, _ = pool_ids(candidates, q, p, P, num_ids)  # and again
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


def takes(problem: Problem) -> bool:
    """Return whether a problem is of this form: what its options or its shape rule out, `gram.py` takes."""
    rows, D, given = problem.rows, problem.rows.data.shape[1], problem.constraints
    plain = problem.op == "mmr" and problem.relevance is None and not num_initial(problem)
    free = all(getattr(given, name) is None for name in ("groups", "query_groups", "costs", "max_similarity"))
    fits = SLOTS // 2 < problem.pool <= SLOTS and problem.k <= PICKS and D % DIMS == 0 and D // DIMS <= MOST_SLICES
    return plain and free and fits and rows.dtype == "float32" and rows.scales is None and is_hopper()


def sizes(dims: int) -> dict[str, Any]:
    """Return what the kernel is compiled for."""
    cut = env.triton_interpreter()
    return {"SLICES": dims // DIMS, "CUT": cut, "SLOTS": SLOTS, "DIMS": DIMS, "PICKS": PICKS}


def select(problem: Problem, out: Selection) -> None:
    """Launch one program a query, in chunks of queries."""
    arguments: dict[str, Any] = pool_arguments(problem, out)
    for name in ("scales", "initial", "relevance", "groups", "query_groups", "S", "cap"):
        del arguments[name]
    data, D = problem.rows.data, problem.rows.data.shape[1]
    for q0, num_queries in chunks(problem.num_queries, 4 * NUMBERS, WORKSPACE_BYTES, 1):
        launch(
            select_estimates_kernel,
            (num_queries,),
            **arguments,
            work=arrays.empty(data, (num_queries, NUMBERS), "float32"),
            q0=q0,
            error=error(D),
            **sizes(D),
            **TILE.options(),
        )
