"""Bad input files of a job: one error that names file and row, or rows that are noted and left empty."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_files import (
    D,
    N,
    PaddedLists,
    table_of,
    write_arrow,
    write_dataset,
    write_feather,
    write_parquet,
    write_parquet_folder,
    write_stream,
)

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline import sources

# --- bad rows ----------------------------------------------------------------------------------------------------


@pytest.fixture
def spoilt(tmp_path, arrays):
    """A folder of two files; in the second, rows 60 to 199, some rows cannot be used."""
    rows = table_of(arrays, fixed=False).to_pylist()
    rows[70]["embedding"] = None
    rows[80]["embedding"] = [1.0] * (D - 1)
    rows[90]["embedding"] = [1.0] * (D - 1) + [None]
    rows[75]["candidates"] = None
    rows[85]["candidates"] = [3, None]
    rows[95]["id"] = None
    rows[99]["groups"] = None
    table = pa.Table.from_pylist(rows, table_of(arrays, fixed=False).schema)
    folder = tmp_path / "spoilt"
    folder.mkdir()
    pq.write_table(table[:60], folder / "a.parquet")
    pq.write_table(table[60:], folder / "b.parquet", row_group_size=50)
    return folder


def test_bad_rows_are_named_with_their_file(spoilt):
    second = spoilt / "b.parquet"
    for column, first, match in (
        (sources.vectors(spoilt, "queries"), 0, f"queries must have no null rows, got one in row 10 of {second}"),
        (
            sources.vectors(spoilt, "queries"),
            71,
            f"must have 5 values in .* as in the first, got 4 in row 20 of {second}",
        ),
        (sources.vectors(spoilt, "queries"), 81, f"queries must have no null values, got one in row 30 of {second}"),
        (PaddedLists(spoilt), 0, f"candidates must have no null rows, got one in row 15 of {second}"),
        (PaddedLists(spoilt), 76, f"candidates must have no null values, got one in row 25 of {second}"),
        (
            sources.ids(spoilt, "queries"),
            0,
            f"queries's id column must have no null rows, got one in row 35 of {second}",
        ),
        (sources.numbers("query_groups", int, None, "groups", spoilt), 0, f"got one in row 39 of {second}"),
    ):
        with pytest.raises(ValueError, match=match):
            list(column.chunks(8, first))
    assert column.where(59) == f"row 59 of {spoilt / 'a.parquet'}"
    assert column.where(60) == f"row 0 of {second}"


def test_numbers_that_int64_does_not_hold_are_named(tmp_path):
    large = 2**63
    table = pa.table(
        {
            "candidates": pa.array([[1, 2], [3, large], [4]], pa.list_(pa.uint64())),
            "groups": pa.array([large, 1, 2], pa.uint64()),
        }
    )
    path = tmp_path / "large.parquet"
    pq.write_table(table, path)
    for column, empty, row, rule in (
        (PaddedLists(path), [[1, 2], [-1, -1], [4, -1]], 1, "be row numbers, got one above 2^63 - 1"),
        (sources.numbers("query_groups", int, None, "groups", path), [0, 1, 2], 0, f"be at most 2.63 - 1, got {large}"),
    ):
        with pytest.raises(ValueError, match=f"must {rule.replace('^', '.')} in row {row} of {path}"):
            list(column.chunks(8))
        bad = {}
        found = np.concatenate(list(column.chunks(8, 0, None, bad)))
        assert list(bad) == [row]
        unspoilt = [i for i in range(3) if i != row]
        np.testing.assert_array_equal(found[unspoilt], np.array(empty)[unspoilt])


@pytest.mark.parametrize("size", [1, 8, 500])
def test_bad_rows_are_noted(spoilt, arrays, size):
    bad = {}
    found = np.concatenate(list(sources.vectors(spoilt, "queries").chunks(size, 5, None, bad)))
    expected = arrays["embedding"].copy()
    expected[[70, 80, 90]] = 0
    np.testing.assert_array_equal(found, expected[5:])
    assert bad == {
        70: "queries must have no null rows, got one",
        80: "queries must have 5 values in each row as in the first, got 4",
        90: "queries must have no null values, got one",
    }
    bad = {}
    lists = [row for chunk in PaddedLists(spoilt).chunks(size, 0, None, bad) for row in chunk]
    assert sorted(bad) == [75, 85]
    for row, (given, expected) in enumerate(zip(lists, arrays["candidates"], strict=True)):
        assert [i for i in given if i >= 0] == ([] if row in bad else expected)
    bad = {}
    ids = [value for chunk in sources.ids(spoilt, "queries").chunks(size, 0, 100, bad) for value in chunk.to_pylist()]
    assert ids == [*arrays["id"][:95], None, *arrays["id"][96:100]]
    assert sorted(bad) == [95]
    bad = {}
    groups = np.concatenate(
        list(sources.numbers("query_groups", int, None, "groups", spoilt).chunks(size, 0, None, bad))
    )
    np.testing.assert_array_equal(np.delete(groups, 99), np.delete(arrays["groups"], 99))
    assert groups[99] == 0
    assert list(bad) == [99]


def test_length_of_the_first_row(tmp_path, arrays):
    lists = [None, [1.0], *arrays["embedding"].tolist()]
    pq.write_table(pa.table({"v": lists}), tmp_path / "x.parquet")
    assert sources.vectors(tmp_path / "x.parquet", "queries").dims == 1
    column, bad = sources.vectors(tmp_path / "x.parquet", "queries", dims=D), {}
    np.testing.assert_array_equal(np.concatenate(list(column.chunks(9, bad=bad)))[2:], arrays["embedding"])
    assert bad == {0: "queries must have no null rows, got one", 1: "queries must have 5 values in each row, got 1"}


@pytest.mark.parametrize("write", [write_parquet, write_arrow], ids=["parquet", "arrow"])
def test_part_that_cannot_be_read(tmp_path, arrays, write):
    """A damaged row group or batch costs its rows, not the job."""
    path, source, first = write(tmp_path, arrays), None, 0
    content = bytearray(path.read_bytes())
    if path.suffix == ".parquet":
        column = pq.read_metadata(path).row_group(4).column(0)
        begin = column.dictionary_page_offset or column.data_page_offset
        content[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
        low, high = 17 * 4, 17 * 5
        # The second file of a folder.
        (tmp_path / "folder").mkdir()
        pq.write_table(table_of(arrays)[:10], tmp_path / "folder" / "a.parquet")
        path, source, first = path.rename(tmp_path / "folder" / "x.parquet"), tmp_path / "folder", 10
    else:
        with pa.memory_map(str(path)) as whole:
            offset = content.find(pa.ipc.open_file(whole).get_batch(3).column("embedding").buffers()[2].to_pybytes())
        begin = content.rfind(b"\xff\xff\xff\xff", 0, offset)  # the mark before a message
        content[begin + 8 : begin + 72] = b"\xff" * 64
        low, high = 23 * 3, 23 * 4
    column = sources.vectors(source or path, "queries")  # opened before: headers are checked then
    before = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(before, before))  # damage of a disk changes no time
    with pytest.raises(
        ValueError, match=f"queries must be a readable .* file, got .*x.* rows {low} to {high - 1} cannot"
    ):
        list(column.chunks(10))
    bad = {}
    found = np.concatenate(list(column.chunks(10, 3, 150, bad)))
    expected = np.concatenate([arrays["embedding"][:first], arrays["embedding"]])
    expected[first + low : first + high] = 0
    np.testing.assert_array_equal(found, expected[3:150])
    assert list(bad) == list(range(first + low, first + high))
    assert len(set(bad.values())) == 1
    assert f"rows {low} to {high - 1} cannot be read" in bad[first + low]


# --- bad files ---------------------------------------------------------------------------------------------------


def cut(path, bytes_left=-20):
    path.write_bytes(path.read_bytes()[:bytes_left])
    return path


def test_damaged_files(tmp_path, arrays):
    numpy_files = pytest.importorskip("safetensors.numpy")
    numpy_files.save_file({"v": arrays["embedding"]}, tmp_path / "x.safetensors")
    stream = write_stream(tmp_path, arrays)
    shutil.copy(stream, tmp_path / "unfinished.ipc")
    (tmp_path / "empty.arrow").write_bytes(b"")
    for path, match in (
        (cut(write_arrow(tmp_path, arrays)), "a readable Arrow file"),
        (cut(stream), "a readable Arrow file"),
        (cut(tmp_path / "unfinished.ipc", -8), "ends without the mark of its end"),
        (tmp_path / "empty.arrow", "a readable Arrow file"),
        (cut(write_feather(tmp_path, arrays)), "a readable Arrow file"),
        (cut(write_parquet(tmp_path, arrays)), "a readable Parquet file"),
        (cut(tmp_path / "x.safetensors"), "a readable safetensors file"),
    ):
        with pytest.raises(ValueError, match=f"^select: corpus must be .*{path.name}") as caught:
            sources.vectors(path, "corpus")
        assert match in str(caught.value)
        assert "\n" not in str(caught.value)


def test_objects_in_npy_are_not_unpickled(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}, []], object), allow_pickle=True)
    with pytest.raises(ValueError, match="holds Python objects"):
        sources.vectors(tmp_path / "x.npy", "corpus")


def test_files_of_a_folder_have_to_agree(tmp_path, arrays):
    folder = write_parquet_folder(tmp_path, arrays)
    pq.write_table(pa.table({"embedding": [[1, 2, 3]], "id": ["x"]}), folder / "part-99.parquet")
    with pytest.raises(ValueError, match=r"the same column 'embedding' in all files, got list.*part-99.*part-00"):
        sources.vectors(folder, "corpus")
    with pytest.raises(ValueError, match=r"the same column 'groups' in all files, got none in .*part-99"):
        sources.numbers("groups", int, None, "groups", folder)
    (folder / "part-99.parquet").rename(folder / "notes.txt")
    with pytest.raises(ValueError, match=r"a folder of Parquet files and of nothing else, got notes\.txt"):
        sources.vectors(folder, "corpus")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="a folder of Parquet files and of nothing else, got no file"):
        sources.vectors(tmp_path / "empty", "corpus")
    saved = write_dataset(tmp_path, arrays)
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps({**state, "_indices_data_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(ValueError, match=r"saved without indices, got .*saved; call flatten_indices\(\)"):
        sources.vectors(saved, "corpus")


def test_dictionaries_of_a_stream(tmp_path):
    table = pa.table({"v": [[1.0]], "id": pa.array(["x"]).dictionary_encode()})
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match="a stream with dictionaries cannot be read from its middle; write an Arrow"):
        sources.vectors(tmp_path / "x.arrow", "corpus")


@pytest.mark.parametrize(
    ("tensors", "column", "match"),
    [
        (
            {"a": np.zeros(3, np.float32)},
            None,
            r"must have one tensor of float32 or .* of rank 2, or it be named, got \['a'\]",
        ),
        (
            {"a": np.zeros((3, 2), np.float32), "b": np.zeros((3, 2), np.float16)},
            None,
            r"must .* named, got \['a', 'b'\]",
        ),
        ({"a": np.zeros((3, 2), np.float32)}, "c", r"must have a tensor 'c', got \['a'\]"),
        ({"a": np.zeros((3, 2), np.int32)}, "a", r"must hold .* of rank 2 in tensor 'a', got int32 \(3, 2\)"),
    ],
)
def test_tensor_that_cannot_be_found(tmp_path, tensors, column, match):
    pytest.importorskip("safetensors.numpy").save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=f"^select: corpus {match}.*safetensors"):
        sources.vectors(tmp_path / "x.safetensors", "corpus", column)


def test_usual_names_win(tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    save_file({"a": np.zeros((3, 2), np.float32), "vectors": np.ones((4, 2), np.float32)}, tmp_path / "x.safetensors")
    assert sources.vectors(tmp_path / "x.safetensors", "corpus").rows == 4


@pytest.mark.parametrize("rows", [N - 1, N + 1])
@pytest.mark.parametrize("argument", ["corpus", "queries"])
def test_tensor_of_ids_has_one_for_each_vector(tmp_path, arrays, argument, rows):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    np.save(tmp_path / "x.npy", arrays["embedding"])
    save_file({"v": arrays["embedding"], "id": np.arange(rows)}, tmp_path / "x.safetensors")
    files = {"corpus": tmp_path / "x.npy", "queries": tmp_path / "x.npy", argument: tmp_path / "x.safetensors"}
    match = f"_ids must have one row for each of the {N} rows of {argument}, got {rows} in .*x.safetensors"
    with pytest.raises(ValueError, match=match):
        offline.select(**files, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("module", "url", "line"),
    [
        ("fsspec", "memory://x/y.npy", r"needs fsspec: pip install '.+\[fsspec\]'"),
        ("gcsfs", "gs://x/y.npy", "needs gcsfs: pip install gcsfs"),
        ("safetensors", "x.safetensors", r"needs safetensors: pip install '.+\[safetensors\]'"),
    ],
)
def test_missing_packages(tmp_path, monkeypatch, module, url, line):
    monkeypatch.chdir(tmp_path)
    Path("x.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=f"^select: corpus {url} {line}$"):
        sources.vectors(url, "corpus")


def test_urls(tmp_path, arrays):
    pytest.importorskip("fsspec")
    np.save(tmp_path / "x.npy", arrays["embedding"])
    assert sources.vectors(f"file://{tmp_path}/x.npy", "corpus").rows == N
    assert isinstance(sources.vectors(f"file://{tmp_path}/x.npy", "corpus").whole(), np.memmap)
    with pytest.raises(ValueError, match=r"corpus must be a str where it is a URL, got Path\('s3:/bucket/x.npy'\)"):
        sources.vectors(Path("s3://bucket/x.npy"), "corpus")
    with pytest.raises(ValueError, match=r"must be a URL that fsspec opens, got nowhere://x.npy: Protocol not known"):
        sources.vectors("nowhere://x.npy", "corpus")
    with pytest.raises(ValueError, match="rows must be from 0 to 200, got 3 to 201"):
        list(sources.vectors(tmp_path / "x.npy", "corpus").chunks(5, 3, 201))


def test_url_of_the_result_that_cannot_be_used(tmp_path, arrays, monkeypatch):
    memory = pytest.importorskip("fsspec.implementations.memory")

    class NoCredentialsError(Exception):
        """As botocore's, which is no OSError."""

    def fail(*_, **__):
        raise NoCredentialsError("Unable to locate credentials")

    np.save(tmp_path / "x.npy", arrays["embedding"])
    job = {"corpus": tmp_path / "x.npy", "queries": tmp_path / "x.npy", "out": "memory://unusable"}
    assert offline.select(**job, shard_size=50).shards == 4
    match = f"^select: out must be a URL that can be used, got {job['out']}: Unable to locate credentials$"
    for broken in ("ls", "info"):  # with the second alone the job would be taken for a new one, and its shards removed
        with monkeypatch.context() as patch:
            patch.setattr(memory.MemoryFileSystem, broken, fail)
            with pytest.raises(OSError, match=match):
                offline.select(**job, shard_size=50)
    with monkeypatch.context() as patch:
        patch.setattr(memory.MemoryFileSystem, "info", fail)
        with pytest.raises(OSError, match=match):
            offline.verify(job["out"])
    assert offline.verify(job["out"]) == []


def test_index_that_does_not_fit(tmp_path, arrays, monkeypatch):
    faiss = pytest.importorskip("faiss")
    np.save(tmp_path / "x.npy", arrays["embedding"])
    files = {"corpus": tmp_path / "x.npy", "queries": tmp_path / "x.npy", "out": tmp_path / "out"}
    other = rk.Corpus(arrays["embedding"][:-1]).to_faiss()
    faiss.write_index(other, str(tmp_path / "other.index"))
    (tmp_path / "bad.index").write_bytes(b"not an index")
    for kind, index, options, match in (
        (FileNotFoundError, "no.index", {}, "index must be an existing file, or a folder of such, got .*no.index"),
        (ValueError, "bad.index", {}, "index must be a readable FAISS index file, got .*bad.index: "),
        (
            ValueError,
            "other.index",
            {},
            "index must be one of the corpus, got .* the corpus's N = 200 rows, got",
        ),
        (ValueError, "other.index", {"pool": "all"}, "index must come with a pool"),
        (ValueError, "other.index", {"candidates": tmp_path / "c.npy"}, "index must be left out when candidates"),
    ):
        np.save(tmp_path / "c.npy", np.zeros((N, 1), np.int64))
        with pytest.raises(kind, match=f"^select: {match}") as caught:
            offline.select(**files, index=tmp_path / index, **options)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ModuleNotFoundError, match=r"^select needs faiss: pip install '.+\[faiss\]'"):
        offline.select(**files, index=tmp_path / "other.index")
