"""Candidates of a job: by the ids of the corpus, and lists of very unequal lengths."""

import logging
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import N, Q, check_equals, check_refused, files, read, vector_lists
from jobs import spec_of

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline import _worker, sources

IDS = {
    "integers": [7 * row + 10 for row in reversed(range(N))],
    "strings": [f"document {row:03}" for row in np.random.default_rng(1).permutation(N)],
}


@pytest.fixture(params=IDS)
def ids(request, tmp_path, data):
    """Ids in another order than the rows, beside the vectors in corpus.parquet."""
    found = IDS[request.param]
    pq.write_table(pa.table({"vector": vector_lists(data["corpus"]), "id": found}), tmp_path / "corpus.parquet")
    return found


def select(tmp_path, out="out", **options):
    given = {"corpus": tmp_path / "corpus.parquet", "queries": tmp_path / "queries.npy", "k": 5}
    return offline.select(**{**given, "out": tmp_path / out, **options})


def lists_of(data, ids):
    return [[ids[row] for row in rows if row >= 0] for rows in data["candidates"].tolist()]


@pytest.mark.parametrize("chunk_size", [17, 4096])
def test_lists_of_ids_are_those_rows(tmp_path, data, ids, chunk_size):
    pq.write_table(pa.table({"candidates": lists_of(data, ids)}), tmp_path / "ids.parquet", row_group_size=50)
    select(tmp_path, candidates=tmp_path / "ids.parquet", candidate_ids=True, chunk_size=chunk_size)
    expected = rk.Corpus(data["corpus"]).select(data["queries"], 5, candidates=data["candidates"])
    check_equals(read(tmp_path / "out"), expected, ids=ids)


def test_the_picks_of_a_job_are_candidates_of_the_next(tmp_path, data, ids):
    select(tmp_path, "first", k=30, pool=60)
    options = {"candidates": tmp_path / "first", "candidate_column": "ids", "candidate_ids": True}
    select(tmp_path, "second", k=3, lambda_d=1.0, **options)
    first, second = (read(tmp_path / name)["ids"].to_pylist() for name in ("first", "second"))
    row_of = {each: row for row, each in enumerate(ids)}
    unit = data["corpus"] / np.linalg.norm(data["corpus"], axis=1, keepdims=True)
    for query, found, picked in zip(data["queries"], first, second, strict=True):
        by_cosine = sorted(found, key=lambda each: -(unit[row_of[each]] @ query))
        assert picked == by_cosine[:3]


def test_unknown_ids_follow_on_error(tmp_path, data, ids):
    lists = lists_of(data, ids)
    unknown = "document" if isinstance(ids[0], str) else 11
    lists[7][2] = lists[207][0] = unknown
    path = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"candidates": lists}), path)
    options = {"corpus": tmp_path / "corpus.parquet", "candidates": path, "candidate_ids": True, "chunk_size": 50}
    match = f"^select: candidates must be ids of the corpus, got {unknown!r} in row 7 of {path}$"
    check_refused(tmp_path, ValueError, match, **options)
    assert select(tmp_path, **options, on_error="skip").skipped == 2
    errors = read(tmp_path / "out.job" / "_errors-00000.parquet")
    assert errors["query_row"].to_pylist() == [7, 207]
    assert errors["reason"].to_pylist() == [f"candidates must be ids of the corpus, got {unknown!r}"] * 2
    rows = data["candidates"].copy()
    rows[[7, 207]] = -1
    check_equals(read(tmp_path / "out"), rk.Corpus(data["corpus"]).select(data["queries"], 5, candidates=rows), ids=ids)


@pytest.mark.parametrize("engine", [{"chunk_size": 50, "shard_size": 120}, {}])
def test_unknown_ids_are_left_out_and_counted(tmp_path, data, ids, engine):
    lists = lists_of(data, ids)
    unknown = "document" if isinstance(ids[0], str) else 11
    lists[7][2:2] = [unknown] * 2
    lists[207] = [unknown]
    lists[208] = []
    path = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"candidates": lists}), path)
    options = {"corpus": tmp_path / "corpus.parquet", "candidates": path, "candidate_ids": True, **engine}
    summary = select(tmp_path, **options, unknown_ids="skip")
    assert (summary.skipped, summary.unknown) == (0, 3)
    assert "3 unknown ids of candidates left out" in str(summary)
    assert select(tmp_path, **options, unknown_ids="skip").unknown == 3  # of a job that is complete
    rows = data["candidates"].copy()
    rows[[207, 208]] = -1
    check_equals(read(tmp_path / "out"), rk.Corpus(data["corpus"]).select(data["queries"], 5, candidates=rows), ids=ids)
    check_refused(tmp_path, ValueError, "with unknown_ids skip, now none", out=tmp_path / "out", k=5, **options)


def test_arrays_of_ids_are_padded_with_minus_one(tmp_path, data):
    """With unknown ids too, which are left out."""
    ids = IDS["integers"]
    pq.write_table(pa.table({"vector": vector_lists(data["corpus"]), "id": ids}), tmp_path / "corpus.parquet")
    rows = data["candidates"]
    names = np.where(rows < 0, -1, np.array(ids)[rows])
    options = {"candidates": tmp_path / "ids.npy", "candidate_ids": True}
    for unknown, out in (({}, "out"), ({"unknown_ids": "skip"}, "skip")):
        if unknown:
            names[3, :4], rows[3, :4] = [11, 12, -1, 13], -1
        np.save(tmp_path / "ids.npy", names)
        assert select(tmp_path, out, **options, **unknown).unknown == 3 * len(unknown)
        expected = rk.Corpus(data["corpus"]).select(data["queries"], 5, candidates=rows)
        check_equals(read(tmp_path / out), expected, ids=ids)
    for wrong, match in (
        ({"unknown_ids": "skip"}, "unknown_ids must come with candidate_ids, got 'skip' alone"),
        ({"unknown_ids": "no"}, "unknown_ids must be one of 'error', 'skip', got 'no'"),
    ):
        check_refused(tmp_path, ValueError, f"select: {match}", **wrong)


def test_repeated_ids_are_named(tmp_path, data, ids):
    """By the id, not by the row of the corpus, which nobody gave."""
    lists = lists_of(data, ids)
    lists[7].insert(3, lists[7][9])
    lists[8][1:1] = lists[207][:0]  # ids of other lists are no repeats
    path = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"candidates": lists}), path)
    options = {"corpus": tmp_path / "corpus.parquet", "candidates": path, "candidate_ids": True, "chunk_size": 50}
    reason = f"candidates must not repeat an id within a query, got {lists[7][3]!r} twice"
    check_refused(tmp_path, ValueError, f"^select: {reason} in row 7 of {path}$", **options)
    assert select(tmp_path, **options, on_error="skip").skipped == 1
    assert read(tmp_path / "out.job" / "_errors-00000.parquet")["reason"].to_pylist() == [reason]
    rows = data["candidates"].copy()
    rows[7] = -1
    check_equals(read(tmp_path / "out"), rk.Corpus(data["corpus"]).select(data["queries"], 5, candidates=rows), ids=ids)


def test_what_makes_no_ids_is_refused(tmp_path, data):
    vectors = vector_lists(data["corpus"])

    def refused(ids, candidates, match, kind=ValueError, **options):
        columns = {"vector": vectors} if ids is None else {"vector": vectors, "id": ids}
        pq.write_table(pa.table(columns), tmp_path / "corpus.parquet")
        pq.write_table(pa.table({"candidates": [candidates] * Q}), tmp_path / "ids.parquet")
        given = {"candidates": tmp_path / "ids.parquet", "candidate_ids": True, **options}
        check_refused(tmp_path, kind, f"^select: {match}", corpus=tmp_path / "corpus.parquet", **given)

    text, numbers = IDS["strings"], IDS["integers"]
    refused(None, [1], "candidate_ids must come with ids of the corpus, got none in .*corpus.parquet")
    refused(numbers, ["a"], "candidates must be integers as the ids of the corpus are, got strings in .*ids.parquet")
    refused(text, [1], "candidates must be strings as the ids of the corpus are, got integers in .*ids.parquet")
    refused([*numbers[:-1], numbers[3]], [1], f"ids must be unique, got {numbers[3]} in rows 3 and 299 of .*corpus")
    refused([float(i) for i in range(N)], [1], "ids must be integers or strings, got float64 of .*corpus", TypeError)
    refused(text, ["a"], "candidates must hold lists of integers in|candidates must have one", candidate_ids=False)
    match = "select: candidate_ids must come with candidates, got candidate_ids alone"
    check_refused(tmp_path, ValueError, match, candidate_ids=True)
    refused(text, ["a"], "candidate_ids must be True or False, got 'yes'", TypeError, candidate_ids="yes")


def test_the_option_is_part_of_the_job(tmp_path, data):
    ids = list(reversed(range(N)))  # any row number is an id too
    pq.write_table(pa.table({"vector": vector_lists(data["corpus"]), "id": ids}), tmp_path / "corpus.parquet")
    options = {"corpus": tmp_path / "corpus.parquet", "out": tmp_path / "out", **files(tmp_path, "candidates")}
    select(tmp_path, **options)
    check_refused(tmp_path, ValueError, "with candidate_ids none, now True", k=5, **options, candidate_ids=True)
    by_number = read(tmp_path / "out")["ids"].to_pylist()
    select(tmp_path, **options, candidate_ids=True, overwrite=True)
    assert select(tmp_path, **options, candidate_ids=True).selected == 0
    assert read(tmp_path / "out")["ids"].to_pylist() != by_number


def test_numbers_beside_ids_are_noted(tmp_path, data, ids, caplog):
    with caplog.at_level(logging.INFO, "ragsys_kernels"):
        select(tmp_path, **files(tmp_path, "candidates"))
        assert "candidates are row numbers of the corpus, not its ids in" in caplog.text
        caplog.clear()
        pq.write_table(pa.table({"candidates": lists_of(data, ids)}), tmp_path / "ids.parquet")
        select(tmp_path, "other", candidates=tmp_path / "ids.parquet", candidate_ids=True)
    assert "row numbers of the corpus, not" not in caplog.text


# --- lists of very unequal lengths ---------------------------------------------------------------------------------


def unequal(seed):
    rng = np.random.default_rng(seed)
    lists = [rng.choice(N, rng.integers(0, 12), replace=False).tolist() for _ in range(Q)]
    lists[40], lists[41], lists[229] = rng.permutation(N).tolist(), list(range(N)), rng.permutation(N).tolist()
    return lists


@pytest.mark.parametrize("most", [1, 100, 1000])
def test_runs_hold_so_many_cells(most):
    given = unequal(0)
    lists = sources.Lists.of(np.concatenate([np.array(each, np.int64) for each in given]), list(map(len, given)))
    runs = list(lists.runs(most))
    assert [row for run in runs for row in range(run.start, run.stop)] == list(range(Q))
    for run in runs:
        rows = lists[run].padded()
        assert rows.size <= most or len(rows) == 1
        assert [[item for item in row if item >= 0] for row in rows.tolist()] == given[run]


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")  # a run may have short lists alone
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_one_long_list_makes_no_others_long(tmp_path, data, monkeypatch, on_error):
    given = unequal(1)
    pq.write_table(pa.table({"candidates": given}), tmp_path / "lists.parquet")
    options = {"corpus": tmp_path / "corpus.npy", "candidates": tmp_path / "lists.parquet", "on_error": on_error}
    if on_error == "skip":
        data["queries"][[40, 100]] = np.nan
        np.save(tmp_path / "queries.npy", data["queries"])
    monkeypatch.setattr(sources.Lists.runs, "__defaults__", (400,))
    asked = []

    class Corpus(rk.Corpus):
        def _select(self, request, pool, index):
            if request.candidates is not None:  # else the options are checked
                asked.append(request.candidates.shape)
            return super()._select(request, pool, index)

    monkeypatch.setattr(_worker.rk, "Corpus", Corpus)
    select(tmp_path, **options)
    assert sum(rows for rows, _ in asked) == Q
    assert max(rows * width for rows, width in asked) <= 400
    padded = np.full((Q, N), -1)
    for row, each in enumerate(given):
        padded[row, : len(each)] = each
    expected = rk.Corpus(data["corpus"]).select(data["queries"], 5, candidates=padded, on_error=on_error)
    check_equals(read(tmp_path / "out"), expected)


def test_a_damaged_row_group_is_noted_in_linear_time(tmp_path, data):
    """Rows that cannot be read are entered all at once, before the rows of a chunk that had a bad row itself."""
    spec = spec_of(corpus=tmp_path / "corpus.npy", queries=tmp_path / "queries.npy", chunk_size=10, k=1)
    worker = _worker.Worker(replace(spec.settled(), on_error="skip"))

    class Damaged:
        def chunks(self, size, start, stop, bad):
            for first in range(start, stop, size):
                if first == 20:
                    bad.update(dict.fromkeys(range(25, Q), "damaged"))
                    bad[21] = "bad"
                yield np.zeros((min(size, stop - first), 12), np.float32)

    worker._inputs = replace(worker._inputs, queries=Damaged())
    found = {piece.start: sorted(piece.bad) for piece in worker._pieces(0, Q)}
    assert found[10] == []
    assert found[20] == [21, *range(25, 30)]
    assert found[220] == list(range(220, 230))
