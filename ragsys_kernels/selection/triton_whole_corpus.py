"""Regime c: every row of one corpus is in the pool of every query. Two launches a pick, none waits for the host.

The kernels are in ``triton_corpus_kernels.py``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import triton
import triton.language as tl

from .. import _arrays
from .._types import Array
from . import filtered_problems, triton_check, triton_coded_corpus
from .problem import Problem, Selection
from .triton_corpus_kernels import (
    corpus_pick_kernel,
    corpus_relevance_kernel,
    corpus_step_kernel,
    row_lengths_kernel,
)
from .triton_launch import (
    PICK_TILE,
    Tile,
    bias_by_row,
    chunks,
    dot_type,
    num_initial,
    padded,
    query_factors,
    row_tile,
)

# The running vectors of the queries that run together take no more than this.
WORKSPACE_BYTES = 1 << 30

# Tiles whose bests are compared together.
PICK_BLOCK = 256


def corpus_tile(dtype: str, num_queries: int, dims: int) -> Tile:
    """Return the tile of the kernels that multiply."""
    widest = 32 if dtype == "float32" else 64
    queries = 16 if num_queries <= 16 else 64
    dims = min(widest, max(16, triton.next_power_of_2(dims)))
    if dtype == "float32":  # products without matrix instructions need the registers that more stages would take
        return Tile(64, dims, queries, 8, 2, 96 if queries == 16 else None)
    return Tile(64, dims, queries, 4 if queries == 16 else 8, 3)


def relevance_tile(tile: Tile, dtype: str, plain: bool) -> Tile:
    """Return the tile of the kernel of the relevance; ``plain`` is a call without options."""
    # Where Triton 3.6 would spill 8 bytes on sm_100; bounds spill where they are not needed.
    if dtype == "int8" and tile.queries == 16 and plain:
        return tile._replace(maxnreg=128)
    if dtype == "float32" and tile.queries == 64 and not plain:
        return tile._replace(maxnreg=136)
    return tile


def step_tile(tile: Tile, dtype: str, vrsd: bool) -> Tile:
    """Return the tile of the kernel of a step, whose epilogue holds less than that of the relevance."""
    if tile.queries == 64 and dtype == "float32":
        return tile._replace(num_stages=1, maxnreg=255) if vrsd else tile  # its quotients spill
    if tile.queries == 64:
        return tile._replace(maxnreg=255)
    return tile._replace(maxnreg=128 if dtype == "float32" else 168) if vrsd else tile  # its quotients spill


def query_parts(dot: Any) -> int:
    """Return how many 16-bit parts hold a float32 query to the precision of float32 products."""
    return {tl.float32: 1, tl.float16: 2, tl.bfloat16: 3}[dot]


def select(problem: Problem, out: Selection) -> None:
    """Launch regime c: the relevance, then for each initial item and each pick two kernels."""
    if problem.constraints.filter is not None:
        for part, piece in filtered_problems.by_bias(problem):
            _densely(_Corpus(piece), Selection(*(field[part] for field in out)))
        return
    corpus = _Corpus(problem)
    for form in (triton_coded_corpus, triton_check):
        if form.fits(problem):
            tile = corpus_tile(problem.rows.dtype, problem.num_queries, problem.rows.data.shape[1])
            form.select(problem, out, corpus.factors, tile, query_parts(dot_type(problem.rows.dtype)))
            return
    _densely(corpus, out)


def _densely(corpus: _Corpus, out: Selection) -> None:
    """Read the corpus at every pick."""
    problem = corpus.problem
    for q0, num_queries in corpus.chunks():
        chunk = corpus.chunk(q0, num_queries)
        corpus.relevance(chunk)
        for step in range(num_initial(problem)):
            corpus.take(chunk, out, step, initial=True)
            corpus.update(chunk)
        for step in range(problem.k):
            if step:
                corpus.update(chunk)
            corpus.take(chunk, out, step, initial=False)


def search(problem: Problem) -> tuple[Array, Array]:
    """Return the k rows of largest v, ties to the lowest row, and v: the top k of keys that order both."""
    if problem.constraints.filter is not None:
        parts = [search(piece) for _, piece in filtered_problems.by_bias(problem)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    data = problem.rows.data
    out_index = _arrays.empty(data, (problem.num_queries, problem.k), "int64")
    out_score = _arrays.empty(data, (problem.num_queries, problem.k), "float32")
    with _arrays.on_device(data):
        corpus = _Corpus(problem)
        for q0, num_queries in corpus.chunks():
            keys = _arrays.empty(data, (num_queries, corpus.stride), "int64")
            corpus.relevance(corpus.chunk(q0, num_queries, keys))
            found = keys[:, : problem.pool].topk(min(problem.k, problem.pool)).values
            n = found.shape[1]
            # Undoes what the kernel made of value and row.
            ordered, rows = found >> 32, 0xFFFFFFFF - (found & 0xFFFFFFFF)
            bits = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(torch.int32)
            scores = bits.view(torch.float32)
            part = slice(q0, q0 + num_queries)
            out_score[part, :n], out_index[part, :n] = scores, rows.masked_fill(scores == float("-inf"), -1)
            out_score[part, n:], out_index[part, n:] = float("-inf"), -1
    return out_index, out_score


@dataclasses.dataclass
class _Chunk:
    """Queries [q0, q0 + num_queries) of a call, and their workspaces; for a search only those of the relevance."""

    q0: int
    num_queries: int
    tile: Tile
    tiles: int  # that cover the rows
    factors: Any  # of the queries
    back: Any
    keys: Any = None  # for a search
    v: Any = None
    state: Any = None
    part_best: Any = None
    part_row: Any = None
    taken: Any = None
    barred: Any = None
    num_taken: Any = None
    sums: Any = None
    sum_scalars: Any = None

    @property
    def programs(self) -> int:
        """Programs that cover the rows for every query."""
        return self.tiles * -(-self.num_queries // self.tile.queries)


class _Corpus:
    """Launches of regime c."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.rows = problem, problem.rows
        self.stride = padded(problem.pool)
        self.vrsd = problem.op == "vrsd"
        self.factors, self.lengths = self._row_lengths()

    def _row_lengths(self) -> tuple[Any, Any]:
        """Return what makes each row the vector of the formulas, and the vectors' lengths for VRSD."""
        rows, computed = self.rows, self.rows.norm == "computed"
        N, D = rows.data.shape
        factors = _arrays.empty(rows.data, (N,), "float32") if computed else rows.scales
        lengths = _arrays.empty(rows.data, (N,), "float32") if self.vrsd else None
        if computed or self.vrsd:
            tile = row_tile(rows.dtype, D)
            row_lengths_kernel[(triton.cdiv(N, tile.rows),)](
                rows=rows.data,
                scales=rows.scales,
                factors=factors,
                lengths=lengths,
                row_stride=rows.data.stride(0),
                N=N,
                D=D,
                COMPUTED=computed,
                VRSD=self.vrsd,
                ROWS=tile.rows,
                DIMS=tile.dims,
                **tile.options(),
            )
        return factors, lengths

    def chunks(self) -> list[tuple[int, int]]:
        """Return first and number of the queries that run together; v and the state, or a key, are 8 bytes a row."""
        return chunks(self.problem.num_queries, 8 * self.stride, WORKSPACE_BYTES, 64)

    def chunk(self, q0: int, num_queries: int, keys: Any = None) -> _Chunk:
        """Return queries with their workspaces, or with ``keys`` for a search."""
        problem, data = self.problem, self.rows.data
        tile = corpus_tile(self.rows.dtype, num_queries, data.shape[1])
        tiles = triton.cdiv(problem.pool, tile.rows)
        factors = back = None
        if problem.queries is not None:
            factors, back = query_factors(problem, q0, num_queries)
        made = _Chunk(q0, num_queries, tile, tiles, factors, back, keys)
        if keys is not None:
            return made
        made.v, made.state = (_arrays.empty(data, (num_queries, self.stride), "float32") for _ in range(2))
        made.part_best = _arrays.empty(data, (tiles, num_queries), "float32")
        made.part_row = _arrays.empty(data, (tiles, num_queries), "int64")
        made.taken = _arrays.empty(data, (num_queries,), "int64")
        made.num_taken = _arrays.empty(data, (num_queries,), "int32")
        if problem.constraints.max_per_group:
            made.barred = _arrays.empty(data, (num_queries,), "int32")
        if self.vrsd:
            made.sums = _arrays.empty(data, (num_queries, data.shape[1]), "float32")
            made.sum_scalars = _arrays.empty(data, (3, num_queries), "float32")
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
        return {
            **self._arguments(chunk),
            "lambda_d": self.problem.lambda_d,
            "v_in": chunk.v,
            "state": chunk.state,
            "taken_rows": chunk.taken,
            "barred": chunk.barred,
            "num_taken": chunk.num_taken,
            "sums": chunk.sums,
            "sum_scalars": chunk.sum_scalars,
        }

    def relevance(self, chunk: _Chunk) -> None:
        """Launch the relevance with bias, or the keys of a search."""
        problem, tile, dot = self.problem, chunk.tile, dot_type(self.rows.dtype)
        corpus_relevance_kernel[(chunk.programs,)](
            **self._arguments(chunk),
            queries=problem.queries,
            query_factors=chunk.factors,
            query_back=chunk.back,
            relevance=problem.relevance,
            bias=problem.bias,
            query_groups=problem.constraints.query_groups,
            lambda_b=problem.lambda_b,
            v_out=chunk.v,
            state_out=chunk.state,
            keys_out=chunk.keys,
            BIAS_BY_ROW=bias_by_row(problem),
            EVEN_D=self.rows.data.shape[1] % tile.dims == 0,
            DOT=dot,
            PARTS=query_parts(dot),
            QUERIES=tile.queries,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **relevance_tile(tile, self.rows.dtype, triton_check.is_plain(problem)).options(),
        )

    def update(self, chunk: _Chunk) -> None:
        """Launch what the rows taken last change in the running vectors."""
        tile = chunk.tile
        corpus_step_kernel[(chunk.programs,)](
            **self._selecting(chunk),
            EVEN_D=self.rows.data.shape[1] % tile.dims == 0,
            DOT=dot_type(self.rows.dtype),
            QUERIES=tile.queries,
            ROWS=tile.rows,
            DIMS=tile.dims,
            **step_tile(tile, self.rows.dtype, self.vrsd).options(),
        )

    def take(self, chunk: _Chunk, out: Selection, step: int, initial: bool) -> None:
        """Launch a pick, or the taking of an initial item."""
        problem = self.problem
        corpus_pick_kernel[(chunk.num_queries,)](
            **self._selecting(chunk),
            queries=problem.queries,
            query_factors=chunk.factors,
            query_back=chunk.back,
            initial=problem.constraints.initial,
            ks=problem.ks,
            out_index=out.indices,
            out_score=out.scores,
            out_relevance=out.relevance,
            out_redundancy=out.redundancy,
            out_length=out.lengths,
            step=step,
            tiles=chunk.tiles,
            S=num_initial(problem),
            K=problem.k,
            cap=problem.constraints.max_per_group or None,
            PICK=not initial,
            BLOCK=PICK_BLOCK,
            **PICK_TILE.options(),
        )
