"""Rows of a Cholesky factor, one of each slot: what DPP and SIFT keep; z-scores, which DPP and SSD weigh."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

# What is left of an item is no longer told from rounding if it is at most this share of what the item began with.
ROUNDING = tl.constexpr(1e-5)
_EPS = tl.constexpr(1.1920928955078125e-07)
_SMALLEST = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def of_pick(x, pick):
    """Return what x has for the slot that is taken."""
    return tl.sum(tl.where(pick, x, 0.0), 0)


@triton.jit
def quotient(a, b):
    """Return a / b for slots a and a number b."""
    return tl.div_rn(a, tl.zeros_like(a) + b)


@triton.jit
def without(similarity, rows, pick):
    """Return similarities to the slot that is taken, less what the rows of the factor say [SLOTS, RANK]."""
    own = tl.sum(tl.where(pick[:, None], rows, 0.0), 0)
    return similarity - tl.sum(rows * own[None, :], 1)


@triton.jit
def appended(rows, column, count, RANK: tl.constexpr):
    """Return rows with one more number each."""
    return tl.where(tl.arange(0, RANK)[None, :] == count, column[:, None], rows)


@triton.jit
def z_scores(v, free):
    """Return how many standard deviations v is above the mean of what may be picked; NaN is none of these.

    To the deviation comes the rounding of the largest |v|. Where all v are the same z is 0.
    """
    free = free & (v == v)
    highest = tl.max(tl.where(free, v, float("-inf")), 0)
    lowest = tl.min(tl.where(free, v, float("inf")), 0)
    largest = tl.maximum(tl.maximum(highest, -lowest), 0.0)
    # In units of a power of two near the largest, which changes no digit, so that no square leaves float32.
    unit = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    unit = tl.maximum(unit, _SMALLEST)
    v = quotient(v, unit)
    many = tl.maximum(tl.sum(free.to(tl.float32), 0), 1.0)
    apart = v - tl.div_rn(tl.sum(tl.where(free, v, 0.0), 0), many)
    apart -= tl.div_rn(tl.sum(tl.where(free, apart, 0.0), 0), many)  # what rounding left of the mean
    variance = tl.div_rn(tl.sum(tl.where(free, apart * apart, 0.0), 0), many)
    deviation = tl.sqrt_rn(variance) + tl.div_rn(largest, unit) * _EPS
    return quotient(apart, tl.where(highest > lowest, deviation, float("inf")))
