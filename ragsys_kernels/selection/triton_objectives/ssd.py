"""Sliding spectrum decomposition: relevance, and what a slot adds to the volume of the last picks.

The state: z-scores; n, the squared distance of [e, 1] from the span of the last picks; for each of these u, the
product of each slot with its part b that those before it left; |b|², 0 where there is none; how many were taken. The
oldest of a full window has its place in the rows given away.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from .factor import ROUNDING, of_pick, z_scores
from .objective import Objective


@triton.jit
def _worth(state, items):
    return items.lambda_d * state[0] + (1.0 - items.lambda_d) * items.number * tl.sqrt_rn(tl.maximum(state[1], 0.0))


@triton.jit
def start(items, free, RANK: tl.constexpr):
    n = items.length * items.length + 1.0
    rows = tl.zeros([items.v.shape[0], RANK], tl.float32)
    return z_scores(items.v, free), n, rows, tl.sum(rows, 0), 0


@triton.jit
def value(state, items, free, taken, first):
    return tl.where(first, state[0], _worth(state, items)), state


@triton.jit
def take(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    z, n, rows, squares, count = state
    some = squares > 0.0
    share = tl.where(some, tl.div_rn(1.0, tl.where(some, squares, 1.0)), 0.0)
    left = of_pick(n, pick)
    own = tl.sum(tl.where(pick[:, None], rows, 0.0), 0)
    u = similarity + 1.0 - tl.sum(rows * (own * share)[None, :], 1)
    place = tl.arange(0, rows.shape[1]) == count % items.window
    oldest = tl.where(place[None, :], rows, 0.0)
    n += tl.sum(oldest * oldest * share[None, :], 1)
    # Of a pick of which nothing is left to tell from rounding the window has a place all the same.
    some_left = left > ROUNDING * (of_pick(items.length * items.length, pick) + 1.0)
    square = tl.where(some_left, left, 0.0)
    n -= tl.where(some_left, tl.div_rn(u * u, tl.zeros_like(u) + tl.where(some_left, left, 1.0)), 0.0)
    return z, n, tl.where(place[None, :], u[:, None], rows), tl.where(place, square, squares), count + 1


@triton.jit
def outputs(state, items, w, first):
    return _worth(state, items), tl.full(w.shape, float("nan"), tl.float32)


SSD = Objective(start, value, take, outputs, lengths=True, ranked=True)
