"""The certificate of a pool: MMR's picks out of it are proven to be those of the whole corpus.

The bounds are in README.md, "The certificate of a pool". The compiled kernels have them in
``csrc/cpu/selection/whole_corpus.inl``; here they are for the reference, in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.arrays import host_view
from .._base.checks import one_or_each, shown
from .problem import Problem, Selection

_EPS = float(np.finfo(np.float32).eps)
_MOST = float(np.finfo(np.float32).max)
# By how much a cosine in float64 may be off: stored rows are unit vectors to the precision of float32 alone.
_SLACK = 32 * _EPS


def read(problem: Problem, given: Any, errors: dict[int, str] | None) -> np.ndarray:
    """Return what no row outside the pool exceeds in v, (Q,) float32, or raise the error that says what is wrong."""
    op, rule = problem.op, "finite, or -inf where there is no row outside"
    if problem.candidates is None and not problem.pool_stride:
        raise ValueError(f"{op}: outside must come with candidates or dense pools, got neither")
    if problem.constraints.quotas is not None and problem.constraints.quotas.asked is not None:
        raise ValueError(f"{op}: outside must come without min_per_group, got both")
    if problem.rows.metric != "cosine":
        raise ValueError(f"{op}: outside must come with metric 'cosine', got {problem.rows.metric!r}")
    # The common case first: what follows takes six microseconds.
    plain = type(given) is np.ndarray and given.dtype == np.float32 and given.shape == (problem.num_queries,) != (0,)
    if plain and given.max() <= _MOST:
        return np.ascontiguousarray(given)
    if isinstance(given, (bool, str)):
        raise TypeError(f"{op}: outside must be a number or an array of shape (Q,), got {shown(given)}")
    if isinstance(given, (int, float)):
        if not given < _MOST:
            raise ValueError(f"{op}: outside must be {rule}, got {shown(given)}")
        array = np.array(float(given) if given > -_MOST else -np.inf)
    else:
        array = np.asarray(host_view(op, "outside", given)[0])
    if array.dtype.kind not in "fiu" or array.dtype == np.uint16:
        raise TypeError(f"{op}: outside must be a number or a float array of shape (Q,), got {array.dtype}")
    array = one_or_each(op, "outside", array, np.asarray(array < _MOST), problem.num_queries, rule, -np.inf, errors)
    with np.errstate(over="ignore"):  # far below any v: as good as -inf
        return np.array(array, np.float32)


def most_bias(problem: Problem) -> float | None:
    """Return what no row exceeds in its bias, infinity where it is not known of rows outside; None without a bias."""
    if problem.bias is None:
        return None
    return float(remaining(problem, problem.bias).max()) if problem.bias.ndim == 1 else np.inf


def remaining(problem: Problem, values: np.ndarray) -> np.ndarray:
    """Return values (N,) without those of deleted rows, unless all rows are deleted."""
    live = problem.rows.live
    return values if live is None or not live.any() else values[live]


def reach(
    values: np.ndarray,
    cosines: np.ndarray | None,
    known: np.ndarray,
    lambda_d: float,
    lambda_b: float,
    bias: float | None,
    slack: float = _SLACK,
) -> np.ndarray:
    """Return, for each pick of a query, the largest v that rows outside may have for none of them to be worth as much.

    Parameters
    ----------
    values : (K,)
        What each pick was worth: v where it was the first, w otherwise.
    cosines : (S + K,) or None
        Of the query with the initial items and with the picks; None where relevance was given.
    known : (K,)
        How many of these were picks already.
    bias : float or None
        No row outside has a larger one; None: rows have no bias.
    """
    weight, added = (1.0, 0.0) if bias is None else (lambda_b, (1 - lambda_b) * bias if lambda_b < 1 else 0.0)
    redundancy_weight = 1 - lambda_d
    values = values - (1e-6 + 4 * slack + 8 * _EPS * np.abs(values))
    # A row opposite to all picks.
    found = (values - redundancy_weight) / lambda_d if lambda_d > 0 else np.full(len(values), -np.inf)
    if cosines is not None and weight > 0 and np.isfinite(added):
        y = np.clip(cosines, -1, 1)
        a, b = lambda_d * weight - redundancy_weight * y, redundancy_weight * np.sqrt(1 - y**2 + 2 * slack)
        crest2 = a**2 + b**2
        above = (values - lambda_d * added)[:, None]
        root = np.sqrt(np.maximum(crest2 - above**2, 0))
        x, sine = (a * above - b * root) / crest2, b * above + a * root
        by_angle = np.where(sine >= 0, weight * x + added, -np.inf)
        if bias is not None:  # of nearer rows, which a small bias leaves at this v, some are opposite to the pick
            by_angle = np.where(x > -y, by_angle, -np.inf)
        by_angle = np.where(np.abs(above) < np.sqrt(crest2), by_angle, np.where(above > 0, np.inf, -np.inf))
        by_angle = np.where(np.arange(len(y)) < known[:, None], by_angle, -np.inf)
        found = np.maximum(found, by_angle.max(axis=1, initial=-np.inf))
    found = np.where(known == 0, values, found)
    return np.asarray(found - slack - 16 * _EPS * (1 + np.minimum(np.abs(found), 1e30)))


def conclude(problem: Problem, picks: Selection, asked: Any) -> None:
    """Complete `pool_needed` where the backend did not know what was asked, and compare it with what is outside."""
    needed, limits = picks.pool_needed, problem.constraints
    if limits.costs is not None or (asked if type(asked) is int else int(asked.max())) > problem.k:
        short = np.asarray(picks.lengths < asked)
        if limits.costs is not None and limits.costs.ndim == 1:
            # Nothing in the corpus costs as little as what is left.
            spent = np.where(picks.indices < 0, 0.0, limits.costs[picks.indices]).cumsum(axis=1)[:, -1]
            short &= spent + remaining(problem, limits.costs).min() <= limits.budget
        needed[short & ~np.isnan(needed)] = -np.inf
    if limits.min_relevance is not None and problem.bias is None:  # rows outside are left out with less than that
        with np.errstate(over="ignore"):  # below the least number there is
            below = np.nextafter(limits.min_relevance, np.float32(-np.inf))
        needed = picks.pool_needed = np.maximum(needed, below)
    picks.certified = problem.outside <= needed
