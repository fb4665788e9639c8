"""Rules against the code of others that states the same problem; each skips where its package is not installed.

``pip install --no-deps activeft submodlib-py divsel``: of submodlib only the compiled part is asked.
"""

import numpy as np
import pytest

import ragsys_kernels as rk

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def cases(number):
    rng = np.random.default_rng(3)
    for _ in range(number):
        n, d = int(rng.integers(10, 60)), int(rng.integers(8, 40))
        rows = rng.standard_normal((n, d))
        yield rng, rows / np.linalg.norm(rows, axis=1, keepdims=True), int(rng.integers(2, 9))


def test_sift_is_activeft_s_vtl():
    """Its authors' rule, in float64, where an item is picked once; the score is the variance that is left."""
    torch = pytest.importorskip("torch")
    vtl = pytest.importorskip("activeft.acquisition_functions.vtl")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for rng, rows, k in cases(60):
            query, noise = rng.standard_normal(rows.shape[1]) + 2 * rows[0], float(rng.choice((0.01, 0.1, 0.5)))
            query /= np.linalg.norm(query)
            rule = vtl.VTL(target=torch.tensor(query[None]), noise_std=noise**0.5, num_workers=0)
            state, picks, left = rule.initialize(None, torch.tensor(rows), None), [], []
            for _ in range(k):
                values = rule.compute(state).numpy().copy()
                values[picks] = -np.inf
                picks.append(int(values.argmax()))
                left.append(-values.max())
                state = rule.step(state, picks[-1])
            found = rk.sift(query[None].astype(np.float32), rows.astype(np.float32), k, noise=noise)
            assert found.indices[0].tolist() == picks
            np.testing.assert_allclose(found.scores[0], left, atol=2e-6)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("costly", [False, True])
def test_facility_location_is_submodlib_s(costly):
    """Up to ties, which two items have that cover only one another; with costs by gain per cost within a budget."""
    submodlib, compared = pytest.importorskip("submodlib_cpp"), 0
    for rng, rows, k in cases(60):
        n = len(rows)
        similar = np.maximum(rows @ rows.T, 0)
        costs = rng.uniform(1, 2, n) if costly else np.ones(n)
        theirs = submodlib.FacilityLocation(n, similar.tolist(), False, set(), False)
        picks = theirs.maximize(
            "NaiveGreedy", float(k), False, False, 0.1, False, False, costs.tolist() if costly else [], costly
        )
        options = {"costs": costs, "budget": float(k), "density": True} if costly else {}
        given = {"relevance": np.zeros((1, n), np.float32), "lambda_d": 0.0, **options}
        found = rk.coverage(None, rows.astype(np.float32), n if costly else k, **given)
        if costly and found.lengths[0] == 1:  # one item that is worth more than all picks, which submodlib does not see
            continue
        for (item, gain), pick, score in zip(picks, found.indices[0], found.scores[0], strict=False):
            rate = costs[pick] if costly else 1
            np.testing.assert_allclose(score, gain / n * rate, rtol=1e-4, atol=1e-6)
            if item != pick:
                break
            compared += 1
    assert compared > 200


def test_a_ceiling_is_a_threshold_of_gist():
    """divsel's best threshold of distance, given to a call of ours as a ceiling, makes the picks of GIST's sweep."""
    divsel = pytest.importorskip("divsel")
    compared = 0
    for rng, rows, k in cases(60):
        vectors, worth = rows.astype(np.float32), rng.uniform(0, 1, len(rows))
        theirs = divsel.gist_select_full(vectors, worth, k=k, lam=float(rng.uniform(0.1, 3)))
        if theirs["stage"] == "diameter_pair":  # the two items that are farthest apart
            continue
        ceiling = np.float32(1 - theirs["threshold"])
        given = {"relevance": worth[None].astype(np.float32), "lambda_d": 1.0, "max_similarity": ceiling}
        found = rk.mmr(None, vectors, k, **given)
        assert found.indices[0, : found.lengths[0]].tolist() == theirs["selected"]
        compared += 1
    assert compared > 40
