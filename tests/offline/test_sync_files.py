"""Files that others write while they are read: columns are of one state of a file, or nothing is changed."""

import os
import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import segments
from ragsys_kernels.offline import sources

N, D = 40, 4
ROWS = np.random.default_rng(0).standard_normal((2, N, D)).astype(np.float32)


def write(path, state):
    """A state in which other ids have other vectors, in files of the same size."""
    ids = np.arange(N) if state == 0 else np.arange(N)[::-1]
    flat = pa.array(ROWS[state].ravel())
    table = pa.table({"id": ids, "vector": pa.FixedSizeListArray.from_arrays(flat, D)})
    new = path.with_name("new")
    if path.suffix == ".parquet":
        pq.write_table(table, new, compression="none", use_dictionary=False, row_group_size=8)
    elif path.suffix == ".arrow":
        pyarrow.feather.write_feather(table, new, compression="uncompressed", chunksize=8)
    elif path.suffix == ".csv":
        texts = ["[" + ",".join(map(repr, row.tolist())) + "]" for row in ROWS[state]]
        new.write_text("id,vector\n" + "".join(f'{id},"{text}"\n' for id, text in zip(ids, texts, strict=True)))
    else:
        with sqlite3.connect(path) as base:
            base.execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER, vector BLOB)")
            base.execute("DELETE FROM notes")
            rows = zip(ids.tolist(), map(bytes, ROWS[state]), strict=True)
            base.executemany("INSERT INTO notes VALUES (?, ?)", rows)
        base.close()
        return
    os.replace(new, path)


def holds(folder, state):
    corpus = rk.Corpus.load(folder)
    ids = np.arange(N) if state == 0 else np.arange(N)[::-1]
    return bool(np.array_equal(corpus.data[corpus.rows_of(ids)], rk.Corpus(ROWS[state]).data))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".db"])
def test_a_file_that_changes_between_two_columns_is_of_one_state(tmp_path, monkeypatch, suffix):
    """It changes when the vectors have been opened and the ids have not, as a database may at any time."""
    path, opened = tmp_path / f"notes{suffix}", sources.ids

    def late(*arguments):
        monkeypatch.setattr(sources, "ids", opened)
        write(path, 1)
        return opened(*arguments)

    write(path, 0)
    monkeypatch.setattr(sources, "ids", late)
    copied = suffix == ".db"
    try:
        offline.sync_corpus(path, tmp_path / "to")
    except OSError as error:
        assert not copied
        assert str(error).endswith(f"must stay as it is while it is read, got a change of {path}")  # noqa: PT017
        assert not (tmp_path / "to").exists()
    else:
        assert copied
        assert holds(tmp_path / "to", 0)
    offline.sync_corpus(path, tmp_path / "to")
    assert holds(tmp_path / "to", 1)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".db"])
def test_a_file_that_changes_while_it_is_read_changes_nothing(tmp_path, monkeypatch, suffix):
    """A copy is read on; of a file, whose columns are read one beside the other, the folder stays as it was."""
    monkeypatch.setattr("ragsys_kernels.offline.sync._BATCH", 8)
    path = tmp_path / f"notes{suffix}"
    write(path, 0)
    offline.sync_corpus(path, tmp_path / "to")
    before = segments.described(tmp_path / "to")

    def changes(count, total):
        if count == 16:
            write(path, 1)

    if suffix in (".csv", ".db"):
        assert str(offline.sync_corpus(path, tmp_path / "to", progress=changes)).startswith("40 rows: 0 added, 0 ch")
    else:
        with pytest.raises(OSError, match=r"^sync_corpus: corpus must stay as it is while it is read, got a change of"):
            offline.sync_corpus(path, tmp_path / "to", progress=changes)
    assert segments.described(tmp_path / "to") == before
    offline.sync_corpus(path, tmp_path / "to")
    assert holds(tmp_path / "to", 1)


def test_a_job_refuses_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch):
    path, opened = tmp_path / "notes.parquet", sources.ids
    np.save(tmp_path / "queries.npy", ROWS[0][:3])

    def late(*arguments):
        monkeypatch.setattr(sources, "ids", opened)
        write(path, 1)
        return opened(*arguments)

    write(path, 0)
    monkeypatch.setattr(sources, "ids", late)
    with pytest.raises(OSError, match=r"^select: corpus must stay as it is while it is read, got a change of"):
        offline.select(corpus=path, queries=tmp_path / "queries.npy", out=tmp_path / "out", k=2)


def test_bad_rows_of_a_file_are_left_out_with_their_numbers(tmp_path):
    rows = ROWS[0].tolist()
    rows[3], rows[9] = None, [1.0, 2.0]
    ids = [f"d{i}" for i in range(N)]
    path = tmp_path / "notes.parquet"
    pq.write_table(pa.table({"id": ids, "vector": rows}), path)
    with pytest.raises(ValueError, match=r"^sync_corpus: corpus must have no null rows, got one in row 3 of "):
        offline.sync_corpus(path, tmp_path / "to")
    assert offline.sync_corpus(path, tmp_path / "to", bad_rows="skip").rows == N - 2
    assert [line[:12] for line in (tmp_path / "to.skipped.csv").read_text().splitlines()[1:]] == [
        "source,3,d3,",
        "source,9,d9,",
    ]
    ids[20] = ids[5]
    pq.write_table(pa.table({"id": ids, "vector": rows}), path)
    with pytest.raises(ValueError, match=r"^sync_corpus: ids must be unique, got 'd5' in rows 5 and 20 of the source$"):
        offline.sync_corpus(path, tmp_path / "new", bad_rows="skip")
    with pytest.raises(ValueError, match=r"^sync_corpus: bad_rows must be one of 'raise', 'skip', got 'keep'$"):
        offline.sync_corpus(path, tmp_path / "to", bad_rows="keep")
