"""CUDA C++ on a device: ``csrc/cuda/answer_logprob.cu``, one block a part of a row, on the caller's stream.

The linear form multiplies in full float32 whatever is stored, without matrix instructions: exact as the rules ask, and
meant for devices and libraries that have no Triton.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _arrays
from .._gpu import cuda_module
from .._gpu.cuda_module import Kernel
from .problem import Partials, ScoringProblem

SOURCE = "answer_logprob"

# Those of the source. Logits: columns of a part, shared memory of a block.
_THREADS = 256
_COLUMNS = 8192
_LOGITS_SHARED = 4 * (3 * 8 + 8 * 32)

# Linear form: columns of a part, dimensions and columns of a tile.
_SLAB = 512
_DEPTH, _TILE_COLUMNS = 32, 128

# Jobs of a block where a warp has one.
_WARPS = _THREADS // 32

_SUFFIXES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


def partials(problem: ScoringProblem, num_threads: int) -> Partials:
    """Parts of the columns of every job, merged on the device. Nothing waits for it."""
    R, M, like = len(problem.rows), len(problem.columns), problem.rows
    width = _COLUMNS if problem.logits is not None else _SLAB
    parts = max(1, -(-problem.num_entering // width))
    if parts > 65535 or R >= 2**31:
        raise ValueError(
            f"backend 'cuda' takes up to {65535 * width} columns and 2^31 - 1 rows at a time, "
            f"got {problem.num_entering} and {R}"
        )

    def empty(shape: tuple[int, ...], dtype: str, wanted: bool = True) -> Any:
        return _arrays.empty(like, shape, dtype) if wanted else None

    result = Partials(
        ref=empty((R,), "float32"),
        max=empty((R,), "float32"),
        sum=empty((R,), "float64"),
        weighted=empty((R,), "float64", problem.entropy),
        # Targets of no job (`ScoringProblem`) have no kernel that writes them.
        target=_arrays.full(like, (M,), float("-inf"), "float32"),
        rank=_arrays.full(like, (M,), 0, "int64") if problem.rank else None,
    )
    if R == 0:
        return result
    workspace = (
        empty((R, parts), "float32"),
        empty((R, parts), "float32"),
        empty((R, parts), "float32", problem.entropy),
        empty((M, parts), "int32", problem.rank),
    )

    module = cuda_module.load(SOURCE)

    def launch(name: str, grid: tuple[int, int, int], shared: int, *arguments: Any) -> None:
        module.launch(name, grid=grid, block=(_THREADS, 1, 1), shared=shared, arguments=arguments, like=like)

    by_warp = (-(-R // _WARPS), 1, 1)
    jobs = (problem.rows, problem.inverse_temperature)
    scale, softcap = float(problem.logit_scale), float(problem.softcap or 0)
    entering = (problem.num_columns, problem.allowed, 0 if problem.allowed is None else len(problem.allowed))
    if problem.logits is not None:
        launch(
            f"rsk_score_logits_{_SUFFIXES[problem.logits_dtype]}" + ("" if problem.softcap is None else "_softcap"),
            (R, parts, 1),
            _LOGITS_SHARED,
            problem.logits,
            _stride(problem.logits),
            len(problem.logits),
            *jobs,
            scale,
            softcap,
            *entering,
            problem.pair_begin,
            problem.columns,
            M,
            problem.target_logits,
            *workspace,
            result.target,
        )
    else:
        assert problem.hidden is not None
        matrices = (
            *_matrix(problem.hidden, problem.hidden_dtype),
            *_matrix(problem.weight, problem.weight_dtype),
            problem.hidden.shape[1],
            len(problem.hidden),
            problem.rows,
            R,
            problem.inverse_temperature,
            problem.head_bias,
            scale,
            softcap,
        )
        pairs = (problem.pair_begin, problem.columns, M)
        launch("rsk_score_targets", by_warp, 0, *matrices, problem.num_columns, *pairs, result.target)
        tile = tile_jobs(R)
        than = result.target if problem.target_logits is None else problem.target_logits
        launch(
            f"rsk_score_hidden_{tile}",
            (-(-R // tile), parts, 1),
            hidden_shared(tile),
            *matrices,
            *entering,
            problem.pair_begin,
            M,
            than,
            *workspace,
        )
    merged = (result.ref, result.max, result.sum, result.weighted, result.rank)
    launch("rsk_score_merge", by_warp, 0, R, parts, *workspace, problem.pair_begin, M, *merged)
    return result


def tile_jobs(num_jobs: int) -> int:
    """Jobs of a tile of the linear form; the bits are the same with either."""
    return 16 if num_jobs <= 16 else 64


def hidden_shared(tile: int) -> int:
    """Bytes of the two slices, the ids and the running sums."""
    return 4 * _DEPTH * (tile + _TILE_COLUMNS) + 8 * (tile + _TILE_COLUMNS) + 12 * _THREADS * (tile // 16)


def _matrix(rows: Any, dtype: str) -> tuple[Any, ...]:
    return rows, _stride(rows), np.int32(_arrays.NUMBERS[dtype])


def _stride(rows: Any) -> int:
    """Elements from one row to the next."""
    strides = getattr(rows, "stride", None)
    return int(strides(0)) if strides is not None else int(rows.strides[0] // rows.dtype.itemsize)


def kernels() -> list[Kernel]:
    """Every kernel of the source; sizes are functions of (T, V, D), D being 0 for logits."""
    found = [_logits_kernel(dtype, suffix) for suffix in ("", "_softcap") for dtype in _SUFFIXES]
    found += [_hidden_kernel(tile) for tile in (16, 64)]
    found.append(_small_kernel("rsk_score_targets", lambda T, V, D: D > 0, lambda T, V, D: 4 * T * D * 2))
    found.append(_small_kernel("rsk_score_merge", lambda T, V, D: True, lambda T, V, D: 8 * T * _parts(V, D)))
    return found


def _parts(V: int, D: int) -> int:
    return -(-V // (_SLAB if D else _COLUMNS))


def _small_kernel(name: str, fits: Any, bytes_read: Any) -> Kernel:
    return Kernel(name, SOURCE, fits, lambda T, V, D: _THREADS, lambda T, V, D: 0, bytes_read)


def _logits_kernel(dtype: str, suffix: str) -> Kernel:
    return Kernel(
        f"rsk_score_logits_{_SUFFIXES[dtype]}{suffix}",
        SOURCE,
        lambda T, V, D: D == 0,
        lambda T, V, D: _THREADS,
        lambda T, V, D: _LOGITS_SHARED,
        lambda T, V, D: T * V * _ITEMSIZES[dtype],
    )


def _hidden_kernel(tile: int) -> Kernel:
    return Kernel(
        f"rsk_score_hidden_{tile}",
        SOURCE,
        lambda T, V, D: D > 0 and tile_jobs(T) == tile,
        lambda T, V, D: _THREADS,
        lambda T, V, D: hidden_shared(tile),
        lambda T, V, D: 4 * D * (T + V),  # as float32; tiles of other jobs find the weights in the cache
    )
