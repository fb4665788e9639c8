"""Rules against the best of all subsets, and against the formulas with dense linear algebra; queries left out."""

import itertools

import numpy as np
import pytest

import ragsys_kernels as rk

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def best_cover(S, k):
    return max(S[list(chosen)].max(axis=0).mean() for chosen in itertools.combinations(range(len(S)), k))


def test_facility_location_is_near_the_best_subset():
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = rng.standard_normal((9, 4)).astype(np.float32)
        S = np.maximum(unit(rows) @ unit(rows).T, 0)
        found = rk.coverage(None, rows, 3, relevance=np.zeros((1, 9)), lambda_d=0.0)
        covered = S[found.indices[0]].max(axis=0).mean()
        np.testing.assert_allclose(found.scores[0].sum(), covered, rtol=1e-5)
        assert covered >= (1 - 1 / np.e) * best_cover(S, 3)


def test_a_budget_by_density_is_near_the_best_subset():
    """By value per cost, or the best item alone: at least half of (1 - 1/e) of the best that fits."""
    rng = np.random.default_rng(1)
    alone = 0
    for _ in range(60):
        rows, costs = rng.standard_normal((8, 4)).astype(np.float32), rng.integers(1, 12, 8).astype(float)
        S = np.maximum(unit(rows) @ unit(rows).T, 0)
        fitting = [
            list(chosen) for n in range(1, 9) for chosen in itertools.combinations(range(8), n)
            if costs[list(chosen)].sum() <= 12
        ]  # fmt: skip
        best = max(S[chosen].max(axis=0).mean() for chosen in fitting)
        found = rk.coverage(
            None, rows, 7, relevance=np.zeros((1, 8)), lambda_d=0.0, costs=costs, budget=12, density=True
        )
        picks = found.indices[0, : found.lengths[0]].tolist()
        assert costs[picks].sum() == found.cost[0] <= 12
        assert S[picks].max(axis=0).mean() >= 0.5 * (1 - 1 / np.e) * best
        alone += len(picks) == 1
    assert alone < 60


def test_the_determinant_grows_by_the_scores():
    rng = np.random.default_rng(2)
    rows, quality = rng.standard_normal((12, 9)).astype(np.float32), rng.uniform(0.5, 2, 12).astype(np.float32)
    found = rk.dpp(None, rows, 6, relevance=np.zeros((1, 12)), quality=quality)
    L = quality[:, None] * (unit(rows) @ unit(rows).T) * quality
    picks = found.indices[0]
    for n in range(1, 7):
        np.testing.assert_allclose(
            found.scores[0, :n].prod(), np.linalg.det(L[np.ix_(picks[:n], picks[:n])]), rtol=1e-4
        )


def test_the_variance_left_at_the_query_is_that_of_a_gaussian_process():
    rng = np.random.default_rng(3)
    rows, query = rng.standard_normal((15, 6)).astype(np.float32), rng.standard_normal((1, 6)).astype(np.float32)
    found = rk.sift(query, rows, 8, noise=0.2)
    e, q = unit(rows), unit(query)[0]

    def left(chosen):
        K = e[chosen] @ e[chosen].T + 0.2 * np.eye(len(chosen))
        return 1 - q @ e[chosen].T @ np.linalg.solve(K, e[chosen] @ q)

    picks = found.indices[0].tolist()
    for n, score in enumerate(found.scores[0]):
        np.testing.assert_allclose(score, left(picks[: n + 1]), atol=1e-5)
        others = [left([*picks[:n], i]) for i in range(15) if i not in picks[:n]]
        assert score <= min(others) + 1e-5


def test_queries_with_bad_costs_and_budgets_are_left_out():
    rows = np.eye(3, dtype=np.float32)
    costs, budgets = np.ones((3, 3)), np.array([2.0, -1.0, 2.0])
    costs[2, 1] = -4
    found = rk.mmr(rows, rows, 1, costs=costs, budget=budgets, on_error="skip")
    assert found.errors == {
        1: "mmr: budget must be at least 0, got -1",
        2: "mmr: costs must be finite and at least 0, got -4 at position 1",
    }
    assert found.indices.tolist() == [[0], [-1], [-1]]
    assert found.cost.tolist() == [1, 0, 0]
