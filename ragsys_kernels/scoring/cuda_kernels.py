"""CUDA C++ (csrc/cuda/answer_logprob.cu) on arrays of torch or CuPy on a device."""

from __future__ import annotations

from typing import Any

from .. import _arrays, _cuda_module
from .problem import Partials, ScoringProblem

# As in the source: columns of a part, threads and shared memory of a block, jobs of a block of the merge.
COLUMNS, THREADS, SHARED = 8192, 256, 4 * (3 * 8 + 8 * 32)
MERGED = 8

SUFFIXES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def partials(problem: ScoringProblem, num_threads: int) -> Partials:
    """Parts of the columns of every job, merged on the device. Nothing waits for it."""
    module = _cuda_module.load("answer_logprob")
    R, M, like = len(problem.rows), len(problem.columns), problem.rows
    parts = max(1, -(-problem.num_entering // COLUMNS))

    def empty(shape: tuple[int, ...], dtype: str, wanted: bool = True) -> Any:
        return _arrays.empty(like, shape, dtype) if wanted else None

    ref, largest, target = empty((R,), "float32"), empty((R,), "float32"), empty((M,), "float32")
    sums, weighted = empty((R,), "float64"), empty((R,), "float64", problem.entropy)
    rank = empty((M,), "int64", problem.rank)
    part_ref, part_sum = empty((R, parts), "float32"), empty((R, parts), "float32")
    part_weighted = empty((R, parts), "float32", problem.entropy)
    part_rank = empty((M, parts), "int32", problem.rank)

    name = f"rsk_score_logits_{SUFFIXES[problem.logits_dtype]}" + ("" if problem.softcap is None else "_softcap")
    module.launch(
        name,
        grid=(R, parts, 1),
        block=(THREADS, 1, 1),
        shared=SHARED,
        arguments=(
            problem.logits,
            _stride(problem.logits),
            len(problem.logits),
            problem.rows,
            problem.inverse_temperature,
            float(problem.logit_scale),
            float(problem.softcap or 0),
            problem.num_columns,
            problem.allowed,
            0 if problem.allowed is None else len(problem.allowed),
            problem.pair_begin,
            problem.columns,
            M,
            problem.target_logits,
            part_ref,
            part_sum,
            part_weighted,
            part_rank,
            target,
        ),
        like=like,
    )
    module.launch(
        "rsk_score_merge",
        grid=(-(-R // MERGED), 1, 1),
        block=(32 * MERGED, 1, 1),
        shared=0,
        arguments=(
            R,
            parts,
            part_ref,
            part_sum,
            part_weighted,
            part_rank,
            problem.pair_begin,
            M,
            ref,
            largest,
            sums,
            weighted,
            rank,
        ),
        like=like,
    )
    return Partials(ref, largest, sums, weighted, target, rank)


def _stride(rows: Any) -> int:
    """Elements from one row to the next."""
    return int(rows.stride(0)) if hasattr(rows, "stride") else int(rows.strides[0] // rows.itemsize)
