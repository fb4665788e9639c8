"""Regime c: every row of one corpus is in the pool of every query. Nothing waits for the host.

Most calls of MMR are drafted and proven (`proof.py`), most searches go by bits (`bit_search.py`). All others
read all rows at every pick (`dense.py`), or at once.
"""

from __future__ import annotations

import torch

from ..._base import arrays
from ..._base.types import Array
from ..._gpu.compilers import is_hopper
from ..._gpu.plans import launch
from ..._gpu.variants import variant
from .. import filtered_problems
from ..problem import Problem, Selection
from . import bit_search, dense, proof
from .launch import SMALL_TILE, Tile
from .whole_corpus_kernels import corpus_candidates_kernel, corpus_found_kernel

# What a search has found that is written together.
FOUND_BLOCK = 128

# Of the kernel that makes keys of a few rows.
CANDIDATES_TILE = Tile(1, 1, 1, 1, 2)


def select(problem: Problem, out: Selection) -> None:
    """Launch regime c; rows that may not be picked have a bias of NaN."""
    if problem.constraints.filter is not None:
        for part, piece in filtered_problems.by_bias(problem):
            _select(piece, Selection(*(field[part] for field in out)))
    else:
        _select(problem, out)


def _select(problem: Problem, out: Selection) -> None:
    """Launch a proof, or what reads all rows at every pick."""
    if proof.fits(problem):
        unknown = problem.rows.norm != "computed" and problem.rows.max_norm is None
        factors, lengths = dense.row_lengths(problem.rows, unknown)
        # A row of NaN is never picked, and must not hide how long the others are.
        proof.select(problem, out, factors, lengths.nan_to_num(0.0).amax() if unknown else None)
    else:
        dense.select(problem, out)


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
        corpus = dense.Corpus(problem)
        for chunk in corpus.chunks(searched=True):
            corpus.relevance(chunk)
            looked_at = min(problem.k, chunk.tiles)
            tiles = chunk.tile_keys.topk(looked_at, sorted=False).values
            keys = arrays.empty(data, (chunk.num_queries, looked_at * chunk.tile.rows), "int64")
            launch(
                corpus_candidates_kernel,
                (chunk.num_queries * looked_at,),
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
                (chunk.num_queries,),
                keys=keys.topk(found).values,
                out_index=out_index,
                out_score=out_score,
                q0=chunk.q0,
                found=found,
                k=problem.k,
                BLOCK=FOUND_BLOCK,
                **SMALL_TILE.options(),
            )
    return out_index, out_score
