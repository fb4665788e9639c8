"""Sums over the pairs of each answer, by one program an answer: atomic sums would have other bits at every run."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .. import _arrays
from .._gpu import interpreter

ANSWER_BLOCK = 128


@triton.jit(do_not_specialize=["num_pairs"])
def logprob_answers_kernel(
    values,
    begin,
    order,  # None: pairs are in the order of the answers
    sums,
    num_pairs,
    BLOCK: tl.constexpr,
):
    """Sum of the values of the pairs of one answer."""
    answer = tl.program_id(0).to(tl.int64)
    low = tl.maximum(tl.load(begin + answer), 0)
    high = tl.minimum(tl.load(begin + answer + 1), num_pairs)
    total = tl.zeros([BLOCK], tl.float64)
    for first in range(low, high, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < high
        if order is not None:
            i = tl.load(order + i, mask=inside, other=0)
        total += tl.load(values + i, mask=inside, other=0).to(tl.float64)
    tl.store(sums + answer, tl.sum(total, 0))


def answer_sums(values: Any, begin: Any, order: Any) -> Any:
    """Return sums (A,) float64 of values (M,) over answers, whose pairs are ``order[begin[a] : begin[a + 1]]``."""
    A = len(begin) - 1
    sums = _arrays.empty(values, (A,), "float64")
    if A:
        with interpreter.quiet(values):
            logprob_answers_kernel[(A,)](
                values=values,
                begin=begin,
                order=order,
                sums=sums,
                num_pairs=len(values),
                BLOCK=ANSWER_BLOCK,
                num_warps=1,
                enable_fp_fusion=False,
            )
    return sums
