"""Near-duplicates: which rows are kept, and what stands for the others, against all similarities in float64."""

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels.corpus import duplicates as module
from ragsys_kernels.corpus import near

BACKENDS = [name for name in ("cpu", "reference") if _dispatch.why_not(name) is None]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that few rows are many blocks, and several calls of a kernel a block."""
    monkeypatch.setattr(module, "_BLOCK", 50)
    monkeypatch.setattr(near, "_PART", 64)
    monkeypatch.setattr(near, "_FLOAT_PART", 64)
    monkeypatch.setattr(near, "_PAIRS", 7)


def similarities(corpus):
    vectors = np.array([corpus.vectors(np.array([row]))[0] for row in range(len(corpus))])
    products = vectors @ vectors.T
    if corpus.metric == "cosine":
        norms = np.sqrt(np.diag(products))
        products = np.divide(
            products, np.outer(norms, norms), out=np.zeros_like(products), where=np.outer(norms, norms) > 0
        )
    return products.astype(np.float32)


def expected(corpus, threshold, order):
    """Kept rows, and what stands for each of the others with its similarity."""
    found, limit = similarities(corpus), np.float32(threshold)
    kept, stands = [], {}
    for row in order:
        near_by = [other for other in kept if found[row, other] >= limit]
        if near_by:
            best = min(near_by, key=lambda other: (-found[row, other], other))
            stands[row] = best, found[row, best]
        else:
            kept.append(row)
    return sorted(kept), stands


def rows_of(seed, num_rows, dims, copies=0.3, noise=0.15):
    """Rows of which some are others', moved a little or not at all, in a random order."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((num_rows, dims)).astype(np.float32)
    rows *= np.linspace(2, 0.1, dims, dtype=np.float32)  # some directions have more of the spread
    some = rng.choice(num_rows, int(copies * num_rows), replace=False)
    moved = rng.uniform(0, 2 * noise, (len(some), 1)) * (rng.random((len(some), 1)) < 0.7)
    rows[some] = rows[rng.integers(0, num_rows, len(some))] + moved * rng.standard_normal((len(some), dims))
    return rows.astype(np.float32)


def check(corpus, threshold, found, order=None):
    kept, stands = expected(corpus, threshold, range(len(corpus)) if order is None else order)
    assert found.kept.tolist() == kept
    assert found.removed.tolist() == sorted(stands)
    assert found.of.tolist() == [stands[row][0] for row in sorted(stands)]
    assert found.similarity.tolist() == [stands[row][1] for row in sorted(stands)]
    return len(stands)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dims", [3, 16, 33, 100])
@pytest.mark.parametrize("threshold", [0.6, 0.9, 0.98, 1.0])
def test_rows_that_are_kept_and_what_stands_for_the_others(backend, dims, threshold):
    corpus = rk.Corpus(rows_of(0, 300, dims))
    assert check(corpus, threshold, rk.duplicates(corpus, threshold, backend=backend)) > 10


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "binary"])
def test_every_storage_type_and_metric(backend, metric, dtype):
    if dtype == "binary" and metric == "dot":
        pytest.skip("signs have cosines alone")
    rows = rows_of(1, 260, 48)
    corpus = rk.Corpus(rows, metric=metric, dtype=dtype)
    threshold = 0.85 if metric == "cosine" else 40.0
    assert check(corpus, threshold, rk.duplicates(corpus, threshold, backend=backend)) > 10


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("threshold", [5, 7, 8, 12])
def test_a_similarity_equal_to_the_threshold_is_enough(backend, threshold):
    """Products of small integers, which are exact, with many ties."""
    rows = np.random.default_rng(2).integers(-1, 3, (300, 9)).astype(np.float32)
    corpus = rk.Corpus(rows, metric="dot")
    assert (similarities(corpus) == threshold).sum() > 100
    assert check(corpus, threshold, rk.duplicates(corpus, threshold, backend=backend)) > 100


def test_equal_rows_have_cosine_1():
    rows = np.random.default_rng(3).standard_normal((40, 17)).astype(np.float32)
    found = rk.duplicates(np.concatenate([rows, 3 * rows, rows]), 1.0)
    assert found.of.tolist() == [*range(40), *range(40)]
    assert (found.similarity == 1).all()


def test_the_best_by_quality_are_kept():
    rng = np.random.default_rng(4)
    corpus = rk.Corpus(rows_of(4, 300, 24))
    quality = rng.integers(0, 5, 300)  # ties go to the lowest row
    order = sorted(range(300), key=lambda row: (-quality[row], row))
    found = rk.duplicates(corpus, 0.9, quality=quality)
    assert check(corpus, 0.9, found, order) > 10
    assert (quality[found.of] >= quality[found.removed]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_pairs_and_their_groups(backend):
    corpus, limit = rk.Corpus(rows_of(5, 300, 24)), np.float32(0.6)
    found = rk.duplicates(corpus, 0.6, pairs=True, groups=True, backend=backend)
    check(corpus, 0.6, found)
    every = similarities(corpus)
    low, high = np.nonzero(np.triu(every >= limit, 1))
    assert found.pairs.tolist() == np.stack([low, high], 1).tolist()
    assert found.pair_similarity.tolist() == every[low, high].tolist()
    label = list(range(300))
    for _ in range(300):
        for a, b in found.pairs.tolist():
            label[a] = label[b] = min(label[a], label[b])
    assert found.groups.tolist() == label
    assert len(set(label)) < len(found.kept)  # a group may have several that are kept


def test_groups_of_long_chains():
    chain = np.arange(200)
    angle = np.random.default_rng(6).permutation(chain) * 0.02
    found = rk.duplicates(np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32), np.cos(0.021), groups=True)
    assert (found.groups == 0).all()
    assert found.pairs is None


def test_deleted_rows_are_in_neither():
    rows = rows_of(7, 120, 16)
    corpus = rk.Corpus(rows).delete(np.arange(0, 120, 3))
    live = np.flatnonzero(np.arange(120) % 3)
    found, alone = rk.duplicates(corpus, 0.9, groups=True), rk.duplicates(rows[live], 0.9, groups=True)
    assert found.kept.tolist() == live[alone.kept].tolist()
    assert found.of.tolist() == live[alone.of].tolist()
    assert (found.groups[::3] == -1).all()
    assert found.groups[live].tolist() == live[alone.groups].tolist()


def test_the_same_bits_for_any_number_of_threads_and_block(monkeypatch):
    corpus = rk.Corpus(rows_of(8, 5000, 40, copies=0.5))
    monkeypatch.setattr(module, "_BLOCK", 512)
    monkeypatch.setattr(near, "_PART", 1 << 17)
    first = rk.duplicates(corpus, 0.9, num_threads=1)
    other = rk.duplicates(corpus, 0.9, num_threads=3)
    monkeypatch.setattr(module, "_BLOCK", 77)
    for found in (other, rk.duplicates(corpus, 0.9), rk.duplicates(corpus, 0.9, backend="reference")):
        assert all(np.array_equal(a, b) for a, b in zip(first[:4], found[:4], strict=True))
    assert len(first.removed) > 500


def test_sketches_leave_few_pairs_to_be_multiplied(monkeypatch):
    """Counted where pairs are computed: of 4.5 million less than one in a thousand, and those that are similar."""
    corpus, computed = rk.Corpus(rows_of(9, 3000, 64)), []
    of_pairs = near._similarities
    monkeypatch.setattr(near, "_PAIRS", 1 << 14)
    monkeypatch.setattr(near, "_similarities", lambda *given: computed.append(len(given[1])) or of_pairs(*given))
    for backend in BACKENDS:
        computed.clear()
        rk.duplicates(corpus, 0.9, backend=backend)
        assert sum(computed) < 4500 + 3000


@pytest.mark.parametrize("kind", ["corpus", "faiss"])
def test_an_index_that_finds_all_gives_the_exact_answer(kind):
    corpus = rk.Corpus(rows_of(10, 300, 24, copies=0.2))
    if kind == "faiss":
        pytest.importorskip("faiss")
    index = corpus if kind == "corpus" else corpus.to_faiss()
    exact, found = rk.duplicates(corpus, 0.9, pairs=True), rk.duplicates(corpus, 0.9, pairs=True, index=index)
    assert found.recall == 1
    assert exact.recall is None
    assert all(np.array_equal(a, b) for a, b in zip(exact[:6], found[:6], strict=True))


def test_an_index_that_finds_some_says_how_many():
    corpus = rk.Corpus(np.repeat(rows_of(11, 30, 16, copies=0), 10, axis=0) + np.float32(1e-4))
    found = rk.duplicates(corpus, 0.99, index=corpus, neighbors=3, pairs=True)
    exact = rk.duplicates(corpus, 0.99, pairs=True)
    assert 0.2 < found.recall < 0.9
    assert {*map(tuple, found.pairs.tolist())} < {*map(tuple, exact.pairs.tolist())}


def test_zero_rows_are_no_duplicates():
    rows = np.zeros((5, 4), np.float32)
    assert rk.duplicates(rows, 0.5).kept.tolist() == [0, 1, 2, 3, 4]
    assert rk.duplicates(rows, 0.0).kept.tolist() == [0]


def test_progress_is_told():
    told = []
    rk.duplicates(rows_of(12, 130, 8), 0.9, progress=lambda done, total: told.append((done, total)))
    assert told == [(50, 130), (100, 130), (130, 130)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threshold": 1.5}, r"duplicates: threshold must be within \[-1, 1\], got 1.5"),
        ({"threshold": float("nan")}, r"duplicates: threshold must be within \[-1, 1\], got nan"),
        ({"threshold": 1e39, "metric": "dot"}, "duplicates: threshold must be within the range of float32, got 1e"),
        ({"quality": [1.0]}, r"duplicates: quality must have shape \(N,\) = \(6,\), got \(1,\)"),
        ({"quality": [0, 1, np.nan, 0, 0, 0]}, "duplicates: quality must be numbers, got NaN in row 2"),
        ({"neighbors": 0}, "duplicates: neighbors must be at least 1, got 0"),
        ({"neighbors": 32}, "duplicates: neighbors must come with index, got 32 alone$"),
        ({"backend": "triton"}, "duplicates: backend must be one of 'auto', 'cpu', 'reference', got 'triton'"),
    ],
)
def test_bad_arguments(given, message):
    with pytest.raises(ValueError, match=message):
        rk.duplicates(np.eye(6, dtype=np.float32), **{"threshold": 0.9, **given})
    with pytest.raises(TypeError, match=r"^duplicates: index must be None, .*, got str"):
        rk.duplicates(np.eye(6, dtype=np.float32), 0.9, index="foo")
    corpus = rk.Corpus(np.eye(6, dtype=np.float32), metric="cosine")
    with pytest.raises(ValueError, match="duplicates: metric must be the corpus's own, 'cosine', got 'dot'"):
        rk.duplicates(corpus, 0.9, metric="dot")


def test_too_many_pairs_are_an_error(monkeypatch):
    monkeypatch.setattr(module, "_MOST_PAIRS", 100)
    with pytest.raises(ValueError, match="duplicates: threshold must leave at most 100 similar pairs"):
        rk.duplicates(np.ones((60, 4), np.float32), 0.9, pairs=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", [1, -1])
def test_rows_of_very_different_lengths(backend, order):
    """The bound is that of the longest rows and of the largest errors, wherever these are."""
    rows = rows_of(13, 400, 40) * np.geomspace(20, 0.05, 400, dtype=np.float32)[::order, None]
    corpus = rk.Corpus(rows, metric="dot")
    for threshold in (0.5, 30.0, 2000.0):
        assert check(corpus, threshold, rk.duplicates(corpus, threshold, backend=backend)) > 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_thresholds_beyond_all_products(backend):
    rows = np.random.default_rng(14).standard_normal((150, 20)).astype(np.float32)
    for threshold in (-3e38, -1e4):
        assert rk.duplicates(rows, threshold, metric="dot", backend=backend).kept.tolist() == [0]
    for threshold in (1e4, 3e38):
        assert len(rk.duplicates(rows, threshold, metric="dot", backend=backend).removed) == 0


@pytest.mark.parametrize(
    ("long", "short", "product"),
    [([630] + [4.9] * 9, [0] + [1] * 9, 44.1), ([0] + [100] * 9, [1] + [0.0044] * 9, 3.96)],
    ids=["of the row that stands", "of the other"],
)
def test_what_bytes_leave_of_a_row_is_in_the_bound(long, short, product):
    """Of one of the two rows bytes leave nothing but its large elements, which the other has not. Short rows that stand
    after the long one change nothing."""
    between = np.zeros((120, 10))
    between[:, 1] = -0.1
    corpus = rk.Corpus(np.array([between[0], long, *between, short], np.float32), metric="dot")
    found = rk.duplicates(corpus, 0.95 * product)
    assert (found.removed.tolist(), found.of.tolist()) == ([122], [1])
    assert found.similarity[0] == pytest.approx(product)


def test_an_index_is_asked_for_neighbors_beside_the_row_itself():
    rows = np.repeat(rows_of(15, 40, 16, copies=0), 4, axis=0)
    corpus = rk.Corpus(rows + 1e-3 * np.random.default_rng(0).standard_normal(rows.shape).astype(np.float32))
    found = rk.duplicates(corpus, 0.99, index=corpus, neighbors=3, pairs=True)
    assert (found.recall, len(found.pairs)) == (1, 40 * 6)
