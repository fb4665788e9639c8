"""Search by bits: the rows that may be among the n best of a corpus, then their exact values.

Rows are multiplied with the queries in 16 bits by matrix units: a quarter of them for a bar, then all for their bits.
Neither keeps a value of each row and query. ``bit_search_kernels.py`` has the kernels, and says why no row is lost.
"""

from __future__ import annotations

import math
from typing import Any

import triton.language as tl

from ..._base import arrays
from ..._gpu.plans import launch
from ..problem import Problem, Rows
from .bit_search_kernels import (
    PARTS,
    SHARE,
    filter_bars_kernel,
    filter_best_kernel,
    filter_keys_kernel,
    filter_list_kernel,
    filter_product_kernel,
    filter_queries_kernel,
)
from .launch import QUERY_BLOCK, SMALL_TILE, Tile, bias_by_row, cdiv, chunks, dot_type, next_power_of_2

# Rows of a tile of the products.
ROWS = 128

# The most rows that a search returns, and how many tiles the corpus must have for each of them. The bar is one of at
# most GROUPS values of groups of rows.
MOST_WANTED = 1024
TILES = 2
GROUPS = 4096

# Keys have 31 bits for a row.
MOST_ROWS = (1 << 31) - 1

# Of the sample's rows, so many standard deviations more than are expected among the best are at or above the bar: of
# more than two million queries one has a bar that too few rows reach.
DEVIATIONS = 5

# Vectors are no longer than this times what their lengths should be: rounded to bfloat16, unit vectors are longer.
LONGER = 1.004

# Bound of the rounding error for each dimension, relative to |row| |query|: that of a product in 16 bits plus that of
# one summed in float32.
ROUNDING = 2e-7

# Words of bits that are looked at together, and rows whose values a program computes.
WORDS = 1024
EACH = 32

WORKSPACE_BYTES = 1 << 28


def filter_tile(dtype: str, num_queries: int, dims: int, hopper: bool, plain: bool = True) -> Tile:
    """Return the tile of the products; ``plain`` is without bias and groups."""
    queries = 16 if num_queries <= 16 else 64 if num_queries <= 64 or not (hopper and plain) else 128
    dims = min(64, max(16, next_power_of_2(dims)))
    # With options each row has numbers of its own: too many registers but on Hopper.
    rows = ROWS if hopper or plain else max(32, ROWS // 2)
    return Tile(rows, dims, queries, 8 if queries == 128 or not plain else 4, 3)


def best_tile(wanted: int) -> Tile:
    """Return the tile of the kernel that sorts keys, whose rows are those that it sorts."""
    rows = max(64, next_power_of_2(wanted))
    return Tile(rows, min(64, max(16, 8192 // rows)), 1, 8 if rows > 256 else 4, 2)


def rank(wanted: int) -> int:
    """Return which of the sample's values, from the largest, is the bar of so many best rows.

    How many of these the sample has is a binomial number. The bar need not be below their own values: if more rows are
    above it than are wanted, these are among them.
    """
    share: float = 1 / SHARE.value
    return min(wanted, math.ceil(wanted * share + DEVIATIONS * math.sqrt(wanted * share * (1 - share))) + 1)


def room_for(wanted: int) -> int:
    """Return how many rows a query has room for.

    Some 2 to 4 rows reach the bar for each row that is wanted, the fewer the more these are. If there is no room for
    them, for example because many are equal, the search goes through all rows once more.
    """
    return 4 * wanted + ROWS


def fits(problem: Problem) -> bool:
    """Return whether a search goes this way, by its shape alone: of many rows, of which few are wanted."""
    return (
        problem.relevance is None
        and problem.rows.norm != "computed"
        and knows_lengths(problem.rows)
        and problem.k <= MOST_WANTED
        and problem.pool < MOST_ROWS
        and cdiv(problem.pool, ROWS) >= TILES * problem.k
    )


def knows_lengths(rows: Rows) -> bool:
    """Return whether the host knows how long vectors are, without which float32 rows have no scale in 16 bits."""
    return rows.dtype != "float32" or rows.norm == "computed" or rows.max_norm is not None


def in_16_bits(dtype: str) -> dict[str, Any]:
    """Return how rows are multiplied in 16 bits."""
    return {"DOT": tl.float16 if dtype == "float32" else dot_type(dtype), "SHRUNK": dtype == "float32"}


def shrinking(rows: Rows) -> dict[str, float]:
    """Return what float32 rows are multiplied with so that the longest is about 1, unless their factors do it."""
    exponent = math.frexp(float(rows.max_norm or 1.0))[1]
    return {"shrink": 2.0**-exponent, "grow": 1.0 if rows.scales is not None else 2.0**exponent}


def columns_type(dtype: str) -> str:
    """Return what vectors are rounded to that rows are multiplied with in 16 bits."""
    return "bfloat16" if dtype == "bfloat16" else "float16"


def rounding(rows: Rows, of_sums: float, more: int = 0) -> float:
    """Return what a product is off by beside what its vector loses, as a part of the lengths.

    ``of_sums`` for each dimension, and for as many ``more``; and what float32 rows lose in float16.
    """
    dims = int(rows.data.shape[1])
    lost = 1.01 * 2.0**-11 + 2.0**-24 * dims**0.5 if rows.dtype == "float32" else 0.0
    return of_sums * (dims + more) + lost


def search(problem: Problem, hopper: bool, out_index: Any, out_score: Any) -> None:
    """Launch the search of all queries."""
    per_query = 24 * cdiv(problem.pool, ROWS) + 12 * room_for(problem.k)
    for q0, num_queries in chunks(problem.num_queries, per_query, WORKSPACE_BYTES, 128):
        part = slice(q0, q0 + num_queries)
        some = problem if num_queries == problem.num_queries else problem.take(part)
        search_some(some, hopper, out_index[part], out_score[part])


def search_some(problem: Problem, hopper: bool, out_index: Any, out_score: Any, longest: Any = None) -> tuple[Any, Any]:
    """Launch the search of queries that have room together; return their factors, and what undoes them in products.

    ``longest`` is the largest length of a vector on the device, where the host does not know it.
    """
    rows, k, dtype, Q = problem.rows, problem.k, problem.rows.dtype, problem.num_queries
    data, limits = rows.data, problem.constraints
    D, room = data.shape[1], room_for(k)
    plain = problem.bias is None and limits.query_groups is None
    tile = filter_tile(dtype, Q, D, hopper, plain)
    tiles, sampled = cdiv(problem.pool, tile.rows), cdiv(problem.pool, SHARE.value * tile.rows)
    words, parts = tiles * (tile.rows // 32), PARTS.value * sampled

    def empty(*shape: int, dtype: str = "float32") -> Any:
        return arrays.empty(data, shape, dtype)

    factors, back, error, bars = (empty(Q) for _ in range(4))
    high, least = empty(Q, D, dtype=columns_type(dtype)), empty(Q, parts)
    bits, listed, keys = empty(Q, words, dtype="int32"), empty(Q, room, dtype="int32"), empty(Q, room, dtype="int64")
    count = empty(Q, dtype="int32")
    launch(
        filter_queries_kernel,
        (Q,),
        queries=problem.queries,
        factors=factors,
        back=back,
        high=high,
        error=error,
        most=longest,
        longest=LONGER * float(rows.max_norm or 1.0),
        rounding=rounding(rows, ROUNDING),
        D=D,
        UNIT=problem.unit_queries,
        BLOCK=QUERY_BLOCK,
        **SMALL_TILE.options(),
    )
    of_items = {
        "bias": problem.bias,
        "groups": limits.groups,
        "query_groups": limits.query_groups,
        "lambda_b": problem.lambda_b,
        "row_stride": data.stride(0),
        "num_ids": problem.pool,
        "D": D,
        "BIAS_BY_ROW": bias_by_row(problem),
    }
    for bar, of_product in ((None, sampled), (bars, tiles)):
        launch(
            filter_product_kernel,
            (of_product * cdiv(Q, tile.queries),),
            rows=data,
            factors=rows.scales,
            high=high,
            back=back,
            error=error,
            least=least,
            bars=bar,
            bits=bits,
            num_queries=Q,
            tiles=of_product,
            EVEN_D=D % tile.dims == 0,
            **in_16_bits(dtype),
            **shrinking(rows),
            QUERIES=tile.queries,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **of_items,
            **tile.options(),
        )
        if bar is None:
            launch(
                filter_bars_kernel,
                (Q,),
                least=least,
                bars=bars,
                parts=parts,
                rank=rank(k),
                GROUPS=min(GROUPS, next_power_of_2(parts)),
                **SMALL_TILE.options(),
            )
    launch(
        filter_list_kernel,
        (Q,),
        bits=bits,
        listed=listed,
        count=count,
        words=words,
        room=room,
        WORDS=min(WORDS, next_power_of_2(words)),
        **SMALL_TILE.options(),
    )
    exact = {"rows": data, "factors": rows.scales, "queries": problem.queries, "query_factors": factors, "back": back}
    programs = cdiv(room, EACH)
    launch(
        filter_keys_kernel,
        (Q * programs,),
        listed=listed,
        count=count,
        keys=keys,
        room=room,
        programs=programs,
        EACH=EACH,
        DIMS=min(next_power_of_2(D), 128),
        **exact,
        **of_items,
        **SMALL_TILE.options(),
    )
    tile = best_tile(k)
    launch(
        filter_best_kernel,
        (Q,),
        count=count,
        bars=bars,
        keys=keys,
        out_index=out_index,
        out_score=out_score,
        room=room,
        n=k,
        TOP=tile.rows,
        DIMS=tile.dims,
        **exact,
        **of_items,
        **tile.options(),
    )
    return factors, back
