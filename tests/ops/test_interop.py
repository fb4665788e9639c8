"""Arrays of other libraries, other layouts and other types come in; results go back in the caller's library."""

import tracemalloc
import warnings

import numpy as np
import pytest
from selection_calls import METHODS, methods, same

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.corpus import rows as corpus_rows


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def full_problem(method, **options):
    """A problem with every argument that is an array."""
    problem = testing.selection_problem(4, 20, 5, 11, bias=method == "mmr", groups=True, ragged=True, **options)
    problem["relevance"] = np.random.default_rng(1).uniform(-1, 1, (4, 20)).astype(np.float32)
    problem["initial"] = np.array([[0, -1], [-1, -1], [7, 3], [-1, 2]])
    return problem


def convert(problem, function):
    return {name: function(value) if isinstance(value, np.ndarray) else value for name, value in problem.items()}


@methods
def test_torch_in_torch_out(backend, torch, method):
    problem = full_problem(method)
    expected = METHODS[method](**problem, backend=backend)
    result = METHODS[method](**convert(problem, torch.from_numpy), backend=backend)
    assert isinstance(result, rk.Selection)
    assert all(isinstance(field, torch.Tensor) and field.device.type == "cpu" for field in result)
    assert [field.dtype for field in result] == [torch.int64, *[torch.float32] * 3, torch.int32]
    assert not any(field.requires_grad for field in result)
    same(result, expected)


@methods
def test_one_tensor_among_numpy_arrays_makes_the_result_torch(backend, torch, method):
    problem = full_problem(method)
    expected = METHODS[method](**problem, backend=backend)
    for name, value in problem.items():
        if isinstance(value, np.ndarray):
            result = METHODS[method](**{**problem, name: torch.from_numpy(value)}, backend=backend)
            assert isinstance(result.indices, torch.Tensor), name
            same(result, expected)
    assert isinstance(METHODS[method](**problem, backend=backend).indices, np.ndarray)


@methods
@pytest.mark.parametrize("dense", [False, True], ids=["shared", "dense"])
def test_bfloat16_tensors_are_read_as_they_are(backend, torch, dense, method):
    problem = testing.selection_problem(3, 20, 5, 19, dense=dense, seed=2)
    problem["embeddings"] = torch.from_numpy(problem["embeddings"]).bfloat16()
    result = METHODS[method](**problem, backend=backend)
    testing.check_selection(method, problem, result)
    problem["queries"] = torch.from_numpy(problem["queries"]).bfloat16()
    problem["relevance"] = torch.rand(3, 20, generator=torch.Generator().manual_seed(0)).bfloat16()
    if method == "mmr":
        problem["bias"] = torch.rand(3, 20, generator=torch.Generator().manual_seed(1)).bfloat16()
    result = METHODS[method](**problem, backend=backend)
    widened = {name: x.float() if torch.is_tensor(x) else x for name, x in problem.items()}
    same(result, METHODS[method](**widened, backend=backend))


@methods
def test_tensors_that_require_grad_are_taken(backend, torch, method):
    problem = testing.selection_problem(3, 20, 5, 19, seed=4)
    expected = METHODS[method](**problem, backend=backend)
    for name in ("queries", "embeddings"):
        problem[name] = torch.from_numpy(problem[name]).requires_grad_()
    same(METHODS[method](**problem, backend=backend), expected)
    assert problem["queries"].requires_grad


def test_torch_arguments_that_are_no_arrays_of_the_problem(backend, torch):
    problem = testing.selection_problem(3, 20, 5, 19, bias=True, seed=5)
    ks, lambdas = [2, 5, 1], [0.0, 0.5, 1.0]
    expected = rk.mmr(**{**problem, "k": ks}, lambda_d=lambdas, lambda_b=lambdas, backend=backend)
    tensors = {"k": torch.tensor(ks), "lambda_d": torch.tensor(lambdas), "lambda_b": torch.tensor(lambdas)}
    same(rk.mmr(**{**problem, **tensors}, backend=backend), expected)
    one = rk.mmr(**{**problem, "k": torch.tensor(3)}, lambda_d=torch.tensor(0.5), backend=backend)
    same(one, rk.mmr(**{**problem, "k": 3}, lambda_d=0.5, backend=backend))


def test_sparse_tensors_are_refused(backend, torch):
    with pytest.raises(TypeError, match=r"^mmr: embeddings must be a dense tensor, got layout torch\.sparse_coo$"):
        rk.mmr(torch.ones(1, 3), torch.eye(3).to_sparse(), 1, backend=backend)


@methods
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_small_arguments_of_any_layout_are_taken(backend, library, method):
    """Everything but the embeddings may be strided, reversed or transposed."""
    convert_one = pytest.importorskip("torch").from_numpy if library == "torch" else np.asarray
    problem = full_problem(method)
    expected = METHODS[method](**problem, backend=backend)
    strided = dict(problem)
    for name in ("queries", "candidates", "relevance", "initial"):
        base = np.zeros((problem[name].shape[1] * 2, problem[name].shape[0] * 3), problem[name].dtype)
        base[::2, ::3] = problem[name].T
        strided[name] = convert_one(base)[::2, ::3].T
    for name in ("bias", "groups", "query_groups"):
        if name in problem:
            strided[name] = convert_one(np.repeat(problem[name], 2))[::2]
    same(METHODS[method](**strided, backend=backend), expected)


@methods
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_embeddings_with_a_row_stride_are_read_in_place(backend, library, method):
    problem = testing.selection_problem(3, 20, 5, 19, dtype="float16", seed=6)
    expected = METHODS[method](**problem, backend=backend)
    wide = np.full((80, 30), np.nan, np.float16)
    wide[::2, 7:26] = problem["embeddings"]
    if library == "torch":
        wide = pytest.importorskip("torch").from_numpy(wide)
    problem["embeddings"] = wide[::2, 7:26]
    same(METHODS[method](**problem, backend=backend), expected)


@methods
def test_one_row_for_all_by_a_stride_of_zero(backend, method):
    rows = np.broadcast_to(np.array([[3, 4]], np.float32), (6, 2))
    result = METHODS[method](np.ones((1, 2), np.float32), rows, 3, backend=backend)
    assert result.indices.tolist() == [[0, 1, 2]]


@methods
def test_embeddings_of_one_column_are_contiguous_whatever_the_stride(backend, method):
    """NumPy calls them so: the stride of an axis of length 1 says nothing."""
    column = np.array([3, 1, -2, 5], np.float32)
    for rows in (column[:, None], np.stack([column, column], axis=1)[:, ::2]):
        assert rows.shape == (4, 1)
        result = METHODS[method](np.ones((1, 1), np.float32), rows, 2, metric="dot", backend=backend)
        assert result.indices[0, 0] == (3 if method == "mmr" else 0)


class Foreign:
    """An array that offers nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@methods
def test_any_array_with_dlpack_is_taken(backend, method):
    problem = full_problem(method)
    result = METHODS[method](**convert(problem, Foreign), backend=backend)
    assert all(isinstance(field, np.ndarray) for field in result)
    same(result, METHODS[method](**problem, backend=backend))
    a, b = rk.Corpus(Foreign(problem["embeddings"])), rk.Corpus(problem["embeddings"])
    np.testing.assert_array_equal(a.data, b.data)


@methods
def test_lists_are_taken(backend, method):
    """float64 by NumPy's rules, of which embeddings are converted in each call, and that is said."""
    problem = full_problem(method)
    expected = METHODS[method](**problem, backend=backend)
    lists = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in problem.items()}
    same(METHODS[method](**{**lists, "embeddings": problem["embeddings"]}, backend=backend), expected)
    with pytest.warns(rk.ConversionWarning):
        same(METHODS[method](**lists, backend=backend), expected)


def test_lists_of_integers_are_no_embeddings():
    for call in (lambda: rk.mmr([[1.0, 0.0]], [[1, 0], [0, 1]], 1), lambda: rk.Corpus([[1, 0], [0, 1]])):
        with pytest.raises(TypeError, match=r"embeddings must be float32, float16, bfloat16.*, got int64"):
            call()


@pytest.mark.parametrize("layout", ["dense", "columns_apart", "fortran", "torch"])
def test_float64_embeddings_are_converted_and_that_is_said(backend, layout):
    rng = np.random.default_rng(11)
    rows = rng.standard_normal((3, 20, 18) if layout == "dense" else (20, 18))[..., ::2]
    problem = {"queries": rng.standard_normal((3, 9)), "k": 4, "backend": backend}
    expected = rk.mmr(**problem, embeddings=np.ascontiguousarray(rows, np.float32))
    given = {"fortran": np.asfortranarray, "columns_apart": lambda x: x}
    given = given.get(layout, np.ascontiguousarray)(rows)
    if layout == "torch":
        given = pytest.importorskip("torch").from_numpy(given)
    with pytest.warns(rk.ConversionWarning) as caught:
        same(rk.mmr(**problem, embeddings=given), expected)
    (warning,) = caught
    assert warning.filename == __file__
    rule = "embeddings are float64 and are converted to float32; pass float32 to spare that"
    assert str(warning.message) == f"mmr: {rule}"


def test_conversion_is_said_once_at_each_call():
    rows = np.eye(5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            rk.mmr(rows[:1], rows, 2)
            corpus = rk.Corpus(rows)
            corpus.select(rows, 2)  # has been converted
            rk.mmr(rows[:1], rows.astype(np.float32), 2)
    lines = {(warning.lineno, warning.filename) for warning in caught}
    assert len(caught) == len(lines) == 2
    assert all(issubclass(warning.category, rk.ConversionWarning) for warning in caught)


@pytest.mark.parametrize("layout", ["plain", "columns_apart", "fortran", "list"])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_corpus_of_float64_is_that_of_float32(dtype, metric, layout):
    rows = np.random.default_rng(12).standard_normal((40, 22))[:, ::2]
    expected = rk.Corpus(np.ascontiguousarray(rows, np.float32), metric=metric, dtype=dtype)
    given = {"plain": np.ascontiguousarray, "fortran": np.asfortranarray, "list": np.ndarray.tolist}
    with pytest.warns(rk.ConversionWarning) as caught:
        corpus = rk.Corpus(given.get(layout, lambda x: x)(rows), metric=metric, dtype=dtype)
    assert [warning.filename for warning in caught] == [__file__]
    for name in ("data", "scales", "codes", "max_norm", "code_error"):
        np.testing.assert_array_equal(getattr(corpus, name), getattr(expected, name), err_msg=name)


def test_corpus_of_float64_is_converted_block_by_block(monkeypatch):
    monkeypatch.setattr(corpus_rows, "_BLOCK_BYTES", 1 << 18)
    rows = np.random.default_rng(13).standard_normal((20_000, 100))
    tracemalloc.start()
    try:
        with pytest.warns(rk.ConversionWarning):
            corpus = rk.Corpus(rows, dtype="int8")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert corpus.data.nbytes == 2_000_000
    assert peak < corpus.data.nbytes + 3_000_000  # of float32 they are 8,000,000 bytes


def test_float64_beyond_float32_is_named():
    rows = np.ones((6, 3))
    rows[4, 1] = 1e39
    rule = "^Corpus: embeddings must be within the range of float32, got a larger value in row 4$"
    with pytest.warns(rk.ConversionWarning), pytest.raises(ValueError, match=rule):
        rk.Corpus(rows)
    rows[2] = np.inf
    with pytest.warns(rk.ConversionWarning), pytest.raises(ValueError, match="be finite, got NaN or inf in row 2"):
        rk.Corpus(rows)


@methods
def test_numbers_of_any_type_are_taken(backend, method):
    problem = full_problem(method) | {"k": np.array([2, 5, 1, 3])}
    problem |= {name: problem[name].astype(np.float16).astype(np.float32) for name in ("queries", "relevance")}
    expected = METHODS[method](**problem, backend=backend)
    floats, integers = (np.float16, np.float64, np.longdouble), (np.int8, np.uint8, np.int16, np.uint32)
    for names, types in ((("queries", "relevance"), floats), (("groups", "query_groups", "k"), integers)):
        for dtype in types:
            given = {name: problem[name].astype(dtype) for name in names}
            same(METHODS[method](**problem | given, backend=backend), expected, dtype)


@methods
def test_numpy_scalars_are_numbers(backend, method):
    problem = testing.selection_problem(3, 20, 5, 19, seed=9)
    expected = METHODS[method](**problem, backend=backend)
    scalars = {"k": np.int32(5), "num_threads": np.int64(2)}
    if method == "mmr":
        scalars.update(lambda_d=np.float32(0.75), lambda_b=np.float64(0.95))
    same(METHODS[method](**{**problem, **scalars}, backend=backend), expected)


@methods
def test_memory_mapped_and_read_only_arrays_are_taken(backend, method, tmp_path):
    problem = full_problem(method)
    expected = METHODS[method](**problem, backend=backend)
    for name, value in problem.items():
        if isinstance(value, np.ndarray):
            np.save(tmp_path / f"{name}.npy", value)
            problem[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    result = METHODS[method](**problem, backend=backend)
    assert type(result.indices) is np.ndarray
    same(result, expected)


@methods
def test_results_do_not_share_memory_with_inputs_or_each_other(backend, method):
    problem = full_problem(method)
    first = METHODS[method](**problem, backend=backend)
    copies = [np.array(field) for field in first]
    second = METHODS[method](**problem, backend=backend)
    for field in second:
        field.fill(0)
    same(first, copies)


def test_corpus_takes_tensors_and_gives_what_the_queries_are(backend, torch):
    problem = testing.selection_problem(3, 20, 5, 19, seed=10)
    queries, rows = problem["queries"], problem["embeddings"]
    corpus = rk.Corpus(torch.from_numpy(rows), bias=torch.ones(40), groups=torch.arange(40))
    np.testing.assert_array_equal(corpus.data, rk.Corpus(rows).data)
    indices, scores = corpus.search(torch.from_numpy(queries), 5, backend=backend)
    assert (indices.dtype, scores.dtype) == (torch.int64, torch.float32)
    expected = corpus.search(queries, 5, backend=backend)
    assert isinstance(expected[0], np.ndarray)
    np.testing.assert_array_equal(indices.numpy(), expected[0])
    for pool in (10, None):
        result = corpus.select(torch.from_numpy(queries), 5, pool=pool, backend=backend)
        assert all(isinstance(field, torch.Tensor) for field in result)
        same(result, corpus.select(queries, 5, pool=pool, backend=backend))


@pytest.mark.parametrize("name", ["allowed", "exclude", "query_groups"])
def test_one_tensor_makes_the_results_of_a_corpus_torch(backend, torch, name):
    problem = testing.selection_problem(3, 20, 5, 19, seed=10)
    corpus = rk.Corpus(problem["embeddings"], groups=np.arange(40) % 4)
    given = {"allowed": np.arange(40) % 3 > 0, "exclude": np.array([[1, 5]] * 3), "query_groups": np.arange(3)}[name]
    tensor = torch.from_numpy(given)
    expected = corpus.search(problem["queries"], 5, **{name: given}, backend=backend)
    found = corpus.search(problem["queries"], 5, **{name: tensor}, backend=backend)
    assert all(isinstance(field, torch.Tensor) for field in found)
    same(found, expected)
    for pool in (10, None):
        result = corpus.select(problem["queries"], 3, pool=pool, **{name: tensor}, backend=backend)
        assert all(isinstance(field, torch.Tensor) for field in result)
        same(result, corpus.select(problem["queries"], 3, pool=pool, **{name: given}, backend=backend))


def test_options_of_one_rule_and_numbers_do_not_make_the_result_torch(backend, torch):
    problem = testing.selection_problem(3, 20, 5, 19, seed=10)
    quality, aspects = torch.ones(40), torch.ones(3, 2, 19)
    numbers = {"k": torch.tensor(3), "lambda_d": torch.tensor(0.5), "max_similarity": torch.tensor(0.9)}
    for found in (
        rk.dpp(**problem, quality=quality, backend=backend),
        rk.coverage(**problem, aspects=aspects, backend=backend),
        rk.mmr(**{**problem, **numbers}, backend=backend),
    ):
        assert all(isinstance(field, np.ndarray) for field in found)


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("given", ["float32", "float16", "bfloat16"])
def test_corpus_rounds_from_any_type_to_any(torch, given, stored):
    rows = torch.randn(30, 7, generator=torch.Generator().manual_seed(0)).to(getattr(torch, given))
    corpus = rk.Corpus(rows, metric="dot", dtype=stored)
    expected = rows.to(getattr(torch, stored)).float().numpy()
    data = torch.from_numpy(corpus.data.view(np.int16)).view(torch.bfloat16) if stored == "bfloat16" else corpus.data
    np.testing.assert_array_equal(np.asarray(data.float() if stored == "bfloat16" else data, np.float32), expected)
