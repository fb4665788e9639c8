"""Results of answers, by one program each: atomic sums would have other bits at every run."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..._base import arrays
from ..._gpu import interpreter
from ..._gpu.plans import launch
from ..problem import Pairs
from .finish import COUNTED, MISSED

ANSWER_BLOCK = 128


@triton.jit(do_not_specialize=["num_pairs"])
def logprob_answers_kernel(
    values,  # [M] None where neither sums nor means are wanted
    state,  # [M] int8; None where only sums are wanted
    begin,  # None: one answer has all pairs
    order,  # None: pairs are in the order of the answers
    sums,  # [A]; None where not wanted, as all that follow
    means,
    counts,
    greedy,
    num_pairs,
    BLOCK: tl.constexpr,
):
    """Sum, mean, count and greedy flag of the pairs of one answer."""
    answer = tl.program_id(0).to(tl.int64)
    low = tl.zeros([], tl.int64)
    high = low + num_pairs
    if begin is not None:
        low = tl.maximum(tl.load(begin + answer), 0)
        high = tl.minimum(tl.load(begin + answer + 1), high)
    total = tl.zeros([BLOCK], tl.float64)
    counted = tl.zeros([BLOCK], tl.int64)
    missed = tl.zeros([BLOCK], tl.int32)
    for first in range(low, high, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < high
        if order is not None:
            i = tl.load(order + i, mask=inside, other=0)
        if values is not None:
            total += tl.load(values + i, mask=inside, other=0).to(tl.float64)
        if state is not None:
            bits = tl.load(state + i, mask=inside, other=0).to(tl.int32)
            counted += bits & COUNTED
            missed |= bits & MISSED
    whole = tl.sum(total, 0)
    number = tl.sum(counted, 0)
    if sums is not None:
        tl.store(sums + answer, whole)
    if means is not None:
        tl.store(means + answer, whole / number.to(tl.float64))
    if counts is not None:
        tl.store(counts + answer, number)
    if greedy is not None:
        tl.store(greedy + answer, tl.max(missed, 0) == 0)


def _launch(M: int, values: Any, state: Any, begin: Any, order: Any, found: dict[str, Any], A: int) -> None:
    if A:
        launch(
            logprob_answers_kernel,
            (A,),
            values=values,
            state=state,
            begin=begin,
            order=order,
            sums=found.get("sum"),
            means=found.get("mean"),
            counts=found.get("count"),
            greedy=found.get("greedy"),
            num_pairs=M,
            BLOCK=ANSWER_BLOCK,
            num_warps=1,
            enable_fp_fusion=False,
        )


def answers(pairs: Pairs, logp64: Any, state: Any, wanted: frozenset[str]) -> dict[str, Any]:
    """Return what is wanted of answers, from log p and `state` of their pairs."""
    like, A = pairs.targets, pairs.num_answers
    dtypes = {"sum": "float64", "mean": "float64", "count": "int64", "greedy": "bool"}
    found = {name: arrays.empty(like, (A,), dtype) for name, dtype in dtypes.items() if name in wanted}
    if found:
        _launch(len(like), logp64, state, pairs.begin, pairs.order, found, A)
    return found


def answer_sums(values: Any, begin: Any, order: Any) -> Any:
    """Return sums (A,) float64 of values (M,) over answers, whose pairs are ``order[begin[a] : begin[a + 1]]``."""
    A = len(begin) - 1
    sums = arrays.empty(values, (A,), "float64")
    with interpreter.quiet(values):
        _launch(len(values), values, None, begin, order, {"sum": sums}, A)
    return sums
