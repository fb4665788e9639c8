"""GIST: a sum of relevance and the least distance between picks, within a known share of the best.

All picks of a query are chosen together, so that it is no class as the other rules are.
"""

from __future__ import annotations

import numpy as np

from ..problem import Problem, Selection
from . import gist_large
from .pool import in_range, pool_of

# A query's items have a matrix of their distances if these are at most so many (512 MiB).
_MOST_DISTANCES = 1 << 26


def select(problem: Problem, q: int, found: Selection) -> None:
    """Make the picks of a query."""
    pool, eps = pool_of(problem, q), problem.options.eps
    n, k = len(pool.rows), problem.k if problem.ks is None else int(problem.ks[q])
    if not n:
        return
    squares = np.einsum("nd,nd->n", pool.e, pool.e)
    weight = float(problem.lambda_d[q])
    if n**2 > _MOST_DISTANCES:
        in_range(problem, q, squares)
        picks, largest = gist_large.best_of(pool.v, pool.e, squares, min(k, n), weight, eps)
        of_picks = pool.e[picks]
        similarity = of_picks @ of_picks.T
        distance = gist_large.distances(of_picks, squares[picks], of_picks, squares[picks])
    else:
        similarity = pool.e @ pool.e.T
        in_range(problem, q, similarity)
        distance = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * similarity, 0))
        np.fill_diagonal(distance, 0)
        largest = float(distance.max())
        picks = best_of(pool.v, distance, largest, min(k, n), weight, eps)
        similarity, distance = (each[np.ix_(picks, picks)] for each in (similarity, distance))
    values = objective(pool.v[picks], distance, largest, weight)
    in_range(problem, q, np.asarray(values))
    for step, i in enumerate(picks):
        found.indices[q, step] = pool.rows[i] - q * problem.pool_stride
        found.scores[q, step] = values[step]
        found.relevance[q, step] = pool.v[i]
        found.redundancy[q, step] = similarity[step, :step].max() if step else 0.0
    found.lengths[q] = len(picks)


def objective(v: np.ndarray, distance: np.ndarray, largest: float, weight: float) -> list[float]:
    """Return f of the picks up to each, from their v and their distances."""
    least, total, found = largest, 0.0, []
    for step in range(len(v)):
        total += float(v[step])
        least = min(least, float(distance[step, :step].min(initial=np.inf)))
        found.append(weight * total + (1 - weight) * least)
    return found


def best_of(v: np.ndarray, distance: np.ndarray, largest: float, k: int, weight: float, eps: float) -> list[int]:
    """Return the best of what the thresholds give, as items in the order in which they are taken."""
    order = np.argsort(-v, kind="stable")
    sets = _apart(distance, order, k, np.zeros(1))
    if k >= 2 and largest > 0:
        pair = np.unravel_index(np.argmax(distance), distance.shape)
        sets.append(sorted((int(i) for i in pair), key=lambda i: (-v[i], i)))
    if largest > 0:
        powers = (1 + eps) ** np.arange(1 + int(np.floor(np.log(2 / eps) / np.log1p(eps))))
        sets += _apart(distance, order, k, powers * eps * largest / 2)
    values = [weight * v[picks].sum() + (1 - weight) * _least(distance, picks, largest) for picks in sets]
    return sets[int(np.argmax(values))]


def _least(distance: np.ndarray, picks: list[int], alone: float) -> float:
    """Return the least distance of two picks, or that of one alone."""
    if len(picks) < 2:
        return alone
    among = distance[picks][:, picks]
    return float(among[np.tri(len(picks), k=-1, dtype=bool)].min())


def _apart(distance: np.ndarray, order: np.ndarray, k: int, thresholds: np.ndarray) -> list[list[int]]:
    """Return, for each threshold, the first k items of an order that are so far from those before them."""
    apart = distance[np.ix_(order, order)]
    free = np.ones((len(thresholds), len(order)), bool)
    sets: list[list[int]] = [[] for _ in thresholds]
    for _ in range(k):
        first = free.argmax(axis=1)
        some = np.flatnonzero(free[np.arange(len(thresholds)), first])
        if not some.size:
            break
        for t in some.tolist():
            sets[t].append(int(order[first[t]]))
        free[some] &= apart[first[some]] >= thresholds[some, None]
        free[some, first[some]] = False
    return sets
