"""Corpus: exact search, selection on it, and its folder."""

import os

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.corpus import rows as corpus_rows

METHODS = ("mmr", "vrsd")
DTYPES = ("float32", "float16", "bfloat16")
EPS = float(np.finfo(np.float32).eps)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored(corpus):
    """Rows of the corpus as vectors of the formulas, in float64."""
    data = corpus.data
    if corpus.dtype == "bfloat16":
        data = (data.astype(np.uint32) << 16).view(np.float32)
    data = data.astype(np.float64)
    if corpus.metric == "cosine":
        norms = np.linalg.norm(data, axis=1, keepdims=True)
        data = data / np.where(norms > 0, norms, 1)
    return data


def exact_values(corpus, queries, lambda_b=0.95, query_groups=None):
    """v of every row in float64; -inf for rows of the query's own group."""
    queries = queries.astype(np.float64)
    if corpus.metric == "cosine":
        norms = np.linalg.norm(queries, axis=1, keepdims=True)
        queries = queries / np.where(norms > 0, norms, 1)
    values = queries @ stored(corpus).T
    if corpus.bias is not None:
        lambda_b = np.broadcast_to(lambda_b, len(queries))[:, None]
        values = lambda_b * values + (1 - lambda_b) * corpus.bias
    if query_groups is not None:
        values[np.asarray(query_groups)[:, None] == corpus.groups] = -np.inf
    return values


def check_search(corpus, queries, n, result, **options):
    """The n best, each in its place but for the rounding of float32 sums."""
    indices, scores = result
    values = exact_values(corpus, queries, **options)
    tolerance = EPS * (8 + np.sqrt(corpus.dims)) * max(1.0, np.abs(values[np.isfinite(values)]).max(initial=0))
    assert (indices.dtype, scores.dtype) == (np.int64, np.float32)
    assert indices.shape == scores.shape == (len(queries), n)
    for q in range(len(queries)):
        available = np.isfinite(values[q]).sum()
        made = min(n, available)
        assert (indices[q, made:] == -1).all()
        assert np.isneginf(scores[q, made:]).all()
        found = indices[q, :made]
        assert len(set(found)) == made
        assert ((found >= 0) & (found < len(corpus))).all()
        best = -np.sort(-values[q])[:made]
        np.testing.assert_allclose(values[q][found], best, rtol=0, atol=2 * tolerance)
        np.testing.assert_allclose(scores[q, :made], values[q][found], rtol=0, atol=tolerance)
        # In the order of the reported scores, ties by row.
        order = np.lexsort((found, -scores[q, :made]))
        assert (order == np.arange(made)).all()


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 50, 7), (2, 300, 33), (5, 1000, 64)], ids=str)
def test_search_equals_an_exact_oracle(backend, shape, dtype, metric):
    Q, N, D = shape
    corpus = rk.Corpus(normal(0, N, D), metric=metric, dtype=dtype)
    queries = normal(1, Q, D)
    for n in sorted({1, min(10, N), N, N + 9}):  # beyond the corpus is padding
        check_search(corpus, queries, n, corpus.search(queries, n, backend=backend))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_search_over_many_blocks_of_rows_and_queries(compiled, dtype, metric):
    corpus = rk.Corpus(normal(2, 20_001, 24), bias=normal(3, 20_001), metric=metric, dtype=dtype)
    queries = normal(4, 300, 24)
    check_search(corpus, queries, 40, corpus.search(queries, 40, backend="cpu"))


@pytest.mark.parametrize("biased", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("lambda_b", [0.3, [0, 0.25, 0.5, 1.0]], ids=["one", "per_query"])
def test_search_ranks_by_relevance_with_bias(backend, lambda_b, biased):
    """Without a bias lambda_b plays no part."""
    corpus = rk.Corpus(normal(5, 400, 12), bias=normal(6, 400) if biased else None)
    queries = normal(7, 4, 12)
    result = corpus.search(queries, 15, lambda_b=lambda_b, backend=backend)
    check_search(corpus, queries, 15, result, lambda_b=lambda_b)


def test_search_leaves_out_the_own_group(backend):
    groups = np.arange(300) % 4 - 1
    corpus = rk.Corpus(normal(8, 300, 9), groups=groups)
    queries, query_groups = normal(9, 5, 9), np.array([-1, 0, 1, 2, 99])
    for n in (10, 300):
        result = corpus.search(queries, n, query_groups=query_groups, backend=backend)
        check_search(corpus, queries, n, result, query_groups=query_groups)


@pytest.mark.parametrize(("metric", "dtype"), [("cosine", "float32"), ("dot", "float16"), ("cosine", "bfloat16")])
def test_search_ties_go_to_the_lowest_row(backend, metric, dtype):
    """Equal rows spread over all blocks of rows: of 20,000 rows every hundredth is the best."""
    rows = normal(12, 20_000, 6)
    rows[17::100] = rows[17] = np.array([2, 1, -2, 0, 3, 1])
    queries = np.stack([rows[17], rows[17] * 3])
    if metric == "dot":
        rows[np.arange(20_000) % 100 != 17] *= np.float32(0.3)
    corpus = rk.Corpus(rows, metric=metric, dtype=dtype)
    for n in (1, 5, 150):
        indices, scores = corpus.search(queries, n, backend=backend)
        np.testing.assert_array_equal(indices, [np.arange(17, 20_000, 100)[:n]] * 2)
        assert (scores == scores[:, :1]).all()


def test_search_of_exact_sums_equals_a_stable_sort(backend):
    rng = np.random.default_rng(14)
    bias = rng.integers(-2, 3, 9000).astype(np.float32)
    corpus = rk.Corpus(rng.integers(-2, 3, (9000, 5)).astype(np.float32), bias=bias, metric="dot")
    queries = rng.integers(-2, 3, (6, 5)).astype(np.float32)
    indices, scores = corpus.search(queries, 500, lambda_b=0.5, backend=backend)
    values = exact_values(corpus, queries, lambda_b=0.5)
    expected = np.argsort(-values, axis=1, kind="stable")[:, :500]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(values, expected, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [False, True], ids=["no_bias", "bias"])
def test_fewer_are_the_first_of_more_among_near_ties(backend, biased, dtype):
    """Rows a few roundings apart: the matrix product that drops rows ranks them otherwise than the final scores."""
    rows = np.ones((9000, 60), np.float32) + np.float32(3e-7) * normal(15, 9000, 60)
    corpus = rk.Corpus(rows, bias=np.full(9000, 0.3) if biased else None, dtype=dtype)
    queries = normal(16, 3, 60)
    indices, scores = corpus.search(queries, 9000, backend=backend)
    for n in (1, 7, 100, 4000):
        fewer = corpus.search(queries, n, backend=backend)
        np.testing.assert_array_equal(fewer[0], indices[:, :n])
        np.testing.assert_array_equal(fewer[1], scores[:, :n])


@pytest.mark.parametrize("dtype", DTYPES)
def test_search_bits_do_not_depend_on_the_batch(backend, dtype):
    corpus = rk.Corpus(normal(15, 9001, 33), bias=normal(16, 9001), dtype=dtype)
    queries = normal(17, 30 if backend == "reference" else 300, 33)
    indices, scores = corpus.search(queries, 12, backend=backend)
    for part in (slice(0, 1), slice(5, 12), slice(29, 30)):
        alone = corpus.search(queries[part], 12, backend=backend)
        np.testing.assert_array_equal(alone[0], indices[part])
        np.testing.assert_array_equal(alone[1], scores[part])


def test_search_scores_are_the_relevance_of_a_selection(backend):
    """One dot product for both, so that a pool retrieved first gives the same values."""
    corpus = rk.Corpus(normal(18, 500, 21), bias=normal(19, 500), dtype="float16")
    queries = normal(20, 4, 21)
    indices, scores = corpus.search(queries, 30, backend=backend)
    result = rk.mmr(queries, corpus, 29, candidates=indices, lambda_d=1, backend=backend)
    np.testing.assert_array_equal(result.indices, indices[:, :29])
    np.testing.assert_array_equal(result.relevance, scores[:, :29])


def test_bad_query_of_a_search_is_named_in_any_block(backend):
    corpus = rk.Corpus(normal(21, 40, 5), metric="dot")
    queries = normal(22, 400, 5)
    queries[[300, 301], 2] = np.nan
    with pytest.raises(ValueError, match=r"^search: queries must be finite, got NaN or inf in row 300$"):
        corpus.search(queries, 3, backend=backend)


def test_products_of_a_search_beyond_float32_are_an_error_that_names_the_query(compiled):
    corpus = rk.Corpus(normal(21, 40, 5) * np.float32(1e20), metric="dot")
    queries = normal(22, 400, 5)
    queries[300:] *= np.float32(1e20)
    message = r"^search: queries and embeddings must have products within the range of float32, got .* for query 300; "
    with pytest.raises(ValueError, match=message):
        corpus.search(queries, 3, backend="cpu")


def test_search_takes_numbers_of_numpy():
    corpus = rk.Corpus(normal(18, 50, 21))
    queries = normal(20, 4, 21)
    for n in (np.int64(3), np.uint8(3), np.array(3)):
        assert corpus.search(queries, n).indices.shape == (4, 3)


# --- Selection on a corpus.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_selection_on_a_corpus_is_best(backend, metric, dtype, method):
    problem = testing.selection_problem(5, 40, 8, 37, groups=True, ragged=True, seed=21)
    groups = problem.pop("groups")
    problem["embeddings"] = corpus = rk.Corpus(problem["embeddings"], normal(22, 80), groups, metric, dtype)
    assert corpus.metric == metric
    result = getattr(rk, method)(**problem, backend=backend)
    testing.check_selection(method, problem, result)
    # The same rows by hand.
    by_hand = {**problem, "embeddings": stored(corpus).astype(np.float32), "groups": groups, "metric": metric}
    if method == "mmr":
        by_hand["bias"] = corpus.bias
    testing.check_selection(method, by_hand, result)


@pytest.mark.parametrize("method", METHODS)
def test_select_is_search_then_selection(backend, method):
    groups = np.random.default_rng(0).integers(0, 30, 300)
    corpus = rk.Corpus(normal(23, 300, 17), bias=normal(24, 300), groups=groups)
    queries = normal(25, 4, 17)
    options = {"query_groups": groups[:4], "max_per_group": 1, "backend": backend}
    if method == "mmr":
        options.update(lambda_d=0.4, lambda_b=0.7)
    result = corpus.select(queries, 6, method=method, pool=50, **options)
    lambda_b = 0.7 if method == "mmr" else 1.0
    ids, _ = corpus.search(queries, 50, lambda_b=lambda_b, query_groups=groups[:4], backend=backend)
    by_hand = getattr(rk, method)(queries, corpus, 6, candidates=ids, **options)
    for a, b in zip(result, by_hand, strict=True):
        np.testing.assert_array_equal(a, b)
    problem = {"queries": queries, "embeddings": corpus, "k": 6, "candidates": ids, **options}
    testing.check_selection(method, problem, result)


def test_select_retrieves_100_rows_by_default():
    corpus = rk.Corpus(normal(23, 300, 17))
    queries = normal(25, 2, 17)
    result = corpus.select(queries, 10, lambda_d=0.0)
    named = corpus.select(queries, 10, pool=100, lambda_d=0.0)
    np.testing.assert_array_equal(result.indices, named.indices)


@pytest.mark.parametrize("method", METHODS)
def test_pool_none_selects_from_the_whole_corpus(backend, method):
    corpus = rk.Corpus(normal(26, 150, 17), bias=normal(27, 150))
    queries = normal(28, 3, 17)
    result = corpus.select(queries, 6, method=method, pool=None, backend=backend)
    direct = getattr(rk, method)(queries, corpus, 6, candidates=None, backend=backend)
    for a, b in zip(result, direct, strict=True):
        np.testing.assert_array_equal(a, b)
    testing.check_selection(method, {"queries": queries, "embeddings": corpus, "k": 6}, result)


@pytest.mark.parametrize(
    ("kind", "dtype", "method"),
    [
        ("clustered", "float32", "mmr"),
        ("duplicates", "float16", "mmr"),
        ("random", "float16", "vrsd"),
        ("duplicates", "float32", "vrsd"),
    ],
)
def test_whole_corpus_of_many_blocks_equals_pools_of_all_rows(compiled, kind, dtype, method):
    """Whatever is left unread, the bits are those of the pool that lists every row."""
    N = 9_001
    problem = testing.selection_problem(4, 1, 8, 24, N=N, kind=kind, groups=True, seed=38)
    rng = np.random.default_rng(39)
    bias = rng.standard_normal(N) if method == "mmr" else None
    problem["embeddings"] = rk.Corpus(problem["embeddings"], bias, problem.pop("groups"), dtype=dtype)
    problem["initial"] = np.array([[5], [-1], [9_000], [-1]])
    problem["k"] = np.array([8, 3, 1, 8])
    if method == "mmr":
        problem.update(lambda_d=np.array([0.0, 0.5, 0.75, 1.0]), lambda_b=np.array([0.5, 0.95, 1.0, 0.0]))
    problem["candidates"] = np.tile(np.arange(N), (4, 1))
    by_pools = getattr(rk, method)(**problem, backend="cpu")
    problem["candidates"] = None
    whole = getattr(rk, method)(**problem, backend="cpu")
    for name, a, b in zip(rk.Selection._fields, whole, by_pools, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    del problem["candidates"]
    testing.check_selection(method, problem, whole)


def test_select_with_candidates_or_relevance_does_not_search(backend, monkeypatch):
    corpus = rk.Corpus(normal(26, 50, 17))
    queries = normal(28, 3, 17)
    monkeypatch.setattr(rk.Corpus, "search", lambda *a, **b: pytest.fail("searched"))
    ids = np.tile(np.arange(20), (3, 1))
    result = corpus.select(queries, 4, candidates=ids, backend=backend)
    testing.check_selection("mmr", {"queries": queries, "embeddings": corpus, "k": 4, "candidates": ids}, result)
    relevance = np.random.default_rng(0).uniform(-1, 1, (3, 50)).astype(np.float32)
    result = corpus.select(queries, 4, relevance=relevance, backend=backend)
    testing.check_selection("mmr", {"queries": queries, "embeddings": corpus, "k": 4, "relevance": relevance}, result)


def test_select_retrieves_as_many_more_rows_as_were_shown(backend):
    """Rows shown before are near the query: without more the pool would be empty of others."""
    corpus = rk.Corpus(normal(29, 200, 9))
    queries = normal(30, 2, 9)
    shown, _ = corpus.search(queries, 10, backend=backend)
    result = corpus.select(queries, 5, pool=10, initial=shown, backend=backend)
    assert (result.lengths == 5).all()
    assert not set(result.indices.ravel()) & set(shown[0]) & set(shown[1])


def test_select_with_groups_of_the_call(backend):
    """Groups given to select hold for the retrieval as well."""
    corpus = rk.Corpus(normal(31, 100, 9))
    queries, groups = normal(32, 2, 9), np.arange(100) % 10
    options = {"groups": groups, "query_groups": np.array([3, 4]), "backend": backend}
    result = corpus.select(queries, 5, pool=20, **options)
    assert not (groups[result.indices] == np.array([[3], [4]])).any()


def test_bias_of_the_call_holds_for_the_retrieval(backend):
    """Row 7 has a bias that outweighs any cosine, so it is the first pick whatever the pool."""
    corpus = rk.Corpus(normal(33, 500, 9))
    bias = np.zeros(500, np.float32)
    bias[7] = 1000
    result = corpus.select(-corpus.data[7:8], 2, pool=5, bias=bias, backend=backend)
    assert result.indices[0, 0] == 7


@pytest.mark.parametrize(
    ("name", "method", "pool"),
    [
        *((name, "mmr", pool) for name in ("costs", "bias") for pool in (30, 100, "certified")),
        ("quality", "dpp", 30),
        ("quality", "dpp", 100),
    ],
)
def test_values_for_each_query_s_items_are_refused_where_the_pool_is_searched_for(name, method, pool):
    """Candidates come in the order of the search, so that a value would be applied to another row than was meant."""
    corpus = rk.Corpus(normal(34, 50, 9))
    given = {name: np.random.default_rng(35).uniform(1, 9, (2, 50)), "method": method}
    if name == "costs":
        given["budget"] = 12.0
    message = rf"^select: {name} must have shape \(N,\) = \(50,\) where the pool is searched for, got \(2, 50\)"
    with pytest.raises(ValueError, match=message):
        corpus.select(normal(36, 2, 9), 5, pool=pool, **given)


def test_costs_of_each_query_are_those_of_the_rows(backend):
    """Of the whole corpus, and of given candidates: what is reported is what the picks cost."""
    corpus, queries = rk.Corpus(normal(34, 50, 9)), normal(36, 2, 9)
    costs = np.random.default_rng(35).integers(1, 10, (2, 50)).astype(float)
    candidates = np.stack([np.random.default_rng(q).permutation(50)[:20] for q in range(2)])
    asked = {"budget": 12.0, "backend": backend}
    whole = corpus.select(queries, 5, pool=None, costs=costs, **asked)
    of_pools = np.take_along_axis(costs, candidates, axis=1)
    pools = corpus.select(queries, 5, candidates=candidates, costs=of_pools, **asked)
    for found in (whole, pools):
        for q in range(2):
            spent = sum(costs[q, row] for row in found.indices[q] if row >= 0)
            assert found.cost[q] == spent <= 12


# --- What a corpus holds.


@pytest.mark.parametrize("dtype", DTYPES)
def test_cosine_corpus_holds_unit_rows(dtype):
    rows = normal(34, 40, 11) * np.float32(100)
    rows[5] = 0
    corpus = rk.Corpus(rows, dtype=dtype)
    assert (len(corpus), corpus.dims) == (40, 11)
    vectors = corpus.vectors(np.arange(40))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1.0] * 5 + [0.0] + [1.0] * 34, atol=1e-6)
    exact = rows.astype(np.float64) / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    precision = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    np.testing.assert_allclose(vectors, exact, atol=2 * precision)


def test_dot_corpus_shares_the_memory_it_can():
    rows = normal(35, 40, 11)
    before = rows.copy()
    assert np.shares_memory(rk.Corpus(rows, metric="dot").data, rows)
    assert not np.shares_memory(rk.Corpus(rows).data, rows)
    assert not np.shares_memory(rk.Corpus(rows, metric="dot", dtype="float16").data, rows)
    np.testing.assert_array_equal(rk.Corpus(rows[:, ::2], metric="dot").data, rows[:, ::2])
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("dtype", [*DTYPES, "int8"])
@pytest.mark.parametrize("longest", [0, 9, 10, 29], ids=["first", "before_an_edge", "after_an_edge", "last"])
def test_largest_norm_is_that_of_all_blocks(monkeypatch, dtype, longest):
    """Bounds on rounding errors rest on it."""
    monkeypatch.setattr(corpus_rows, "_BLOCK_BYTES", 8 * 6 * 10)
    rows = normal(39, 30, 6)
    rows[longest] *= 50
    corpus = rk.Corpus(rows, metric="dot", dtype=dtype)
    norms = np.linalg.norm(corpus.vectors(np.arange(30)), axis=1)
    assert norms.argmax() == longest
    assert norms.max() * (1 - 1e-9) <= corpus.max_norm <= norms.max() * 1.03


def test_extreme_rows_are_normalised_without_overflow():
    rows = np.array([[1e-30, 1e-30], [1e30, -1e30], [1e-40, 0], [3e38, 3e38]], np.float32)
    corpus = rk.Corpus(rows)
    np.testing.assert_allclose(np.linalg.norm(corpus.data, axis=1), 1, rtol=1e-6)


def test_zero_rows_stay_zero_and_are_found_last_but_for_negative_cosines(backend):
    rows = np.array([[1, 0], [0, 0], [-1, 0]], np.float32)
    indices, scores = rk.Corpus(rows).search(np.array([[2, 0]], np.float32), 3, backend=backend)
    assert indices.tolist() == [[0, 1, 2]]
    assert scores.tolist() == [[1, 0, -1]]


def test_first_bad_row_is_named_in_any_block(tmp_path):
    rows = np.ones((40_000, 100), np.float32)
    rows[[31_234, 39_999], 50] = np.nan
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(ValueError, match=r"^Corpus: embeddings must be finite, got NaN or inf in row 31234$"):
        rk.Corpus(np.load(tmp_path / "rows.npy", mmap_mode="r"))


def test_values_beyond_float16():
    rows = np.ones((10, 4), np.float32)
    rows[6, 1] = 65520  # rounds to inf
    with pytest.raises(ValueError, match="within the range of float16"):
        rk.Corpus(rows, metric="dot", dtype="float16")
    rows[6, 1] = 65504
    rk.Corpus(rows, metric="dot", dtype="float16")
    rk.Corpus(rows * np.float32(1e30), dtype="float16")  # unit rows fit


# --- Its folder.


def make(dtype="float32", metric="cosine", extras=True):
    rng = np.random.default_rng(37)
    bias, groups = (rng.standard_normal(60), rng.integers(0, 9, 60)) if extras else (None, None)
    return rk.Corpus(rng.standard_normal((60, 13)).astype(np.float32), bias, groups, metric, dtype)


@pytest.mark.parametrize("extras", [False, True], ids=["bare", "bias_and_groups"])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_loaded_corpus_equals_the_saved_one(tmp_path, dtype, metric, extras):
    corpus = make(dtype, metric, extras)
    corpus.save(tmp_path / "a" / "corpus")
    loaded = rk.Corpus.load(str(tmp_path / "a" / "corpus"))
    assert repr(loaded) == repr(corpus)
    assert isinstance(loaded.data.base, np.memmap)
    assert not loaded.data.flags.writeable
    for name in ("data", "scales", "bias", "groups", "codes"):
        a, b = getattr(loaded, name), getattr(corpus, name)
        assert (a is None) == (b is None), name
        if a is not None:
            np.testing.assert_array_equal(a, b)
    queries = normal(38, 4, 13)
    for pool in (20, None):
        a, b = (each.select(queries, 4, pool=pool) for each in (loaded, corpus))
        np.testing.assert_array_equal(a.scores, b.scores)


def test_saving_leaves_nothing_else_behind(tmp_path):
    (tmp_path / "corpus").mkdir()  # an empty one is taken
    make().save(tmp_path / "corpus")
    assert os.listdir(tmp_path) == ["corpus"]
    arrays = {"bias.npy", "data.npy", "groups.npy"} | ({"codes.npy"} if make().codes is not None else set())
    assert set(os.listdir(tmp_path / "corpus")) == {"corpus.json", *arrays}


def test_existing_corpus_is_replaced_only_if_asked(tmp_path):
    path = tmp_path / "corpus"
    make().save(path)
    before = (path / "data.npy").read_bytes()
    with pytest.raises(FileExistsError, match=r"pass overwrite=True to replace a corpus$"):
        make("float16").save(path)
    assert (path / "data.npy").read_bytes() == before
    make("float16", extras=False).save(path, overwrite=True)
    assert rk.Corpus.load(path).dtype == "float16"
    assert set(os.listdir(path)) - {"codes.npy"} == {"corpus.json", "data.npy", "scales.npy"}
    assert os.listdir(tmp_path) == ["corpus"]


def test_corpus_can_replace_the_folder_it_is_mapped_from(tmp_path):
    corpus = make()
    corpus.save(tmp_path / "corpus")
    rk.Corpus.load(tmp_path / "corpus").save(tmp_path / "corpus", overwrite=True)
    np.testing.assert_array_equal(rk.Corpus.load(tmp_path / "corpus").data, corpus.data)


def test_options_of_folders_are_true_or_false(tmp_path):
    corpus = rk.Corpus(np.eye(3, dtype=np.float32))
    with pytest.raises(TypeError, match=r"^Corpus: overwrite must be True or False, got 'no'$"):
        corpus.save(tmp_path / "c", overwrite="no")
    corpus.save(tmp_path / "c")
    with pytest.raises(TypeError, match=r"^Corpus: verify must be True or False, got ndarray$"):
        rk.Corpus.load(tmp_path / "c", verify=np.ones(2))


@pytest.mark.parametrize("overwrite", [False, True])
def test_folder_that_is_no_corpus_is_never_replaced(tmp_path, overwrite):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to_keep.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for name in ("letters", "file"):
        with pytest.raises(FileExistsError, match=r"^Corpus: path must "):
            make().save(tmp_path / name, overwrite=overwrite)
    assert (tmp_path / "letters" / "to_keep.txt").read_text() == (tmp_path / "file").read_text() == "dear"
    assert sorted(os.listdir(tmp_path)) == ["file", "letters"]


def test_loading_what_is_no_corpus_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name in ("missing", "empty", "file"):
        with pytest.raises(ValueError, match=r"^Corpus: path must be a folder written by Corpus\.save, got "):
            rk.Corpus.load(tmp_path / name)


# --- int8 rows.


@pytest.mark.parametrize(
    ("metric", "dims", "method"),
    [("cosine", 1, "vrsd"), ("dot", 5, "mmr"), ("cosine", 16, "mmr"), ("dot", 33, "vrsd"), ("cosine", 384, "vrsd")],
)
def test_selection_on_int8_rows_is_best(backend, metric, dims, method):
    problem = testing.selection_problem(5, 40, 8, dims, ragged=True, seed=dims)
    problem["embeddings"] = rk.Corpus(problem["embeddings"] * np.float32(3), dtype="int8", metric=metric)
    result = getattr(rk, method)(**problem, backend=backend)
    testing.check_selection(method, problem, result)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_int8_rows_are_within_half_a_step(metric):
    rows = normal(61, 50, 70) * np.float32(4)
    rows[3] = 0
    corpus = rk.Corpus(rows, dtype="int8", metric=metric)
    assert corpus.data.dtype == np.int8
    exact = rows.astype(np.float64)
    if metric == "cosine":
        exact /= np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-30)
    step = np.abs(exact).max(axis=1, keepdims=True) / 127
    # Under cosine the scale is then set for a unit norm, which moves elements by a fraction of a step more.
    assert (np.abs(corpus.vectors(np.arange(50)) - exact) <= 0.75 * step + 1e-7).all()


def test_int8_rows_keep_most_picks_and_nearly_all_value():
    """Clustered rows of 384 dimensions: what the rounding costs, in values of the float32 rows."""
    problem = testing.selection_problem(200, 100, 6, 384, N=3000, kind="clustered", seed=62)
    exact = rk.mmr(**problem)
    rounded = rk.mmr(**{**problem, "embeddings": rk.Corpus(problem["embeddings"], dtype="int8")})
    assert (exact.indices == rounded.indices).all(axis=1).mean() > 0.85
    assert np.abs(exact.scores - rounded.scores).mean() < 1e-3


# --- Memory.

MEMORY = """
import resource, sys
import numpy as np
import ragsys_kernels as rk

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MB

rng = np.random.default_rng(0)
rows = rng.standard_normal((100_000, 50), dtype=np.float32)
queries = rng.standard_normal((256, 50), dtype=np.float32)
corpus = rk.Corpus(rows)
corpus.search(queries[:1], 3)
before = peak()
{call}
print(peak() - before)
"""

CALLS = {
    "mmr": "assert (rk.mmr(queries[:64], rows, 10).lengths == 10).all()",
    "vrsd": "assert (rk.vrsd(queries[:64], rows, 10).lengths == 10).all()",
    "select": "corpus.select(queries[:64], 10, pool=None)",
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("call", CALLS)
def test_selection_from_a_whole_corpus_takes_little_memory(compiled, run_python, call):
    """N = 100,000, D = 50, Q = 64: far below the 1 GB that is the limit, since nothing is Q times N."""
    extra = float(run_python(MEMORY.format(call=CALLS[call])).stdout)
    assert extra < 100, f"{extra:.0f} MB"


@pytest.mark.parametrize(
    "queries", ["queries", "np.where(np.arange(256)[:, None] == 7, 0, queries)"], ids=["generic", "one_zero_query"]
)
def test_search_takes_little_memory(compiled, run_python, queries):
    """256 queries by 8,192 rows of scores are 8 MB; a query for which all rows tie must not cost Q times N."""
    extra = float(run_python(MEMORY.format(call=f"corpus.search({queries}, 10)")).stdout)
    assert extra < 100, f"{extra:.0f} MB"
