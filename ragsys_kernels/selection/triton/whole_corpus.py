"""Regime c: every row of one corpus is in the pool of every query. Nothing waits for the host.

Most calls of MMR are drafted and proven (`proof.py`), most searches go by bits (`bit_search.py`). All others
read all rows at every pick, by the kernels in ``whole_corpus_kernels.py``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..._base import arrays
from ..._base.types import Array
from ..._gpu.compilers import float32_precision, is_hopper
from ..._gpu.plans import launch
from ..._gpu.variants import variant
from .. import filtered_problems
from ..problem import Problem, Selection
from . import bit_search, proof
from .launch import (
    PICK_TILE,
    SMALL_TILE,
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
    corpus_candidates_kernel,
    corpus_found_kernel,
    corpus_pick_kernel,
    corpus_relevance_kernel,
    corpus_step_kernel,
    row_lengths_kernel,
)

# The running vectors of the queries that run together take no more than this.
WORKSPACE_BYTES = 1 << 30

# Tiles whose bests are compared together; what a search has found that is written together.
PICK_BLOCK = 256
FOUND_BLOCK = 128

# Of the kernel that makes keys of a few rows.
CANDIDATES_TILE = Tile(1, 1, 1, 1, 2)


def corpus_tile(dtype: str, num_queries: int, dims: int, op: str = "mmr", hopper: bool = True) -> Tile:
    """Return the tile of the kernels that multiply."""
    queries = 16 if num_queries <= 16 else 64
    dims = max(16, next_power_of_2(dims))
    if dtype == "float32" and hopper:  # its parts and the quotients of VRSD are more than four warps hold
        return Tile(64, min(32, dims), queries, 8 if op == "vrsd" and queries == 64 else 4, 3, 255)
    if dtype == "float32":  # products without matrix units need the registers that more stages would take
        return Tile(64, min(32, dims), queries, 8, 2)
    few = queries == 16 or (hopper and dtype != "int8")
    return Tile(64, min(64, dims), queries, 4 if few else 8, 3, 255)


def select(problem: Problem, out: Selection) -> None:
    """Launch regime c; rows that may not be picked have a bias of NaN."""
    if problem.constraints.filter is not None:
        for part, piece in filtered_problems.by_bias(problem):
            _select(piece, Selection(*(field[part] for field in out)))
    else:
        _select(problem, out)


def _select(problem: Problem, out: Selection) -> None:
    """Launch a proof, or what reads all rows at every pick."""
    by_proof = proof.fits(problem)
    unknown = by_proof and problem.rows.norm != "computed" and problem.rows.max_norm is None
    corpus = _Corpus(problem, unknown)
    if by_proof:
        # A row of NaN is never picked, and must not hide how long the others are.
        most = corpus.lengths.nan_to_num(0.0).amax() if unknown else None
        proof.select(problem, out, corpus.factors, most)
    else:
        _densely(corpus, out)


def _densely(corpus: _Corpus, out: Selection) -> None:
    """Launch the relevance, then for each initial item and each pick two kernels, which read the corpus."""
    problem = corpus.problem
    for q0, num_queries in corpus.chunks():
        chunk = corpus.chunk(q0, num_queries)
        corpus.relevance(chunk)
        shown = num_initial(problem)
        for turn in range(shown + problem.k):
            if turn:
                corpus.update(chunk, first=turn == 1)
            initial = turn < shown
            corpus.take(chunk, out, turn if initial else turn - shown, initial)


def search(problem: Problem) -> tuple[Array, Array]:
    """Return the k rows of largest v, ties to the lowest row, and v: the top k of keys that order both.

    The k best of all rows are in the k tiles with the best bests, as each of these has an item that comes before all
    items of any other tile. So the rows of k tiles have keys, not all rows.
    """
    if problem.constraints.filter is not None:
        parts = [search(piece) for _, piece in filtered_problems.by_bias(problem)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    data = problem.rows.data
    out_index = arrays.empty(data, (problem.num_queries, problem.k), "int64")
    out_score = arrays.empty(data, (problem.num_queries, problem.k), "float32")
    with arrays.on_device(data):
        if variant("search") == "bits" and bit_search.fits(problem):
            bit_search.search(problem, is_hopper(), out_index, out_score)
            return out_index, out_score
        corpus = _Corpus(problem)
        for q0, num_queries in corpus.chunks(searched=True):
            chunk = corpus.chunk(q0, num_queries, searched=True)
            corpus.relevance(chunk)
            looked_at = min(problem.k, chunk.tiles)
            tiles = chunk.tile_keys.topk(looked_at, sorted=False).values
            keys = arrays.empty(data, (num_queries, looked_at * chunk.tile.rows), "int64")
            launch(
                corpus_candidates_kernel,
                (num_queries * looked_at,),
                v=chunk.v,
                tile_keys=tiles,
                keys=keys,
                stride=corpus.stride,
                num_ids=problem.pool,
                looked_at=looked_at,
                ROWS=chunk.tile.rows,
                **CANDIDATES_TILE.options(),
            )
            found = min(problem.k, problem.pool)
            launch(
                corpus_found_kernel,
                (num_queries,),
                keys=keys.topk(found).values,
                out_index=out_index,
                out_score=out_score,
                q0=q0,
                found=found,
                k=problem.k,
                BLOCK=FOUND_BLOCK,
                **SMALL_TILE.options(),
            )
    return out_index, out_score


@dataclasses.dataclass
class _Chunk:
    """Queries [q0, q0 + num_queries) of a call, and their workspaces; for a search only those of the relevance."""

    q0: int
    num_queries: int
    tile: Tile
    tiles: int  # that cover the rows
    v: Any
    factors: Any = None  # of the queries
    back: Any = None
    parts: Any = None  # of the queries, for products
    parts_back: Any = None
    tile_keys: Any = None  # for a search
    part_best: Any = None
    part_row: Any = None
    running: dict[str, Any] = dataclasses.field(default_factory=dict)  # what the kernels after the relevance keep

    @property
    def programs(self) -> int:
        """Programs that cover the rows for every query."""
        return self.tiles * -(-self.num_queries // self.tile.queries)


class _Corpus:
    """Launches of regime c."""

    def __init__(self, problem: Problem, lengths: bool = False) -> None:
        self.problem, self.rows = problem, problem.rows
        self.stride = padded(problem.pool)
        self.vrsd = problem.op == "vrsd"
        self.hopper = is_hopper()
        self.factors, self.lengths = self._row_lengths(lengths or self.vrsd)

    def _row_lengths(self, wanted: bool) -> tuple[Any, Any]:
        """Return what makes each row the vector of the formulas, and the vectors' lengths if they are wanted."""
        rows, computed = self.rows, self.rows.norm == "computed"
        N, D = rows.data.shape
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

    def chunks(self, searched: bool = False) -> list[tuple[int, int]]:
        """Return first and number of the queries that run together; v is 4 bytes a row, as is the state."""
        return chunks(self.problem.num_queries, (4 if searched else 8) * self.stride, WORKSPACE_BYTES, 64)

    def chunk(self, q0: int, num_queries: int, searched: bool = False) -> _Chunk:
        """Return queries with their workspaces; ``searched``: those of a search."""
        problem, data = self.problem, self.rows.data
        tile = corpus_tile(self.rows.dtype, num_queries, data.shape[1], problem.op, self.hopper)
        tiles = cdiv(problem.pool, tile.rows)

        def room(*shape: int, dtype: str = "float32") -> Any:
            return arrays.empty(data, shape, dtype)

        made = _Chunk(q0, num_queries, tile, tiles, room(num_queries, self.stride))
        if problem.queries is not None:
            made.factors, made.back, _ = query_factors(problem, q0, num_queries)
        if problem.relevance is None:
            made.parts, made.parts_back = queries_apart(problem, q0, made.factors, made.back)
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

    def _arguments(self, chunk: _Chunk) -> dict[str, Any]:
        """Return what all kernels of a chunk take."""
        data = self.rows.data
        return {
            "rows": data,
            "factors": self.factors,
            "lengths": self.lengths,
            "groups": self.problem.constraints.groups,
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

    def _selecting(self, chunk: _Chunk) -> dict[str, Any]:
        """Return what the kernels after the relevance take."""
        return self._arguments(chunk) | chunk.running | {"lambda_d": self.problem.lambda_d, "v_in": chunk.v}

    def relevance(self, chunk: _Chunk) -> None:
        """Launch the relevance with bias, and the bests of tiles or for a search their keys."""
        problem, tile, dot = self.problem, chunk.tile, dot_type(self.rows.dtype)
        launch(
            corpus_relevance_kernel,
            (chunk.programs,),
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

    def update(self, chunk: _Chunk, first: bool) -> None:
        """Launch what the rows taken last change in the running vectors; ``first``: there are none yet."""
        tile = chunk.tile
        launch(
            corpus_step_kernel,
            (chunk.programs,),
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

    def take(self, chunk: _Chunk, out: Selection, step: int, initial: bool) -> None:
        """Launch a pick, or the taking of an initial item."""
        problem = self.problem
        launch(
            corpus_pick_kernel,
            (chunk.num_queries,),
            **self._selecting(chunk),
            queries=problem.queries,
            query_factors=chunk.factors,
            query_back=chunk.back,
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
