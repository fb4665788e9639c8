"""SIFT: what leaves the least uncertainty about the query, in a Gaussian process with noise.

The state: u, the covariance of each slot with the query; d, its variance; the rows of the Cholesky factor and how many
numbers they have; the variance that is left at the query.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from .factor import appended, of_pick, quotient, without
from .objective import Objective


@triton.jit
def _gain(u, d, noise):
    return tl.div_rn(u * u, tl.maximum(d, 0.0) + noise)


@triton.jit
def start(items, free, RANK: tl.constexpr):
    return items.v, items.length * items.length, tl.zeros([items.v.shape[0], RANK], tl.float32), 0, 1.0


@triton.jit
def value(state, items, free, taken, first):
    gain = _gain(state[0], state[1], items.number)
    return tl.where(gain >= items.second, gain, float("nan")), state


@triton.jit
def take(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    u, d, rows, count, left = state
    root = tl.sqrt_rn(tl.maximum(of_pick(d, pick), 0.0) + items.number)
    column = quotient(without(similarity, rows, pick), root)
    at_query = tl.div_rn(of_pick(u, pick), root)
    rows = appended(rows, column, count, rows.shape[1])
    return u - column * at_query, d - column * column, rows, count + 1, left - at_query * at_query


@triton.jit
def outputs(state, items, w, first):
    return state[4] - w, tl.full(w.shape, float("nan"), tl.float32)


SIFT = Objective(start, value, take, outputs, lengths=True, initial=True, ranked=True)
