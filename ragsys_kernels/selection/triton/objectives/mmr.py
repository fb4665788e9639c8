"""MMR with quality bias: the state is m, the largest similarity of each slot to what was taken."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from ..objective import NO_PICK, mmr_value, running_max
from .objective import Objective


@triton.jit
def start(items, free, RANK: tl.constexpr):
    return (tl.full(items.v.shape, NO_PICK, tl.float32),)


@triton.jit
def value(state, items, free, taken, first):
    return mmr_value(items.v, state[0], items.lambda_d, first), state


@triton.jit
def take(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    return (running_max(state[0], similarity),)


@triton.jit
def outputs(state, items, w, first):
    return tl.where(first, items.lambda_d * items.v, w), tl.where(first, 0.0, state[0])


MMR = Objective(start, value, take, outputs, redundant=True)
