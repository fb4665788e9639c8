"""CUDA C++ on a device: ``csrc/cuda/greedy_*.cu``, a block or a cluster of blocks a query, on the caller's stream."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..._base import arrays
from ..._base.types import Array
from ..._dispatch import BackendUnavailableError
from ..._gpu import cuda_module, plans
from .. import torch_search
from ..problem import Problem, Selection
from ..request import Request
from . import configuration
from .configuration import Pools, configure

# The source's numbers.
_NORMS = {"as_given": 0, "scaled": 1, "computed": 2}

# Dimensions and picks are counted in 32 bits.
_LARGEST = 2**31 - 1024
# The most blocks of a launch.
_MOST_BLOCKS = 2**31 - 1

# What the kernels have (capabilities.py).
RULES = frozenset(configuration.OPS)
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


def lacking(request: Request, given: Mapping[str, Any]) -> str | None:
    """Return the reason that the kernels do not take the pools of a call, by its arrays as they are given."""
    rows, k = given["embeddings"], request.k
    if arrays.library_of(rows) not in ("torch", "cupy") or len(rows.shape) not in (2, 3):
        return None  # is refused where it is read
    P = rows.shape[1] if len(rows.shape) == 3 else _columns(request.candidates)
    K = int(k) if isinstance(k, (int, np.integer)) else P
    dtype = str(rows.dtype).removeprefix("torch.")
    pools = _pools(request.op, rows, dtype, P, K, request.max_per_group is not None, _columns(request.initial))
    return configuration.lacking(pools)


def _columns(ids: Any) -> int:
    """Return how many ids a query has; of lists, the most."""
    if ids is None:
        return 0
    if hasattr(ids, "shape"):
        return int(ids.shape[-1]) if ids.shape else 0
    return max((len(own) for own in ids if hasattr(own, "__len__")), default=0)


def _pools(op: str, rows: Any, dtype: str, P: int, K: int, capped: bool, num_initial: int) -> Pools:
    *leading, D = map(int, rows.shape)
    aligned = arrays.pointer(rows) % 16 == 0 and cuda_module.row_stride(rows) * rows.dtype.itemsize % 16 == 0
    module = cuda_module.load(configuration.GRAM_SOURCE)
    capability, max_shared = module.capability(rows), module.max_shared(rows)
    return Pools(op, dtype, math.prod(leading), P, D, K, capped, num_initial, aligned, capability, max_shared)


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
    initial, capped = problem.constraints.initial, problem.constraints.max_per_group > 0
    num_initial = 0 if initial is None else initial.shape[1]
    pools = _pools(problem.op, like, rows.dtype, P, K, capped, num_initial)
    how = configure(pools)
    if how is None:
        reason = configuration.lacking(pools)
        raise BackendUnavailableError(f"{problem.op}: backend 'cuda' cannot run here: {reason}")
    at_once = _MOST_BLOCKS // how.blocks  # queries
    for first in range(0, Q, at_once):
        plans.call(
            cuda_module.load(how.source).launch,
            how.kernel,
            grid=(min(at_once, Q - first) * how.blocks, 1, 1),
            block=(how.threads, 1, 1),
            shared=how.shared,
            arguments=(_arguments(problem, first, result),),
            like=like,
        )
    return result


def _arguments(problem: Problem, first_query: int, out: Selection) -> cuda_module.Struct:
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
        indices=out.indices,
        scores=out.scores,
        out_relevance=out.relevance,
        redundancy=out.redundancy,
        lengths=out.lengths,
    )


def _id_bytes(ids: Any) -> int:
    return 0 if ids is None else int(ids.dtype.itemsize)
