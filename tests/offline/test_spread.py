"""A corpus whose segments lie in several processes: a job's answers are those of the corpus in one."""

import itertools
import pickle
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import spec_of

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import segments, versions
from ragsys_kernels.offline import spread
from ragsys_kernels.offline._spec import Inputs
from ragsys_kernels.offline._worker import Held, Worker

N, D, Q = 700, 12, 60
CUTS = [0, 1, 90, 91, 400, 530, N]
RNG = np.random.default_rng(3)


def built(folder, kind, dtype, metric="cosine"):
    """Write segments, of which some have equal rows, with rows deleted: all of one of them."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((N, D), dtype=np.float32)
    rows[[95, 401, 699]] = rows[3]
    names = rng.permutation(N) + 5 if kind == "int64" else np.array([f"ü{i}" for i in rng.permutation(N)], object)
    groups = np.array([f"g{i % 40}" for i in range(N)], object)
    columns = {"bias": rng.uniform(-1, 0, N), "groups": groups, "costs": rng.uniform(1, 2, N)}

    def part(some):
        own = {name: x[some] for name, x in columns.items()}
        return rk.Corpus(rows[some], metric=metric, dtype=dtype, ids=None if kind == "row" else names[some], **own)

    parts = [part(slice(*each)) for each in itertools.pairwise(CUTS)]
    versions.build("build", folder, lambda _: ((each, each.ids) for each in parts), 400, False)
    with versions.changing("delete", folder) as version:
        version.delete(np.union1d(np.arange(0, N, 9), np.arange(1, 90)))
    return names


def asked(calls):
    """Holders here, with what goes to processes and comes from them."""
    sent = pickle.loads(pickle.dumps([arguments for _, _, arguments in calls]))
    return [getattr(one, method)(*given) for (one, method, _), given in zip(calls, sent, strict=True)]


def over(spec, memory=None, ask=asked):
    """Return a worker whose corpus is spread over holders: three of them, or as many as so little memory makes."""
    inputs = Inputs.open(spec)
    sizes = [each["bytes"] for each in segments.version_of(spec.corpus)["segments"]]
    shares = spread.shares("select", spec.corpus, inputs.saved, memory or max(sizes))
    assert len(shares) >= 3
    holders = [spread.Holder(share, None, None) for share in shares]
    corpus = spread.held_by(holders, shares, inputs.saved, ask)
    return Worker(spec, Held.spread(spec, inputs, corpus))


def tables(worker):
    """Return the picks and the errors, and both as bytes, for NaN is unlike itself."""
    found = list(worker.tables(0, Q))
    both = [pa.concat_tables(getattr(each, name) for each in found).combine_chunks() for name in ("picks", "errors")]
    with pa.BufferOutputStream() as out:
        for table in both:
            with pa.ipc.new_stream(out, table.schema) as stream:
                stream.write_table(table)
    return *both, out.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("kind", "dtype", "metric"),
    [("str", "float32", "cosine"), ("row", "float16", "cosine"), ("int64", "int8", "dot")],
)
def test_picks_are_those_of_one_corpus(tmp_path, kind, dtype, metric):
    names = built(tmp_path / "c", kind, dtype, metric)
    queries = RNG.standard_normal((Q, D), dtype=np.float32)
    queries[7, 2] = np.nan
    queries[8] = 0
    own = np.array([f"g{i % 45}" for i in range(Q)], object)  # some are groups of no row
    lists = [RNG.integers(0, N, RNG.integers(1, 40)) for _ in range(Q)]  # with rows twice, and deleted ones
    lists[5] = np.array([3, N])
    lists[6] = np.zeros(0, np.int64)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(queries.ravel()), D)
    columns = {"v": vectors, "own": own, "c": [each.tolist() for each in lists]}
    if kind != "row":
        ids = [[*(names[row % N] for row in each), *(["none"] if kind == "str" else [10**6])] for each in lists]
        columns["i"] = pa.array(ids, pa.list_(pa.string() if kind == "str" else pa.int64()))
    pq.write_table(pa.table(columns), tmp_path / "q.parquet")
    usual = {"query_vector_column": "v", "chunk_size": 17, "on_error": "skip"}
    by_lists = {"candidates": tmp_path / "q.parquet", "candidate_column": "c"}
    jobs = [
        {"pool": 30, "query_group_column": "own"},
        {"pool": N + 9, "max_per_group": 1, "k": 9},
        {"method": "vrsd", "pool": 40},
        {"method": "dpp", "pool": 40, "budget": 6.0},
        by_lists,
    ]
    if kind != "row":
        jobs.append({**by_lists, "candidate_column": "i", "candidate_ids": True, "unknown_ids": "skip"})
    for options in jobs:
        spec = spec_of(corpus=tmp_path / "c", queries=tmp_path / "q.parquet", **{**usual, **options})
        expected, found = tables(Worker(spec)), tables(over(spec))
        assert found[1].to_pylist() == expected[1].to_pylist()
        assert found[2] == expected[2], options
        assert expected[0]["ids"].combine_chunks().value_lengths().to_numpy().max() >= 4
        assert found[1].num_rows >= 1


def test_chunk_does_not_wait_for_the_slowest_holder_of_the_one_before(tmp_path):
    """The first of four searches is not answered before the third has begun."""
    built(tmp_path / "c", "int64", "float32")
    np.save(tmp_path / "q.npy", RNG.standard_normal((Q, D), dtype=np.float32))
    spec = spec_of(corpus=tmp_path / "c", queries=tmp_path / "q.npy", pool=30, chunk_size=15)
    turns, third = itertools.count(), threading.Event()

    def slow_at_first(calls):
        turn = next(turns) if calls[0][1] == "search" else -1
        if turn == 2:
            third.set()
        if turn == 0:
            assert third.wait(60)
        return asked(calls)

    assert tables(over(spec, ask=slow_at_first))[2] == tables(Worker(spec))[2]
    assert next(turns) == 4


@pytest.mark.parametrize("kind", ["int64", "str", "row"])
def test_ids_and_rows_of_all_holders_are_those_of_the_corpus(tmp_path, kind):
    """Each of several holders knows its own ids; what one of them knows is known, what stands for no row is too."""
    built(tmp_path / "c", kind, "float32")
    whole = rk.Corpus.load(tmp_path / "c")
    sizes = [each["bytes"] for each in segments.version_of(tmp_path / "c")["segments"]]
    shares = spread.shares("select", tmp_path / "c", whole, max(sizes))
    holders = [spread.Holder(share, None, None) for share in shares]
    calls = []

    def noted(some):
        calls.extend((holder, method) for holder, method, _ in some)
        return asked(some)

    corpus = spread.held_by(holders, shares, whole, noted)
    rows = np.array([*CUTS[:-1], *(cut - 1 for cut in CUTS[1:]), 300, -1, 300])
    np.testing.assert_array_equal(corpus.ids[rows], whole.ids[rows])
    live = np.flatnonzero(whole.live)
    nothing = None if kind == "str" else -1
    wanted = [*whole.ids[live].tolist(), nothing, *whole.ids[live[:3]].tolist()]
    absent = [*wanted, "none" if kind == "str" else 10**9]
    for given, unknown in ((wanted, "raise"), (absent, "pad")):
        expected = [*live, -1, *live[:3], *([-1] if given is absent else [])]
        np.testing.assert_array_equal(whole.ids.rows_of(given, unknown=unknown), expected)
        np.testing.assert_array_equal(corpus.ids.rows_of(given, unknown=unknown), expected)
    for each in (whole, corpus):
        with pytest.raises(
            ValueError, match=rf"^rows_of: ids must be ids of the corpus, got .* at position {len(wanted)}$"
        ):
            each.ids.rows_of(absent)
    calls.clear()
    for some in (live[:1], live[-4:], live):
        copies = corpus._copied(some)
        np.testing.assert_array_equal(copies["data"], whole.data[some])
        assert copies["live"].all()
    starts = np.array([share.start for share in shares])
    has = [np.unique(np.searchsorted(starts, some, side="right") - 1) for some in (live[:1], live[-4:], live)]
    assert calls == [(holders[i], "rows") for i in np.concatenate(has)]  # nobody else is asked


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
def test_lists_of_rows_that_name_one_twice_are_as_in_one_corpus(tmp_path):
    """A list that is wrong for its live rows is refused; one that only names a deleted row again is not."""
    rows = np.random.default_rng(2).standard_normal((40, D), dtype=np.float32)
    parts = [rk.Corpus(rows[some], ids=some) for some in np.split(np.arange(40), [18, 23])]
    versions.build("build", tmp_path / "c", lambda _: ((each, each.ids) for each in parts), 40, False)
    with versions.changing("delete", tmp_path / "c") as version:
        version.delete(np.array([0, 24, 25]))  # none of the second segment
    whole = rk.Corpus.load(tmp_path / "c")
    sizes = [each["bytes"] for each in segments.version_of(tmp_path / "c")["segments"]]
    shares = spread.shares("select", tmp_path / "c", whole, max(sizes))
    corpus = spread.held_by([spread.Holder(share, None, None) for share in shares], shares, whole, asked)
    assert len(shares) == 3
    lists = np.array([[19, 3, 19, 30], [0, 24, 0, 9], [24, 24, 7, 5], [0, 1, 2, 24], [14, 15, 39, 14], [5, 40, 6, 7]])
    queries = rows[:6]
    expected, found = (each.select(queries, 3, candidates=lists, on_error="skip") for each in (whole, corpus))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)
    assert found.errors == expected.errors
    assert sorted(found.errors) == [0, 4, 5]


def test_no_holder_gets_more_than_its_memory(tmp_path):
    built(tmp_path / "c", "str", "float32")
    corpus = rk.Corpus.load(tmp_path / "c")
    sizes = [each["bytes"] for each in segments.version_of(tmp_path / "c")["segments"]]
    for memory in (max(sizes), max(sizes) + 5000, sum(sizes)):
        shares = spread.shares("select", tmp_path / "c", corpus, memory)
        assert [number for share in shares for number in share.numbers] == list(range(6))
        assert [share.start for share in shares] == [CUTS[share.numbers.start] for share in shares]
        assert max(share.bytes for share in shares) <= memory
    assert len(shares) == 1
    with pytest.raises(
        ValueError, match=rf"memory must be at least {max(sizes)}, the bytes of a segment of .*, got 9$"
    ):
        spread.shares("select", tmp_path / "c", corpus, 9)
    corpus.save(tmp_path / "whole")
    with pytest.raises(ValueError, match="memory must come with a corpus in segments"):
        spread.shares("select", tmp_path / "whole", rk.Corpus.load(tmp_path / "whole"), 1 << 30)


def test_what_stands_for_the_rows_is_small_and_travels(tmp_path):
    built(tmp_path / "c", "int64", "float32")
    whole = rk.Corpus.load(tmp_path / "c")
    shares = spread.shares("select", tmp_path / "c", whole, 1 << 30)
    corpus = spread.held_by([spread.Holder(shares[0], None, None)], shares, whole, asked)
    assert corpus.num_live == whole.num_live < len(corpus) == N
    again = pickle.dumps(corpus)
    assert len(again) < 30_000 < corpus.data.nbytes
    found = pickle.loads(again)
    np.testing.assert_array_equal(found.ids[[5, -1, 600]], whole.ids[[5, -1, 600]])


def test_refused_on_ray(tmp_path):
    built(tmp_path / "c", "int64", "float32")
    np.save(tmp_path / "q.npy", np.ones((2, D), np.float32))
    with pytest.raises(ValueError, match="pool 'certified' must come without memory on Ray, got '1G'"):
        offline.select(
            corpus=tmp_path / "c", queries=tmp_path / "q.npy", out=tmp_path / "o", engine="ray", memory="1G",
            pool="certified",
        )  # fmt: skip


def test_each_holder_searches_the_indexes_of_its_segments(tmp_path):
    pytest.importorskip("faiss")
    rows = np.random.default_rng(8).standard_normal((1500, D), dtype=np.float32)
    queries = RNG.standard_normal((Q, D), dtype=np.float32)
    np.save(tmp_path / "v.npy", rows)
    np.save(tmp_path / "q.npy", queries)
    offline.build_corpus(tmp_path / "v.npy", tmp_path / "c", rows_per_segment=400, index="IVF8,Flat")
    offline.delete_rows(np.arange(0, 1500, 5), tmp_path / "c")
    whole = rk.Corpus.load(tmp_path / "c")
    found = []
    for options in ({}, {"search_parameters": "nprobe=3"}, {"exact": True}):
        spec = spec_of(corpus=tmp_path / "c", queries=tmp_path / "q.npy", pool=30, chunk_size=17, **options)
        one, spread_out = tables(Worker(spec)), tables(over(spec))
        assert spread_out[2] == one[2], options
        index = False if options.get("exact") else options.get("search_parameters")
        picks = whole.select(queries, 6, pool=30, index=index).indices.tolist()
        assert spread_out[0]["ids"].to_pylist() == picks
        found.append(picks)
    assert found[0] != found[1] != found[2]
