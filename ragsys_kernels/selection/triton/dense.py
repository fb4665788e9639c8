"""Regime c without a proof: the kernels in ``whole_corpus_kernels.py`` read all rows at every pick.

It also answers the queries that a proof has left (`Left`). Nothing waits for the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..._base import arrays
from ..._gpu.compilers import float32_precision, is_hopper
from ..._gpu.plans import launch
from ..problem import Problem, Rows, Selection
from .launch import (
    PICK_TILE,
    Tile,
    bias_by_row,
    cdiv,
    chunks,
    dot_type,
    next_power_of_2,
    num_initial,
    padded,
    parts_of_dot,
    queries_apart,
    query_factors,
    row_tile,
    written,
)
from .whole_corpus_kernels import (
    corpus_pick_kernel,
    corpus_relevance_kernel,
    corpus_step_kernel,
    row_lengths_kernel,
)

# The most bytes for the running vectors of the queries that run together.
WORKSPACE_BYTES = 1 << 30

# Tiles whose best values are compared together.
PICK_BLOCK = 256

# Programs that share work whose amount the host does not know: four for each multiprocessor of an H200. If there is no
# work they exit at once. So would programs of one tile each, but there would be thousands of them.
PROGRAMS = 528


class Left(NamedTuple):
    """The queries that a proof has left; only the device knows how many."""

    order: Any  # (Q,) int32, begins with their numbers
    count: Any  # (1,) int32
    factors: Any  # (Q,) of all queries, from `query_factors`
    back: Any


def corpus_tile(
    dtype: str, num_queries: int, dims: int, op: str = "mmr", hopper: bool = True, left: bool = False
) -> Tile:
    """Return the tile of the kernels that multiply; ``left``: for the queries that a proof has left."""
    queries = 16 if num_queries <= 16 else 64
    dims = max(16, next_power_of_2(dims))
    # A loop over tiles takes too many registers for four warps, as do the parts of float32 with VRSD's quotients.
    more = queries == 64 and (left or (dtype == "float32" and op == "vrsd"))
    if dtype == "float32" and hopper:
        return Tile(64, min(32, dims), queries, 8 if more else 4, 3, 255)
    if dtype == "float32":
        # Products without matrix units need the registers that more stages would take.
        return Tile(64, min(32, dims), queries, 8, 2, 255 if left and queries == 16 else None)
    few = queries == 16 or (hopper and dtype != "int8" and not more)
    return Tile(64, min(64, dims), queries, 4 if few else 8, 3, 255)


def select(problem: Problem, out: Selection, left: Left | None = None) -> None:
    """Launch the relevance, then two kernels for each initial item and each pick, which read the corpus."""
    corpus = Corpus(problem, left)
    for chunk in corpus.chunks():
        corpus.relevance(chunk)
        shown = num_initial(problem)
        for turn in range(shown + problem.k):
            if turn:
                corpus.update(chunk, first=turn == 1)
            initial = turn < shown
            corpus.take(chunk, out, turn if initial else turn - shown, initial)


def row_lengths(rows: Rows, wanted: bool) -> tuple[Any, Any]:
    """Return the factors that make rows the vectors of the formulas, and the vectors' lengths if ``wanted``."""
    computed, (N, D) = rows.norm == "computed", rows.data.shape
    factors = arrays.empty(rows.data, (N,), "float32") if computed else rows.scales
    lengths = arrays.empty(rows.data, (N,), "float32") if wanted else None
    if computed or wanted:
        tile = row_tile(rows.dtype, D)
        launch(
            row_lengths_kernel,
            (cdiv(N, tile.rows),),
            rows=rows.data,
            scales=rows.scales,
            factors=factors,
            lengths=lengths,
            row_stride=rows.data.stride(0),
            N=N,
            D=D,
            COMPUTED=computed,
            VRSD=wanted,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **tile.options(),
        )
    return factors, lengths


@dataclasses.dataclass
class Chunk:
    """Queries [q0, q0 + num_queries) of a call, and their workspaces; a search has only those of the relevance."""

    q0: int
    num_queries: int
    tile: Tile
    tiles: int  # that cover the rows
    v: Any
    parts: Any = None  # 16-bit parts of the queries, for products
    parts_back: Any = None
    tile_keys: Any = None  # for a search
    part_best: Any = None
    part_row: Any = None
    running: dict[str, Any] = dataclasses.field(default_factory=dict)  # workspaces of the kernels after the relevance

    @property
    def work(self) -> int:
        """The number of tiles of rows and queries."""
        return self.tiles * cdiv(self.num_queries, self.tile.queries)


class Corpus:
    """Launches of regime c."""

    def __init__(self, problem: Problem, left: Left | None = None) -> None:
        self.problem, self.rows = problem, problem.rows
        self.stride = padded(problem.pool)
        self.vrsd = problem.op == "vrsd"
        self.hopper = is_hopper()
        self.factors, self.lengths = row_lengths(problem.rows, self.vrsd)
        if left is None and problem.queries is not None:
            left = Left(None, None, *query_factors(problem)[:2])
        self.left = left or Left(None, None, None, None)

    def chunks(self, searched: bool = False) -> Iterator[Chunk]:
        """Yield the queries that run together, one chunk after the other in the same memory.

        v takes 4 bytes per row and query, and so does the state, which a search (``searched``) does not have.
        """
        problem, room = self.problem, None
        for q0, num_queries in chunks(problem.num_queries, (4 if searched else 8) * self.stride, WORKSPACE_BYTES, 64):
            room = room or self._room(num_queries, searched)
            chunk = dataclasses.replace(room, q0=q0, num_queries=num_queries, tile=self._tile(num_queries))
            if problem.relevance is None:
                of_queries = self.left.factors, self.left.back, self.left.order, self.left.count
                chunk.parts, chunk.parts_back = queries_apart(problem, q0, num_queries, *of_queries)
            if searched:
                chunk.tile_keys = room.tile_keys[:num_queries]
            yield chunk

    def _tile(self, num_queries: int) -> Tile:
        dims, left = self.rows.data.shape[1], self.left.count is not None
        return corpus_tile(self.rows.dtype, num_queries, dims, self.problem.op, self.hopper, left)

    def _room(self, num_queries: int, searched: bool) -> Chunk:
        """Return the first chunk with its workspaces."""
        problem, data, tile = self.problem, self.rows.data, self._tile(num_queries)
        tiles = cdiv(problem.pool, tile.rows)

        def room(*shape: int, dtype: str = "float32") -> Any:
            return arrays.empty(data, shape, dtype)

        made = Chunk(0, num_queries, tile, tiles, room(num_queries, self.stride))
        if searched:
            made.tile_keys = room(num_queries, tiles, dtype="int64")
            return made
        made.part_best, made.part_row = room(tiles, num_queries), room(tiles, num_queries, dtype="int64")
        made.running = {
            "state": room(num_queries, self.stride),
            "taken_rows": room(num_queries, dtype="int64"),
            "barred": room(num_queries, dtype="int32") if problem.constraints.max_per_group else None,
            "num_taken": room(num_queries, dtype="int32"),
            "sums": room(num_queries, data.shape[1]) if self.vrsd else None,
            "sum_scalars": room(3, num_queries) if self.vrsd else None,
        }
        return made

    def _grid(self, chunk: Chunk) -> tuple[int]:
        return (chunk.work if self.left.count is None else min(chunk.work, PROGRAMS),)

    def _arguments(self, chunk: Chunk) -> dict[str, Any]:
        """Return the arguments that all kernels of a chunk have."""
        data = self.rows.data
        return {
            "rows": data,
            "factors": self.factors,
            "lengths": self.lengths,
            "groups": self.problem.constraints.groups,
            "order": self.left.order,
            "count": self.left.count,
            "part_best": chunk.part_best,
            "part_row": chunk.part_row,
            "row_stride": data.stride(0),
            "q0": chunk.q0,
            "num_queries": chunk.num_queries,
            "num_ids": self.problem.pool,
            "D": data.shape[1],
            "stride": self.stride,
            "VRSD": self.vrsd,
        }

    def _selecting(self, chunk: Chunk) -> dict[str, Any]:
        """Return the arguments that the kernels after the relevance have."""
        return self._arguments(chunk) | chunk.running | {"lambda_d": self.problem.lambda_d, "v_in": chunk.v}

    def relevance(self, chunk: Chunk) -> None:
        """Launch the relevance with bias, with the best value of each tile, or for a search its key."""
        problem, tile, dot = self.problem, chunk.tile, dot_type(self.rows.dtype)
        launch(
            corpus_relevance_kernel,
            self._grid(chunk),
            **self._arguments(chunk),
            query_parts=chunk.parts,
            query_back=chunk.parts_back,
            relevance=problem.relevance,
            bias=problem.bias,
            query_groups=problem.constraints.query_groups,
            lambda_b=problem.lambda_b,
            v_out=chunk.v,
            tile_keys=chunk.tile_keys,
            tiles=chunk.tiles,
            BIAS_BY_ROW=bias_by_row(problem),
            EVEN_D=self.rows.data.shape[1] % tile.dims == 0,
            DOT=dot,
            PRECISION=float32_precision(self.hopper),
            PARTS=parts_of_dot(dot),
            QUERIES=tile.queries,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **tile.options(),
        )

    def update(self, chunk: Chunk, first: bool) -> None:
        """Update the running vectors by the rows taken last; ``first``: there are no running vectors yet."""
        tile = chunk.tile
        launch(
            corpus_step_kernel,
            self._grid(chunk),
            **self._selecting(chunk),
            FIRST=first,
            EVEN_D=self.rows.data.shape[1] % tile.dims == 0,
            DOT=dot_type(self.rows.dtype),
            PRECISION=float32_precision(self.hopper),
            QUERIES=tile.queries,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **tile.options(),
        )

    def take(self, chunk: Chunk, out: Selection, step: int, initial: bool) -> None:
        """Launch a pick, or the taking of an initial item."""
        problem = self.problem
        launch(
            corpus_pick_kernel,
            (chunk.num_queries,),
            **self._selecting(chunk),
            queries=problem.queries,
            query_factors=self.left.factors,
            query_back=self.left.back,
            initial=problem.constraints.initial,
            ks=problem.ks,
            **written(out),
            step=step,
            tiles=chunk.tiles,
            S=num_initial(problem),
            K=problem.k,
            cap=problem.constraints.max_per_group or None,
            PICK=not initial,
            BLOCK=PICK_BLOCK,
            **PICK_TILE.options(),
        )
