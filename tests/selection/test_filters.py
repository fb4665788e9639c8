"""`allowed` and `exclude`: picks and searches are those of a corpus that has only these rows."""

import filters
import numpy as np
import pytest
from selection_calls import METHODS, good, methods, same

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.selection import reference, torch_search, validate

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
forms = pytest.mark.parametrize("form", filters.FORMS)


def rows(seed, num_rows=90, dims=11):
    return np.random.default_rng(seed).standard_normal((num_rows, dims)).astype(np.float32)


def of_rows_that_may(call, corpus, options, masks, queries, **arrays):
    """What a call finds for each query in a corpus of the rows that it may pick, by the rows of the whole corpus."""
    for q, mask in enumerate(masks):
        may = np.flatnonzero(mask)
        if not may.size:
            yield None
            continue
        other = rk.Corpus(corpus[may], **{name: array[may] for name, array in arrays.items()}, **options)
        found = call(other, queries[q : q + 1], q)
        yield found._replace(indices=np.append(may, -1)[found.indices])


@pytest.mark.sampled(3)
@forms
@pytest.mark.parametrize("pool", [12, None])
@methods
def test_picks_are_those_of_a_corpus_of_these_rows(backend, method, pool, form):
    data, queries, k = rows(1), rows(2, 4), 5
    rng = np.random.default_rng(3)
    arrays = {"groups": rng.integers(0, 6, 90)} | ({"bias": rng.standard_normal(90)} if method == "mmr" else {})
    arguments, masks = filters.forms(4, 90, 0.3, seed=4)[form]
    own = rng.integers(0, 6, 4)
    options = {"method": method, "pool": pool, "max_per_group": 2, "backend": backend}
    found = rk.Corpus(data, **arrays).select(queries, k, query_groups=own, **arguments, **options)
    expected = of_rows_that_may(
        lambda corpus, query, q: corpus.select(query, k, query_groups=own[q : q + 1], **options),
        data, {}, masks, queries, **arrays,
    )  # fmt: skip
    for q, one in enumerate(expected):
        if one is None:
            assert found.lengths[q] == 0
            assert (found.indices[q] == -1).all()
            continue
        assert found.indices[q].tolist() == one.indices[0].tolist()
        for name in ("scores", "relevance", "redundancy"):
            a, b = getattr(found, name)[q], getattr(one, name)[0]
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 if backend == "reference" else 0)


@pytest.mark.sampled(3)
@forms
@pytest.mark.parametrize("n", [7, 90])
def test_searches_are_those_of_a_corpus_of_these_rows(backend, n, form):
    data, queries = rows(5), rows(6, 5)
    arguments, masks = filters.forms(5, 90, 0.2, seed=7)[form]
    rng = np.random.default_rng(8)
    arrays, own = {"bias": rng.standard_normal(90), "groups": rng.integers(0, 4, 90)}, rng.integers(0, 4, 5)
    options = {"lambda_b": 0.7, "backend": backend}
    found = rk.Corpus(data, **arrays).search(queries, n, query_groups=own, **options, **arguments)
    expected = of_rows_that_may(
        lambda corpus, query, q: corpus.search(query, n, query_groups=own[q : q + 1], **options),
        data, {}, masks, queries, **arrays,
    )  # fmt: skip
    for q, one in enumerate(expected):
        indices, scores = ([-1] * n, [-np.inf] * n) if one is None else (one.indices[0], one.scores[0])
        np.testing.assert_array_equal(found.indices[q], indices)
        np.testing.assert_array_equal(found.scores[q], scores)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["mask", "masks", "rows", "lists", "excluded_lists", "lists_and_lists", "nothing"])
@pytest.mark.parametrize("kind", ["candidates", "dense", "whole"])
@methods
def test_calls_on_arrays_are_replayed(backend, method, kind, form):
    problem = testing.selection_problem(
        3, 24, 4, 8, dense=kind == "dense", N=24 if kind == "whole" else 40, groups=True
    )
    if kind == "whole":
        del problem["candidates"]
    n = 40 if kind == "candidates" else 24
    problem["initial"] = np.array([[3, -1], [5, 6], [-1, -1]])
    problem.update(filters.forms(3, n, 0.4, seed=9)[form][0])
    testing.check_selection(method, problem, METHODS[method](**problem, backend=backend))


@pytest.mark.parametrize("lists", [False, True], ids=["masks", "lists"])
def test_values_of_each_position_stay_with_their_rows(backend, lists):
    """Relevance and bias (Q, N), where lists of rows become pools."""
    rng = np.random.default_rng(10)
    problem = {"queries": None, "embeddings": rows(11, 30), "k": 4, "relevance": rng.random((3, 30))}
    masks = rng.random((3, 30)) < 0.4
    problem.update(bias=rng.random((3, 30)), allowed=filters.lists(masks, rng) if lists else masks)
    testing.check_selection("mmr", problem, rk.mmr(**problem, backend=backend))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_stages_over_a_large_corpus_are_as_dense(compiled, dtype, share):
    """Scans by codes and by rows, few queries and many, rows that may be picked in one block or anywhere."""
    data, queries = rows(12, 5000, 24), rows(13, 70, 24)
    corpus = rk.Corpus(data, dtype=dtype)
    rng = np.random.default_rng(14)
    anywhere, together = rng.random(5000) < share, np.arange(5000) < 5000 * share
    each, excluded = rng.random((70, 5000)) < share, rng.integers(0, 5000, (70, 3))
    full = corpus.search(queries, 5000)
    for arguments in ({"allowed": anywhere}, {"allowed": together, "exclude": excluded}, {"allowed": each}):
        problem = {"queries": queries, "embeddings": corpus, "k": 6, "lambda_d": 0.6, **arguments}
        found = rk.mmr(**problem)
        dense, _ = testing.selection_work("mmr", problem, bounds="dense")
        same(found, dense)
        may = np.broadcast_to(arguments["allowed"], (70, 5000)).copy()
        np.put_along_axis(may, arguments.get("exclude", np.zeros((70, 0), int)), False, axis=1)
        for some in (slice(None), slice(60, 63)):
            mine = {name: x if x.ndim == 1 else x[some] for name, x in arguments.items()}
            best = corpus.search(queries[some], 40, **mine)
            kept = np.take_along_axis(may[some], full.indices[some], axis=1)
            for q, (rows_of, scores, keep) in enumerate(zip(full.indices[some], full.scores[some], kept, strict=True)):
                n = min(40, keep.sum())
                np.testing.assert_array_equal(best.indices[q], [*rows_of[keep][:40], *[-1] * (40 - n)])
                np.testing.assert_array_equal(best.scores[q, :n], scores[keep][:40])


OF_QUERIES = pytest.mark.parametrize("form", ["masks", "excluded_lists"])


def exact(num_queries, num_rows=300, dims=16):
    """Vectors of 1 and -1: the cosine of any two, and every sum on the way to it, is exact; many are equal."""
    rng = np.random.default_rng(20)
    data, queries = (rng.choice([-1.0, 1.0], (size, dims)).astype(np.float32) for size in (num_rows, num_queries))
    return data, queries, queries.astype(np.float64) @ data.T / dims


def best(cosines, masks, n):
    """The n best rows that each query may pick, ties to the lowest."""
    order = np.argsort(np.where(masks, -cosines, np.inf), axis=1, kind="stable")[:, :n]
    return np.where(np.take_along_axis(masks, order, axis=1), order, -1)


@OF_QUERIES
def test_each_of_many_queries_has_its_own_filter(backend, form, monkeypatch):
    """More queries than are searched at a time: a filter stays with its query."""
    monkeypatch.setattr(reference, "_SCORES", 300 * 50)  # the kernels search for up to 256 at a time
    data, queries, cosines = exact(300)
    arguments, masks = filters.forms(300, len(data), 0.3, seed=21)[form]
    corpus, options = rk.Corpus(data), {"backend": backend, **arguments}
    expected = best(cosines, masks, 5)
    np.testing.assert_array_equal(corpus.search(queries, 5, **options).indices, expected)
    many = corpus.search(queries, len(data), **options).indices
    np.testing.assert_array_equal(many, best(cosines, masks, len(data)))
    for pool in (20, None) if backend == "triton" else (20, None, "certified"):
        picks = corpus.select(queries, 5, pool=pool, lambda_d=1.0, **options)
        np.testing.assert_array_equal(picks.indices, expected)
    diverse = corpus.select(queries, 5, pool=None, method="vrsd", **options).indices
    assert np.take_along_axis(masks, diverse, axis=1).all()


@OF_QUERIES
def test_each_of_many_queries_has_its_own_filter_on_a_device(form, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(torch_search, "_QUERIES", 7)
    monkeypatch.setattr(torch_search, "_BLOCK", 7 * 40)
    data, queries, cosines = exact(40)
    arguments, masks = filters.forms(40, len(data), 0.3, seed=22)[form]
    problem = validate.selection("search", queries, rk.Corpus(data), 6, k_name="n", **arguments)
    np.testing.assert_array_equal(torch_search.search(problem, 1)[0], best(cosines, masks, 6))


@OF_QUERIES
def test_each_of_many_queries_has_its_own_filter_in_an_index(form):
    pytest.importorskip("faiss")
    data, queries, cosines = exact(1100, 120)
    arguments, masks = filters.forms(1100, len(data), 0.3, seed=23)[form]
    corpus = rk.Corpus(data)
    found = corpus.search(queries, 5, index=corpus.to_faiss(), **arguments).indices
    assert np.take_along_axis(masks, found, axis=1).all()
    values, most = (np.take_along_axis(cosines, rows, axis=1) for rows in (found, best(cosines, masks, 5)))
    np.testing.assert_array_equal(values, most)  # of equal ones the index may find others


def test_index_finds_rows_that_may_be_picked():
    pytest.importorskip("faiss")
    corpus = rk.Corpus(rows(15, 300))
    queries, index = rows(16, 6), corpus.to_faiss()
    for form in filters.FORMS:
        arguments, masks = filters.forms(6, 300, 0.05, seed=17)[form]
        found = corpus.search(queries, 9, index=index, **arguments)
        expected = corpus.search(queries, 9, **arguments)
        np.testing.assert_array_equal(found.indices, expected.indices)
        picks = corpus.select(queries, 3, pool=9, index=index, **arguments)
        for q, mask in enumerate(masks):
            assert mask[picks.indices[q, : picks.lengths[q]]].all()
            assert picks.lengths[q] == min(3, mask.sum())


@forms
def test_search_on_a_device(form):
    """Whole numbers under "dot": every product is exact."""
    pytest.importorskip("torch")
    rng = np.random.default_rng(18)
    corpus = rk.Corpus(rng.integers(-3, 4, (40, 5)).astype(np.float32), metric="dot")
    queries = rng.integers(-3, 4, (3, 5)).astype(np.float32)
    arguments, _ = filters.forms(3, 40, 0.3, seed=19)[form]
    problem = validate.selection("search", queries, corpus, 8, k_name="n", **arguments)
    found = torch_search.search(problem, 1)
    expected = corpus.search(queries, 8, backend="reference", **arguments)
    np.testing.assert_array_equal(found[0], expected.indices)
    np.testing.assert_array_equal(found[1], expected.scores)


def test_query_with_a_bad_list_is_skipped_alone(backend):
    arguments = good(exclude=np.array([[1, 2], [40, 3], [-1, -1]]))
    found = rk.mmr(**arguments, on_error="skip", backend=backend)
    assert found.errors == {1: "mmr: exclude must be -1 or rows below 12, got 40"}
    one = rk.mmr(**{**arguments, "exclude": [[1, 2], [3, 3], [-1, -1]]}, backend=backend)
    for q in (0, 2):
        assert found.indices[q].tolist() == one.indices[q].tolist()


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_arrays_of_classes_of_their_own():
    arguments, found = good(exclude=np.array([[1, 2]] * 3)), []
    for as_class in (np.asarray, np.asmatrix):
        arrays = {name: as_class(arguments[name]) for name in ("candidates", "exclude")}
        found.append(rk.mmr(**{**arguments, **arrays}).indices)
    np.testing.assert_array_equal(*found)


def test_what_is_outside_a_pool_stays_outside(backend):
    """A row that may be picked and is no candidate is none; candidates that may not be picked are none either."""
    found = rk.mmr(**good(allowed=[2, 6, 8, 11]), backend=backend)
    assert [sorted(row for row in picks if row >= 0) for picks in found.indices.tolist()] == [[2], [6, 8], [8, 11]]
