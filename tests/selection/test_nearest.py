"""Which earlier pick or initial item each pick is most similar to. The oracle: similarities in float64, one by one."""

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels._base import arrays
from ragsys_kernels.selection import nearest
from ragsys_kernels.testing import check_selection, checked_problem, selection_problem

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

N, D, Q, P, K = 60, 16, 4, 20, 8
OPTIONS = {"coverage": {"kind": "facility"}, "sift": {"noise": 0.1}, "ssd": {"window": 2}}


def expected(similarity, picks, initial=()):
    """Of one query; ``similarity(item, earlier)``. Also the similarity, NaN where there is none."""
    before = [(-2 - j, item) for j, item in enumerate(initial) if item >= 0]
    found, largest = [], []
    for step, item in enumerate(picks):
        alike = [] if item < 0 else [np.float32(similarity(item, other)) for _, other in before]
        found.append(before[int(np.argmax(alike))][0] if alike else -1)
        largest.append(max(alike, default=np.nan))
        before.append((step, item))
    return found, largest


def check(found, similarity, initial=None):
    for q, picks in enumerate(found.indices.tolist()):
        own = () if initial is None else initial[q].tolist()
        assert expected(lambda i, j, q=q: similarity(q, i, j), picks, own)[0] == found.nearest[q].tolist()


def rows_of(dtype, metric="cosine", seed=0):
    rows = np.random.default_rng(seed).standard_normal((N, D), dtype=np.float32)
    rows[N // 2 :] = rows[: N // 2]  # each twice
    rows[5] = 0
    return rk.Corpus(rows, dtype=dtype, metric=metric)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("rule", rk.METHODS)
def test_every_rule(rule, backend):
    """With lists of several lengths, initial items and padding; of equal rows the earliest counts."""
    rng, corpus = np.random.default_rng(1), rows_of("float32")
    queries = rng.standard_normal((Q, D), dtype=np.float32)
    candidates = np.stack([rng.permutation(N)[:P] for _ in range(Q)])
    candidates[2, 3:] = -1
    candidates[3] = -1
    initial = np.array([[7, -1, 37], [-1, -1, -1], [3, 4, 5], [1, 2, 3]])
    problem = {"queries": queries, "embeddings": corpus, "k": K, "candidates": candidates, "nearest": True}
    if rule == "gist":
        backend = "reference"
    else:
        problem["initial"] = initial
    found = getattr(rk, rule)(**problem, backend=backend, **OPTIONS.get(rule, {}))
    vectors = corpus.vectors(slice(None))
    check(found, lambda q, i, j: vectors[i] @ vectors[j], None if rule == "gist" else initial)
    assert found.nearest.dtype == np.int32
    assert found.nearest.shape == found.indices.shape
    assert (found.nearest[3] == -1).all()
    if rule != "gist":
        assert (found.nearest[0] < -1).any()
        check_selection(rule, problem | OPTIONS.get(rule, {}), found)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "binary"])
def test_in_mmr_the_redundancy_is_the_similarity_to_it(dtype, metric):
    if (dtype, metric) == ("binary", "dot"):
        return
    corpus = rows_of(dtype, metric)
    queries = np.random.default_rng(2).standard_normal((Q, D), dtype=np.float32)
    for given in ({"candidates": None}, {"max_similarity": 0.9}, {"lambda_d": 0.2}, {"k": np.array([1, 8, 3, 5])}):
        found = rk.mmr(**{"queries": queries, "embeddings": corpus, "k": K, "nearest": True} | given)
        vectors = corpus.vectors(slice(None))
        check(found, lambda q, i, j, vectors=vectors: vectors[i] @ vectors[j])
        for q, n in enumerate(found.lengths):
            own = found.indices[q, :n]
            alike = (vectors[own[1:]] * vectors[own[found.nearest[q, 1:n]]]).sum(axis=1)
            np.testing.assert_allclose(alike, found.redundancy[q, 1:n], rtol=1e-5, atol=1e-5)
            assert (found.nearest[q, n:] == -1).all()
    assert rk.mmr(queries, corpus, K).nearest is None


def test_of_dense_pools_and_in_blocks(monkeypatch):
    problem = selection_problem(Q, P, K, D, dense=True, kind="duplicates", seed=3)
    rows = problem["embeddings"] / np.linalg.norm(problem["embeddings"], axis=2, keepdims=True)
    initial = np.array([[0, 1], [2, -1], [-1, 3], [4, 5]])
    found = rk.msd(**problem, initial=initial, nearest=True)
    check(found, lambda q, i, j: rows[q, i].astype(float) @ rows[q, j].astype(float), initial)
    monkeypatch.setattr(nearest, "_BLOCK_BYTES", 1)
    again = rk.msd(**problem, initial=initial, nearest=True)
    np.testing.assert_array_equal(found.nearest, again.nearest)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("float32", False),
        ("float16", False),
        ("bfloat16", False),
        ("float32", True),
        ("bfloat16", True),
        ("int8", True),
    ],
)
def test_where_arrays_of_a_device_are(dtype, stored):
    """By torch, in the place of a device."""
    torch = pytest.importorskip("torch")
    rows = rows_of(dtype)
    problem = selection_problem(Q, P, K, D, N=N, ragged=True)
    if not stored:  # of any length
        long = rows.vectors(slice(None)) * np.geomspace(0.1, 10, N)[:, None]
        rows = torch.from_numpy(long).to(getattr(torch, dtype))
    problem["embeddings"] = rows
    problem["initial"] = np.array([[0, -1], [1, 2], [-1, -1], [30, 31]])
    picks = rk.mmr(**problem, nearest=True)
    checked = arrays.tensors(checked_problem("mmr", problem))
    on_device = rk.Selection(*(torch.as_tensor(field) for field in picks))
    found = nearest.nearest_of(checked, on_device, arrays.Torch("cpu"))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found, picks.nearest)
    assert (picks.nearest >= 0).any()


def test_of_given_similarities(monkeypatch):
    """The similarity of an item to an earlier one is in the row of that one; by a function and of sparse rows too."""
    rng = np.random.default_rng(5)
    pairs, relevance = rng.random((Q, P, P)).astype(np.float32), rng.random((Q, P)).astype(np.float32)
    initial = np.array([[3, 0], [-1, -1], [1, 2], [5, -1]])
    names = np.stack([rng.permutation(100)[:P] for _ in range(Q)])
    for backend in ("cpu", "reference"):
        given = {"relevance": relevance, "initial": initial, "lambda_d": 0.3, "nearest": True, "backend": backend}
        found = rk.mmr(k=K, similarity=pairs, **given)
        check(found, lambda q, i, j: pairs[q, j, i], initial)
        assert (found.nearest < -1).any()
        named = rk.mmr(k=K, similarity=pairs, candidates=names, **given)
        np.testing.assert_array_equal(named.nearest, found.nearest)
        np.testing.assert_array_equal(named.indices, np.take_along_axis(names, found.indices, 1))
        with monkeypatch.context() as patch:
            patch.setattr(nearest, "_BLOCK_BYTES", 1)
            np.testing.assert_array_equal(rk.mmr(k=K, similarity=pairs, **given).nearest, found.nearest)

    by_name = rng.random((100, 100))
    called = rk.mmr(
        k=K, relevance=relevance, candidates=names, similarity=lambda ids, one: by_name[one, ids], initial=initial,
        nearest=True,
    )  # fmt: skip
    ids = np.where(initial < 0, -1, np.take_along_axis(names, initial, 1))
    check(called, lambda q, i, j: by_name[j, i], ids)

    sparse = pytest.importorskip("scipy.sparse")
    rows = sparse.random(100, 30, 0.3, random_state=0, format="csr")
    unit = rows.toarray() / np.linalg.norm(rows.toarray(), axis=1, keepdims=True)
    found = rk.mmr(k=K, relevance=relevance, candidates=names, similarity=rows, nearest=True)
    check(found, lambda q, i, j: unit[i] @ unit[j])


def test_of_a_corpus_that_retrieves(tmp_path):
    """Out of pools, of all rows, certified ones, mapped rows and filters; queries alone get what they get together."""
    corpus = rk.Corpus(np.random.default_rng(6).standard_normal((2000, D), dtype=np.float32))
    queries = np.random.default_rng(7).standard_normal((Q, D), dtype=np.float32)
    corpus.save(tmp_path / "saved")
    mapped = rk.Corpus.load(tmp_path / "saved", memory=1 << 20)
    vectors = corpus.vectors(slice(None))
    initial = np.array([[1, 2], [-1, 3], [4, -1], [-1, -1]])
    for source, given in (
        (corpus, {"pool": 30}), (corpus, {"pool": None}), (corpus, {"pool": "certified", "lambda_d": 0.4}),
        (mapped, {"pool": 30}), (corpus, {"pool": 30, "allowed": np.arange(500)}), (corpus, {"method": "dpp"}),
    ):  # fmt: skip
        found = source.select(queries, K, initial=initial, nearest=True, **given)
        check(found, lambda q, i, j: vectors[i] @ vectors[j], initial)
        alone = source.select(queries[1:2], K, initial=initial[1:2], nearest=True, **given)
        np.testing.assert_array_equal(alone.nearest, found.nearest[1:2])


def test_of_queries_that_fail_and_of_none():
    corpus, queries = rows_of("float32"), np.zeros((Q, D), np.float32)
    queries[:, 0] = 1
    queries[1, 0] = np.nan
    given = {"candidates": np.tile(np.arange(P), (Q, 1)), "nearest": True, "on_error": "skip"}
    found = rk.mmr(queries, corpus, K, initial=np.array([[1], [2], [10**6], [3]]), **given)
    assert sorted(found.errors) == [1, 2]
    assert (found.nearest[[1, 2]] == -1).all()
    assert (found.nearest[[0, 3], 0] == -2).all()
    assert rk.mmr(queries[:0], corpus, K, nearest=True).nearest.shape == (0, K)
    assert rk.mmr(queries[:1], corpus, 100, candidates=np.array([[1, 2]]), nearest=True).nearest.shape == (1, 100)


def test_similarities_that_float32_cannot_tell_apart_tie():
    """Whatever the last bits of a product are: the earliest counts, initial items before picks."""
    rows = np.array([[1, 0], [1, 1e-5], [1, 1e-5], [0, 1]], np.float32)  # the first two have cosine 1 - 5e-11
    relevance = np.array([[0.9, 0.8, 0.7, 0.1]], np.float32)
    found = rk.mmr(None, rows, 3, relevance=relevance, lambda_d=1.0, nearest=True)
    assert (found.indices.tolist(), found.nearest.tolist()) == ([[0, 1, 2]], [[-1, 0, 0]])
    found = rk.mmr(None, rows, 2, relevance=relevance, lambda_d=1.0, initial=np.array([[3, 0]]), nearest=True)
    assert (found.indices.tolist(), found.nearest.tolist()) == ([[1, 2]], [[-3, -3]])


def test_results_are_in_the_callers_library():
    torch = pytest.importorskip("torch")
    rows = torch.eye(4)
    found = rk.mmr(rows[:2], rows, 3, nearest=True)
    assert isinstance(found.nearest, torch.Tensor)
    assert found.nearest.tolist()[0] == [-1, 0, 0]


@pytest.mark.parametrize("bad", [1, "yes", None, np.array([True])])
def test_what_is_no_flag_is_refused(bad):
    rows = np.eye(4, dtype=np.float32)
    with pytest.raises(TypeError, match=r"^mmr: nearest must be True or False, got "):
        rk.mmr(rows, rows, 2, nearest=bad)
