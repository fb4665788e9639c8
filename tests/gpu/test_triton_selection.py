"""The Triton selection kernels, interpreted: each regime picks what the reference picks, whatever the options."""

import cancelling
import filters
import interpreted
import numpy as np
import pytest
from test_device import tensors

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels.selection import reference, validate

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if interpreted.HERE:
    from ragsys_kernels.selection.triton import backend as triton_kernels
    from ragsys_kernels.selection.triton import bounds as triton_bounds
    from ragsys_kernels.selection.triton import dense as triton_dense
    from ragsys_kernels.selection.triton import gram as triton_gram
    from ragsys_kernels.selection.triton import stream as triton_stream
    from ragsys_kernels.selection.triton.launch import Tile

pytestmark = [pytest.mark.sampled(24), pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")]

METHODS = {"mmr": rk.mmr, "vrsd": rk.vrsd}
REGIMES = ("gram", "stream", "corpus")
DTYPES = ("float32", "float16", "bfloat16")


@pytest.fixture(params=REGIMES)
def regime(request, monkeypatch):
    """Sends every problem to one regime, with tiles so small that few items are many tiles."""
    force(request.param, monkeypatch)
    return request.param


def force(regime, monkeypatch):
    small = Tile(16, 32, 2, 4, 2)
    monkeypatch.setattr(triton_gram, "GRAM_SLOTS", 128 if regime == "gram" else 0)
    monkeypatch.setattr(triton_dense, "corpus_tile", lambda *_: small._replace(rows=32))
    monkeypatch.setattr(triton_dense, "PICK_BLOCK", 16)
    for module in (triton_bounds, triton_stream, triton_dense):
        monkeypatch.setattr(module, "row_tile", lambda *_: small)
        # Chunks of two queries.
        monkeypatch.setattr(module, "chunks", lambda n, *_: [(q, min(2, n - q)) for q in range(0, n, 2)])


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Arrays that kernels must write come full of NaN, or of a number that is no index."""

    def empty(like, shape, dtype):
        value = float("nan") if dtype.startswith("float") else -77
        if isinstance(like, np.ndarray):  # the reference, beside which the kernels run
            return np.full(shape, value, dtype)
        return torch.full(shape, value, dtype=getattr(torch, dtype))

    monkeypatch.setattr(_arrays, "empty", empty)


def for_regime(regime, problem):
    """The whole corpus is the pool in regime c."""
    if regime != "corpus":
        return problem
    problem = {name: value for name, value in problem.items() if name != "candidates"}
    for name in ("relevance", "bias"):
        if name in problem and np.ndim(problem[name]) == 2:
            N = len(problem["embeddings"])
            problem[name] = np.random.default_rng(9).integers(-3, 4, (len(problem["queries"]), N)).astype(np.float32)
    return problem


def for_method(method, problem):
    if method == "mmr":
        return problem
    return {name: value for name, value in problem.items() if name not in ("bias", "lambda_d", "lambda_b")}


def run(method, problem, *, same=False):
    """The selection, replayed; with ``same`` also pick by pick that of the reference."""
    problem = for_method(method, problem)
    result = rk.Selection(*map(np.asarray, METHODS[method](**problem, backend="triton")))
    testing.check_selection(method, problem, result)
    if same:
        expected = METHODS[method](**problem, backend="reference")
        np.testing.assert_array_equal(result.indices, np.asarray(expected.indices))
        if method == "mmr":
            for name in ("scores", "relevance", "redundancy", "lengths"):
                np.testing.assert_array_equal(getattr(result, name), np.asarray(getattr(expected, name)), err_msg=name)
    return result


# Three queries, the third in a chunk of its own; 21 candidates are two tiles of 16, 42 rows two of 32, the second of
# them ragged; D of 40 is a slice of 32 and a ragged one.
def exact(dtype="float32", D=40, **options):
    return testing.selection_problem(3, 21, 4, D, kind="integers", dtype=dtype, seed=D, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mmr_is_exact_where_sums_are(regime, dtype):
    run("mmr", for_regime(regime, exact(dtype, ragged=True, bias=True)), same=True)


@pytest.mark.sampled(1)  # so that the kernels of all regimes run
@pytest.mark.parametrize("method", METHODS)
def test_every_option_together(regime, method):
    problem = for_regime(regime, exact(ragged=True, bias=True, groups=True))
    problem["initial"] = np.array([[0, -1], [-1, 3], [-1, -1]])
    problem["k"] = np.array([4, 2, 3])
    problem.update(lambda_d=np.array([0.5, 0.25, 1.0]), lambda_b=np.array([0.5, 1.0, 0.25]), max_per_group=1)
    run(method, problem, same=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_rows_of_any_norm(regime, dtype, method):
    problem = testing.selection_problem(3, 19, 4, 32, dtype=dtype, bias=True, seed=5)
    problem["queries"] *= np.array([[1e-25], [1], [1e25]], np.float32)
    problem["embeddings"][3] *= 0
    problem["embeddings"][4] *= 1000
    run(method, for_regime(regime, problem))


@pytest.mark.parametrize("method", METHODS)
def test_relevance_given(regime, method):
    problem = exact(bias=True)
    problem["relevance"] = np.random.default_rng(0).integers(-3, 4, (3, 21)).astype(np.float32)
    problem["initial"] = np.array([[5], [-1], [7]])
    run(method, for_regime(regime, problem), same=method == "mmr")
    if method == "mmr":
        bias = np.random.default_rng(1).integers(-3, 4, (3, 21)).astype(np.float32)
        run(method, for_regime(regime, {**problem, "queries": None, "bias": bias}) if regime != "corpus" else problem)


@pytest.mark.parametrize(
    ("regime", "method", "form"),
    [
        pytest.param("corpus", "mmr", "excluded_lists", marks=pytest.mark.slow),
        ("corpus", "vrsd", "masks"),
        ("gram", "vrsd", "mask"),
    ],
)
def test_rows_of_a_whole_corpus_that_may_be_picked(regime, method, form, device, monkeypatch):
    """By a bias of NaN, or in regime a as pools; nothing waits. Initial items may be rows that may not be picked."""
    force(regime, monkeypatch)
    problem = exact(bias=form == "mask", groups=True)
    del problem["candidates"]
    problem = for_method(method, {**problem, **filters.forms(3, 42, 0.4)[form][0]})
    if form != "mask":
        problem["initial"] = np.array([[0, -1], [-1, 3], [-1, -1]])
    expected = METHODS[method](**problem, backend="reference")
    with interpreted.NoWaiting():
        result = METHODS[method](**tensors(problem))
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-6)


@pytest.mark.parametrize("regime", ["gram", "stream"])
@pytest.mark.parametrize("method", METHODS)
def test_dense_pools(regime, method, monkeypatch):
    force(regime, monkeypatch)
    problem = testing.selection_problem(3, 18, 4, 24, kind="integers", dense=True, bias=True, groups=True, seed=2)
    problem["initial"] = np.array([[17], [-1], [2]])
    run(method, problem, same=True)


@pytest.mark.parametrize(("options", "D"), [(False, 48), (True, 48), (True, 40)])
@pytest.mark.parametrize("method", METHODS)
def test_float32_pools_of_more_than_64(method, options, D, monkeypatch):
    """They are of regime a too, whatever the dimensions."""
    monkeypatch.delattr(triton_stream, "select")
    problem = testing.selection_problem(2, 100, 5, D, N=150, kind="integers", ragged=True, bias=options, seed=D)
    run(method, problem | ({"initial": np.array([[120], [-1]])} if options else {}), same=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_int8_rows_with_scales(regime, metric, method):
    problem = testing.selection_problem(2, 20, 4, 24, seed=7)
    corpus = rk.Corpus(problem["embeddings"], metric=metric, dtype="int8")
    run(method, for_regime(regime, {**problem, "embeddings": corpus}) | {"metric": metric})


def test_ties_go_to_the_lowest_position_across_tiles(regime):
    rows = np.zeros((40, 8), np.float32)
    rows[:, 0] = 1  # all equal
    rows[::13, 1] = 1
    problem = {"queries": np.eye(2, 8, dtype=np.float32), "embeddings": rows, "k": 6, "metric": "dot", "lambda_d": 1.0}
    problem["candidates"] = np.stack([np.arange(40), np.arange(40)[::-1]])
    result = run("mmr", for_regime(regime, problem), same=True)
    assert result.indices[0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("method", METHODS)
def test_no_initial_items_at_all(regime, method):
    problem = for_regime(regime, testing.selection_problem(2, 40, 5, 9, N=40, seed=3))
    run(method, problem | {"initial": np.zeros((2, 0), np.int64)})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [5, 7])
def test_pool_runs_out(regime, k, method):
    problem = testing.selection_problem(2, 5, k, 3, N=5, kind="integers", seed=3)
    result = run(method, for_regime(regime, problem), same=True)
    assert result.lengths.tolist() == [5, 5]


@pytest.mark.parametrize("method", METHODS)
def test_single_elements(regime, method):
    run(method, for_regime(regime, testing.selection_problem(1, 1, 1, 1, N=1)))


@pytest.mark.parametrize("method", METHODS)
def test_ids_out_of_range_are_padding(regime, method):
    """Values are not checked on a device: a bad id must neither be read nor returned."""
    problem = for_method(method, testing.selection_problem(2, 8, 2, 16, N=42, kind="integers"))
    checked = validate.selection(method, **{**problem, "initial": np.array([[2, 3]] * 2)})
    good = np.array([[1, -1, 4, -1, 6, 7, -1, 9]] * 2)
    bad = np.where(good < 0, np.array([5, 10**6, 5, -5, 5, 5, 42, 5]), good)
    results = []
    for candidates, initial in ((good, [2, -1]), (bad, [2, 10**6])):
        checked.candidates = None if regime == "corpus" else candidates
        checked.pool = 42 if regime == "corpus" else 8
        checked.constraints.initial = np.array([initial] * 2)
        results.append(getattr(triton_kernels, method)(checked, 1))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    assert set(results[1].indices.flatten().tolist()) <= set(range(-1, 42))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("where", ["rows", "relevance"])
def test_items_that_are_nan_are_never_picked(regime, where, method):
    problem = for_regime(regime, for_method(method, testing.selection_problem(2, 12, 12, 8, N=12, seed=1)))
    checked = validate.selection(method, **problem)
    if where == "rows":
        checked.rows.data[5] = np.nan
    else:
        checked.relevance = np.random.default_rng(0).random((2, 12), np.float32)
        bad = np.full(2, 5) if checked.candidates is None else np.argmax(checked.candidates == 5, axis=1)
        checked.relevance[np.arange(2), bad] = np.nan
    result = getattr(triton_kernels, method)(checked, 1)
    assert 5 not in result.indices
    assert result.lengths.tolist() == [11, 11]
    assert not np.isnan(result.scores).any()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vrsd_sums_that_vanish(regime, dtype):
    """An item opposite to the sum makes a zero sum, whose cosine is 0; nearly opposite ones keep their digits."""
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 24)).astype(np.float32)
    rows = np.stack([a, -a, -a + 1e-3 * b, -3 * a, np.zeros_like(a), b]).astype(dtype)
    problem = {"queries": np.stack([a, -a]), "embeddings": rows, "k": 6, "candidates": np.stack([np.arange(6)] * 2)}
    result = run("vrsd", for_regime(regime, problem))
    assert np.isfinite(result.scores).all()
    assert (np.abs(result.scores) < 1.1).all()


@pytest.mark.filterwarnings("ignore:.*pool.*:UserWarning")
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_vrsd_is_as_precise_as_its_vectors_where_they_cancel(regime, metric, delta):
    """Also what cancelled before: an initial pair leaves a short sum, to which other vectors, or none, are added."""
    problems = [cancelling.problem(metric, delta, initial, 0) for initial in (True, False)]
    for problem in [*problems, cancelling.pair(metric, delta, 0)]:
        given = problem
        if regime == "corpus":  # whose pool is all rows
            given = {**for_regime(regime, problem), "k": len(problem["embeddings"]) - 2 * ("initial" in problem)}
        result = rk.vrsd(**given, backend="triton")
        assert cancelling.units_off(problem, result) < cancelling.UNITS


def test_rows_with_a_stride(regime):
    problem = for_regime(regime, exact(bias=True))
    wide = np.full((42, 64), np.nan, np.float32)
    wide[:, :40] = problem["embeddings"]
    run("mmr", {**problem, "embeddings": wide[:, :40]}, same=True)


def test_offsets_beyond_2_to_the_31(regime, tmp_path):
    """Rows 2^30 elements apart, in a file with holes: row 3 is 6 GB behind the first."""
    stride, D = 1 << 30, 16
    file = np.memmap(tmp_path / "rows", np.float16, "w+", shape=(3 * stride + D,))
    rows = np.lib.stride_tricks.as_strided(file, (4, D), (2 * stride, 2))
    rows[:] = np.random.default_rng(0).integers(-3, 4, (4, D))
    queries = np.random.default_rng(1).integers(-3, 4, (1, D)).astype(np.float32)
    problem = {"queries": queries, "k": 4, "metric": "dot", "lambda_d": 0.5}
    problem["candidates"] = np.array([[3, 1, 0, 2]], np.int32)
    problem = for_regime(regime, {**problem, "embeddings": torch.from_numpy(rows)})
    checked = validate.selection("mmr", **problem)
    expected = rk.mmr(**{**problem, "embeddings": np.array(rows)}, backend="reference")
    np.testing.assert_array_equal(triton_kernels.mmr(checked, 1).indices, expected.indices)
    if regime == "corpus":
        wanted = rk.mmr(**{**problem, "lambda_d": 1.0, "embeddings": np.array(rows)}, backend="reference")
        np.testing.assert_array_equal(triton_kernels.search(checked, 1)[0], wanted.indices)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_search_returns_the_best_rows(dtype, monkeypatch):
    force("corpus", monkeypatch)
    problem = exact(dtype, bias=True, groups=True)
    arguments = {name: problem[name] for name in ("queries", "embeddings", "bias", "groups", "query_groups", "metric")}
    for n, form in ((5, "no_exclusion"), (50, "masks")):
        checked = validate.selection("mmr", **arguments, k=n, lambda_b=0.5, **filters.forms(3, 42, 0.4)[form][0])
        indices, scores = triton_kernels.search(checked, 1)
        expected = reference.search(checked, 1)
        np.testing.assert_array_equal(indices, expected[0])
        np.testing.assert_array_equal(scores, expected[1])


@pytest.mark.slow
def test_a_search_keeps_half_as_much_of_a_query_as_a_selection(monkeypatch):
    monkeypatch.setattr(triton_gram, "GRAM_SLOTS", 0)
    problem = testing.selection_problem(128, 40, 3, 8, N=40)
    arguments = {name: problem[name] for name in ("queries", "embeddings", "k")}
    monkeypatch.setattr(triton_dense, "WORKSPACE_BYTES", 128 * 48 * 4)  # v of all queries
    sizes = []
    relevance = triton_dense.Corpus.relevance

    def counted(self, chunk):
        relevance(self, chunk)
        sizes.append((chunk.num_queries, sum(x.nbytes for x in (chunk.v, chunk.running.get("state")) if x is not None)))

    monkeypatch.setattr(triton_dense.Corpus, "relevance", counted)
    checked = validate.selection("mmr", **arguments)
    expected = reference.search(checked, 1)
    np.testing.assert_array_equal(triton_kernels.search(checked, 1)[0], expected[0])
    assert sizes == [(128, 128 * 48 * 4)]
    sizes.clear()
    triton_kernels.mmr(checked, 1)
    assert sizes == [(64, 128 * 48 * 4)] * 2


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_of_equal_rows_a_search_finds_the_lowest_in_whatever_tiles_they_are(dtype, monkeypatch):
    """Tiles of 32 rows, whose bests are equal in many; k below, at and above the number of tiles."""
    force("corpus", monkeypatch)
    rng = np.random.default_rng(5)
    rows = rng.integers(-1, 2, (110, 5)).astype(dtype)  # few values, so that most rows have equals
    rows[7] = rows[100] = 9
    queries = rng.integers(-2, 3, (3, 5)).astype(np.float32)
    queries[1] = 0  # all rows are equal
    for k in (1, 3, 4, 5, 100, 110, 111):
        checked = validate.selection("mmr", queries, rows, k, metric="dot")
        indices, scores = triton_kernels.search(checked, 1)
        expected = reference.search(checked, 1)
        np.testing.assert_array_equal(indices, expected[0], err_msg=str(k))
        np.testing.assert_array_equal(scores, expected[1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("regime", REGIMES)
def test_tiles_of_other_devices_have_the_same_picks(regime, method, monkeypatch):
    """Of what is not Hopper; nothing is made small here."""
    monkeypatch.setattr(triton_gram, "GRAM_SLOTS", 128 if regime == "gram" else 0)
    for module in (triton_bounds, triton_gram, triton_dense):
        monkeypatch.setattr(module, "is_hopper", lambda: False)
    for dtype in ("float32", "float16"):
        problem = testing.selection_problem(2, 40, 5, 70, N=60, dtype=dtype, kind="clustered", seed=3)
        if regime == "corpus":
            del problem["candidates"]
        result = run(method, problem)
        expected = METHODS[method](**problem, backend="reference")
        np.testing.assert_array_equal(result.indices, expected.indices)


def test_relevance_of_16_bit_rows_has_the_precision_of_float32(monkeypatch):
    """Float32 queries are taken apart for 16-bit products; one part alone is off by 1e-4."""
    force("corpus", monkeypatch)
    problem = testing.selection_problem(2, 20, 3, 64, N=20, dtype="float16", seed=8)
    del problem["candidates"]
    result = run("mmr", problem)
    e = np.asarray(problem["embeddings"], np.float64)
    q = np.asarray(problem["queries"], np.float64)
    cosines = (q @ e.T) / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(e, axis=1)
    np.testing.assert_allclose(result.relevance, np.take_along_axis(cosines, result.indices, 1), atol=5e-7)


@pytest.fixture
def device(place, monkeypatch):
    """Tensors are taken for those of a GPU, on which Triton runs."""
    monkeypatch.setattr(_dispatch, "_why_no_gpu", lambda: None)
    return place


@pytest.mark.parametrize("method", METHODS)
def test_call_on_a_device_waits_for_nothing(device, regime, method):
    """From the public function to its result, with every option."""
    problem = testing.selection_problem(2, 14, 4, 24, kind="integers", groups=True, bias=method == "mmr", seed=3)
    problem["initial"] = problem["candidates"][:, :2]
    problem["candidates"] = problem["candidates"][:, 2:]
    if method == "vrsd":
        problem = {name: x for name, x in problem.items() if not name.startswith("lambda")}
    expected = METHODS[method](**problem, backend="reference")
    with interpreted.NoWaiting():
        result = METHODS[method](**tensors(problem))
    assert all(isinstance(field, torch.Tensor) for field in result)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_array_equal(result.lengths, expected.lengths)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-6)


def test_results_on_no_queries_are_tensors(device):
    result = rk.mmr(torch.empty(0, 5), torch.eye(5), 2)
    assert [tuple(field.shape) for field in result] == [(0, 2)] * 4 + [(0,)]
    assert all(isinstance(field, torch.Tensor) for field in result)


interpreted.elsewhere(globals())
