"""The job over files: which output folders it takes, and which input it refuses."""

import gc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import D, N, Q, check_refused, files, read, snapshot

from ragsys_kernels import offline
from ragsys_kernels.offline import job
from ragsys_kernels.offline._manifest import Manifest
from ragsys_kernels.offline._resume import begun
from ragsys_kernels.offline.sinks import folder_at


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
    assert sorted(path.name for path in tmp_path.glob("out*/*")) == ["_job.json", "part-00000.parquet"]
    assert {len(row) for row in read(tmp_path / "out")["ids"].to_pylist()} == {2}
    assert not list(tmp_path.rglob(".*"))


def test_overwrite_keeps_other_files(tmp_path, data):
    offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out")
    (tmp_path / "out" / "part-notes.parquet").write_text("keep")
    check_refused(tmp_path, FileExistsError, r"part-notes\.parquet", out=tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "part-notes.parquet").unlink()
    (tmp_path / "out.job" / "_job.json").unlink()
    check_refused(tmp_path, FileExistsError, r"shards but no out\.job/_job\.json", out=tmp_path / "out", overwrite=True)


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


def test_file_of_another_kind(tmp_path, data):
    (tmp_path / "bad.xlsx").write_bytes(b"1,2")
    for name in ("corpus", "queries"):
        match = rf"^select: {name} must be a \.npy, \.parquet, .* or \.safetensors file.*bad\.xlsx"
        check_refused(tmp_path, ValueError, match, **{name: tmp_path / "bad.xlsx"})


@pytest.mark.parametrize(
    ("name", "array", "match"),
    [
        ("corpus", np.zeros((3, D), bool), "corpus must be float32 or float16 or float64 or int8 or uint8, got bool"),
        ("queries", np.zeros((Q, D), np.int32), "queries must be float32 or .* or uint8, got int32"),
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
        ({"embedding": [[1], [2]], "id": ["x", "y"]}, {}, "must hold lists of floats in column 'embedding', got list<"),
        ({"a": [[1.0], [2.0]]}, {"vector_column": "c"}, "must have a column 'c'"),
        ({"a": [[1.0], [2.0]], "b": [1, 2]}, {"vector_column": "b"}, "must hold lists of floats in column 'b'"),
        ({"a": [[1.0] * D] * 20}, {"id_column": "key"}, "must have a column 'key'"),
        ({"a": [[1.0] * D] * 20}, {"bias_column": "b"}, "bias must have a column 'b'"),
        ({"a": [[1.0] * D] * 20, "g": [0.5] * 20}, {"group_column": "g"}, "strings in column 'g', got double"),
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


@pytest.mark.parametrize(
    ("name", "value", "more", "match"),
    [
        ("corpus", np.nan, (), r"corpus.*bad\.npy.* 207\b"),
        ("corpus", np.inf, (), r"corpus.*bad\.npy.* 207\b"),
        ("corpus", 1e39, (), r"corpus.*bad\.npy.* 207\b"),
        ("bias", np.inf, (), r"bias.* 207\b"),
        ("queries", np.nan, (), r"queries must be finite, got NaN or inf in row 207 of .*bad\.npy"),
        ("queries", 1e39, (), r"queries must be finite, got NaN or inf in row 207 of .*bad\.npy"),
        ("queries", np.nan, ("candidates",), r"queries must be finite, got NaN or inf in row 207 of .*bad\.npy"),
    ],
)
def test_a_value_that_is_not_finite_is_named(tmp_path, data, name, value, more, match):
    array = data[name].astype(np.float64 if value == 1e39 else np.float32)  # which float32 does not hold
    array[[207, 220]] = value
    np.save(tmp_path / "bad.npy", array)
    bad = {**files(tmp_path, *more), name: tmp_path / "bad.npy"}
    check_refused(tmp_path, ValueError, match, chunk_size=20, **bad)


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
        ({"pool": 0}, "pool must .*, got 0"),
        ({"pool": "most"}, "pool must be a number, 'all' or 'certified', got 'most'"),
        ({"pool": "certified", "method": "vrsd"}, "pool 'certified' must come with method 'mmr', got 'vrsd'"),
        ({"pool": "certified", "metric": "dot"}, "pool 'certified' must come with metric 'cosine', got 'dot'"),
        ({"pool": "certified", "device": "cuda"}, "pool 'certified' must come without a device, got 'cuda'"),
        ({"method": "topk"}, "method must .*topk"),
        ({"dtype": "int4"}, "dtype must .*int4"),
        ({"backend": "abacus"}, "backend.*abacus"),
        ({"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ({"shard_size": 0}, "shard_size must be at least 1, got 0"),
        ({"shard_size": 2**63}, "shard_size must be a number of 64 bits, got one of 64"),
        ({"chunk_size": 10**30}, "chunk_size must be a number of 64 bits, got one of 100"),
        ({"max_per_group": 2}, "max_per_group must come with groups"),
        ({"budget": 3}, "costs and budget must come together, got a budget of 3 alone"),
        ({"max_similarity": 2}, r"max_similarity must be within \[-1, 1\], got 2"),
        ({"on_error": "ignore"}, "on_error must be one of 'raise', 'skip', got 'ignore'"),
        ({"fingerprint": "none"}, "fingerprint must be one of 'sampled', 'full', got 'none'"),
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
        ({"exact": True, **files(tmp_path, "candidates")}, "exact must be left out when candidates are given"),
        ({"method": "vrsd", **files(tmp_path, "bias")}, "bias must be left out with method 'vrsd'"),
        ({"bias_column": "b", **files(tmp_path, "bias")}, "bias must be a file or a column"),
        (files(tmp_path, "query_groups"), "query_groups must come with groups"),
        ({"costs": tmp_path / "bias.npy"}, "costs and budget must come together, got costs alone"),
    ):
        check_refused(tmp_path, ValueError, match, **options)


# --- what must cost no earlier result ------------------------------------------------------------------------------


def test_numbers_of_numpy_are_those_of_python(tmp_path, data):
    paths = files(tmp_path, "corpus", "queries")
    options = {"k": 3, "pool": 20, "lambda_d": 0.5, "lambda_b": 0.9, "shard_size": 100, "chunk_size": 60}
    offline.select(**paths, out=tmp_path / "out", **options)
    expected = snapshot(tmp_path / "out")
    given = {name: np.asarray(value, np.float32 if value == 0.5 else None)[()] for name, value in options.items()}
    assert isinstance(given["k"], np.int64)
    assert isinstance(given["lambda_d"], np.float32)
    offline.select(**paths, out=tmp_path / "out", **given, overwrite=True)
    assert snapshot(tmp_path / "out") == expected
    assert offline.select(**paths, out=tmp_path / "out", **{**given, "density": np.False_}).selected == 0


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ({"k": [3]}, "list"),
        ({"k": np.array([3])}, "ndarray"),
        ({"budget": [3.0]}, "list"),
        ({"max_per_group": [3]}, "list"),
        ({"pool": {5}}, "set"),
        ({"dtype": np.dtype("float16")}, r"dtype\('float16'\)"),
        ({"dtype": np.float16}, "<class 'numpy.float16'>"),
    ],
    ids=str,
)
def test_what_is_no_plain_value_is_refused(tmp_path, data, options, got):
    (name,) = options
    what = {
        "k": "an integer",
        "budget": "a number",
        "max_per_group": "an integer or a mapping of groups to integers",
    }.get(name, "a number or a str")
    match = f"^select: {name} must be one value for all queries, {what}, got {got}$"
    check_refused(tmp_path, TypeError, match, **options)


def test_a_manifest_that_cannot_be_written_removes_nothing(tmp_path, data):
    offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out", shard_size=50)
    folder, before = folder_at(tmp_path / "out").of_job(), snapshot(tmp_path / "out")
    found = Manifest.read(folder)
    changed = Manifest({**found.description, "version": object()}, False, {})
    with pytest.raises(TypeError, match="not JSON serializable"), begun(changed, folder, new=True):
        pass
    assert snapshot(tmp_path / "out") == before


@pytest.mark.parametrize("place", ["path", "link", "url"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_out_is_kept_apart_from_the_inputs(tmp_path, data, place, overwrite):
    (tmp_path / "made").mkdir()
    paths = files(tmp_path, "corpus", "queries")
    offline.select(**paths, out=tmp_path / "first", shard_size=100)
    (tmp_path / "link").symlink_to(tmp_path / "first")
    first = {"path": tmp_path / "first", "link": tmp_path / "link", "url": f"file://{tmp_path}/first/"}[place]
    inside = f"{first}/new" if place == "url" else first / "new"
    shard = tmp_path / "first" / "part-00000.parquet"
    for given, out in ((first, first), (first, inside), (shard, first), (tmp_path / "first", first)):
        check_refused(
            tmp_path, ValueError, "select: out must not be an input, lie in one or hold one, got .* candidates ",
            candidates=given, candidate_column="ids", out=out, overwrite=overwrite,
        )  # fmt: skip
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "rows.parquet").symlink_to(shard)
    linked = {"link": tmp_path / "linked" / "rows.parquet", "url": f"file://{tmp_path}/linked"}
    check_refused(
        tmp_path, ValueError, "select: out must not be an input, lie in one or hold one, got .* candidates .*linked",
        candidates=linked.get(place, tmp_path / "linked"), candidate_column="ids", out=first, overwrite=overwrite,
    )  # fmt: skip
    np.save(tmp_path / "first-rows.npy", data["candidates"])  # a name that only begins like the folder's
    offline.select(**paths, candidates=tmp_path / "first-rows.npy", out=tmp_path / "first", overwrite=True)


def test_out_behind_a_url_is_kept_apart_from_the_inputs(tmp_path, data):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe_file("/jobs/first/a.npy", (tmp_path / "candidates.npy").read_bytes())
    match = "select: out must not be an input, lie in one or hold one, got memory://jobs/first"
    for candidates, out in (("", ""), ("", "/two"), ("/", ""), ("/a.npy", "")):
        given = {"candidates": f"memory://jobs/first{candidates}", "out": f"memory://jobs/first{out}"}
        check_refused(tmp_path, ValueError, match, **given)
    check_refused(tmp_path, FileNotFoundError, "", candidates="memory://jobs/first.npy", out="memory://jobs/first")
    assert memory.find("/jobs") == ["/jobs/first/a.npy"]
