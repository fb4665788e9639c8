"""Rows of packed signs: an oracle over vectors of 1 and -1 in float64, numbers of bits, sentence-transformers."""

from importlib.util import find_spec

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, testing
from ragsys_kernels.selection import capabilities

N, Q = 300, 9
# 64 and 1,024: cosines are exact in float32. The others end in the middle of a word or of a vector.
WIDTHS = (8, 24, 64, 200, 512, 768, 1024)


@pytest.fixture(params=["reference", *(f"cpu-{isa}" for isa in ("base", "avx2", "avx512"))])
def binary_backend(request, monkeypatch):
    name, _, isa = request.param.partition("-")
    if isa and (_dispatch.why_not("cpu") or isa not in _dispatch.extension().SUPPORTED_ISAS):
        pytest.skip(f"instruction set {isa} is not here")
    if isa:
        monkeypatch.setenv("RAGSYS_KERNELS_ISA", isa)
    return name


def clustered(D, seed=0):
    """Floats whose signs have near neighbours and repetitions, and queries near to them."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((12, D))
    rows = (centres[rng.integers(0, 12, N)] + 0.7 * rng.standard_normal((N, D))).astype(np.float32)
    rows[rng.integers(0, N, 20)] = rows[0]
    queries = (centres[rng.integers(0, 12, Q)] + 0.7 * rng.standard_normal((Q, D))).astype(np.float32)
    return rows, queries


def signs(x):
    return np.where(x > 0, 1.0, -1.0)


def cosines(a, b):
    return (a / np.linalg.norm(a, axis=1)[:, None]) @ (b / np.linalg.norm(b, axis=1)[:, None]).T


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("D", "asked"), [*((D, "signs") for D in WIDTHS), (24, "floats"), (200, "floats"), (1024, "floats")]
)
def test_picks(binary_backend, D, asked):
    rows, queries = clustered(D)
    corpus = rk.Corpus(np.packbits(rows > 0, axis=1), dtype="binary")
    given = np.packbits(queries > 0, axis=1) if asked == "signs" else queries
    vectors, asked_for = signs(rows), signs(queries) if asked == "signs" else queries.astype(np.float64)
    pools = np.argsort(-cosines(asked_for, vectors), axis=1, kind="stable")[:, :40]
    for method, options in (("mmr", {"lambda_d": 0.6}), ("vrsd", {})):
        for candidates in (pools, None):
            call = {"candidates": candidates, **options}
            picks = corpus.select(given, 6, method=method, pool=None, backend=binary_backend, **call)
            problem = {"queries": given, "embeddings": corpus, "k": 6, **call}
            testing.check_selection(method, problem, picks)


@pytest.mark.parametrize("D", WIDTHS)
def test_search_finds_the_fewest_other_bits(binary_backend, D):
    rows, queries = clustered(D)
    packed, asked = np.packbits(rows > 0, axis=1), np.packbits(queries > 0, axis=1)
    corpus = rk.Corpus(packed, dtype="binary")
    hamming = ((queries > 0)[:, None] != (rows > 0)[None]).sum(axis=2)
    for n in (5, N):
        found, order = (
            corpus.search(asked, n, backend=binary_backend),
            np.argsort(hamming, axis=1, kind="stable")[:, :n],
        )
        np.testing.assert_array_equal(found.indices, order)
        np.testing.assert_allclose(found.scores, 1 - 2 * np.take_along_axis(hamming, order, axis=1) / D, atol=1e-6)


@pytest.mark.parametrize("D", [15_872, 16_384, 16_408])
def test_long_rows_that_differ_everywhere(binary_backend, D):
    """Sums of counts are kept in bytes over 31 vectors of 64 bytes, which is 15,872 bits."""
    packed = np.random.default_rng(2).integers(0, 256, (20, D // 8), dtype=np.uint8)
    packed[7] = ~packed[0]
    differ = np.unpackbits(packed[:, None] ^ packed[None], axis=2).sum(axis=2)
    found = rk.Corpus(packed, dtype="binary").search(packed, 20, backend=binary_backend)
    np.testing.assert_allclose(found.scores, np.take_along_axis(1 - 2 * differ / D, found.indices, axis=1), atol=1e-6)
    assert found.indices[0, -1] == 7


def test_options(binary_backend):
    """Everything that limits picks, and every rule: as over the same vectors in float32."""
    D = 64
    rows, queries = clustered(D)
    rng = np.random.default_rng(1)
    columns = {"bias": rng.uniform(-1, 0, N).round(2), "groups": rng.integers(0, 20, N), "costs": rng.integers(1, 9, N)}
    corpus = rk.Corpus(np.packbits(rows > 0, axis=1), dtype="binary", **columns)
    floats = rk.Corpus(signs(rows).astype(np.float32), **columns)
    asked = np.packbits(queries > 0, axis=1)
    candidates = np.stack([rng.permutation(N)[:50] for _ in range(Q)])
    left = np.array([np.setdiff1d(np.arange(N), pool)[:3] for pool in candidates])
    allowed = rng.random(N) < 0.6
    for options in (
        {"candidates": candidates, "initial": left, "max_per_group": 1},
        {"candidates": candidates, "budget": 15, "max_similarity": 0.4},
        {"pool": 60, "allowed": allowed, "query_groups": rng.integers(0, 20, Q)},
        {"pool": None, "exclude": np.arange(0, 40)},
    ):
        for method in rk.METHODS:
            if method == "gist" and "candidates" in options:  # limits that it does not take
                continue
            backend = "auto" if method == "gist" else binary_backend
            picks = corpus.select(asked, 5, method=method, backend=backend, **options)
            same = floats.select(signs(queries).astype(np.float32), 5, method=method, backend="reference", **options)
            np.testing.assert_array_equal(picks.indices, same.indices, err_msg=f"{method} {sorted(options)}")
            np.testing.assert_allclose(
                picks.scores, same.scores, atol=5e-4
            )  # SSD: roots of what next to nothing is left of
            np.testing.assert_allclose(picks.redundancy, same.redundancy, atol=2e-6)
    path = rk.mmr_path(asked, corpus, 5, candidates=candidates, backend=binary_backend)
    for q in range(Q):
        at = path.of(q).at(np.float32(0.5))[0]
        np.testing.assert_array_equal(at, rk.mmr(asked, corpus, 5, candidates=candidates, lambda_d=0.5).indices[q])


@pytest.mark.parametrize("isa", ["base", "avx2", "avx512"])
def test_bounds_change_no_bit(isa, monkeypatch):
    """Blocks of items that are left out, with many equal values: the bits of items that all meet all picks."""
    if _dispatch.why_not("cpu") or isa not in _dispatch.extension().SUPPORTED_ISAS:
        pytest.skip(f"instruction set {isa} is not here")
    monkeypatch.setenv("RAGSYS_KERNELS_ISA", isa)
    less = 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        D, P, K = int(rng.choice([16, 64, 200, 1024])), int(rng.integers(1, 90)), int(rng.integers(1, 12))
        rows, queries = clustered(D, seed)
        asked = np.packbits(queries > 0, axis=1) if seed % 2 else queries
        problem = {
            "queries": asked, "embeddings": rk.Corpus(rows, dtype="binary"), "k": K,
            "candidates": np.stack([rng.permutation(N)[:P] for _ in range(Q)]),
            "lambda_d": rng.choice([0, 0.3, 0.75, 1], Q),
        }  # fmt: skip
        if seed % 3 == 0:
            problem["initial"] = np.stack([np.setdiff1d(np.arange(N), row)[:2] for row in problem["candidates"]])
        if seed % 5 == 0:
            problem.update(
                relevance=rng.integers(0, 5, (Q, P)).astype(np.float32), groups=np.arange(N) % 9, max_per_group=2
            )
        for method in ("mmr", "vrsd", "msd"):
            arguments = {name: x for name, x in problem.items() if method != "vrsd" or name != "lambda_d"}
            found, work = testing.selection_work(method, arguments)
            testing.check_selection(method, arguments, found)
            for bounds in ("dense", "pruned"):
                other, more = testing.selection_work(method, arguments, bounds=bounds)
                for field, same in zip(found, other, strict=True):
                    np.testing.assert_array_equal(field, same)
                less += bounds == "dense" and work.products < more.products
    assert less > 9


@pytest.mark.slow  # the import of it; test_picks and test_files_and_jobs have rows and queries of these kinds
def test_as_sentence_transformers_quantises():
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    rows, queries = clustered(256)
    unsigned, signed = (quantization.quantize_embeddings(rows, precision=name) for name in ("ubinary", "binary"))
    made = rk.Corpus(unsigned, dtype="binary")
    assert made.dims == 256
    for other in (signed, rows, rows.astype(np.float16), np.asfortranarray(unsigned)):
        np.testing.assert_array_equal(rk.Corpus(other, dtype="binary").data, made.data)
    asked = quantization.quantize_embeddings(queries, precision="ubinary")
    # Their search: FAISS by bits, then the products of the float queries with the bits that were found.
    theirs, _ = quantization.semantic_search_faiss(
        queries, corpus_embeddings=unsigned, corpus_precision="ubinary", top_k=10, rescore=True, rescore_multiplier=4
    )
    pools = made.search(asked, 40).indices
    ours = made.search(queries, N)  # floats against signs
    for q, found in enumerate(theirs):
        order = [row for row in ours.indices[q] if row in pools[q]]
        ids = [hit["corpus_id"] for hit in found]
        bits = np.unpackbits(unsigned, axis=1).astype(np.float64)
        np.testing.assert_allclose(
            [queries[q] @ bits[i] for i in ids], [queries[q] @ bits[i] for i in order[:10]], rtol=1e-5
        )


def test_refused():
    packed = np.zeros((4, 8), np.uint8)
    with pytest.raises(ValueError, match=r"^Corpus: metric must be 'cosine' with dtype 'binary', got 'dot'"):
        rk.Corpus(packed, metric="dot", dtype="binary")
    with pytest.raises(ValueError, match=r"^Corpus: embeddings must have a multiple of 8 dimensions .* got D = 9"):
        rk.Corpus(np.zeros((4, 9), np.float32), dtype="binary")
    with pytest.raises(ValueError, match=r"^Corpus: embeddings must be finite, got NaN or inf in row 2"):
        rk.Corpus(np.array([[0.0] * 8, [1.0] * 8, [np.nan] * 8], np.float32), dtype="binary")
    corpus = rk.Corpus(packed, dtype="binary")
    with pytest.raises(
        ValueError, match=r"^mmr: queries must have the embeddings' D = 64 dimensions, or D / 8 = 8 bytes"
    ):
        rk.mmr(np.zeros((1, 9), np.uint8), corpus, 1)
    needs = capabilities.Needs("mmr", None, (capabilities.BINARY,))
    for name in ("triton", "cuda"):
        if find_spec("torch") and find_spec("triton"):  # which the modules of both import
            assert needs.lacking(name) == "its kernels take no rows of dtype 'binary'"
    assert needs.lacking("cpu") is None


PACKED = np.packbits(clustered(64)[0] > 0, axis=1)


def test_folders_and_changed_rows(tmp_path):
    corpus = rk.Corpus(PACKED[:200], dtype="binary", ids=np.arange(200))
    longer = corpus.append(PACKED[200:], ids=np.arange(200, N)).delete([3, 250])
    longer.save(tmp_path / "whole")
    for found in (longer, rk.Corpus.load(tmp_path / "whole", verify=True)):
        np.testing.assert_array_equal(found.data[found.rows_of(np.arange(4, 200))], PACKED[4:200])
        assert (found.dims, found.dtype, found.num_live) == (64, "binary", N - 2)
    asked = PACKED[[3, 4]]
    found = longer.search(asked, 5)
    left = np.setdiff1d(np.arange(N), [3, 250])
    hamming = (np.unpackbits(asked, axis=1)[:, None] != np.unpackbits(PACKED[left], axis=1)[None]).sum(axis=2)
    np.testing.assert_array_equal(found.indices, left[np.argsort(hamming, axis=1, kind="stable")[:, :5]])
    # Read in windows.
    mapped = rk.Corpus.load(tmp_path / "whole", memory=1000)
    np.testing.assert_array_equal(mapped.search(asked, 5).scores, found.scores)
    np.testing.assert_array_equal(mapped.select(asked, 3, pool=20).scores, longer.select(asked, 3, pool=20).scores)


@pytest.mark.parametrize("form", ["npy", "int8", "floats", "lists"])
def test_files_and_jobs(tmp_path, form):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    offline = pytest.importorskip("ragsys_kernels.offline")
    rows, queries = clustered(64)
    asked = np.packbits(queries > 0, axis=1)
    path = tmp_path / ("rows.parquet" if form == "lists" else "rows.npy")
    if form == "lists":
        pq.write_table(pa.table({"embedding": pa.array(list(PACKED), pa.list_(pa.uint8()))}), path)
    else:
        np.save(path, {"npy": PACKED, "int8": (PACKED ^ 0x80).view(np.int8), "floats": rows}[form])
    built = offline.build_corpus(path, tmp_path / "c", dtype="binary", rows_per_segment=130)
    np.testing.assert_array_equal(built.data, PACKED)
    np.save(tmp_path / "signs.npy", asked)
    np.save(tmp_path / "floats.npy", queries)
    corpus = rk.Corpus(PACKED, dtype="binary")
    for name, given in (("signs", asked), ("floats", queries)):
        direct = corpus.select(given, 3, pool=20)
        for source, options in ((tmp_path / "c", {}), (path, {"dtype": "binary"})):
            out = tmp_path / "out"
            offline.select(
                corpus=source, queries=tmp_path / f"{name}.npy", out=out, k=3, pool=20, overwrite=True, **options
            )
            assert pq.read_table(out / "part-00000.parquet")["ids"].to_pylist() == direct.indices.tolist()


def test_signs_find_what_floats_rank(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    offline = pytest.importorskip("ragsys_kernels.offline")
    rows, queries = clustered(64)
    groups = np.arange(N) % 7
    signs_of, floats = rk.Corpus(rows, dtype="binary"), rk.Corpus(rows, dtype="float16", groups=groups)
    options = {"query_groups": np.arange(Q) % 7, "allowed": np.arange(N) % 5 > 0}
    found = floats.search(queries, 30, index=signs_of, **options)
    may = (groups != options["query_groups"][:, None]) & options["allowed"]
    hamming = (np.where(queries > 0, 1, 0)[:, None] != np.where(rows > 0, 1, 0)[None]).sum(axis=2)
    near = np.argsort(np.where(may, hamming, 99), axis=1, kind="stable")[:, :30]
    exact = np.take_along_axis(cosines(queries.astype(float), rows.astype(float)), near, axis=1)
    np.testing.assert_array_equal(np.sort(found.indices, axis=1), np.sort(near, axis=1))
    np.testing.assert_allclose(found.scores, -np.sort(-exact, axis=1), atol=2e-3)
    picks = floats.select(queries, 4, pool=30, index=signs_of)
    pools = signs_of.search(np.packbits(queries > 0, axis=1), 30).indices
    np.testing.assert_array_equal(picks.scores, floats.select(queries, 4, candidates=np.sort(pools, axis=1)).scores)
    # Equal values go to the lowest row, though the bits of the other are nearer.
    level = np.array([[1, 1], [1, -1]], np.float32) @ np.eye(2, 8, dtype=np.float32)
    found = rk.Corpus(level).search(np.eye(1, 8, dtype=np.float32), 2, index=rk.Corpus(level, dtype="binary"))
    assert found.indices.tolist() == [[0, 1]]
    with pytest.raises(ValueError, match=r"^search: index must hold the corpus's N = 300 rows of D = 64"):
        floats.search(queries, 3, index=rk.Corpus(rows[:9], dtype="binary"))
    signs_of.save(tmp_path / "signs")
    floats.save(tmp_path / "floats")
    np.save(tmp_path / "q.npy", queries)
    offline.select(
        corpus=tmp_path / "floats",
        index=tmp_path / "signs",
        queries=tmp_path / "q.npy",
        out=tmp_path / "out",
        k=4,
        pool=30,
    )
    table = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    assert table["ids"].to_pylist() == picks.indices.tolist()
