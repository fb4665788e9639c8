"""Regime c by guess and check: picks are drafted from small pools, one read of the corpus proves as many as are right.

What is read once serves every step, where the dense form reads all rows at each. Nothing is taken on trust: a pick is
the best of all rows, by one function, given the picks before it. The kernels are in
``triton_draft_kernels.py`` and ``triton_check_kernels.py``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .. import _arrays
from .._gpu.plans import launch
from .._gpu.variants import variant
from . import triton_gram
from .problem import Problem, Selection
from .triton_check_kernels import corpus_check_kernel, corpus_settle_kernel
from .triton_draft_kernels import (
    corpus_order_kernel,
    corpus_pool_kernel,
    corpus_start_kernel,
)
from .triton_launch import (
    PICK_TILE,
    SMALL_TILE,
    Tile,
    bias_by_row,
    cdiv,
    chunks,
    dot_type,
    next_power_of_2,
    num_initial,
    outputs,
    queries_apart,
    query_factors,
)

# A smaller corpus goes densely, as does one of which more picks are wanted.
WHOLE_CORPUS = 2048
MOST_PICKS = 16

# What makes a call more than the plain rule.
OPTIONS = ("relevance", "bias", "groups", "query_groups", "initial")

# Rows in the first pool of a query, and the most that each step adds to the next one.
FIRST = 64
MOST_ADDED = 8

# Items of a query that are multiplied with the corpus while it is read once; fewer where registers are short: with
# options, and where a query has three parts; fewest where there are no matrix instructions, by the same rule.
MOST_TERMS = 5
FEWER_TERMS = 3
FEWEST_TERMS = (2, 1)

# Rows that share one list of best keys, of which so many are kept; a corpus of few tiles keeps twice as many.
POOL_ROWS = 128
KEPT = 2
FEW_TILES = 128

# Programs that a launch should have before one of them takes more than one tile, and the most tiles that it takes,
# unless more parts of the corpus than this would keep their bests.
MANY_PROGRAMS = 1024
MOST_TILES = 8
MOST_PARTS = 2048

WORKSPACE_BYTES = 1 << 28
PART_BLOCK = 256
ORDER_BLOCK = 1024


def fits(problem: Problem) -> bool:
    """Return whether a call goes this way, by its shape alone.

    float32 rows have no matrix instructions: products take longer there than reading does, and a wrong guess repeats
    them. int8 rows are short already.
    """
    return (
        problem.op == "mmr"
        and problem.rows.dtype in ("float16", "bfloat16")
        and problem.pool >= WHOLE_CORPUS
        and 2 <= problem.k <= MOST_PICKS
        and added(problem) > 0
        and variant("corpus") == "checked"
    )


def is_plain(problem: Problem) -> bool:
    """Return whether a call has no option that costs the check registers."""
    limits = problem.constraints
    given = (problem.relevance, problem.bias, limits.groups, limits.query_groups, limits.initial)
    return all(array is None for array in given)


def added(problem: Problem) -> int:
    """Return how many rows each step adds to a pool: as many as a Gram matrix has room for."""
    room = triton_gram.GRAM_SLOTS - FIRST - num_initial(problem) - problem.k
    return min(MOST_ADDED, room // problem.k)


def looked_at(dims: int) -> int:
    """Return how many dimensions the first pools are guessed from.

    With half of 384 dimensions of MiniLM 95 of 100 drafts stay right at λ_d = 0.75, K = 6; GloVe's 50 are all needed.
    """
    return dims // 128 * 64 if dims >= 256 else dims


def most_terms(dtype: str, plain: bool) -> int:
    """Return how many items fit the registers of the check; ``plain`` is MMR without options."""
    if dtype == "float32":
        return FEWEST_TERMS[0 if plain else 1]
    return MOST_TERMS if plain and dtype != "bfloat16" else FEWER_TERMS


def terms(num_items: int, most: int) -> int:
    """Return how many items are multiplied at a time, so that the last time has as many as the others."""
    return -(-num_items // -(-num_items // most))


def check_tile(tile: Tile, dtype: str) -> Tile:
    """Return the tile of the check, which holds a tile of products for each item.

    16 queries: 32 leave some compilers short of registers. Programs that share a tile of the corpus are neighbours.
    """
    if dtype == "float32":
        return Tile(32, 16, 16, 8, 2, 255)
    return Tile(64, min(tile.dims, 32), 16, 8, 2, 255)


def pool_tile(tile: Tile, plain: bool) -> Tile:
    """Return the tile of the kernel that finds the first pools; ``plain`` is MMR without options."""
    return tile._replace(rows=POOL_ROWS, queries=tile.queries if plain else 16)


def span(tiles: int, blocks: int) -> int:
    """Return how many tiles a program takes: its bests are stored once for all of them."""
    return max(1, min(MOST_TILES, tiles * blocks // MANY_PROGRAMS))


def select(problem: Problem, out: Selection, factors: Any, tile: Tile, parts: int) -> None:
    """Launch all rounds; those of a query that is finished do nothing. ``parts``: 16-bit parts of a query."""
    check, pool = check_tile(tile, problem.rows.dtype), pool_tile(tile, is_plain(problem))
    per_query = min(problem.pool // check.rows + 1, MOST_PARTS) * problem.k * 24
    for q0, num_queries in chunks(problem.num_queries, per_query, WORKSPACE_BYTES, tile.queries):
        rounds = Rounds(problem, out, factors, check, pool, parts, q0, num_queries)
        rounds.finish(rounds.first_draft())


class Rounds:
    """Launches for one chunk of queries."""

    def __init__(
        self,
        problem: Problem,
        out: Selection,
        factors: Any,
        tile: Tile,
        first_tile: Tile,
        parts: int,
        q0: int,
        num_queries: int,
    ) -> None:
        self.problem, self.out, self.factors = problem, out, factors
        self.tile, self.first_tile = tile, first_tile
        self.query_parts, self.q0, self.num_queries = parts, q0, num_queries
        self.S, self.K, self.D = num_initial(problem), problem.k, problem.rows.data.shape[1]
        self.blocks = cdiv(num_queries, tile.queries)
        tiles = cdiv(problem.pool, tile.rows)
        self.span = max(span(tiles, self.blocks), cdiv(tiles, MOST_PARTS))
        self.parts = cdiv(tiles, self.span)
        self.pool = FIRST + added(problem) * problem.k
        self.parts_of_queries = self.query_back = None
        if problem.relevance is None:
            factors_and_back = query_factors(problem, q0, num_queries)
            self.parts_of_queries, self.query_back = queries_apart(problem, q0, *factors_and_back)
        self.queries = problem.take(slice(q0, q0 + num_queries))
        self.known = self.empty((num_queries, self.S + self.K), "int64")
        self.candidates = self.empty((num_queries, self.pool), "int64")
        self.made, self.order, self.count = (self.empty((n,), "int32") for n in (num_queries, num_queries, 1))
        shape = (self.K, self.parts, num_queries)
        self.bests = {
            f"part_{name}": self.empty(shape, "int64" if name == "row" else "float32")
            for name in ("w", "row", "v", "m")
        }

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return _arrays.empty(self.problem.rows.data, shape, dtype)

    def relevance_arguments(self) -> dict[str, Any]:
        problem = self.problem
        return {
            "rows": problem.rows.data,
            "factors": self.factors,
            "query_parts": self.parts_of_queries,
            "query_back": self.query_back,
            "relevance": problem.relevance,
            "bias": problem.bias,
            "groups": problem.constraints.groups,
            "query_groups": problem.constraints.query_groups,
            "lambda_b": problem.lambda_b,
            "row_stride": problem.rows.data.stride(0),
            "q0": self.q0,
            "num_queries": self.num_queries,
            "num_ids": problem.pool,
            "D": self.D,
            "BIAS_BY_ROW": bias_by_row(problem),
            "DOT": dot_type(problem.rows.dtype),
        }

    def first_draft(self) -> Any:
        """Return (C, K) picks from the rows that seem most relevant."""
        tile = self.first_tile
        tiles = cdiv(self.problem.pool, tile.rows)
        kept = KEPT * (2 if tiles < FEW_TILES else 1)
        looked = looked_at(self.D)
        keys = self.empty((tiles * kept, self.num_queries), "int32")
        launch(
            corpus_pool_kernel,
            (tiles * cdiv(self.num_queries, tile.queries),),
            **self.relevance_arguments(),
            keys_out=keys,
            tiles=tiles,
            looked=looked,
            share=self.D / looked,
            KEPT=kept,
            EVEN_D=looked % tile.dims == 0,
            QUERIES=tile.queries,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **tile.options(),
        )
        return self._draft(self.start(keys, tiles, kept, tile.rows), self.queries.constraints.initial)

    def start(self, keys: Any, tiles: int, kept: int, rows: int) -> Any:
        """Return the first pools (C, FIRST), of the best of ``kept`` keys of each tile; no query is finished."""
        best, places = keys.t().contiguous().topk(FIRST)
        pools = self.empty((self.num_queries, FIRST), "int64")
        launch(
            corpus_start_kernel,
            (self.num_queries,),
            keys=best,
            places=places,
            initial=self.problem.constraints.initial if self.S else None,
            pools=pools,
            candidates=self.candidates,
            known=self.known,
            made=self.made,
            order=self.order,
            count=self.count,
            q0=self.q0,
            num_queries=self.num_queries,
            num_ids=self.problem.pool,
            tiles=tiles,
            S=self.S,
            K=self.K,
            pool=self.pool,
            KEPT=kept,
            ROWS=rows,
            FIRST=FIRST,
            POOL=next_power_of_2(self.pool),
            **SMALL_TILE.options(),
        )
        return pools

    def next_draft(self) -> Any:
        """Return (C, K) picks after those that are certain, for the queries with picks left."""
        self.sort_out()
        return self._draft(self.candidates, self.known)

    def sort_out(self) -> None:
        """Launch what finds the queries with picks left."""
        launch(
            corpus_order_kernel,
            (1,),
            made=self.made,
            order=self.order,
            count=self.count,
            num_queries=self.num_queries,
            K=self.K,
            BLOCK=ORDER_BLOCK,
            **SMALL_TILE.options(),
        )

    def finish(self, draft: Any) -> None:
        """Launch the rounds that answer every query that is not finished, from a first draft."""
        for turn in range(self.K):
            if turn:
                draft = self.next_draft()
            self.check(draft)
            self.settle(draft)

    def _draft(self, pools: Any, initial: Any) -> Any:
        return self.picks(pools, initial, None).indices

    def picks(self, pools: Any, initial: Any, ks: Any) -> Selection:
        """Return the picks from pools, by regime a."""
        limits = dataclasses.replace(self.queries.constraints, initial=initial)
        drafts = dataclasses.replace(self.queries, candidates=pools, pool=pools.shape[1], constraints=limits, ks=ks)
        if drafts.relevance is not None:
            drafts.relevance = torch.gather(drafts.relevance, 1, pools.clamp(min=0))
        if drafts.bias is not None and drafts.bias.ndim == 2:
            drafts.bias = torch.gather(drafts.bias, 1, pools.clamp(min=0))
        picks = outputs(drafts)
        triton_gram.select(drafts, picks)
        return picks

    def check(self, draft: Any) -> None:
        """Launch the search for the best row of every step, given the draft."""
        problem, tile = self.problem, self.tile
        num_terms = terms(self.S + self.K - 1, most_terms(problem.rows.dtype, is_plain(problem)))
        launch(
            corpus_check_kernel,
            (self.parts * self.blocks,),
            **self.relevance_arguments(),
            **self.bests,
            items=problem.rows.data,
            lambda_d=problem.lambda_d,
            known=self.known,
            made=self.made,
            draft=draft,
            order=self.order,
            count=self.count,
            parts=self.parts,
            span=self.span,
            S=self.S,
            K=self.K,
            cap=problem.constraints.max_per_group or None,
            EVEN_D=self.D % tile.dims == 0,
            PARTS=self.query_parts,
            SHOWN=self.S > 0,
            TERMS=num_terms,
            STEPS=MOST_PICKS,
            QUERIES=tile.queries,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **tile.options(),
        )

    def settle(self, draft: Any) -> None:
        """Launch what takes the picks that are certain now."""
        launch(
            corpus_settle_kernel,
            (self.num_queries,),
            **self.bests,
            ks=self.problem.ks,
            lambda_d=self.problem.lambda_d,
            known=self.known,
            made=self.made,
            draft=draft,
            order=self.order,
            count=self.count,
            candidates=self.candidates,
            out_index=self.out.indices,
            out_score=self.out.scores,
            out_relevance=self.out.relevance,
            out_redundancy=self.out.redundancy,
            out_length=self.out.lengths,
            q0=self.q0,
            num_queries=self.num_queries,
            num_ids=self.problem.pool,
            parts=self.parts,
            part_rows=self.span * self.tile.rows,
            S=self.S,
            K=self.K,
            pool=self.pool,
            first=FIRST,
            ADDED=added(self.problem),
            POOL=next_power_of_2(self.pool),
            BLOCK=PART_BLOCK,
            **PICK_TILE.options(),
        )
