"""Every backend picks what exact arithmetic allows, whatever the options; and the semantics."""

import numpy as np
import pytest
from selection_calls import METHODS, for_method, methods, same

import ragsys_kernels as rk
from ragsys_kernels import testing

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

DTYPES = ("float32", "float16", "bfloat16")


def make(dtype, *shape, **options):
    if dtype == "bfloat16":
        pytest.importorskip("torch")
    return testing.selection_problem(*shape, dtype=dtype, **options)


def run(method, problem, backend):
    """The selection, checked."""
    result = METHODS[method](**problem, backend=backend)
    testing.check_selection(method, problem, result)
    return rk.Selection(*map(np.asarray, result))


@pytest.mark.sampled(3)
@methods
@pytest.mark.parametrize("dense", [False, True], ids=["shared", "dense"])
@pytest.mark.parametrize("kind", ["random", "clustered", "duplicates", "integers"])
@pytest.mark.parametrize("extras", ["plain", "bias", "groups", "all"])
def test_picks_are_best_with_options(backend, extras, kind, dense, method):
    problem = testing.selection_problem(
        6, 40, 8, 37, kind=kind, dense=dense, ragged=not dense and extras != "plain",
        bias=extras in ("bias", "all"), groups=extras in ("groups", "all"), seed=3,
    )  # fmt: skip
    run(method, for_method(method, problem), backend)


@methods
@pytest.mark.parametrize("pools", ["candidates", "dense", "whole"])
def test_relevance_replaces_the_cosine_with_the_query(backend, pools, method):
    rng = np.random.default_rng(4)
    problem = testing.selection_problem(4, 30, 6, 21, N=30, dense=pools == "dense", seed=4)
    if pools == "whole":
        del problem["candidates"]
    problem["relevance"] = rng.uniform(-1, 1, (4, 30)).astype(np.float32)
    result = run(method, problem, backend)
    ids = problem.get("candidates", np.tile(np.arange(30), (4, 1)))
    first = np.take_along_axis(ids, problem["relevance"].argmax(1)[:, None], 1)
    np.testing.assert_array_equal(result.indices[:, :1], first)
    if method == "mmr":
        without = rk.mmr(**{**problem, "queries": None}, backend=backend)
        np.testing.assert_array_equal(without.indices, result.indices)
        np.testing.assert_array_equal(without.scores, result.scores)


@pytest.mark.parametrize("dense", [False, True], ids=["shared", "dense"])
@pytest.mark.parametrize("relevance", [False, True], ids=["computed", "given"])
def test_bias_per_candidate_equals_bias_per_row(backend, relevance, dense):
    rng = np.random.default_rng(5)
    problem = testing.selection_problem(3, 25, 6, 12, dense=dense, ragged=not dense, bias=True, seed=5)
    problem["lambda_b"] = 0.4
    if relevance:
        problem["relevance"] = rng.uniform(-1, 1, (3, 25)).astype(np.float32)
    expected = run("mmr", problem, backend)
    if not dense:
        ids = problem["candidates"]
        problem["bias"] = np.where(ids >= 0, problem["bias"][ids], 99).astype(np.float32)
        result = run("mmr", problem, backend)
        same(result, expected)
    unbiased = rk.mmr(**{**problem, "bias": None}, backend=backend)
    assert (unbiased.indices != expected.indices).any()


@methods
@pytest.mark.parametrize("as_array", [np.int32, np.int64, list])
def test_k_and_lambdas_per_query_equal_single_calls(backend, as_array, method):
    problem = testing.selection_problem(5, 30, 1, 16, bias=method == "mmr", groups=True, seed=6)
    ks = [3, 1, 7, 2, 30]
    problem["k"] = ks if as_array is list else np.array(ks, as_array)
    if method == "mmr":
        problem.update(lambda_d=np.array([0, 0.25, 0.5, 0.75, 1], np.float32), lambda_b=[0.0, 0.2, 0.5, 0.9, 1.0])
    result = run(method, problem, backend)
    assert result.indices.shape == (5, 30)
    for q, k in enumerate(ks):
        one = {**problem, "k": k}
        for name in ("queries", "candidates", "query_groups"):
            one[name] = problem[name][q : q + 1]
        for name in ("lambda_d", "lambda_b"):
            if name in problem:
                one[name] = float(problem[name][q])
        alone = METHODS[method](**one, backend=backend)
        for a, b in zip(alone, result, strict=True):
            a, b = np.atleast_2d(a)[0][:k], np.atleast_2d(b[q])[0][:k]
            np.testing.assert_array_equal(a, b)
        assert (result.indices[q, k:] == -1).all()


@methods
@pytest.mark.parametrize("dense", [False, True], ids=["shared", "dense"])
def test_initial_items_count_as_picks_and_are_not_returned(backend, dense, method):
    problem = testing.selection_problem(4, 20, 6, 11, dense=dense, seed=9)
    ids = np.tile(np.arange(20), (4, 1)) if dense else problem["candidates"]
    problem["initial"] = np.stack([ids[:, 5], ids[:, 2], np.full(4, -1)], axis=1)
    result = run(method, problem, backend)
    assert (result.lengths == 6).all()
    for q in range(4):
        assert not set(problem["initial"][q]) & set(result.indices[q])
    if method == "mmr":
        assert (result.redundancy[:, 0] != 0).all()
    # The picks of a call, given as initial, are continued by the next.
    longer = run(method, {**problem, "k": 12}, backend)
    problem["initial"] = np.concatenate([problem["initial"], result.indices], axis=1)
    continued = run(method, problem, backend)
    np.testing.assert_array_equal(continued.indices, longer.indices[:, 6:])


def test_first_pick_after_initial_items_is_an_argmax_of_w(backend):
    e = np.array([[1, 0], [0.9, 0.1], [0, 1]], np.float32)
    arguments = {"queries": np.array([[1, 0]], np.float32), "embeddings": e, "k": 1, "backend": backend}
    assert rk.mmr(**arguments).indices.tolist() == [[0]]
    # Item 1 is worth λ_d 0.994 - (1 - λ_d) 0.994, item 2 nothing.
    shown = rk.mmr(**{**arguments, "lambda_d": 0.6}, initial=np.array([[0]]))
    assert shown.indices.tolist() == [[1]]
    shown = rk.mmr(**{**arguments, "lambda_d": 0.4}, initial=np.array([[0]]))
    assert shown.indices.tolist() == [[2]]
    assert shown.scores[0, 0] == shown.redundancy[0, 0] == 0


def test_vrsd_sum_starts_with_the_initial_items(backend):
    e = np.array([[0, 1], [1, 0.2], [1, -1]], np.float32)
    arguments = {"queries": np.array([[1, 0]], np.float32), "embeddings": e, "k": 1, "metric": "dot"}
    arguments["backend"] = backend
    assert rk.vrsd(**arguments).indices.tolist() == [[1]]
    result = rk.vrsd(**arguments, initial=np.array([[0]]))
    assert result.indices.tolist() == [[2]]
    assert result.scores[0, 0] == pytest.approx(1)


@methods
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_zero_rows_and_zero_queries_have_cosine_zero(backend, metric, dtype, method):
    problem = make(dtype, 3, 12, 12, 17, N=12, seed=13)
    problem["embeddings"] = problem["embeddings"] * 1  # a copy, of any library
    problem["embeddings"][[2, 7]] = 0
    problem["queries"][1] = 0
    problem["metric"] = metric
    result = run(method, problem, backend)
    assert (result.lengths == 12).all()
    assert (result.relevance[1] == 0).all()
    assert (result.relevance[np.isin(result.indices, [2, 7])] == 0).all()


@pytest.mark.parametrize("scale", [1e-13, 1e13])
@methods
def test_cosine_of_rows_with_extreme_norms(backend, method, scale):
    problem = testing.selection_problem(3, 15, 5, 14, seed=17)
    expected = run(method, problem, backend)
    problem["embeddings"] = problem["embeddings"] * np.float32(scale)
    problem["queries"] = problem["queries"] * np.float32(scale) ** 2
    np.testing.assert_array_equal(run(method, problem, backend).indices, expected.indices)


# --- What the rules mean.


def test_vrsd_does_not_repeat_where_no_cosine_is_positive(backend):
    """The authors' script starts its running best at 0 and repeats an item here."""
    e = -np.eye(3, dtype=np.float32) - 0.1
    result = rk.vrsd(np.ones((1, 3), np.float32), e, 3, backend=backend)
    assert sorted(result.indices[0]) == [0, 1, 2]
    assert (result.scores < 0).all()


@pytest.mark.parametrize("D", [2, 5, 16, 40])
def test_vrsd_zero_sum_has_cosine_zero(backend, D):
    """Opposite vectors: their sum is zero to the precision of the data, and worth less than any positive cosine."""
    rng = np.random.default_rng(19)
    for _ in range(20):
        a = rng.standard_normal(D)
        b = rng.standard_normal(D)
        query = a + 0.01 * b
        e = np.stack([a, -a, b if b @ (query) > 0 else -b]).astype(np.float32)
        result = rk.vrsd(query[None].astype(np.float32), e, 3, backend=backend)
        assert result.indices[0].tolist() == [0, 2, 1]
        pair = rk.vrsd(query[None].astype(np.float32), e[:2], 2, backend=backend)
        assert pair.indices[0].tolist() == [0, 1]
        assert pair.scores[0, 1] == 0


def test_mmr_counts_negative_similarities_as_they_are(backend):
    e = np.array([[1, 0], [-1, 0], [0, 1]], np.float32)
    result = rk.mmr(np.array([[0.6, 0.8]], np.float32), e, 3, lambda_d=0.5, metric="dot", backend=backend)
    assert result.indices[0].tolist() == [2, 0, 1]
    np.testing.assert_allclose(result.redundancy[0], [0, 0, 0])
    result = rk.mmr(np.array([[0.6, 0.0]], np.float32), e[:2], 2, lambda_d=0.5, metric="dot", backend=backend)
    assert result.redundancy[0].tolist() == [0, -1]
    assert result.scores[0, 1] == pytest.approx(0.5 * -0.6 + 0.5 * 1)


def test_defaults_are_those_of_the_paper(backend):
    problem = testing.selection_problem(3, 20, 6, 9, bias=True, seed=21)
    named = rk.mmr(**problem, lambda_d=0.75, lambda_b=0.95, metric="cosine", backend=backend)
    same(rk.mmr(**problem, backend=backend), named)


@methods
def test_ties_go_to_the_lowest_position_not_the_lowest_id(backend, method):
    e = np.tile(np.array([[3, 4]], np.float32), (9, 1))
    candidates = np.array([[7, -1, 2, 8, 0, 5]])
    result = METHODS[method](np.array([[1, 1]], np.float32), e, 3, candidates=candidates, backend=backend)
    assert result.indices.tolist() == [[7, 2, 8]]


@methods
def test_equal_rows_are_picked_in_their_order_wherever_they_lie(backend, method):
    """A BLAS may give a row other last bits in another place, and then equal rows would not tie."""
    rng = np.random.default_rng(18)
    for D in range(1, 40):
        rows = np.tile(rng.standard_normal(D).astype(np.float32), (23, 1))
        queries = rng.standard_normal((3, D)).astype(np.float32)
        assert (METHODS[method](queries, rows, 9, backend=backend).indices == np.arange(9)).all(), D
        assert (rk.Corpus(rows).search(queries, 9, backend=backend)[0] == np.arange(9)).all(), D


@methods
@pytest.mark.parametrize("kind", ["pools", "dense", "whole corpus", "per query", "corpus"])
def test_no_queries_give_no_picks(backend, method, kind):
    problem = testing.selection_problem(3, 12, 4, 6, dense=kind == "dense", groups=True)
    nothing = {name: problem[name][:0] for name in ("queries", "candidates", "query_groups") if name in problem}
    problem.update(nothing)
    if kind == "dense":
        problem.update(embeddings=problem["embeddings"][:0], groups=problem["groups"][:0])
    elif kind == "whole corpus":
        del problem["candidates"]
    elif kind == "per query":
        problem["k"] = np.zeros(0, np.int64)
    elif kind == "corpus":
        problem["embeddings"] = rk.Corpus(problem["embeddings"])
    result = getattr(rk, method)(**problem, backend=backend)
    K = 1 if kind == "per query" else 4
    assert [x.shape for x in result] == [(0, K)] * 4 + [(0,)]
    assert [x.dtype.name for x in result] == ["int64", "float32", "float32", "float32", "int32"]
    if kind == "corpus":
        assert [x.shape for x in problem["embeddings"].search(problem["queries"], 5, backend=backend)] == [(0, 5)] * 2
