"""Arrays by name (`.npz`, HDF5) and tables of stores (SQLite, DuckDB, Lance): the rows of each, a line for bad ones."""

import sqlite3
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_files import D, N, check_columns, to_memory, vectors_of

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline import sources

# --- Arrays by name.


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", ["local", "url"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kind", ["float32", "float16", ">f4", "float64", "fortran"])
def test_npz(tmp_path, arrays, kind, save, place):
    vectors = np.asfortranarray(arrays["embedding"]) if kind == "fortran" else arrays["embedding"].astype(kind)
    numbers = np.arange(N) * 3
    save(tmp_path / "x.npz", embedding=vectors, id=numbers, bias=arrays["bias"], other=np.zeros(3))
    path = to_memory(tmp_path / "x.npz") if place == "url" else tmp_path / "x.npz"
    np.testing.assert_array_equal(vectors_of(path), vectors.astype("float16" if kind == "float16" else "float32"))
    assert sources.ids(path, "corpus").whole().to_pylist() == numbers.tolist()
    np.testing.assert_array_equal(sources.numbers("bias", float, None, "bias", path).whole(), arrays["bias"])


def test_npz_that_lies(tmp_path, arrays):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, embedding=arrays["embedding"])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 64
    (tmp_path / "flipped.npz").write_bytes(content)
    (tmp_path / "cut.npz").write_bytes(content[:-30])
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as archive:
        header = path.parent / "h.npy"
        np.save(header, arrays["embedding"])
        archive.writestr("embedding.npy", header.read_bytes()[:-4])
    np.savez(tmp_path / "objects.npz", embedding=np.array([{}, {}], object))
    for name in ("flipped", "cut", "short", "objects"):
        with pytest.raises(ValueError, match=r"^select: corpus must be a readable .npz file, got "):
            vectors_of(tmp_path / f"{name}.npz")
    np.savez(tmp_path / "two.npz", a=arrays["embedding"], b=arrays["embedding"])
    with pytest.raises(ValueError, match=r"must have one tensor of .* or it be named, got \['a', 'b'\]"):
        sources.vectors(tmp_path / "two.npz", "corpus")


@pytest.mark.parametrize("place", ["local", "url"])
def test_ann_benchmarks_hdf5(tmp_path, arrays, place):
    """As ann-benchmarks has them: train, test, neighbors (row numbers), distances."""
    h5py = pytest.importorskip("h5py")
    queries = arrays["embedding"][:20] + np.float32(0.1)
    neighbors = np.argsort(-(queries @ arrays["embedding"].T), axis=1)[:, :15].astype(np.int32)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["train"] = arrays["embedding"]
        file.create_dataset("test", data=queries, chunks=(7, 3), compression="gzip")
        file["neighbors"] = neighbors
        file["distances"] = np.zeros((20, 15), np.float32)
        file["meta/id"] = np.arange(N)
    path = to_memory(tmp_path / "x.hdf5") if place == "url" else tmp_path / "x.hdf5"
    np.testing.assert_array_equal(vectors_of(path, "train"), arrays["embedding"])
    assert sources.ids(path, "corpus", "meta/id").whole().to_pylist() == list(range(N))
    offline.select(corpus=path, queries=path, candidates=path, out=tmp_path / "out", k=3)
    direct = rk.mmr(queries, arrays["embedding"], 3, candidates=neighbors)
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet")["ids"].to_pylist() == direct.indices.tolist()


def test_hdf5_that_is_bad(tmp_path, arrays):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("train", data=arrays["embedding"], chunks=(20, D), fletcher32=True)
        offset = file["train"].id.get_chunk_info(2).byte_offset
        file["text"] = "nothing"
    content = bytearray((tmp_path / "x.h5").read_bytes())
    content[offset] ^= 1
    (tmp_path / "x.h5").write_bytes(content)
    column, bad = sources.vectors(tmp_path / "x.h5", "corpus"), {}
    with pytest.raises(ValueError, match=r"^select: corpus must be readable, got .*: rows 40 to 59 of train cannot be"):
        list(column.chunks(20))
    found = np.concatenate(list(column.chunks(20, bad=bad)))
    assert list(bad) == list(range(40, 60))
    np.testing.assert_array_equal(np.delete(found, range(40, 60), 0), np.delete(arrays["embedding"], range(40, 60), 0))
    (tmp_path / "y.h5").write_bytes(content[:200])
    with pytest.raises(ValueError, match=r"^select: corpus must be a readable HDF5 file, got "):
        sources.vectors(tmp_path / "y.h5", "corpus")


# --- Tables.


def blob(vector):
    return vector.astype("<f4").tobytes()


def as_text(vector):
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def write_sqlite(path, arrays, write, others=()):
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE docs (id TEXT, embedding, bias REAL, source TEXT)")
        rows = zip(arrays["id"], map(write, arrays["embedding"]), arrays["bias"].tolist(), arrays["id"], strict=True)
        base.executemany("INSERT INTO docs VALUES (?, ?, ?, ?)", rows)
        for name in others:
            quoted = name.replace('"', '""')
            base.execute(f'CREATE TABLE "{quoted}" (id TEXT)')
    base.close()
    return path


@pytest.mark.parametrize(("name", "write"), [("x.sqlite", blob), ("x.db", as_text)])
def test_sqlite(tmp_path, arrays, name, write):
    path = write_sqlite(tmp_path / name, arrays, write)
    check_columns(path, arrays)
    np.testing.assert_array_equal(vectors_of(f"{path}::docs"), arrays["embedding"])
    built = offline.build_corpus(path, tmp_path / "c", group_column="source", rows_per_segment=60)
    assert built.ids[:].tolist() == arrays["id"]
    assert built.group_names[built.groups].tolist() == arrays["id"]


def test_sqlite_that_is_bad(tmp_path, arrays):
    path = write_sqlite(tmp_path / "x.sqlite", arrays, blob, ['a "table"'])
    with pytest.raises(
        ValueError,
        match=r"must be a readable database file, got .*x.sqlite: one of its tables must be named, as .*::TABLE",
    ):
        sources.vectors(path, "corpus")
    with pytest.raises(ValueError, match=r"one of its tables must be named"):
        sources.vectors(f"{path}::none", "corpus")
    with pytest.raises(ValueError, match=r"must have one column of lists of floats, or it be named, got \['id'\]"):
        sources.vectors(f'{path}::a "table"', "corpus")
    with sqlite3.connect(path) as base:
        base.execute("UPDATE docs SET embedding = 7 WHERE rowid = 5")
    base.close()
    with pytest.raises(ValueError, match=r"must be a readable database file"):
        sources.vectors(f"{path}::docs", "corpus")
    (tmp_path / "y.sqlite").write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"^select: corpus must be a readable database file, got "):
        sources.vectors(tmp_path / "y.sqlite", "corpus")
    with pytest.raises(FileNotFoundError, match=r"^select: corpus must be an existing file, got .*no.db::t"):
        sources.vectors(tmp_path / "no.db::t", "corpus")


@pytest.mark.parametrize("kind", [f"FLOAT[{D}]", "DOUBLE[]"])
def test_duckdb(tmp_path, arrays, kind):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "x.duckdb"
    with duckdb.connect(str(path)) as base:
        base.execute(f"CREATE TABLE docs (id VARCHAR, v {kind}, bias FLOAT, source ENUM ('web', 'wiki'))")
        rows = zip(arrays["id"], arrays["embedding"].tolist(), arrays["bias"].tolist(), strict=True)
        base.executemany("INSERT INTO docs VALUES (?, ?, ?, 'wiki')", list(rows))
        base.execute("CREATE TABLE other AS SELECT 1 AS one")
    with pytest.raises(ValueError, match=r"one of its tables must be named, as .*::TABLE: docs, other"):
        sources.vectors(path, "corpus")
    path = f"{path}::docs"
    check_columns(path, arrays)
    built = offline.build_corpus(path, tmp_path / "c", group_column="source")
    assert built.group_names[:].tolist() == ["wiki"]
    (tmp_path / "y.duckdb").write_bytes(b"no database at all" * 100)
    with pytest.raises(ValueError, match=r"^select: corpus must be a readable database file, got "):
        sources.vectors(tmp_path / "y.duckdb", "corpus")


def test_lance(tmp_path, arrays):
    lance = pytest.importorskip("lance")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(arrays["embedding"].ravel()), D)
    table = pa.table({"id": arrays["id"], "vector": vectors, "bias": arrays["bias"]})
    path = tmp_path / "x.lance"
    lance.write_dataset(table[:90], path, max_rows_per_file=50)
    lance.write_dataset(table[90:], path, mode="append")
    check_columns(path, arrays)
    before = sources.vectors(path, "corpus").identity()
    assert sources.vectors(path, "corpus").identity() == before
    lance.dataset(path).delete("id = '" + arrays["id"][3] + "'")
    column = sources.vectors(path, "corpus")
    assert column.rows == N - 1
    np.testing.assert_array_equal(np.concatenate(list(column.chunks(37))), np.delete(arrays["embedding"], 3, axis=0))
    assert column.identity() != before
    for file in (path / "data").iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"^select: corpus must be a readable Lance file, got "):
        list(sources.vectors(path, "corpus").chunks(10))
