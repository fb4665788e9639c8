"""Saved corpora at URLs: the same as from a local folder, fetched segment by segment, in bounded room."""

import os
import pickle
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import snapshot, vector_lists
from source_files import to_memory

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import fetched, segments
from ragsys_kernels.corpus import folder as corpus_folder
from ragsys_kernels.offline import spread
from ragsys_kernels.offline.ray import engine, holders, selector

fsspec = pytest.importorskip("fsspec")
N, D = 260, 12
OPTIONS = {"k": 5, "pool": 30, "max_per_group": 2, "chunk_size": 7, "shard_size": 10}


@pytest.fixture
def folder(tmp_path):
    """Six segments, whose groups are strings that later ones have no names of, and rows of two deleted."""
    rng = np.random.default_rng(0)
    columns = {
        "vector": vector_lists(rng.standard_normal((N, D), dtype=np.float32)),
        "id": [f"d{row}" for row in range(N)],
        "kind": [f"g{row % 7 + row // 200}" for row in range(N)],
        "quality": rng.uniform(-1, 0, N),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    np.save(tmp_path / "queries.npy", rng.standard_normal((20, D), dtype=np.float32))
    options = {"group_column": "kind", "bias_column": "quality", "dtype": "int8"}
    offline.build_corpus(tmp_path / "rows.parquet", tmp_path / "corpus", rows_per_segment=50, **options)
    offline.delete_rows(["d3", "d150"], tmp_path / "corpus")
    return tmp_path / "corpus"


@pytest.fixture
def calls(monkeypatch):
    """The names of the files that are fetched; nothing is listed."""
    kind, seen = fsspec.get_filesystem_class("memory"), []
    get = kind.get_file
    monkeypatch.setattr(kind, "get_file", lambda own, file, *rest, **more: (seen.append(file), get(own, file, *rest)))
    return seen


@pytest.fixture(autouse=True)
def nothing_left(tmp_path_factory, monkeypatch):
    """Temporary files go, whatever the end."""
    place = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield
    assert not os.listdir(place)


def select(folder, corpus, out, **options):
    given = {"corpus": corpus, "queries": folder.parent / "queries.npy", "out": folder.parent / out}
    return offline.select(**{**OPTIONS, **given, **options})


def sizes(path):
    return [segment["bytes"] for segment in segments.version_of(path)["segments"]]


def same(a, b, queries):
    assert (len(a), a.num_live, repr(a)) == (len(b), b.num_live, repr(b))
    np.testing.assert_array_equal(a.data, b.data)
    np.testing.assert_array_equal(a.ids[:], b.ids[:])
    for one, other in zip(a.select(queries, 4).columns, b.select(queries, 4).columns, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_corpus_is_loaded_from_its_url(folder, monkeypatch):
    queries, url = np.load(folder.parent / "queries.npy"), to_memory(folder)
    rk.Corpus.load(folder).save(folder.parent / "one")
    kind = fsspec.get_filesystem_class("memory")
    with monkeypatch.context() as without:
        for name in ("ls", "find", "walk", "glob"):
            without.setattr(kind, name, None)
        same(rk.Corpus.load(folder), rk.Corpus.load(url), queries)
    one = to_memory(folder.parent / "one")
    same(rk.Corpus.load(folder.parent / "one"), rk.Corpus.load(one), queries)
    same(rk.Corpus.load(folder), rk.Corpus.load(f"file://{folder}", memory=1 << 20), queries)


@pytest.mark.parametrize("room", [None, "a segment", "three segments", "all"])
def test_a_job_has_the_bytes_of_the_local_one(folder, calls, monkeypatch, room):
    """And as long as there is no room for more, fetches again; what it holds is bounded."""
    url, held, answer, holders = to_memory(folder), [], spread.Turns._answer, []
    each = sizes(folder)
    memory = {None: None, "a segment": max(each), "three segments": 3 * max(each), "all": sum(each)}[room]
    select(folder, folder, "local")

    class Watched(spread.Holder):
        def __init__(self, *given):
            super().__init__(*given)
            holders.append(self)

    def watched(*call):
        found = answer(*call)
        held.append(sum(holder.bytes for holder in holders if holder._opened is not None))
        return found

    monkeypatch.setattr(spread, "Holder", Watched)
    monkeypatch.setattr(spread.Turns, "_answer", watched)
    select(folder, url, "far", memory=memory, fingerprint="full")
    assert pq.read_table(folder.parent / "far").equals(pq.read_table(folder.parent / "local"))
    holders.clear()
    assert select(folder, url, "far", memory=memory).selected == 0
    assert all(size <= memory for size in held)
    assert bool(held) == (memory is not None)
    times = {file: calls.count(file) for file in calls if file.endswith("data.npy")}
    assert len(times) == len(each)
    if room == "all":
        assert max(held) == memory
    if room == "a segment":
        assert min(times.values()) > 2
    if room == "three segments":  # the first stay
        assert sorted(times.values())[:2] < [4, 4] < sorted(times.values())[-2:]


def test_holders_on_ray_fetch_their_own_segments(folder, calls, monkeypatch):
    """Whoever makes the selector fetches one, which says what the rows have, and the names of the groups."""
    store = SimpleNamespace(put=lambda value: value, get=lambda value: value)
    monkeypatch.setattr(selector, "import_ray", lambda op: store)
    url, memory, before = to_memory(folder), 3 * max(sizes(folder)), []

    def held(op, path, corpus, memory, **options):
        before.extend(file for file in calls if file.endswith("data.npy"))
        found = spread.shares(op, path, corpus, memory)
        some = [spread.Holder(share, None, None, options["verify"]) for share in found]
        assert len(some) == 2
        return spread.held_by(some, found, corpus, lambda asked: [getattr(h, m)(*a) for h, m, a in asked]), None, None

    monkeypatch.setattr(holders, "held", held)
    batch = {"embedding": np.load(folder.parent / "queries.npy")}
    options = {"k": 5, "pool": 30, "max_per_group": 2}
    far, near = (
        offline.selector_for_ray(corpus, memory=limit, **options)()(batch)
        for corpus, limit in ((url, memory), (folder, None))
    )
    assert len(before) == 1
    assert sorted(calls.count(file) for file in calls if file.endswith("data.npy"))[-1] == 2
    for name in ("ids", "scores", "relevance", "redundancy"):
        assert far[name].tolist() == near[name].tolist()


def test_what_ray_cannot_spread_is_refused_before_it_is_fetched(folder, calls, monkeypatch):
    for module in (selector, engine):
        monkeypatch.setattr(module, "import_ray", lambda op: None)
    rk.Corpus.load(folder).save(folder.parent / "plain")
    url, queries = to_memory(folder.parent / "plain"), folder.parent / "queries.npy"
    rule = r"memory must come with a corpus in segments \(corpus build\), got \d+ and memory:"
    with pytest.raises(ValueError, match=f"^selector_for_ray: {rule}"):
        offline.selector_for_ray(url, memory=10**9)
    with pytest.raises(ValueError, match=f"^select: {rule}"):
        offline.select(corpus=url, queries=queries, out=folder.parent / "o", engine="ray", memory=10**9)
    most = max(sizes(folder))
    with pytest.raises(ValueError, match=f"^selector_for_ray: memory must be at least {most}, the bytes of a segment"):
        offline.selector_for_ray(to_memory(folder), memory=most - 1)
    assert not calls


def test_what_stands_for_a_corpus_says_what_it_has(folder):
    source = folder.parent / "rows.parquet"
    offline.build_corpus(
        source, folder, group_column="kind", metric="dot", dtype="int8", rows_per_segment=50, overwrite=True
    )
    for deleted in ([], ["d150"]):  # of a segment that is not the first
        offline.delete_rows(deleted, folder)
        url = to_memory(folder)
        near, far = rk.Corpus.load(folder), spread.in_turns("select", url, 1 << 20, None)
        for name in ("dtype", "metric", "norm", "max_norm", "num_live"):
            assert getattr(near, name) == getattr(far, name)
        for name in ("data", "scales", "bias", "groups", "live"):
            one, other = getattr(near, name), getattr(far, name)
            assert (one is None) == (other is None)
            assert one is None or (one.shape, one.dtype) == (other.shape, other.dtype)
        assert far.group_names[:].tolist() == near.group_names[:].tolist()
        assert far.ids[np.arange(N)].tolist() == near.ids[:].tolist()
        fsspec.filesystem("memory").rm(url, recursive=True)


def test_candidates_are_found_by_ids(folder):
    lists = [[f"d{(7 * row + 11 * n) % 150}" for n in range(12)] for row in range(20)]
    lists = [[each for each in row if each != "d3"] for row in lists]
    pq.write_table(pa.table({"candidates": lists}), folder.parent / "lists.parquet")
    options = {"candidates": folder.parent / "lists.parquet", "candidate_ids": True, "pool": None}
    select(folder, folder, "local", **options)
    select(folder, to_memory(folder), "far", memory=max(sizes(folder)), **options)
    assert pq.read_table(folder.parent / "far").equals(pq.read_table(folder.parent / "local"))


def test_an_index_is_fetched_with_its_segment(folder):
    pytest.importorskip("faiss")
    source = folder.parent / "rows.parquet"
    offline.build_corpus(source, folder, rows_per_segment=50, index="HNSW4,Flat", overwrite=True)
    url, options = to_memory(folder), {"search_parameters": "efSearch=4", "max_per_group": None}
    select(folder, folder, "local", **options)
    for out, memory in (("whole", None), ("turns", max(sizes(folder)))):
        select(folder, url, out, memory=memory, **options)
        assert pq.read_table(folder.parent / out).equals(pq.read_table(folder.parent / "local"))
        with pytest.raises(ValueError, match="nonsense"):
            select(folder, url, "no", memory=memory, search_parameters="nonsense=2", max_per_group=None)
    queries = np.load(folder.parent / "queries.npy")
    far = pickle.loads(pickle.dumps(rk.Corpus.load(url)))  # as processes get it, after its files have gone
    np.testing.assert_array_equal(far.search(queries, 9).indices, rk.Corpus.load(folder).search(queries, 9).indices)


@pytest.mark.parametrize("memory", [None, 1 << 20])
@pytest.mark.parametrize("name", ["data.npy", "group_text.npy", "corpus.json", ".bits"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_what_is_damaged_is_named(folder, memory, name, damage):
    url, files = to_memory(folder), fsspec.filesystem("memory")
    found = [file for file in sorted(files.find(url)) if file.endswith(name) and file.count("/") > url.count("/") - 1]
    content = bytearray(files.cat_file(found[-1]))
    content[-2] ^= 1
    files.rm_file(found[-1])
    if damage == "changed":
        files.pipe_file(found[-1], bytes(content))
    if name == "group_text.npy":
        with pytest.raises(ValueError, match=r"segment 0.*group_text.npy is missing or damaged"):
            segments.group_names(url, segments.version_of(url))
    before = snapshot(folder.parent)
    match = "select: corpus must be usable|Corpus: path must hold the files"
    with pytest.raises(ValueError, match=match) as raised:
        select(folder, url, "out", memory=memory)
    assert "segment 0" in str(raised.value)
    assert any(word in str(raised.value) for word in ("damaged", "missing"))
    if memory is None:
        assert snapshot(folder.parent) == before


@pytest.mark.parametrize("memory", [None, 1 << 20])
def test_every_byte_that_is_fetched_is_compared(folder, monkeypatch, memory):
    """Of a local folder that is not small, a sample."""
    monkeypatch.setattr(corpus_folder, "_SAMPLED_ROWS", 2)
    monkeypatch.setattr(corpus_folder, "_SMALL", 0)
    offline.build_corpus(folder.parent / "rows.parquet", folder, rows_per_segment=50, overwrite=True)
    file = sorted(folder.glob("segments/*/data.npy"))[-1]
    content = bytearray(file.read_bytes())
    content[-240] ^= 1  # of a row that is neither the first nor the last
    file.write_bytes(content)
    assert len(rk.Corpus.load(folder)) == N
    url = to_memory(folder)
    for call in (lambda: select(folder, url, "out", memory=memory, max_per_group=None), lambda: rk.Corpus.load(url)):
        with pytest.raises(ValueError, match=r"segment 0.*data.npy is damaged"):
            call()


def test_another_version_while_one_is_fetched(folder, monkeypatch):
    """Which removes the segments of the one before."""
    url, files = to_memory(folder), fsspec.filesystem("memory")
    offline.compact_corpus(folder, rows_per_segment=100)
    copy, done = fetched.Store.copy, []

    def meanwhile(store, names, to):
        copy(store, names, to)
        if not done:
            done.append(files.rm(url, recursive=True))
            to_memory(folder)

    monkeypatch.setattr(fetched.Store, "copy", meanwhile)
    same(rk.Corpus.load(url), rk.Corpus.load(folder), np.load(folder.parent / "queries.npy"))


def test_what_cannot_be_is_refused(folder, monkeypatch):
    url, most = to_memory(folder), max(sizes(folder))
    with pytest.raises(ValueError, match=f"^select: memory must be at least {most}, the bytes of a segment of {url}"):
        select(folder, url, "out", memory=most - 1)
    with pytest.raises(ValueError, match=r"^select: pool 'certified' must come without memory where the corpus is a"):
        select(folder, url, "out", memory=most, pool="certified", max_per_group=None)
    with pytest.raises(ValueError, match=f"must be a folder written by Corpus.save, got {url}/no: it has no file"):
        rk.Corpus.load(f"{url}/no")
    with pytest.raises(ValueError, match=r"^Corpus: path must be a URL that fsspec opens, got nosuch://c: "):
        rk.Corpus.load("nosuch://c")
    with pytest.raises(ValueError, match=r"^Corpus: path must be a local path, got s3://bucket/corpus$"):
        rk.Corpus.load(Path("s3://bucket/corpus"))
    for call in (
        lambda: offline.append_corpus(folder.parent / "queries.npy", url),
        lambda: offline.delete_rows(["d1"], url),
        lambda: offline.compact_corpus(url),
    ):
        with pytest.raises(ValueError, match=f"folder must be a local path, got {url}$"):
            call()

    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 1000))
        with pytest.raises(OSError, match=rf"^Corpus: path must fit into the folder .* of {url} and 1000 in "):
            rk.Corpus.load(url)

    def fails(*_, **__):
        raise RuntimeError("no credentials")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "cat_file", fails)
    with pytest.raises(OSError, match=f"^Corpus: path must be a URL that can be read, got {url}: no credentials$"):
        rk.Corpus.load(url)
