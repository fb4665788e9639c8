"""Jobs whose rows have times: from files and columns of several kinds, and of a moment that a resumed job keeps."""

import json
import warnings
from datetime import datetime, timedelta
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import N, check_equals, files, read

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import recency

DAY = 86_400.0
NOW = 1.7e9
# Whole milliseconds, as all kinds of files have them; every ninth row has none.
TIME = np.round(NOW - np.random.default_rng(3).gamma(1, 20 * DAY, N), 3)
TIME[::9] = np.nan
MOMENTS = np.array([None if np.isnan(x) else round(1000 * x) for x in TIME], object)
MOMENTS = np.array([np.datetime64("NaT") if x is None else np.datetime64(x, "ms") for x in MOMENTS])
pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning")


def select(tmp_path, **options):
    given = files(tmp_path, "corpus", "queries") | {"k": 4, "shard_size": 90, "out": tmp_path / "out"}
    return offline.select(**{**given, **options})


def expected(data, **options):
    return rk.Corpus(data["corpus"], time=TIME).select(data["queries"], 4, half_life=14 * DAY, now=NOW, **options)


def table(tmp_path, data, column):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(data["corpus"].ravel()), data["corpus"].shape[1])
    pq.write_table(pa.table({"v": vectors, "written": column}), tmp_path / "docs.parquet", row_group_size=70)
    return {"corpus": tmp_path / "docs.parquet", "time_column": "written"}


@pytest.mark.parametrize(
    "kind", ["floats", "milliseconds", "zoned", "npy of floats", "npy of times", "folder", "segments"]
)
def test_times_of_files(tmp_path, data, kind):
    if kind.startswith("npy"):
        np.save(tmp_path / "time.npy", TIME if kind == "npy of floats" else MOMENTS)
        given = {"time": tmp_path / "time.npy"}
    else:
        moments = pa.array(MOMENTS, pa.timestamp("ms", "Europe/Rome" if kind == "zoned" else None))
        given = table(tmp_path, data, pa.array(TIME, from_pandas=True) if kind == "floats" else moments)
    if kind in ("folder", "segments"):
        size = {"rows_per_segment": 110} if kind == "segments" else {}
        built = offline.build_corpus(given["corpus"], tmp_path / "built", time_column="written", **size)
        np.testing.assert_array_equal(built.time, TIME)
        given = {"corpus": tmp_path / "built"}
    select(tmp_path, half_life=timedelta(14), now=datetime(2023, 11, 14, 22, 13, 20), **given)
    check_equals(read(tmp_path / "out"), expected(data))
    assert select(tmp_path, half_life=14 * DAY, now=NOW, **given).selected == 0  # the same job


@pytest.mark.parametrize("where", ["select", "build", "skip"])
def test_milliseconds_are_refused_by_row(tmp_path, data, where):
    given = table(tmp_path, data, pa.array(1000 * TIME, from_pandas=True))
    given["out"] = tmp_path / "made"
    rule = "time must be seconds since 1970"
    if where == "skip":
        built = offline.build_corpus(**given, bad_rows="skip")
        assert len(built) == np.isnan(TIME).sum()
        assert (tmp_path / "made.skipped.csv").read_text().count(rule) == np.isfinite(TIME).sum()
        return
    call, more = (offline.build_corpus, {}) if where == "build" else (partial(select, tmp_path), {"half_life": DAY})
    with pytest.raises(ValueError, match=f"docs.parquet: .*{rule}.*, which looks like milliseconds in row 1$"):
        call(**given, **more)


def test_times_before_1970(tmp_path, data):
    np.save(tmp_path / "time.npy", TIME - 2 * NOW)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        select(tmp_path, time=tmp_path / "time.npy", half_life=14 * DAY, now=-NOW)
    picks = rk.Corpus(data["corpus"], time=TIME - 2 * NOW).select(data["queries"], 4, half_life=14 * DAY, now=-NOW)
    check_equals(read(tmp_path / "out"), picks)


@pytest.mark.parametrize("pool", [None, "all", "certified"])
def test_pools_rules_and_windows(tmp_path, data, pool):
    rk.Corpus(data["corpus"], time=TIME).save(tmp_path / "saved")
    given = {"corpus": tmp_path / "saved", "half_life": 14 * DAY, "now": NOW, "decay": "gauss", "decay_floor": 0.25}
    options = {"decay": "gauss", "decay_floor": 0.25}
    select(tmp_path, pool=pool, chunk_size=37, **given)
    picks = expected(data, pool=None if pool == "all" else pool or 100, **options)
    check_equals(read(tmp_path / "out"), picks)
    if pool is None:
        select(tmp_path, memory="1M", **{**given, "out": tmp_path / "windows"})
        check_equals(read(tmp_path / "windows"), picks)


def test_of_candidates_with_relevance(tmp_path, data):
    np.save(tmp_path / "time.npy", TIME)
    relevance = np.random.default_rng(5).random(data["candidates"].shape).astype(np.float32)
    real = data["candidates"] >= 0
    columns = {
        "candidates": [row[keep].tolist() for row, keep in zip(data["candidates"], real, strict=True)],
        "score": pa.array([row[keep] for row, keep in zip(relevance, real, strict=True)], pa.list_(pa.float32())),
    }
    pq.write_table(pa.table(columns), tmp_path / "pools.parquet")
    given = {"time": tmp_path / "time.npy", "candidates": tmp_path / "pools.parquet", "half_life": 14 * DAY, "now": NOW}
    select(tmp_path, relevance_column="score", relevance_scale="minmax", **given)
    check_equals(
        read(tmp_path / "out"),
        expected(data, candidates=data["candidates"], relevance=relevance, relevance_scale="minmax"),
    )
    columns["score"] = pa.array(
        [[-1.0, *x.as_py()[1:]] if q == 7 else x.as_py() for q, x in enumerate(columns["score"])]
    )
    pq.write_table(pa.table(columns), tmp_path / "pools.parquet")
    with pytest.raises(ValueError, match=r"relevance must be at least 0 with half_life.* in row 7 of .*pools.parquet"):
        select(tmp_path, relevance_column="score", **{**given, "out": tmp_path / "bad"})
    summary = select(tmp_path, relevance_column="score", on_error="skip", **{**given, "out": tmp_path / "bad"})
    assert summary.skipped == 1
    assert read(tmp_path / "bad")["ids"][7].as_py() == []


def test_a_resumed_job_is_of_the_moment_at_which_it_began(tmp_path, data, monkeypatch):
    np.save(tmp_path / "time.npy", TIME)
    given = {"time": tmp_path / "time.npy", "half_life": 14 * DAY}
    monkeypatch.setattr(recency.time, "time", lambda: NOW)
    stops = iter([False, True])
    assert not select(tmp_path, stop=lambda: next(stops), **given).complete
    monkeypatch.setattr(recency.time, "time", lambda: NOW + 300 * DAY)
    summary = select(tmp_path, **given)
    assert summary.complete
    assert summary.selected < summary.queries
    assert json.loads((tmp_path / "out.job" / "_job.json").read_text())["options"]["now"] == NOW
    check_equals(read(tmp_path / "out"), expected(data))
    assert select(tmp_path, now=NOW, **given).selected == 0
    with pytest.raises(ValueError, match=f"now {NOW}, now 1.0"):
        select(tmp_path, now=1.0, **given)
    select(tmp_path, overwrite=True, **given)
    assert json.loads((tmp_path / "out.job" / "_job.json").read_text())["options"]["now"] == NOW + 300 * DAY


def test_the_command_reads_days_and_dates(tmp_path, data, command):
    given = table(tmp_path, data, pa.array(MOMENTS, pa.timestamp("ms")))

    def run(out, *more):
        return command(
            tmp_path, "select", "--corpus", given["corpus"], "--queries", "queries.npy", "--out", out, "--k", 4,
            "--time-column", "written", *more,
        )  # fmt: skip

    done = run("out", "--half-life", "14d", "--now", "2023-11-14T22:13:20")
    assert done.returncode == 0, done.stderr
    check_equals(read(tmp_path / "out"), expected(data))
    done = run("again", "--half-life", 14 * DAY, "--now", NOW, "--decay", "exp", "--decay-floor", 0)
    assert done.returncode == 0, done.stderr
    check_equals(read(tmp_path / "again"), expected(data))
    for more, message in (
        (["--half-life", "0d"], "must be a time above 0"),
        (["--half-life", "nan"], "must be a time above 0"),
        (["--half-life", "7d", "--now", "yesterday"], "must be seconds since 1970 or a time"),
    ):
        done = run("bad", *more)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.replace("│", " ").split())


def test_sync_keeps_rows_without_a_time(tmp_path, data):
    moments = pa.array(MOMENTS, pa.timestamp("ms"))
    source = tmp_path / "docs.parquet"
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(data["corpus"].ravel()), data["corpus"].shape[1])
    pq.write_table(pa.table({"id": pa.array(range(N)), "v": vectors, "written": moments}), source)
    first = offline.sync_corpus(source, tmp_path / "synced", time_column="written")
    again = offline.sync_corpus(source, tmp_path / "synced", time_column="written")
    assert (first.added, again.added, again.changed, again.deleted) == (N, 0, 0, 0)
    later = TIME.copy()
    later[:2] = 5.0, np.nan  # of a row without a time, and of one with
    pq.write_table(
        pa.table({"id": pa.array(range(N)), "v": vectors, "written": pa.array(later, from_pandas=True)}), source
    )
    assert offline.sync_corpus(source, tmp_path / "synced", time_column="written").changed == 2
    corpus = rk.Corpus.load(tmp_path / "synced")
    np.testing.assert_array_equal(corpus.time[corpus.rows_of(np.arange(N))], later)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"half_life": 5}, "half_life must come with times of the corpus, got 5 alone"),
        ({"time": "time.npy"}, "time must come with half_life, got time alone"),
        ({"time": "time.npy", "half_life": -1}, "half_life must be above 0 and finite, got -1"),
        ({"now": 5.0}, "now must come with half_life, got 5.0 alone"),
        ({"decay_floor": 0.5}, "decay_floor must come with half_life, got 0.5 alone"),
        ({"time": "short.npy", "half_life": 1}, "time must have one row for each of the 300 rows of corpus, got 3 in"),
        ({"time": "text.npy", "half_life": 1}, "time must be float32 or float16"),
    ],
)
def test_what_is_refused_before_anything_is_written(tmp_path, data, options, message):
    np.save(tmp_path / "time.npy", TIME)
    np.save(tmp_path / "short.npy", TIME[:3])
    np.save(tmp_path / "text.npy", np.array(["2026"] * N))
    options = {name: tmp_path / x if name == "time" else x for name, x in options.items()}
    with pytest.raises(ValueError, match=f"^select: {message}"):
        select(tmp_path, **options)
    assert not (tmp_path / "out").exists()
