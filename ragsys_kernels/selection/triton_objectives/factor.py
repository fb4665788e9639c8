"""Rows of a Cholesky factor, one of each slot: what DPP and SIFT keep; z-scores, which DPP and SSD weigh."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

# What is left of an item is no longer told from rounding if it is at most this share of what the item began with.
ROUNDING = tl.constexpr(1e-5)
_EPS = tl.constexpr(1.1920928955078125e-07)


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
    """Return how many standard deviations v is above the mean of what may be picked; NaN is none of these."""
    free = free & (v == v)
    many = tl.maximum(tl.sum(free.to(tl.float32), 0), 1.0)
    mean = tl.div_rn(tl.sum(tl.where(free, v, 0.0), 0), many)
    apart = v - mean
    variance = tl.div_rn(tl.sum(tl.where(free, apart * apart, 0.0), 0), many)
    return quotient(apart, tl.sqrt_rn(variance) + _EPS)
