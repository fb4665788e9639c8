"""Text, files of the nearest-neighbour benchmarks, patterns and folders: the rows of each, one line for bad ones."""

import gzip
import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_files import N, check_columns, table_of, to_memory

from ragsys_kernels.offline import sources
from ragsys_kernels.offline.sources import _text


def rows_of(column, size=37):
    return np.concatenate(list(column.chunks(size)))


# --- Text.


def as_text(vector, brackets="[]", comma=","):
    return brackets[0] + comma.join(map(repr, vector.tolist())) + brackets[1]


def write_csv(path, arrays, separator=",", **how):
    lines = [separator.join(("id", "embedding", "bias"))]
    for name, vector, bias in zip(arrays["id"], arrays["embedding"], arrays["bias"], strict=True):
        lines.append(separator.join((f'"{name}"', f'"{as_text(vector, **how)}"', repr(float(bias)))))
    text = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("place", ["local", "url"])
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.tsv"])
def test_vectors_as_text_in_csv(tmp_path, arrays, name, place):
    path = write_csv(tmp_path / name, arrays, "\t" if ".tsv" in name else ",")
    if place == "url":
        path = to_memory(path)
    check_columns(path, arrays)


@pytest.mark.parametrize("how", [{"brackets": "{}"}, {"comma": ", "}, {"brackets": "  "}])
def test_vectors_as_text_in_parquet(tmp_path, arrays, how):
    texts = [as_text(vector, **how) for vector in arrays["embedding"]]
    pq.write_table(pa.table({"text": arrays["id"], "v": texts, "vector": texts}), tmp_path / "x.parquet")
    for column in (None, "v"):
        np.testing.assert_array_equal(rows_of(sources.vectors(tmp_path / "x.parquet", "corpus", column)),
                                      arrays["embedding"])  # fmt: skip
    with pytest.raises(
        ValueError, match=r"must have 1 values in each row as in the first, got|must have no null values"
    ):
        rows_of(sources.vectors(tmp_path / "x.parquet", "corpus", "text"))


def test_vectors_as_text_that_are_none_are_named(tmp_path):
    texts = ["[1,2]", "[1,x]", "[3]", "", None, "[1e3,-.5]", "[nan,1]"]
    pq.write_table(pa.table({"embedding": texts}), tmp_path / "x.parquet")
    column, bad = sources.vectors(tmp_path / "x.parquet", "corpus"), {}
    (found,) = column.chunks(10, bad=bad)
    np.testing.assert_array_equal(found, [[1, 2], [0, 0], [0, 0], [0, 0], [0, 0], [1000, -0.5], [0, 0]])
    assert sorted(bad) == [1, 2, 3, 4, 6]
    assert "null values" in bad[1]
    assert bad[2].startswith("corpus must have 2 values in each row as in the first, got 1")
    with pytest.raises(ValueError, match=r"^select: corpus must have no null rows, got one in row 4 of "):
        list(column.chunks(10))


def test_results_of_a_batch_of_embeddings(tmp_path, arrays):
    """Objects within a row, and lists of one object, are columns by their path."""
    rows = [
        {
            "id": f"batch_req_{i}",
            "custom_id": name,
            "response": {"status_code": 200, "body": {"data": [{"index": 0, "embedding": vector.tolist()}]}},
            "error": None,
        }
        for i, (name, vector) in enumerate(zip(arrays["id"], arrays["embedding"], strict=True))
    ]
    path = tmp_path / "batch.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    np.testing.assert_array_equal(rows_of(sources.vectors(path, "corpus")), arrays["embedding"])
    named = sources.vectors(path, "corpus", "response.body.data.embedding")
    np.testing.assert_array_equal(rows_of(named), arrays["embedding"])
    assert sources.ids(path, "corpus", "custom_id").whole().to_pylist() == arrays["id"]


def test_text_is_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(_text, "_BLOCK", 1 << 12)
    vectors = np.arange(6000, dtype=np.float32).reshape(3000, 2)
    lines = [json.dumps({"embedding": vector}) for vector in vectors.tolist()]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    np.testing.assert_array_equal(rows_of(sources.vectors(tmp_path / "x.jsonl", "corpus"), 701), vectors)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", b'{"embedding": [1.5, 2]}\n{"embedding": [1.5'),
        ("x.jsonl", b'{"embedding": [1.5]}\nnone\n'),
        ("x.jsonl", b""),
        ("x.jsonl.gz", b"not compressed"),
        ("x.jsonl.gz", gzip.compress(b'{"embedding": [1.5, 2]}\n' * 1000, mtime=0)[:60]),
        ("x.csv", b"embedding,id\n1,2,3\n"),
        ("x.csv", b"embedding\n\xff\xfe\n"),
        ("x.csv", b""),
    ],
)
def test_damaged_text_is_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"^select: corpus must [^\n]*$"):
        rows_of(sources.vectors(tmp_path / name, "corpus", "embedding"))


# --- Files of the nearest-neighbour benchmarks.


def vecs(values, head="<i"):
    return b"".join(struct.pack(head, values.shape[1]) + row.tobytes() for row in values)


def header(values):
    return struct.pack("<ii", *values.shape) + values.tobytes()


@pytest.mark.parametrize("place", ["local", "url"])
@pytest.mark.parametrize("suffix", [".fvecs", ".bvecs", ".fbin", ".u8bin", ".i8bin"])
def test_vectors_of_benchmarks(tmp_path, suffix, place):
    rng = np.random.default_rng(0)
    dtype = {"f": "<f4", "b": "u1", "u": "u1", "i": "i1"}[suffix[1]]
    values = (rng.standard_normal((N, 7)) * 50).astype(dtype)
    path = tmp_path / f"x{suffix}"
    path.write_bytes(vecs(values) if suffix.endswith("vecs") else header(values))
    if place == "url":
        path = to_memory(path)
    column = sources.vectors(path, "corpus", bytes_stay=True)
    assert (column.rows, column.dims) == (N, 7)
    np.testing.assert_array_equal(rows_of(column), values.astype(np.float32))
    # Bytes stay what they are, for a corpus of int8; queries are floats.
    assert rows_of(column).dtype == getattr(column.embeddings(), "dtype", None) == np.dtype(dtype)
    assert rows_of(sources.vectors(path, "queries")).dtype == np.float32
    np.testing.assert_array_equal(column.whole(), values.astype(np.float32))
    np.testing.assert_array_equal(sources.load_corpus(column, None, None, {"metric": "dot"}).data, values)


@pytest.mark.parametrize("suffix", [".ivecs", ".ibin"])
def test_ids_of_benchmarks(tmp_path, suffix):
    values = np.random.default_rng(1).integers(0, 99, (N, 4)).astype("<i4")
    path = tmp_path / f"x{suffix}"
    path.write_bytes(vecs(values) if suffix == ".ivecs" else header(values))
    (lists,) = sources.candidate_lists(path).chunks(N)
    np.testing.assert_array_equal(lists.padded(), values)
    with pytest.raises(ValueError, match=r"^select: corpus must be \.fvecs, \.bvecs, \.fbin, \.u8bin or \.i8bin, got "):
        sources.vectors(path, "corpus")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.fvecs", b"", "it is empty"),
        ("x.fvecs", b"\x02", r"it begins \[\]"),
        ("x.fvecs", struct.pack("<i", 0), r"it begins \[0\]"),
        ("x.fvecs", struct.pack("<iff", 2, 1, 2) + b"\x02", "it has 13 bytes, not 24"),
        ("x.fvecs", struct.pack("<i", -1), r"it begins \[-1\]"),
        ("x.fvecs", struct.pack("<i", 2**31 - 1) + bytes(8), "it has 12 bytes, not 8589934592"),
        ("x.fbin", struct.pack("<iiff", 1, 3, 1, 2), "it has 16 bytes, not 20"),
        ("x.fbin", struct.pack("<ii", 2**31 - 1, 2**31 - 1), "it has 8 bytes, not 18446744056529682444"),
        ("x.i8bin", struct.pack("<ii", -1, 3), r"it begins \[-1, 3\]"),
    ],
)
def test_files_of_benchmarks_that_are_cut_or_lie(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^select: corpus must be a complete \.\w+ file, got .*: {reason}$"):
        sources.vectors(tmp_path / name, "corpus")


def test_rows_of_another_length(tmp_path):
    (tmp_path / "x.fvecs").write_bytes(struct.pack("<iffiff", 2, 1, 2, 3, 4, 5))
    with pytest.raises(ValueError, match=r"^select: corpus must have 2 values in each row, got 3 in "):
        rows_of(sources.vectors(tmp_path / "x.fvecs", "corpus"))


# --- Arrays of the other byte order.


def test_big_endian_candidates(tmp_path):
    values = np.arange(12).reshape(4, 3)
    np.save(tmp_path / "x.npy", values.astype(">i8"))
    (lists,) = sources.candidate_lists(tmp_path / "x.npy").chunks(10)
    np.testing.assert_array_equal(lists.padded(), values)


# --- Several files.


def write_parts(folder, arrays):
    folder.mkdir(parents=True)
    table = table_of(arrays)
    pq.write_table(table[:60], folder / "a-1.parquet")
    pq.write_table(table[60:], folder / "a-2.parquet")
    pq.write_table(table[:5], folder / "b.parquet")


@pytest.mark.parametrize("place", ["local", "url"])
def test_files_that_match_a_pattern(tmp_path, arrays, place):
    write_parts(tmp_path / "parts", arrays)
    pattern = f"{to_memory(tmp_path / 'parts') if place == 'url' else tmp_path / 'parts'}/a-*.parquet"
    column = sources.vectors(pattern, "corpus")
    np.testing.assert_array_equal(rows_of(column), arrays["embedding"])
    assert column.where(61).startswith("row 1 of ")
    with pytest.raises(FileNotFoundError, match=r"must be an existing file, got .*, which none matches$"):
        sources.vectors(pattern.replace("a-", "c-"), "corpus")


def test_patterns_of_text_and_of_files_without_columns(tmp_path, arrays):
    for name, part in (("1", slice(0, 70)), ("2", slice(70, N))):
        write_csv(tmp_path / f"x{name}.csv", {key: values[part] for key, values in arrays.items()})
    np.testing.assert_array_equal(rows_of(sources.vectors(tmp_path / "x?.csv", "corpus")), arrays["embedding"])
    np.save(tmp_path / "x3.npy", arrays["embedding"])
    with pytest.raises(ValueError, match=r"^select: corpus must match files of \.parquet, .*x3\.npy$"):
        sources.vectors(tmp_path / "x*", "corpus")


@pytest.mark.parametrize("place", ["local", "url"])
def test_folders_in_the_manner_of_hive(tmp_path, arrays, place):
    table = table_of(arrays)
    for number, (begin, end) in enumerate([(0, 20), (20, 90), (90, N)]):
        folder = tmp_path / "hive" / f"year={2000 + number}" / "month=1"
        folder.mkdir(parents=True)
        pq.write_table(table[begin:end], folder / "part.parquet")
    path = tmp_path / "hive"
    column = sources.vectors(to_memory(path) if place == "url" else path, "corpus")
    np.testing.assert_array_equal(rows_of(column), arrays["embedding"])
