"""CUDA C++ on a device: ``csrc/cuda/answer_logprob.cu``, one block a part of a row, on the caller's stream.

The linear form multiplies in full float32 whatever is stored, without matrix instructions: exact as the rules ask, and
meant for devices and libraries that have no Triton.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ..._base import arrays
from ..._gpu import cuda_module, plans
from .._namespace import cast, namespace
from ..problem import Pairs, Partials, ScoringProblem
from .configuration import (
    COLUMNS,
    LOGITS_SHARED,
    SLAB,
    SLOT_THREADS,
    SLOTS_SHARED,
    SOURCE,
    SUFFIXES,
    THREADS,
    WARPS,
    hidden_shared,
    tile_slots,
)


def partials(problem: ScoringProblem, num_threads: int) -> Partials:
    """Sums over the columns of every slot, by parts that are merged on the device. Nothing waits for it."""
    R, result = len(problem.rows), _outputs(problem)
    if R == 0:
        return result
    found = {name: x for name, x in result._asdict().items() if name != "target"}
    if problem.logits is not None:
        _logits(problem, _rules(problem, None), R, _results(target=result.target, **found))
    else:
        _linear(problem, result.target, _results(**found))
    return result


def results(problem: ScoringProblem, pairs: Pairs, wanted: frozenset[str]) -> dict[str, Any]:
    """Return what is wanted of the pairs, rows and answers of a call.

    Each step is one launch: the slots, their sums and what becomes of them, answers. Logits of pairs that each have a
    row of their own need no slots; the targets of the linear form are a launch more.
    """
    like, M, T = pairs.targets, len(pairs.targets), pairs.num_rows
    A, linear, grouped = pairs.num_answers, problem.logits is None, pairs.rows is not None
    rules, R = _rules(problem, pairs), min(M, T)
    found = {
        name: arrays.empty(like, (n,), dtype)
        for names, n in ((_OF_PAIRS, M), (_OF_ROWS, T), (_OF_ANSWERS, A))
        for name, dtype in names.items()
        if name in wanted
    }
    logp64 = arrays.empty(like, (M,), "float64") if wanted & {"sum", "mean"} else None
    state = arrays.empty(like, (M,), "int8") if wanted & {"mean", "count", "greedy"} else None
    of_slots = {name: x for name, x in found.items() if name not in _OF_ANSWERS}
    of_slots |= {"logp64": logp64, "state": state, "pair_of": arrays.empty(like, (M,), "int64") if grouped else None}
    into = _results(**of_slots)
    if grouped or linear:
        slots = {
            "rows": arrays.empty(like, (R,), "int64"),
            "inverse_temperature": arrays.empty(like, (R,), "float32"),
            "pair_begin": arrays.empty(like, (R + 1,), "int64"),
            "columns": arrays.empty(like, (M,), "int64"),
        }
        problem = dataclasses.replace(problem, **slots)
        if grouped:
            room = [arrays.empty(like, (n,), "int32") for n in (T, R)]
            room += [arrays.empty(like, (M,), "int64") for _ in range(2)]
            given = (pairs.targets, pairs.rows, rules, M, T, R, *room, *slots.values(), into)
            _launch("rsk_score_slots", (1, 1, 1), SLOTS_SHARED, like, *given, threads=SLOT_THREADS)
        else:
            grid = (M // THREADS + 1, 1, 1)
            _launch("rsk_score_aligned_slots", grid, 0, like, pairs.targets, rules, M, *slots.values(), into)
    if linear:
        _linear(problem, arrays.empty(like, (M,), "float32"), into)
    else:
        _logits(problem, rules, R, into)
    if A and found.keys() & _OF_ANSWERS.keys():
        of_answers = [found.get(name) for name in _OF_ANSWERS]
        given = (logp64, state, pairs.begin, pairs.order, M, A, *of_answers)
        _launch("rsk_score_answers", (_by_warp(A), 1, 1), 0, like, *given)
    return found


# What a call can want, by what it is said of.
_OF_PAIRS = {"logp": "float32", "rank": "int64"}
_OF_ROWS = {"lse": "float32", "max": "float32", "entropy": "float32"}
_OF_ANSWERS = {"sum": "float64", "mean": "float64", "count": "int64", "greedy": "bool"}


def _rules(problem: ScoringProblem, pairs: Pairs | None) -> cuda_module.Struct:
    """Return the members of Rules; ``pairs`` are None where slots say all of it already."""
    temperature = None if pairs is None or isinstance(pairs.temperature, float) else pairs.temperature
    number = pairs.temperature if pairs is not None and temperature is None else 1.0
    doubles = temperature is not None and not str(temperature.dtype).endswith("float32")
    if doubles:
        temperature = cast(temperature, namespace(temperature).float64)
    own = temperature is not None and math.prod(temperature.shape) != 1  # each answer or pair its own
    return cuda_module.Struct(
        allowed=problem.allowed,
        temperature=temperature,
        begin=pairs.begin if pairs is not None and own else None,
        answers=pairs.answers if pairs is not None and own else None,
        num_columns=problem.num_columns,
        num_allowed=problem.num_entering,
        num_answers=pairs.num_answers if pairs is not None and own else 1,
        ignore=0 if pairs is None else pairs.ignore_index or 0,
        ignores=np.int32(pairs is not None and pairs.ignore_index is not None),
        per_pair=np.int32(pairs is not None and own and not pairs.per_answer),
        doubles=np.int32(doubles),
        inverse=1 / number,
    )


def _parts(problem: ScoringProblem, R: int) -> cuda_module.Struct:
    """Return the members of Parts: room for what blocks leave of their parts, and counts of those that are done."""
    like, width = problem.columns, COLUMNS if problem.logits is not None else SLAB
    count = max(1, -(-problem.num_entering // width))
    if count > 65535 or R >= 2**31:
        raise ValueError(
            f"backend 'cuda' takes up to {65535 * width} columns and 2^31 - 1 rows at a time, "
            f"got {problem.num_entering} and {R}"
        )
    numbers = 3 if problem.entropy else 2
    return cuda_module.Struct(
        sums=arrays.empty(like, (R, count, numbers), "float32"),
        above=arrays.empty(like, (len(like), count), "int32") if problem.rank else None,
        done=plans.counters(like, R) if count > 1 else None,
        count=np.int32(count),
        width=np.int32(numbers),
    )


_RESULTS = ("pair_of", "logp", "logp64", "state", "rank", "lse", "max", "entropy", "target", "ref", "sum", "weighted")


def _results(**found: Any) -> cuda_module.Struct:
    """Return the members of Results; what is not named is not wanted."""
    return cuda_module.Struct(**{name: found.get(name) for name in _RESULTS})


def _outputs(problem: ScoringProblem) -> Partials:
    R, M, like = len(problem.rows), len(problem.columns), problem.rows
    return Partials(
        ref=arrays.empty(like, (R,), "float32"),
        max=arrays.empty(like, (R,), "float32"),
        sum=arrays.empty(like, (R,), "float64"),
        weighted=arrays.empty(like, (R,), "float64") if problem.entropy else None,
        # No kernel writes the targets of no slot (`ScoringProblem`).
        target=arrays.full(like, (M,), float("-inf"), "float32"),
        rank=arrays.full(like, (M,), 0, "int64") if problem.rank else None,
    )


def _launch(
    name: str, grid: tuple[int, int, int], shared: int, like: Any, *arguments: Any, threads: int = THREADS
) -> None:
    run = cuda_module.load(SOURCE).launch
    plans.call(run, name, grid=grid, block=(threads, 1, 1), shared=shared, arguments=arguments, like=like)


def _by_warp(num_slots: int) -> int:
    """Return the blocks of a kernel whose warps have a slot each."""
    return -(-num_slots // WARPS)


def _scales(problem: ScoringProblem) -> tuple[float, float]:
    """Return ``logit_scale`` and ``softcap``, 0 for none."""
    return float(problem.logit_scale), float(problem.softcap or 0)


def _entering(problem: ScoringProblem) -> tuple[Any, ...]:
    """Return the columns that enter."""
    return problem.num_columns, problem.allowed, 0 if problem.allowed is None else len(problem.allowed)


def _logits(problem: ScoringProblem, rules: cuda_module.Struct, R: int, into: cuda_module.Struct) -> None:
    """Launch the logits form."""
    assert problem.logits is not None
    parts = _parts(problem, R)
    _launch(
        f"rsk_score_logits_{SUFFIXES[problem.logits_dtype]}"
        + ("" if problem.softcap is None else "_softcap")
        + ("_own" if problem.rows is None else ""),
        (R, int(parts.members["count"]), 1),
        LOGITS_SHARED,
        problem.columns,
        problem.logits,
        cuda_module.row_stride(problem.logits),
        len(problem.logits),
        rules,
        problem.rows,
        problem.inverse_temperature,
        *_scales(problem),
        *_entering(problem),
        problem.pair_begin,
        problem.columns,
        len(problem.columns),
        problem.target_logits,
        parts,
        into,
    )


def _linear(problem: ScoringProblem, target: Any, into: cuda_module.Struct) -> None:
    """Launch the kernel of targets, which writes their z, then that of tiles, which ranks against them."""
    assert problem.hidden is not None
    R, M, like = len(problem.rows), len(problem.columns), problem.rows
    parts = _parts(problem, R)
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
        (-(-R // tile), int(parts.members["count"]), 1),
        hidden_shared(tile),
        like,
        *matrices,
        *_entering(problem),
        problem.pair_begin,
        M,
        target,
        target if problem.target_logits is None else problem.target_logits,
        parts,
        into,
    )


def _matrix(rows: Any, dtype: str) -> tuple[Any, ...]:
    return rows, cuda_module.row_stride(rows), np.int32(arrays.NUMBERS[dtype])
