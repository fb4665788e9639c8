"""The column ``certified`` of a job, and what its summary and its status say of it."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline._manifest import proven


@pytest.fixture
def home(tmp_path, compiled):
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((30, 16))
    for name, count in (("corpus", 900), ("queries", 200)):
        rows = centres[rng.integers(0, 30, count)] + 0.6 * rng.standard_normal((count, 16))
        np.save(tmp_path / f"{name}.npy", rows.astype(np.float32))
    return tmp_path


def run(home, out="out", **options):
    given = {"corpus": home / "corpus.npy", "queries": home / "queries.npy", "k": 4, "shard_size": 60, "pool": 60}
    return offline.select(**{**given, "out": home / out, **options})


def direct(home, **options):
    corpus = rk.Corpus(np.load(home / "corpus.npy"))
    return corpus.select(np.load(home / "queries.npy"), 4, **{"pool": 60, **options})


def test_the_column_and_the_summary_are_those_of_the_selection(home):
    summary = run(home)
    expected = direct(home)
    assert 0 < expected.certified.sum() < 200
    assert pq.read_table(home / "out")["certified"].to_pylist() == expected.certified.tolist()
    assert summary.certified == expected.certified.sum()
    share = f", {100 * expected.certified.mean():.0f} % of queries proven equal to the whole corpus"
    assert share in str(summary)
    state = offline.status(home / "out")
    assert state.certified == summary.certified
    assert share in str(state)
    assert offline.verify(home / "out") == []


def test_pools_grow_until_all_is_certified(home):
    options = {"lambda_d": 0.6, "chunk_size": 70}
    assert not direct(home, pool=100, lambda_d=0.6).certified.all()  # the first of them is not enough
    summary = run(home, pool="certified", **options)
    run(home, "whole", pool="all", **options)
    picked, whole = (pq.read_table(home / name) for name in ("out", "whole"))
    assert picked.drop_columns("certified").equals(whole)
    assert set(picked["certified"].to_pylist()) == {True}
    assert ", 100 % of queries proven equal to the whole corpus" in str(summary)
    assert "pool=certified" in str(summary)
    assert run(home, pool="certified", **options).selected == 0
    with pytest.raises(ValueError, match="pool certified, now 60"):
        run(home, **options)


def test_a_job_that_stopped_counts_the_shards_of_both_runs(home):
    run(home, "undisturbed")
    stops = iter([False, True])
    half = run(home, stop=lambda: next(stops))
    assert half.done == 60
    assert half.certified == direct(home).certified[:60].sum()
    assert run(home).certified == direct(home).certified.sum()
    for path in sorted((home / "undisturbed").glob("part-*")):
        assert (home / "out" / path.name).read_bytes() == path.read_bytes()
    again = run(home)
    assert again.selected == 0
    assert again.certified == direct(home).certified.sum()


@pytest.mark.parametrize("options", [{"pool": "all"}, {"method": "vrsd"}, {"metric": "dot"}, "candidates", "index"])
def test_what_is_not_known_is_not_said(home, options):
    if options == "candidates":
        np.save(home / "near.npy", direct(home).indices)
        options = {"candidates": home / "near.npy", "pool": None, "k": 2}
    elif options == "index":
        faiss = pytest.importorskip("faiss")
        faiss.write_index(rk.Corpus(np.load(home / "corpus.npy")).to_faiss(), str(home / "near.faiss"))
        options = {"index": home / "near.faiss"}
    summary = run(home, **options)
    assert summary.certified is None
    assert "proven" not in str(summary)
    assert "certified" not in pq.read_table(home / "out").column_names


def test_skipped_queries_have_no_certificate(home):
    queries = np.load(home / "queries.npy")
    queries[7] = np.nan
    np.save(home / "queries.npy", queries)
    summary = run(home, on_error="skip", lambda_d=0.95)
    column = pq.read_table(home / "out")["certified"].to_pylist()
    assert column[7] is None
    assert summary.certified == sum(row is True for row in column)
    summary = run(home, "whole", on_error="skip", pool="certified")
    assert (summary.certified, summary.skipped) == (199, 1)
    for said in (summary, offline.status(home / "whole")):
        assert ", 100 % of queries proven" in str(said)


@pytest.mark.parametrize(("count", "of", "share"), [(93, 100, 93), (999, 1000, 99), (5, 5, 100), (0, 9, 0)])
def test_a_hundred_per_cent_are_all(count, of, share):
    assert proven(count, of) == f", {share} % of queries proven equal to the whole corpus"
    assert proven(None, of) == ""
