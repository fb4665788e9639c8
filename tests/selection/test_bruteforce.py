"""Picks equal those of the papers' pseudo-code, written in pure Python on lists."""

import math
import random

import numpy as np
import pytest

import ragsys_kernels as rk

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def cos(a, b):
    norms = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / norms if norms > 0 else 0.0


class TieError(Exception):
    """Two different values so close that rounding may decide between them."""


def argmax(values, ambiguous=0.0):
    """The first of the largest values, of a dict in the order of positions."""
    best = max(values.values())
    close = [i for i, value in values.items() if value >= best - ambiguous]
    if any(values[i] != best for i in close):
        raise TieError
    return close[0]


def mmr_of_the_paper(query, rows, k, lambda_d, lambda_b, bias, sim, ambiguous=0.0):
    """RAGSys, Algorithm 1: C <- {argmax v}; while |C| < k: C <- C + argmax λ_d v_i - (1-λ_d) max_{c in C} sim(i, c)."""
    v = {}
    for i, row in enumerate(rows):
        v[i] = sim(query, row) if bias is None else lambda_b * sim(query, row) + (1 - lambda_b) * bias[i]
    chosen = [argmax(v, ambiguous)]
    scores = [lambda_d * v[chosen[0]]]
    while len(chosen) < min(k, len(rows)):
        w = {}
        for i in v:
            if i not in chosen:
                w[i] = lambda_d * v[i] - (1 - lambda_d) * max(sim(rows[i], rows[c]) for c in chosen)
        chosen.append(argmax(w, ambiguous))
        scores.append(w[chosen[-1]])
    return chosen, scores


def vrsd_of_the_paper(query, rows, k, ambiguous=0.0):
    """VRSD, Algorithm 1: s <- argmax cos(d, q); then repeatedly the d that maximises cos(s + d, q), s <- s + d."""
    cosines = {i: cos(row, query) for i, row in enumerate(rows)}
    chosen = [argmax(cosines, ambiguous)]
    scores = [cosines[chosen[0]]]
    s = list(rows[chosen[0]])
    while len(chosen) < min(k, len(rows)):
        cosines = {}
        for i, row in enumerate(rows):
            if i not in chosen:
                cosines[i] = cos([a + b for a, b in zip(s, row, strict=True)], query)
        best = argmax(cosines, ambiguous)
        s = [a + b for a, b in zip(s, rows[best], strict=True)]
        chosen.append(best)
        scores.append(cosines[best])
    return chosen, scores


def integers(rng, count, dims, span):
    return [[rng.randint(-span, span) for _ in range(dims)] for _ in range(count)]


def gaussians(rng, count, dims):
    """Values that float32 holds exactly, so that every backend and the lists have the same data."""
    return [[float(np.float32(rng.gauss(0, 1))) for _ in range(dims)] for _ in range(count)]


def array(rows):
    return np.array(rows, np.float32)


@pytest.mark.parametrize("with_bias", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("lambda_d", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_mmr_on_integers_equals_the_paper_ties_included(backend, lambda_d, with_bias):
    rng = random.Random(0)
    ties = 0
    for _ in range(60):
        pool, dims, k = rng.randint(1, 12), rng.randint(1, 9), rng.randint(1, 6)
        rows, query = integers(rng, pool, dims, 2), integers(rng, 1, dims, 2)
        bias = [rng.randint(-4, 4) for _ in rows] if with_bias else None
        expected, scores = mmr_of_the_paper(query[0], rows, k, lambda_d, 0.5, bias, dot)
        ties += len({tuple(row) for row in rows}) < pool
        result = rk.mmr(
            array(query), array(rows), k, bias=None if bias is None else np.array(bias, np.float32),
            lambda_d=lambda_d, lambda_b=0.5, metric="dot", backend=backend,
        )  # fmt: skip
        assert result.indices[0, : len(expected)].tolist() == expected, (query, rows, bias)
        assert result.scores[0, : len(expected)].tolist() == scores
        assert result.indices[0, len(expected) :].tolist() == [-1] * (k - len(expected))
        assert result.lengths[0] == len(expected)
    assert ties >= 5  # pools with equal rows; equal values are far more frequent


@pytest.mark.parametrize("lambda_d", [0.0, 0.3, 0.75, 1.0])
def test_mmr_with_cosine_equals_the_paper(backend, lambda_d):
    rng = random.Random(1)
    compared = 0
    for _ in range(40):
        pool, dims, k = rng.randint(1, 20), rng.randint(2, 19), rng.randint(1, 7)
        rows, query = gaussians(rng, pool, dims), gaussians(rng, 1, dims)
        bias = [float(np.float32(rng.gauss(-1, 1))) for _ in rows]
        try:
            expected, scores = mmr_of_the_paper(query[0], rows, k, lambda_d, 0.9, bias, cos, ambiguous=1e-5)
        except TieError:
            continue
        compared += 1
        result = rk.mmr(
            array(query), array(rows), k, bias=np.array(bias, np.float32),
            lambda_d=lambda_d, lambda_b=0.9, backend=backend,
        )  # fmt: skip
        assert result.indices[0, : len(expected)].tolist() == expected
        np.testing.assert_allclose(result.scores[0, : len(expected)], scores, atol=3e-6)
    assert compared > 35


def test_vrsd_equals_the_paper(backend):
    rng = random.Random(2)
    compared = 0
    for _ in range(80):
        pool, dims, k = rng.randint(1, 20), rng.randint(2, 19), rng.randint(1, 7)
        rows, query = gaussians(rng, pool, dims), gaussians(rng, 1, dims)
        try:
            expected, scores = vrsd_of_the_paper(query[0], rows, k, ambiguous=1e-5)
        except TieError:
            continue
        compared += 1
        result = rk.vrsd(array(query), array(rows), k, metric="dot", backend=backend)
        assert result.indices[0, : len(expected)].tolist() == expected
        np.testing.assert_allclose(result.scores[0, : len(expected)], scores, atol=3e-6)
        assert result.lengths[0] == len(expected)
    assert compared > 65
