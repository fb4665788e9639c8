"""Rows with times, and relevance that falls with their age. The oracle: cosines times 2^-(age / half-life)."""

import math
import re
import time as clock
import warnings
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.corpus import recency

N, D, Q, K, DAY = 400, 24, 6, 5, 86_400.0
NOW = 1.7e9
OPTIONS = {"coverage": {"kind": "facility"}, "sift": {"noise": 0.1}}
FACTORS = {
    "exp": lambda t: 0.5**t,
    "gauss": lambda t: 0.5 ** (t * t),
    "linear": lambda t: np.maximum(0, (2 - t) / 2),
}
pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning")


def made(seed=0, rows=N, dtype="float32", **columns):
    """A corpus one row in ten of which has no time, and one is of tomorrow, and queries near some of its rows."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((rows, D), dtype=np.float32)
    time = NOW - rng.gamma(1, 20 * DAY, rows)
    time[::10], time[3] = np.nan, NOW + DAY
    queries = vectors[3 : 3 + Q] + 0.7 * rng.standard_normal((Q, D), dtype=np.float32)
    return rk.Corpus(vectors, dtype=dtype, time=time, **columns), queries, time


def fallen(relevance, time, half_life=14 * DAY, kind="exp", floor=0.0, now=NOW):
    """Relevance (Q, P) of rows with times (Q, P) by the definition, in float64."""
    age = np.where(np.isnan(time), np.inf, np.maximum(now - time, 0))
    with np.errstate(over="ignore"):
        factor = np.maximum(floor, FACTORS[kind](age / half_life))
    return np.where(relevance > 0, relevance * factor, relevance)


def cosines(queries, corpus):
    rows, queries = corpus.vectors(slice(None)), queries.astype(np.float64)
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    return unit @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T


def same(found, expected, tolerance=0.0):
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    for name in ("scores", "relevance", "redundancy"):
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("kind", FACTORS)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("rule", rk.METHODS)
def test_picks_are_those_of_relevance_that_has_fallen(rule, backend, kind):
    """Out of a pool that is retrieved, of candidates, and of the whole corpus."""
    corpus, queries, time = made()
    backend = "reference" if rule == "gist" else backend
    given = {"backend": backend, **OPTIONS.get(rule, {})}
    decay = {"half_life": 14 * DAY, "now": NOW, "decay": kind, "decay_floor": 0.1 if kind == "linear" else 0}
    exact = cosines(queries, corpus)
    pools = np.argsort(-exact, axis=1, kind="stable")[:, :60]
    for call in ({"pool": 60}, {"candidates": pools}, {"pool": None}):
        ids = np.tile(np.arange(N), (Q, 1)) if call.get("pool", 0) is None else pools
        relevance = fallen(np.take_along_axis(exact, ids, 1), time[ids], kind=kind, floor=decay["decay_floor"])
        found = corpus.select(queries, K, method=rule, **call, **decay, **given)
        expected = getattr(rk, rule)(queries, corpus, K, candidates=ids, relevance=relevance, **given)
        same(found, expected, 2e-5 if rule in ("dpp", "ssd") else 2e-6)
    assert (corpus.select(queries, K, method=rule, **given).indices != found.indices).any()


def test_of_a_biased_corpus_the_pool_is_that_of_its_search_and_certificates_hold():
    corpus, queries, time = made(1, 3000, bias=np.random.default_rng(5).normal(0, 0.1, 3000))
    ask = {"half_life": 10 * DAY, "now": NOW, "lambda_b": 0.8, "decay_floor": 0.2}
    relevance = fallen(cosines(queries, corpus), time[None], 10 * DAY, floor=0.2)
    pools = corpus.search(queries, 100, lambda_b=0.8).indices
    expected = rk.mmr(
        queries, corpus, K, candidates=pools, relevance=np.take_along_axis(relevance, pools, 1), lambda_b=0.8
    )
    found = corpus.select(queries, K, pool=100, **ask)
    same(found, expected, 2e-6)
    whole = rk.mmr(queries, corpus, K, relevance=relevance, lambda_b=0.8)
    same(corpus.select(queries, K, pool=None, **ask), whole, 2e-6)
    proven = corpus.select(queries, K, pool="certified", **ask)
    same(proven, whole, 2e-6)
    assert proven.certified.all()
    for pool in (30, 100, 400, 1200, 2500):
        found = corpus.select(queries, K, pool=pool, **ask)
        right = (found.indices == whole.indices).all(axis=1)
        assert (right | ~found.certified).all()
    assert found.certified.any()


def test_limits_go_by_what_is_left_and_scales_come_last():
    corpus, queries, time = made(2)
    exact = cosines(queries, corpus)
    ids = np.argsort(-exact, axis=1, kind="stable")[:, :80]
    relevance = fallen(np.take_along_axis(exact, ids, 1), time[ids])
    least = np.median(np.sort(relevance, axis=1)[:, -20])  # half of the queries have fewer than 20 of that
    for scale in ("as-is", "minmax", "rank"):
        ask = {"min_relevance": float(least), "relevance_scale": scale}
        found = corpus.select(queries, 20, pool=80, half_life=14 * DAY, now=NOW, **ask)
        same(found, rk.mmr(queries, corpus, 20, candidates=ids, relevance=relevance, **ask), 2e-6)
        assert (found.lengths < 20).any()
        assert found.lengths.any()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
def test_ages_that_are_none(backend):
    """Below 0 they count as 0; without a time a row is older than all; what is below 0 does not rise."""
    rows = np.array([[3, 4], [3, 4], [3, 4], [-3, 4], [-4, -3]], np.float32)
    time = np.array(["2030-01-01", "NaT", "2025-12-29", "2025-12-29", "2025-12-29"], "datetime64[D]")
    corpus = rk.Corpus(rows, time=time)
    query = np.array([[1, 0]], np.float32)
    ask = {"half_life": 3 * DAY, "now": np.datetime64("2026-01-01"), "lambda_d": 1.0, "backend": backend}
    found = corpus.select(query, 5, pool=None, **ask)
    assert dict(zip(found.indices[0].tolist(), found.relevance[0].round(6).tolist(), strict=True)) == pytest.approx(
        {0: 0.6, 1: 0, 2: 0.3, 3: -0.6, 4: -0.8}, abs=1e-6
    )
    found = corpus.select(query, 3, candidates=[[1, 2, -1]], decay_floor=0.25, **ask)
    assert found.indices.tolist() == [[2, 1, -1]]
    assert found.relevance[0, :2].tolist() == pytest.approx([0.3, 0.15])
    assert corpus.time[0] == 1893456000.0
    assert math.isnan(corpus.time[1])


def test_given_relevance_falls_too():
    corpus, queries, time = made(3)
    rng = np.random.default_rng(4)
    ids = np.stack([rng.permutation(N)[:50] for _ in range(Q)])
    ids[2, 30:] = -1
    relevance = rng.random(ids.shape).astype(np.float32)
    expected = fallen(relevance, time[ids]).astype(np.float32)
    ask = {"candidates": ids, "half_life": 14 * DAY, "now": NOW}
    same(
        corpus.select(queries, K, relevance=relevance, **ask),
        rk.mmr(queries, corpus, K, candidates=ids, relevance=expected),
        1e-6,
    )
    whole = rng.random((Q, N)).astype(np.float32)
    found = corpus.select(None, K, relevance=whole, half_life=14 * DAY, now=NOW)
    same(found, rk.mmr(None, corpus, K, relevance=fallen(whole, time[None]).astype(np.float32)), 1e-6)
    relevance[1, 7] = -0.5
    relevance[2, 40] = -3  # of no candidate
    rule = "relevance must be at least 0 with half_life, on a scale such as from 0 to 1, got -0.5"
    with pytest.raises(ValueError, match=f"^mmr: {rule} in row 1, position 7$"):
        corpus.select(queries, K, relevance=relevance, **ask)
    skipped = corpus.select(queries, K, relevance=relevance, on_error="skip", **ask)
    assert skipped.errors == {1: f"mmr: {rule} at position 7"}
    assert skipped.lengths.tolist() == [K, 0, K, K, K, K]
    others = corpus.select(queries, K, relevance=np.abs(relevance), **ask)
    np.testing.assert_array_equal(skipped.indices[2:], others.indices[2:])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("pool", [40, None, "certified"])
def test_a_query_alone_has_the_bits_that_it_has_beside_others(pool, dtype):
    corpus, queries, _ = made(6, dtype=dtype, bias=np.random.default_rng(1).random(N))
    ask = {"pool": pool, "half_life": 9 * DAY, "now": NOW, "decay": "gauss"}
    together = corpus.select(queries, K, **ask)
    for q in range(Q):
        alone = corpus.select(queries[q : q + 1], K, **ask)
        for name, one, other in zip(alone._fields, alone, together, strict=True):
            np.testing.assert_array_equal(one[0], other[q], err_msg=name)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_whole_corpus_for_some_queries_at_a_time(monkeypatch, library):
    corpus, queries, _ = made(7, costs=np.random.default_rng(2).uniform(1, 3, N))
    if library == "torch":
        queries = pytest.importorskip("torch").from_numpy(queries)
    ask = {"pool": None, "half_life": 9 * DAY, "now": NOW, "budget": np.arange(3.0, 9)}
    k = np.array([1, 3, 5, 2, 7, 4])
    expected = corpus.select(queries, k, **ask)
    monkeypatch.setattr(recency, "MOST_VALUES", 2 * N)
    found = corpus.select(queries, k, **ask)
    assert type(found.indices) is type(expected.indices)
    same(found, expected)
    for name in ("cost", "certified"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert found.errors is None
    queries[3, 0] = np.inf
    with pytest.raises(ValueError, match=r"^mmr: queries must be finite, got NaN or inf for query 3$"):
        corpus.select(queries, k, **ask)
    skipped = corpus.select(queries, k, on_error="skip", **ask)
    assert skipped.errors == {3: "mmr: queries must be finite, got NaN or inf"}
    assert skipped.lengths[3] == 0
    np.testing.assert_array_equal(skipped.indices[[0, 1, 2, 4, 5]], expected.indices[[0, 1, 2, 4, 5]])


@pytest.mark.parametrize("pool", [30, None])
def test_bad_queries_and_candidates_are_named(pool):
    corpus, queries, _ = made(8)
    queries[2, 1] = np.nan
    ask = {"half_life": DAY, "now": NOW}
    with pytest.raises(ValueError, match="queries must be finite, got NaN or inf"):
        corpus.select(queries, K, pool=pool, **ask)
    found = corpus.select(queries, K, pool=pool, on_error="skip", **ask)
    assert list(found.errors) == [2]
    good = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(found.indices[good], corpus.select(queries[good], K, pool=pool, **ask).indices)
    ids = np.tile(np.arange(20), (5, 1))
    ids[1, 4], ids[3, 2] = N, 7
    found = corpus.select(queries[good], K, candidates=ids, on_error="skip", **ask)
    assert set(found.errors) == {1, 3}
    assert found.errors == corpus.select(queries[good], K, candidates=ids, on_error="skip").errors


def test_deleted_rows_filters_and_groups_are_as_ever():
    corpus, queries, time = made(9, groups=np.arange(N) % 7)
    live = corpus.delete(np.arange(0, N, 3))
    allowed = np.arange(N) % 5 > 0
    ids = np.flatnonzero(allowed & (np.arange(N) % 3 > 0))
    relevance = fallen(cosines(queries, corpus)[:, ids], time[None, ids])
    expected = rk.mmr(queries, corpus, K, candidates=np.tile(ids, (Q, 1)), relevance=relevance, max_per_group=1)
    for pool in (len(ids), None):
        found = live.select(queries, K, pool=pool, allowed=allowed, max_per_group=1, half_life=14 * DAY, now=NOW)
        np.testing.assert_array_equal(found.indices, expected.indices)


def test_times_are_kept(tmp_path):
    """In one folder, in segments, in windows, and by what changes these; folders without times stay without."""
    from ragsys_kernels.corpus import versions

    corpus, queries, time = made(10, ids=np.arange(N))
    vectors = corpus.vectors(slice(None)).astype(np.float32)
    ask = {"pool": 50, "half_life": 14 * DAY, "now": NOW}
    expected = corpus.select(queries, K, **ask)
    corpus.save(tmp_path / "one")
    assert "time" in repr(corpus)
    again = rk.Corpus.load(tmp_path / "one", verify=True)
    np.testing.assert_array_equal(again.time, time)
    parts = [np.arange(0, 150), np.arange(150, N)]
    made_parts = [rk.Corpus(vectors[part], time=time[part], ids=part) for part in parts]
    versions.build("test", tmp_path / "two", lambda _: ((each, each.ids) for each in made_parts), 300, False)
    two = rk.Corpus.load(tmp_path / "two", verify=True)
    appended = made_parts[0].append(vectors[150:], time=time[150:], ids=parts[1])
    windows = rk.Corpus.load(tmp_path / "two", memory=1 << 16)
    for each in (again, two, appended, windows):
        np.testing.assert_array_equal(each.select(queries, K, **ask).indices, expected.indices)
        np.testing.assert_array_equal(each.time, time)
    versions.compacted("test", tmp_path / "two", 100)
    np.testing.assert_array_equal(rk.Corpus.load(tmp_path / "two").time, time)
    with pytest.raises(ValueError, match="new rows must have what belongs to the rows of the corpus, time, ids of"):
        appended.append(vectors[:1], ids=[N])
    path = tmp_path / "one" / "time.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"time\.npy is damaged"):
        rk.Corpus.load(tmp_path / "one", verify=True)
    assert rk.Corpus(vectors).time is None


def test_now_is_the_time_of_the_call(monkeypatch):
    corpus, queries, _ = made(11)
    expected = corpus.select(queries, K, half_life=DAY, now=NOW + 5)
    monkeypatch.setattr(recency.time, "time", lambda: NOW + 5)
    same(corpus.select(queries, K, half_life=DAY), expected)


RULE = "seconds since 1970, within [-2.6e+11, 2.6e+11]"


@pytest.fixture
def tokyo(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    clock.tzset()
    yield
    monkeypatch.undo()
    clock.tzset()


@pytest.mark.usefixtures("tokyo")
def test_times_and_lengths_of_python_and_numpy():
    corpus, queries, _ = made(13)
    expected = corpus.select(queries, K, half_life=30 * DAY, now=1774915200.0)
    zone = timezone(timedelta(hours=2))
    for half_life, now in (
        (timedelta(days=30), datetime(2026, 3, 31)),
        (np.timedelta64(30, "D"), datetime(2026, 3, 31, 2, tzinfo=zone)),
        (np.timedelta64(30 * 86_400 * 10**9, "ns"), np.datetime64("2026-03-31T00:00:00.000000000")),
        (np.timedelta64(10, "3D"), np.datetime64("2026-03-31")),
    ):
        same(corpus.select(queries, K, half_life=half_life, now=now), expected)
    late = rk.Corpus(np.eye(2, dtype=np.float32), time=np.array(["9999-12-31", "NaT"], "datetime64[D]"))
    assert late.time[0] == 253402214400.0


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("pool", [40, None, "certified"])
def test_a_warning_where_a_unit_seems_wrong(pool):
    corpus, queries, time = made(14)
    corpus = rk.Corpus(corpus.vectors(slice(None)).astype(np.float32), time=np.where(time < NOW, time, NOW - DAY))

    def warned(**more):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            corpus.select(queries, K, pool=pool, **{"half_life": 14 * DAY, "now": NOW, **more})
        assert {each.category for each in found} <= {rk.RelevanceRangeWarning}
        return [str(each.message) for each in found]

    assert warned() == []
    short = "select: with a half_life of 14 seconds the candidates of a query keep at most 0.1% of their relevance"
    assert warned(half_life=14)[0].startswith(short)
    assert warned(half_life=14, decay_floor=0.1) == []
    assert warned(half_life=1, relevance_scale="minmax")[0].startswith(short.replace("14", "1").replace("0.1%", "0.0%"))
    assert [x for x in warned(half_life=DAY / 12, relevance_scale="minmax") if "half_life" in x] == []
    if pool == 40:  # one of two queries, whose candidates are old
        age = np.argsort(np.nan_to_num(corpus.time))
        with pytest.warns(rk.RelevanceRangeWarning, match=re.escape(short.replace("14", "50000"))):
            corpus.select(queries[:2], K, candidates=age[[range(30), range(-30, 0)]], half_life=5e4, now=NOW)
    future = "select: all times of the corpus are later than now, so that no relevance falls; time and now must be"
    assert warned(now=3.0)[0].startswith(future)
    assert not any(x.startswith(future) for x in warned(now=float(np.nanmin(corpus.time))))


REFUSED = {
    "select: half_life must be above 0 and finite, got 0": {"half_life": 0},
    "select: half_life must be above 0 and finite, got inf": {"half_life": np.inf},
    "select: half_life must be above 0 and finite, got nan": {"half_life": np.nan},
    "select: half_life must be a number, got str": {"half_life": "7d"},
    "select: now must come with half_life, got 3.0 alone": {"now": 3.0},
    "select: decay must come with half_life, got 'gauss' alone": {"decay": "gauss"},
    "select: decay_floor must come with half_life, got ndarray alone": {"decay_floor": np.zeros(2)},
    "select: decay must be one of 'exp', 'gauss', 'linear', got 'log'": {"half_life": 1, "decay": "log"},
    "select: decay_floor must be within [0, 1] and finite, got 1.5": {"half_life": 1, "decay_floor": 1.5},
    f"select: now must be {RULE}, got nan": {"half_life": 1, "now": np.datetime64("NaT")},
    f"select: now must be {RULE}, got 1.7e+12, which looks like milliseconds": {"half_life": 1, "now": 1000 * NOW},
    f"select: now must be {RULE}, got -1.7e+15, which looks like microseconds": {"half_life": 1, "now": -1e6 * NOW},
    f"select: now must be {RULE}, got 1e+30": {"half_life": 1, "now": 1e30},
    "select: now must be a number, got timedelta64": {"half_life": 1, "now": np.timedelta64(5, "ns")},
    "select: now must come with half_life, got 2026-03-31 alone": {"now": np.datetime64("2026-03-31")},
    "select: now must come with half_life, got 2026-03-31 12:00:00 alone": {"now": datetime(2026, 3, 31, 12)},
    "select: half_life must be a number, got datetime64": {"half_life": np.datetime64("2026-03-31")},
    "select: half_life must be seconds, or a timedelta of weeks or shorter units, got 1 months": {
        "half_life": np.timedelta64(1, "M")
    },
    "select: half_life must be seconds, or a timedelta of weeks or shorter units, got 3 generic time units": {
        "half_life": np.timedelta64(3)
    },
    "select: half_life must be above 0 and finite, got -5": {"half_life": timedelta(seconds=-5)},
    "select: now must be a number, got str": {"half_life": 1, "now": "2026-01-01"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    corpus, queries, _ = made(rows=20)
    with pytest.raises((TypeError, ValueError)) as error:
        corpus.select(queries, K, pool=15, **REFUSED[message])
    assert str(error.value) == message


def test_corpora_that_cannot():
    corpus, queries, time = made(rows=20)
    vectors = corpus.vectors(slice(None)).astype(np.float32)
    with pytest.raises(ValueError, match=r"^select: half_life must come with a corpus whose rows have times, got one"):
        rk.Corpus(vectors).select(queries, K, half_life=1)
    dot = rk.Corpus(vectors, time=time, metric="dot")
    with pytest.raises(ValueError, match="half_life must come with relevance for method 'vrsd' and metric 'dot'"):
        dot.select(queries, K, method="vrsd", half_life=1)
    found = dot.select(queries, 3, pool=None, half_life=14 * DAY, now=NOW)
    relevance = fallen(queries.astype(np.float64) @ vectors.T.astype(np.float64), time[None])
    same(found, rk.mmr(queries, dot, 3, relevance=relevance), 1e-5)
    for bad, message in (
        (time[:3], r"time must have shape \(N,\) = \(20,\), got \(3,\)"),
        (
            np.where(np.arange(20) == 4, np.inf, time),
            f"time must be {re.escape(RULE)}, or NaN for none, got inf in row 4",
        ),
        (
            np.where(time > 0, 1000 * time, np.nan),
            r"time must be .*, got 1\..*e\+12, which looks like milliseconds in row 1",
        ),
        (["2026"] * 20, r"time must be an array of numbers, .*; np\.array\(times, 'datetime64\[us\]'\) makes one"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^Corpus: {message}"):
            rk.Corpus(vectors, time=bad)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_relevance_by_torch(monkeypatch, dtype):
    """As on a device, a few queries and rows at a time: of pools with padding, and of all rows."""
    pytest.importorskip("torch")
    from ragsys_kernels.selection import cpu, torch_search, validate

    corpus, queries, _ = made(12, dtype=dtype)
    ids = np.stack([np.random.default_rng(q).permutation(N)[:30] for q in range(Q)])
    ids[1, 20:] = -1
    monkeypatch.setattr(torch_search, "_BLOCK", 2 * 30 * D)
    for candidates in (ids, None):
        problem = validate.selection("mmr", queries, corpus, 1, candidates=candidates)
        found, expected = (module.relevance(problem, 1) for module in (torch_search, cpu))
        real = np.isfinite(expected)
        np.testing.assert_allclose(np.asarray(found)[real], expected[real], atol=2e-6)
        assert real.sum() == (ids >= 0).sum() if candidates is not None else real.all()
