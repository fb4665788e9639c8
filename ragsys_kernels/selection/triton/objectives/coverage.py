"""Coverage of aspects, which are the items that may be picked: facility location, a concave sum, xQuAD.

The state: what the aspect of each slot has of the picks, and the weight of an aspect. Similarities are symmetric, so
what a pick gives to the aspects is its similarity to their slots. A slot that is no aspect begins with so much that
nothing adds to it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from .objective import Objective

# A sum of similarities that no further one changes in float32.
_FULL = tl.constexpr(1e30)


@triton.jit
def _clipped(similarity, far):
    """Return similarities, at least 0, of unit vectors at most 1."""
    return tl.minimum(tl.maximum(similarity, 0.0), tl.where(far + tl.zeros([], tl.float32) > 0.0, 1.0, float("inf")))


@triton.jit
def _start(items, free, begin, beyond):
    aspects = tl.sum(free.to(tl.float32), 0)
    return tl.where(free, begin, beyond), tl.div_rn(1.0, tl.maximum(aspects, 1.0))


@triton.jit
def _power(x, gamma):
    return tl.where(x > 0.0, tl.exp2(gamma * tl.log2(tl.where(x > 0.0, x, 1.0))), 0.0)


@triton.jit
def _facility(similarity, covered, gamma):
    return tl.maximum(similarity - covered, 0.0)


@triton.jit
def _cover(similarity, covered, gamma):
    return _power(similarity + covered, gamma) - _power(covered, gamma)


@triton.jit
def _xquad(similarity, left, gamma):
    return tl.minimum(similarity, 1.0) * left


@triton.jit
def _worth(state, items, weight, ADDED: tl.constexpr):
    """Return the values of all slots: ``ADDED`` is what one adds to an aspect.

    Aspects come in groups: values for all of them at a time would take more registers than there are.
    """
    SLOTS: tl.constexpr = items.gram.shape[1]
    WIDTH: tl.constexpr = min(SLOTS, 32)
    GROUPS: tl.constexpr = SLOTS // WIDTH
    group = tl.arange(0, GROUPS)
    rows = tl.reshape(items.gram, [SLOTS, GROUPS, WIDTH])
    aspects = tl.reshape(state[0], [GROUPS, WIDTH])
    gain = tl.zeros([SLOTS], tl.float32)
    for g in range(GROUPS):
        similarity = tl.sum(tl.where(group[None, :, None] == g, rows, 0.0), 1)
        has = tl.sum(tl.where(group[:, None] == g, aspects, 0.0), 0)
        gain += tl.sum(ADDED(_clipped(similarity, items.far), has[None, :], items.number), 1)
    return items.lambda_d * items.v + (1.0 - items.lambda_d) * weight * gain


@triton.jit
def facility_start(items, free, RANK: tl.constexpr):
    return _start(items, free, 0.0, float("inf"))


@triton.jit
def facility_value(state, items, free, taken, first):
    return _worth(state, items, state[1], _facility), state


@triton.jit
def facility_take(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    covered, weight = state
    return tl.maximum(covered, _clipped(similarity, items.far)), weight


@triton.jit
def cover_start(items, free, RANK: tl.constexpr):
    return _start(items, free, 0.0, _FULL)


@triton.jit
def cover_value(state, items, free, taken, first):
    return _worth(state, items, 1.0, _cover), state


@triton.jit
def cover_take(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    covered, weight = state
    return covered + _clipped(similarity, items.far), weight


@triton.jit
def xquad_start(items, free, RANK: tl.constexpr):
    return _start(items, free, 1.0, 0.0)


@triton.jit
def xquad_value(state, items, free, taken, first):
    return _worth(state, items, state[1], _xquad), state


@triton.jit
def xquad_take(state, items, similarity, pick, taken, INITIAL: tl.constexpr):
    left, weight = state
    return left * (1.0 - _clipped(similarity, 1.0)), weight


@triton.jit
def outputs(state, items, w, first):
    return w, tl.full(w.shape, float("nan"), tl.float32)


FACILITY = Objective(facility_start, facility_value, facility_take, outputs, whole=True)
COVER = Objective(cover_start, cover_value, cover_take, outputs, whole=True)
XQUAD = Objective(xquad_start, xquad_value, xquad_take, outputs, whole=True)
