"""What a call on a device does around its kernels, on CPU tensors that are taken for a device's."""

import contextlib
import dataclasses
import sys
import types

import filters as forms
import interpreted
import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, corpus, testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._base import env as _env
from ragsys_kernels._gpu import plans
from ragsys_kernels.corpus.rows import with_columns
from ragsys_kernels.selection import filtered_problems, filters, options, reference, torch_search, validate

torch = pytest.importorskip("torch")


def tensors(problem):
    return {name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in problem.items()}


def problems():
    options = {"bias": True, "groups": True}
    yield "groups", testing.selection_problem(3, 12, 4, 6, **options)
    yield "dense", testing.selection_problem(3, 12, 4, 6, dense=True, **options)
    problem = testing.selection_problem(3, 12, 4, 6, dtype="float16", N=20, bias=True)
    problem["k"] = np.array([1, 4, 2])
    problem["lambda_d"] = np.array([0.0, 0.5, 1.0])
    problem["lambda_b"] = 0.3
    problem["candidates"] = problem["candidates"].astype(np.int32)
    yield "per query", problem
    problem = testing.selection_problem(3, 12, 4, 6)
    problem["relevance"] = np.random.default_rng(0).random((3, 12))
    problem["initial"] = problem["candidates"][:, :2]
    problem["queries"] = None
    yield "relevance", problem
    whole = testing.selection_problem(3, 12, 4, 6, dtype="float16", kind="integers")
    del whole["candidates"]
    yield "whole corpus", whole


PROBLEMS = dict(problems())
DEVICE_STORAGE = [dtype for dtype in _arrays.CORPUS_STORAGE if dtype != "binary"]  # which a device refuses


def record(problem):
    """Fields of a problem and of its rows on the host."""
    nested = ("rows", "constraints")
    fields = {name: getattr(problem, name) for name in problem.__dataclass_fields__ if name not in nested}
    for part in nested:
        record = getattr(problem, part)
        fields |= {f"{part}.{name}": getattr(record, name) for name in record.__dataclass_fields__}
    return {name: _arrays.to_host(x) for name, x in fields.items()}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_on_a_device_is_that_of_the_host(place, name):
    problem = PROBLEMS[name]
    host = record(validate.selection("mmr", **problem))
    given = tensors(problem)
    device = validate.selection("mmr", **given, place=place)
    arrays = [name for name, x in record(device).items() if isinstance(x, np.ndarray)]
    assert all(isinstance(getattr(device, name), torch.Tensor) for name in arrays if "." not in name)
    for field, x in record(device).items():
        if isinstance(x, np.ndarray):
            assert (x.dtype, x.shape) == (host[field].dtype, host[field].shape), field
        np.testing.assert_array_equal(x, host[field], err_msg=field)


def arrays_of(record):
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        yield from arrays_of(value) if dataclasses.is_dataclass(value) else [value]


@pytest.mark.parametrize("name", ["all options", "a filter", "quality", "ks"])
def test_a_problem_on_a_device_has_tensors_alone(place, name):
    """So that Triton takes it as it is."""
    triton_kernels = pytest.importorskip("ragsys_kernels.selection.triton.backend")
    problem = {**testing.selection_problem(3, 12, 4, 6, bias=True, groups=True), "max_per_group": 1}
    problem |= {"initial": problem["candidates"][:, :2], "lambda_d": [0.1, 0.2, 0.3], "lambda_b": np.full(3, 0.5)}
    problem |= {"max_similarity": 0.5, "costs": np.ones(24), "budget": 3.0, "k": [1, 2, 3]}
    if name == "a filter":
        del problem["candidates"]
        problem |= {"allowed": np.ones(24, bool), "exclude": np.ones((3, 2), int)}
    of_rule = options.dpp("dpp", torch.ones(24), 1.0) if name == "quality" else None
    found = validate.selection("mmr", **tensors(problem), options=of_rule, place=place)
    assert not any(isinstance(array, np.ndarray) for array in arrays_of(found))
    assert triton_kernels._tensors(found) is found


def test_a_weight_that_nothing_reads_is_no_array_of_its_own(place, monkeypatch):
    made = []
    monkeypatch.setattr(place, "filled", lambda size, value: made.append(value) or torch.full((size,), value))
    given = tensors(PROBLEMS["whole corpus"]) | {"lambda_d": 0.7, "lambda_b": 0.3}

    def filled(op, **changes):
        made.clear()
        validate.selection(op, **{**given, **changes}, place=place)
        return made

    assert filled("mmr") == [0.7]
    assert filled("vrsd", lambda_d=1.0, lambda_b=1.0, bias=torch.ones(24)) == [1.0]
    assert filled("mmr", bias=torch.ones(24)) == [0.7, 0.3]
    with pytest.raises(ValueError, match=r"^mmr: lambda_b must be within \[0, 1\], got 2.0$"):
        filled("mmr", lambda_b=2.0)


BAD = {
    "queries": ({"queries": np.ones((3, 5), np.float32)}, "queries must have the embeddings' D = 6 dimensions, got 5"),
    "ids": ({"candidates": np.ones((3, 12))}, "candidates must be int32 or int64, got float64"),
    "bias": ({"bias": np.ones(7)}, r"bias must have shape \(N,\) = \(24,\) or \(Q, P\) = \(3, 12\), got \(7,\)"),
    "lambda": ({"lambda_d": 1.5}, r"lambda_d must be within \[0, 1\], got 1.5"),
    "lambdas": ({"lambda_b": np.ones(4)}, r"lambda_b must have shape Q|\(Q,\) = \(3,\), got \(4,\)"),
    "k": ({"k": np.array([1, 0, 2])}, "k must be at least 1, got 0 for query 1"),
    "stored": (
        {"embeddings": np.ones((24, 6), int)},
        "embeddings must be float32, float16, bfloat16 or int8, got int64",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_argument_is_named_on_a_device(place, name):
    change, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=f"^mmr: {message}"):
        validate.selection("mmr", **tensors({**testing.selection_problem(3, 12, 4, 6), **change}), place=place)


def test_strided_rows_are_copied_with_a_warning(place):
    wide = torch.arange(24.0 * 12).reshape(24, 12)
    given = {**testing.selection_problem(3, 12, 4, 6), "embeddings": wide[:, ::2]}
    with pytest.warns(rk.ConversionWarning, match=r"^mmr: embeddings have strides \(48, 8\) and are copied; "):
        problem = validate.selection("mmr", **tensors(given), place=place)
    assert problem.rows.data.is_contiguous()
    assert torch.equal(problem.rows.data.cpu(), wide[:, ::2])


def nan_at(array, *index):
    array = array.copy()
    array[index] = np.nan
    return array


def spoiled(field):
    problem = {**testing.selection_problem(3, 12, 4, 6, bias=True), "relevance": np.ones((3, 12), np.float32)}
    if field != "relevance":
        del problem["relevance"]
    ids = problem["candidates"]
    if field == "out of range":
        problem["candidates"] = np.where(np.arange(12) == 3, 24, ids)
    elif field == "repeated":
        problem["candidates"] = np.where(np.arange(12) == 3, ids[:, :1], ids)
    elif field == "embeddings":
        problem[field] = nan_at(problem[field], ids[2, 5], 1)
    elif field == "norm":
        problem["embeddings"] = problem["embeddings"] * np.where(np.arange(24) == ids[0, 0], 1e-20, 1)[:, None]
        problem["embeddings"] = problem["embeddings"].astype(np.float32)
    elif field == "bias":
        problem[field] = nan_at(problem[field], ids[1, 0])
    else:
        problem[field] = nan_at(problem[field], 1, 4)
    return problem


@pytest.mark.parametrize("field", ["queries", "relevance", "bias", "embeddings", "norm", "out of range", "repeated"])
def test_checked_values_of_a_device_are_named_as_on_the_host(place, field):
    problem = spoiled(field)
    with pytest.raises(ValueError, match=r"^mmr: ") as expected:
        rk.mmr(**problem, backend="reference")
    validate.device_values(validate.selection("mmr", **tensors(PROBLEMS["groups"]), place=place))
    with pytest.raises(ValueError, match=r"^mmr: ") as found:
        validate.device_values(validate.selection("mmr", **tensors(problem), place=place))
    assert str(found.value) == str(expected.value)


def test_arrays_on_two_devices_are_refused(place):
    problem = testing.selection_problem(3, 12, 4, 6)
    message = "mmr: all arrays must be on one device, got queries on cuda:0, embeddings on cpu, candidates on cpu"
    with pytest.raises(ValueError, match=f"^{message}$"):
        rk.mmr(**{**problem, "queries": torch.tensor(problem["queries"])})
    message = "search: all arrays must be on one device, got queries on cuda:0, the corpus on cpu"
    with pytest.raises(ValueError, match=f"^{message}$"):
        rk.Corpus(problem["embeddings"]).search(torch.tensor(problem["queries"]), 2)


@pytest.fixture
def device_corpus(place, monkeypatch):
    for module in (corpus, corpus.retrieve):
        monkeypatch.setattr(module, "place_of", lambda op, device: _arrays.HOST if device == "cpu" else place)
    return lambda *args, **options: rk.Corpus(*args, **options, device="cuda")


def test_select_on_a_device_takes_another_bias_from_there(device_corpus, place):
    rng = np.random.default_rng(2)
    held = device_corpus(rng.standard_normal((20, 4)).astype(np.float32))
    column = rng.standard_normal(20).astype(np.float32)
    with pytest.raises(ValueError, match=r"^select: all arrays must be on one device, got .*, bias on cpu$"):
        held.select(torch.ones(1, 4), 2, pool=5, bias=column)
    other = with_columns("select", held, {"bias": torch.tensor(column), "groups": None}, place)
    assert isinstance(other.bias, torch.Tensor)
    np.testing.assert_array_equal(_arrays.to_host(other.bias), column)
    assert held.bias is None


def test_float64_rows_on_a_device_are_those_of_float32(device_corpus):
    rows = np.random.default_rng(6).standard_normal((20, 4))
    for given in (rows, torch.from_numpy(rows)):
        with pytest.warns(rk.ConversionWarning):
            held = device_corpus(given)
        assert torch.equal(held.data, device_corpus(rows.astype(np.float32)).data)
    rows[7, 2] = 1e300
    message = "^Corpus: embeddings must be within the range of float32, got a larger value in row 7$"
    with pytest.warns(rk.ConversionWarning), pytest.raises(ValueError, match=message):
        device_corpus(rows)


def host_rows(rows):
    return {name: _arrays.to_host(getattr(rows, name)) for name in ("data", "scales", "bias", "groups")}


@pytest.mark.parametrize("dtype", DEVICE_STORAGE)
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("given", ["host", "device"])
def test_corpus_on_a_device_has_the_rows_of_the_host(device_corpus, monkeypatch, given, metric, dtype):
    from ragsys_kernels.corpus import torch_rows

    monkeypatch.setattr(torch_rows, "_BLOCK_BYTES", 8 * 7 * 4)  # four rows at a time
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((11, 7)).astype(np.float32) * 3
    rows[5] = 0
    bias, groups = rng.standard_normal(11), rng.integers(0, 3, 11)
    expected = rk.Corpus(rows, bias, groups, metric, dtype)
    if given == "device":
        rows, bias, groups = torch.tensor(rows), torch.tensor(bias), torch.tensor(groups)
    else:
        rows = rows.astype(np.float32)
    found = device_corpus(rows, bias, groups, metric, dtype)
    assert isinstance(found.data, torch.Tensor)
    assert found.codes is None  # no kernel of a device reads them
    for name, x in host_rows(found).items():
        y = host_rows(expected)[name]
        assert (x is None) == (y is None), name
        if x is not None:
            np.testing.assert_array_equal(x, y, err_msg=name)
    assert found.max_norm == pytest.approx(expected.max_norm, rel=1e-12)


def test_corpus_on_a_device_refuses_bad_rows(device_corpus):
    rows = np.ones((5, 3), np.float32)
    with pytest.raises(ValueError, match=r"embeddings must be finite, got NaN or inf in row 3$"):
        device_corpus(nan_at(rows, 3, 1))
    big = np.where(np.arange(5)[:, None] == 2, np.float32(1e6), rows)
    with pytest.raises(ValueError, match=r"within the range of float16, got a larger value in row 2$"):
        device_corpus(big, metric="dot", dtype="float16")
    with pytest.raises(ValueError, match=r"bias must be finite, got NaN or inf in row 1$"):
        device_corpus(rows, nan_at(np.ones(5), 1))


def test_device_that_is_not_there_is_an_error():
    if torch.cuda.is_available():
        pytest.skip("a device is there")
    with pytest.raises(
        rk.BackendUnavailableError, match=r"^Corpus: device must be one of this machine, got 'cuda': .*leave device out"
    ):
        rk.Corpus(np.eye(3, dtype=np.float32), device="cuda")


def test_corpus_moves_between_devices_and_files(device_corpus, tmp_path):
    rows = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)
    there = device_corpus(rows, dtype="bfloat16")
    here = there.to("cpu")
    expected = rk.Corpus(rows, dtype="bfloat16")
    assert "device='cuda:0'" in repr(there)
    assert there.device == "cuda:0"
    assert here.device == "cpu"
    for name in ("data", "scales", "codes"):
        np.testing.assert_array_equal(getattr(here, name), getattr(expected, name))
    assert here.code_error == expected.code_error
    there.save(tmp_path / "corpus")
    loaded = rk.Corpus.load(tmp_path / "corpus", device="cuda")
    assert loaded.codes is None
    for name in ("data", "scales"):
        assert torch.equal(getattr(loaded, name), getattr(there, name))
    saved = rk.Corpus.load(tmp_path / "corpus", verify=True)
    assert saved.code_error == expected.code_error
    np.testing.assert_array_equal(saved.codes, expected.codes)


@pytest.mark.parametrize("dtype", DEVICE_STORAGE)
@pytest.mark.parametrize("n", [1, 5, 40])
def test_search_on_a_device_finds_what_the_reference_finds(monkeypatch, dtype, n):
    """Whole numbers under "dot": every product is exact and many are tied; blocks of a few rows and queries."""
    monkeypatch.setattr(torch_search, "_BLOCK", 4 * 6)
    monkeypatch.setattr(torch_search, "_QUERIES", 4)
    rng = np.random.default_rng(n)
    rows = rng.integers(-2, 3, (30, 5)).astype(np.float32)
    rows[:, 0] = 127  # of int8 rows the scale is then 1
    held = rk.Corpus(rows, rng.integers(-2, 3, 30).astype(np.float32), rng.integers(0, 4, 30), "dot", dtype)
    queries = rng.integers(-2, 3, (7, 5)).astype(np.float32)
    problem = validate.selection(
        "search", queries, held, n, lambda_b=0.5, query_groups=rng.integers(0, 4, 7), k_name="n"
    )
    expected = reference.search(problem, 1)
    found = torch_search.search(problem, 1)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_search_on_a_device_normalises_queries_and_skips_nan():
    rows = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
    queries = np.array([[1e-20] * 6, [3e18] * 6, [0] * 6], np.float32)
    held = rk.Corpus(rows, dtype="float16")
    problem = validate.selection("search", queries, held, 4, k_name="n")
    indices, scores = torch_search.search(problem, 1)
    expected = reference.search(problem, 1)
    np.testing.assert_array_equal(indices, expected[0])
    np.testing.assert_allclose(scores, expected[1], atol=1e-6)
    data = held.data.copy()
    data[expected[0][0, 0]] = np.nan
    problem.rows = _arrays.changed(held, data=data)
    assert torch_search.search(problem, 1)[0][0, :3].tolist() == expected[0][0, 1:].tolist()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_autocast_changes_no_bit_of_a_search(dtype):
    """Nor of a planned one, whose steps are done under the autocast of each call."""
    rng = np.random.default_rng(0)
    held = rk.Corpus(rng.standard_normal((40, 16)).astype(np.float32), metric="dot", dtype=dtype)
    queries = rng.standard_normal((5, 16)).astype(np.float32)
    problem = _arrays.tensors(validate.selection("search", queries, held, 7, k_name="n"))

    @plans.planned("search")
    def search(queries, rows):
        asked = dataclasses.replace(problem, queries=queries, rows=_arrays.changed(problem.rows, data=rows))
        return torch_search.search(asked, 1)

    given = problem.queries, problem.rows.data
    expected = search(*given)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_watching", True), ("_hosts", True), ("_plans", {})):
            patch.setattr(plans, name, value)
        for within in (False, True, True, False):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=within):
                indices, scores = search(*given)
            assert torch.equal(indices, expected[0])
            assert torch.equal(scores, expected[1])
        assert [type(plan).__name__ for plan in plans._plans.values()] == ["Plan"]


class Stub:
    """A backend that takes tensors; what it runs and torch's current stream are noted."""

    def __init__(self, seen=None, stream=(0,)):
        self.seen, self.stream = [] if seen is None else seen, stream

    def on_host(self, problem):
        self.seen.append(("run", self.stream[-1]))
        problem = _arrays.hosted(problem)
        return _arrays.changed(problem, rows=_arrays.changed(problem.rows, data=problem.rows.data.numpy()))

    def mmr(self, problem, num_threads):
        picks = reference.mmr(self.on_host(problem), 1)
        return type(picks)(*(torch.as_tensor(np.asarray(field)) for field in picks))

    def search(self, problem, num_threads):
        return tuple(torch.as_tensor(np.asarray(field)) for field in reference.search(self.on_host(problem), 1))

    def results(self, problem, pairs, wanted):
        self.seen.append(("run", self.stream[-1]))
        return {name: torch.zeros(len(pairs.targets)) for name in wanted}


@pytest.fixture
def stub(place, monkeypatch):
    stub, choose = Stub(), _dispatch.choose
    there = ("triton", stub)
    monkeypatch.setattr(
        _dispatch, "choose", lambda *call, **lacks: choose(*call, **lacks) if call[2] == "cpu" else there
    )
    monkeypatch.setattr(corpus.search, "Torch", lambda device: place)
    return stub


def test_picks_beyond_the_pool_are_padded_where_they_are(place, stub, monkeypatch):
    monkeypatch.setattr(place, "upload", lambda array: pytest.fail("the device is waited for"))
    problem = testing.selection_problem(3, 8, 20, 6)
    with pytest.warns(rk.PoolSizeWarning):
        expected = rk.mmr(**problem, backend="cpu")
    with pytest.warns(rk.PoolSizeWarning):
        found = rk.mmr(**tensors(problem))
    for name in found._fields:
        x, y = _arrays.to_host(getattr(found, name)), getattr(expected, name)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=1e-5, err_msg=name)


def test_no_processors_are_counted_for_a_device(device_corpus, stub, monkeypatch):
    """Which takes microseconds of every call."""
    rows = torch.eye(6)
    held = device_corpus(rows)
    monkeypatch.setattr(_env, "num_threads", lambda: pytest.fail("counted"))
    rk.mmr(rows, rows, 2, candidates=torch.arange(5).expand(6, 5))
    held.search(rows, 2)
    rk.token_logprobs(rows, torch.arange(6), backend="triton")
    assert len(stub.seen) == 3


# --- What queries may pick of a whole corpus.


@pytest.mark.parametrize("library", [np, torch], ids=lambda library: library.__name__)
def test_lists_of_rows_are_looked_up_without_waiting(library, monkeypatch):
    """Few ids are compared with all rows of a list, more are looked up; ids out of range are not picked."""
    ids = np.random.default_rng(4).integers(-2, 43, (5, 60))
    for comparisons in (1 << 16, 0):
        monkeypatch.setattr(filters, "_COMPARISONS", comparisons)
        for dtype in (np.int32, np.int64):
            for form, (given, masks) in forms.forms(5, 40, 0.3, seed=3).items():
                given = {name: np.asarray(x) for name, x in given.items()}
                place, asked, waiting = _arrays.HOST, ids.astype(dtype), contextlib.nullcontext()
                if library is torch:
                    place, asked, waiting = _arrays.Torch("cpu"), torch.tensor(asked), interpreted.NoWaiting()
                    given = tensors(given)
                given = {"allowed": None, "exclude": None, **given}
                found = filters.read(
                    "mmr", **given, num_queries=5, num_rows=40, place=place, errors=None, ascending=True
                )
                with waiting:
                    kept = np.asarray(found.keep(library, asked))
                inside = (ids >= 0) & (ids < 40)
                expected = inside & np.take_along_axis(masks, np.where(inside, ids, 0), axis=1)
                np.testing.assert_array_equal(kept, expected, err_msg=form)


@pytest.mark.parametrize("form", forms.FORMS)
def test_a_corpus_as_pools_is_made_for_as_many_queries_as_fit(place, monkeypatch, form):
    given, masks = forms.forms(5, 40, 0.3, seed=3)[form]
    values = np.random.default_rng(0).random((5, 40)).astype(np.float32)
    arguments = {"embeddings": np.eye(40, dtype=np.float32), "queries": values, "k": 3, "relevance": values}
    problem = validate.selection(
        "mmr", **tensors(arguments | {n: np.asarray(x) for n, x in given.items()}), place=place
    )
    monkeypatch.setattr(filtered_problems, "_WORKSPACE_BYTES", 2 * filtered_problems._ID_BYTES * 40 + 1)
    parts = list(filtered_problems.in_parts(problem))
    assert [part for part, _ in parts] == [slice(0, 2), slice(2, 4), slice(4, 5)]
    pools = [filtered_problems.as_pools(piece) for _, piece in parts]
    assert all(piece.candidates.dtype is torch.int32 and piece.constraints.filter is None for piece in pools)
    expected = np.where(masks, np.arange(40), -1)
    np.testing.assert_array_equal(torch.cat([piece.candidates for piece in pools]), expected)
    relevance = torch.cat([piece.relevance for piece in pools]).numpy()
    np.testing.assert_array_equal(relevance[masks], values[masks])


# --- CuPy's streams.

CURRENT, OTHERS = 0x7F10, 0x7F20


@pytest.fixture
def cupy(place, monkeypatch):
    """CuPy, whose current stream is CURRENT, beside a torch whose own is OTHERS; both are NumPy's memory.

    Each array and tensor that is made of another, and each call of a backend, is noted with torch's current stream.
    """
    stream, seen = [OTHERS], []

    class Array:
        def __init__(self, array):
            self.array, self.dtype = np.asarray(array), np.asarray(array).dtype

        shape, ndim, strides, flags = (
            property(lambda self, name=name: getattr(self.array, name))
            for name in ("shape", "ndim", "strides", "flags")
        )

        def __len__(self):
            return len(self.array)

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            seen.append(("taken", stream[-1]))
            return self.array.__dlpack__()

    class External:
        def __init__(self, handle, device):
            self.handle = handle

    @contextlib.contextmanager
    def streamed(external):
        stream.append(external.handle)
        yield
        stream.pop()

    def given_back(tensor):
        seen.append(("given back", stream[-1]))
        return Array(tensor.numpy())

    module = types.ModuleType("cupy")
    module.ndarray, module.from_dlpack, module.seen, module.stream = Array, given_back, seen, stream
    module.cuda = types.SimpleNamespace(get_current_stream=lambda device: types.SimpleNamespace(ptr=CURRENT))
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(torch.cuda, "ExternalStream", External)
    monkeypatch.setattr(torch.cuda, "stream", streamed)
    device_of = _arrays.device_of
    monkeypatch.setattr(_arrays, "device_of", lambda x: "cuda:0" if isinstance(x, Array) else device_of(x))
    return module


def in_order(cupy):
    """Whether all was done on CuPy's stream since this was asked last, and torch's is current again."""
    found = {kind for kind, _ in cupy.seen}, {where for _, where in cupy.seen}, cupy.stream[:]
    cupy.seen.clear()
    return found == ({"taken", "run", "given back"}, {CURRENT}, [OTHERS])


def test_arrays_of_cupy_are_worked_on_in_the_order_of_its_stream(cupy, stub):
    """Taken, worked on and given back on CuPy's stream, by a backend of tensors too; then torch's is current again."""
    problem = testing.selection_problem(2, 8, 3, 5)
    expected = rk.mmr(**problem, backend="reference").indices
    stub.seen, stub.stream = cupy.seen, cupy.stream
    given = {name: cupy.ndarray(x) if isinstance(x, np.ndarray) else x for name, x in problem.items()}
    picks = rk.mmr(**given, backend="triton")
    assert isinstance(picks.indices, cupy.ndarray)
    np.testing.assert_array_equal(picks.indices.array, expected)
    assert in_order(cupy)
    rk.token_logprobs(cupy.ndarray(np.zeros((2, 4), np.float32)), cupy.ndarray(np.zeros(2, int)), backend="triton")
    assert in_order(cupy)


def test_a_corpus_answers_queries_of_cupy_in_their_library_and_order(device_corpus, cupy, stub):
    rows = np.random.default_rng(3).standard_normal((40, 6)).astype(np.float32)
    held = device_corpus(torch.tensor(rows))
    stub.seen, stub.stream = cupy.seen, cupy.stream
    queries = cupy.ndarray(rows[:3])
    here = rk.Corpus(rows)
    for found, expected in (
        (held.search(queries, 5), here.search(rows[:3], 5)),
        (held.select(queries, 3, pool=10), here.select(rows[:3], 3, pool=10)),
        (rk.mmr(queries, held, 3), rk.mmr(rows[:3], here, 3)),
    ):
        assert all(isinstance(field, cupy.ndarray) for field in found)
        np.testing.assert_array_equal(found.indices.array, expected.indices)
    assert in_order(cupy)
    assert isinstance(held.select(torch.tensor(rows[:3]), 3, pool=10).indices, torch.Tensor)


def test_arrays_of_cupy_are_made_on_their_device(cupy, monkeypatch):
    current, made = [0], []

    class Device:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            current.append(self.index)

        def __exit__(self, *_):
            current.pop()

    class Backend:
        @staticmethod
        def mmr(problem, num_threads):
            raise NotImplementedError("no kernels here")

    def array(x, dtype=None):
        made.append(current[-1])
        return cupy.ndarray(np.asarray(x.array, dtype))

    cupy.float32, cupy.cuda.Device = np.float32, Device
    cupy.ascontiguousarray, cupy.full = array, lambda size, value, dtype: cupy.ndarray(np.full(size, value, dtype))
    there = _arrays.Cupy("cuda:1")
    monkeypatch.setattr(_arrays, "place_of", lambda *_: there)
    monkeypatch.setattr(_arrays, "on_device", lambda _: there.device)
    monkeypatch.setattr(_dispatch, "choose", lambda *_: ("cuda", Backend))
    rows = np.random.default_rng(3).standard_normal((40, 6))
    with pytest.raises(NotImplementedError):
        rk.mmr(
            cupy.ndarray(rows[:3]),
            cupy.ndarray(rows.astype(np.float32)),
            3,
            candidates=cupy.ndarray(np.tile(np.arange(9), (3, 1))),
        )
    assert made == [1, 1]
    assert current == [0]
