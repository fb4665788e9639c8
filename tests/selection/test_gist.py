"""GIST within its share of the best that all subsets have, and with the picks of divsel."""

import functools
import re
from itertools import combinations

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.selection.rules import gist_large

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.selection.validate.PoolSizeWarning")

N, D = 9, 4


def made(seed, n=N, dims=D):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, dims)).astype(np.float32)
    rows[n // 2] = rows[0]  # a copy, 0 apart
    return rows, rng.uniform(0, 1, n).astype(np.float32)


@functools.cache
def terms(seed):
    """By each subset of up to four items, the two terms of f from its definition: the sum of v, and how far apart."""
    rows, v = made(seed)
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    apart = np.linalg.norm(unit[:, None] - unit, axis=2)
    return {
        some: (
            sum(float(v[i]) for i in some),
            min((apart[pair] for pair in combinations(some, 2)), default=apart.max()),
        )
        for size in range(1, 5)
        for some in combinations(range(N), size)
    }


@pytest.mark.parametrize("most", [1 << 26, 0], ids=["of a matrix", "of many"])
@pytest.mark.parametrize("eps", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("weight", [0.0, 0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_guarantee(k, weight, eps, most, monkeypatch):
    monkeypatch.setattr("ragsys_kernels.selection.rules.gist._MOST_DISTANCES", most)
    shares = []
    for seed in range(8):
        rows, v = made(seed)
        found = rk.gist(None, rows, k, relevance=v[None], lambda_d=weight, eps=eps)
        picks = found.indices[0, : found.lengths[0]].tolist()
        assert 1 <= len(picks) == len(set(picks)) <= k
        values = {some: weight * total + (1 - weight) * apart for some, (total, apart) in terms(seed).items()}
        reached = values[tuple(sorted(picks))]
        assert found.scores[0, len(picks) - 1] == pytest.approx(reached, abs=1e-6)
        shares.append(reached / max(x for some, x in values.items() if len(some) <= k))
    assert min(shares) >= 2 / 3 - eps
    assert max(shares) <= 1 + 1e-6
    if weight == 1:  # plain top-k is the best there is
        assert min(shares) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("weight", [0.0, 0.002, 0.02, 0.3])
def test_many_items_have_the_picks_of_a_matrix(weight, metric, monkeypatch):
    """Once these know which two items are the farthest apart."""

    def exact(e, squares):
        pair, largest = gist_large._farthest_of_all(e, squares)
        return pair, largest, largest

    for seed, n, k in ((0, 300, 3), (1, 1300, 40), (2, 1300, 400)):
        rows, v = made(seed, n, 6)
        call = functools.partial(rk.gist, None, rows, k, relevance=v[None] - 0.2, metric=metric, lambda_d=weight)
        expected = call()
        with monkeypatch.context() as patched:
            patched.setattr("ragsys_kernels.selection.rules.gist._MOST_DISTANCES", 0)
            patched.setattr(gist_large, "_farthest", exact)
            found = call()
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)
        np.testing.assert_allclose(found.redundancy, expected.redundancy, atol=1e-6)


def test_pair_is_proven_to_be_far_apart():
    """No two items are farther apart than the limit; the pair has at least the root of 1/2 of it, nearly."""
    rng = np.random.default_rng(0)
    for rows in (rng.standard_normal((300, 40)), np.eye(200), np.exp(rng.standard_normal((300, 3)))):
        squares = (rows**2).sum(axis=1)
        pair, largest, limit = gist_large._farthest(rows, squares)
        apart = np.linalg.norm(rows[:, None] - rows, axis=2)
        assert largest == pytest.approx(apart[tuple(pair)])
        assert apart.max() <= limit
        assert largest >= 0.65 * limit
        assert gist_large._step_of(largest / limit, 0.1) > 0.025
    # Unit vectors of the axes are in no ball that is smaller than that around their mean.
    assert gist_large._farthest(np.eye(200), np.ones(200))[2] >= 2 * np.sqrt(1 - 1 / 200)
    assert gist_large._farthest(np.ones((5, 3)), np.full(5, 3.0))[1:] == (0, 0)


@pytest.mark.parametrize("eps", [0.05, 0.1, 0.3, 0.6, 1.0])
def test_steps_keep_the_share(eps):
    """The worst that the two bounds of `gist_large` leave, for any sum g, where a weighted d of the best set is 1."""
    g = np.linspace(0, 3, 3001)
    for c in np.linspace(0.3, 1, 50):
        step = gist_large._step_of(c, eps)
        assert 0 <= step <= eps
        if step > 0:
            assert (np.maximum(g + 1 / (2 * (1 + step)), c) / (g + 1)).min() >= 2 / 3 - eps - 1e-9
    assert gist_large._step_of(1.0, eps) == eps


@pytest.mark.parametrize("weight", [0.05, 0.2, 0.5, 0.9])
def test_picks_are_those_of_divsel(weight):
    divsel = pytest.importorskip("divsel")
    for seed in range(20):
        rows, v = made(seed, 60, 8)
        unit = (rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)).astype("f4")
        found = rk.gist(None, unit, 7, relevance=v[None], lambda_d=weight, metric="dot", eps=0.1)
        other = divsel.gist_select_full(
            unit, v.astype(np.float64), k=7, lam=(1 - weight) / weight, eps=0.1, metric="euclidean"
        )
        picks = found.indices[0, : found.lengths[0]].tolist()
        assert found.scores[0, len(picks) - 1] == pytest.approx(weight * other["f_value"], rel=1e-6)
        assert picks == other["selected"] or (other["stage"] == "diameter_pair" and picks == other["selected"][::-1])


def test_options_are_those_of_other_rules():
    rows, _ = made(3, 40, 8)
    queries = np.random.default_rng(4).standard_normal((5, 8)).astype(np.float32)
    bias, groups = np.linspace(-1, 1, 40).astype(np.float32), [["a", "b"][i % 2] for i in range(40)]
    corpus = rk.Corpus(rows, bias=bias, groups=groups)
    candidates = np.stack([np.random.default_rng(q).permutation(40)[:15] for q in range(5)])
    candidates[:, 12:] = -1
    found = rk.gist(queries, corpus, np.array([1, 2, 3, 4, 5]), candidates=candidates, lambda_d=np.full(5, 0.3),
                    query_groups=["a"] * 5, exclude=[1, 3, 5])  # fmt: skip
    for q in range(5):
        allowed = [i for i in candidates[q] if i >= 0 and i % 2 == 1 and i not in (1, 3, 5)]
        dense = np.stack([corpus.data[allowed]]).astype(np.float32)
        cosines = corpus.data[allowed].astype(np.float64) @ (queries[q] / np.linalg.norm(queries[q].astype(np.float64)))
        v = (0.95 * cosines + 0.05 * bias[allowed]).astype(np.float32)
        alone = rk.gist(None, dense, q + 1, relevance=v[None], lambda_d=0.3)
        expected = np.where(alone.indices[0] < 0, -1, np.array(allowed)[alone.indices[0]])
        np.testing.assert_array_equal(found.indices[q, : q + 1], expected)
        np.testing.assert_allclose(found.scores[q, : q + 1], alone.scores[0], atol=1e-5)


def test_equal_items_go_to_the_lowest_position():
    found = rk.gist(None, np.ones((4, 3), np.float32), 3, relevance=np.ones((1, 4), np.float32))
    assert found.indices.tolist() == [[0, 1, 2]]
    found = rk.gist(None, np.ones((8193, 3), np.float32), 3, relevance=np.ones((1, 8193), np.float32))
    assert found.indices.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"eps": 0}, ValueError, "gist: eps must be above 0 and at most 1, got 0"),
        ({"eps": 2.0}, ValueError, "gist: eps must be above 0 and at most 1, got 2.0"),
        ({"k": 0}, ValueError, "gist: k must be at least 1, got 0"),
        ({"lambda_d": 1.5}, ValueError, "gist: lambda_d must be within [0, 1], got 1.5"),
        ({"relevance": np.full((1, N), np.nan, np.float32)}, ValueError, "gist: relevance must be finite, got NaN"),
    ],
)  # fmt: skip
def test_refused(change, error, message):
    rows, v = made(0)
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        rk.gist(**{"queries": None, "embeddings": rows, "k": 3, "relevance": v[None], **change})


def test_corpus_jobs_and_service_have_it(tmp_path):
    rng = np.random.default_rng(0)
    corpus = rk.Corpus(rng.standard_normal((300, 16), dtype=np.float32), bias=rng.uniform(-1, 0, 300))
    queries = rng.standard_normal((6, 16), dtype=np.float32)
    pools = corpus.search(queries, 30, lambda_b=0.8).indices
    expected = rk.gist(queries, corpus, 5, candidates=pools, lambda_d=0.3, lambda_b=0.8, eps=0.3)
    assert (expected.indices != rk.gist(queries, corpus, 5, candidates=pools, lambda_d=0.3, lambda_b=0.8).indices).any()
    options = {"lambda_d": 0.3, "lambda_b": 0.8, "pool": 30}
    picks = corpus.select(queries, 5, method="gist", eps=0.3, **options)
    np.testing.assert_array_equal(picks.indices, expected.indices)
    np.testing.assert_array_equal(picks.scores, expected.scores)
    with pytest.raises(ValueError, match=r"^select: eps must be left out with method 'mmr', got 0\.3"):
        corpus.select(queries, 5, eps=0.3)
    for name, value in {"budget": 3.0, "max_per_group": 1, "max_similarity": 0.5, "initial": [[1]] * 6}.items():
        with pytest.raises(ValueError, match=rf"^gist: {name} must be left out with the rule 'gist', got"):
            corpus.select(queries, 5, method="gist", pool=None, **{name: value})
    with pytest.raises(rk.BackendUnavailableError, match="its kernels have no gist"):
        corpus.select(queries, 5, method="gist", backend="cpu")
    bad = queries.copy()
    bad[2] = np.nan
    skipped = corpus.select(bad, 5, method="gist", eps=0.3, on_error="skip", **options)
    assert list(skipped.errors) == [2]
    np.testing.assert_array_equal(np.delete(skipped.indices, 2, 0), np.delete(expected.indices, 2, 0))

    pq = pytest.importorskip("pyarrow.parquet")
    offline = pytest.importorskip("ragsys_kernels.offline")
    corpus.save(tmp_path / "c")
    np.save(tmp_path / "q.npy", queries)
    offline.select(
        corpus=tmp_path / "c", queries=tmp_path / "q.npy", out=tmp_path / "out", k=5, method="gist", eps=0.3, **options
    )
    made = pq.read_table(tmp_path / "out" / "part-00000.parquet")["ids"].to_pylist()
    assert made == [[i for i in row if i >= 0] for row in expected.indices.tolist()]
