"""FAISS indexes as retrievers: what they hold, what is found through them, what is refused."""

import gc
import re
import sys
import warnings

import numpy as np
import pytest
from code_rows import normal
from peer_pools import unit

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.corpus import faiss_index, index_rows

with warnings.catch_warnings():  # of its SWIG wrapper, on some versions of Python
    warnings.simplefilter("ignore")
    faiss = pytest.importorskip("faiss")

METHODS = ("mmr", "vrsd")
DTYPES = ("float32", "float16", "bfloat16")
EPS = float(np.finfo(np.float32).eps)
LAMBDAS = [0.0, 0.5, 0.95, 1.0, "per query"]


def lambda_of(lambda_b, num_queries):
    return np.linspace(0, 1, num_queries) if lambda_b == "per query" else lambda_b


def exact_values(corpus, queries, lambda_b=0.95):
    """v of every row in float64."""
    queries = queries.astype(np.float64)
    if corpus.metric == "cosine":
        norms = np.linalg.norm(queries, axis=1, keepdims=True)
        queries = queries / np.where(norms > 0, norms, 1)
    values = queries @ corpus.vectors(slice(None)).T
    if corpus.bias is not None:
        weights = np.broadcast_to(lambda_b, len(queries))[:, None]
        values = weights * values + (1 - weights) * corpus.bias
    return values


def check_like_exact(corpus, queries, n, got, **options):
    """The rows and scores of the exact search, but for rows at the margin that differ by less than rounding."""
    indices, scores = got
    expected, expected_scores = corpus.search(queries, n, backend=options.pop("backend", "auto"), **options)
    assert (indices.dtype, scores.dtype) == (np.int64, np.float32)
    options.pop("query_groups", None)
    values = exact_values(corpus, queries, **options)
    tolerance = 4 * EPS * (8 + np.sqrt(corpus.dims)) * max(1.0, np.abs(values).max())
    for q in range(len(queries)):
        margin = expected_scores[q][np.isfinite(expected_scores[q])].min(initial=np.inf)
        for odd in set(indices[q]) ^ set(expected[q]):
            assert odd >= 0
            assert abs(values[q, odd] - margin) <= tolerance, f"query {q}, row {odd}"
        if set(indices[q]) == set(expected[q]):
            np.testing.assert_array_equal(indices[q], expected[q])
            np.testing.assert_array_equal(scores[q], expected_scores[q])
        assert len(set(indices[q][indices[q] >= 0])) == (indices[q] >= 0).sum()


# --- What an index holds.


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_index_holds_the_vectors_of_the_formulas(monkeypatch, with_bias, dtype, metric):
    bias = normal(1, 500) if with_bias else None
    corpus = rk.Corpus(normal(0, 500, 12), bias=bias, metric=metric, dtype=dtype)
    monkeypatch.setattr(faiss_index, "_BLOCK_BYTES", 8 * 13 * 37)  # 37 rows a block
    index = corpus.to_faiss()
    assert isinstance(index, faiss.IndexFlatIP)
    assert (index.ntotal, index.d) == (500, 12 + with_bias)
    stored = index.reconstruct_n(0, 500)
    np.testing.assert_array_equal(stored[:, :12], corpus.vectors(slice(None)).astype(np.float32))
    if with_bias:
        np.testing.assert_array_equal(stored[:, 12] * 64, bias)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("lambda_b", LAMBDAS)
def test_inner_product_is_the_relevance_with_bias(lambda_b, metric):
    """What FAISS itself returns, for the query vectors that the docstring of to_faiss gives."""
    corpus = rk.Corpus(normal(2, 300, 16), bias=normal(3, 300), metric=metric)
    queries = normal(4, 6, 16)
    weights = np.broadcast_to(lambda_of(lambda_b, 6), 6)[:, None]
    given = queries / np.linalg.norm(queries, axis=1, keepdims=True) if metric == "cosine" else queries
    vectors = np.hstack([weights * given, 64 * (1 - weights)]).astype(np.float32)
    products, ids = corpus.to_faiss().search(vectors, 300)
    values = exact_values(corpus, queries, lambda_of(lambda_b, 6))
    np.testing.assert_allclose(products, np.take_along_axis(values, ids, 1), rtol=0, atol=2e-6 * np.abs(values).max())


@pytest.mark.parametrize("kind", ["IVF8,Flat", "HNSW16,Flat", "empty flat", "untrained"])
def test_index_of_the_callers_kind_is_trained_and_filled(kind):
    corpus = rk.Corpus(normal(6, 600, 12), bias=normal(7, 600))
    given = {
        "empty flat": lambda: faiss.IndexFlatIP(13),
        "untrained": lambda: faiss.index_factory(13, "IVF8,Flat", faiss.METRIC_INNER_PRODUCT),
    }.get(kind, lambda: kind)()
    index = corpus.to_faiss(given)
    assert index.is_trained
    assert (index.ntotal, index.d, index.metric_type) == (600, 13, faiss.METRIC_INNER_PRODUCT)
    if not isinstance(given, str):
        assert index is given


def test_training_takes_a_fixed_sample_that_does_not_grow_with_the_corpus(monkeypatch):
    corpus = rk.Corpus(normal(8, 3000, 6))
    trained = []
    monkeypatch.setattr(faiss_index, "_TRAIN_PER_CENTROID", 4)
    train = faiss.IndexIVFFlat.train
    monkeypatch.setattr(faiss.IndexIVFFlat, "train", lambda index, x: trained.append(x) or train(index, x))
    first, second = (corpus.to_faiss("IVF300,Flat") for _ in range(2))
    assert first.ntotal == second.ntotal == 3000
    assert trained[0].shape == (1200, 6)  # 4 for each of 300 cells
    np.testing.assert_array_equal(trained[0], trained[1])
    assert len(np.unique(trained[0], axis=0)) == 1200


# --- Search through an index.


@pytest.mark.sampled(5)
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lambda_b", LAMBDAS)
def test_flat_index_finds_what_the_exact_search_finds(backend, lambda_b, dtype, metric):
    corpus = rk.Corpus(normal(9, 700, 24), bias=normal(10, 700), metric=metric, dtype=dtype)
    queries, lambda_b = normal(11, 9, 24) * np.float32(5), lambda_of(lambda_b, 9)
    index = corpus.to_faiss()
    for n in (1, 20, 700):
        options = {"lambda_b": lambda_b, "backend": backend}
        check_like_exact(corpus, queries, n, corpus.search(queries, n, index=index, **options), **options)


def test_many_blocks_of_queries(backend, monkeypatch):
    corpus = rk.Corpus(normal(14, 200, 8), bias=normal(15, 200), groups=np.arange(200) % 3)
    queries, lambda_b, query_groups = normal(16, 50, 8), np.linspace(0, 1, 50), np.arange(50) % 3
    index = corpus.to_faiss()
    options = {"lambda_b": lambda_b, "query_groups": query_groups, "backend": backend}
    expected = corpus.search(queries, 30, index=index, **options)
    monkeypatch.setattr(faiss_index, "_QUERY_BLOCK", 7)
    monkeypatch.setattr(faiss_index, "_CELLS", 130)
    cells, search = [], faiss.IndexFlatIP.search
    monkeypatch.setattr(
        faiss.IndexFlatIP, "search", lambda index, x, k: cells.append(len(x) * k) or search(index, x, k)
    )
    for a, b in zip(corpus.search(queries, 30, index=index, **options), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert max(cells) <= 130
    check_like_exact(corpus, queries, 30, expected, **options)


def test_ties_go_to_the_lowest_row(backend):
    rows = np.tile(np.array([[1, 0], [0, 1]], np.float32), (20, 1))
    corpus = rk.Corpus(rows)
    indices, scores = corpus.search(rows[:2], 20, index=corpus.to_faiss("HNSW16,Flat"), backend=backend)
    assert indices.tolist() == [list(range(0, 40, 2)), list(range(1, 40, 2))]
    assert (scores == 1).all()


def clustered(seed, num_rows, dims):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((50, dims))
    rows = centres[rng.integers(0, 50, num_rows)] + 0.7 * rng.standard_normal((num_rows, dims))
    return rows.astype(np.float32)


@pytest.mark.parametrize("with_bias", [False, True], ids=["bare", "log_probabilities"])
@pytest.mark.parametrize("kind", ["HNSW32,Flat", "IVF64,Flat"])
def test_approximate_indexes_find_nearly_all(kind, with_bias):
    """At the default lambda_b, with a bias as wide as log-probabilities are."""
    rows = clustered(19, 5100, 32)
    corpus = rk.Corpus(rows[:5000], bias=normal(20, 5000) - 3 if with_bias else None)
    queries = rows[5000:]
    index = corpus.to_faiss(kind)
    if kind.startswith("IVF"):
        index.nprobe = 8
    indices, scores = corpus.search(queries, 20, index=index)
    expected, _ = corpus.search(queries, 20)
    values = exact_values(corpus, queries)
    for q in range(100):
        assert len(set(indices[q])) == 20
        assert ((indices[q] >= 0) & (indices[q] < 5000)).all()
        np.testing.assert_allclose(scores[q], values[q, indices[q]], rtol=0, atol=1e-6)
        assert (np.diff(scores[q]) <= 0).all()
    recall = np.mean([len(set(a) & set(b)) / 20 for a, b in zip(indices, expected, strict=True)])
    assert recall > 0.9


def test_cells_that_are_not_probed_leave_padding(backend):
    corpus = rk.Corpus(normal(21, 400, 8))
    index = corpus.to_faiss("IVF50,Flat")
    indices, scores = corpus.search(normal(22, 5, 8), 100, index=index, backend=backend)
    lengths = (indices >= 0).sum(axis=1)
    assert (lengths > 0).all()
    assert (lengths < 100).all()
    for row, values, length in zip(indices, scores, lengths, strict=True):
        assert (row[length:] == -1).all()
        assert np.isneginf(values[length:]).all()
        assert np.isfinite(values[:length]).all()


def test_rows_found_are_ranked_by_the_kernels_not_by_the_index(backend):
    """A coarse quantizer misorders rows; their order and scores are nevertheless those of v."""
    corpus = rk.Corpus(normal(23, 600, 15), bias=normal(24, 600))
    queries = normal(25, 5, 15)
    index = corpus.to_faiss("SQ4")
    indices, scores = corpus.search(queries, 50, index=index, backend=backend)
    exact, exact_scores = corpus.search(queries, 600, backend=backend)
    for q in range(5):
        place = np.flatnonzero(np.isin(exact[q], indices[q]))
        np.testing.assert_array_equal(indices[q], exact[q][place])
        np.testing.assert_array_equal(scores[q], exact_scores[q][place])


# --- Indexes of the caller's own.


@pytest.mark.parametrize("kind", ["inner product", "L2"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_own_index_of_unit_rows_retrieves_by_relevance(backend, with_bias, kind):
    rows, queries = normal(26, 400, 10), normal(27, 6, 10)
    bias = normal(28, 400) if with_bias else None
    corpus = rk.Corpus(rows, bias=bias)
    index = faiss.IndexFlatIP(10) if kind == "inner product" else faiss.IndexFlatL2(10)
    index.add(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    indices, scores = corpus.search(queries, 15, index=index, lambda_b=0.5, backend=backend)
    nearest, _ = rk.Corpus(rows).search(queries, 15, backend=backend)
    by_hand, values = np.sort(nearest, axis=1), exact_values(corpus, queries, 0.5)
    order = np.argsort(-np.take_along_axis(values, by_hand, 1), axis=1, kind="stable")
    np.testing.assert_array_equal(indices, np.take_along_axis(by_hand, order, 1))
    np.testing.assert_allclose(scores, np.take_along_axis(values, indices, 1), rtol=0, atol=1e-6)


def test_ids_that_an_index_repeats_count_once(backend):
    corpus = rk.Corpus(np.eye(4, dtype=np.float32))
    index = faiss.IndexIDMap(faiss.IndexFlatIP(4))
    index.add_with_ids(corpus.data[[0, 0, 1, 2, 3]], np.array([0, 0, 1, 2, 3]))
    indices, scores = corpus.search(np.array([[3, 2, 1, 0]], np.float32), 4, index=index, backend=backend)
    assert indices.tolist() == [[0, 1, 2, -1]]
    assert np.isneginf(scores[0, 3])


def test_ids_that_are_no_rows_are_refused():
    corpus = rk.Corpus(np.eye(4, dtype=np.float32))
    index = faiss.IndexIDMap(faiss.IndexFlatIP(4))
    index.add_with_ids(corpus.data, np.array([0, 1, 2, 70]))
    with pytest.raises(
        ValueError, match=r"^search: index must have numbers of the corpus's rows, below N = 4, got 70$"
    ):
        corpus.search(np.ones((1, 4), np.float32), 4, index=index)


# --- Indexes of other rows, or of other numbers.


FACTORIES = ["Flat", "HNSW16,Flat", "IVF4,Flat", "SQ8", "PQ8x4np", "IVF4,PQ8x4np", "IDMap,Flat", "IDMap2,HNSW16,Flat",
             "IDMap2,IVF4,Flat", "PCAR24,IVF4,PQ8x4np", "PCA12,Flat"]  # fmt: skip


def filled_by(kind, rows, numbers=None, metric=faiss.METRIC_INNER_PRODUCT):
    index = faiss.index_factory(rows.shape[1], kind, metric)
    index.train(rows)
    if numbers is None and not kind.startswith("IDMap"):
        index.add(rows)
    else:
        index.add_with_ids(rows, np.arange(len(rows)) if numbers is None else numbers)
    if "IVF" in kind:
        inner = faiss.downcast_index(index.index) if kind.startswith("IDMap") else index
        faiss.extract_index_ivf(inner).nprobe = 4
    return index


@pytest.fixture(scope="module")
def drawn():
    rows = unit(normal(60, 500, 24))
    return rows, rows[[10, 20]] + np.float32(0.05)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("kind", FACTORIES)
def test_an_index_in_another_order_is_refused(drawn, kind, metric):
    """Rows from the tenth on are two places before their own, as after `remove_ids` of a flat index."""
    rows, queries = drawn
    corpus = rk.Corpus(rows, metric=metric)
    corpus.search(queries, 4, index=filled_by(kind, rows))
    shifted = np.concatenate([rows[:10], rows[12:], rows[10:12]])
    for call in (corpus.search, corpus.select):
        message = f"^{call.__name__}: index must hold the rows of the corpus in their order"
        with pytest.raises(ValueError, match=message):
            call(queries, 4, index=filled_by(kind, shifted))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "binary"])
def test_rows_that_a_corpus_rounds_are_those_of_its_index(drawn, dtype):
    rows, queries = drawn
    heavy = rows.copy()
    heavy[:, 0] *= 40  # of which int8 keeps little else
    for some in (rows, heavy):
        index = filled_by("Flat", unit(some))
        rk.Corpus(some, dtype=dtype).search(queries, 4, index=index)
    with pytest.raises(ValueError, match=r"^search: index must hold the rows of the corpus in their order"):
        rk.Corpus(rows[::-1].copy(), dtype=dtype).search(queries, 4, index=filled_by("Flat", rows))


@pytest.mark.parametrize("metric", [faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2])
def test_rows_of_several_lengths_are_refused_where_these_change_what_is_found(drawn, metric):
    rows, queries = drawn
    scaled = rows * np.linspace(0.5, 2, 500, dtype=np.float32)[:, None]
    with pytest.raises(
        ValueError, match=r"must hold unit rows, or rows of one length, .* got some 0\.5 and some 2 times"
    ):
        rk.Corpus(scaled).search(queries, 4, index=filled_by("Flat", scaled, metric=metric))
    exact = rk.Corpus(scaled).search(queries, 4).indices
    longer = filled_by("Flat", 3 * rows, metric=metric)
    np.testing.assert_array_equal(rk.Corpus(scaled).search(queries, 4, index=longer).indices, exact)
    dot = rk.Corpus(scaled, metric="dot")
    np.testing.assert_array_equal(
        dot.search(queries, 4, index=filled_by("Flat", 3 * scaled)).indices, dot.search(queries, 4).indices
    )
    with pytest.raises(ValueError, match="must hold rows as the corpus has them"):
        dot.search(queries, 4, index=filled_by("Flat", rows))


def test_an_index_of_another_bias_is_refused(drawn):
    rows, queries = drawn
    bias = normal(61, 500)
    corpus = rk.Corpus(rows, bias=bias)
    corpus.search(queries, 4, index=corpus.to_faiss())
    with pytest.raises(ValueError, match="index must have the corpus's bias, got another for row 0"):
        corpus.search(queries, 4, index=rk.Corpus(rows, bias=bias + 0.5).to_faiss())


def test_an_index_is_compared_once_with_a_corpus(drawn, monkeypatch):
    rows, queries = drawn
    calls = []
    original = index_rows.compare
    monkeypatch.setattr(index_rows, "compare", lambda *args, **more: calls.append(args[0]) or original(*args, **more))
    corpus, index, other = rk.Corpus(rows), filled_by("IDMap2,Flat", rows), rk.Corpus(rows, dtype="float16")
    for _ in range(3):
        corpus.search(queries, 4, index=index)
        corpus.search(queries, 4, index=other)
    assert len(calls) == 2
    rk.Corpus(rows).search(queries, 4, index=index)
    corpus.delete([3]).search(queries, 4, index=index)
    assert len(calls) == 4
    corpus.search(queries, 4, index=index)
    index.remove_ids(np.array([3]))
    with pytest.raises(
        ValueError, match=r"N = 500 rows, but for deleted ones, under their numbers, got 499 without row 3$"
    ):
        corpus.search(queries, 4, index=index)
    before = len(index_rows._compared)
    del index, other
    gc.collect()
    assert len(index_rows._compared) == before - 2


def test_an_index_that_tells_of_a_change_is_compared_again(drawn):
    rows, queries = drawn
    corpus, index = rk.Corpus(rows), filled_by("Flat", np.ascontiguousarray(rows[:, :16]))
    corpus.search(queries, 4, index=index)
    index.metric_type = faiss.METRIC_L2
    with pytest.raises(ValueError, match="index must hold unit rows, or rows of one length"):
        corpus.search(queries, 4, index=index)


@pytest.mark.parametrize("kind", ["IDMap,Flat", "IDMap2,HNSW16,Flat", "IVF4,Flat", "IDMap2,IVF4,Flat"])
@pytest.mark.parametrize("named", ["rows", "ids", "ids that are rows"])
def test_an_index_may_lack_what_is_deleted(drawn, kind, named):
    rows, queries = drawn
    ids = {
        "rows": None,
        "ids": np.arange(500) * 7 + 10**12,
        "ids that are rows": np.random.default_rng(2).permutation(500),
    }
    numbers = ids[named]
    corpus = rk.Corpus(rows, ids=numbers)
    names = np.arange(500) if numbers is None else numbers
    gone = names[[10, 11, 250]]
    exact = corpus.delete(gone).search(queries, 6)
    index = filled_by(kind, rows, names)
    found = corpus.delete(gone).search(queries, 6, index=index)  # which still has them
    np.testing.assert_array_equal(found.indices, exact.indices)
    if "HNSW" not in kind:  # FAISS removes nothing from a graph
        index.remove_ids(gone)
        if kind == "IDMap2,IVF4,Flat":  # FAISS moves the numbers of the map alone, and finds other rows from then on
            with pytest.raises(ValueError, match="index must hold the rows of the corpus in their order"):
                corpus.delete(gone).search(queries, 6, index=index)
            return
        found = corpus.delete(gone).search(queries, 6, index=index)
        np.testing.assert_array_equal(found.indices, exact.indices)
        np.testing.assert_array_equal(found.scores, exact.scores)
    others = np.roll(names, 1)
    with pytest.raises(
        ValueError, match="index must hold the rows of the corpus in their order, or under their numbers"
    ):
        corpus.search(queries, 6, index=filled_by(kind, rows, others))


def test_the_advice_for_a_flat_index_without_deleted_rows_works(drawn):
    rows, queries = drawn
    left, flat = rk.Corpus(rows).delete([10, 11]), filled_by("Flat", rows)
    flat.remove_ids(np.array([10, 11]))
    with pytest.raises(ValueError, match=r"or be an IndexIDMap2 filled by add_with_ids, got 498$"):
        left.search(queries, 4, index=flat)
    index = faiss.IndexIDMap2(faiss.IndexFlatIP(24))
    index.add_with_ids(rows, np.arange(500))
    index.remove_ids(np.array([10, 11]))
    np.testing.assert_array_equal(left.search(queries, 4, index=index).indices, left.search(queries, 4).indices)


def test_deleted_rows_that_an_index_still_has_hide_no_others(drawn):
    rows, queries = drawn
    ids = np.arange(500) + 10**6
    corpus = rk.Corpus(rows, ids=ids)
    gone = np.unique(corpus.search(queries, 60).indices)
    left = corpus.delete(ids[gone])
    for index in (filled_by("IDMap,Flat", rows, ids), filled_by("Flat", rows)):
        np.testing.assert_array_equal(left.search(queries, 6, index=index).indices, left.search(queries, 6).indices)


def test_numbers_of_rows_serve_a_corpus_with_ids(drawn):
    rows, queries = drawn
    for ids in (np.arange(500)[::-1] + 3, [f"n{i}" for i in range(500)]):
        corpus = rk.Corpus(rows, ids=ids)
        for index in (corpus.to_faiss("IVF4,Flat"), filled_by("IDMap,Flat", rows), corpus.to_faiss()):
            if "IVF" in type(index).__name__:
                index.nprobe = 4
            np.testing.assert_array_equal(
                corpus.search(queries, 6, index=index).indices, corpus.search(queries, 6).indices
            )


def test_an_index_without_vectors_to_give_back_is_taken_as_it_is(drawn):
    rows, queries = drawn

    class Silent(faiss.IndexFlatIP):
        def reconstruct(self, *_):
            raise RuntimeError("reconstruct not implemented for this type of index")

    index = Silent(24)
    index.add(rows[::-1].copy())
    assert (rk.Corpus(rows).search(queries, 4, index=index).indices >= 0).all()


# --- Indexes of the first dimensions.


@pytest.mark.parametrize("kind", ["Corpus", "binary", "Flat", "raw", "L2"])
def test_an_index_of_the_first_dimensions_finds_what_all_rank(kind):
    rows = normal(70, 500, 32) * np.float32(0.9) ** np.arange(32, dtype=np.float32)
    queries = rows[[10, 20]] + np.float32(0.05)
    corpus, first = rk.Corpus(rows), np.ascontiguousarray(rows[:, :16])
    short = rk.Corpus(first, dtype="binary" if kind == "binary" else "float32")
    index = {
        "Corpus": lambda: short,
        "binary": lambda: short,
        "Flat": lambda: filled_by("Flat", unit(first)),
        "raw": lambda: filled_by("Flat", np.ascontiguousarray(unit(rows)[:, :16])),
        "L2": lambda: filled_by("Flat", unit(first), metric=faiss.METRIC_L2),
    }[kind]()
    asked = queries[:, :16] if kind != "binary" else np.packbits(queries[:, :16] > 0, axis=1)
    candidates = short.search(np.ascontiguousarray(asked), 40).indices
    if kind == "raw":
        candidates = np.argsort(-(queries[:, :16] @ unit(rows)[:, :16].T), axis=1)[:, :40]
    expected = rk.mmr(queries, corpus, 4, candidates=candidates)
    np.testing.assert_array_equal(corpus.select(queries, 4, pool=40, index=index).indices, expected.indices)
    found = corpus.search(queries, 40, index=index)
    assert [set(each) for each in found.indices.tolist()] == [set(each) for each in candidates.tolist()]
    values = np.take_along_axis(exact_values(corpus, queries), found.indices, axis=1)
    np.testing.assert_allclose(found.scores, values, rtol=0, atol=1e-6)
    by_distance = filled_by("Flat", np.ascontiguousarray(unit(rows)[:, :16]), metric=faiss.METRIC_L2)
    with pytest.raises(ValueError, match="must hold unit rows, or rows of one length"):
        corpus.search(queries, 4, index=by_distance)
    last = np.ascontiguousarray(rows[:, 16:])
    for other in (rk.Corpus(last), filled_by("Flat", unit(last))):
        with pytest.raises(
            ValueError, match="under their numbers, their first 16 of 32 dimensions, got another vector"
        ):
            corpus.search(queries, 4, index=other)


# --- Groups.


@pytest.mark.parametrize("kind", [None, "HNSW32,Flat"])
@pytest.mark.parametrize("n", [1, 10, 290, 300])
def test_own_group_is_never_found_and_the_rest_is(backend, n, kind):
    """Half of all rows are of group 0, and nearest to the queries: fetching has to double several times."""
    rows = normal(29, 300, 9)
    groups = np.arange(300) % 2 * (1 + np.arange(300) % 5)
    rows[groups == 0] += 3
    corpus = rk.Corpus(rows, groups=groups)
    queries, query_groups = normal(30, 6, 9) + 3, np.array([0, 0, 1, 2, 5, 99])
    options = {"query_groups": query_groups, "backend": backend}
    index = corpus.to_faiss(kind)
    indices, scores = corpus.search(queries, n, index=index, **options)
    assert not ((indices >= 0) & (groups[indices] == query_groups[:, None])).any()
    if kind is None:
        check_like_exact(corpus, queries, n, (indices, scores), **options)


def test_only_queries_that_come_short_are_searched_again(monkeypatch):
    groups = np.repeat([0, 1, 2], [40, 40, 420])
    rows = normal(31, 500, 9)
    rows[groups == 0, 0] += 10
    corpus = rk.Corpus(rows, groups=groups)
    queries = np.zeros((3, 9), np.float32)
    queries[:, 0] = 1
    index, calls = corpus.to_faiss(), []
    search = faiss.IndexFlatIP.search
    monkeypatch.setattr(
        faiss.IndexFlatIP, "search", lambda index, x, k: calls.append((len(x), k)) or search(index, x, k)
    )
    corpus.search(queries, 10, query_groups=np.array([0, 1, 99]), index=index)
    assert calls == [(3, 20), (1, 40), (1, 80)]


def test_an_index_that_is_exhausted_is_not_asked_again(monkeypatch):
    """The probed cell has fewer rows than were asked for: more cannot be had by asking for more."""
    corpus = rk.Corpus(normal(50, 400, 8), groups=np.zeros(400, int))
    index, calls = corpus.to_faiss("IVF50,Flat"), []
    search = faiss.IndexIVFFlat.search
    monkeypatch.setattr(faiss.IndexIVFFlat, "search", lambda index, x, k: calls.append(k) or search(index, x, k))
    indices, _ = corpus.search(normal(51, 5, 8), 100, query_groups=np.zeros(5, int), index=index)
    assert calls == [200]
    assert (indices == -1).all()


# --- Selection.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [None, "HNSW32,Flat"])
def test_select_is_search_through_the_index_then_selection(backend, kind, method):
    groups = np.random.default_rng(0).integers(0, 30, 300)
    corpus = rk.Corpus(normal(34, 300, 17), bias=normal(35, 300), groups=groups)
    queries, index = normal(36, 4, 17), corpus.to_faiss(kind)
    options = {"query_groups": groups[:4], "max_per_group": 1, "initial": np.array([[3], [-1], [5], [7]])}
    lambda_b = 1.0
    if method == "mmr":
        lambda_b = np.array([0.2, 0.7, 0.95, 1.0])
        options.update(lambda_d=0.4, lambda_b=lambda_b)
    result = corpus.select(queries, 6, method=method, pool=50, index=index, backend=backend, **options)
    ids, _ = corpus.search(queries, 51, lambda_b=lambda_b, query_groups=groups[:4], index=index, backend=backend)
    by_hand = getattr(rk, method)(queries, corpus, 6, candidates=ids, backend=backend, **options)
    for a, b in zip(result, by_hand, strict=True):
        np.testing.assert_array_equal(a, b)
    problem = {"queries": queries, "embeddings": corpus, "k": 6, "candidates": ids, **options}
    testing.check_selection(method, problem, result)


def test_torch_queries_give_torch_results(backend):
    torch = pytest.importorskip("torch")
    corpus = rk.Corpus(normal(40, 100, 6), bias=normal(41, 100))
    queries, index = normal(42, 3, 6), corpus.to_faiss()
    found = corpus.search(torch.from_numpy(queries), 12, index=index, backend=backend)
    assert all(isinstance(x, torch.Tensor) for x in found)
    for a, b in zip(found, corpus.search(queries, 12, index=index, backend=backend), strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    assert isinstance(corpus.select(torch.from_numpy(queries), 3, index=index).indices, torch.Tensor)


# --- Errors.


def bare():
    return rk.Corpus(normal(43, 30, 6))


def biased():
    return rk.Corpus(normal(43, 30, 6), bias=normal(44, 30))


def filled(index, num_rows=30):
    index.add(normal(45, num_rows, index.d))
    return index


@pytest.mark.parametrize(
    ("corpus", "index", "error", "message"),
    [
        (bare, lambda: 3, TypeError, "must be None, a factory string or a faiss.Index, got int"),
        (
            bare, lambda: "nonsense", ValueError,
            "must be a FAISS factory string for inner product over 6 columns, got 'nonsense': could not parse index "
            "string nonsense",
        ),
        (
            bare, lambda: "IVF64,Flat", ValueError,
            "must be one that can be built from the corpus's N = 30 rows, got 'IVF64,Flat': ",
        ),
        (
            bare, lambda: faiss.IndexIDMap(faiss.IndexFlatIP(6)), ValueError,
            "must be one that can be built from the corpus's N = 30 rows, got IndexIDMap: add does not make sense",
        ),
        (bare, lambda: faiss.IndexFlatL2(6), ValueError, "must have the inner-product metric, got metric_type 1"),
        (bare, lambda: faiss.IndexFlatIP(7), ValueError, "must have D = 6 columns, got 7"),
        (
            biased, lambda: faiss.IndexFlatIP(6), ValueError,
            "must have D + 1 = 7 columns, the last for the bias, got 6",
        ),
        (bare, lambda: filled(faiss.IndexFlatIP(6), 2), ValueError, "must be empty, got 2 rows"),
    ],
)  # fmt: skip
def test_to_faiss_refuses(corpus, index, error, message):
    with pytest.raises(error, match="^to_faiss: index " + re.escape(message)):
        corpus().to_faiss(index())


@pytest.mark.parametrize(
    ("corpus", "index", "error", "message"),
    [
        (
            bare, lambda: "HNSW32,Flat", TypeError,
            "must be None, False, a faiss.Index, a usearch Index, a Corpus or, of a corpus with an index, a str of its "
            "search parameters, got str; Corpus.to_faiss makes one",
        ),
        (bare, lambda: filled(faiss.IndexFlatIP(7)), ValueError, "must have at most D = 6 columns, got 7"),
        (
            biased, lambda: filled(faiss.IndexFlatIP(8)), ValueError,
            "must have at most D = 6 columns, or D + 1 = 7 with the bias, got 8",
        ),
        (
            biased, lambda: filled(faiss.IndexFlatL2(7)), ValueError,
            "must have the inner-product metric, got metric_type 1",
        ),
        (
            lambda: rk.Corpus(normal(43, 30, 6), metric="dot"), lambda: filled(faiss.IndexFlatL2(6)), ValueError,
            "must have the inner-product metric, got metric_type 1",
        ),
        (
            bare, lambda: filled(faiss.IndexFlat(6, faiss.METRIC_L1)), ValueError,
            "must have the inner-product or L2 metric, got metric_type 2",
        ),
        (bare, lambda: filled(faiss.IndexFlatIP(6), 29), ValueError, "must hold the corpus's N = 30 rows, got 29"),
        (bare, lambda: faiss.IndexFlatIP(6), ValueError, "must hold the corpus's N = 30 rows, got 0"),
    ],
)  # fmt: skip
def test_search_refuses(corpus, index, error, message):
    corpus, index = corpus(), index()
    for call in (corpus.search, corpus.select):
        with pytest.raises(error, match=f"^{call.__name__}: index " + re.escape(message) + "$"):
            call(normal(46, 2, 6), 3, index=index)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": np.zeros((2, 1), int)}, "must come without candidates, got both"),
        ({"relevance": normal(47, 2, 30)}, "must come without relevance, got both"),
        ({"bias": normal(47, 30)}, "must come without bias, got both"),
        ({"pool": None}, "must come with a pool, got pool=None"),
    ],
)
def test_select_refuses_an_index_that_would_play_no_part(options, message):
    corpus = bare()
    with pytest.raises(ValueError, match=f"^select: index {message}$"):
        corpus.select(normal(46, 2, 6), 3, index=corpus.to_faiss(), **options)


def test_products_beyond_float32_are_refused(compiled):
    corpus = rk.Corpus(normal(48, 30, 6) * np.float32(1e30), metric="dot")
    queries = normal(49, 4, 6)
    queries[1] *= np.float32(1e15)
    message = r"^search: queries and embeddings must have products within the range of float32, .* query 1; rescale"
    with pytest.raises(ValueError, match=message):
        corpus.search(queries, 3, index=corpus.to_faiss(), backend="cpu")


# --- Without faiss.


def test_import_and_exact_search_do_without_faiss(run_python):
    run_python("""
import sys
import numpy as np
import ragsys_kernels as rk
rows = np.eye(9, dtype=np.float32)
rk.Corpus(rows).select(rows, 2, pool=5)
assert "faiss" not in sys.modules
""")


def test_missing_faiss_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)  # an import of it fails as if it were not there
    corpus = bare()
    for op, call in (("to_faiss", corpus.to_faiss), ("search", lambda: corpus.search(corpus.data, 2, index=object()))):
        with pytest.raises(ModuleNotFoundError, match=rf"^{op} needs faiss: pip install '.+\[faiss\]'$"):
            call()
