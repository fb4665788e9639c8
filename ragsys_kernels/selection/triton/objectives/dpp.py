"""Determinantal point process, greedily: L_ij = q_i s_ij q_j.

The state: d, by how much each slot enlarges the determinant; d before anything was taken; the quality q; the rows of
the Cholesky factor and how many numbers they have. Whatever quality an initial item has, the others keep the same d.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from .factor import ROUNDING, appended, of_pick, quotient, without, z_scores
from .objective import Objective


@triton.jit
def start(items, free, RANK: tl.constexpr):
    quality = items.quality
    if quality is None:
        quality = tl.exp(items.number * items.lambda_d * z_scores(items.v, free))
    quality = tl.where(free, quality, 1.0)
    weight = quality * items.length
    d = weight * weight
    return d, d, quality, tl.zeros([items.v.shape[0], RANK], tl.float32), 0


@triton.jit
def value(state, items, free, taken, first):
    d = state[0]
    return tl.where(d > ROUNDING * state[1], d, float("nan")), state


@triton.jit
def take(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    d, began, quality, rows, count = state
    own = of_pick(d, pick)
    # An initial item that those before it span changes nothing.
    some = own > ROUNDING * of_pick(began, pick)
    left = without(quality * similarity * of_pick(quality, pick), rows, pick)
    column = tl.where(some, quotient(left, tl.sqrt_rn(tl.where(some, own, 1.0))), 0.0)
    return d - column * column, began, quality, appended(rows, column, count, rows.shape[1]), count + 1


@triton.jit
def outputs(state, items, w, first):
    return w, tl.full(w.shape, float("nan"), tl.float32)


DPP = Objective(start, value, take, outputs, lengths=True, ranked=True)
