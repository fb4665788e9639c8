"""The job over files: what it writes equals direct calls, and bad input is refused."""

import gc
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import ragsys_kernels as rk  # noqa: E402
from ragsys_kernels import offline  # noqa: E402
from ragsys_kernels.offline import job  # noqa: E402

N, Q, D = 300, 230, 12


@pytest.fixture
def data(tmp_path):
    """Vectors, candidates, bias and groups as arrays, and the same as .npy files in tmp_path."""
    rng = np.random.default_rng(0)
    arrays = {
        "corpus": rng.standard_normal((N, D)).astype(np.float32),
        "queries": rng.standard_normal((Q, D)).astype(np.float32),
        "candidates": np.stack([rng.choice(N, 40, replace=False) for _ in range(Q)]),
        "bias": rng.standard_normal(N).astype(np.float32),
        "groups": rng.integers(0, 20, N),
        "query_groups": rng.integers(0, 20, Q),
    }
    arrays["candidates"][::3, 25:] = -1
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return arrays


def files(folder, *names):
    return {name: folder / f"{name}.npy" for name in names}


def vector_lists(array, fixed=True):
    if fixed:
        return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
    return pa.array(array.tolist(), pa.list_(pa.float32()))


def read(out):
    return pq.read_table(out)


def check_equals(table, picks, *, query_ids=None, ids=None):
    """The table holds exactly the picks of a direct call, without their padding."""
    expected_queries = list(range(len(picks.lengths))) if query_ids is None else query_ids
    assert table["query_id"].to_pylist() == expected_queries
    for row, length in enumerate(picks.lengths):
        expected = picks.indices[row, :length].tolist()
        assert table["ids"][row].as_py() == (expected if ids is None else [ids[i] for i in expected])
    real = np.arange(picks.indices.shape[1]) < picks.lengths[:, None]
    for name in ("scores", "relevance", "redundancy"):
        np.testing.assert_array_equal(table[name].combine_chunks().flatten().to_numpy(), getattr(picks, name)[real])


def snapshot(folder):
    return sorted(
        (str(path.relative_to(folder)), path.read_bytes() if path.is_file() else None) for path in folder.rglob("*")
    )


def check_refused(tmp_path, kind, match, **options):
    """The job raises one clear error before its first shard, and no file appears, disappears or changes."""
    before = snapshot(tmp_path)
    with pytest.raises(kind, match=match or None) as caught:
        offline.select(**{**files(tmp_path, "corpus", "queries"), "out": tmp_path / "made" / "out", **options})
    assert snapshot(tmp_path) == before
    return str(caught.value)


# --- what is written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mmr", "vrsd"])
@pytest.mark.parametrize("pool", [50, "all"])
def test_npy_equals_direct_calls(tmp_path, data, method, pool):
    summary = offline.select(
        **files(tmp_path, "corpus", "queries"), out=tmp_path / "out", method=method, k=5, pool=pool, chunk_size=64
    )
    direct = rk.Corpus(data["corpus"]).select(data["queries"], 5, method=method, pool=None if pool == "all" else pool)
    check_equals(read(tmp_path / "out"), direct)
    assert (summary.queries, summary.shards, summary.out) == (Q, 1, tmp_path / "out")
    assert summary.seconds > 0
    assert f"{Q} queries in " in str(summary)


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed-size", "variable-size"])
def test_parquet_equals_direct_calls(tmp_path, data, fixed):
    doc_ids = [f"doc-{row}" for row in range(N)]
    query_ids = [row * 10 + 3 for row in range(Q)]
    pq.write_table(
        pa.table({
            "id": pa.array(doc_ids).dictionary_encode(),
            "text": doc_ids,
            "embedding": vector_lists(data["corpus"], fixed),
            "quality": data["bias"],
            "topic": data["groups"],
        }),
        tmp_path / "corpus.parquet",
        row_group_size=70,
    )  # fmt: skip
    pq.write_table(
        pa.table({"qid": query_ids, "v": vector_lists(data["queries"], fixed), "topic": data["query_groups"]}),
        tmp_path / "queries.parquet",
        row_group_size=37,
    )
    offline.select(
        corpus=tmp_path / "corpus.parquet",
        queries=tmp_path / "queries.parquet",
        out=tmp_path / "out",
        query_id_column="qid",
        bias_column="quality",
        group_column="topic",
        query_group_column="topic",
        max_per_group=1,
        chunk_size=50,
    )
    corpus = rk.Corpus(data["corpus"], bias=data["bias"], groups=data["groups"])
    direct = corpus.select(data["queries"], 6, query_groups=data["query_groups"], max_per_group=1)
    check_equals(read(tmp_path / "out"), direct, query_ids=query_ids, ids=doc_ids)


def test_parquet_batches_of_any_size_are_joined(tmp_path, data, monkeypatch):
    """Rows of all columns stay aligned even if the reader hands out fewer rows than it was asked for."""
    pq.write_table(pa.table({"id": np.arange(Q) * 3, "v": vector_lists(data["queries"])}), tmp_path / "queries.parquet")
    read_batches = pq.ParquetFile.iter_batches

    def short_batches(file, batch_size, columns, **options):
        return read_batches(file, 33 if columns == ["id"] else 40, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", short_batches)
    paths = {**files(tmp_path, "corpus", "candidates"), "queries": tmp_path / "queries.parquet"}
    offline.select(**paths, out=tmp_path / "out", chunk_size=50)
    direct = rk.Corpus(data["corpus"]).select(data["queries"], 6, candidates=data["candidates"])
    check_equals(read(tmp_path / "out"), direct, query_ids=[row * 3 for row in range(Q)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storage_type_equals_direct_calls(tmp_path, data, dtype):
    offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out", dtype=dtype, metric="dot")
    check_equals(
        read(tmp_path / "out"), rk.Corpus(data["corpus"], dtype=dtype, metric="dot").select(data["queries"], 6)
    )


@pytest.mark.parametrize("kind", ["float16 npy", "float64 npy", "float64 parquet", "float16 parquet"])
def test_other_vector_types(tmp_path, data, kind):
    half = {name: data[name].astype(np.float16) for name in ("corpus", "queries")}
    paths = {}
    for name, array in half.items():
        paths[name] = tmp_path / f"other-{name}{'.npy' if 'npy' in kind else '.parquet'}"
        if "npy" in kind:
            np.save(paths[name], array.astype(kind.split()[0]))
        else:
            pq.write_table(pa.table({"v": vector_lists(array.astype(kind.split()[0]))}), paths[name])
    offline.select(**paths, out=tmp_path / "out")
    check_equals(read(tmp_path / "out"), rk.Corpus(half["corpus"]).select(half["queries"], 6))


def test_candidates_bias_and_groups_from_npy(tmp_path, data):
    names = ("corpus", "queries", "candidates", "bias", "groups", "query_groups")
    offline.select(**files(tmp_path, *names), out=tmp_path / "out", k=30, lambda_d=0.5, lambda_b=0.8, chunk_size=41)
    corpus = rk.Corpus(data["corpus"], bias=data["bias"], groups=data["groups"])
    direct = corpus.select(
        data["queries"], 30, pool=None, candidates=data["candidates"], query_groups=data["query_groups"],
        lambda_d=0.5, lambda_b=0.8,
    )  # fmt: skip
    assert direct.lengths.min() < 30  # some lists are trimmed
    check_equals(read(tmp_path / "out"), direct)


def test_ragged_candidates_from_parquet(tmp_path, data):
    lists = [row[row >= 0].tolist() for row in data["candidates"]]
    lists[7] = []
    data["candidates"][7] = -1
    table = pa.table({"query": list(range(Q)), "rows": pa.array(lists, pa.list_(pa.int32()))})
    pq.write_table(table, tmp_path / "candidates.parquet", row_group_size=29)
    offline.select(
        **files(tmp_path, "corpus", "queries"), candidates=tmp_path / "candidates.parquet", out=tmp_path / "out",
        chunk_size=31,
    )  # fmt: skip
    direct = rk.Corpus(data["corpus"]).select(data["queries"], 6, pool=None, candidates=data["candidates"])
    assert direct.lengths[7] == 0
    check_equals(read(tmp_path / "out"), direct)


def test_chunks_and_shards_do_not_change_the_rows(tmp_path, data):
    paths = files(tmp_path, "corpus", "queries", "candidates")
    offline.select(**paths, out=tmp_path / "one", chunk_size=10**9)
    expected = read(tmp_path / "one")
    for chunk_size, shard_size in ((1, 100), (7, 1), (64, 64), (1000, 77)):
        out = tmp_path / f"{chunk_size}-{shard_size}"
        summary = offline.select(**paths, out=out, chunk_size=chunk_size, shard_size=shard_size)
        shards = sorted(out.glob("part-*.parquet"))
        assert read(out).equals(expected)
        assert summary.shards == len(shards) == -(-Q // shard_size)
        assert {pq.read_metadata(shard).num_rows for shard in shards[:-1]} <= {shard_size}


def test_bytes_do_not_depend_on_the_chunk_size(tmp_path, data):
    paths = files(tmp_path, "corpus", "queries", "candidates")
    for chunk_size in (13, 500):
        offline.select(**paths, out=tmp_path / str(chunk_size), chunk_size=chunk_size, shard_size=100)
    assert snapshot(tmp_path / "13") == snapshot(tmp_path / "500")


def test_description_of_the_job(tmp_path, data):
    offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out", k=3, pool=9, shard_size=200)
    written = json.loads((tmp_path / "out" / "_job.json").read_text())
    shards = [(item["file"], item["first_row"], item["rows"]) for item in written["shards"]]
    assert shards == [("part-00000.parquet", 0, 200), ("part-00001.parquet", 200, Q - 200)]
    for item in written["shards"]:
        assert item["sha256"] == hashlib.sha256((tmp_path / "out" / item["file"]).read_bytes()).hexdigest()
    assert (written["version"], written["rows"], written["complete"]) == (rk.__version__, Q, True)
    assert written["inputs"]["queries"]["path"] == str(tmp_path / "queries.npy")
    assert written["inputs"]["queries"]["files"][0]["size"] == (tmp_path / "queries.npy").stat().st_size
    assert written["options"] == {
        "method": "mmr", "k": 3, "pool": 9, "lambda_d": 0.75, "lambda_b": 0.95, "max_per_group": None,
        "metric": "cosine", "dtype": "float32",
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "_job.json", "part-00000.parquet", "part-00001.parquet",
    ]  # fmt: skip


def test_progress_counts_queries(tmp_path, data):
    calls = []
    offline.select(
        **files(tmp_path, "corpus", "queries"), out=tmp_path / "out", chunk_size=100,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    assert calls == [(0, Q), (100, Q), (200, Q), (Q, Q)]


def test_k_beyond_the_pool_is_padded(tmp_path, data):
    """Where the corpus is small; a pool that is asked for has to be larger."""
    with pytest.raises(ValueError, match="select: pool must be above k = 8, or its rows only get another order, got 5"):
        offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out", k=8, pool=5)
    np.save(tmp_path / "corpus.npy", data["corpus"][:5])
    with pytest.warns(rk.PoolSizeWarning):
        summary = offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out", k=8)
    assert summary.short == Q
    assert {len(row) for row in read(tmp_path / "out")["ids"].to_pylist()} == {5}


# --- the output folder -------------------------------------------------------------------------------------------


def test_missing_parents_are_made_and_an_empty_folder_is_used(tmp_path, data):
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "a" / "b", tmp_path / "empty"):
        offline.select(**files(tmp_path, "corpus", "queries"), out=out)
        assert len(read(out)) == Q
    assert not list(tmp_path.rglob(".*"))  # no lock, nothing half written


def test_folder_in_use_is_refused(tmp_path, data):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    check_refused(
        tmp_path, FileExistsError, r"out must be empty, new or an earlier job.* mine\.txt", out=tmp_path / "out"
    )
    check_refused(
        tmp_path, FileExistsError, r"only an earlier job's files.* mine\.txt", out=tmp_path / "out", overwrite=True
    )


def test_file_in_the_place_of_the_folder_is_refused(tmp_path, data):
    (tmp_path / "out").write_text("keep")
    check_refused(tmp_path, FileExistsError, "out must be a folder", out=tmp_path / "out", overwrite=True)


def test_overwrite_replaces_an_earlier_job(tmp_path, data):
    paths = files(tmp_path, "corpus", "queries")
    offline.select(**paths, out=tmp_path / "out", shard_size=50)
    offline.select(**paths, out=tmp_path / "out", k=2, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_job.json", "part-00000.parquet"]
    assert {len(row) for row in read(tmp_path / "out")["ids"].to_pylist()} == {2}
    assert not list(tmp_path.rglob(".*"))


def test_overwrite_keeps_other_files(tmp_path, data):
    offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out")
    (tmp_path / "out" / "part-notes.parquet").write_text("keep")
    check_refused(tmp_path, FileExistsError, r"part-notes\.parquet", out=tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "part-notes.parquet").unlink()
    (tmp_path / "out" / "_job.json").unlink()
    check_refused(tmp_path, FileExistsError, r"shards but no _job\.json", out=tmp_path / "out", overwrite=True)


def test_overwrite_with_a_bad_corpus_keeps_the_earlier_result(tmp_path, data):
    offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out")
    data["corpus"][5, 3] = np.nan
    np.save(tmp_path / "bad.npy", data["corpus"])
    check_refused(
        tmp_path, ValueError, "row 5", corpus=tmp_path / "bad.npy", out=tmp_path / "out", overwrite=True
    )  # fmt: skip


def test_folder_that_cannot_be_made_is_refused(tmp_path, data):
    check_refused(tmp_path, OSError, "out must be a folder that can be made", out=tmp_path / "corpus.npy" / "out")
    check_refused(tmp_path, OSError, "out must be a folder that can be made", out=Path("/proc/out"))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_error_before_the_first_shard_leaves_nothing(tmp_path, data, kind):
    def fail(done, total):
        if done > 10:
            raise kind

    check_refused(tmp_path, kind, "", progress=fail, chunk_size=10, shard_size=100)


FULL_DISK = """
import resource, signal, sys
from ragsys_kernels import offline

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)      # a write beyond the limit fails with EFBIG, as ENOSPC would
resource.setrlimit(resource.RLIMIT_FSIZE, (12000, 12000))
try:
    options = {"shard_size": int(sys.argv[1]), "chunk_size": 20, "k": 20}
    offline.select(corpus="corpus.npy", queries="queries.npy", out="out", **options)
except OSError as error:
    print("OSError", error)
"""


@pytest.mark.parametrize("shard_size", [20, 10**6])
def test_full_disk_leaves_nothing(tmp_path, data, shard_size):
    before = snapshot(tmp_path)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", FULL_DISK, str(shard_size)], cwd=tmp_path, capture_output=True, text=True
    )
    if shard_size == 20:  # shards below the limit: the job is whole
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
        assert len(read(tmp_path / "out")) == Q
    else:
        assert "OSError" in run.stdout
        assert "File too large" in run.stdout
        assert (run.returncode, run.stderr) == (0, "")
        assert snapshot(tmp_path) == before


def test_full_disk_at_the_end_of_a_shard_leaves_nothing(tmp_path, data, monkeypatch):
    def fail(writer):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "close", fail)
    check_refused(tmp_path, OSError, "No space left on device")
    gc.collect()  # the writer's destructor may not try again, which would print


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["corpus", "queries", "candidates", "bias", "groups"])
def test_missing_file(tmp_path, data, name):
    check_refused(
        tmp_path, FileNotFoundError, f"select: {name} must be an existing file", **{name: tmp_path / "no.npy"}
    )


def test_other_format(tmp_path, data):
    (tmp_path / "corpus.csv").write_text("1,2")
    check_refused(
        tmp_path, ValueError, r"must be a \.npy, \.parquet, .* or \.safetensors file", corpus=tmp_path / "corpus.csv"
    )


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"1,2,3\n", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_damaged_npy(tmp_path, data, content):
    (tmp_path / "bad.npy").write_bytes(content)
    check_refused(tmp_path, ValueError, r"corpus must be a complete \.npy file.*bad\.npy", corpus=tmp_path / "bad.npy")


def test_truncated_npy(tmp_path, data):
    (tmp_path / "bad.npy").write_bytes((tmp_path / "queries.npy").read_bytes()[:-1])
    check_refused(tmp_path, ValueError, r"queries must be a complete \.npy file", queries=tmp_path / "bad.npy")


def test_damaged_parquet(tmp_path, data):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no PAR1")
    check_refused(tmp_path, ValueError, r"queries must be a readable Parquet file", queries=tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("name", "array", "match"),
    [
        ("corpus", np.zeros((3, D), bool), "corpus must be float32 or float16 or float64, got bool"),
        ("queries", np.zeros((Q, D), np.int32), "queries must be float32 or float16 or float64, got int32"),
        ("corpus", np.zeros(5, np.float32), r"corpus must be of rank 2, got shape \(5,\)"),
        ("queries", np.zeros((2, 3, D), np.float32), r"queries must be of rank 2, got shape \(2, 3, 12\)"),
        ("queries", np.zeros((4, D + 1), np.float32), "queries must have the corpus's 12 dimensions, got 13"),
        ("corpus", np.zeros((0, D), np.float32), "corpus must have at least one row"),
        ("queries", np.zeros((0, D), np.float32), "queries must have at least one row"),
        ("queries", np.zeros((4, 0), np.float32), "queries must have at least one dimension"),
        ("candidates", np.zeros((Q, 3), np.float32), "candidates must be int32 or int64, got float32"),
        ("candidates", np.zeros((Q - 1, 3), np.int64), "candidates must have one row for each of the 230"),
        ("bias", np.zeros(N, np.int64), "bias must be float32 or float16 or float64, got int64"),
        ("bias", np.zeros(N + 1, np.float32), "bias must have one row for each of the 300 rows of corpus, got 301"),
        ("groups", np.zeros((N, 1), np.int64), "groups must be of rank 1"),
    ],
)  # fmt: skip
def test_wrong_array(tmp_path, data, monkeypatch, name, array, match):
    monkeypatch.setattr(job, "_run", None)  # refused before the folder is looked at
    np.save(tmp_path / "bad.npy", array)
    message = check_refused(tmp_path, ValueError, f"^select: {match}", **{name: tmp_path / "bad.npy"})
    assert "bad.npy" in message


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        ({"a": [1, 2]}, {}, r"corpus must have one column of lists of floats.*got \['a'\]"),
        ({"a": [[1.0], [2.0]], "b": [[1.0], [2.0]]}, {}, r"one column of lists of floats.*got \['a', 'b'\]"),
        ({"a": [[1.0], [2.0]]}, {"vector_column": "c"}, "must have a column 'c'"),
        ({"a": [[1.0], [2.0]], "b": [1, 2]}, {"vector_column": "b"}, "must hold lists of floats in column 'b'"),
        ({"a": [[1.0] * D] * 20}, {"id_column": "key"}, "must have a column 'key'"),
        ({"a": [[1.0] * D] * 20}, {"bias_column": "b"}, "bias must have a column 'b'"),
        ({"a": [[1.0] * D] * 20, "g": ["x"] * 20}, {"group_column": "g"}, "integers in column 'g', got string"),
        ({"a": [[1.0] * D] * 19 + [None]}, {}, "corpus must have no null rows, got one in row 19"),
        ({"a": [[1.0] * D] * 19 + [[None] * D]}, {}, "corpus must have no null values, got one in row 19"),
        ({"a": [[1.0] * D] * 18 + [[1.0]] * 2}, {}, "12 values in each row as in the first, got 1 in row 18"),
        ({"a": [[1.0] * D] * 2, "id": ["x", None]}, {}, "corpus's id column must have no null rows, got one in row 1"),
        ({"a": [[1.0] * D] * 2, "b": [None, 1.0]}, {"bias_column": "b"}, "bias must have no null rows.* row 0"),
        ({"a": [[1.0] * D] * 19 + [[1e39] * D]}, {}, "corpus .*finite.* 19"),
    ],
)  # fmt: skip
def test_wrong_parquet(tmp_path, data, columns, options, match):
    pq.write_table(pa.table(columns), tmp_path / "bad.parquet", row_group_size=8)
    message = check_refused(tmp_path, ValueError, f"^select: .*{match}", corpus=tmp_path / "bad.parquet", **options)
    assert "bad.parquet" in message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_row_of_the_corpus_is_named(tmp_path, data, value):
    data["corpus"][[123, 200], 5] = value
    np.save(tmp_path / "bad.npy", data["corpus"])
    check_refused(tmp_path, ValueError, r"corpus.*bad\.npy.* 123\b", corpus=tmp_path / "bad.npy")


@pytest.mark.parametrize("with_candidates", [False, True])
def test_bad_row_of_the_queries_is_named(tmp_path, data, with_candidates):
    data["queries"][[207, 220], 5] = np.nan
    np.save(tmp_path / "bad.npy", data["queries"])
    options = files(tmp_path, "candidates") if with_candidates else {}
    check_refused(
        tmp_path, ValueError, r"queries must be finite, got NaN or inf in row 207 of .*bad\.npy",
        queries=tmp_path / "bad.npy", chunk_size=20, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ([1.0], "got 1 in row 207"),
        (None, "null rows, got one in row 207"),
        ([None] * D, "null values, got one in row 207"),
        ([float("nan")] * D, "got NaN or inf in row 207"),
    ],
)
def test_bad_row_of_parquet_queries_is_named(tmp_path, data, bad, match):
    rows = data["queries"].tolist()
    rows[207] = bad
    pq.write_table(pa.table({"v": rows}), tmp_path / "bad.parquet")
    check_refused(tmp_path, ValueError, match, queries=tmp_path / "bad.parquet", chunk_size=20)


def test_bad_bias_is_named(tmp_path, data):
    data["bias"][17] = np.inf
    np.save(tmp_path / "bad.npy", data["bias"])
    check_refused(tmp_path, ValueError, r"bias.* 17\b", bias=tmp_path / "bad.npy")


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
@pytest.mark.parametrize(
    ("row", "match"),
    [
        ([0, N], "candidates must be -1 or rows of the corpus, below N = 300, got 300 in row 207 of"),
        ([0, -2], "candidates must be -1 or rows of the corpus, below N = 300, got -2 in row 207 of"),
        ([4, 4], "candidates must not repeat an id within a query, got 4 twice in row 207 of"),
    ],
)
def test_bad_candidates_are_named(tmp_path, data, suffix, row, match):
    data["candidates"][207] = np.arange(40) + 10
    data["candidates"][207, [3, 9]] = row
    if suffix == "npy":
        np.save(tmp_path / "bad.npy", data["candidates"])
    else:
        pq.write_table(pa.table({"rows": data["candidates"].tolist()}), tmp_path / "bad.parquet")
    check_refused(tmp_path, ValueError, match, candidates=tmp_path / f"bad.{suffix}", chunk_size=20)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k": 0}, r"\bk must .*, got 0"),
        ({"lambda_d": 1.5}, r"lambda_d must .*, got 1\.5"),
        ({"lambda_b": -0.1}, r"lambda_b must .*, got -0\.1"),
        ({"lambda_d": float("nan")}, "lambda_d must .*, got nan"),
        ({"pool": 0}, "pool must .*, got 0"),
        ({"pool": "most"}, "pool must be a number or 'all', got 'most'"),
        ({"method": "topk"}, "method must .*topk"),
        ({"metric": "l2"}, "metric must .*l2"),
        ({"dtype": "int4"}, "dtype must .*int4"),
        ({"backend": "abacus"}, "backend.*abacus"),
        ({"num_threads": 0}, "num_threads must .*, got 0"),
        ({"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ({"shard_size": 0}, "shard_size must be at least 1, got 0"),
        ({"max_per_group": 2}, "max_per_group must come with groups"),
        ({"candidate_column": "rows"}, "candidate_column must come with candidates"),
        ({"id_column": "id"}, r"must not be a \.npy file to have a column 'id'"),
        ({"bias_column": "b"}, "bias must be a file of its own where the vectors are .npy, got column 'b'"),
        ({"method": "vrsd", "lambda_d": 0.5}, "lambda_d must be left out with method 'vrsd'"),
        ({"method": "vrsd", "lambda_b": 0.5}, "lambda_b must be left out with method 'vrsd'"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_option(tmp_path, data, monkeypatch, options, match):
    monkeypatch.setattr(job, "_run", None)  # refused before the folder is looked at
    check_refused(tmp_path, ValueError, match, **options)


def test_options_without_effect_are_refused(tmp_path, data):
    for options, match in (
        ({"pool": 10, **files(tmp_path, "candidates")}, "pool must be left out when candidates are given, got 10"),
        ({"method": "vrsd", **files(tmp_path, "bias")}, "bias must be left out with method 'vrsd'"),
        ({"bias_column": "b", **files(tmp_path, "bias")}, "bias must be a file or a column"),
        (files(tmp_path, "query_groups"), "query_groups must come with groups"),
    ):
        check_refused(tmp_path, ValueError, match, **options)


# --- memory ------------------------------------------------------------------------------------------------------


PEAK = r"""
import re, sys
from ragsys_kernels import offline

offline.select(corpus="corpus.npy", queries=sys.argv[1], candidates=sys.argv[2], out=sys.argv[3], k=2, num_threads=1)
# Not getrusage: its peak begins with the memory of the process that started this one.
print(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read()).group(1))
"""


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_memory_does_not_grow_with_the_queries(tmp_path, suffix):
    """100,000 more queries, 100 MB more of input, may not add 30 MB; one row group, the hardest case."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "corpus.npy", rng.standard_normal((100, 256)).astype(np.float32))
    peak = {}
    for rows in (20_000, 120_000):
        queries = rng.standard_normal((rows, 256), np.float32)
        candidates = np.broadcast_to(np.arange(8), (rows, 8))
        if suffix == "npy":
            np.save(tmp_path / "queries.npy", queries)
            np.save(tmp_path / "candidates.npy", candidates)
        else:
            pq.write_table(pa.table({"v": vector_lists(queries)}), tmp_path / "queries.parquet", row_group_size=rows)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(candidates.ravel()), 8)
            pq.write_table(pa.table({"c": lists}), tmp_path / "candidates.parquet", row_group_size=rows)
        run = subprocess.run(
            [sys.executable, "-c", PEAK, f"queries.{suffix}", f"candidates.{suffix}", f"out{rows}"],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        peak[rows] = int(run.stdout) / 1024
    assert peak[120_000] - peak[20_000] < 30, f"peak memory in MB by number of queries: {peak}"


def test_library_import_does_not_import_the_job():
    code = "import sys, ragsys_kernels; print([name for name in ('pyarrow', 'typer', 'rich') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert run.stdout == "[]\n"
