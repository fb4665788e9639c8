"""How good an index that is not exact was for a job: recall of its pools and changed picks, on a sample."""

import dataclasses
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

faiss = pytest.importorskip("faiss")

from job_arrays import read  # noqa: E402

import ragsys_kernels as rk  # noqa: E402
from ragsys_kernels import offline  # noqa: E402
from ragsys_kernels.offline._recall import sampled  # noqa: E402

N, D, Q, K, POOL = 3000, 16, 730, 5, 40
RNG = np.random.default_rng(12)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
QUERIES = RNG.standard_normal((Q, D), dtype=np.float32)


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "corpus.npy", ROWS)
    np.save(tmp_path / "queries.npy", QUERIES)
    return {"corpus": tmp_path / "corpus.npy", "queries": tmp_path / "queries.npy", "k": K, "pool": POOL}


def saved(index, path):
    path.parent.mkdir(exist_ok=True)
    faiss.write_index(index, str(path))
    return path


def test_recall_and_changed_picks_are_those_of_the_sampled_queries(tmp_path, files):
    corpus = rk.Corpus(ROWS)
    index = corpus.to_faiss("IVF16,Flat")  # one cell of sixteen is searched
    path = saved(index, tmp_path / "ivf")
    summary = offline.select(**files, index=path, out=tmp_path / "out", shard_size=200)
    rows = np.arange(0, Q, Q // 100)
    exact, found = (corpus.search(QUERIES[rows], POOL, index=each).indices for each in (None, index))
    shares = [len(set(a) & set(b) - {-1}) / POOL for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    picks, others = (corpus.select(QUERIES[rows], K, pool=POOL, index=each).indices for each in (None, index))
    changed = sum(len(set(b) - set(a) - {-1}) for a, b in zip(picks.tolist(), others.tolist(), strict=True))
    recall = summary.recall
    assert (recall.queries, recall.changed) == (len(rows), changed)
    assert recall.picks == np.count_nonzero(others >= 0)
    assert recall.mean == pytest.approx(np.mean(shares))
    half = 1.96 * np.std(shares, ddof=1) / len(rows) ** 0.5
    assert recall.interval == pytest.approx((np.mean(shares) - half, np.mean(shares) + half))
    assert 0.05 < recall.mean < 0.9
    assert changed > 0
    assert f"pools have {100 * recall.mean:.1f} % of the exact ones" in str(summary)
    # A job that is stopped and goes on samples the same queries.
    stops = iter([False, False, True])
    part = offline.select(**files, index=path, out=tmp_path / "two", shard_size=200, stop=lambda: next(stops))
    assert 0 < part.recall.queries < recall.queries
    again = offline.select(**files, index=path, out=tmp_path / "two", shard_size=200)
    assert dataclasses.astuple(again.recall) == pytest.approx(dataclasses.astuple(recall))
    assert offline.select(**files, index=path, out=tmp_path / "two", shard_size=200).recall == again.recall


def test_an_exact_index_misses_nothing_and_bad_queries_are_no_part(tmp_path, files):
    queries = QUERIES.copy()
    queries[7 * np.arange(3)] = np.nan  # three of the sample
    np.save(tmp_path / "queries.npy", queries)
    path = saved(rk.Corpus(ROWS).to_faiss(), tmp_path / "flat")
    recall = offline.select(**files, index=path, out=tmp_path / "out", on_error="skip").recall
    assert (recall.mean, recall.interval, recall.changed) == (1.0, (1.0, 1.0), 0)
    assert recall.queries == len(range(0, Q, Q // 100)) - 3
    assert offline.select(**files, out=tmp_path / "exact", on_error="skip").recall is None


def test_a_folder_of_indexes_has_the_rows_one_after_the_other(tmp_path, files):
    cuts = (0, 700, 701, 2100, N)
    for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
        saved(rk.Corpus(ROWS[begin:end]).to_faiss(), tmp_path / "parts" / f"{number}.index")
    summary = offline.select(**files, index=tmp_path / "parts", out=tmp_path / "out")
    exact = offline.select(**files, out=tmp_path / "exact")
    assert summary.recall.mean == 1
    ids = [read(tmp_path / name)["ids"].to_pylist() for name in ("out", "exact")]
    assert ids[0] == ids[1]
    assert exact.recall is None
    (tmp_path / "parts" / "3.index").unlink()
    with pytest.raises(ValueError, match=f"index must hold the corpus's N = {N} rows, got 2100"):
        offline.select(**files, index=tmp_path / "parts", out=tmp_path / "other")
    saved(faiss.IndexFlatL2(D), tmp_path / "parts" / "4.index")
    with pytest.raises(ValueError, match=r"index must .*parts of one width and metric"):
        offline.select(**files, index=tmp_path / "parts", out=tmp_path / "other")
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match="index must be an existing file, or a folder of such"):
        offline.select(**files, index=tmp_path / "none", out=tmp_path / "other")


@pytest.mark.parametrize("total", [1, 99, 100, 101, 250, 12_345])
def test_a_sample_is_the_same_however_queries_are_cut(total):
    whole = sampled(0, total, total).tolist()
    assert len(whole) >= min(total, 100)
    assert len(whole) < 201
    for size in (1, 7, 64, total):
        parts = [begin + sampled(begin, min(size, total - begin), total) for begin in range(0, total, size)]
        assert np.concatenate(parts).tolist() == whole


@pytest.mark.parametrize("kind", ["FAISS", "corpus"])
def test_an_index_of_the_first_columns_is_told_with_its_recall(tmp_path, files, kind):
    first = np.ascontiguousarray(ROWS[:, : D // 2])
    short = rk.Corpus(first)
    if kind == "FAISS":
        path = saved(short.to_faiss(), tmp_path / "short")
    else:
        short.save(path := tmp_path / "short")
    summary = offline.select(**files, index=path, out=tmp_path / "out", shard_size=200)
    rows = np.arange(0, Q, Q // 100)
    exact = rk.Corpus(ROWS).search(QUERIES[rows], POOL).indices
    found = short.search(np.ascontiguousarray(QUERIES[rows, : D // 2]), POOL).indices
    mean = np.mean([len(set(a) & set(b)) / POOL for a, b in zip(exact.tolist(), found.tolist(), strict=True)])
    assert 0.1 < mean < 0.95
    assert summary.recall.mean == pytest.approx(mean)
    assert summary.recall.columns == D // 2
    assert f", pools by the first {D // 2} columns have {100 * mean:.1f} % of the exact ones" in str(summary)
    other = saved(rk.Corpus(np.ascontiguousarray(ROWS[:, D // 2 :])).to_faiss(), tmp_path / "other")
    match = f"^select: index must be one of the corpus, got {other}: index must hold .* their first {D // 2} of {D}"
    with pytest.raises(ValueError, match=match):
        offline.select(**files, index=other, out=tmp_path / "refused")


def test_the_index_of_a_corpus_finds_the_pools(tmp_path, files):
    names = np.array([f"ü{i}" for i in RNG.permutation(N)], object)
    pq.write_table(pa.table({"id": names, "vector": list(ROWS)}), tmp_path / "corpus.parquet")
    folder = tmp_path / "c"
    built = offline.build_corpus(
        tmp_path / "corpus.parquet", folder, rows_per_segment=1100, index="IVF16,Flat", search_parameters="nprobe=2"
    )
    offline.delete_rows(names[:200].tolist(), folder)
    corpus, files["corpus"] = rk.Corpus.load(folder), folder
    assert repr(corpus) == repr(built).replace(", index", ", deleted=200, index")
    summary = offline.select(**files, out=tmp_path / "out", shard_size=200, num_threads=1)
    expected = corpus.select(QUERIES, K, pool=POOL)
    table = read(tmp_path / "out")
    assert table["ids"].to_pylist() == corpus.ids[expected.indices].tolist()
    assert "certified" not in table.column_names
    rows = np.arange(0, Q, Q // 100)
    exact, found = (corpus.search(QUERIES[rows], POOL, index=each).indices for each in (False, None))
    shares = [len(set(a) & set(b)) / POOL for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    assert summary.recall.mean == pytest.approx(np.mean(shares))
    assert 0.1 < summary.recall.mean < 0.9
    # What is found depends neither on chunks, threads nor the memory.
    offline.select(**files, out=tmp_path / "two", shard_size=200, chunk_size=33, memory=100_000, num_threads=2)
    for shard in sorted((tmp_path / "out").glob("part-*")):
        assert shard.read_bytes() == (tmp_path / "two" / shard.name).read_bytes()
    for options, other in (
        ({"exact": True}, corpus.select(QUERIES, K, pool=POOL, index=False)),
        ({"search_parameters": "nprobe=16"}, corpus.select(QUERIES, K, pool=POOL, index=False)),
        ({"pool": "certified"}, corpus.select(QUERIES, K, pool=None)),
    ):
        out = tmp_path / "-".join(options)
        recall = offline.select(**{**files, **options}, out=out).recall
        table = read(out)
        assert table["ids"].to_pylist() == corpus.ids[other.indices].tolist()
        assert ("certified" in table.column_names) == (recall is None)
        assert recall is None or recall.mean == 1
    with pytest.raises(ValueError, match="search_parameters none, now nprobe=3"):
        offline.select(**files, out=tmp_path / "out", shard_size=200, num_threads=1, search_parameters="nprobe=3")
    for options, message in (
        ({"search_parameters": "nprob=1"}, "search_parameters must be ones of the index"),
        ({"search_parameters": "nprobe=1", "exact": True}, "search_parameters must come with a corpus whose own index"),
        ({"search_parameters": "nprobe=1", "pool": "all"}, "search_parameters must come with a corpus whose own index"),
        ({"index": folder, "exact": True}, "index must be left out with exact"),
    ):
        with pytest.raises(ValueError, match=f"^select: {message}"):
            offline.select(**{**files, **options}, out=tmp_path / "none")
        assert not (tmp_path / "none").exists()
