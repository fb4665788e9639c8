"""The least relevance of a pick. The oracle: relevance in float64, and the same call over candidates that reach it."""

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.testing import check_selection, selection_work

N, D, Q, P, K = 300, 32, 5, 90, 6
LEAST = np.array([-0.1, 0.1, 0.2, 0.3, 2.0], np.float32)  # none of the last query's reaches it
OPTIONS = {"coverage": {"kind": "facility"}, "sift": {"noise": 0.1}}


def made(seed=0, rows=N, dtype="float32", **columns):
    rng = np.random.default_rng(seed)
    corpus = rk.Corpus(rng.standard_normal((rows, D), dtype=np.float32), dtype=dtype, **columns)
    queries = rng.standard_normal((Q, D), dtype=np.float32)
    return corpus, queries, np.stack([rng.permutation(rows)[:P] for _ in range(Q)])


def cosines(queries, corpus):
    rows = corpus.vectors(slice(None))
    unit = queries.astype(np.float64) / np.linalg.norm(queries.astype(np.float64), axis=1, keepdims=True)
    return unit @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T


def reaching(candidates, relevance, wanted):
    """Return the candidates that reach about as much as is wanted, and how much: what no rounding changes."""
    least = np.array(wanted, np.float32)
    for q, each in enumerate(np.sort(relevance, axis=1)):
        at = np.searchsorted(each, least[q])
        while 0 < at < each.size and each[at] - each[at - 1] < 2e-5:
            at -= 1
        if 0 < at < each.size:
            least[q] = (each[at] + each[at - 1]) / 2
    return np.where(relevance < least[:, None], -1, candidates), least


def same(found, expected):
    for name, one, other in zip(found._fields, found, expected, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("rule", rk.METHODS)
def test_what_is_below_is_left_out_of_the_pool(rule, backend):
    corpus, queries, candidates = made()
    backend = "reference" if rule == "gist" else backend
    function, given = getattr(rk, rule), {"backend": backend, **OPTIONS.get(rule, {})}
    relevance = np.take_along_axis(cosines(queries, corpus), candidates, 1)
    left, least = reaching(candidates, relevance, LEAST)
    found = function(queries, corpus, K, candidates=candidates, min_relevance=least, **given)
    expected = function(queries, corpus, K, candidates=left, **given)
    same(found, expected)
    assert found.lengths[-1] == 0
    assert 0 < (found.lengths < K).sum() < Q

    given_relevance = function(
        queries, corpus, K, candidates=candidates, relevance=relevance, min_relevance=least, **given
    )
    same(given_relevance, function(queries, corpus, K, candidates=left, relevance=relevance, **given))
    if rule != "gist":
        problem = {"queries": queries, "embeddings": corpus, "k": K, "candidates": candidates, "min_relevance": least}
        check_selection(rule, problem | OPTIONS.get(rule, {}), found)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_by_codes_in_stages_and_by_certified_pools(dtype, bias):
    """Rows are not read to be left out: their codes, or what bounds the rows outside a pool, tell."""
    corpus, queries, _ = made(
        3, 5000, dtype, bias=np.random.default_rng(9).random(5000).astype(np.float32) if bias else None
    )
    everything = np.tile(np.arange(5000), (Q, 1))
    left, least = reaching(everything, cosines(queries, corpus), [0.1, 0.3, 0.5, 0.6, 2.0])
    for weight in (1.0, 0.7, 0.2):
        expected = rk.mmr(queries, corpus, 12, lambda_d=weight, lambda_b=0.8, candidates=left, backend="reference")
        for call in (
            lambda **given: rk.mmr(queries, corpus, 12, **given),
            lambda **given: rk.mmr(queries, corpus, 12, candidates=everything, **given),
            lambda **given: corpus.select(queries, 12, pool="certified", **given),
            lambda **given: corpus.select(queries, 12, pool=4000, **given),
        ):
            found = call(lambda_d=weight, lambda_b=0.8, min_relevance=least)
            np.testing.assert_array_equal(found.indices, expected.indices)
    assert 0 < expected.lengths.min(initial=12, where=expected.lengths > 0) < 12


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_items_that_codes_cannot_tell_from_enough_are_no_bar_for_others(dtype):
    """Most are of nearly enough relevance and of more value than those that are of enough."""
    rng = np.random.default_rng(6)
    relevance = np.concatenate([np.full(6, 0.6), 0.5 - np.linspace(1e-3, 4e-3, 194)])
    others = rng.standard_normal((200, 63))
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    rows = np.concatenate([relevance[:, None], np.sqrt(1 - relevance[:, None] ** 2) * others], 1).astype(np.float32)
    corpus = rk.Corpus(rows, bias=np.where(relevance > 0.5, 0, 1).astype(np.float32), dtype=dtype)
    query, candidates = np.eye(1, 64, dtype=np.float32), rng.permutation(200)[None]
    least = np.float32(0.51 if dtype == "int8" else 0.5)
    for lambda_b in (0.95, 0.5):
        given = {"candidates": candidates, "min_relevance": least, "lambda_b": lambda_b}
        found = rk.mmr(query, corpus, 8, **given)
        assert sorted(found.indices[0].tolist()) == [-1, -1, 0, 1, 2, 3, 4, 5]
        np.testing.assert_array_equal(found.indices, rk.mmr(query, corpus, 8, backend="reference", **given).indices)


@pytest.mark.parametrize("lambda_d", [0.7, 0.2])
def test_a_bias_hides_relevant_rows_from_what_bounds_others(lambda_d):
    """Rows outside of a pool may be relevant enough though their relevance with the bias is below the least."""
    bias = -2 * np.random.default_rng(9).random(5000).astype(np.float32)
    corpus, queries, _ = made(3, 5000, bias=bias)
    everything = np.tile(np.arange(5000), (Q, 1))
    left, least = reaching(everything, cosines(queries, corpus), [0.1, 0.2, 0.3, 0.4, 0.5])
    given = {"lambda_d": lambda_d, "lambda_b": 0.5}
    expected = rk.mmr(queries, corpus, 12, candidates=left, backend="reference", **given)
    assert (expected.relevance[:, 0] < least).any()
    for found in (
        rk.mmr(queries, corpus, 12, min_relevance=least, **given),
        corpus.select(queries, 12, pool="certified", min_relevance=least, **given),
    ):
        np.testing.assert_array_equal(found.indices, expected.indices)


def test_codes_leave_out_what_is_surely_below_and_only_mmr_uses_them():
    """Items of little relevance and a large bias are not read. VRSD and MSD, which bound sums, read all rows."""
    rng = np.random.default_rng(2)
    relevance = np.where(np.arange(200) < 8, 0.6 + np.arange(200) / 100, rng.uniform(-0.2, 0.2, 200))
    others = rng.standard_normal((200, 63))
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    rows = np.concatenate([relevance[:, None], np.sqrt(1 - relevance[:, None] ** 2) * others], 1).astype(np.float32)
    problem = {
        "queries": np.eye(1, 64, dtype=np.float32), "embeddings": rk.Corpus(rows), "k": 6,
        "candidates": rng.permutation(200)[None], "min_relevance": 0.5,
    }  # fmt: skip
    biased = {**problem, "bias": np.where(relevance > 0.5, 0, 1).astype(np.float32), "lambda_b": 0.5}
    picks, work = selection_work("mmr", biased, bounds="coded")
    assert (picks.indices < 8).all()
    assert work.code_products > 0
    assert work.rows_read <= 8
    for rule in ("vrsd", "msd"):
        found, work = selection_work(rule, problem, bounds="coded")
        np.testing.assert_array_equal(found.indices, getattr(rk, rule)(**problem, backend="reference").indices)
        assert work.code_products == 0
        assert selection_work(rule, {**problem, "min_relevance": None}, bounds="coded")[1].code_products > 0


@pytest.mark.parametrize("rule", ["mmr", "vrsd", "dpp"])
def test_costs_of_candidates_stay_with_them(rule):
    """Where those before them in the list are left out."""
    corpus, queries, candidates = made(7)
    relevance = np.take_along_axis(cosines(queries, corpus), candidates, 1)
    left, least = reaching(candidates, relevance, [0.0, 0.1, 0.1, 0.2, 0.2])
    costs = np.random.default_rng(1).integers(1, 9, candidates.shape).astype(float)
    given = {"costs": costs, "budget": 14.0}
    found = getattr(rk, rule)(queries, corpus, K, candidates=candidates, min_relevance=least, backend="cpu", **given)
    expected = getattr(rk, rule)(queries, corpus, K, candidates=left, backend="reference", **given)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.cost, expected.cost)


def test_a_pool_beyond_which_no_row_is_relevant_enough_is_certified():
    corpus, queries, _ = made(5)
    least = 0.3
    found = corpus.select(queries, 40, pool=100, min_relevance=least)
    assert (found.lengths < 40).all()
    assert found.certified.all()
    np.testing.assert_array_equal(found.indices, rk.mmr(queries, corpus, 40, min_relevance=least).indices)
    assert not corpus.select(queries, 40, pool=100, min_relevance=-0.9).certified.any()

    angles = np.arccos([0.9, 0.8, 0.95])
    rows = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    biased = rk.Corpus(rows, bias=np.array([0, 0, -5], np.float32))  # the last is relevant, and outside of a pool
    found = biased.select(np.eye(1, 2, dtype=np.float32), 3, pool=2, lambda_b=0.5, min_relevance=0.5)
    assert found.lengths.tolist() == [2]
    assert not found.certified.any()


def test_the_bias_does_not_count_nor_does_another_scale():
    rows = np.eye(4, dtype=np.float32)
    relevance = np.array([[0.2, 0.5, 0.4, 0.9]], np.float32)
    bias = np.array([9, -9, 9, 0], np.float32)
    query = np.ones((1, 4), np.float32)
    for scale in ("as-is", "minmax", "zscore", "rank"):
        given = {"relevance": relevance, "relevance_scale": scale, "min_relevance": 0.5, "bias": bias, "lambda_b": 0.5}
        for backend in ("cpu", "reference"):
            found = rk.mmr(query, rows, 4, backend=backend, **given)
            assert sorted(found.indices[0].tolist()) == [-1, -1, 1, 3]
    for backend in ("cpu", "reference"):
        least = {0.6: 0, 0.5: 3}  # all cosines are 1/2, and that is enough
        for value, picks in least.items():
            assert rk.mmr(query, rows, 3, bias=bias, min_relevance=value, backend=backend).lengths[0] == picks


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
@pytest.mark.parametrize("rows", ["dense", "whole"])
def test_of_dense_pools_and_of_all_rows(rows):
    rng = np.random.default_rng(4)
    relevance = rng.random((Q, 30)).astype(np.float32)
    least = np.array([0, 0.5, 0.9, 1, 2], np.float32)
    array = rng.standard_normal((Q, 30, D) if rows == "dense" else (30, D)).astype(np.float32)
    allowed = rng.random((30,)) < 0.7
    for backend in ("cpu", "reference"):
        found = rk.msd(None, array, 9, relevance=relevance, min_relevance=least, allowed=allowed, backend=backend)
        for q in range(Q):
            fit = np.flatnonzero((relevance[q] >= least[q]) & allowed)
            of_query = array[q] if rows == "dense" else array
            expected = np.full(9, -1)
            if fit.size:
                given = {"candidates": fit[None], "relevance": relevance[q : q + 1, fit], "backend": backend}
                picks = rk.msd(None, of_query, min(9, fit.size), **given).indices[0]
                expected[: picks.size] = picks
            np.testing.assert_array_equal(found.indices[q], expected)


def test_of_given_similarities_and_of_the_path():
    rng = np.random.default_rng(8)
    relevance = rng.random((1, 12)).astype(np.float32)
    points = rng.standard_normal((12, 3))
    similarity = (points @ points.T / np.linalg.norm(points, axis=1) / np.linalg.norm(points, axis=1)[:, None])[None]
    fit = np.flatnonzero(relevance[0] >= 0.5)
    found = rk.mmr(None, None, 12, relevance=relevance, similarity=similarity, min_relevance=0.5)
    assert sorted(found.indices[0, : len(fit)].tolist()) == fit.tolist()
    assert (found.indices[0, len(fit) :] == -1).all()

    corpus, queries, candidates = made(2)
    relevance = np.take_along_axis(cosines(queries, corpus), candidates, 1)
    left, least = (x[:4] for x in reaching(candidates, relevance, LEAST))
    for given in ({"candidates": candidates[:4]}, {"candidates": candidates[:4], "initial": candidates[:4, :2]}):
        path = rk.mmr_path(queries[:4], corpus, 3, min_relevance=least, **given)
        expected = rk.mmr_path(queries[:4], corpus, 3, **{**given, "candidates": left})
        for one, other in zip(path, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_is_no_number_is_refused():
    corpus, queries, candidates = made()
    for bad, error, got in (
        (np.nan, ValueError, "must be within the range of float32, got nan"),
        (1e300, ValueError, r"must be within the range of float32, got 1e\+300"),
        ("0.5", (TypeError, ValueError), "min_relevance must be a number"),
        (np.zeros(3, np.float32), ValueError, r"must be a number or have shape \(5,\), got \(3,\)"),
    ):
        with pytest.raises(error, match=f"^mmr: .*{got}"):
            rk.mmr(queries, corpus, K, candidates=candidates, min_relevance=bad)
    least = LEAST.copy()
    least[1] = np.nan
    found = rk.mmr(queries, corpus, K, candidates=candidates, min_relevance=least, on_error="skip")
    assert found.errors == {1: "mmr: min_relevance must be within the range of float32, got nan"}
    assert rk.mmr(queries, corpus, K, candidates=candidates, min_relevance=-1e30).lengths.tolist() == [K] * Q


def test_kernels_that_lack_it_are_refused_by_name():
    pytest.importorskip("triton")
    from ragsys_kernels.selection import capabilities

    for backend in ("triton", "cuda"):
        for name in ("min_relevance", "min_per_group"):
            assert capabilities.Needs("mmr", None, (name,)).lacking(backend) == f"its kernels take no {name}"
