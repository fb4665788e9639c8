"""Corpora larger than the memory that they may take: the same answers, and little memory."""

import itertools
import json
import mmap
import subprocess
import sys
import types

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.corpus import folder, spans, versions, windows

N, D, Q = 14_000, 24, 30
MEMORY = 1 << 16  # windows of the least number of rows: four of them
RNG = np.random.default_rng(6)
QUERIES = RNG.standard_normal((Q, D), dtype=np.float32)


def built(folder, dtype, metric, cuts):
    """Save rows with everything beside them, some of them equal far apart, as one piece or in segments."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((N, D), dtype=np.float32)
    rows[[100, 9000, 13_900]] = rows[7]
    names = np.array([f"id{i}" for i in range(N)], object)
    columns = {"bias": rng.uniform(-1, 0, N).astype("f4"), "groups": np.arange(N) % 50, "costs": rng.uniform(1, 2, N)}

    def part(some):
        of = {name: x[some] for name, x in columns.items()}
        return rk.Corpus(rows[some], metric=metric, dtype=dtype, ids=names[some].tolist(), **of)

    if not cuts:
        part(slice(None)).save(folder)
        return
    ends = [0, *cuts, N]
    parts = (part(slice(*each)) for each in itertools.pairwise(ends))
    versions.build("build", folder, lambda _: ((each, each.ids) for each in parts), 1000, False)
    with versions.changing("delete", folder) as version:
        version.delete(np.arange(0, N, 7))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Load such a corpus whole and with little memory; each is built once."""
    folders = {}

    def load(*kind):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("built") / "c"
            built(folders[kind], *kind)
        return rk.Corpus.load(folders[kind]), rk.Corpus.load(folders[kind], memory=MEMORY)

    return load


def same(a, b):
    for x, y in zip(a, b, strict=True):
        assert np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


CUTS = (100, 101, 12_345)
FILTERS = {
    "nothing": {},
    "own group": {"query_groups": np.arange(Q) % 50},
    "few excluded": {"exclude": RNG.integers(0, N, (Q, 30))},
    "a mask": {"allowed": RNG.random(N) < 0.3},
    "masks": {"allowed": RNG.random((Q, N)) < 0.6},
    "lists": {"allowed": RNG.integers(0, N, (Q, 300))},
}


@pytest.mark.parametrize(
    ("dtype", "metric", "cuts"), [("float32", "cosine", CUTS), ("float16", "dot", ()), ("int8", "cosine", CUTS)]
)
def test_searches_are_those_of_the_whole(both, dtype, metric, cuts):
    whole, small = both(dtype, metric, cuts)
    for filters in FILTERS.values():
        same(whole.search(QUERIES, 50, **filters), small.search(QUERIES, 50, **filters))
    bad = QUERIES.copy()
    bad[3] = np.nan
    for n in (1, 5000):
        found, expected = (each.search(bad, n, on_error="skip") for each in (small, whole))
        same(found, expected)
        assert found.errors == expected.errors
    with pytest.raises(ValueError, match="queries"):
        small.search(bad, 5)


@pytest.mark.parametrize(
    ("method", "cuts"), [("mmr", ()), ("vrsd", CUTS), ("dpp", ()), ("coverage", CUTS), ("mmr", CUTS)]
)
def test_picks_are_those_of_the_whole(both, method, cuts):
    whole, small = both("float32", "cosine", cuts)
    live = np.arange(N) if whole.live is None else np.flatnonzero(whole.live)
    pools = np.array([RNG.choice(live, 60, False) for _ in range(Q)])
    pools[0, 40:] = -1
    changed = [
        {"initial": RNG.choice(live, (Q, 3))},
        {"max_per_group": 1},
        {"budget": 6.0},
        {"candidates": pools},
        {"candidates": pools, "costs": np.linspace(1, 9, N), "budget": 20.0},
        {"exclude": RNG.integers(0, N, (Q, 30))},
    ]
    if method == "mmr":
        changed += [{"bias": np.linspace(-1, 0, N).astype("f4")}, {"lambda_d": np.linspace(0, 1, Q)}]
    for given in changed:
        expected, found = (each.select(QUERIES, 8, method=method, pool=70, **given) for each in (whole, small))
        same(found, expected)
        assert (found.certified is None) == (expected.certified is None)
        if found.certified is not None:
            assert np.array_equal(found.certified, expected.certified)
    bad = pools.copy()
    bad[2, 5] = N
    for each in (whole, small):
        with pytest.raises(ValueError, match="candidates"):
            each.select(QUERIES, 8, method=method, candidates=bad)


def test_certified_picks_are_those_of_the_whole(both):
    whole, small = both("float32", "cosine", ())
    same(small.select(QUERIES, 6, pool="certified"), whole.select(QUERIES, 6, pool="certified"))
    same(small.select(QUERIES, 3, pool=None), whole.select(QUERIES, 3, pool=None))


def test_pages_that_segments_share_are_kept(both):
    _, small = both("float32", "cosine", CUTS)
    before = np.array(small.data), np.array(small.codes)
    windows.forget(small, 0, N)
    assert np.array_equal(small.data, before[0])
    assert np.array_equal(small.codes, before[1])
    grown = small.append(np.eye(2, D, dtype=np.float32), [0.0, 0.0], [1, 1], ids=["x", "y"], costs=[1, 1])
    rows = np.array(grown.data)
    windows.forget(grown, 0, len(grown))
    assert np.array_equal(grown.data, rows)
    copied = rk.Corpus(np.array(before[0]))  # in memory: there is no file to read it from again
    windows.forget(copied, 0, N)
    assert np.abs(copied.data).sum() > 0


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="the system takes no such advice")
@pytest.mark.parametrize("pieces", [1, 3])
def test_the_pages_of_some_rows_and_no_others_are_given_back(tmp_path, monkeypatch, pieces):
    """Of one file, and of several in one range of addresses, but for pages that two files share."""
    advised, rows, offset = set(), np.arange(1000 * D, dtype=np.float32).reshape(1000, D), 128
    size = rows[0].nbytes

    def note(begin, length):
        advised.update(range(begin // mmap.PAGESIZE, -(-(begin + length) // mmap.PAGESIZE)))

    if pieces == 1:
        (tmp_path / "file").write_bytes(bytes(offset) + rows.tobytes())

        with open(tmp_path / "file", "rb") as file:
            memory = spans.mapped(file.fileno(), offset + rows.nbytes)
        mapped, shared = memory[offset:].view(rows.dtype).reshape(rows.shape), set()
        first = memory.ctypes.data
    else:
        parts, begin, shared = [], 0, set()
        for number, part in enumerate(np.array_split(rows, pieces)):
            at = offset + begin * size % mmap.PAGESIZE
            (tmp_path / str(number)).write_bytes(bytes(at) + part.tobytes())
            parts.append(spans.Piece(part, tmp_path / str(number), at))
            shared |= {(offset + begin * size) // mmap.PAGESIZE} if begin else set()
            begin += len(part)
        mapped = spans.joined(parts)
        first = mapped.ctypes.data - offset
    monkeypatch.setattr(spans._libc(), "madvise", lambda begin, length, _: note(begin - first, length))
    of_rows = types.SimpleNamespace(**dict.fromkeys((*folder.ARRAYS, "live")))
    of_rows.data = mapped
    for begin, end in ((0, 1000), (0, 1), (300, 500), (999, 1000), (42, 43), (10, 10), (320, 345)):
        advised.clear()
        windows.forget(of_rows, begin, end)
        own = range((offset + begin * size) // mmap.PAGESIZE, -(-(offset + end * size) // mmap.PAGESIZE))
        assert advised == ({*own} - shared if begin < end else set())
    np.testing.assert_array_equal(mapped, rows)


MEASURE = """
import json, os, sys
import numpy as np, ragsys_kernels as rk

def resident():
    with open("/proc/self/status") as lines:
        return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "VmHWM"))}

folder, memory = sys.argv[1], int(sys.argv[2]) or None
corpus = rk.Corpus.load(folder, memory=memory)
queries = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
rk.mmr(queries[:1], rk.Corpus(queries), 3)
before = resident()["VmRSS"]
picks = corpus.select(queries, 5, pool=50)
print(json.dumps([resident()["VmHWM"] - before, picks.indices.tolist()]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_held(tmp_path):
    rows = np.random.default_rng(1).standard_normal((400_000, 64), dtype=np.float32)
    rk.Corpus(rows, dtype="int8").save(tmp_path / "c")
    del rows
    found = {}
    for memory in (0, 8 << 20):
        run = [sys.executable, "-c", MEASURE, str(tmp_path / "c"), str(memory)]
        found[memory] = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    (all_of_it, expected), (held, picks) = found.values()
    assert picks == expected
    assert all_of_it > 16_000  # KB: what it takes without a limit
    assert held < 12_288, held


@pytest.mark.parametrize("memory", [0, -1, True, 1.5, "2X"])
def test_memory_must_be_a_number_of_bytes(tmp_path, memory):
    rk.Corpus(QUERIES).save(tmp_path / "c")
    with pytest.raises((ValueError, TypeError), match="memory must"):
        rk.Corpus.load(tmp_path / "c", memory=memory)
