"""Corpus: what it holds, search and selection on it."""

import numpy as np
import pytest
from code_rows import normal

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.corpus import rows as corpus_rows

DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.sampled(2)
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


@pytest.mark.parametrize("columns_of", ["corpus", "call"])
@pytest.mark.parametrize("method", ["mmr", "vrsd"])
def test_select_is_search_then_selection(backend, method, columns_of):
    """As many more rows are found as were shown, which are near the query; columns of the call hold for the search."""
    rows, queries, groups = normal(23, 300, 17), normal(25, 4, 17), np.random.default_rng(0).integers(0, 30, 300)
    columns = {"bias": normal(24, 300), "groups": groups}
    whole, own = rk.Corpus(rows, **columns), {"query_groups": groups[:4], "backend": backend}
    lambda_b = 0.7 if method == "mmr" else 1.0
    ids, _ = whole.search(queries, 11, lambda_b=lambda_b, **own)
    options = {"initial": ids[:, :3], "max_per_group": 1, **own}
    if method == "mmr":
        options.update(lambda_d=0.4, lambda_b=lambda_b)
    by_hand = getattr(rk, method)(queries, whole, 6, candidates=ids, **options)
    held, given = whole, {}
    if columns_of == "call":
        in_call = ("bias", "groups") if method == "mmr" else ("groups",)
        given = {name: columns.pop(name) for name in in_call}
        held = rk.Corpus(rows, **columns)
    result = held.select(queries, 6, method=method, pool=8, **options, **given)
    for a, b in zip(result, by_hand, strict=True):
        np.testing.assert_array_equal(a, b)
    problem = {"queries": queries, "embeddings": whole, "k": 6, "candidates": ids, **options}
    testing.check_selection(method, problem, result)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", [*DTYPES, "int8"])
def test_selection_from_the_whole_corpus_is_best(backend, dtype, metric):
    corpus = rk.Corpus(normal(26, 150, 17) * np.float32(3), bias=normal(27, 150), metric=metric, dtype=dtype)
    assert corpus.metric == metric
    for method in ("mmr", "vrsd"):
        problem = {"queries": normal(28, 3, 17), "k": 6}
        result = corpus.select(**problem, method=method, pool=None, backend=backend)
        testing.check_selection(method, {**problem, "embeddings": corpus}, result)


def test_select_retrieves_100_rows_by_default():
    corpus = rk.Corpus(normal(23, 300, 17))
    queries = normal(25, 2, 17)
    result = corpus.select(queries, 10, lambda_d=0.0)
    named = corpus.select(queries, 10, pool=100, lambda_d=0.0)
    np.testing.assert_array_equal(result.indices, named.indices)


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
    monkeypatch.setattr(rk.Corpus, "_search", lambda *a, **b: pytest.fail("searched"))
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


def test_the_pool_of_a_query_has_room_for_what_was_shown_of_it_alone(backend):
    corpus = rk.Corpus(normal(31, 60, 8))
    queries, shown = normal(32, 20, 8), [np.arange(q % 5).tolist() for q in range(20)]
    options = {"lambda_d": 0.3, "backend": backend}
    found = corpus.select(queries, 3, pool=6, initial=shown, **options)
    for q, own in enumerate(shown):
        pool = corpus.search(queries[[q]], 6 + len(own), backend=backend).indices
        expected = rk.mmr(queries[[q]], corpus, 3, candidates=pool, initial=[own], **options)
        np.testing.assert_array_equal(found.indices[[q]], expected.indices)
        alone = corpus.select(queries[[q]], 3, pool=6, initial=[own], **options)
        np.testing.assert_array_equal(found.indices[[q]], alone.indices)
        np.testing.assert_array_equal(found.pool_needed[[q]], alone.pool_needed)
        np.testing.assert_array_equal(found.certified[[q]], alone.certified)


def test_an_index_finds_the_pool_of_a_query_whatever_was_shown_of_others():
    """Signs find other rows than the exact search: the best six of nine of them are not the best six of six."""
    rows, queries = normal(33, 200, 8), normal(34, 30, 8)
    corpus, signs = rk.Corpus(rows), rk.Corpus(rows, dtype="binary")
    shown = [np.arange(q % 4).tolist() for q in range(30)]
    options = {"pool": 6, "index": signs, "lambda_d": 0.3}
    together = corpus.select(queries, 3, initial=shown, **options)
    padded = corpus.select(queries, 3, initial=np.full((30, 5), -1), **options)
    np.testing.assert_array_equal(padded.scores, corpus.select(queries, 3, **options).scores)
    for q, own in enumerate(shown):
        pool = corpus.search(queries[[q]], 6 + len(own), index=signs).indices
        expected = rk.mmr(queries[[q]], corpus, 3, candidates=pool, initial=[own], lambda_d=0.3)
        np.testing.assert_array_equal(together.indices[[q]], expected.indices)


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


def test_values_beyond_float16():
    rows = np.ones((10, 4), np.float32)
    rows[6, 1] = 65520  # rounds to inf
    with pytest.raises(ValueError, match="within the range of float16"):
        rk.Corpus(rows, metric="dot", dtype="float16")
    rows[6, 1] = 65504
    rk.Corpus(rows, metric="dot", dtype="float16")
    rk.Corpus(rows * np.float32(1e30), dtype="float16")  # unit rows fit


# --- int8 rows.


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
