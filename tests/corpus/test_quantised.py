"""Vectors that are quantised already: int8 as it is, to the last bit, and uint8, from arrays and files."""

import warnings

import numpy as np
import pytest
from selection_calls import same

import ragsys_kernels as rk
from ragsys_kernels import offline, testing
from ragsys_kernels._base import arrays
from ragsys_kernels.selection import validate

N, D = 300, 40
RNG = np.random.default_rng(0)
INT8 = RNG.integers(-128, 128, (N, D)).astype(np.int8)
INT8[5], INT8[6, 0] = 0, -128
UINT8 = RNG.integers(0, 256, (N, D)).astype(np.uint8)
ASKED = RNG.integers(-128, 128, (7, D)).astype(np.int8)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_products_of_integers_are_exact(backend):
    corpus = rk.Corpus(INT8, metric="dot", dtype="int8")
    np.testing.assert_array_equal(corpus.data, INT8)
    products = ASKED.astype(np.int64) @ INT8.T.astype(np.int64)
    for queries in (ASKED, ASKED.astype(np.float32)):
        found = corpus.search(queries, 20, backend=backend)
        order = np.argsort(-products, axis=1, kind="stable")[:, :20]
        np.testing.assert_array_equal(found.indices, order)
        np.testing.assert_array_equal(found.scores, np.take_along_axis(products, order, axis=1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("rows", [INT8, np.asfortranarray(INT8), INT8[::-1], UINT8], ids=["int8", "F", "back", "uint8"])
def test_cosines(rows, dtype):
    if rows.dtype == np.uint8 and dtype == "int8":
        return  # rounded, as floats are
    corpus = rk.Corpus(rows, dtype=dtype)
    if dtype == "int8":
        np.testing.assert_array_equal(corpus.data, rows)
    wide, asked = rows.astype(np.float64), ASKED.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1)
    exact = asked @ (wide / np.where(norms, norms, 1)[:, None]).T / np.linalg.norm(asked, axis=1)[:, None]
    found = corpus.search(ASKED, 10)
    np.testing.assert_allclose(found.scores, np.take_along_axis(exact, found.indices, axis=1), atol=1e-3)
    np.testing.assert_allclose(found.scores, -np.sort(-exact, axis=1)[:, :10], atol=1e-3)
    for rule in (rk.mmr, rk.vrsd):
        picks = rule(ASKED, corpus, 5)
        floats = rule(ASKED.astype(np.float32), rk.Corpus(rows.astype(np.float32)), 5)
        if dtype != "float16":
            np.testing.assert_array_equal(picks.indices, floats.indices)


def test_folders_and_appended_rows(tmp_path):
    corpus = rk.Corpus(INT8[:200], dtype="int8").append(INT8[200:])
    np.testing.assert_array_equal(corpus.data, INT8)
    corpus.save(tmp_path / "c")
    np.testing.assert_array_equal(rk.Corpus.load(tmp_path / "c").data, INT8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("form", "size"), [("npy", None), ("fixed", 130), ("lists", None), ("bin", 130)])
@pytest.mark.parametrize("rows", [INT8, UINT8], ids=["int8", "uint8"])
def test_files(tmp_path, rows, form, size):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / ("x.npy" if form == "npy" else "x.parquet")
    if form == "npy":
        np.save(path, rows)
    elif form == "bin":
        path = tmp_path / ("x.i8bin" if rows.dtype == np.int8 else "x.u8bin")
        path.write_bytes(np.array(rows.shape, np.int32).tobytes() + rows.tobytes())
    else:
        kind = pa.from_numpy_dtype(rows.dtype)
        kind = pa.list_(kind, D) if form == "fixed" else pa.list_(kind)
        pq.write_table(pa.table({"v": pa.array(list(rows), kind)}), path)
    for dtype in ("float32", "int8"):
        built = offline.build_corpus(path, tmp_path / "c", dtype=dtype, overwrite=True, rows_per_segment=size)
        np.testing.assert_array_equal(built.data, rk.Corpus(rows, dtype=dtype).data)
    offline.select(corpus=path, queries=path, out=tmp_path / "out", k=3, pool=20)
    direct = rk.Corpus(rows).select(rows, 3, pool=20)
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet")["ids"].to_pylist() == direct.indices.tolist()


@pytest.mark.parametrize("form", ["array", "torch", "F", "back", "dense", "all rows"])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("method", ["mmr", "vrsd"])
def test_arrays_are_selected_from_as_they_are(backend, method, metric, form):
    """The bits of their numbers in float32, by each backend: sums of so small integers are exact."""
    rows, given = INT8, {"candidates": RNG.permuted(np.tile(np.arange(N), (7, 1)), axis=1)[:, :30], "metric": metric}
    if form == "torch":
        rows = pytest.importorskip("torch").from_numpy(INT8)
    elif form == "dense":
        rows = INT8[given.pop("candidates")]
    elif form == "all rows":
        del given["candidates"]
    elif form != "array":
        rows = {"F": np.asfortranarray(INT8), "back": INT8[::-1]}[form]
    wide = np.asarray(rows).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if form in ("F", "back") else "error", rk.ConversionWarning)  # copied
        found = getattr(rk, method)(ASKED, rows, 5, backend=backend, **given)
        same(map(np.asarray, found), getattr(rk, method)(ASKED.astype(np.float32), wide, 5, backend=backend, **given))
    testing.check_selection(method, {"queries": ASKED, "embeddings": np.asarray(rows), "k": 5, **given}, found)


def test_refused():
    with pytest.raises(
        TypeError, match=r"^mmr: embeddings must be float32, float16, bfloat16 or int8, got uint8; conve"
    ):
        rk.mmr(ASKED, UINT8, 3)
    place = arrays.Torch("cpu")  # stands for a device
    with pytest.raises(
        TypeError, match=r"^mmr: embeddings must be floating point on a device, or a Corpus, got int8; "
    ):
        validate.selection(
            "mmr", place.torch.ones(2, D), place.torch.ones((9, D), dtype=place.torch.int8), 3, place=place
        )
