"""Folders with an index: where it misses nothing, what is found is what the exact search finds."""

import logging
import pickle
import sys
import warnings

import numpy as np
import pytest
from segmented import Rows, corpus_of

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import faiss_index, segments, versions
from ragsys_kernels.corpus.folder_index import FILE, Recipe

with warnings.catch_warnings():  # of its SWIG wrapper, on some versions of Python
    warnings.simplefilter("ignore")
    faiss = pytest.importorskip("faiss")

SIZES = [300, 40, 260, 400]  # the second is too small for cells
N, Q = sum(SIZES), 19
EXACT = [("Flat", ""), ("IVF8,Flat", "nprobe=8")]


@pytest.fixture(scope="module")
def rows():
    found = Rows(N, columns=("bias", "groups"))
    ties = [11, 51, 77, 93, 122, 320, 351, 999]  # in all segments
    found.embeddings[ties] = found.embeddings[3]
    found.columns["bias"][ties] = found.columns["bias"][3]
    return found


@pytest.fixture(scope="module")
def queries(rows):
    rng = np.random.default_rng(5)
    found = rng.standard_normal((Q, 13)).astype(np.float32)
    found[0] = rows.embeddings[3]
    return found


def built(path, rows, recipe, sizes=SIZES, **options):
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    made = (corpus_of(rows, some, **options) for some in parts)
    versions.build("test", path, lambda _: ((each, each.ids) for each in made), 300, False, recipe=Recipe(*recipe))
    return path


def names(path):
    return [each["name"] for each in segments.described(path)["segments"]]


def same(found, expected):
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.scores, expected.scores)


def restricted(rows):
    """Ways to say what may be found, by arguments of a search."""
    rng = np.random.default_rng(6)
    masks = rng.random((Q, N)) < 0.3
    lists = np.stack([rng.choice(N, 90, replace=False) for _ in range(Q)])
    return [
        {},
        {"allowed": masks[0]},
        {"allowed": masks},
        {"allowed": lists},
        {"exclude": lists},
        {"allowed": masks[0], "exclude": lists},
        {"exclude": np.arange(N)[masks[0]]},
        {"query_groups": rng.integers(0, 9, Q)},
        {"allowed": np.arange(N) < 12},  # fewer than are asked for
    ]


@pytest.mark.parametrize(
    ("recipe", "metric", "dtype"),
    [(EXACT[0], "cosine", "float32"), (EXACT[1], "dot", "int8"), (EXACT[1], "cosine", "float16")],
    ids=str,
)
def test_an_index_that_misses_nothing_finds_what_the_exact_search_does(tmp_path, rows, queries, recipe, metric, dtype):
    path = built(tmp_path / "c", rows, recipe, metric=metric, dtype=dtype)
    offline.delete_rows(rows.columns["ids"][3:N:7], path)
    corpus, windowed = rk.Corpus.load(path, verify=True), rk.Corpus.load(path, memory=60_000)
    for options in restricted(rows):
        expected = corpus.search(queries, 25, index=False, lambda_b=0.6, **options)
        same(corpus.search(queries, 25, lambda_b=0.6, **options), expected)
        same(windowed.search(queries, 25, lambda_b=0.6, **options), expected)
    live = np.flatnonzero(corpus.live)
    units = queries / np.linalg.norm(queries, axis=1, keepdims=True) if metric == "cosine" else queries
    values = 0.95 * (units @ corpus.vectors(live).T) + 0.05 * corpus.bias[live]
    best = np.sort(values, axis=1)[:, ::-1][:, :25]
    np.testing.assert_allclose(corpus.search(queries, 25).scores, best, rtol=1e-5, atol=1e-5)
    for method in ("mmr", "vrsd", "dpp"):
        expected = corpus.select(queries, 5, method=method, pool=30, index=False)
        same(corpus.select(queries, 5, method=method, pool=30), expected)
        same(windowed.select(queries, 5, method=method, pool=30), expected)
    initial = np.full((Q, 2), -1)
    initial[::2, 0] = 5
    initial[::3, 1] = 6
    expected = corpus.select(queries, 5, pool=30, initial=initial, index=False)
    same(corpus.select(queries, 5, pool=30, initial=initial), expected)


def test_one_that_misses_some_is_used_unless_the_call_says_otherwise(tmp_path, rows, queries):
    path = built(tmp_path / "c", rows, ("IVF8,Flat", "nprobe=1"))
    corpus = rk.Corpus.load(path)
    assert "index='IVF8,Flat (nprobe=1)'" in repr(corpus)
    exact = corpus.search(queries, 20, index=False)
    few, more = (corpus.search(queries, 20, index=each) for each in (None, "nprobe=4"))
    shares = [np.mean([np.isin(a, b).mean() for a, b in zip(exact[0], each[0], strict=True)]) for each in (few, more)]
    assert 0.1 < shares[0] < shares[1] < 1
    same(corpus.search(queries, 20, index="nprobe=8"), exact)
    same(corpus.search(queries, 20), few)  # no call leaves its parameters behind
    expected = corpus.select(queries, 4, pool=20, index=False)
    assert expected.certified is not None
    found = corpus.select(queries, 4, pool=20)
    assert (found.certified, found.pool_needed) == (None, None)
    assert (found.indices != expected.indices).any()
    same(corpus.select(queries, 4, pool=20, index="nprobe=8"), expected)
    whole = corpus.select(queries, 4, pool=None)
    for index in (None, False):
        certified = corpus.select(queries, 4, pool="certified", index=index)
        same(certified, whole)
        assert certified.certified.all()
    np.testing.assert_array_equal(found.indices, corpus.select(queries, 4, candidates=corpus.search(queries, 20)[0])[0])
    assert corpus.select(queries, 4, relevance=np.ones((Q, N), np.float32), pool=None).indices.tolist()


@pytest.mark.parametrize("memory", [None, 1 << 16])
def test_few_rows_that_a_mask_allows_are_searched_exactly(tmp_path, rows, queries, memory):
    corpus = rk.Corpus.load(built(tmp_path / "c", rows, ("IVF8,Flat", "nprobe=1")), memory=memory)
    rng = np.random.default_rng(8)
    some = np.sort(rng.choice(N, 50, replace=False))
    few = np.isin(np.arange(N), some)
    lists, own = np.stack([rng.choice(N, 400, replace=False) for _ in range(Q)]), rng.integers(0, 9, Q)
    for given in (
        {"allowed": some},
        {"allowed": few, "exclude": lists},
        {"allowed": np.tile(few, (Q, 1)), "query_groups": own},
        {"allowed": some, "exclude": lists, "query_groups": own},
        {"exclude": np.flatnonzero(~few)},
        {"allowed": np.zeros(N, bool)},
    ):
        for n in (5, 70):
            same(corpus.search(queries, n, **given), corpus.search(queries, n, **given, index=False))
    no_more = {"allowed": np.arange(110)}  # than are asked for
    same(corpus.search(queries, 120, **no_more), corpus.search(queries, 120, **no_more, index=False))
    masks = np.where(np.arange(Q)[:, None] % 2, few, rng.random((Q, N)) < 0.9)
    found, exact = (corpus.search(queries, 20, allowed=masks, index=index) for index in (None, False))
    np.testing.assert_array_equal(found.indices[1::2], exact.indices[1::2])
    assert (found.indices[::2] != exact.indices[::2]).any()
    for q in range(4):  # as alone, by a mask of its own and by one for all
        for mask in (masks[q : q + 1], masks[q]):
            np.testing.assert_array_equal(
                corpus.search(queries[q : q + 1], 20, allowed=mask).indices[0], found.indices[q]
            )


def test_rows_beyond_the_index_are_searched_exactly(tmp_path, rows, queries):
    """Of a corpus that grows in memory, of segments that are too small, and after a change of the bias."""
    corpus = rk.Corpus.load(built(tmp_path / "c", rows, ("IVF8,Flat", "nprobe=1"), SIZES[:3]))
    longer = corpus.append(**rows.part(slice(sum(SIZES[:3]), N))).delete(rows.columns["ids"][[320, 999]])
    exact, found = longer.search(queries, 20, index=False), longer.search(queries, 20)
    last = np.isin(exact.indices, [*range(300, 340), *range(600, N)])
    for own, others, there in zip(found.indices, exact.indices, last, strict=True):
        assert set(others[there]) <= set(own)
    assert not np.isin(found.indices, [320, 999]).any()
    assert (found.indices != exact.indices).any()
    same(pickle.loads(pickle.dumps(longer)).search(queries, 20), found)
    assert "index" not in repr(rk.Corpus(rows.embeddings))


@pytest.mark.parametrize("factory", ["IVF16,Flat", "IVF16_HNSW8,SQ8", "OPQ4_12,IVF16,SQ8", "HNSW8,Flat", "IVF16,PQ7x4"])
def test_what_is_found_depends_on_no_other_query_and_no_thread(tmp_path, rows, queries, factory):
    parameters = "efSearch=20" if factory.startswith("HNSW") else "nprobe=3"
    corpus = rk.Corpus.load(built(tmp_path / "c", rows, (factory, parameters)))
    offline.delete_rows(rows.columns["ids"][::5], tmp_path / "c")
    for each in (corpus, rk.Corpus.load(tmp_path / "c")):
        together = each.search(queries, 20, num_threads=1)
        ties = together.scores[0, 1:] == together.scores[0, :-1]
        assert ties.sum() >= 5
        assert (np.diff(together.indices[0])[ties] > 0).all()  # they go to the lowest row
        for threads in (2, 3):
            same(each.search(queries, 20, num_threads=threads), together)
        for part in (slice(0, 1), slice(5, 12)):
            alone = each.search(queries[part], 20)
            np.testing.assert_array_equal(alone.indices, together.indices[part])


@pytest.mark.parametrize("factory", ["Flat", "HNSW8,Flat", "IVF16,Flat", "IVF16_HNSW8,SQ8", "OPQ4_64,IVF16,SQ8"])
def test_queries_that_faiss_gets_at_once_have_the_bits_that_they_have_alone(factory):
    rng = np.random.default_rng(2)
    index = faiss.index_factory(96, factory, faiss.METRIC_INNER_PRODUCT)
    rows, asked = (rng.standard_normal((count, 96), dtype=np.float32) for count in (700, 160))
    index.train(rows)
    index.add(rows)
    together = faiss_index.alone("test", index)
    assert together == (1 if factory.startswith("OPQ") else 16)
    for begin in range(0, len(asked), together):
        part = slice(begin, begin + together)
        alone = [index.search(query[None], 9)[0] for query in asked[part]]
        np.testing.assert_array_equal(index.search(asked[part], 9)[0], np.concatenate(alone))


def test_appends_and_compactions_make_indexes(tmp_path, rows, queries):
    path = built(tmp_path / "c", rows, ("IVF8,Flat", "nprobe=8"), SIZES[:3])
    first = names(path)
    sizes = [each["index bytes"] > 0 for each in segments.described(path)["segments"]]
    assert sizes == [True, False, True]
    before = rk.Corpus.load(path)
    whole = rk.Corpus.load(path).search(queries, 20)
    offline.append_corpus(corpus_of(rows, np.arange(600, N)), path)
    assert names(path)[:3] == first
    assert [each["index bytes"] > 0 for each in segments.described(path)["segments"]] == [True, False, True, True]
    assert segments.problems(path) == []
    cells = [faiss.read_index(str(path / "segments" / names(path)[at] / FILE)) for at in (0, 3)]
    centroids = [faiss.downcast_index(each.quantizer).reconstruct_n(0, 8) for each in cells]
    np.testing.assert_array_equal(*centroids)  # trained once
    offline.delete_rows(rows.columns["ids"][:50], path)
    offline.compact_corpus(path)
    assert [each["index bytes"] > 0 for each in segments.described(path)["segments"]] == [True, True, True, False]
    corpus = rk.Corpus.load(path, verify=True)
    assert len(corpus) == N - 50
    same(corpus.search(queries, 20), corpus.search(queries, 20, index=False))
    same(before.search(queries, 20), whole)  # whose files are gone


def test_a_build_that_was_killed_goes_on_with_the_same_index(tmp_path, rows, caplog):
    caplog.set_level(logging.INFO, "ragsys_kernels")

    def made(begin, stop=None):
        for at in range(begin, 900, 300):
            if at == stop:
                raise KeyboardInterrupt
            each = corpus_of(rows, np.arange(at, at + 300))
            yield each, each.ids

    def index_files(path):
        return [(path / "segments" / name / FILE).read_bytes() for name in names(path)]

    recipe = Recipe("IVF8,Flat", "nprobe=2")
    versions.build("test", tmp_path / "a", made, 300, False, "key", recipe)
    with pytest.raises(KeyboardInterrupt):
        versions.build("test", tmp_path / "b", lambda begin: made(begin, 600), 300, False, "key", recipe)
    assert not caplog.messages
    versions.build("test", tmp_path / "b", lambda begin: made(begin), 300, False, "key", recipe)
    assert caplog.messages == ["test: goes on from 600 rows that an earlier call has written"]
    assert index_files(tmp_path / "a") == index_files(tmp_path / "b")


@pytest.mark.parametrize("segmented", [True, False])
def test_damage_is_named(tmp_path, rows, segmented):
    np.save(tmp_path / "v.npy", np.tile(rows.embeddings, (8, 8)))
    path = tmp_path / "c"
    options = {"rows_per_segment": 4000} if segmented else {}
    offline.build_corpus(tmp_path / "v.npy", path, index="IVF8,Flat", **options)
    file = path / "segments" / names(path)[1] / FILE if segmented else path / FILE
    whole = file.read_bytes()
    for at in (0, len(whole) // 2 + 4097, len(whole) - 1):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        (problem,) = segments.problems(path)
        assert f"{FILE} is damaged" in problem
        with pytest.raises(ValueError, match=f"{FILE} is damaged"):
            rk.Corpus.load(path, verify=True)
        if at != len(whole) // 2 + 4097:  # of the blocks that every load compares
            with pytest.raises(ValueError, match=f"{FILE} is damaged or another corpus's"):
                rk.Corpus.load(path)
    file.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=f"{FILE} has {len(whole) - 1} bytes, not {len(whole)}"):
        rk.Corpus.load(path)
    file.unlink()
    with pytest.raises(ValueError, match=f"{FILE} is missing"):
        rk.Corpus.load(path)


def test_bad_calls(tmp_path, rows, queries, monkeypatch):
    np.save(tmp_path / "v.npy", rows.embeddings)
    for options, message in (
        (
            {"index": "IVF8,Fla"},
            "index must be a FAISS factory string for inner product over 13 columns, got 'IVF8,Fla'",
        ),
        ({"index": "IVF8,Flat", "search_parameters": "nprob=1"}, "search_parameters must be ones of the index"),
        *(
            ({"index": "IVF8,Flat", "search_parameters": "nprobe=0", **more}, "search_parameters must be .*'nprobe=0'")
            for more in ({}, {"rows_per_segment": 300})
        ),
        ({"search_parameters": "nprobe=1"}, "search_parameters must come with index, got 'nprobe=1' alone"),
        ({"index": "IVF8,Flat", "rows_per_segment": 255}, "index must be one for 255 rows a segment"),
        (
            {"index": "IVF2000,Flat"},
            "index must be one for 1000 rows a segment, got 'IVF2000,Flat', which needs 2000; fewer",
        ),
    ):
        with pytest.raises(ValueError, match=f"^build_corpus: {message}"):
            offline.build_corpus(tmp_path / "v.npy", tmp_path / "c", **options)
        assert not (tmp_path / "c").exists()
    corpus = rk.Corpus.load(built(tmp_path / "c", rows, ("IVF8,Flat", "")))
    for call, message in (
        (lambda: corpus.search(queries, 5, index="nprob=1"), "search: search_parameters must be ones of the index"),
        (lambda: corpus.search(queries, 5, index="nprobe=0"), "search: search_parameters must be ones of the index"),
        (lambda: corpus.select(queries, 5, bias=np.zeros(N)), "select: bias must be that of the corpus where its"),
        (lambda: corpus.select(queries, 5, pool=None, index="nprobe=1"), "select: index must come with a pool"),
        (lambda: corpus.select(queries, 5, pool="certified", index="nprobe=1"), "select: pool 'certified' must come"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            call()
    for of, index, got in ((rk.Corpus(rows.embeddings), "nprobe=1", "str"), (corpus, True, "bool")):
        with pytest.raises(TypeError, match=rf"^search: index must be None, False, .* search parameters, got {got}"):
            of.search(queries, 5, index=index)
    assert corpus.select(queries, 5, bias=np.zeros(N), index=False).indices.shape == (Q, 5)
    bad = queries.copy()
    bad[4, 2] = np.nan
    with pytest.raises(ValueError, match=r"^search: queries must be finite, got NaN or inf .* 4"):
        corpus.search(bad, 5)
    found = corpus.search(bad, 5, on_error="skip")
    assert list(found.errors) == [4]
    np.testing.assert_array_equal(found.indices[5:], corpus.search(queries[5:], 5).indices)
    monkeypatch.setitem(sys.modules, "faiss", None)
    fresh = rk.Corpus.load(tmp_path / "c")
    with pytest.raises(ModuleNotFoundError, match=r"^search needs faiss: pip install "):
        fresh.search(queries, 5)
    assert fresh.search(queries, 5, index=False).indices.shape == (Q, 5)


def test_a_build_says_that_faiss_looks_into_one_cell(tmp_path, rows, caplog):
    np.save(tmp_path / "v.npy", rows.embeddings)
    caplog.set_level("INFO", "ragsys_kernels")
    for i, (index, parameters, told) in enumerate((
        ("IVF8,Flat", None, 1), ("PCA4,IVF8,Flat", None, 1), ("IVF8,Flat", "nprobe=1", 0), ("IVF1,Flat", None, 0),
        ("HNSW8,Flat", None, 0),
    )):  # fmt: skip
        for more in ({}, {"rows_per_segment": 300}):
            caplog.clear()
            out = tmp_path / f"{i}{len(more)}"
            offline.build_corpus(tmp_path / "v.npy", out, index=index, search_parameters=parameters, **more)
            some = (
                f"build_corpus: searches look into 1 of the 8 cells of {index}, FAISS's default, and miss most rows; "
            )
            assert [text.startswith(some) for text in caplog.messages] == [True] * told
