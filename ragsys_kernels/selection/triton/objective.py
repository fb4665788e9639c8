"""What the Triton kernels of all three regimes share: who may be picked, relevance with bias, the value of a pick.

Kernels call these functions. An item that may not be picked (any more) has a value of NaN or -inf, which `comparable`
treats alike; so an item whose own data is NaN is never picked either.

Roots and quotients are rounded as IEEE 754 says, by `tl.sqrt_rn` and `tl.div_rn`: on NVIDIA `tl.sqrt` and `/` are
approximations, which the interpreter does not show.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

# A sum of vectors shorter than this share of its terms' lengths is zero to the precision of float32 data.
ZERO_SUM = tl.constexpr(1e-6)
# Where |s + e|² is below this share of |s|² + |e|², its float32 terms cancel.
CANCELS = tl.constexpr(1 / 32)

# m before the first pick. Finite, as its product with 1 - λ_d = 0 must be a number.
NO_PICK = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def pool_ids(candidates, q, p, P, num_ids):
    """Return the ids at positions p of query q's pool, 0 where one is padding, and whether each is an id."""
    if candidates is None:
        ids = p.to(tl.int64)
    else:
        ids = tl.load(candidates + q * P + p, mask=p < P, other=-1).to(tl.int64)
    valid = (p < P) & (ids >= 0) & (ids < num_ids)
    return tl.where(valid, ids, 0), valid


@triton.jit
def may_be_picked(ids, rows, valid, q, initial, S, groups, query_groups):
    """Return whether items are neither padding, nor shown already, nor of the query's own group."""
    free = valid
    if initial is not None:
        for s in range(S):
            free &= ids != tl.load(initial + q * S + s).to(tl.int64)
    if query_groups is not None:
        free &= tl.load(groups + rows, mask=valid, other=0) != tl.load(query_groups + q)
    return free


@triton.jit
def inverse(x):
    """Return 1 / x, and 0 where x is 0; NaN stays."""
    return tl.where(x == 0, 0.0, tl.div_rn(1.0, tl.where(x == 0, 1.0, x)))


@triton.jit
def with_bias(r, bias, at, mask, lambda_b):
    """Return v = λ_b r + (1-λ_b) b, or r without a bias."""
    v = r
    if bias is not None:
        v = lambda_b * r + (1.0 - lambda_b) * tl.load(bias + at, mask=mask, other=0.0)
    return v


@triton.jit
def mmr_value(v, m, lambda_d, first):
    """Return w = λ_d v - (1-λ_d) m, and v where nothing has been picked."""
    return tl.where(first, v, lambda_d * v - (1.0 - lambda_d) * m)


@triton.jit
def vrsd_value(r, length, square, s_query, s_length, first):
    """Return cos(s + e, q) with square = |s + e|², and r where nothing has been picked."""
    norm = tl.sqrt_rn(tl.where(square < 0, 0.0, square))
    zero = norm <= ZERO_SUM * (s_length + length)
    w = tl.where(zero, 0.0, tl.div_rn(s_query + r * length, tl.where(zero, 1.0, norm)))
    return tl.where(first, r, w)


@triton.jit
def running_max(m, similarity):
    """Return max(m, similarity); NaN in either stays, because it marks an item that may not be picked."""
    return tl.maximum(m, similarity, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def comparable(w, free):
    """Return w where an item may be picked, else -inf."""
    return tl.where(free & (w > float("-inf")), w, float("-inf"))


@triton.jit
def still_open(m, most):
    """Return whether items whose largest similarity is m may be picked, ``most`` being the ceiling if there is one.

    NaN as m marks what may not be picked.
    """
    if most is None:
        return m == m
    else:
        return m <= most


@triton.jit
def within_budget(costs, budget, spent, q, p, rows, mask, P, BY_ROW: tl.constexpr):
    """Return whether items at positions p, of these rows, fit in what is left of query q's budget."""
    cost = tl.load(costs + (rows if BY_ROW else q * P + p), mask=mask, other=0.0)
    return spent + cost <= tl.load(budget + q)


@triton.jit
def best_of(w, positions):
    """Return the largest value and the lowest of its positions."""
    best = tl.max(w, 0)
    return best, tl.min(tl.where(w == best, positions, 0x7FFFFFFFFFFFFFFF), 0)


@triton.jit
def store_pick(at, found, item, score, relevance, redundancy, out_index, out_score, out_relevance, out_redundancy):
    """Store the outputs of one step: padding where nothing was found."""
    nan = float("nan")
    tl.store(out_index + at, tl.where(found, item, -1))
    tl.store(out_score + at, tl.where(found, score, float("-inf")))
    tl.store(out_relevance + at, tl.where(found, relevance, nan))
    tl.store(out_redundancy + at, tl.where(found, redundancy, nan))


@triton.jit
def group_count(group, groups, q, step, K, offset, num_ids, initial, S, shown, out_index, BLOCK: tl.constexpr):
    """Return how many of the first ``step`` picks and ``shown`` initial items of query q are of a group."""
    j = tl.arange(0, BLOCK)
    count = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, step, BLOCK):
        ids = tl.load(out_index + q * K + begin + j, mask=begin + j < step, other=-1)
        known = ids >= 0
        count += (known & (tl.load(groups + offset + ids, mask=known, other=0) == group)).to(tl.int32)
    if initial is not None:
        for begin in range(0, shown, BLOCK):
            ids = tl.load(initial + q * S + begin + j, mask=begin + j < shown, other=-1).to(tl.int64)
            known = (ids >= 0) & (ids < num_ids)
            count += (known & (tl.load(groups + offset + ids, mask=known, other=0) == group)).to(tl.int32)
    return tl.sum(count, 0)
