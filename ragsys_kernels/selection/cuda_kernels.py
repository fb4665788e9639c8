"""CUDA C++ on a device: ``csrc/cuda/greedy_select.cu``, one block a query, on the caller's stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _arrays
from .._gpu import cuda_module
from .problem import Problem, Selection
from .torch_search import search as search  # a product of matrices, which torch's library does best

SOURCE = "greedy_select"

_NORMS = {"as_given": 0, "scaled": 1, "computed": 2}
_ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}

# Those of the source: rows that a warp takes at a time, the most warps of a block, and their bests at even and odd
# steps, a float and an int each.
_GROUP = 16
_MAX_WARPS = 8
_BESTS = _MAX_WARPS * 2 * 8

# Items, dimensions and picks are counted in 32 bits; a block's next step must not overflow.
_LARGEST = 2**31 - 1024

# Queries whose state does not fit in shared memory run so many at a time that it takes no more than this.
_WORKSPACE_BYTES = 1 << 28


class Configuration(NamedTuple):
    """How a problem is launched."""

    kernel: str
    threads: int
    shared: int  # bytes of dynamic shared memory
    workspace: int  # floats of each block, 0 where its state is in shared memory


def mmr(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def vrsd(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def configure(op: str, dtype: str, P: int, D: int, K: int, capped: bool, max_shared: int) -> Configuration:
    """Rows stay in shared memory where they fit, then the state does, and otherwise neither.

    A step of a resident pool reads it at the speed of shared memory, several times that of the L2 cache, which is worth
    more than the blocks that would fit on a multiprocessor without its rows.
    """
    groups = -(-P // _GROUP)
    warps = min(groups, _MAX_WARPS)
    row_bytes = -(-D * _ITEMSIZES[dtype] // 16) * 16
    sum_floats = row_bytes // _ITEMSIZES[dtype] if op == "vrsd" else 0
    state = sum_floats + (2 * K if capped else 0) + 3 * P
    resident = _BESTS + P * row_bytes + 4 * state
    if resident <= max_shared:
        return Configuration(f"rsk_{op}_resident_{dtype}", 32 * warps, resident, 0)
    streaming = _BESTS + 4 * state
    if streaming <= max_shared:
        return Configuration(f"rsk_{op}_streaming_{dtype}", 32 * warps, streaming, 0)
    aligned = -(-state // 4) * 4
    return Configuration(f"rsk_{op}_streaming_{dtype}", 32 * warps, _BESTS, aligned)


def _select(problem: Problem) -> Selection:
    rows, Q, P, K = problem.rows, problem.num_queries, problem.pool, problem.k
    D = rows.data.shape[1]
    if max(P, D, K) > _LARGEST:
        raise ValueError(f"{problem.op}: backend 'cuda' takes P, D and k up to {_LARGEST}, got {P}, {D} and {K}")
    like = rows.data
    result = Selection(
        indices=_arrays.empty(like, (Q, K), "int64"),
        scores=_arrays.empty(like, (Q, K), "float32"),
        relevance=_arrays.empty(like, (Q, K), "float32"),
        redundancy=_arrays.empty(like, (Q, K), "float32"),
        lengths=_arrays.empty(like, (Q,), "int32"),
    )
    if Q == 0:
        return result
    module = cuda_module.load(SOURCE)
    capped = problem.max_per_group > 0
    how = configure(problem.op, rows.dtype, P, D, K, capped, module.max_shared(like))
    blocks, workspace = Q, None
    if how.workspace:
        blocks = max(1, min(Q, _WORKSPACE_BYTES // (4 * how.workspace)))
        workspace = _arrays.empty(like, (blocks, how.workspace), "float32")
    for first in range(0, Q, blocks):
        module.launch(
            how.kernel,
            grid=(min(blocks, Q - first), 1, 1),
            block=(how.threads, 1, 1),
            shared=how.shared,
            arguments=(*_inputs(problem, first), workspace, how.workspace, *result),
            like=like,
        )
    return result


def _inputs(problem: Problem, first_query: int) -> tuple[Any, ...]:
    """Arguments of a launch up to the workspace, in the order of SelectArgs."""
    rows, initial, candidates = problem.rows, problem.initial, problem.candidates
    num_initial = 0 if initial is None else initial.shape[1]
    per_item = problem.bias is not None and problem.bias.ndim == 2
    return (
        first_query,
        problem.num_ids,
        _row_stride(rows.data),
        problem.pool_stride,
        problem.max_per_group,
        np.int32(problem.pool),
        np.int32(rows.data.shape[1]),
        np.int32(problem.k),
        np.int32(num_initial),
        np.int32(_NORMS[rows.norm]),
        np.int32(problem.unit_queries),
        np.int32(_id_bytes(candidates)),
        np.int32(_id_bytes(initial)),
        np.int32(per_item),
        rows.data,
        rows.scales,
        problem.queries,
        candidates,
        initial if num_initial else None,
        problem.relevance,
        problem.bias,
        problem.lambda_d,
        problem.lambda_b,
        problem.ks,
        problem.groups,
        problem.query_groups,
    )


def _id_bytes(ids: Any) -> int:
    return 0 if ids is None else int(ids.dtype.itemsize)


def _row_stride(data: Any) -> int:
    """Elements from one row to the next."""
    strides = getattr(data, "stride", None)
    return int(strides(0)) if strides is not None else int(data.strides[0] // data.dtype.itemsize)


class Kernel(NamedTuple):
    """A kernel as the report of compiled resources describes it; sizes are functions of (P, D, K)."""

    name: str
    source: str
    fits: Callable[[int, int, int], bool]  # whether it is the one that is launched, on a device of 227 KiB a block
    threads: Callable[[int, int, int], int]
    shared_bytes: Callable[[int, int, int], int]  # dynamic shared memory of a block
    bytes_read: Callable[[int, int, int], int]  # from device memory for one query: rows and ids once, the query


# What a block of an H100 may have; of an A100 166,912.
MAX_SHARED = 232_448


def kernels() -> list[Kernel]:
    """Every kernel of the source."""
    return [
        _kernel(op, dtype, kind) for op in ("mmr", "vrsd") for kind in ("resident", "streaming") for dtype in _ITEMSIZES
    ]


def _kernel(op: str, dtype: str, kind: str) -> Kernel:
    name = f"rsk_{op}_{kind}_{dtype}"

    def configuration(P: int, D: int, K: int) -> Configuration:
        return configure(op, dtype, P, D, K, False, MAX_SHARED)

    def shared_bytes(P: int, D: int, K: int) -> int:
        how = configuration(P, D, K)
        if how.kernel != name:  # as if rows were to fit, or not to
            how = configure(op, dtype, P, D, K, False, how.shared - 1 if kind == "streaming" else 1 << 62)
        return how.shared

    return Kernel(
        name,
        SOURCE,
        lambda P, D, K: configuration(P, D, K).kernel == name,
        lambda P, D, K: configuration(P, D, K).threads,
        shared_bytes,
        lambda P, D, K: P * D * _ITEMSIZES[dtype] + 8 * P + 4 * D,
    )
