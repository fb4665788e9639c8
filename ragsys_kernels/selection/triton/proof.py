"""Regime c of MMR by proof: a search gives a pool, the picks are drafted from it, one read of the corpus checks them.

A kernel multiplies all rows with a few vectors of each query in 16 bits and sets a bit for each row that may be worth
as much as a drafted pick. If all rows with a bit are in the pool of the draft, the draft is the answer; otherwise they
are in the next pool. If some rounds do not prove a query, for example because more rows tie than a pool has room for,
`dense.py` reads all rows at every pick. Only the device knows which queries go on. The kernels are in
``proof_kernels.py``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..._base import arrays
from ..._gpu.compilers import is_hopper
from ..._gpu.plans import launch
from ..._gpu.variants import variant
from ..problem import Problem, Selection
from . import bit_search, dense, gram
from .launch import (
    PICK_TILE,
    QUERY_BLOCK,
    SMALL_TILE,
    Tile,
    bias_by_row,
    cdiv,
    chunks,
    next_power_of_2,
    num_initial,
    outputs,
    query_parts,
    written,
)
from .proof_kernels import proof_columns_kernel, proof_pool_kernel
from .proof_product_kernels import proof_product_kernel

# Rows of a pool: as many as a Gram matrix has room for beside the query and a few initial items. A search gives the
# first pool FIRST rows, or half as many as the corpus has tiles if that is less.
SLOTS = gram.GRAM_SLOTS
POOL = SLOTS - 16
FIRST = 96

# The most initial items, and the most picks: a pool has far more rows.
MOST_SHOWN = 12
MOST_PICKS = 16
LEAST_SHARE = 4

# The most checks of a query's drafts; K + 1 if that is less, since each check but the first settles at least one pick.
# At λ_d = 0.75 nearly every query needs one check, at 0.5 some need five.
ROUNDS = 6

# If more than one of so many rows are contenders in the first check, as at a λ_d of 0.3, the draft is so far off that
# reading all rows at every pick takes less time than the checks to come.
HOPELESS = 16

# The most rows that each step adds to the next pool if there are too many contenders; tiles compared together.
MOST_OF_STEP = 8
TILES_BLOCK = 1024

# Columns that a program multiplies while it reads a tile of rows: without options all, if these are at most MOST_TERMS.
# Else TERMS at a time (with options, without), or TERMS_WITH_PEAKS if it also finds the best rows of tiles. On
# Hopper it finds these of as many columns as without, in tiles of half as many rows; elsewhere registers are too few.
MOST_TERMS = 5
TERMS = (4, 3)
TERMS_WITH_PEAKS = (3, 2)

# Bound of the rounding error for each dimension, relative to |e| (|λ q| + |(1-λ) c|): that of a product by matrix units
# plus that of the product by which the picks are made.
ROUNDING = 4e-7

WORKSPACE_BYTES = 1 << 28


def fits(problem: Problem) -> bool:
    """Return whether a call goes this way, by its shape alone."""
    return (
        problem.op == "mmr"
        and problem.relevance is None
        and bit_search.knows_lengths(problem.rows)
        and problem.constraints.costs is None
        and problem.constraints.max_similarity is None
        and 2 <= problem.k <= MOST_PICKS
        and num_initial(problem) <= MOST_SHOWN
        and problem.pool < bit_search.MOST_ROWS
        and first_rows(problem) >= LEAST_SHARE * problem.k
        and variant("corpus") == "bits"
    )


def first_rows(problem: Problem) -> int:
    """Return how many rows the first pool has."""
    return min(FIRST, cdiv(problem.pool, bit_search.ROWS) // bit_search.TILES)


def product_tile(
    dtype: str, num_queries: int, dims: int, terms: int, plain: bool, hopper: bool, peaks: bool = False
) -> Tile:
    """Return the tile of the products, which holds one of them for each of several columns."""
    # Operands that go through registers leave less room: 64 queries spill on sm_80, 32 with options on gfx942.
    queries = 16 if num_queries <= 16 or not (hopper or plain) else 64 if hopper else 32
    narrow = dtype == "float32" or not hopper
    dims = min(32 if narrow else 64, max(16, next_power_of_2(dims)))
    rows = bit_search.ROWS if plain and hopper and not peaks else max(32, bit_search.ROWS // 2)
    return Tile(rows, dims, queries, 8, 3 if hopper and plain and terms > 3 else 2, 255)


def terms_at_a_time(terms: int, plain: bool, peaks: bool, hopper: bool) -> int:
    """Return how many columns are multiplied at a time, so that the last time has as many as the others."""
    fewer = peaks and not (hopper and plain)
    if plain and not fewer and terms <= MOST_TERMS:
        return terms
    return cdiv(terms, cdiv(terms, (TERMS_WITH_PEAKS if fewer else TERMS)[plain]))


def select(problem: Problem, out: Selection, factors: Any, most: Any) -> None:
    """Launch all rounds.

    ``factors`` make unit vectors of rows whose lengths had to be computed; ``most`` is the largest length of a vector,
    on the device, where the host does not know it.
    """
    rows = problem.rows
    if rows.norm == "computed":
        rows = dataclasses.replace(rows, norm="scaled", scales=factors, max_norm=1.0)
        problem = dataclasses.replace(problem, rows=rows)
    per_query = (
        problem.pool // 8
        + (24 + 8 * MOST_PICKS) * cdiv(problem.pool, bit_search.ROWS)
        + 2 * MOST_PICKS * rows.data.shape[1]
    )
    parts = chunks(problem.num_queries, per_query, WORKSPACE_BYTES, 64)
    for q0, num_queries in parts:
        part = slice(q0, q0 + num_queries)
        some = problem if len(parts) == 1 else problem.take(part)
        _Rounds(some, Selection(*(field[part] for field in out)), most).run()


# A list of queries on the device: their numbers, and how many there are. Without both: all queries.
_List = tuple[Any, Any]
_ALL: _List = (None, None)


class _Rounds:
    """Launches for some queries."""

    def __init__(self, problem: Problem, out: Selection, most: Any) -> None:
        self.problem, self.out, self.most, self.hopper = problem, out, most, is_hopper()
        self.S, self.K, self.Q = num_initial(problem), problem.k, problem.num_queries
        self.data = problem.rows.data
        self.apart: tuple[Any, Any] | None = None
        self.D = self.data.shape[1]
        limits = problem.constraints
        self.cap = limits.max_per_group or None
        self.plain = problem.bias is None and limits.query_groups is None and self.cap is None
        columns = self.S + self.K - 1
        # Without peaks, and with them.
        self.at_a_time = [terms_at_a_time(columns, self.plain, peaks, self.hopper) for peaks in (False, True)]
        self.terms = max(cdiv(columns, each) * each for each in self.at_a_time)
        self.tiles_of = [
            product_tile(problem.rows.dtype, self.Q, self.D, each, self.plain, self.hopper, peaks)
            for peaks, each in zip((False, True), self.at_a_time, strict=True)
        ]
        dims = self.tiles_of[0].dims
        self.stride = cdiv(self.D, dims) * dims  # of columns, which end in zeros
        # What the kernels that read rows take, and those that read all of them.
        self.of_rows = {
            "rows": self.data,
            "factors": problem.rows.scales,
            "lambda_d": problem.lambda_d,
            "row_stride": self.data.stride(0),
            "num_queries": self.Q,
            "num_ids": problem.pool,
            "D": self.D,
        }
        self.of_corpus = {
            "bias": problem.bias,
            "groups": limits.groups,
            "query_groups": limits.query_groups,
            "lambda_b": problem.lambda_b,
            "BIAS_BY_ROW": bias_by_row(problem),
        }

    def empty(self, *shape: int, dtype: str = "float32") -> Any:
        return arrays.empty(self.data, shape, dtype)

    def run(self) -> None:
        """Launch the drafts and their checks, then the dense kernels for the queries that are left."""
        Q, T = self.Q, self.terms
        found = first_rows(self.problem)
        self.best, scores = self.empty(Q, found, dtype="int64"), self.empty(Q, found)
        searched = dataclasses.replace(self.problem, k=found)
        self.factors, self.back = bit_search.search_some(searched, self.hopper, self.best, scores, self.most)
        self.high = self.empty(T, Q, self.stride, dtype=bit_search.columns_type(self.problem.rows.dtype))
        self.of_columns = {name: self.empty(T, Q) for name in ("back", "error", "bars")}
        self.barred = {"barred": None, "barred_group": None}
        if self.cap is not None:
            self.barred = {"barred": self.empty(T, Q, dtype="int32"), "barred_group": self.empty(T, Q, dtype="int64")}
        (_, words), (tiles, more) = map(self._sizes, (False, True))
        self.peaks = self.empty(T, tiles, Q, dtype="int32")
        self.bits, self.listed = self.empty(Q, max(words, more), dtype="int32"), self.empty(Q, 2 * SLOTS, dtype="int32")
        self.pools, self.known = self.empty(Q, POOL, dtype="int64"), self.empty(Q, dtype="int32")
        rounds = min(ROUNDS, self.K + 1)
        counts = torch.zeros((2 * rounds + 1, 1), dtype=torch.int32, device=self.data.device).unbind()
        checked, drafted, left = (self.empty(Q, dtype="int32") for _ in range(3))
        self.left = left, counts[-1]
        self._pool(None, _ALL, _ALL, False)
        last, queries = None, _ALL
        for turn in range(rounds + 1):
            draft = self._draft(queries)
            if turn == rounds:
                self._columns(draft, last, queries, None)
                break
            unproven, unanswered = (checked, counts[2 * turn]), (drafted, counts[2 * turn + 1])
            self._columns(draft, last, queries, unproven)
            self._products(unproven, turn > 0)
            self._pool(draft, unproven, unanswered, turn > 0)
            last, queries = draft, unanswered
        dense.select(self.problem, self.out, dense.Left(*self.left, self.factors, self.back))

    def _sizes(self, peaks: bool) -> tuple[int, int]:
        """Return how many tiles a product has, and how many words of bits it makes for each query."""
        rows = self.tiles_of[peaks].rows
        tiles = cdiv(self.problem.pool, rows)
        return tiles, tiles * (rows // 32)

    def _pool(self, draft: Selection | None, before: _List, after: _List, peaks: bool) -> None:
        """Launch the kernel that makes the first pools, or from the bits the next ones."""
        tiles, words = self._sizes(peaks)
        launch(
            proof_pool_kernel,
            (self.Q,),
            bits=None if draft is None else self.bits,
            peaks=self.peaks if peaks else None,
            bars=self.of_columns["bars"],
            order_in=before[0],
            count_in=before[1],
            order=after[0],
            count=after[1],
            listed=self.listed,
            best=self.best,
            pools=self.pools,
            known=self.known,
            left=self.left[0],
            num_left=self.left[1],
            **_drafted(draft),
            **written(self.out),
            num_queries=self.Q,
            words=words,
            tiles=tiles,
            terms=self.terms,
            found=self.best.shape[1],
            hopeless=self.problem.pool // HOPELESS,
            each=max(1, min(MOST_OF_STEP, POOL // 2 // self.K)),
            K=self.K,
            WORDS=min(bit_search.WORDS, next_power_of_2(words)),
            ROWS=self.tiles_of[peaks].rows,
            POOL=POOL,
            SLOTS=SLOTS,
            LANES=MOST_PICKS,
            BLOCK=TILES_BLOCK,
            **SMALL_TILE.options(),
        )

    def _draft(self, queries: _List) -> Selection:
        """Return the picks out of the pools, by regime a."""
        pools = dataclasses.replace(self.problem, candidates=self.pools, pool=POOL)
        if pools.bias is not None and pools.bias.ndim == 2:
            pools.bias = torch.gather(pools.bias, 1, self.pools.clamp(min=0))
        picks = outputs(pools)
        if self.apart is None and gram.in_tile(pools):
            self.apart = query_parts(pools)
        gram.select(pools, picks, self.apart, queries)
        return picks

    def _columns(self, draft: Selection, last: Selection | None, before: _List, after: _List | None) -> None:
        """Launch the kernel that answers proven queries and, before another check, makes the others' columns."""
        problem, rows = self.problem, self.problem.rows
        launch(
            proof_columns_kernel,
            (self.Q,),
            **self.of_rows,
            queries=problem.queries,
            query_factors=self.factors,
            query_back=self.back,
            groups=problem.constraints.groups if self.cap else None,
            lambda_b=problem.lambda_b if problem.bias is not None else None,
            initial=problem.constraints.initial,
            ks=problem.ks,
            **_drafted(draft),
            last=None if last is None else last.indices,
            known=self.known,
            order_in=before[0],
            count_in=before[1],
            order=after and after[0],
            count=after and after[1],
            left=self.left[0],
            num_left=self.left[1],
            high=self.high if after else None,
            **self.of_columns,
            **self.barred,
            **written(self.out),
            most=self.most,
            longest=bit_search.LONGER * float(rows.max_norm or 1.0),
            rounding=bit_search.rounding(rows, ROUNDING, 16),
            terms=self.terms,
            S=self.S,
            K=self.K,
            stride=self.stride,
            cap=self.cap,
            LANES=MOST_PICKS,
            BLOCK=QUERY_BLOCK,
            **PICK_TILE.options(),
        )

    def _products(self, queries: _List, peaks: bool) -> None:
        """Launch the products of all rows with the columns."""
        rows, tile, each = self.problem.rows, self.tiles_of[peaks], self.at_a_time[peaks]
        tiles, _ = self._sizes(peaks)
        work = tiles * cdiv(self.Q, tile.queries)
        launch(
            proof_product_kernel,
            (min(work, dense.PROGRAMS) if peaks else work,),
            **self.of_rows,
            **self.of_corpus,
            high=self.high,
            **self.of_columns,
            **self.barred,
            order=queries[0],
            count=queries[1],
            bits=self.bits,
            peaks=self.peaks if peaks else None,
            tiles=tiles,
            terms=self.terms,
            stride=self.stride,
            EVEN_D=self.D % tile.dims == 0,
            **bit_search.in_16_bits(rows.dtype),
            **bit_search.shrinking(rows),
            TERMS=each,
            ONCE=each >= self.S + self.K - 1,
            QUERIES=tile.queries,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **tile.options(),
        )


def _drafted(draft: Selection | None) -> dict[str, Any]:
    names = ("draft", "scores", "relevance", "redundancy", "lengths")
    return dict(zip(names, (None,) * 5 if draft is None else draft, strict=True))
