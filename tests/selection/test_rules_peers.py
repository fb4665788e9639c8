"""Rules against pyversity, against the best of all subsets, and against the formulas with dense linear algebra."""

import itertools

import numpy as np
import pytest

import ragsys_kernels as rk

pyversity = pytest.importorskip("pyversity")
pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def cases(number=40):
    rng = np.random.default_rng(7)
    for _ in range(number):
        n, d = int(rng.integers(5, 40)), int(rng.integers(8, 30))
        k = int(rng.integers(1, min(n, d - 7) + 1))
        rows, scores = rng.standard_normal((n, d)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
        yield rng, rows, scores, k, float(rng.uniform(0.05, 0.95))


def same(ours, theirs, tolerance=1e-6):
    np.testing.assert_array_equal(ours.indices[0], theirs.indices)
    expected = theirs.selection_scores
    np.testing.assert_allclose(ours.scores[0], expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_max_sum_dispersion(metric):
    for _, rows, scores, k, diversity in cases():
        theirs = pyversity.msd(rows, scores, k, diversity, metric)
        same(rk.msd(None, rows, k, relevance=scores[None], lambda_d=1 - diversity, metric=metric), theirs)


def test_determinantal_point_process():
    for rng, rows, scores, k, diversity in cases():
        scale = float(rng.uniform(0.2, 2))
        theirs = pyversity.dpp(rows, scores, k, diversity, scale)
        same(rk.dpp(None, rows, k, relevance=scores[None], lambda_d=1 - diversity, scale=scale), theirs, 3e-6)


@pytest.mark.parametrize("shown", [0, 2, 5])
def test_sliding_spectrum_decomposition(shown):
    """Where all picks count: pyversity's algorithm for a window is another one (test_ssd_window.py)."""
    for rng, rows, scores, k, diversity in cases():
        recent = rng.standard_normal((shown, rows.shape[1])).astype(np.float32)
        theirs = pyversity.ssd(rows, scores, k, diversity, recent if shown else None, None, 0.7)
        both, n = np.concatenate([rows, recent]), len(rows)
        for window in (None, k + shown - 1 or None):
            found = rk.ssd(
                None, both, k, relevance=scores[None], candidates=np.arange(n)[None], lambda_d=1 - diversity,
                gamma=0.7, window=window, initial=np.arange(n, len(both))[None],
            )  # fmt: skip
            same(found, theirs, 3e-6)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_concave_cover(metric):
    for rng, rows, scores, k, diversity in cases():
        gamma = float(rng.uniform(0.2, 1))
        theirs = pyversity.cover(rows, scores, k, diversity, gamma, metric)
        options = {"lambda_d": 1 - diversity, "kind": "cover", "gamma": gamma, "metric": metric}
        # pyversity takes the difference of two float32 sums.
        same(rk.coverage(None, rows, k, relevance=scores[None], **options), theirs, 1e-5)


def best_cover(S, k):
    return max(S[list(chosen)].max(axis=0).mean() for chosen in itertools.combinations(range(len(S)), k))


def test_facility_location_is_near_the_best_subset():
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = rng.standard_normal((9, 4)).astype(np.float32)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        S = np.maximum(unit @ unit.T, 0)
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
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        S = np.maximum(unit @ unit.T, 0)
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
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    L = quality[:, None] * (unit @ unit.T) * quality
    picks = found.indices[0]
    for n in range(1, 7):
        np.testing.assert_allclose(
            found.scores[0, :n].prod(), np.linalg.det(L[np.ix_(picks[:n], picks[:n])]), rtol=1e-4
        )


def test_the_variance_left_at_the_query_is_that_of_a_gaussian_process():
    rng = np.random.default_rng(3)
    rows, query = rng.standard_normal((15, 6)).astype(np.float32), rng.standard_normal((1, 6)).astype(np.float32)
    found = rk.sift(query, rows, 8, noise=0.2)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    q = query[0] / np.linalg.norm(query)

    def left(chosen):
        K = unit[chosen] @ unit[chosen].T + 0.2 * np.eye(len(chosen))
        return 1 - q @ unit[chosen].T @ np.linalg.solve(K, unit[chosen] @ q)

    picks = found.indices[0].tolist()
    for n, score in enumerate(found.scores[0]):
        np.testing.assert_allclose(score, left(picks[: n + 1]), atol=1e-5)
        others = [left([*picks[:n], i]) for i in range(15) if i not in picks[:n]]
        assert score <= min(others) + 1e-5


def test_lambda_of_adagres_by_pairs():
    rng = np.random.default_rng(4)
    rows = rng.uniform(0, 1, (10, 5)).astype(np.float32)
    query, costs = rng.uniform(0, 1, (2, 5)).astype(np.float32), rng.integers(1, 9, 10).astype(float)
    found = rk.msd(query, rows, 5, lambda_d="adagres", costs=costs, budget=[14, 30])
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = np.mean([unit[i] @ unit[j] for i in range(10) for j in range(i)])
    for q, budget in enumerate((14, 30)):
        r = unit @ query[q] / np.linalg.norm(query[q])
        beta = r.mean() / ((budget // costs.mean() - 1) / 2 * pairs)
        np.testing.assert_allclose(found.lambda_d[q], 1 / (1 + beta), rtol=1e-5)
    again = rk.msd(query, rows, 5, lambda_d=found.lambda_d, costs=costs, budget=[14, 30])
    np.testing.assert_array_equal(again.indices, found.indices)


REFUSED = {
    "costs alone": (rk.mmr, {"costs": np.ones(6)}, "mmr: costs must come with a budget, got budget=None"),
    "budget alone": (rk.mmr, {"budget": 3}, "mmr: budget must come with costs, got costs=None"),
    "cost": (
        rk.msd,
        {"costs": [1, 1, -1, 1, 1, 1], "budget": 3},
        "msd: costs must be finite and at least 0, got -1 in row 2",
    ),
    "nan": (
        rk.msd,
        {"costs": [1, 1, 1, 1, np.nan, 1], "budget": 3},
        "msd: costs must be finite and at least 0, got nan in row 4",
    ),
    "shape": (
        rk.dpp,
        {"costs": np.ones(5), "budget": 3},
        r"dpp: costs must have shape \(N,\) = \(6,\) or \(Q, P\) = \(2, 6\), got \(5,\)",
    ),
    "budget": (rk.ssd, {"costs": np.ones(6), "budget": [1, -2]}, "ssd: budget must be at least 0, got -2"),
    "budgets": (
        rk.ssd,
        {"costs": np.ones(6), "budget": [1, 2, 3]},
        r"ssd: budget must be a number or have shape \(2,\), got \(3,\)",
    ),
    "ceiling": (rk.vrsd, {"max_similarity": 1.5}, r"vrsd: max_similarity must be within \[-1, 1\], got 1.5"),
    "adagres": (rk.msd, {"lambda_d": "adagres"}, "msd: lambda_d 'adagres' must come with a budget, got budget=None"),
    "scale": (rk.dpp, {"scale": -1}, "dpp: scale must be at least 0, got -1"),
    "quality": (rk.dpp, {"quality": np.array([1, 1, 0, 1, 1, 1.0])}, "dpp: quality must be finite and above 0, got 0"),
    "window": (rk.ssd, {"window": 0}, "ssd: window must be at least 1, got 0"),
    "noise": (rk.sift, {"noise": 0}, "sift: noise must be above 0, got 0"),
    "kind": (rk.coverage, {"kind": "all"}, "coverage: kind must be one of 'facility', 'cover', 'xquad', got 'all'"),
    "gamma": (rk.coverage, {"gamma": 2}, "coverage: gamma must be above 0 and at most 1, got 2"),
    "density": (rk.coverage, {"density": True}, "coverage: density must come with a budget, got budget=None"),
    "weights": (
        rk.coverage,
        {"weights": np.ones((2, 3))},
        "coverage: weights must come with aspects, got aspects=None",
    ),
    "aspects": (
        rk.coverage,
        {"aspects": np.ones((2, 3))},
        r"coverage: aspects must have shape \(Q, A, D\) = \(2, any, 4\), got \(2, 3\)",
    ),
    "queries": (rk.sift, {"queries": None, "relevance": np.ones((2, 6))}, "sift: queries must be given, got None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_argument_is_named(name):
    function, change, message = REFUSED[name]
    rng = np.random.default_rng(5)
    arguments = {"queries": rng.standard_normal((2, 4)), "embeddings": rng.standard_normal((6, 4)).astype(np.float32)}
    with pytest.raises(ValueError, match=f"^{message}"):
        function(**{**arguments, "k": 2, **change})


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
