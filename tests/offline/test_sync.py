"""A folder in step with a source: after each run it holds what the source holds, whatever was there before."""

import os
import random
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import rows, segments
from ragsys_kernels.offline import sync

D = 16


class Source:
    """A folder of Parquet, and what it holds: a vector and a bias by id."""

    def __init__(self, folder, strings=False, seed=0):
        self.folder, self.strings, self.rng = folder, strings, np.random.default_rng(seed)
        self.rows, self._next = {}, 0
        folder.mkdir()

    def add(self, count):
        for _ in range(count):
            self.rows[f"d{self._next}" if self.strings else 3 * self._next - 50] = self.row()
            self._next += 1
        return self

    def row(self):
        return self.rng.standard_normal(D).astype(np.float32), float(self.rng.random(dtype=np.float32))

    def change(self, count):
        for each in self.rng.permutation(list(self.rows))[:count].tolist():
            self.rows[each] = self.row()

    def remove(self, count):
        for each in self.rng.permutation(list(self.rows))[:count].tolist():
            del self.rows[each]

    def write(self, bias=False, files=3):
        for old in self.folder.iterdir():
            old.unlink()
        ids = list(self.rows)
        self.rng.shuffle(ids)
        for i in range(files):
            part = ids[i::files]
            columns = {"id": part, "vector": [self.rows[each][0] for each in part]}
            if bias:
                columns["quality"] = pa.array([self.rows[each][1] for each in part], pa.float32())
            pq.write_table(pa.table(columns), self.folder / f"{i}.parquet", row_group_size=70)
        return self.folder


def holds(folder, source, bias=False, **options):
    """Check that a folder has the rows of a source, stored as a corpus of them stores them."""
    corpus = rk.Corpus.load(folder, verify=True)
    assert corpus.num_live == len(source.rows)
    ids = list(source.rows)
    rows = corpus.rows_of(ids if source.strings else np.array(ids))
    fresh = rk.Corpus(np.array([source.rows[each][0] for each in ids]), **options)
    assert np.array_equal(corpus.data[rows], fresh.data)
    if fresh.scales is not None:
        assert np.array_equal(corpus.scales[rows], fresh.scales)
    if bias:
        assert corpus.bias[rows].tolist() == [source.rows[each][1] for each in ids]
    return corpus


@pytest.mark.parametrize(("strings", "dtype"), [(False, "float32"), (True, "float16"), (False, "int8")])
def test_the_folder_holds_what_the_source_holds(tmp_path, monkeypatch, strings, dtype):
    monkeypatch.setattr(sync, "_BATCH", 64)
    source, to, told = Source(tmp_path / "source", strings).add(500), tmp_path / "corpus", []
    options = {"dtype": dtype}
    done = offline.sync_corpus(
        source.write(), to, rows_per_segment=200, progress=lambda *counts: told.append(counts), **options
    )
    assert told[-1] == (500, 500)
    assert (done.rows, done.added, done.changed, done.deleted) == (500, 500, 0, 0)
    holds(to, source, **options)
    assert len(segments.described(to)["segments"]) == 3
    version = segments.described(to)["version"]
    again = offline.sync_corpus(source.write(), to)
    assert str(again) == "500 rows: 0 added, 0 changed, 0 deleted"
    assert segments.described(to)["version"] == version  # nothing was written
    for _ in range(2):
        source.change(17)
        source.remove(23)
        before = set(source.rows)
        source.add(31)
        done = offline.sync_corpus(source.write(), to)
        holds(to, source, **options)
        assert (done.rows, done.added, done.deleted) == (len(source.rows), 31, 23)
        assert done.changed <= 17  # some of them were removed
        assert len(before) + 31 == len(source.rows)


def test_columns_are_compared_too(tmp_path):
    source, to = Source(tmp_path / "source").add(120), tmp_path / "corpus"
    columns = {"bias_column": "quality"}
    offline.sync_corpus(source.write(True), to, **columns)
    first = next(iter(source.rows))
    source.rows[first] = source.rows[first][0], 7.0
    done = offline.sync_corpus(source.write(True), to, **columns)
    assert (done.added, done.changed, done.deleted) == (0, 1, 0)
    holds(to, source, True)
    with pytest.raises(ValueError, match=r"^sync_corpus: source must have bias, as the folder does$"):
        offline.sync_corpus(source.write(True), to)


def test_groups_may_be_strings(tmp_path):
    """Each corpus numbers its groups in its own way: those of a batch are compared by their names."""
    vectors, to = np.random.default_rng(3).standard_normal((40, D), dtype=np.float32), tmp_path / "corpus"

    def write(groups, order):
        table = pa.table({"id": order, "vector": vectors[order].tolist(), "source": [groups[i] for i in order]})
        pq.write_table(table, tmp_path / "rows.parquet")
        return offline.sync_corpus(tmp_path / "rows.parquet", to, group_column="source")

    groups, order = [f"g{i % 7}" for i in range(40)], np.arange(40)
    assert write(groups, order).added == 40
    assert write(groups, order[::-1]).changed == 0
    groups[5], groups[9] = "another", "g0"
    assert write(groups, order[::-1]).changed == 2
    corpus = rk.Corpus.load(to)
    assert list(corpus.group_names[corpus.groups[corpus.rows_of(order)]]) == groups


def test_a_folder_that_has_gathered_much_is_compacted(tmp_path, monkeypatch):
    source, to = Source(tmp_path / "source").add(200), tmp_path / "corpus"
    offline.sync_corpus(source.write(), to, rows_per_segment=100)
    kept = rk.Corpus.load(to)
    source.remove(70)
    done = offline.sync_corpus(source.write(), to)
    assert done.compacted
    assert str(done).endswith("70 deleted, compacted")
    found = segments.described(to)
    assert (found["rows"], found["deleted"]) == (130, 0)
    holds(to, source)
    assert kept.num_live == 200
    monkeypatch.setattr(sync, "_SEGMENTS", 3)
    for _ in range(3):
        source.add(5)
        offline.sync_corpus(source.write(), to)
    assert len(segments.described(to)["segments"]) <= 3
    holds(to, source)


def test_what_is_new_is_written_in_segments_of_that_size(tmp_path):
    source, to = Source(tmp_path / "source").add(50), tmp_path / "corpus"
    offline.sync_corpus(source.write(), to)
    source.add(950)
    offline.sync_corpus(source.write(), to, rows_per_segment=300)
    assert [part["rows"] for part in segments.described(to)["segments"]] == [50, 300, 300, 300, 50]
    holds(to, source)


def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path):
    source, to = Source(tmp_path / "source").add(40), tmp_path / "corpus"
    offline.sync_corpus(source.write(), to)
    before = segments.described(to)

    def refused(match, given=None, kind=ValueError, **options):
        with pytest.raises(kind, match=f"^(sync_corpus|Corpus): {match}"):
            offline.sync_corpus(given or source.folder, options.pop("to", to), **options)
        assert segments.described(to) == before

    refused("metric must be that of the folder, 'cosine', got 'dot'", metric="dot")
    refused("dtype must be that of the folder, 'float32', got 'int8'", dtype="int8")
    refused("rows_per_segment must be at least 1, got 0", rows_per_segment=0)
    np.save(tmp_path / "rows.npy", np.eye(3, dtype=np.float32))
    refused("source must have ids, in a column 'id'", tmp_path / "rows.npy")
    refused("corpus must be an existing file", tmp_path / "nothing", FileNotFoundError)
    other = Source(tmp_path / "twice").add(3)
    pq.write_table(pa.table({"id": [1, 2, 1], "vector": np.eye(3, D).tolist()}), other.folder / "0.parquet")
    refused("ids must be unique, got 1", other.folder)
    pq.write_table(pa.table({"id": [1, 2, 3], "vector": np.eye(3).tolist()}), other.folder / "0.parquet")
    refused("source must have the folder's 16 dimensions, got 3", other.folder)
    pq.write_table(pa.table({"id": ["a"], "vector": np.eye(1, D).tolist()}), other.folder / "0.parquet")
    refused("ids must be integers as those of the corpus are, got strings in ", other.folder)
    (tmp_path / "empty.csv").write_text("id,vector\n")
    refused(r"corpus must have at least one row, got none in .*empty\.csv", tmp_path / "empty.csv")
    rk.Corpus(np.eye(D, dtype=np.float32)).save(tmp_path / "piece")
    with pytest.raises(
        FileExistsError, match=r"^sync_corpus: to must be new, or a folder of corpus build .*, got .*piece$"
    ):
        offline.sync_corpus(source.folder, tmp_path / "piece")


ROWS_REFUSED = {
    "twice": (
        {"id": ["a", "b", "row 1", "x", "row 1"]},
        "ids must be unique, got 'row 1' in rows 2 and 4 of the source",
    ),
    "in two batches": (
        {"id": ["a", "b", "c", "x", "c", "d"]},
        "ids must be unique, got 'c' in rows 2 and 4 of the source",
    ),
    "empty": ({"id": ["a", "b", "c", "d", ""]}, "ids must not be empty, got an empty string in row 4 of the source"),
    "bias": ({"bias": [0, 0, 0, 0, np.inf]}, "bias must be finite, got NaN or inf in row 4 of the source"),
    "costs": ({"cost": [0, 0, 0, -1, 0]}, "costs must be finite and at least 0, got -1 in row 3 of the source"),
}


@pytest.mark.parametrize("there", [True, False], ids=["there", "new"])
@pytest.mark.parametrize("case", ROWS_REFUSED)
def test_rows_that_are_refused_have_their_numbers_in_the_source(tmp_path, monkeypatch, case, there):
    monkeypatch.setattr(sync, "_BATCH", 2)
    columns = {"bias_column": "bias", "cost_column": "cost"}

    def written(given):
        count = len(given.get("id", given.get("bias", given.get("cost"))))
        usual = {"id": list("abcdef")[:count], "bias": [0.0] * count, "cost": [1.0] * count}
        vectors = np.random.default_rng(3).standard_normal((count, 4)).tolist()
        pq.write_table(pa.table({**usual, "vector": vectors, **given}), tmp_path / "rows.parquet")
        return tmp_path / "rows.parquet"

    if there:
        offline.sync_corpus(written({"id": ["a", "b"]}), tmp_path / "to", **columns)
    given, message = ROWS_REFUSED[case]
    with pytest.raises(ValueError, match=f"^sync_corpus: {message}$"):
        offline.sync_corpus(written(given), tmp_path / "to", **columns)


@pytest.mark.parametrize("call", ["build", "append", "sync"])
def test_an_id_that_is_in_two_segments_of_a_file_has_its_rows_there(tmp_path, call):
    rows = np.eye(5, D) + 1
    pq.write_table(pa.table({"id": list("vwxyx"), "vector": rows.tolist()}), tmp_path / "rows.parquet")
    match = "_corpus: ids must be unique, got 'x' in rows 2 and 4$"
    if call == "append":
        pq.write_table(pa.table({"id": ["a"], "vector": rows[:1].tolist()}), tmp_path / "one.parquet")
        offline.build_corpus(tmp_path / "one.parquet", tmp_path / "to", rows_per_segment=2)
        with pytest.raises(ValueError, match=match):
            offline.append_corpus(tmp_path / "rows.parquet", tmp_path / "to")
        pq.write_table(pa.table({"id": list("vwxya"), "vector": rows.tolist()}), tmp_path / "rows.parquet")
        with pytest.raises(ValueError, match=r"got 'a' in row 4 of the new rows, which is in row 0; on_duplicate"):
            offline.append_corpus(tmp_path / "rows.parquet", tmp_path / "to")
        return
    make = {"build": offline.build_corpus, "sync": offline.sync_corpus}[call]
    with pytest.raises(ValueError, match=match):
        make(tmp_path / "rows.parquet", tmp_path / "to", rows_per_segment=2)


def test_an_id_that_is_in_two_batches_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sync, "_BATCH", 2)
    source, to = Source(tmp_path / "source").add(6), tmp_path / "corpus"
    offline.sync_corpus(source.write(), to)
    for ids in ([-50, -47, 1, -50], [7, -47, 1, 7]):
        pq.write_table(pa.table({"id": ids, "vector": np.eye(4, D).tolist()}), source.folder / "0.parquet")
        for name in ("1.parquet", "2.parquet"):
            (source.folder / name).unlink(missing_ok=True)
        with pytest.raises(ValueError, match=f"ids must be unique, got {ids[0]} (twice|in rows)"):
            offline.sync_corpus(source.folder, to)
        assert rk.Corpus.load(to).num_live == 6


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_the_old_rows_or_the_new(tmp_path):
    source, to, rng = Source(tmp_path / "source").add(3000), tmp_path / "corpus", random.Random(1)
    offline.sync_corpus(source.write(), to, rows_per_segment=1000)
    begin, killed = time.monotonic(), 0
    offline.sync_corpus(source.folder, to)
    usual = time.monotonic() - begin
    for run in range(300):
        if run >= 30 and killed > 5:
            break
        before = dict(source.rows)
        source.change(30)
        source.remove(20)
        source.add(40)
        source.write()
        child = os.fork()
        if not child:
            try:
                offline.sync_corpus(source.folder, to)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0, 1.5 * usual))
        os.kill(child, signal.SIGKILL)
        if os.waitpid(child, 0)[1] == signal.SIGKILL:
            killed += 1
        else:  # a run takes less time than at first
            usual *= 0.8
        corpus = rk.Corpus.load(to, verify=True)
        live = np.flatnonzero(np.ones(len(corpus), bool) if corpus.live is None else corpus.live)
        found = set(np.asarray(corpus.ids[live]).tolist())
        assert found in (set(before), set(source.rows))
        offline.sync_corpus(source.folder, to)
        holds(to, source)
    assert killed > 5


def test_the_command(tmp_path, command):
    source, to = Source(tmp_path / "source").add(90), tmp_path / "corpus"
    source.write()
    shown = command(tmp_path, "corpus", "sync", "--from", source.folder, "--to", to)
    assert shown.stdout == "90 rows: 90 added, 0 changed, 0 deleted\n"
    shown = command(tmp_path, "corpus", "sync", "--from", source.folder, "--to", to, "--quiet")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "")
    shown = command(tmp_path, "corpus", "sync", "--from", "lancedb:nowhere", "--to", to)
    assert shown.returncode == 1
    assert "lancedb must have a table, as lancedb:PLACE?table=NAME, got none" in shown.stderr
    for wrong in ("0s", "x", "5w", "-1"):
        shown = command(tmp_path, "corpus", "sync", "--from", source.folder, "--to", to, "--every", wrong)
        assert shown.returncode == 2


@pytest.mark.parametrize("by", ["kernel", "numpy"])
@pytest.mark.parametrize("dims", [16, 5])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_rows_are_compared_with_those_that_have_their_ids(by, dims, metric, dtype, monkeypatch):
    """Whole runs of rows in one order, some that are out of it, and none in order: each finds the rows that differ."""
    if by == "numpy":
        monkeypatch.setattr(rows._dispatch, "why_not", lambda backend: "not asked for")
        monkeypatch.setattr(rows, "_STEP_BYTES", 8 * dims * 37)
    rng = np.random.default_rng(3)
    vectors, bias = rng.standard_normal((600, dims), dtype=np.float32), rng.random(600, dtype=np.float32)
    for swapped in (0, 6, 600):
        order = np.arange(600)
        some = rng.permutation(600)[:swapped]
        order[some] = rng.permutation(order[some])
        other, weights = vectors[order], bias[order]
        changed = np.unique(np.concatenate([rng.permutation(600)[:7], [0, 599]]))
        other[changed[:5], rng.integers(dims)] += 1
        weights[changed[5:]] += 1
        at = np.sort(rng.permutation(600)[:6])  # where new rows stand between them
        gone = rng.permutation(600)[:6]  # from the folder
        old = rk.Corpus(vectors, bias, metric=metric, dtype=dtype, ids=np.arange(600))
        new = sync._Batch(old, np.arange(606), np.insert(other, at, 1.0, axis=0), {"bias": np.insert(weights, at, 1.0)})
        places = np.where(np.isin(order, gone), -1, order)
        expected = np.insert((places >= 0) & ~np.isin(np.arange(600), changed), at, False)
        np.testing.assert_array_equal(new.equal(np.insert(places, at, -1)), expected)


@pytest.mark.parametrize("there", [False, True])
def test_a_vector_that_is_not_finite_is_named_by_its_id(tmp_path, there):
    vectors = np.random.default_rng(5).standard_normal((40, 4), dtype=np.float32)
    ids = [f"note {i}" for i in range(40)]

    def written(rows):
        table = pa.table({"id": ids[: len(rows)], "vector": list(rows)})
        pq.write_table(table, tmp_path / "notes.parquet")
        return tmp_path / "notes.parquet"

    offline.sync_corpus(written(vectors[: 40 if there else 20]), tmp_path / "to", vector_column="vector")
    vectors[31, 2] = np.inf
    with pytest.raises(
        ValueError, match=r"^sync_corpus: source must have finite vectors, got NaN or inf for id 'note 31'"
    ):
        offline.sync_corpus(written(vectors), tmp_path / "to", vector_column="vector")
    assert len(rk.Corpus.load(tmp_path / "to")) == (40 if there else 20)


def test_a_new_id_that_comes_again_in_a_later_segment_is_refused(tmp_path):
    def written(ids):
        vectors = np.random.default_rng(6).standard_normal((len(ids), 4), dtype=np.float32)
        pq.write_table(pa.table({"id": ids, "vector": list(vectors)}), tmp_path / "notes.parquet")
        return tmp_path / "notes.parquet"

    offline.sync_corpus(written(list(range(10))), tmp_path / "folder", rows_per_segment=20)
    before = segments.described(tmp_path / "folder")
    with pytest.raises(ValueError, match="ids must be unique, got 12 twice in the source"):
        offline.sync_corpus(written([*range(70), 12]), tmp_path / "folder", rows_per_segment=20)
    assert segments.described(tmp_path / "folder") == before
