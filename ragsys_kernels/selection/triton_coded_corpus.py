"""Regime c by codes: picks are drafted from pools and proved by two looks through the 8-bit codes of a corpus.

The first look finds each query's pool, of which regime a drafts picks. The second bounds every row's value at every
step, given the draft before it, and finds the rows that may be worth as much as the draft's pick: the *contenders*, a
few more than the picks. Regime a picks out of the contenders' rows. If it picks the draft, no row of the corpus is
better at any step, and the draft is the answer. Else what it picked is the next draft, for which the codes are looked
through again. Queries that are not proved after some rounds are answered by reads of all rows (``triton_check.py``).

Nothing of the size of queries x rows is written: lists of contenders, and the best of each tile of rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .._gpu.plans import launch
from .._gpu.variants import variant
from . import triton_check, triton_gram
from .problem import Problem, Selection
from .triton_check import FEW_TILES, KEPT, MOST_PARTS, MOST_PICKS, Rounds, check_tile, is_plain, pool_tile
from .triton_coded_kernels import HEADER_BYTES, LINE, coded_check_kernel, coded_pool_kernel
from .triton_coded_rounds import code_queries_kernel, coded_contenders_kernel, coded_settle_kernel
from .triton_launch import (
    PICK_TILE,
    QUERY_BLOCK,
    SMALL_TILE,
    Tile,
    bias_by_row,
    cdiv,
    chunks,
    code_rows,
    num_initial,
    query_factors,
)

# A smaller corpus goes densely: the launches take longer than the reads that they spare.
LEAST_ROWS = 1 << 14

# Items of a query that are multiplied while a row's codes are read once; fewer with options, where registers are short.
MOST_ITEMS = 9
FEWER_ITEMS = 5

# Drafts that are checked by codes. At λ_d = 0.75 one is enough for nearly every query, at 0.5 some take four.
ROUNDS = 4

# Places of a list of contenders, and lists: all contenders, each 8th, each 64th and each 512th row.
ROOM = 1024
LEVELS = 4

# Contenders that a draft is made of, which leaves the Gram matrix room for the initial items.
POOL = triton_gram.GRAM_SLOTS - 16

WORKSPACE_BYTES = 1 << 29


def fits(problem: Problem) -> bool:
    """Return whether a call goes this way, by its shape alone. A cap of groups bars rows as no bound can know."""
    return (
        problem.op == "mmr"
        and problem.rows.codes is not None
        and problem.pool >= LEAST_ROWS
        and problem.k >= 2
        and num_initial(problem) + problem.k - 1 <= (MOST_ITEMS if is_plain(problem) else FEWER_ITEMS)
        and triton_check.added(problem) > 0
        and not problem.constraints.max_per_group
        and (variant("corpus") == "coded" or (variant("corpus") == "by-type" and problem.rows.dtype == "float32"))
    )


def looking_tile(items: int, held: bool) -> Tile:
    """Return the tile of the check, which holds products with the query and each item, or ``held`` the codes.

    Slices of more dimensions would bring more terms at a time into the registers.
    """
    return Tile(128 if items <= 5 else 64, LINE if held else LINE // 2, 16, 8, 2, 255)


def finding_tile() -> Tile:
    """Return the tile of the first look."""
    return Tile(256, LINE, 16, 8, 3)


def layout(code_stride: int, dims: int) -> dict[str, Any]:
    """Return where things are in a code row: where its codes end, and its header; a short row is held whole."""
    full = cdiv(dims, LINE) * LINE
    return {"full": full, "APART": code_stride > full, "HELD": full == LINE, "HEADER_BYTES": HEADER_BYTES}


def slack(dims: int) -> float:
    """Return more than products of unit vectors in float32, added in any order, and their bounds are off by."""
    return (4 * dims + 64) * 2.0**-24


def select(problem: Problem, out: Selection, factors: Any, tile: Tile, parts: int) -> None:
    """Launch everything; what finds nothing to do does nothing. Arguments as of `triton_check.select`."""
    check = check_tile(tile, problem.rows.dtype)
    per_query = LEVELS * ROOM * 12 + problem.k * MOST_PARTS * 20 + problem.pool // 16
    for q0, num_queries in chunks(problem.num_queries, per_query, WORKSPACE_BYTES, 64):
        _CodedRounds(problem, out, factors, check, pool_tile(tile, False), parts, q0, num_queries).run()


class _CodedRounds(Rounds):
    """Launches for one chunk of queries."""

    def run(self) -> None:
        """Launch the drafts and their checks."""
        self._prepare()
        draft = self.picks(self._first_pools(), self.queries.constraints.initial, self.queries.ks)
        self._settle(draft, None)
        for _ in range(ROUNDS):
            last = draft
            self._look()
            draft = self._best_of_contenders()
            self._settle(draft, last)
        self._finish(draft.indices)

    def _prepare(self) -> None:
        problem, C = self.problem, self.num_queries
        self.codes = code_rows(problem.rows)
        self.stride = self.codes.shape[1]
        self.layout = layout(self.stride, self.D)
        self.items = self.S + self.K - 1
        self.terms = self.empty((1 + self.items, C, self.layout["full"]), "int8")
        self.query_scales, self.query_errors = (self.empty((C,), "float32") for _ in range(2))
        self.item_scales, self.item_errors = (self.empty((self.items, C), "float32") for _ in range(2))
        self.bars = self.empty((self.K, C), "float32")
        self.found = torch.zeros((LEVELS, C), dtype=torch.int32, device=self.codes.device)
        self.found_rows = self.empty((LEVELS, C, ROOM), "int64")
        self.found_gaps = self.empty((LEVELS, C, ROOM), "float32")
        self.pools = self.empty((C, POOL), "int64")
        self.proves = self.empty((C,), "int32")
        if problem.relevance is None:
            units = self.empty((C, self.D), "float32")
            launch(
                code_queries_kernel,
                (C,),
                queries=problem.queries,
                factors=query_factors(problem, self.q0, C)[0],
                units=units,
                terms=self.terms,
                scales=self.query_scales,
                errors=self.query_errors,
                q0=self.q0,
                D=self.D,
                full=self.layout["full"],
                BLOCK=QUERY_BLOCK,
                **SMALL_TILE.options(),
            )
            # The drafts need not find their lengths again.
            self.queries = dataclasses.replace(self.queries, queries=units, unit_queries=False)

    def _arguments(self) -> dict[str, Any]:
        problem = self.problem
        return {
            "codes": self.codes,
            "terms": self.terms,
            "scales": self.query_scales,
            "relevance": problem.relevance,
            "bias": problem.bias,
            "groups": problem.constraints.groups,
            "query_groups": problem.constraints.query_groups,
            "lambda_b": problem.lambda_b,
            "code_stride": self.stride,
            "q0": self.q0,
            "num_queries": self.num_queries,
            "num_ids": problem.pool,
            "BIAS_BY_ROW": bias_by_row(problem),
            **self.layout,
        }

    def _first_pools(self) -> Any:
        """Return (C, FIRST) rows that seem most relevant."""
        tile = finding_tile()
        tiles = cdiv(self.problem.pool, tile.rows)
        kept = KEPT * (2 if tiles < FEW_TILES else 1)
        keys = self.empty((tiles * kept, self.num_queries), "int32")
        launch(
            coded_pool_kernel,
            (tiles * cdiv(self.num_queries, tile.queries),),
            **self._arguments(),
            keys_out=keys,
            tiles=tiles,
            KEPT=kept,
            QUERIES=tile.queries,
            ROWS=tile.rows,
            SLICE=tile.dims,
            **tile.options(),
        )
        return self.start(keys, tiles, kept, tile.rows)

    def _look(self) -> None:
        """Launch the search for contenders."""
        problem = self.problem
        tile = looking_tile(self.items, self.layout["HELD"])
        blocks = cdiv(self.num_queries, tile.queries)
        tiles = cdiv(problem.pool, tile.rows)
        span = triton_check.span(tiles, blocks)
        launch(
            coded_check_kernel,
            (cdiv(tiles, span) * blocks,),
            **self._arguments(),
            errors=self.query_errors,
            lambda_d=problem.lambda_d,
            item_scales=self.item_scales,
            item_errors=self.item_errors,
            bars=self.bars,
            order=self.order,
            count=self.count,
            found=self.found,
            found_rows=self.found_rows,
            found_gaps=self.found_gaps,
            span=span,
            slack=slack(self.D),
            SHOWN=self.S,
            ITEMS=self.items,
            ROOM=ROOM,
            LEVELS=LEVELS,
            QUERIES=tile.queries,
            ROWS=tile.rows,
            SLICE=tile.dims,
            **tile.options(),
        )

    def _best_of_contenders(self) -> Selection:
        """Return the picks out of the contenders' rows."""
        launch(
            coded_contenders_kernel,
            (self.num_queries,),
            order=self.order,
            count=self.count,
            found=self.found,
            found_rows=self.found_rows,
            found_gaps=self.found_gaps,
            pools=self.pools,
            proves=self.proves,
            num_queries=self.num_queries,
            ROOM=ROOM,
            LEVELS=LEVELS,
            POOL=POOL,
            SLOTS=triton_gram.GRAM_SLOTS,
            **SMALL_TILE.options(),
        )
        return self.picks(self.pools, self.queries.constraints.initial, self.queries.ks)

    def _finish(self, draft: Any) -> None:
        """Launch reads of all rows for what is not proved: each makes a pick certain at least."""
        nothing = self.empty((self.num_queries, self.K), "int64").fill_(-1)
        for _ in range(self.K):
            self.check(draft)
            self.settle(draft)
            self.sort_out()
            draft = nothing

    def _settle(self, draft: Selection, last: Selection | None) -> None:
        """Launch what gives proved queries their picks, and makes of the others the list of the unfinished."""
        left = self.empty((self.num_queries,), "int32")
        count = torch.zeros((1,), dtype=torch.int32, device=self.codes.device)
        problem = self.problem
        launch(
            coded_settle_kernel,
            (self.num_queries,),
            codes=self.codes,
            words=self.codes.view(torch.float32),
            terms=self.terms,
            initial=problem.constraints.initial if self.S else None,
            ks=problem.ks,
            draft=draft.indices,
            scores=draft.scores,
            relevance=draft.relevance,
            redundancy=draft.redundancy,
            lengths=draft.lengths,
            last=None if last is None else last.indices,
            proves=self.proves,
            pools=self.pools,
            candidates=self.candidates,
            made=self.made,
            order=self.order,
            count=self.count,
            order_out=left,
            count_out=count,
            item_scales=self.item_scales,
            item_errors=self.item_errors,
            bars=self.bars,
            out_index=self.out.indices,
            out_score=self.out.scores,
            out_relevance=self.out.relevance,
            out_redundancy=self.out.redundancy,
            out_length=self.out.lengths,
            code_stride=self.stride,
            q0=self.q0,
            num_queries=self.num_queries,
            num_ids=problem.pool,
            S=self.S,
            K=self.K,
            D=self.D,
            full=self.layout["full"],
            pool=self.pool,
            POOL=POOL,
            SLOTS=triton_gram.GRAM_SLOTS,
            LANES=MOST_PICKS,
            BLOCK=QUERY_BLOCK,
            **PICK_TILE.options(),
        )
        self.order, self.count = left, count
