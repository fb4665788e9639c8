"""Max-sum dispersion: the state is the sum of each slot's similarities to what was taken, and how many that is."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from .objective import Objective


@triton.jit
def start(items, free, RANK: tl.constexpr):
    return tl.zeros(items.v.shape, tl.float32), 0.0


@triton.jit
def value(state, items, free, taken, first):
    sums, count = state
    w = items.lambda_d * items.v + (1.0 - items.lambda_d) * (items.far * count - sums)
    return tl.where(first, items.v, w), state


@triton.jit
def take(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    sums, count = state
    return sums + similarity, count + 1.0


@triton.jit
def outputs(state, items, w, first):
    sums, count = state
    mean = tl.div_rn(sums, tl.zeros_like(sums) + tl.maximum(count, 1.0))
    return tl.where(first, items.lambda_d * items.v, w), mean


MSD = Objective(start, value, take, outputs, redundant=True)
