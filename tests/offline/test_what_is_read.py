"""Every line of the table "What is read" of docs/offline.md: the command that stands there, on such a file."""

import gzip
import json
import shlex
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import ragsys_kernels as rk
from ragsys_kernels.offline import sources
from ragsys_kernels.offline.sources import _parquet

PAGE = Path(__file__).parents[2] / "docs" / "offline.md"
ROWS = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
NAMES = [f"https://a.example/{i}" for i in range(30)]
LISTS = pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), 5)

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the tests run outside of the source tree")


def commands():
    lines = (
        PAGE.read_text(encoding="utf-8").partition("### What is read\n")[2].partition("\n\nText may")[0].splitlines()
    )
    cells = [line.split(" | ")[2] for line in lines if line.startswith("| ") and line.count(" | ") == 3]
    return [cell.strip("`") for cell in cells if cell.startswith("`") and "--corpus" not in cell]


def csv(path):
    texts = ("[" + ",".join(map(repr, row.tolist())) + "]" for row in ROWS)
    path.write_text("embedding\n" + "".join(f'"{text}"\n' for text in texts))


def jsonl(path):
    rows = ({"url": name, "embedding": row.tolist()} for name, row in zip(NAMES, ROWS, strict=True))
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def fvecs(path):
    path.write_bytes(b"".join(np.int32(5).tobytes() + row.tobytes() for row in ROWS))


def hdf5(path):
    with pytest.importorskip("h5py").File(path, "w") as file:
        file["train"] = ROWS


def safetensors(path):
    pytest.importorskip("ml_dtypes")
    pytest.importorskip("safetensors.numpy").save_file({"weight": ROWS}, path)


def sqlite(path):
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE passages (embedding BLOB)")
        base.executemany("INSERT INTO passages VALUES (?)", [(row.tobytes(),) for row in ROWS])
        base.execute("CREATE TABLE other (id INT)")
    base.close()


def duckdb(path):
    with pytest.importorskip("duckdb").connect(str(path)) as base:
        base.execute("CREATE TABLE passages (embedding FLOAT[5], tokens INT)")
        base.executemany("INSERT INTO passages VALUES (?, 7)", [(row.tolist(),) for row in ROWS])
        base.execute("CREATE TABLE other (id INT)")


WRITTEN = {
    "docs.npy": lambda path: np.save(path, ROWS),
    "docs.npz": lambda path: np.savez(path, embedding=ROWS),
    "docs.parquet": lambda path: pq.write_table(pa.table({"v": LISTS, "source": NAMES}), path),
    "docs.jsonl.gz": jsonl,
    "docs.csv": csv,
    "base.fvecs": fvecs,
    "docs.feather": lambda path: feather.write_feather(pa.table({"vector": LISTS}), str(path)),
    "saved/train": lambda path: pytest.importorskip("datasets").Dataset(pa.table({"vector": LISTS})).save_to_disk(path),
    "docs.safetensors": safetensors,
    "glove-50.hdf5": hdf5,
    "docs.sqlite::passages": sqlite,
    "docs.duckdb::passages": duckdb,
    "docs.lance": lambda path: pytest.importorskip("lance").write_dataset(pa.table({"vector": LISTS}), path),
}


def test_every_line_has_a_file():
    assert {shlex.split(each)[0] for each in commands()} == set(WRITTEN)


@pytest.mark.parametrize("given", commands())
def test_the_command_of_a_line(given, tmp_path, command):
    name, *options = shlex.split(given)
    path = tmp_path / name.partition("::")[0]
    path.parent.mkdir(exist_ok=True)
    WRITTEN[name](path)
    done = command(tmp_path, "corpus", "build", "--out", "folder", "--corpus", name, *options)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(rk.Corpus.load(tmp_path / "folder").data, rk.Corpus(ROWS).data)
    np.save(tmp_path / "queries.npy", ROWS[:3])
    taken = [part for i, part in enumerate(options) if "--vector-column" in options[max(0, i - 1) : i + 1]]
    done = command(tmp_path, "select", "--corpus", name, *taken, "--queries", "queries.npy", "--out", "picks", "--k", 3)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("damaged", [False, True])
def test_row_groups_of_parquet_that_are_decoded_ahead(tmp_path, monkeypatch, damaged):
    """The rows, and what is said of damage, are those of one thread."""
    rows = np.random.default_rng(0).standard_normal((1_000, 8), dtype=np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 8)
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"v": lists}), file, row_group_size=90, use_dictionary=False, compression="none")
    if damaged:
        start = pq.read_metadata(file).row_group(4).column(0).data_page_offset
        content = bytearray(file.read_bytes())
        content[start : start + 40] = bytes(40)
        file.write_bytes(content)
    begun, found = [], {}
    decoded = _parquet.ParquetPart._decoded
    monkeypatch.setattr(
        _parquet.ParquetPart,
        "_decoded",
        lambda part, group, *more: (begun.append(group), decoded(part, group, *more))[1],
    )
    for threads in (1, 3):
        monkeypatch.setattr(_parquet.env, "num_threads", lambda threads=threads: threads)
        begun.clear()
        for span in ((0, 1_000, 64), (95, 900, 200), (0, 90, 1_000)):
            bad = {}
            parts = list(sources.vectors(file, "corpus").chunks(span[2], span[0], span[1], bad))
            found[threads, span] = np.concatenate(parts).tobytes(), bad
            assert bool(bad) == (damaged and span[1] > 90)
            if not damaged:
                np.testing.assert_array_equal(np.concatenate(parts), rows[span[0] : span[1]])
        assert sorted(begun) == ([] if threads == 1 else sorted([*range(12), *range(1, 10)]))
    assert all(found[1, span] == found[3, span] for _, span in found)
