"""Pools to compare a drop-in with its peer on, and the comparison.

Two rules agree if they pick the same items in the same order up to a step at which the values of their picks, in
float64, are nearer to each other than rounding; what ours picks after that is held to the float64 values alone. On
pools whose sums are exact nothing but the same picks will do.
"""

from typing import NamedTuple

import numpy as np

TOLERANCE = 3e-6


class Pool(NamedTuple):
    name: str
    query: np.ndarray
    rows: np.ndarray
    exact: bool = False


def pools(seed=0):
    """Random and adversarial pools; those of signs have norms and cosines that are binary fractions."""
    rng = np.random.default_rng(seed)
    for n, dims in ((1, 3), (2, 8), (12, 16), (40, 24)):
        yield Pool(f"random {n}", rng.standard_normal(dims), rng.standard_normal((n, dims)))
        yield Pool(f"signs {n}", rng.choice([-1.0, 1.0], 16), rng.choice([-1.0, 1.0], (n, 16)), exact=True)
    few = rng.standard_normal((4, 8))
    yield Pool("duplicates", rng.standard_normal(8), few[rng.integers(0, 4, 20)])
    yield Pool("ties", np.ones(4), np.repeat(np.eye(4), 3, axis=0)[rng.permutation(12)], exact=True)
    query = rng.standard_normal(8)
    away = -query + 0.3 * rng.standard_normal((15, 8))
    yield Pool("negative with the query", query, away)
    yield Pool("negative with each other", np.ones(6), 1e-3 * np.ones((6, 6)) + np.eye(6) - 1 / 3)
    near = query + 1e-2 * rng.standard_normal((20, 8))
    yield Pool("near duplicates", query, near)
    rows = rng.standard_normal((20, 8))
    rows[[3, 7, 8]] = 0
    yield Pool("zero rows", rng.standard_normal(8), rows)
    yield Pool("of all lengths", query, rows * np.exp(rng.uniform(-8, 8, (20, 1))))


POOLS = list(pools())


def unit(rows):
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


def mmr_values(relevance, similarity, weight, fold):
    """The value of every item after some picks: ``values(picks)``; ``fold`` makes one penalty of those of the picks."""

    def values(picks):
        return weight * relevance - (1 - weight) * (fold(similarity[picks], 0) if picks else 0)

    return values


def last(similarities, axis):
    return similarities[-1]


def check(ours, theirs, values, first=None, exact=False, closed=()):
    """That ``ours`` are the picks of the rule, and those of the peer but for near-ties.

    ``values(picks)`` has the value of every item after the picks before; ``first`` those for the first pick. Items
    that are ``closed`` may not be picked.
    """
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    assert len(set(ours)) == len(ours)
    if exact:
        assert ours == theirs
    same = True
    for step, pick in enumerate(ours):
        worth = np.array(first if step == 0 and first is not None else values(ours[:step]), np.float64)
        worth[[*ours[:step], *closed]] = -np.inf
        assert worth[pick] >= worth.max() - TOLERANCE, f"step {step}: {pick}, worth {worth[pick]} of {worth.max()}"
        if same and pick != theirs[step]:
            assert abs(worth[pick] - worth[theirs[step]]) <= TOLERANCE, f"step {step}: {pick}, peer {theirs[step]}"
            same = False
