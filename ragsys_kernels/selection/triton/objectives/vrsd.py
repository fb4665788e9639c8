"""VRSD, of which s is the sum of what was taken.

The state: t = s·e and |s + e|² of each slot; |s|², s·q/|q| and the sum of the lengths of what was taken; ``terms``, the
sizes of all that was added to |s|², whose rounding stays in it when it has become shorter.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from ..objective import CANCELS, vrsd_value
from .objective import Objective

# Of the rows, where they are read again because a sum cancels: so few that they take no registers from the rest.
SLICE = tl.constexpr(16)


@triton.jit
def _sum_squares(items, taken):
    """Return |s + e|² of every slot from the rows themselves."""
    d = tl.arange(0, SLICE)
    squares = tl.zeros([items.v.shape[0], SLICE], tl.float32)
    for d0 in range(0, items.D, SLICE):
        mask = items.valid[:, None] & (d0 + d < items.D)[None, :]
        e = tl.load(items.rows + items.offset[:, None] + (d0 + d)[None, :], mask=mask, other=0)
        e = e.to(tl.float32) * items.factor[:, None]  # [SLOTS, SLICE]
        s = tl.sum(tl.where(taken[:, None], e, 0.0), 0)
        squares += (e + s[None, :]) * (e + s[None, :])
    return tl.sum(squares, 1)


@triton.jit
def start(items, free, RANK: tl.constexpr):
    zeros = tl.zeros(items.v.shape, tl.float32)
    return zeros, zeros, 0.0, 0.0, 0.0, 0.0


@triton.jit
def value(state, items, free, taken, first):
    t, square, s_square, s_query, s_length, terms = state
    own = items.length * items.length
    square = s_square + 2.0 * t + own
    cancels = free & (square < CANCELS * (terms + 2.0 * tl.abs(t) + own))
    if tl.max(cancels.to(tl.int32), 0) > 0:
        square = tl.where(cancels, _sum_squares(items, taken), square)
    w = vrsd_value(items.v, items.length, square, s_query, s_length, first)
    return w, (t, square, s_square, s_query, s_length, terms)


@triton.jit
def take(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    t, square, s_square, s_query, s_length, terms = state
    terms += tl.sum(tl.where(pick, 2.0 * tl.abs(t) + items.length * items.length, 0.0), 0)
    t += similarity
    if INITIAL:  # |s + e|² of which is not known
        s_square = tl.sum(tl.where(taken, t, 0.0), 0)
    else:
        s_square = tl.sum(tl.where(pick, square, 0.0), 0)
    s_query += tl.sum(tl.where(pick, items.v * items.length, 0.0), 0)
    s_length += tl.sum(tl.where(pick, items.length, 0.0), 0)
    return t, square, s_square, s_query, s_length, terms


@triton.jit
def outputs(state, items, w, first):
    return w, tl.full(w.shape, float("nan"), tl.float32)


VRSD = Objective(start, value, take, outputs, lengths=True, initial=True, cosine=True)
