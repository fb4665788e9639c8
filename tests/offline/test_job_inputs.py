"""What a job reads of its inputs: each file once to open it, and of the corpus a block at a time."""

import tracemalloc
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import vector_lists
from pyarrow import feather

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import rows
from ragsys_kernels.offline import sources
from ragsys_kernels.offline.sources import _arrow, _parquet, _place, load_corpus


def counting(counts, name, function):
    def counted(*given):
        counts[name] += 1
        return function(*given)

    return counted


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(("fingerprint", "hashes"), [("sampled", 2), ("full", 3)])
def test_a_file_of_all_columns_is_opened_once(tmp_path, monkeypatch, kind, fingerprint, hashes):
    rng = np.random.default_rng(0)
    numbers = {name: rng.integers(0, 9, 40) for name in ("groups", "costs", "query_groups")}
    vectors = vector_lists(rng.standard_normal((40, 6), np.float32))
    table = pa.table({"id": np.arange(40), "vector": vectors, "bias": rng.standard_normal(40), **numbers})
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, path)
    counts = Counter()
    part = _parquet.ParquetPart if kind == "parquet" else _arrow.ArrowPart
    for owner, name in ((part, "__init__"), (_place.Place, "_identity")):
        monkeypatch.setattr(owner, name, counting(counts, name, getattr(owner, name)))
    options = {
        "corpus": path, "queries": path, "bias_column": "bias", "group_column": "groups", "cost_column": "costs",
        "query_group_column": "query_groups", "budget": 30.0, "k": 2, "pool": 5,
    }  # fmt: skip
    offline.select(**options, out=tmp_path / "out", fingerprint=fingerprint)
    assert counts == {"__init__": 1, "_identity": hashes}
    # Another file in its place is opened anew, also while a column of the old one is in use.
    held = sources.vectors(path, "corpus")
    if kind == "parquet":
        pq.write_table(table.slice(10), path)
        assert (held.rows, sources.vectors(path, "corpus").rows) == (40, 30)


def written(folder, kind, array):
    path = folder / f"rows.{kind.removeprefix('f')}"
    if kind == "f64.npy":
        path = folder / "rows.npy"
        np.save(path, array.astype(np.float64))
        return path
    table = pa.table({"vector": vector_lists(array)})
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=700)
    else:
        feather.write_feather(table, path, chunksize=700)
    return path


KINDS = ["parquet", "arrow", "f64.npy"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("metric", "dtype"), [("cosine", "float32"), ("dot", "float16"), ("cosine", "bfloat16"), ("dot", "int8")]
)
def test_a_corpus_of_blocks_has_the_bits_of_the_whole(tmp_path, monkeypatch, kind, metric, dtype):
    array = np.random.default_rng(0).standard_normal((2500, 12)).astype(np.float32)
    whole = rk.Corpus(array, metric=metric, dtype=dtype)
    monkeypatch.setattr(rows, "_BLOCK_BYTES", 8 * 12 * 333)
    path = written(tmp_path, kind, array)
    made = load_corpus(sources.vectors(path, "corpus"), None, None, {"metric": metric, "dtype": dtype})
    for name in ("data", "scales", "codes"):
        np.testing.assert_array_equal(getattr(made, name), getattr(whole, name))
    assert (made.max_norm, made.code_error) == (whole.max_norm, whole.code_error)
    array[[1234, 2000]] = np.nan
    path = written(tmp_path, kind, array)
    with pytest.raises(ValueError, match="embeddings must be finite, got NaN or inf in row 1234"):
        load_corpus(sources.vectors(path, "corpus"), None, None, {"metric": metric, "dtype": dtype})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", ["job", "build"])
def test_a_corpus_is_never_whole_beside_itself(tmp_path, monkeypatch, kind, make):
    array = np.random.default_rng(0).standard_normal((40_000, 64)).astype(np.float32)
    monkeypatch.setattr(rows, "_BLOCK_BYTES", 1 << 19)
    path = written(tmp_path, kind, array)
    tracemalloc.start()
    try:
        if make == "build":
            offline.build_corpus(path, tmp_path / "built", dtype="int8", metric="dot")
        else:
            load_corpus(sources.vectors(path, "corpus"), None, None, {"dtype": "int8", "metric": "dot"})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.7 * array.nbytes  # of int8 rows, which are a quarter, and some blocks


def test_a_file_that_has_lost_rows_makes_no_corpus():
    lost = rows.Blocks((100, 4), "float32", lambda size: iter([np.ones((60, 4), np.float32)]))
    with pytest.raises(ValueError, match="Corpus: embeddings must keep their rows while they are read, got 60 of 100"):
        rk.Corpus(lost)


def test_the_folder_of_a_saved_corpus_is_named_as_such(tmp_path):
    rk.Corpus(np.eye(3, dtype=np.float32)).save(tmp_path / "saved")
    match = f"select: corpus must be files of vectors, got the saved corpus {tmp_path / 'saved'}; name those that"
    with pytest.raises(ValueError, match=match):
        sources.vectors(tmp_path / "saved", "corpus")


TWICE = {
    "integers": [9, 3, 7, 3, 9],
    "strings": ["b", "a", "c", "a", "b"],
    "dictionary": pa.array(["b", "a", "c", "a", "b"]).dictionary_encode(),
    "dates": pa.array([9, 3, 7, 3, 9], pa.date32()),
    "floats": [0.5, 0.25, 1.0, 0.25, 0.5],
}


@pytest.mark.parametrize("kind", TWICE)
def test_an_id_that_is_there_twice_is_refused(tmp_path, kind):
    rows = vector_lists(np.eye(5, dtype=np.float32))
    pq.write_table(pa.table({"id": TWICE[kind], "vector": rows}), tmp_path / "twice.parquet")
    pq.write_table(pa.table({"id": TWICE[kind], "vector": rows}).slice(0, 3), tmp_path / "once.parquet")
    job = {"queries": tmp_path / "once.parquet", "out": tmp_path / "out", "k": 1, "pool": 2}
    with pytest.raises(
        ValueError, match=r"^select: ids of the corpus must be unique, got .* in rows 1 and 3 of .*twice"
    ):
        offline.select(corpus=tmp_path / "twice.parquet", **job)
    assert not (tmp_path / "out").exists()
    assert offline.select(corpus=tmp_path / "once.parquet", **job).complete
    if kind in ("integers", "strings"):
        with pytest.raises(ValueError, match=r"^build_corpus: .*ids must be unique, got .* in rows 1 and 3"):
            offline.build_corpus(tmp_path / "twice.parquet", tmp_path / "saved")
