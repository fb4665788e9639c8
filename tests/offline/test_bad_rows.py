"""Rows that cannot be used, left out where that is asked for: what is left is as without them, the rest is listed."""

import csv
import pickle

import numpy as np
import odd_ids
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import read
from jobs import spec_of
from tiny_encoder import TinyEncoder

import ragsys_kernels as rk
from ragsys_kernels import comparison, offline
from ragsys_kernels.offline._spec import Inputs
from ragsys_kernels.offline._worker import Held, Worker
from ragsys_kernels.offline.sources import _usable

N, Q, D = 60, 8, 5
ROWS = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
QUERIES = np.random.default_rng(1).standard_normal((Q, D)).astype(np.float32)
IDS = [f"d{i}" for i in range(N)]
REASONS = {
    0: "corpus must have 5 values in each row as most have, got 2",
    7: "corpus must have no null rows, got one",
    20: "corpus must be finite, got NaN or inf",
    21: "corpus must have no null values, got one",
    33: "bias must be finite, got NaN or inf",
    40: "costs must be finite and at least 0, got another",
    41: "corpus's id column must have no null rows, got one",
}
KEPT = np.setdiff1d(np.arange(N), list(REASONS))


@pytest.fixture
def table():
    vectors = ROWS.tolist()
    vectors[0], vectors[7], vectors[20], vectors[21] = [1.0, 2.0], None, [np.nan] * D, [None, *vectors[21][1:]]
    bias, costs, ids = np.linspace(-1, 1, N), np.ones(N), list(IDS)
    bias[33], costs[40], ids[41] = np.inf, -1, None
    return pa.table({
        "id": ids, "v": pa.array(vectors, pa.list_(pa.float32())), "bias": bias, "cost": costs, "group": IDS
    })  # fmt: skip


@pytest.fixture
def files(tmp_path, table):
    pq.write_table(table, tmp_path / "corpus.parquet", row_group_size=16)
    np.save(tmp_path / "queries.npy", QUERIES)
    return tmp_path


COLUMNS = {"bias_column": "bias", "cost_column": "cost", "group_column": "group"}


def listed(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def check_list(path, reasons, ids, source="corpus"):
    rows = listed(path)
    assert [int(row["row"]) for row in rows] == sorted(reasons)
    assert {row["input"] for row in rows} == {source}
    for row in rows:
        number = int(row["row"])
        assert row["reason"] == reasons[number]
        assert row["id"] == ids[number]


def good(columns=KEPT):
    bias = np.linspace(-1, 1, N)[columns]
    return rk.Corpus(ROWS[columns], bias=bias, costs=np.ones(len(columns)), groups=[IDS[i] for i in columns],
                     ids=[IDS[i] for i in columns])  # fmt: skip


@pytest.mark.parametrize("size", [None, 13])
def test_build_leaves_bad_rows_out(files, size):
    given = {"corpus": files / "corpus.parquet", "out": files / "c", "rows_per_segment": size, **COLUMNS}
    with pytest.raises(ValueError, match=r"^build_corpus: .* must have .* in row \d+ of "):
        offline.build_corpus(**given)
    assert not (files / "c").exists()
    built = offline.build_corpus(**given, bad_rows="skip")
    expected = good()
    assert built.ids[:].tolist() == expected.ids[:].tolist()
    for name in ("data", "bias", "costs"):
        np.testing.assert_array_equal(getattr(built, name), getattr(expected, name), err_msg=name)
    assert built.group_names[built.groups].tolist() == built.ids[:].tolist()
    check_list(files / "c.skipped.csv", REASONS, [*IDS[:41], "", *IDS[42:]])


def test_rows_without_ids_keep_their_numbers(files):
    """Those of arrays, with costs that are integers."""
    rows, costs, kept = ROWS.copy(), np.ones(N, np.int64), np.delete(np.arange(N), [3, 5, 50])
    rows[[3, 50]], costs[5] = np.inf, -1
    np.save(files / "costs.npy", costs)
    given = {"corpus": files / "corpus.npy", "out": files / "c", "bad_rows": "skip", "overwrite": True}
    np.save(files / "corpus.npy", rows)
    built = offline.build_corpus(**given, costs=files / "costs.npy")
    np.testing.assert_array_equal(built.ids[:], kept)
    np.testing.assert_array_equal(built.data, rk.Corpus(ROWS[kept]).data)
    reasons = {3: REASONS[20], 5: REASONS[40], 50: REASONS[20]}
    check_list(files / "c.skipped.csv", reasons, [""] * N)
    np.save(files / "corpus.npy", ROWS)  # none is bad: no list, and an earlier one goes
    built = offline.build_corpus(**given)
    assert (len(built), built.ids.kind) == (N, "row")
    assert not (files / "c.skipped.csv").exists()
    np.save(files / "corpus.npy", rows * np.inf)
    with pytest.raises(ValueError, match=r"^build_corpus: corpus must have a row that can be used, got none: "):
        offline.build_corpus(**given)


TWICE = {4: 2, 9: 2, 30: 11}  # rows with the ids of others


@pytest.mark.parametrize("size", [None, 13])
@pytest.mark.parametrize("form", [str, int])
def test_ids_that_are_there_twice(files, form, size):
    ids = np.arange(N) * 2
    for row, other in TWICE.items():
        ids[row] = ids[other]
    table = pa.table({"id": [form(each) for each in ids.tolist()], "v": list(ROWS)})
    pq.write_table(table, files / "corpus.parquet")
    given = {"corpus": files / "corpus.parquet", "out": files / "c", "rows_per_segment": size, "overwrite": True}
    with pytest.raises(ValueError, match=r"ids must (be unique|not be in the corpus), got "):
        offline.build_corpus(**given)
    for which, left in (("first", [4, 9, 30]), ("last", [2, 4, 11])):
        built = offline.build_corpus(**given, on_duplicate=which)
        kept = np.setdiff1d(np.arange(N), left)
        assert built.ids[:].tolist() == [form(each) for each in ids[kept]]
        np.testing.assert_array_equal(built.data, rk.Corpus(ROWS[kept]).data)
        rows = listed(files / "c.skipped.csv")
        assert [int(row["row"]) for row in rows] == left
        owner = {"first": 2, "last": 9}[which]
        got = repr(form(ids[2]))
        assert rows[0]["reason"] == f"ids must be unique, got {got} in row {owner} too, the {which} one"
    with pytest.raises(ValueError, match=r"^build_corpus: on_duplicate must come with ids, got none in "):
        offline.build_corpus(files / "queries.npy", files / "d", on_duplicate="first")


def test_select_leaves_bad_rows_out(files, command):
    pq.write_table(pa.table({"id": [IDS[i] for i in KEPT], "v": list(ROWS[KEPT])}), files / "good.parquet")
    shared = ("select", "--queries", "queries.npy", "--k", 3, "--pool", 9)
    assert command(files, *shared, "--corpus", "good.parquet", "--out", "expected").returncode == 0
    refused = command(files, *shared, "--corpus", "corpus.parquet", "--out", "o")
    assert refused.returncode == 1
    columns = pq.read_table(files / "corpus.parquet")
    reasons = {row: reason for row, reason in REASONS.items() if not reason.startswith(("bias", "costs"))}
    unread = [33, 40]  # good vectors and ids
    pq.write_table(columns.filter(pa.array(~np.isin(np.arange(N), unread))), files / "corpus.parquet")
    done = command(files, *shared, "--corpus", "corpus.parquet", "--out", "o", "--bad-rows", "skip")
    assert done.returncode == 0, done.stderr
    assert "select: 5 rows that cannot be used are left out; o.skipped.csv lists them" in done.stderr
    assert read(files / "o").equals(read(files / "expected"))
    assert len(listed(files / "o.skipped.csv")) == len(reasons)
    again = command(files, *shared, "--corpus", "corpus.parquet", "--out", "o", "--bad-rows", "skip")
    assert again.stdout.startswith("nothing to do")
    other = command(files, *shared, "--corpus", "corpus.parquet", "--out", "o", "--on-duplicate", "first",
                    "--bad-rows", "skip")  # fmt: skip
    assert other.returncode == 1
    assert "--on-duplicate" in other.stderr


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("ids", [["a", "", "b"], ["7", "", "8"]])
def test_an_empty_id_is_one_that_is_missing(tmp_path, form, ids):
    file, out = odd_ids.written(tmp_path, form, ids), tmp_path / "out"
    kept = list(map(int, ids[::2])) if form == "csv" and ids[0] == "7" else ids[::2]
    assert offline.build_corpus(file, out, bad_rows="skip").ids[:].tolist() == kept
    assert [row["row"] for row in listed(tmp_path / "out.skipped.csv")] == ["1"]


def test_rows_without_an_id_repeat_none(files):
    pq.write_table(pa.table({"id": ["a", None, "b", "a"], "v": list(ROWS[:4])}), files / "c.parquet")
    with pytest.raises(TypeError, match=r"^Corpus: ids must be all integers or all strings, got NoneType in row 1"):
        offline.build_corpus(files / "c.parquet", files / "c", on_duplicate="first")


def test_other_processes_do_not_look_again(files, monkeypatch):
    """What was found goes to them; the columns are then the same, without a scan."""
    spec = spec_of(
        corpus=files / "corpus.parquet", queries=files / "queries.npy", bias_column="bias", bad_rows="skip",
        on_duplicate="first",
    )  # fmt: skip
    first = Inputs.open(spec)
    held = pickle.loads(pickle.dumps(Held.of(spec, first)))
    sent = held.usable
    assert sent.columns == {}
    monkeypatch.setattr(_usable, "_found", lambda *_: pytest.fail("the rows were looked at again"))
    other = Inputs.open(spec, known=sent)
    assert other.usable.skipped == first.usable.skipped
    assert other.usable.ids == first.usable.ids
    np.testing.assert_array_equal(other.usable.kept, first.usable.kept)
    for name in ("corpus", "bias"):
        np.testing.assert_array_equal(getattr(other, name).whole(), getattr(first, name).whole())
    assert other.corpus_ids.whole().equals(first.corpus_ids.whole())
    assert Worker(spec, held).rows == Q


@pytest.mark.parametrize("by_ids", [False, True])
def test_candidates_keep_their_numbers(files, by_ids):
    """Lists name rows of the file, or ids; those that are left out are no candidates, others stay the same."""
    there = np.delete(np.arange(N), 41)  # which has no id
    lists = [sorted(np.random.default_rng(q).choice(there, 20, replace=False).tolist()) for q in range(Q)]
    named = [[IDS[row] for row in each] for each in lists] if by_ids else lists
    pq.write_table(pa.table({"c": named}), files / "candidates.parquet")
    known = KEPT.tolist()
    offline.select(corpus=files / "corpus.parquet", queries=files / "queries.npy", out=files / "o", k=3,
                   candidates=files / "candidates.parquet", candidate_ids=by_ids, bad_rows="skip", bias_column="bias",
                   cost_column="cost", budget=3.0)  # fmt: skip
    corpus = good()
    width = max(len([row for row in each if row in known]) for each in lists)
    expected = np.full((Q, width), -1)
    for q, each in enumerate(lists):
        rows = [known.index(row) for row in each if row in known]
        expected[q, : len(rows)] = rows
    direct = corpus.select(QUERIES, 3, candidates=expected, budget=3.0)
    assert read(files / "o")["ids"].to_pylist() == [corpus.ids[row].tolist() for row in direct.indices]


def test_a_damaged_row_group_costs_its_rows(files):
    path = files / "corpus.parquet"
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), D)
    pq.write_table(pa.table({"id": IDS, "v": vectors}), path, row_group_size=20)
    content, column = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(1).column(1)
    begin = column.dictionary_page_offset or column.data_page_offset
    content[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    built = offline.build_corpus(path, files / "c", bad_rows="skip")
    assert built.ids[:].tolist() == [*IDS[:20], *IDS[40:]]
    assert {row["reason"].partition(": ")[2] for row in listed(files / "c.skipped.csv")} != {""}


def test_index_over_rows_that_are_left_out_is_refused(files):
    faiss = pytest.importorskip("faiss")
    faiss.write_index(rk.Corpus(ROWS).to_faiss(), str(files / "index"))
    with pytest.raises(ValueError, match=r"^select: index must be over rows that can be used, got corpus must "):
        offline.select(corpus=files / "corpus.parquet", queries=files / "queries.npy", out=files / "o", bad_rows="skip",
                       index=files / "index")  # fmt: skip


def test_compare_leaves_bad_rows_and_queries_out(files):
    queries = np.random.default_rng(5).standard_normal((40, D)).astype(np.float32)
    bad = queries.copy()
    bad[6] = np.nan
    np.save(files / "queries.npy", bad)
    options = {"k": 2, "pool": 10, "methods": ["mmr"], "peers": False, "whole": 0, "sample": None}
    found = comparison.compare_files(
        files / "corpus.parquet", files / "queries.npy", files / "o", bias_column="bias", bad_rows="skip", **options
    )
    kept = np.setdiff1d(np.arange(N), [row for row in REASONS if row != 40])
    corpus = rk.Corpus(ROWS[kept], bias=np.linspace(-1, 1, N)[kept], ids=[IDS[row] for row in kept])
    expected = comparison.compare(corpus, np.delete(queries, 6, axis=0), **options)
    for method, measures in expected.values.items():
        for name, values in measures.items():
            np.testing.assert_array_equal(found.values[method][name], values, err_msg=f"{method} {name}")
    rows = listed(files / "o.skipped.csv")
    assert [row["row"] for row in rows if row["input"] == "queries"] == ["6"]
    assert len([row for row in rows if row["input"] == "corpus"]) == N - len(kept)


def test_embed_leaves_rows_without_text_out(tmp_path, caplog):
    table = pa.table({"id": ["x", "y", "z", "w"], "text": ["light", " ", "of the star", None]})
    pq.write_table(table, tmp_path / "t.parquet")
    given = {"texts": tmp_path / "t.parquet", "model": TinyEncoder(), "out": tmp_path / "v.parquet"}
    with pytest.raises(ValueError, match=r"^embed: texts must hold text in every row of 'text', got none in row 1"):
        offline.embed(**given)
    with caplog.at_level("INFO", "ragsys_kernels"):
        assert offline.embed(**given, bad_rows="skip").texts == 2
    assert "embed: 2 rows that cannot be used are left out; " in caplog.text
    made = pq.read_table(tmp_path / "v.parquet")
    assert made["id"].to_pylist() == ["x", "z"]
    np.testing.assert_array_equal(
        np.stack(made["embedding"].to_numpy()), TinyEncoder().encode(["light", "of the star"])
    )
    rows = listed(tmp_path / "v.parquet.skipped.csv")
    assert [(row["input"], row["row"], row["id"]) for row in rows] == [("texts", "1", "y"), ("texts", "3", "w")]


@pytest.mark.parametrize(("name", "value"), [("bad_rows", "drop"), ("on_duplicate", "replace")])
def test_other_choices_are_refused(files, name, value):
    with pytest.raises(ValueError, match=f"^build_corpus: {name} must be one of "):
        offline.build_corpus(files / "corpus.parquet", files / "c", **{name: value})


FOLDERS = {
    "build_corpus": lambda given, out, **more: offline.build_corpus(given, out, **more),
    "build_corpus: ids": lambda given, out, **more: offline.build_corpus("other.npy", out, ids=given, **more),
    "sync_corpus": lambda given, out, **more: offline.sync_corpus(given, out, **more),
    "select": lambda given, out, **more: offline.select(corpus=given, queries="other.npy", out=out, k=2, **more),
    "compare": lambda given, out, **more: comparison.compare_files("other.npy", "more.npy", out, texts=given, **more),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_written_is_kept_apart_from_the_inputs(files, name):
    """Folders, and the lists of rows left out, which lie beside them."""
    call, op = FOLDERS[name], name.partition(":")[0]
    argument = {"sync_corpus": "to"}.get(op, "out")
    (files / "parts").mkdir()
    (files / "c.skipped.csv").write_text("id,v\n")
    before = sorted(files.rglob("*"))
    for given, out, written, options in (
        (files / "parts", files / "parts" / "c", argument, {}),
        (files / "corpus.parquet", files, argument, {}),
        (files / "c.skipped.csv", files / "c", "OUT.skipped.csv", {"bad_rows": "skip"}),
    ):
        with pytest.raises(ValueError, match=f"^{op}: {written} must not be an input, lie in one or hold one, got "):
            call(given, out, **options)
    assert sorted(files.rglob("*")) == before
    with pytest.raises((ValueError, OSError)) as refused:  # nothing is left out, so that no list is written
        call(files / "c.skipped.csv", files / "c")
    assert "must not be an input" not in str(refused.value)


def test_what_is_one_is_no_plural(command, files):
    """Of rows left out, queries and shards of a job, rows kept and deleted."""
    rows = [[1.0, 0.0], [None, 1.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.1]]
    pq.write_table(
        pa.table({"id": range(5), "embedding": pa.array(rows, pa.list_(pa.float32()))}), files / "few.parquet"
    )
    np.save(files / "one.npy", np.ones((1, 2), np.float32))
    few = ("--corpus", "few.parquet", "--bad-rows", "skip")
    job = ("select", *few, "--queries", "one.npy", "--out", "o", "--k", 1, "--pool", 2)
    first, again = command(files, *job), command(files, *job)
    assert first.stderr == "notice: select: 1 row that cannot be used is left out; o.skipped.csv lists it\n"
    assert first.stdout.startswith("1 query in ")
    assert again.stdout.startswith("nothing to do: the query is done, and its files as they were written, ")
    assert command(files, "job", "verify", "o").stdout == "right: 1 query in 1 shard\n"
    assert command(files, "corpus", "build", *few, "--out", "c", "--rows-per-segment", 3).returncode == 0
    (files / "gone.txt").write_text("2\n7\n")
    deleted = command(files, "corpus", "delete", "--ids", "gone.txt", "--from", "c").stdout
    assert deleted == "1 row deleted, 1 id not in the corpus: 7\n"
    kept = command(files, "dedupe", "--corpus", "one.npy", "--threshold", "0.9", "--out", "kept.parquet").stdout
    assert kept.startswith("1 of 1 row kept, 0 removed")
