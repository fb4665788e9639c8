"""Sliding spectrum decomposition: relevance, and what a slot adds to the volume of the last picks.

The state: z-scores; n, the squared distance of [e, 1] from the span of the picks that count.

SSD, where all picks count, further has for each of these u, the product of each slot with its part b that those before
it left; |b|², 0 where there is none; how many were taken.

SSD_WINDOW, where only the last do, has the products of each slot with these picks, as columns that later picks take
over in turn; which pick each slot was, -1 for others; how many were taken. At every pick it makes the
directions anew: unit vectors, each combined from the picks by a row of numbers, of 0 where there is none.
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
def _squared_length(items):
    return items.length * items.length + 1.0


@triton.jit
def start(items, free, RANK: tl.constexpr):
    rows = tl.zeros([items.v.shape[0], RANK], tl.float32)
    return z_scores(items.v, free), _squared_length(items), rows, tl.sum(rows, 0), 0


@triton.jit
def value(state, items, free, taken, first):
    return tl.where(first, state[0], _worth(state, items)), state


@triton.jit
def take(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    z, n, rows, squares, count = state
    some = squares > 0.0
    share = tl.where(some, tl.div_rn(1.0, tl.where(some, squares, 1.0)), 0.0)
    own = tl.sum(tl.where(pick[:, None], rows, 0.0), 0)
    u = similarity + 1.0 - tl.sum(rows * (own * share)[None, :], 1)
    place = tl.arange(0, rows.shape[1]) == count
    left = of_pick(n, pick)
    some_left = left > ROUNDING * of_pick(_squared_length(items), pick)
    n -= tl.where(some_left, tl.div_rn(u * u, tl.zeros_like(u) + tl.where(some_left, left, 1.0)), 0.0)
    squares = tl.where(place, tl.where(some_left, left, 0.0), squares)
    return z, n, tl.where(place[None, :], u[:, None], rows), squares, count + 1


@triton.jit
def outputs(state, items, w, first):
    return _worth(state, items), tl.full(w.shape, float("nan"), tl.float32)


@triton.jit
def start_window(items, free, RANK: tl.constexpr):
    products = tl.zeros([items.v.shape[0], RANK], tl.float32)
    return z_scores(items.v, free), _squared_length(items), products, tl.zeros(items.v.shape, tl.int32) - 1, 0


@triton.jit
def take_window(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    z, n, products, order, count = state
    column = tl.arange(0, products.shape[1])
    products = tl.where((column == count % items.window)[None, :], (similarity + 1.0)[:, None], products)
    order = tl.where(pick, count, order)
    n = _squared_length(items)
    directions = tl.zeros([products.shape[1], products.shape[1]], tl.float32)
    for at in range(tl.maximum(count + 1 - items.window, 0), count + 1):  # the oldest first
        here = column == at % items.window
        this = order == at
        own = tl.sum(tl.where(this[:, None], products, 0.0), 0)
        parts = tl.sum(directions * own[None, :], 1)
        combined = here.to(tl.float32) - tl.sum(directions * parts[:, None], 0)
        left = of_pick(n, this)
        some_left = left > ROUNDING * of_pick(_squared_length(items), this)
        share = tl.where(some_left, tl.div_rn(1.0, tl.sqrt_rn(tl.where(some_left, left, 1.0))), 0.0)
        combined *= share
        u = tl.sum(products * combined[None, :], 1)
        n -= u * u
        directions = tl.where(here[:, None], combined[None, :], directions)
    return z, n, products, order, count + 1


SSD = Objective(start, value, take, outputs, lengths=True, ranked=True)
SSD_WINDOW = Objective(start_window, value, take_window, outputs, lengths=True, ranked=True)
