"""The same rows in every format that a job reads."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import ragsys_kernels as rk
from ragsys_kernels.offline import sources

N, D = 200, 5


def make_arrays():
    """Rows whose vectors are exact in bfloat16, ids, numbers and lists of any length."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((N, D)).astype(np.float16).astype(np.float32)
    vectors = (vectors.view(np.uint32) >> 16 << 16).view(np.float32)
    lists = [rng.choice(N, size, replace=False).tolist() for size in rng.integers(1, 9, N)]
    lists[0] = list(range(9))
    return {
        "embedding": vectors,
        "id": [f"row {row}" for row in range(N)],
        "bias": rng.standard_normal(N).astype(np.float32),
        "groups": rng.integers(0, 9, N),
        "candidates": lists,
    }


def table_of(arrays, fixed=True):
    if fixed:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(arrays["embedding"].ravel()), D)
    else:
        vectors = pa.array(arrays["embedding"].tolist(), pa.large_list(pa.float64()))
    return pa.table({**arrays, "embedding": vectors})


def padded_lists(lists, width=9):
    return np.array([row + [-1] * (width - len(row)) for row in lists])


def write_parquet(folder, arrays):
    pq.write_table(table_of(arrays), folder / "x.parquet", row_group_size=17)
    return folder / "x.parquet"


def write_parquet_folder(folder, arrays):
    out, table = folder / "parquet", table_of(arrays, fixed=False)
    out.mkdir()
    for number, (begin, end) in enumerate([(0, 60), (60, 60), (60, 61), (61, N)]):
        pq.write_table(table[begin:end], out / f"part-{number:02d}.parquet", row_group_size=13)
    for name in ("_SUCCESS", ".part-00.parquet.crc", "_metadata"):
        (out / name).write_bytes(b"not Parquet")
    return out


def write_arrow(folder, arrays):
    table = table_of(arrays)
    with pa.OSFile(str(folder / "x.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=23)
    return folder / "x.arrow"


def write_stream(folder, arrays):
    table = table_of(arrays, fixed=False)
    with pa.OSFile(str(folder / "x.ipc"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=23)
    return folder / "x.ipc"


def write_feather(folder, arrays):
    table = table_of(arrays)
    table = table.set_column(table.schema.get_field_index("id"), "id", table["id"].dictionary_encode())
    pa.feather.write_feather(table, folder / "x.feather", compression="lz4", chunksize=70)
    return folder / "x.feather"


def write_dataset(folder, arrays):
    """What save_to_disk of the package datasets writes; test_saved_data_set has a real one."""
    out, table = folder / "saved", table_of(arrays)
    out.mkdir()
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (table[:90], table[90:]), strict=True):
        with pa.OSFile(str(out / name), "wb") as file, pa.ipc.new_stream(file, part.schema) as writer:
            writer.write_table(part, max_chunksize=23)
    (out / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (out / "dataset_info.json").write_text("{}")
    return out


def write_lines(folder, arrays):
    rows = [dict(zip(arrays, row, strict=True)) for row in zip(*map(as_list, arrays.values()), strict=True)]
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "x.jsonl"


def write_compressed_lines(folder, arrays):
    (folder / "x.NDJSON.gz").write_bytes(gzip.compress(write_lines(folder, arrays).read_bytes()))
    return folder / "x.NDJSON.gz"


def as_list(values):
    return values.tolist() if isinstance(values, np.ndarray) else values


TABLES = [
    write_lines,
    write_compressed_lines,
    write_parquet,
    write_parquet_folder,
    write_arrow,
    write_stream,
    write_feather,
    write_dataset,
]


def to_memory(path):
    """Copy a file or folder to the file system that fsspec keeps in this process; return its URL."""
    fsspec = pytest.importorskip("fsspec")
    url = f"memory://{path.parent.name}/{path.name}"
    fsspec.filesystem("memory").put(str(path), url, recursive=path.is_dir())
    return url


def vectors_of(path, column=None, size=37):
    """The vectors of a file, which are the same read in the middle and as a corpus."""
    opened = sources.vectors(path, "corpus", column)
    assert (opened.rows, opened.dims) == (N, D)
    found = np.concatenate(list(opened.chunks(size)))
    np.testing.assert_array_equal(np.concatenate(list(opened.chunks(size, 50, 150))), found[50:150])
    np.testing.assert_array_equal(rk.Corpus(opened.embeddings()).data, rk.Corpus(found).data)
    return found


def check_columns(path, arrays):
    """A file has the vectors, ids and bias of the arrays."""
    np.testing.assert_array_equal(vectors_of(path), arrays["embedding"])
    assert [x for part in sources.ids(path, "corpus").chunks(90) for x in part.to_pylist()] == arrays["id"]
    np.testing.assert_array_equal(sources.numbers("bias", float, None, "bias", path).whole(), arrays["bias"])


class PaddedLists:
    """Candidates as a column of arrays, as the reference has them."""

    def __init__(self, path, column=None):
        self._lists = sources.candidate_lists(path, column)
        self.rows, self.where = self._lists.rows, self._lists.where

    def chunks(self, *args):
        return (lists.padded() for lists in self._lists.chunks(*args))

    def whole(self):
        return next(self.chunks(self.rows))
