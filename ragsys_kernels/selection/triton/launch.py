"""What the launchers of all regimes share: tiles, arguments, outputs, and the factors of the queries.

Nothing here waits for the device.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ..._base import arrays, env
from ..._gpu.plans import launch
from ..problem import Problem, Selection
from .objective import inverse

# Elements of a query that are loaded together.
QUERY_BLOCK = 1024


class Tile(NamedTuple):
    """Tile sizes of a kernel, and how it is compiled."""

    rows: int
    dims: int
    queries: int  # regime c
    num_warps: int
    num_stages: int  # loads in flight
    # Left to itself the assembler spills a few bytes to stay at a number of registers that lets one more block in.
    maxnreg: int | None = None

    def options(self) -> dict[str, Any]:
        """Return how a launch is compiled; AMD's compiler takes no bound of registers."""
        warps, bound = self.num_warps, {"maxnreg": self.maxnreg} if self.maxnreg else {}
        if torch.version.hip:
            warps, bound = self.amd_warps, {}
        return {"num_warps": warps, "num_stages": self.num_stages, "enable_fp_fusion": True, **bound}

    @property
    def amd_warps(self) -> int:
        """As many threads on AMD, where a warp has 64 lanes, so that each reads as many bytes at a time."""
        return max(1, self.num_warps // 2)


# The arguments that a call without options leaves out.
LIMITS = ("costs", "budget", "max_similarity")
OPTIONS = ("relevance", "initial", "bias", "groups", "query_groups", "ks", "cap", "barred", *LIMITS)

# For kernels that go along one row, or one list of tiles, at a time.
SMALL_TILE = Tile(1, 1, 1, 4, 2)
PICK_TILE = Tile(1, 1, 1, 4, 2, 64)  # the same, where the kernel has more to remember


# Plain Python: Triton's own are functions for kernels too, and wrapped, which takes microseconds on the host.


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least n, which is at least 1."""
    return 1 << (n - 1).bit_length()


def row_tile(dtype: str, dims: int) -> Tile:
    """Return the tile of kernels that read rows and multiply them without matrix instructions."""
    widest = 128 if dtype == "int8" else 64  # 16 bytes for each lane
    dims = min(widest, max(16, next_power_of_2(dims)))
    return Tile(32, dims, 1, 4 if dtype == "float32" else 8, 2)


def dot_type(dtype: str) -> Any:
    """Return what rows are multiplied as: int8 is exact in float16; the interpreter multiplies bfloat16 wrongly."""
    if dtype == "float32" or (env.triton_interpreter() and dtype == "bfloat16"):
        return tl.float32
    return tl.bfloat16 if dtype == "bfloat16" else tl.float16


def padded(n: int) -> int:
    """Return the length of a running vector, so that each starts on 64 bytes."""
    return (n + 15) // 16 * 16


def chunks(num_queries: int, query_bytes: int, limit: int, multiple: int) -> list[tuple[int, int]]:
    """Return first and number of the queries that run together, so that their workspace stays below the limit."""
    size = max(1, limit // query_bytes)
    if size > multiple:
        size -= size % multiple
    return [(q0, min(size, num_queries - q0)) for q0 in range(0, num_queries, size)]


def outputs(problem: Problem) -> Selection:
    """Return room for the result, every element of which a kernel writes."""
    data, shape = problem.rows.data, (problem.num_queries, problem.k)
    score, relevance, redundancy = (arrays.empty(data, shape, "float32") for _ in range(3))
    indices, lengths = arrays.empty(data, shape, "int64"), arrays.empty(data, shape[:1], "int32")
    return Selection(indices, score, relevance, redundancy, lengths)


def written(out: Selection) -> dict[str, Any]:
    """Return the arguments of what kernels write."""
    names = ("out_index", "out_score", "out_relevance", "out_redundancy", "out_length")
    return dict(zip(names, out, strict=True))


def num_initial(problem: Problem) -> int:
    """Return how many initial items a query has, padding included."""
    return 0 if problem.constraints.initial is None else int(problem.constraints.initial.shape[1])


def bias_by_row(problem: Problem) -> bool:
    """Return whether the bias is one of each row, not of each position of each pool."""
    return problem.bias is not None and problem.bias.ndim == 1


def pool_arguments(problem: Problem, out: Selection, factors: bool = True) -> dict[str, Any]:
    """Return the arguments that the kernels of pools have in common; factors: those of the queries, where needed."""
    rows = problem.rows
    unit = factors and problem.unit_queries and problem.queries is not None
    return {
        "rows": rows.data,
        "scales": rows.scales,
        "queries": problem.queries,
        "query_factors": query_factors(problem)[0] if unit else None,
        "candidates": problem.candidates,
        "initial": problem.constraints.initial,
        "relevance": problem.relevance,
        "bias": problem.bias,
        "groups": problem.constraints.groups,
        "query_groups": problem.constraints.query_groups,
        "ks": problem.ks,
        "lambda_d": problem.lambda_d,
        "lambda_b": problem.lambda_b,
        **written(out),
        "row_stride": rows.data.stride(0),
        "pool_stride": problem.pool_stride,
        "num_ids": problem.num_ids,
        "P": problem.pool,
        "S": num_initial(problem),
        "K": problem.k,
        "D": rows.data.shape[1],
        "cap": problem.constraints.max_per_group or None,
        "COMPUTED": rows.norm == "computed",
        "BIAS_BY_ROW": bias_by_row(problem),
    }


def limits(problem: Problem) -> dict[str, Any]:
    """Return the arguments of budgets and ceilings."""
    given = problem.constraints
    return {
        "costs": given.costs,
        "budget": None if given.costs is None else given.budget,
        "max_similarity": given.max_similarity,
        "COSTS_BY_ROW": given.costs is not None and given.costs.ndim == 1,
    }


@triton.jit
def query_factor(queries, q, D, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    """Return what query q is multiplied with, and what undoes that in a product.

    UNIT: 1 / |q|, so that the product is with the unit vector (0 for a zero query), and 1. Otherwise a power of two
    that brings the largest element into [1, 2), and its inverse, both exact.
    """
    d = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    for d0 in range(0, D, BLOCK):
        x = tl.load(queries + q * D + d0 + d, mask=d0 + d < D, other=0.0)
        largest = tl.maximum(largest, tl.abs(x))
    # 2^floor(log2 max|q|), within the range where its inverse is a normal number too.
    exponent = tl.max(largest, 0).to(tl.int32, bitcast=True) >> 23
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)
    scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    undo = (exponent << 23).to(tl.float32, bitcast=True)
    factor = scale
    if UNIT:
        # Scaled first, so that squares neither overflow nor vanish.
        squares = tl.zeros([BLOCK], tl.float32)
        for d0 in range(0, D, BLOCK):
            x = scale * tl.load(queries + q * D + d0 + d, mask=d0 + d < D, other=0.0)
            squares += x * x
        factor = scale * inverse(tl.sqrt_rn(tl.sum(squares, 0)))
        undo = 1.0
    return factor, undo


@triton.jit
def query_factors_kernel(
    queries,
    factors,
    back,
    parts,
    D,
    UNIT: tl.constexpr,
    PARTS: tl.constexpr,
    GROWTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """For each query the factors of `query_factor`.

    ``parts`` (Q, PARTS, D), or None: the query times its factor as a sum of 16-bit vectors, each stored GROWTH times as
    large as the one before it.
    """
    q = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    factor, undo = query_factor(queries, q, D, UNIT, BLOCK)
    tl.store(factors + q, factor)
    tl.store(back + q, undo)
    if PARTS > 0:
        for d0 in range(0, D, BLOCK):
            x = factor * tl.load(queries + q * D + d0 + d, mask=d0 + d < D, other=0.0)
            for part in tl.static_range(PARTS):
                high = x.to(parts.dtype.element_ty)
                tl.store(parts + (q * PARTS + part) * D + d0 + d, high, mask=d0 + d < D)
                x = (x - high.to(tl.float32)) * GROWTH


# How many 16-bit parts hold a float32 query to the precision of float32 products, and how much larger than itself a
# part is stored next to the one before: the rest that float16 leaves would fall below its smallest numbers.
NUM_PARTS = {"float16": 2, "bfloat16": 3}
GROWTH = {"float16": 2048.0, "bfloat16": 1.0}


def query_factors(problem: Problem, num_parts: int = 0) -> tuple[Any, Any, Any]:
    """Return what each query is multiplied with, what undoes that in a product, and the 16-bit parts or None."""
    queries, dtype, num_queries = problem.queries, problem.rows.dtype, problem.num_queries
    factors, back = (arrays.empty(queries, (num_queries,), "float32") for _ in range(2))
    parts = arrays.empty(queries, (num_queries, num_parts, queries.shape[1]), dtype) if num_parts else None
    launch(
        query_factors_kernel,
        (num_queries,),
        queries=queries,
        factors=factors,
        back=back,
        D=queries.shape[1],
        parts=parts,
        UNIT=problem.unit_queries,
        PARTS=num_parts,
        GROWTH=GROWTH[dtype] if num_parts else 1.0,
        BLOCK=QUERY_BLOCK,
        **SMALL_TILE.options(),
    )
    return factors, back, parts


def query_parts(problem: Problem) -> tuple[Any, Any]:
    """Return the 16-bit parts of all queries, times their factors, and what undoes the factors."""
    _, back, parts = query_factors(problem, NUM_PARTS[problem.rows.dtype])
    return parts, back


def parts_of_dot(dot: Any) -> int:
    """Return how many 16-bit parts hold a float32 query to the precision of float32 products."""
    return {tl.float32: 1, tl.float16: 2, tl.bfloat16: 3}[dot]


@triton.jit
def queries_here(count, q0, num_queries):
    """Return how many queries a chunk has that begins at q0: ``count`` are in all chunks, if it is given."""
    here = num_queries
    if count is not None:
        here = tl.minimum(tl.load(count) - q0, num_queries)
    return here


@triton.jit(do_not_specialize=("q0", "num_queries"))
def corpus_queries_kernel(
    queries,
    factors,
    back,
    order,
    count,
    query_parts,
    query_back,
    q0,
    num_queries,
    D,
    DOT: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take float32 queries times their factors apart into PARTS 16-bit parts (PARTS, C, D), for matrix units.

    With ``order`` those of so many numbers, ``count``.
    """
    i = tl.program_id(0).to(tl.int64)
    if count is not None:  # noqa: SIM102 - the next is of the device
        if i >= queries_here(count, q0, num_queries):
            return
    q = q0 + i
    if order is not None:
        q = tl.load(order + q).to(tl.int64)
    # Elements of unit queries are small: scaled, the lowest part is a normal number in float16 too.
    scale = 1.0 if PARTS == 1 else 4096.0
    factor = tl.load(factors + q)
    d = tl.arange(0, BLOCK)
    for d0 in range(0, D, BLOCK):
        inside = d0 + d < D
        # In this order: the factor of a zero query is so large that its product with the scale would be infinite.
        y = tl.load(queries + q * D + d0 + d, mask=inside, other=0.0) * factor * scale
        for part in tl.static_range(PARTS):
            high = y.to(DOT)
            tl.store(query_parts + (part * num_queries + i) * D + d0 + d, high, mask=inside)
            y -= high.to(tl.float32)
    tl.store(query_back + i, tl.load(back + q) * (1.0 / scale))


def queries_apart(
    problem: Problem, q0: int, num_queries: int, factors: Any, back: Any, order: Any = None, count: Any = None
) -> tuple[Any, Any]:
    """Return the parts (PARTS, C, D) of queries for products with a corpus, and what undoes their factors (C,).

    ``factors`` and ``back`` are those of `query_factors`, of all queries; ``order`` and ``count`` as in
    ``whole_corpus_kernels.py``.
    """
    queries, dot = problem.queries, dot_type(problem.rows.dtype)
    shape = (parts_of_dot(dot), num_queries, queries.shape[1])
    parts = arrays.empty(queries, shape, {tl.float16: "float16", tl.bfloat16: "bfloat16"}.get(dot, "float32"))
    parts_back = arrays.empty(queries, (num_queries,), "float32")
    launch(
        corpus_queries_kernel,
        (num_queries,),
        queries=queries,
        factors=factors,
        back=back,
        order=order,
        count=count,
        query_parts=parts,
        query_back=parts_back,
        q0=q0,
        num_queries=num_queries,
        D=queries.shape[1],
        DOT=dot,
        PARTS=shape[0],
        BLOCK=QUERY_BLOCK,
        **SMALL_TILE.options(),
    )
    return parts, parts_back
