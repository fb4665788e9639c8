"""Coverage of a whole corpus by the nearest rows of each row: against its definition, and against all similarities."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, offline

BACKENDS = [name for name in ("cpu", "reference") if _dispatch.why_not(name) is None]
KINDS = ["facility", "cover", "xquad"]
RNG = np.random.default_rng(0)
N = 150
ROWS, BIAS = RNG.standard_normal((N, 12), dtype=np.float32), RNG.uniform(-1, 0, N)
GROUPS, COSTS = RNG.integers(0, 9, N), RNG.integers(1, 50, N)
CORPUS = rk.Corpus(ROWS, bias=BIAS, groups=GROUPS, costs=COSTS)

pytestmark = [
    pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning"),
    pytest.mark.filterwarnings("ignore:.* names groups that no row"),
]


def kept(vectors, neighbors, among):
    """S (N, N) of rows as aspects and of rows that cover them, for pairs that are kept; and else 0."""
    similarity = vectors @ vectors.T
    made = np.zeros(similarity.shape)
    for row in among:
        others = [other for other in among if other != row]
        nearest = sorted(others, key=lambda other: (-round(similarity[row, other], 6), other))[:neighbors]
        made[row, [row, *nearest]] = np.maximum(similarity[row, [row, *nearest]], 0)
    return made


def added(kind, state, S):
    if kind == "facility":
        return np.maximum(S - state, 0).mean()
    return ((state + S) ** 0.5 - state**0.5).sum() if kind == "cover" else (S * state).mean()


def after(kind, state, S):
    return np.maximum(state, S) if kind == "facility" else state + S if kind == "cover" else state * (1 - S)


def greedy(S, v, weight, k, kind, may=None, initial=()):
    """The picks and their values, by the definition of the rule."""
    may = [i for i in (range(len(v)) if may is None else may) if i not in initial]
    S, state = S[may], np.full(len(may), 1.0 if kind == "xquad" else 0.0)
    for i in initial:
        state = after(kind, state, S[:, i])
    picks, scores = [], []
    for _ in range(k):
        values = [-np.inf if i in picks else weight * v[i] + (1 - weight) * added(kind, state, S[:, i]) for i in may]
        picks.append(may[int(np.argmax(np.round(values, 9)))])
        scores.append(max(values))
        state = after(kind, state, S[:, picks[-1]])
    return picks, scores


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("metric", "dtype"), [("cosine", "float32"), ("cosine", "int8"), ("dot", "float16")])
@pytest.mark.parametrize("neighbors", [1, 7])
def test_picks_are_those_of_the_definition(neighbors, metric, dtype, kind, backend):
    rows = ROWS / 4 if metric == "dot" else ROWS
    corpus = rk.Corpus(rows, bias=BIAS, metric=metric, dtype=dtype)
    S = kept(corpus.vectors(slice(None)), neighbors, range(N))
    S = np.minimum(S, 1) if metric == "cosine" or kind == "xquad" else S
    picks, scores = greedy(S, 0.5 * BIAS, 0.1, 25, kind)
    found = corpus.subset(
        25, rule="coverage", kind=kind, neighbors=neighbors, lambda_d=0.1, lambda_b=0.5, backend=backend
    )
    assert found.indices[0].tolist() == picks
    np.testing.assert_allclose(found.scores[0], scores, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_covered_by_those_that_may_be_picked(kind, backend):
    """The nearest are looked for among these and the initial ones; deleted rows are none of them."""
    corpus = rk.Corpus(ROWS).delete([0, 5])
    allowed, exclude, initial = np.arange(0, N, 2), [2, 4], [7, 8]
    may = [i for i in allowed.tolist() if i not in (0, *exclude)]
    S = kept(corpus.vectors(slice(None)), 6, sorted({*may, *initial}))
    picks, scores = greedy(np.minimum(S, 1), np.zeros(N), 0.5, 20, kind, may, initial)
    given = {"allowed": allowed, "exclude": exclude, "initial": initial, "backend": backend}
    found = corpus.subset(20, rule="coverage", kind=kind, neighbors=6, **given)
    assert found.indices[0].tolist() == picks
    np.testing.assert_allclose(found.scores[0], scores, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "given",
    [
        {}, {"gamma": 0.3}, {"max_per_group": 2}, {"max_per_group": {1: 0, 2: 3}}, {"min_per_group": 2},
        {"budget": 300.0}, {"budget": 60.0, "density": True}, {"max_similarity": 0.3}, {"initial": [3, 4, 5]},
        {"allowed": np.arange(0, N, 2)}, {"allowed": np.arange(N) % 20 == 3, "k": 5}, {"exclude": np.arange(30)},
        {"min_relevance": 0.1, "targets": ROWS[:1]},
        {"targets": ROWS[:3], "relevance_scale": "minmax"}, {"nearest": True}, {"num_threads": 2}, {"k": 120},
    ],
    ids=lambda given: ",".join(given) or "plain",
)  # fmt: skip
def test_with_all_rows_near_it_is_the_dense_rule(given, kind, backend):
    if "gamma" in given and kind != "cover":
        given = {}
    given = {"k": 30, "lambda_d": 0.2, "kind": kind, "backend": backend, **given}
    expected = CORPUS.subset(rule="coverage", **given)
    found = CORPUS.subset(rule="coverage", neighbors=N - 1, **given)
    assert found.indices.tolist() == expected.indices.tolist()
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6, rtol=1e-5)
    np.testing.assert_allclose(found.redundancy, expected.redundancy, atol=1e-6)
    assert (found.cost, found.unmet) == (expected.cost, expected.unmet)


@pytest.mark.parametrize("backend", BACKENDS)
def test_similarities_that_are_cut_off_decide_nothing_where_they_are_0(backend):
    """Heaps in subspaces of their own: the dense picks, from the rows of each heap alone."""
    rows = np.zeros((120, 60), np.float32)
    for heap in range(12):
        rows[10 * heap : 10 * heap + 10, 5 * heap : 5 * heap + 5] = RNG.uniform(0, 1, (10, 5))
    corpus = rk.Corpus(rows[RNG.permutation(120)])
    # Of more picks some are tied: two rows that cover no others than one another add the same.
    dense = corpus.subset(24, rule="coverage", backend=backend)
    near = corpus.subset(24, rule="coverage", neighbors=9, backend=backend)
    assert near.indices.tolist() == dense.indices.tolist()
    np.testing.assert_allclose(near.scores, dense.scores, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_rows_go_to_the_lowest(backend):
    """Of more copies than neighbors the first cover all; nothing is left for the others, which are tied."""
    rows = np.repeat(np.eye(3, dtype=np.float32), 6, axis=0)
    found = rk.Corpus(rows).subset(5, rule="coverage", neighbors=2, lambda_d=0.0, backend=backend)
    assert found.indices.tolist() == [[0, 6, 12, 1, 2]]
    np.testing.assert_allclose(found.scores[0], np.array([6, 6, 6, 0, 0]) / 18, atol=1e-6)


def test_an_index_finds_the_neighbors():
    exact = CORPUS.subset(20, rule="coverage", neighbors=5)
    same = CORPUS.subset(20, rule="coverage", neighbors=5, index=rk.Corpus(ROWS))
    assert same.indices.tolist() == exact.indices.tolist()
    np.testing.assert_array_equal(same.scores, exact.scores)
    other = CORPUS.subset(20, rule="coverage", neighbors=5, index=rk.Corpus(ROWS[:, :8], dtype="binary"))
    assert other.indices.tolist() != exact.indices.tolist()


def test_the_index_of_the_corpus_finds_the_neighbors_unless_told(tmp_path):
    pytest.importorskip("faiss")
    rows = RNG.standard_normal((400, 12), dtype=np.float32)
    np.save(tmp_path / "rows.npy", rows)
    offline.build_corpus(tmp_path / "rows.npy", tmp_path / "corpus", index="IVF12,Flat", dtype="float32")
    corpus, given = rk.Corpus.load(tmp_path / "corpus"), {"rule": "coverage", "neighbors": 5, "lambda_d": 0.2}
    exact, near = rk.Corpus(rows).subset(20, **given), corpus.subset(20, **given)
    assert near.indices.tolist() != exact.indices.tolist()
    assert (exact.certified.tolist(), near.certified) == ([True], None)
    told = corpus.subset(20, **given, index=False)
    assert (told.indices.tolist(), told.certified.tolist()) == (exact.indices.tolist(), [True])
    for name, chosen in (("exact", exact), ("near", near)):
        offline.subset(tmp_path / "corpus", tmp_path / f"{name}.parquet", k=20, **given, exact=name == "exact")
        assert pq.read_table(tmp_path / f"{name}.parquet")["id"].to_pylist() == chosen.indices[0].tolist()
    with pytest.raises(ValueError, match="subset: exact must come with neighbors, got exact=True"):
        offline.subset(tmp_path / "corpus", tmp_path / "other.parquet", k=20, exact=True)


def test_rows_are_searched_with_in_blocks(monkeypatch):
    from ragsys_kernels.corpus import graph

    whole = CORPUS.subset(20, rule="coverage", neighbors=5)
    monkeypatch.setattr(graph, "_BLOCK", 40)
    np.testing.assert_array_equal(CORPUS.subset(20, rule="coverage", neighbors=5).scores, whole.scores)


def test_memory_is_that_of_the_neighbors(monkeypatch):
    """What is too large without them is not with them; the error says so."""
    monkeypatch.setattr("ragsys_kernels.selection.cpu._MOST_SIMILARITIES", N * N - 1)
    with pytest.raises(ValueError, match=rf"got {N} x {N}; Corpus.subset takes neighbors=64$"):
        CORPUS.subset(5, rule="coverage", backend="cpu")
    assert CORPUS.subset(5, rule="coverage", neighbors=64, backend="cpu").lengths.tolist() == [5]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"neighbors": 0}, "subset: neighbors must be at least 1, got 0"),
        ({"neighbors": 5, "rule": "mmr"}, "subset: neighbors must be left out with rule 'mmr', got 5"),
        ({"index": CORPUS}, "subset: index must come with neighbors, got neighbors=None"),
        ({"neighbors": 5, "aspects": np.ones((1, 2, 12))}, "subset: neighbors must come without aspects, got both"),
        ({"neighbors": 5, "index": "a"}, "subset: index must be"),
        ({"neighbors": 5, "initial": [1, 1]}, "subset: initial must not repeat an id within a query, got 1 twice"),
    ],
)
def test_bad_arguments(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        CORPUS.subset(3, **{"rule": "coverage", **given})
