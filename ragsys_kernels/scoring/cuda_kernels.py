"""CUDA C++ on a device: ``csrc/cuda/answer_logprob.cu``, one block a part of a row, on the caller's stream.

The linear form multiplies in full float32 whatever is stored, without matrix instructions: exact as the rules ask, and
meant for devices and libraries that have no Triton.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _arrays
from .._gpu import cuda_module
from .cuda_configuration import (
    COLUMNS,
    LOGITS_SHARED,
    SLAB,
    SOURCE,
    SUFFIXES,
    THREADS,
    WARPS,
    hidden_shared,
    tile_slots,
)
from .problem import Partials, ScoringProblem


def partials(problem: ScoringProblem, num_threads: int) -> Partials:
    """Parts of the columns of every slot, merged on the device. Nothing waits for it."""
    R, M, like = len(problem.rows), len(problem.columns), problem.rows
    width = COLUMNS if problem.logits is not None else SLAB
    parts = max(1, -(-problem.num_entering // width))
    if parts > 65535 or R >= 2**31:
        raise ValueError(
            f"backend 'cuda' takes up to {65535 * width} columns and 2^31 - 1 rows at a time, "
            f"got {problem.num_entering} and {R}"
        )
    result = _outputs(problem)
    if R == 0:
        return result
    workspace = (
        _arrays.empty(like, (R, parts), "float32"),
        _arrays.empty(like, (R, parts), "float32"),
        _arrays.empty(like, (R, parts), "float32") if problem.entropy else None,
        _arrays.empty(like, (M, parts), "int32") if problem.rank else None,
    )
    if problem.logits is not None:
        _logits(problem, parts, workspace, result.target)
    else:
        _linear(problem, parts, workspace, result.target)
    merged = (result.ref, result.max, result.sum, result.weighted, result.rank)
    _launch("rsk_score_merge", (_by_warp(R), 1, 1), 0, like, R, parts, *workspace, problem.pair_begin, M, *merged)
    return result


def _outputs(problem: ScoringProblem) -> Partials:
    R, M, like = len(problem.rows), len(problem.columns), problem.rows
    return Partials(
        ref=_arrays.empty(like, (R,), "float32"),
        max=_arrays.empty(like, (R,), "float32"),
        sum=_arrays.empty(like, (R,), "float64"),
        weighted=_arrays.empty(like, (R,), "float64") if problem.entropy else None,
        # No kernel writes the targets of no slot (`ScoringProblem`).
        target=_arrays.full(like, (M,), float("-inf"), "float32"),
        rank=_arrays.full(like, (M,), 0, "int64") if problem.rank else None,
    )


def _launch(name: str, grid: tuple[int, int, int], shared: int, like: Any, *arguments: Any) -> None:
    cuda_module.load(SOURCE).launch(
        name, grid=grid, block=(THREADS, 1, 1), shared=shared, arguments=arguments, like=like
    )


def _by_warp(num_slots: int) -> int:
    """Return the blocks of a kernel whose warps have a slot each."""
    return -(-num_slots // WARPS)


def _scales(problem: ScoringProblem) -> tuple[float, float]:
    """Return ``logit_scale`` and ``softcap``, 0 for none."""
    return float(problem.logit_scale), float(problem.softcap or 0)


def _entering(problem: ScoringProblem) -> tuple[Any, ...]:
    """Return the columns that enter."""
    return problem.num_columns, problem.allowed, 0 if problem.allowed is None else len(problem.allowed)


def _logits(problem: ScoringProblem, parts: int, workspace: tuple[Any, ...], target: Any) -> None:
    """Launch the logits form, which also writes z of the targets."""
    assert problem.logits is not None
    _launch(
        f"rsk_score_logits_{SUFFIXES[problem.logits_dtype]}" + ("" if problem.softcap is None else "_softcap"),
        (len(problem.rows), parts, 1),
        LOGITS_SHARED,
        problem.rows,
        problem.logits,
        cuda_module.row_stride(problem.logits),
        len(problem.logits),
        problem.rows,
        problem.inverse_temperature,
        *_scales(problem),
        *_entering(problem),
        problem.pair_begin,
        problem.columns,
        len(problem.columns),
        problem.target_logits,
        *workspace,
        target,
    )


def _linear(problem: ScoringProblem, parts: int, workspace: tuple[Any, ...], target: Any) -> None:
    """Launch the kernel of targets, then that of tiles, which ranks against them."""
    assert problem.hidden is not None
    R, M, like = len(problem.rows), len(problem.columns), problem.rows
    matrices = (
        *_matrix(problem.hidden, problem.hidden_dtype),
        *_matrix(problem.weight, problem.weight_dtype),
        problem.hidden.shape[1],
        len(problem.hidden),
        problem.rows,
        R,
        problem.inverse_temperature,
        problem.head_bias,
        *_scales(problem),
    )
    pairs = (problem.pair_begin, problem.columns, M)
    _launch("rsk_score_targets", (_by_warp(R), 1, 1), 0, like, *matrices, problem.num_columns, *pairs, target)
    tile = tile_slots(R)
    _launch(
        f"rsk_score_hidden_{tile}",
        (-(-R // tile), parts, 1),
        hidden_shared(tile),
        like,
        *matrices,
        *_entering(problem),
        problem.pair_begin,
        M,
        target if problem.target_logits is None else problem.target_logits,
        *workspace,
    )


def _matrix(rows: Any, dtype: str) -> tuple[Any, ...]:
    return rows, cuda_module.row_stride(rows), np.int32(_arrays.NUMBERS[dtype])
