"""CUDA C++ on a device: ``csrc/cuda/greedy_*.cu``, one block a query, on the caller's stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._base import arrays
from ..._base.types import Array
from ..._gpu import cuda_module, plans, variants
from .. import torch_search
from ..problem import Problem, Selection
from .configuration import (
    OPS,
    SMALL_CAPABILITY,
    SOURCE,
    Configuration,
    configure,
    configure_columns,
    configure_rows,
)

# The source's numbers.
_NORMS = {"as_given": 0, "scaled": 1, "computed": 2}

# Items, dimensions and picks are counted in 32 bits; a block's next step must not overflow.
_LARGEST = 2**31 - 1024

# Queries whose state does not fit in shared memory run so many at a time that it takes no more than this.
_WORKSPACE_BYTES = 1 << 28

# What the kernels have (capabilities.py).
RULES = frozenset(OPS)
CONSTRAINTS: frozenset[str] = frozenset()


def mmr(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def vrsd(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def msd(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def relevance(problem: Problem, num_threads: int) -> Array:
    return torch_search.relevance(problem, num_threads)


def search(problem: Problem, num_threads: int) -> tuple[Array, Array]:
    # A product of matrices, which torch's library does best.
    return torch_search.search(problem, num_threads)


def _select(problem: Problem) -> Selection:
    rows, Q, P, K = problem.rows, problem.num_queries, problem.pool, problem.k
    D = rows.data.shape[1]
    if max(P, D, K) > _LARGEST:
        raise ValueError(f"{problem.op}: backend 'cuda' takes P, D and k up to {_LARGEST}, got {P}, {D} and {K}")
    like = rows.data
    result = Selection(
        indices=arrays.empty(like, (Q, K), "int64"),
        scores=arrays.empty(like, (Q, K), "float32"),
        relevance=arrays.empty(like, (Q, K), "float32"),
        redundancy=arrays.empty(like, (Q, K), "float32"),
        lengths=arrays.empty(like, (Q,), "int32"),
    )
    if Q == 0:
        return result
    capped = problem.constraints.max_per_group > 0
    num_initial = 0 if problem.constraints.initial is None else problem.constraints.initial.shape[1]
    module = cuda_module.load(SOURCE)
    capability = module.capability(like)
    sizes = problem.op, rows.dtype, P, D, K, capped, module.max_shared(like)
    how = configure(*sizes, num_initial) if capability >= SMALL_CAPABILITY else configure_rows(*sizes)
    if how.source == SOURCE and capability >= SMALL_CAPABILITY and _may_meet_columns(problem):
        how = configure_columns(*sizes[:-1], num_initial, capability, sizes[-1]) or how
    module = cuda_module.load(how.source)
    blocks, workspace = Q, None
    if how.workspace:
        blocks = max(1, min(Q, _WORKSPACE_BYTES // (4 * how.workspace)))
        workspace = arrays.empty(like, (blocks, how.workspace), "float32")
    for first in range(0, Q, blocks):
        plans.call(
            module.launch,
            how.kernel,
            grid=(min(blocks, Q - first) * how.blocks, 1, 1),
            block=(how.threads, 1, 1),
            shared=how.shared,
            arguments=(_arguments(problem, first, workspace, how, result),),
            like=like,
        )
    return result


def _may_meet_columns(problem: Problem) -> bool:
    """Return whether the kernels by matrix instructions take a problem of their sizes.

    Rows are loaded with 16 bytes throughout and have numbers of 32 bits, and each vector that they meet is one of them.
    """
    if variants.variant("pools") != "held" or (problem.op == "vrsd" and problem.constraints.initial is not None):
        return False
    rows = problem.rows.data
    return arrays.pointer(rows) % 16 == 0 and cuda_module.row_stride(rows) % 8 == 0 and rows.shape[0] <= 1 << 32


def _arguments(
    problem: Problem, first_query: int, workspace: Any, how: Configuration, out: Selection
) -> cuda_module.Struct:
    """Return the members of SelectArgs, in its order."""
    rows, initial, candidates = problem.rows, problem.constraints.initial, problem.candidates
    num_initial = 0 if initial is None else initial.shape[1]
    per_item = problem.bias is not None and problem.bias.ndim == 2
    return cuda_module.Struct(
        first_query=first_query,
        num_ids=problem.num_ids,
        row_stride=cuda_module.row_stride(rows.data),
        pool_stride=problem.pool_stride,
        max_per_group=problem.constraints.max_per_group,
        pool=np.int32(problem.pool),
        dims=np.int32(rows.data.shape[1]),
        k=np.int32(problem.k),
        num_initial=np.int32(num_initial),
        norm=np.int32(_NORMS[rows.norm]),
        unit_queries=np.int32(problem.unit_queries),
        id_bytes=np.int32(_id_bytes(candidates)),
        initial_bytes=np.int32(_id_bytes(initial)),
        bias_per_item=np.int32(per_item),
        far=np.float32(rows.metric == "cosine"),
        rows=rows.data,
        scales=rows.scales,
        queries=problem.queries,
        candidates=candidates,
        initial=initial if num_initial else None,
        relevance=problem.relevance,
        bias=problem.bias,
        lambda_d=problem.lambda_d,
        lambda_b=problem.lambda_b,
        ks=problem.ks,
        groups=problem.constraints.groups,
        query_groups=problem.constraints.query_groups,
        workspace=workspace,
        workspace_stride=how.workspace,
        indices=out.indices,
        scores=out.scores,
        out_relevance=out.relevance,
        redundancy=out.redundancy,
        lengths=out.lengths,
    )


def _id_bytes(ids: Any) -> int:
    return 0 if ids is None else int(ids.dtype.itemsize)
