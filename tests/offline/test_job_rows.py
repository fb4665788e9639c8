"""What status and verify say of a job, and queries that cannot be used."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_files import at, contents
from jobs import SHARD, Q, flip, rewritten

from ragsys_kernels import offline


def test_status_of_a_job_that_stopped(job):
    out = job.out
    job.stop_after(3)
    (out / "part-00001.parquet").unlink()
    state = offline.status(out)
    assert (state.queries, state.done, state.shards, state.num_shards, state.shard_size) == (Q, 300, 2, 7, SHARD)
    assert (state.missing, state.complete, state.owner, state.skipped) == ((range(1, 2), range(3, 7)), False, None, 0)
    assert "complete: no, missing part-00001.parquet, part-00003.parquet to part-00006.parquet" in str(state)
    found = offline.verify(out)
    assert found[0] == "part-00001.parquet is missing"
    assert found[1] == "part-00003.parquet to part-00006.parquet are missing: queries 450 to 999 are not done"
    assert len(found) == 2


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda table: table.slice(1), "part-00002.parquet must have 150 rows, got 149"),
        (lambda table: table.take(pa.array([0, *range(149)])), "must have queries 300 to 449, each once and in order"),
        (lambda table: table.drop_columns("scores"), "part-00002.parquet must have the columns"),
        (lambda table: table.append_column("query_id", table["query_id"]), "part-00002.parquet must have the columns"),
    ],
)
def test_verify_reads_the_rows(job, change, match):
    rewritten(job.done, 2, change)
    (found,) = offline.verify(job.done)
    assert match in found


# --- queries that cannot be used ----------------------------------------------------------------------------------


def test_skipped_queries_are_recorded_and_change_no_other(job):
    expected = pq.read_table(job.done)
    queries, candidates = np.load(job.options["queries"]), np.load(job.options["candidates"])
    queries[[5, 160], 2] = np.nan, np.inf
    candidates[6, 1], candidates[163, 2], candidates[164, 0] = 200, -2, candidates[164, 1]
    np.save(job.options["queries"], queries)
    np.save(job.options["candidates"], candidates)
    with pytest.raises(ValueError, match="queries must be finite, got NaN or inf in row 5 of"):
        job.run()
    summary = job.run(on_error="skip")
    assert summary.skipped == 5
    assert ", 5 queries skipped," in str(summary)
    table, bad = pq.read_table(job.out), [5, 6, 160, 163, 164]
    assert table["query_id"].to_pylist() == list(range(Q))
    for name in ("ids", "scores", "relevance", "redundancy"):
        rows, right = table[name].to_pylist(), expected[name].to_pylist()
        assert [rows[row] for row in bad] == [[]] * 5
        assert [row for i, row in enumerate(rows) if i not in bad] == [
            row for i, row in enumerate(right) if i not in bad
        ]
    names = [name for name in sorted(contents(job.out)) if name.startswith("_errors")]
    assert names == ["_errors-00000.parquet", "_errors-00001.parquet"]
    errors = pa.concat_tables([pq.read_table(at(job.out, name)) for name in names]).to_pylist()
    assert [(error["query_row"], error["query_id"]) for error in errors] == [(row, row) for row in bad]
    reasons = [error["reason"] for error in errors]
    assert reasons[0] == reasons[2] == "queries must be finite, got NaN or inf"
    assert reasons[1] == "candidates must be -1 or rows of the corpus, below N = 200, got 200"
    assert reasons[3] == "candidates must be -1 or rows of the corpus, below N = 200, got -2"
    assert reasons[4] == f"candidates must not repeat an id within a query, got {candidates[164, 0]} twice"
    assert offline.verify(job.out) == []
    with pytest.raises(ValueError, match="on_error must be 'skip' to resume where queries were skipped, got 5"):
        job.run()
    flip(at(job.out, "_errors-00001.parquet"))
    assert offline.verify(job.out)[0].startswith("_errors-00001.parquet is damaged")
    before = contents(job.out)["part-00001.parquet"]
    with pytest.warns(UserWarning, match="_errors-00001"):
        assert job.run(on_error="skip").selected == SHARD
    assert contents(job.out)["part-00001.parquet"] == before


def test_queries_with_fewer_than_k_picks_are_counted(job):
    """Those done before, too; a query that is skipped is not one of them."""
    candidates, queries = np.load(job.options["candidates"]), np.load(job.options["queries"])
    candidates[[3, 160, 161], 2:] = -1
    candidates[500] = -1
    candidates[7, 3:] = -1  # as many as k
    queries[4] = np.nan
    candidates[4, 1:] = -1
    np.save(job.options["candidates"], candidates)
    np.save(job.options["queries"], queries)
    job.stop_after(2, on_error="skip")
    for _ in range(2):
        summary = job.run(on_error="skip")
        assert (summary.short, summary.skipped) == (4, 1)
        assert ", 1 query skipped, 4 got fewer than 3 picks" in str(summary)
    lengths = [len(picks) for picks in pq.read_table(job.out)["ids"].to_pylist()]
    assert sum(length < 3 for length in lengths) == 5
    state = offline.status(job.out)
    assert (state.short, state.skipped) == (4, 1)
    assert f"queries: {Q} of {Q} done, 1 of them skipped, 4 got fewer than 3 picks\n" in str(state)


def test_job_that_failed_goes_on_with_skip(job):
    """What was done under "raise" has nothing to skip, so that it stays."""
    queries = np.load(job.options["queries"])
    queries[700] = np.nan
    np.save(job.options["queries"], queries)
    with pytest.raises(ValueError, match="row 700 of"):
        job.run()
    summary = job.run(on_error="skip")
    assert (summary.selected, summary.skipped) == (Q - 4 * SHARD, 1)


@pytest.mark.parametrize("candidates", [True, False])
def test_bad_rows_of_parquet_are_skipped(tmp_path, job, candidates):
    rows = np.load(job.options["queries"]).tolist()
    rows[0], rows[3], rows[500], rows[999] = None, [1.0], [None] * 8, [float("inf")] * 8
    ids = [f"q{row}" for row in range(Q)]
    ids[4] = None
    pq.write_table(pa.table({"id": ids, "v": rows}), tmp_path / "queries.parquet", row_group_size=64)
    changed = {"queries": tmp_path / "queries.parquet"}
    if not candidates:
        changed |= {"candidates": None, "pool": 6}
    summary = job.run(**changed, on_error="skip")
    assert summary.skipped == 5
    table = pq.read_table(job.out)
    assert [row for row, picks in enumerate(table["ids"].to_pylist()) if not picks] == [0, 3, 4, 500, 999]
    assert table["query_id"].to_pylist() == ids
    errors = [pq.read_table(path).to_pylist() for path in sorted(job.out.with_name("out.job").glob("_errors-*"))]
    assert [(error["query_row"], error["query_id"]) for shard in errors for error in shard] == [
        (row, ids[row]) for row in (0, 3, 4, 500, 999)
    ]
    assert offline.verify(job.out) == []


NUMBERS = pa.array(range(100), pa.int64())
SECONDS = NUMBERS.cast(pa.int32()).cast(pa.time32("s"))


@pytest.mark.parametrize(
    ("ids", "stored"),
    [
        (pa.array(np.arange(100) * 86_400_000).cast(pa.date64()), pa.date32()),
        (NUMBERS.cast(pa.timestamp("s")), pa.timestamp("ms")),
        (NUMBERS.cast(pa.timestamp("s", "UTC")), pa.timestamp("ms", "UTC")),
        (SECONDS, pa.time32("ms")),
        (SECONDS.dictionary_encode(), pa.time32("ms")),
        (NUMBERS.cast(pa.timestamp("us")), pa.timestamp("us")),
        (NUMBERS.cast(pa.duration("s")), pa.duration("s")),
        (NUMBERS.cast(pa.string()).cast(pa.string_view()), pa.large_string()),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_ids_are_of_a_type_that_parquet_gives_back(tmp_path, ids, stored):
    rows = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
    write_ids(tmp_path / "rows.arrow", ids, list(rows))
    offline.select(corpus=tmp_path / "rows.arrow", queries=tmp_path / "rows.arrow", out=tmp_path / "out", k=1, pool=3)
    assert offline.verify(tmp_path / "out") == []
    found = pq.read_table(tmp_path / "out")
    assert found.schema.field("query_id").type == stored
    plain = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    assert found["query_id"].combine_chunks().equals(plain.cast(stored))
    assert found["ids"].combine_chunks().flatten().equals(found["query_id"].combine_chunks())  # its own nearest row


def write_ids(path, ids, vectors):
    table = pa.table({"id": ids, "vector": vectors})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def test_a_null_in_a_dictionary_of_ids_is_no_id(tmp_path):
    ids = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 1]), pa.array(["a", None, "c"]))
    write_ids(tmp_path / "rows.arrow", ids, [[1.0, 2.0], [2.0, 1.0], [3.0, 1.0], [1.0, 3.0]])
    np.save(tmp_path / "rows.npy", np.eye(2, dtype=np.float32))
    with pytest.raises(ValueError, match="corpus's id column must have no null rows, got one in row 1 of"):
        offline.select(corpus=tmp_path / "rows.arrow", queries=tmp_path / "rows.npy", out=tmp_path / "out", k=1, pool=3)
