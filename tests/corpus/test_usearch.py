"""usearch indexes as retrievers: through them what the exact search finds, with the bias, in segments, from files."""

import itertools
import re

import numpy as np
import pytest

pytest.importorskip("pyarrow")
usearch = pytest.importorskip("usearch.index")

import pyarrow.parquet as pq  # noqa: E402

import ragsys_kernels as rk  # noqa: E402
from ragsys_kernels import offline  # noqa: E402
from ragsys_kernels.corpus import faiss_index, usearch_index  # noqa: E402

N, D, Q = 400, 24, 9


def problem(metric="cosine", bias=False, seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(N).astype(np.float32) if bias else None
    rows, queries = rng.standard_normal((N, D), dtype=np.float32), rng.standard_normal((Q, D), dtype=np.float32)
    return rk.Corpus(rows, weights, metric=metric), queries


def index_of(corpus, metric, rows=slice(None)):
    """An index that looks at every row: exact but for its float32."""
    vectors = corpus.vectors(rows).astype(np.float32)
    if corpus.bias is not None:
        vectors = np.column_stack([vectors, corpus.bias[rows] / np.float32(faiss_index.BIAS_UNIT)])
    index = usearch.Index(ndim=vectors.shape[1], metric=metric, dtype="f32", connectivity=64, expansion_search=N)
    index.add(np.arange(len(vectors)), np.ascontiguousarray(vectors))
    return index


@pytest.mark.parametrize(
    ("metric", "by", "bias"),
    [("cosine", "cos", False), ("cosine", "l2sq", False), ("cosine", "ip", True), ("dot", "ip", False)],
)
def test_it_finds_what_the_exact_search_finds(metric, by, bias):
    corpus, queries = problem(metric, bias)
    index = index_of(corpus, by)
    for some, n in ((queries, 7), (queries[:1], 1), (queries[:0], 3)):
        options = {"lambda_b": 0.6} if bias else {}
        exact, found = corpus.search(some, n, **options), corpus.search(some, n, index=index, **options)
        np.testing.assert_array_equal(found.indices, exact.indices)
        np.testing.assert_array_equal(found.scores, exact.scores)
    picks = corpus.select(queries, 4, pool=20, index=index)
    np.testing.assert_array_equal(picks.indices, corpus.select(queries, 4, pool=20).indices)


def test_groups_of_the_queries_are_left_out():
    corpus, queries = problem()
    corpus = rk.Corpus(corpus.vectors(slice(None)).astype(np.float32), groups=np.arange(N) % 3)
    options = {"query_groups": np.arange(Q) % 3}
    found = corpus.search(queries, N, index=index_of(corpus, "cos"), **options)
    np.testing.assert_array_equal(found.indices, corpus.search(queries, N, **options).indices)


@pytest.mark.parametrize("files", [1, 3])
def test_a_job_reads_files(tmp_path, files):
    corpus, queries = problem()
    np.save(tmp_path / "rows.npy", corpus.vectors(slice(None)).astype(np.float32))
    np.save(tmp_path / "queries.npy", queries)
    ends = np.linspace(0, N, files + 1).astype(int).tolist()
    (tmp_path / "indexes").mkdir()
    for begin, end in itertools.pairwise(ends):
        index_of(corpus, "cos", slice(begin, end)).save(str(tmp_path / "indexes" / f"{begin:03}.usearch"))
    options = {"corpus": tmp_path / "rows.npy", "queries": tmp_path / "queries.npy", "k": 4, "pool": 20}
    index = tmp_path / "indexes" if files > 1 else tmp_path / "indexes" / "000.usearch"
    offline.select(out=tmp_path / "exact", **options)
    offline.select(out=tmp_path / "found", index=index, **options)
    exact, found = (pq.read_table(tmp_path / name) for name in ("exact", "found"))
    assert found["ids"].to_pylist() == exact["ids"].to_pylist()


@pytest.mark.parametrize("named", [False, True])
def test_keys_are_rows_or_ids_and_may_lack_what_is_deleted(named):
    corpus, queries = problem()
    names = np.arange(N) * 3 + 10**10 if named else np.arange(N)
    vectors = corpus.vectors(slice(None)).astype(np.float32)
    corpus = rk.Corpus(vectors, ids=names if named else None).delete(names[[3, 120]])
    exact = corpus.search(queries, 7).indices
    for remove in (False, True):
        index = usearch.Index(ndim=D, metric="cos", dtype="f32", connectivity=64, expansion_search=N)
        index.add(names, vectors)
        if remove:
            for key in names[[3, 120]]:
                index.remove(int(key))
        np.testing.assert_array_equal(corpus.search(queries, 7, index=index).indices, exact)
    index.remove(int(names[5]))
    with pytest.raises(ValueError, match=f"got 397 without {f'id {names[5]}' if named else 'row 5'}$"):
        corpus.search(queries, 7, index=index)
    for dtype, metric in (("f32", "cos"), ("bf16", "cos"), ("f32", "l2sq")):
        other = usearch.Index(ndim=D, metric=metric, dtype=dtype)
        other.add(np.roll(names, 1), vectors)
        with pytest.raises(ValueError, match="index must hold the rows of the corpus in their order"):
            corpus.search(queries, 7, index=other)


def test_what_is_no_index_of_the_corpus_is_refused(tmp_path):
    corpus, queries = problem()
    other, wide = usearch.Index(ndim=D, metric="cos"), usearch.Index(ndim=D + 2, metric="cos")
    hamming = usearch.Index(ndim=D, metric="hamming", dtype="b1")
    for index, reason in (
        (other, "N = 400 rows, .*, got 0 without row 0"),
        (wide, "D = 24 columns, got 26"),
        (hamming, "got Hamming"),
    ):
        with pytest.raises(ValueError, match=f"search: index must .*{reason}"):
            corpus.search(queries, 3, index=index)
    shifted = usearch.Index(ndim=D, metric="cos")
    shifted.add(np.arange(N) + 5, corpus.vectors(slice(None)).astype(np.float32))
    with pytest.raises(ValueError, match="search: index must have numbers of the corpus's rows, below N = 400, got 40"):
        corpus.search(queries, N, index=shifted)
    whole, file = tmp_path / "whole.usearch", tmp_path / "cut.usearch"
    index_of(corpus, "cos").save(str(whole))
    for bytes_left in (0, 40, 3_000):
        file.write_bytes(whole.read_bytes()[:bytes_left])
        with pytest.raises(ValueError, match=re.escape("select: index must be a readable usearch file, got cut.u")):
            usearch_index.read("select", str(file), "cut.usearch")
