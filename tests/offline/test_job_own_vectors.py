"""Jobs whose candidates come with their vectors: no corpus, any ids, and the bits of calls in process."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import read

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline.sources import Lists

Q, D = 310, 12
RNG = np.random.default_rng(91)
QUERIES = RNG.standard_normal((Q, D), dtype=np.float32)
SIZES = RNG.integers(1, 25, Q)
SIZES[[4, 300]] = 0
pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def hits(dtype=np.float32, strings=True):
    vectors = [RNG.standard_normal((int(n), D)).astype(dtype) for n in SIZES]
    names = [
        [f"doc {i}" for i in RNG.permutation(n)] if strings else (RNG.permutation(n) + 10**12).tolist() for n in SIZES
    ]
    return vectors, names


def write(folder, vectors, names, fixed=True):
    rows = np.concatenate(vectors)
    flat = pa.array(rows.ravel())
    if fixed:
        inner = pa.FixedSizeListArray.from_arrays(flat, D)
    else:
        inner = pa.ListArray.from_arrays(np.arange(len(rows) + 1, dtype=np.int32) * D, flat)
    lists = pa.ListArray.from_arrays(np.cumsum([0, *map(len, vectors)], dtype=np.int32), inner)
    kind = pa.list_(pa.string() if any(isinstance(each[0], str) for each in names if each) else pa.int64())
    table = pa.table({"ids": pa.array(names, kind), "vectors": lists})
    pq.write_table(table, folder / "hits.parquet", row_group_size=90)
    np.save(folder / "queries.npy", QUERIES)


def job(folder, out="out", **options):
    given = {"queries": folder / "queries.npy", "candidates": folder / "hits.parquet", "out": folder / out}
    return offline.select(**{**given, "candidate_vector_column": "vectors", "k": 4, **options})


def picked(folder, out="out"):
    return read(folder / out)


@pytest.mark.parametrize(
    ("dtype", "method", "metric", "strings", "fixed"),
    [
        (np.float16, "mmr", "cosine", True, False),
        (np.float32, "vrsd", "dot", False, True),
        (np.float32, "mmr", "dot", True, True),
    ],
)
def test_picks_have_the_bits_of_calls_in_process(tmp_path, dtype, method, metric, strings, fixed):
    vectors, names = hits(dtype, strings)
    write(tmp_path, vectors, names, fixed)
    summary = job(tmp_path, method=method, metric=metric, shard_size=150)
    assert (summary.queries, summary.skipped, summary.shards) == (Q, 0, 3)
    table = picked(tmp_path)
    ids, scores = table["ids"].to_pylist(), table["scores"].to_pylist()
    for q in range(Q):
        if not SIZES[q]:
            assert ids[q] == []
            continue
        few = np.arange(SIZES[q])[None]
        picks = getattr(rk, method)(QUERIES[[q]], vectors[q], 4, candidates=few, metric=metric)
        n = int(picks.lengths[0])
        assert ids[q] == [names[q][row] for row in picks.indices[0, :n]]
        assert np.array(scores[q], np.float32).tobytes() == picks.scores[0, :n].tobytes()
    again = job(tmp_path, "again", method=method, metric=metric, chunk_size=17)
    assert again.shards == 1
    without = ["query_id", "ids", "scores", "relevance"]  # redundancy is NaN with VRSD
    assert picked(tmp_path, "again").select(without).equals(table.select(without))
    assert job(tmp_path, method=method, metric=metric, shard_size=150).selected == 0


def test_long_lists_are_selected_from_in_runs(tmp_path, monkeypatch):
    """As where a list is so long that all would not fit beside it."""
    write(tmp_path, *hits(np.float16))
    job(tmp_path)
    monkeypatch.setattr(Lists, "runs", lambda self: (slice(i, min(i + 7, len(self))) for i in range(0, len(self), 7)))
    job(tmp_path, "runs")
    without = ["query_id", "ids", "scores", "relevance"]
    assert picked(tmp_path, "runs").select(without).equals(picked(tmp_path).select(without))


@pytest.mark.parametrize(("own", "scale"), [(True, "as-is"), (True, "rank"), (False, "minmax")])
def test_relevance_of_the_candidates_is_a_column(tmp_path, own, scale):
    vectors, names = hits(strings=False)
    write(tmp_path, vectors, names)
    scores = [RNG.uniform(0, 8, n).astype(np.float32) for n in SIZES]
    table = pq.read_table(tmp_path / "hits.parquet").append_column("bm25", pa.array(scores, pa.list_(pa.float32())))
    options = {"relevance_column": "bm25", "relevance_scale": scale, "lambda_d": 0.5}
    if not own:
        rows = RNG.standard_normal((60, D), dtype=np.float32)
        vectors = [rows[:n] for n in SIZES]
        names = [list(range(n)) for n in SIZES]
        np.save(tmp_path / "corpus.npy", rows)
        table = table.set_column(0, "ids", pa.array(names, pa.list_(pa.int64()))).drop_columns("vectors")
        options |= {"corpus": tmp_path / "corpus.npy", "candidate_vector_column": None}
    pq.write_table(table, tmp_path / "hits.parquet", row_group_size=90)
    assert job(tmp_path, **options).skipped == 0
    ids, values = (picked(tmp_path)[name].to_pylist() for name in ("ids", "relevance"))
    for q in np.flatnonzero(SIZES):
        few = np.arange(SIZES[q])[None]
        call = {"candidates": few, "relevance": scores[q][None], "relevance_scale": scale, "lambda_d": 0.5}
        picks = rk.mmr(None, vectors[q], 4, **call)
        n = int(picks.lengths[0])
        assert ids[q] == [names[q][row] for row in picks.indices[0, :n]]
        assert values[q] == picks.relevance[0, :n].tolist()
    lists = [each.tolist() for each in scores]
    lists[9], lists[12] = [*lists[9], 1.0], [None] * len(lists[12])
    place = table.column_names.index("bm25")
    pq.write_table(table.set_column(place, "bm25", pa.array(lists)), tmp_path / "hits.parquet")
    with pytest.raises(ValueError, match=r"relevance must have (a number for each of the candidates|no null values)"):
        job(tmp_path, "bad", **options)
    assert job(tmp_path, "bad", **options, on_error="skip").skipped == 2


def test_what_cannot_be_used_follows_on_error(tmp_path):
    vectors, names = hits()
    vectors[7] = vectors[7].copy()
    vectors[7][0, 3] = np.nan
    names[11] = [*names[11], "more"]
    write(tmp_path, vectors, names)
    with pytest.raises(
        ValueError, match=r"embeddings must be finite, got NaN or inf in row 7 of .*|an id for each of the"
    ):
        job(tmp_path)
    assert job(tmp_path, on_error="skip").skipped == 2
    errors = pq.read_table(tmp_path / "out.job" / "_errors-00000.parquet")
    assert errors["query_row"].to_pylist() == [7, 11]
    assert errors["reason"].to_pylist() == [
        "embeddings must be finite, got NaN or inf",
        "candidates must have an id for each of the vectors, got another number",
    ]
    assert picked(tmp_path)["ids"].to_pylist()[11] == []


def test_vectors_that_are_none_are_told(tmp_path):
    vectors, names = hits()
    write(tmp_path, vectors, names)
    table = pq.read_table(tmp_path / "hits.parquet")
    lists = table["vectors"].to_pylist()
    lists[2], lists[3] = None, [[1.0] * (D - 1)] * len(names[3])
    lists[5] = [None] * len(names[5])
    lists[6] = [[None] * D] * len(names[6])
    kind = pa.list_(pa.list_(pa.float32()))
    table = table.set_column(1, "vectors", pa.array(lists, kind))
    pq.write_table(table, tmp_path / "hits.parquet")
    with pytest.raises(ValueError, match=r"^select: candidates must have no null rows, got one in row 2 of .*hits"):
        job(tmp_path)
    assert job(tmp_path, on_error="skip").skipped == 4
    errors = pq.read_table(tmp_path / "out.job" / "_errors-00000.parquet")
    assert errors["query_row"].to_pylist() == [2, 3, 5, 6]
    assert "hold vectors of the queries' 12 dimensions" in errors["reason"][1].as_py()


def test_options_that_need_a_corpus_are_refused(tmp_path):
    write(tmp_path, *hits())
    np.save(tmp_path / "corpus.npy", np.eye(D, dtype=np.float32))
    for options, match in (
        ({"corpus": tmp_path / "corpus.npy"}, "corpus must be left out with candidate_vector_column, got"),
        ({"dtype": "int8"}, "dtype must be left out with candidate_vector_column, got int8"),
        ({"candidates": None}, "candidate_vector_column must come with candidates, got none"),
        ({"candidate_vector_column": None}, "corpus must be given unless candidates come with their vectors, got none"),
        ({"candidate_vector_column": "ids"}, "candidates must hold lists of lists of floats in column 'ids'"),
        ({"candidate_vector_column": "none"}, "candidates must have a column 'none'"),
        ({"candidate_ids": True}, "candidate_ids must be left out with candidate_vector_column, got both"),
        ({"relevance_scale": "rank"}, "relevance_scale must come with relevance_column, got 'rank' alone"),
        ({"relevance_scale": "max", "relevance_column": "x"}, "relevance must have a column 'x'"),
        ({"relevance_column": "ids"}, "relevance must hold lists of floats in column 'ids'"),
        ({"pool": 5}, "pool must be left out when candidates are given, got 5"),
        ({"budget": 5.0}, "costs and budget must come together"),
        ({"max_per_group": 2}, "max_per_group must come with groups"),
    ):
        with pytest.raises(ValueError, match=f"^select: {match}"):
            job(tmp_path, **options)
    assert not (tmp_path / "out").exists()
