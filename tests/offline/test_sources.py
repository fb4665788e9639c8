"""Columns of input files: every format gives the same rows, from any row on, and no more is read than that."""

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_files import (
    TABLES,
    D,
    N,
    PaddedLists,
    padded_lists,
    to_memory,
    write_arrow,
    write_dataset,
    write_parquet,
    write_parquet_folder,
)

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline import sources

SPANS = [(1, 0, 3), (7, 0, N), (64, 5, 133), (1000, 61, N), (10, 89, 92), (10, N, N)]


def check_column(column, expected):
    assert column.rows == len(expected)
    for size, start, stop in SPANS:
        chunks = list(column.chunks(size, start, stop))
        assert [len(chunk) for chunk in chunks] == [min(size, stop - first) for first in range(start, stop, size)]
        rows = [row for chunk in chunks for row in (chunk.to_pylist() if hasattr(chunk, "to_pylist") else chunk)]
        for row, value in zip(rows, expected[start:stop], strict=True):
            np.testing.assert_array_equal(row, value)
    whole = column.whole()
    np.testing.assert_array_equal(whole.to_pylist() if hasattr(whole, "to_pylist") else whole, expected)
    assert [len(chunk) for chunk in column.chunks(N - 1)] == [N - 1, 1]


# --- the same rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["local", "url"])
@pytest.mark.parametrize("write", TABLES, ids=lambda write: write.__name__.removeprefix("write_"))
def test_tables(tmp_path, arrays, write, place):
    path = write(tmp_path, arrays)
    if place == "url":
        path = to_memory(path)
    vectors = sources.vectors(path, "corpus")
    assert vectors.dims == D
    assert vectors.path == path
    check_column(vectors, arrays["embedding"])
    assert vectors.whole().dtype == np.float32
    check_column(sources.ids(path, "corpus"), arrays["id"])
    check_column(sources.numbers("bias", float, None, "bias", path), arrays["bias"])
    check_column(sources.numbers("groups", int, path, None, "unused.npy"), arrays["groups"])
    lists = PaddedLists(path)
    found = np.concatenate([np.pad(c, ((0, 0), (0, 9 - c.shape[1])), constant_values=-1) for c in lists.chunks(50, 30)])
    np.testing.assert_array_equal(found, padded_lists(arrays["candidates"])[30:])


@pytest.mark.parametrize("place", ["local", "url"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "fortran", ">f4", ">f2", ">f8"])
def test_npy(tmp_path, arrays, place, dtype):
    order = "F" if dtype == "fortran" else "C"
    np.save(tmp_path / "x.npy", np.array(arrays["embedding"], "float32" if order == "F" else dtype, order=order))
    np.save(tmp_path / "groups.npy", arrays["groups"])
    path, groups = tmp_path / "x.npy", tmp_path / "groups.npy"
    if place == "url":
        path, groups = to_memory(path), to_memory(groups)
        if order == "F":
            with pytest.raises(ValueError, match="corpus must be in C order to be read from a URL"):
                sources.vectors(path, "corpus")
            return
    column = sources.vectors(path, "corpus")
    check_column(column, arrays["embedding"])
    assert next(column.chunks(1)).dtype == ("float16" if dtype in ("float16", ">f2") else "float32")
    np.testing.assert_array_equal(rk.Corpus(column.embeddings(), metric="dot").data, arrays["embedding"])
    check_column(sources.numbers("groups", int, groups, None, path), arrays["groups"])
    assert sources.ids(path, "corpus") is None


@pytest.mark.parametrize("place", ["local", "url"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_safetensors(tmp_path, arrays, place, dtype):
    numpy_files = pytest.importorskip("safetensors.numpy")
    stored = arrays["embedding"]
    if dtype == "bfloat16":
        stored = stored.astype(pytest.importorskip("ml_dtypes").bfloat16)
    numbers = {"bias": arrays["bias"], "groups": arrays["groups"], "id": np.arange(N) * 3}
    tensors = {"v": stored.astype(dtype) if dtype != "bfloat16" else stored, **numbers}
    tensors["candidates"] = padded_lists(arrays["candidates"])
    numpy_files.save_file(tensors, tmp_path / "x.safetensors")
    path = tmp_path / "x.safetensors" if place == "local" else to_memory(tmp_path / "x.safetensors")
    vectors = sources.vectors(path, "corpus")
    assert vectors.dims == D
    check_column(vectors, arrays["embedding"])
    assert next(vectors.chunks(2)).dtype == ("float16" if dtype == "float16" else "float32")
    assert vectors.whole().dtype.name == (dtype if dtype != "float64" else "float32")
    check_column(sources.ids(path, "corpus"), list(range(0, 3 * N, 3)))
    check_column(sources.numbers("bias", float, None, "bias", path), arrays["bias"])
    check_column(sources.numbers("groups", int, None, "groups", path), arrays["groups"])
    check_column(PaddedLists(path), tensors["candidates"])


def test_parquet_of_float16(tmp_path, arrays):
    half = pa.FixedSizeListArray.from_arrays(pa.array(arrays["embedding"].astype(np.float16).ravel()), D)
    pq.write_table(pa.table({"v": half}), tmp_path / "x.parquet", row_group_size=17)
    check_column(sources.vectors(tmp_path / "x.parquet", "corpus"), arrays["embedding"])


def test_saved_data_set(tmp_path, arrays):
    datasets = pytest.importorskip("datasets")
    rows = {"embedding": arrays["embedding"].tolist(), "id": arrays["id"], "kind": arrays["groups"]}
    features = datasets.Features(
        {
            "embedding": datasets.Sequence(datasets.Value("float32"), length=D),
            "id": datasets.Value("string"),
            "kind": datasets.Value("int64"),
        }
    )
    saved = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": saved, "test": saved.select(range(50, 150, 2))}).save_to_disk(
        tmp_path / "saved", num_shards={"train": 3, "test": 1}
    )
    check_column(sources.vectors(tmp_path / "saved" / "train", "corpus"), arrays["embedding"])
    check_column(sources.numbers("groups", int, None, "kind", tmp_path / "saved" / "train"), arrays["groups"])
    assert sources.ids(tmp_path / "saved" / "test", "queries").whole().to_pylist() == arrays["id"][50:150:2]
    with pytest.raises(
        ValueError, match=r"one split of a saved DatasetDict, got .*saved; name one: .*saved/test.*train"
    ):
        sources.vectors(tmp_path / "saved", "corpus")


@pytest.mark.slow
def test_s3(tmp_path, arrays, monkeypatch):
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        files = pytest.importorskip("s3fs").S3FileSystem(skip_instance_cache=True)
        files.mkdir("bucket")
        np.save(tmp_path / "x.npy", arrays["embedding"])
        for write in (write_parquet_folder, write_dataset):
            path = write(tmp_path, arrays)
            files.put(str(path), f"bucket/{path.name}", recursive=True)
        files.put(str(tmp_path / "x.npy"), "bucket/x.npy")
        for url in ("s3://bucket/x.npy", "s3://bucket/parquet", "s3://bucket/saved"):
            column = sources.vectors(url, "queries")
            np.testing.assert_array_equal(column.whole(), arrays["embedding"])
            np.testing.assert_array_equal(next(column.chunks(50, 100)), arrays["embedding"][100:150])
            assert all("etag" in file for file in column.identity()["files"])
        offline.select(corpus="s3://bucket/x.npy", queries="s3://bucket/x.npy", out="s3://bucket/out", k=2, pool=5)
        assert offline.verify("s3://bucket/out") == []
        assert offline.status("s3://bucket/out").done == N
        offline.build_corpus(tmp_path / "x.npy", tmp_path / "corpus", rows_per_segment=50)
        files.put(str(tmp_path / "corpus"), "bucket/corpus", recursive=True)
        np.testing.assert_array_equal(
            rk.Corpus.load("s3://bucket/corpus").data, rk.Corpus.load(tmp_path / "corpus").data
        )
        for out, options in (("near", {"corpus": tmp_path / "corpus"}), ("far", {"corpus": "s3://bucket/corpus"})):
            options |= {"memory": 20_000} if out == "far" else {}
            offline.select(queries=tmp_path / "x.npy", out=tmp_path / out, k=2, pool=5, **options)
        assert pq.read_table(tmp_path / "far").equals(pq.read_table(tmp_path / "near"))
        with pytest.raises(FileNotFoundError, match=r"queries must be an existing file, got s3://bucket/no.npy"):
            sources.vectors("s3://bucket/no.npy", "queries")
        # What others change meanwhile is seen, though listings are cached.
        column = sources.vectors("s3://bucket/parquet", "queries")
        before = column.identity()
        files.put(str(tmp_path / "parquet" / "part-02.parquet"), "bucket/parquet/part-03.parquet")
        after = column.identity()
        assert [one == other for one, other in zip(before["files"], after["files"], strict=True)] == [True] * 3 + [
            False
        ]
        sources.vectors("s3://bucket/parquet", "queries")
        files.put(str(tmp_path / "parquet" / "part-02.parquet"), "bucket/parquet/part-04.parquet")
        assert len(sources.vectors("s3://bucket/parquet", "queries").identity()["files"]) == 5
    finally:
        server.stop()


# --- what is read ------------------------------------------------------------------------------------------------


def test_only_the_row_groups_asked_for_are_read(tmp_path, arrays, monkeypatch):
    path, groups = write_parquet(tmp_path, arrays), []
    read = pq.ParquetFile.iter_batches

    def noted(file, size, row_groups, columns):
        groups.extend(row_groups)
        return read(file, size, row_groups=row_groups, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    list(sources.vectors(path, "corpus").chunks(9, 17 * 5, 17 * 7))
    assert groups == [5, 6]


def test_only_the_range_asked_for_is_fetched(tmp_path, arrays, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    np.save(tmp_path / "x.npy", arrays["embedding"])
    column, ranges = sources.vectors(to_memory(tmp_path / "x.npy"), "corpus"), []
    monkeypatch.setattr(
        fsspec.get_filesystem_class("memory"), "cat_file",
        lambda self, path, start, end: ranges.append((start, end)) or self.store[path].getvalue()[start:end],
    )  # fmt: skip
    np.testing.assert_array_equal(np.concatenate(list(column.chunks(8, 100, 112))), arrays["embedding"][100:112])
    assert ranges == [(128 + 100 * 20, 128 + 108 * 20), (128 + 108 * 20, 128 + 112 * 20)]


PEAK = r"""
import re, sys
from ragsys_kernels.offline import sources

def peak():
    return int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read()).group(1)) // 1024

for path in sys.argv[1:]:
    next(sources.vectors(path, "queries").chunks(1000))
before = peak()
for path in sys.argv[1:]:
    assert sum(len(chunk) for chunk in sources.vectors(path, "queries").chunks(1000)) == 40_000
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """40 MB in one record batch, in a stream of many, in a tensor: not more than a few chunks of each are held."""
    numpy_files = pytest.importorskip("safetensors.numpy")
    vectors = np.random.default_rng(0).standard_normal((40_000, 256), np.float32)
    table = pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 256)})
    paths = [tmp_path / "one.arrow", tmp_path / "many.arrow", tmp_path / "x.safetensors"]
    with pa.OSFile(str(paths[0]), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(paths[1]), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    numpy_files.save_file({"v": vectors}, paths[2])
    run = subprocess.run([sys.executable, "-c", PEAK, *paths], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 20


def test_copies_of_remote_files_are_shared_and_removed(tmp_path, arrays):
    url = to_memory(write_arrow(tmp_path, arrays))

    def copies():
        found = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        return [path for path in found if path.endswith("(deleted)")]

    before = len(copies())
    columns = [sources.vectors(url, "corpus"), sources.ids(url, "corpus")]
    assert len(copies()) == before + 1
    assert len(columns[0].whole()) == N
    del columns
    assert len(copies()) == before


# --- identity ----------------------------------------------------------------------------------------------------


def test_identity(tmp_path, arrays):
    folder = write_parquet_folder(tmp_path, arrays)
    identity = sources.vectors(folder, "corpus").identity()
    assert identity == sources.vectors(folder, "corpus").identity()
    assert identity["column"] == "embedding"
    assert [file["name"] for file in identity["files"]] == [f"part-{part:02d}.parquet" for part in range(4)]
    assert json.loads(json.dumps(identity)) == identity
    os.utime(folder / "part-02.parquet", ns=(0, 5))
    changed = sources.vectors(folder, "corpus").identity()["files"]
    assert changed[2]["mtime_ns"] == 5
    assert [file["sha256"] for file in changed] == [file["sha256"] for file in identity["files"]]


@pytest.mark.parametrize("place", ["local", "url"])
def test_content_is_hashed(tmp_path, place):
    """Samples are the first, middle and last MiB of larger files; full is all."""
    array = np.zeros((1 << 19, 2), np.float32)  # 4 MiB
    hashes = {False: set(), True: set()}
    for row in (None, 0, 1 << 18, (1 << 19) - 1, 1 << 17):
        if row is not None:
            array[row] = 1
        np.save(tmp_path / "x.npy", array)
        path = to_memory(tmp_path / "x.npy") if place == "url" else tmp_path / "x.npy"
        for full in hashes:
            hashes[full].add(sources.vectors(path, "corpus").identity(full)["files"][0]["sha256"])
    assert (len(hashes[False]), len(hashes[True])) == (4, 5)


# --- candidates from a FAISS index -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["local", "url"])
@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat"])
def test_index(tmp_path, arrays, factory, place):
    faiss = pytest.importorskip("faiss")
    np.save(tmp_path / "corpus.npy", arrays["embedding"])
    np.save(tmp_path / "queries.npy", arrays["embedding"][::3] + 0.5)
    np.save(tmp_path / "bias.npy", arrays["bias"])
    corpus = rk.Corpus(arrays["embedding"], bias=arrays["bias"])
    index = corpus.to_faiss(factory)
    faiss.write_index(index, str(tmp_path / "x.index"))
    path = tmp_path / "x.index" if place == "local" else to_memory(tmp_path / "x.index")
    files = {name: tmp_path / f"{name}.npy" for name in ("corpus", "queries", "bias")}
    offline.select(**files, index=path, out=tmp_path / "out", k=4, pool=15, lambda_b=0.8)
    direct = corpus.select(np.load(files["queries"]), 4, pool=15, index=index, lambda_b=0.8)
    assert pq.read_table(tmp_path / "out")["ids"].to_pylist() == direct.indices.tolist()
    if factory != "Flat":  # one cell of four is searched: not the rows of the exact search
        exact = corpus.select(np.load(files["queries"]), 4, pool=15, lambda_b=0.8)
        assert (exact.indices != direct.indices).any()
    # The index is an input of the job like the others.
    faiss.write_index(corpus.to_faiss("HNSW8,Flat"), str(tmp_path / "x.index"))
    with pytest.raises(ValueError, match="index"):
        offline.select(**files, index=tmp_path / "x.index", out=tmp_path / "out", k=4, pool=15, lambda_b=0.8)


# --- results behind a URL ----------------------------------------------------------------------------------------


def test_result_behind_a_url(tmp_path, arrays):
    """The bytes of a local result; a job there is gone on with, refused, begun anew and verified as a local one is."""
    files = pytest.importorskip("fsspec").filesystem("memory")
    np.save(tmp_path / "x.npy", arrays["embedding"])
    job = {"corpus": tmp_path / "x.npy", "queries": tmp_path / "x.npy", "k": 3, "pool": 9, "shard_size": 60}
    offline.select(**job, out=tmp_path / "out")
    out, shards = f"memory://{tmp_path.name}/out", []
    begun = offline.select(**job, out=out, stop=lambda: shards.append(0) or len(shards) > 2)
    assert (begun.done, begun.complete, begun.out) == (120, False, out)
    assert offline.status(out).missing == (range(2, 4),)
    assert "part-00002.parquet to part-00003.parquet are missing" in offline.verify(out)[0]
    with pytest.raises(ValueError, match=r"out must hold a job of the same inputs.* k 3, now 2"):
        offline.select(**{**job, "k": 2}, out=out)
    assert offline.select(**job, out=out).selected == 80
    assert offline.verify(out) == []
    names = sorted(path.rpartition("/")[2] for path in files.ls(out, detail=False))
    assert names == [f"part-{shard:05d}.parquet" for shard in range(4)]
    for folder, name in [*(("out", name) for name in names), ("out.job", "_job.json")]:
        there = files.cat_file(f"memory://{tmp_path.name}/{folder}/{name}")
        assert there == (tmp_path / folder / name).read_bytes()
    files.pipe_file(f"{out}/part-00001.parquet", files.cat_file(f"{out}/part-00001.parquet")[:-5])
    with pytest.warns(UserWarning, match="part-00001.parquet is damaged"):
        assert offline.select(**job, out=out).selected == 60
    assert offline.verify(out) == []
    offline.select(**{**job, "k": 2, "shard_size": 200}, out=out, overwrite=True)
    assert sorted(path.rpartition("/")[2] for path in files.ls(out, detail=False)) == names[:1]
    with pytest.raises(FileExistsError, match="out must be a folder, got the file memory://"):
        offline.select(**job, out=f"{out}.job/_job.json")
    files.pipe_file(f"{out}/notes.txt", b"mine")
    with pytest.raises(FileExistsError, match=r"only an earlier job's files .* with notes\.txt"):
        offline.select(**job, out=out, overwrite=True)


def test_shard_that_fails_is_not_uploaded(tmp_path, arrays):
    files = pytest.importorskip("fsspec").filesystem("memory")
    queries, out = arrays["embedding"].copy(), f"memory://{tmp_path.name}/out"
    queries[150] = np.nan
    np.save(tmp_path / "queries.npy", queries)
    np.save(tmp_path / "x.npy", arrays["embedding"])
    with pytest.raises(ValueError, match=r"row 150 of .*queries\.npy"):
        offline.select(corpus=tmp_path / "x.npy", queries=tmp_path / "queries.npy", out=out, k=2, shard_size=60)
    assert [name for path in files.ls(out, detail=False) if (name := path.rpartition("/")[2])[0] == "p"] == [
        "part-00000.parquet", "part-00001.parquet",
    ]  # fmt: skip
