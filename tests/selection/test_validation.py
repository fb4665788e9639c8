"""Every bad argument is an error of the documented type and wording, on every backend; and nothing is modified."""

import re
import warnings

import numpy as np
import pytest
from selection_calls import METHODS, check_error, dense, f32, good, methods, with_value

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.selection import validate

IDS = good()["candidates"]
UNALIGNED = np.frombuffer(b"\0" + f32(12, 4).tobytes(), np.uint8)[1:].view(np.float32).reshape(12, 4)

# What is changed, the error, the message after "<op>: ".
BOTH = {
    "queries_1d": (
        good(queries=f32(4)), ValueError,
        "queries must have shape (Q, D), got (4,); use queries[None, :] for one query",
    ),
    "queries_3d": (good(queries=f32(3, 1, 4)), ValueError, "queries must have shape (Q, D), got (3, 1, 4)"),
    "queries_dims": (
        good(queries=f32(3, 5)), ValueError, "queries must have the embeddings' D = 4 dimensions, got 5",
    ),
    "queries_integers": (
        good(queries=np.ones((3, 4), np.int64)), TypeError, "queries must be floating point, got int64",
    ),
    "queries_text": (good(queries="text"), TypeError, "queries must be an array of numbers, got str of dtype <U4"),
    "queries_objects": (
        good(queries=[[None] * 4]), TypeError, "queries must be an array of numbers, got list of dtype object",
    ),
    "queries_complex": (
        good(queries=f32(3, 4) * 1j), TypeError, "queries must be an array of numbers, got ndarray of dtype complex64",
    ),
    "queries_ragged": (
        good(queries=[[1.0], [1.0, 2.0]]), TypeError, "queries must be an array, got a ragged list; pad it first",
    ),
    "embeddings_1d": (
        good(embeddings=f32(4)), ValueError, "embeddings must have at least one row and one dimension, got shape (4,)",
    ),
    "embeddings_4d": (
        good(embeddings=f32(2, 3, 2, 4)), ValueError,
        "embeddings must have shape (N, D) or (Q, P, D), got (2, 3, 2, 4)",
    ),
    "embeddings_no_rows": (
        good(embeddings=f32(0, 4)), ValueError,
        "embeddings must have at least one row and one dimension, got shape (0, 4)",
    ),
    "embeddings_no_dims": (
        good(embeddings=f32(12, 0), queries=f32(3, 0)), ValueError,
        "embeddings must have at least one row and one dimension, got shape (12, 0)",
    ),
    "embeddings_complex": (
        good(embeddings=f32(12, 4).astype(complex)), TypeError,
        "embeddings must be an array of numbers, got ndarray of dtype complex128",
    ),
    "embeddings_integers": (
        good(embeddings=np.ones((12, 4), np.int8)), TypeError,
        "embeddings must be float32, float16 or bfloat16, got int8; convert it once with .astype('float32')",
    ),
    "embeddings_big_endian": (
        good(embeddings=f32(12, 4).astype(">f4")), ValueError,
        "embeddings must be aligned and in native byte order; copy it once with np.array",
    ),
    "embeddings_unaligned": (
        good(embeddings=UNALIGNED), ValueError,
        "embeddings must be aligned and in native byte order; copy it once with np.array",
    ),
    "dense_pools_missing": (
        dense(embeddings=f32(2, 5, 4)), ValueError,
        "embeddings must have one pool per query, Q = 3, got 2 pools",
    ),
    "dense_with_candidates": (
        dense(candidates=IDS), ValueError, "candidates must be None with dense pools (Q, P, D), got an array",
    ),
    "candidates_float": (
        good(candidates=IDS.astype(np.float32)), TypeError, "candidates must be int32 or int64, got float32",
    ),
    "candidates_int16": (
        good(candidates=IDS.astype(np.int16)), TypeError, "candidates must be int32 or int64, got int16",
    ),
    "candidates_1d": (good(candidates=IDS[0]), ValueError, "candidates must have shape (3, any), got (5,)"),
    "candidates_queries": (good(candidates=IDS[:2]), ValueError, "candidates must have shape (3, any), got (2, 5)"),
    "candidates_none": (
        good(candidates=IDS[:, :0]), ValueError, "candidates must have at least one column, got shape (3, 0)",
    ),
    "candidates_beyond": (
        good(candidates=with_value(IDS, (1, 2), 12)), ValueError,
        "candidates must be -1 or rows of the corpus, below N = 12, got 12 for query 1",
    ),
    "candidates_far_beyond": (
        good(candidates=with_value(IDS, (2, 4), 2**62)), ValueError,
        f"candidates must be -1 or rows of the corpus, below N = 12, got {2**62} for query 2",
    ),
    "candidates_negative": (
        good(candidates=with_value(IDS, (1, 3), -2)), ValueError,
        "candidates must be -1 or rows of the corpus, below N = 12, got -2 for query 1",
    ),
    "candidates_repeated": (
        good(candidates=with_value(IDS, (2, 0), 8)), ValueError,
        "candidates must not repeat an id within a query, got 8 twice for query 2",
    ),
    "initial_beyond": (
        good(initial=np.array([[0], [-1], [99]])), ValueError,
        "initial must be -1 or rows of the corpus, below N = 12, got 99 for query 2",
    ),
    "initial_beyond_dense": (
        dense(initial=np.array([[0], [5], [1]])), ValueError,
        "initial must be -1 or positions of the pool, below P = 5, got 5 for query 1",
    ),
    "initial_negative": (
        good(initial=np.array([[0], [-1], [-9]])), ValueError,
        "initial must be -1 or rows of the corpus, below N = 12, got -9 for query 2",
    ),
    "initial_repeated": (
        good(initial=np.array([[3, -1, 3], [-1, -1, -1], [1, 2, 3]])), ValueError,
        "initial must not repeat an id within a query, got 3 twice for query 0",
    ),
    "initial_float": (good(initial=f32(3, 1)), TypeError, "initial must be int32 or int64, got float32"),
    "initial_1d": (good(initial=np.arange(3)), ValueError, "initial must have shape (3, any), got (3,)"),
    "relevance_shape": (
        good(relevance=f32(3, 4)), ValueError, "relevance must have shape (Q, P) = (3, 5), got (3, 4)",
    ),
    "relevance_integers": (
        good(relevance=np.ones((3, 5), np.int32)), TypeError, "relevance must be floating point, got int32",
    ),
    "relevance_nan": (
        good(relevance=with_value(f32(3, 5), (2, 1), np.nan)), ValueError,
        "relevance must be finite, got NaN or inf in row 2, position 1",
    ),
    "relevance_inf": (
        dense(relevance=with_value(f32(3, 5), (0, 4), -np.inf)), ValueError,
        "relevance must be finite, got NaN or inf in row 0, position 4",
    ),
    "relevance_beyond_float32": (
        dense(relevance=with_value(f32(3, 5).astype(np.float64), (0, 4), 1e300)), ValueError,
        "relevance must be finite, got NaN or inf in row 0, position 4",
    ),
    "groups_shape": (
        good(groups=np.zeros(5, int), max_per_group=1), ValueError, "groups must have shape (N,) = (12,), got (5,)",
    ),
    "groups_shape_dense": (
        dense(groups=np.zeros(5, int), max_per_group=1), ValueError, "groups must have shape (Q, P) = (3, 5), got (5,)",
    ),
    "groups_float": (good(groups=f32(12), max_per_group=1), TypeError, "groups must be integers, got float32"),
    "groups_alone": (
        good(groups=np.zeros(12, int)), ValueError, "groups must come with query_groups or max_per_group, got neither",
    ),
    "query_groups_alone": (
        good(query_groups=np.zeros(3, int)), ValueError, "query_groups must come with groups, got groups=None",
    ),
    "max_per_group_alone": (good(max_per_group=1), ValueError, "max_per_group must come with groups, got groups=None"),
    "query_groups_shape": (
        good(groups=np.zeros(12, int), query_groups=np.zeros(2, int)), ValueError,
        "query_groups must have shape (Q,) = (3,), got (2,)",
    ),
    "query_groups_float": (
        good(groups=np.zeros(12, int), query_groups=f32(3)), TypeError, "query_groups must be integers, got float32",
    ),
    "max_per_group_zero": (
        good(groups=np.zeros(12, int), max_per_group=0), ValueError, "max_per_group must be at least 1, got 0",
    ),
    "max_per_group_float": (
        good(groups=np.zeros(12, int), max_per_group=1.5), TypeError, "max_per_group must be an integer, got float",
    ),
    "k_zero": (good(k=0), ValueError, "k must be at least 1, got 0"),
    "k_negative": (good(k=-3), ValueError, "k must be at least 1, got -3"),
    "k_float": (good(k=2.0), TypeError, "k must be integers, got float64"),
    "k_none": (good(k=None), TypeError, "k must be an array of numbers, got NoneType of dtype object"),
    "k_true": (good(k=True), TypeError, "k must be an integer, got True"),
    "k_shape": (good(k=np.array([1, 2])), ValueError, "k must be a number or have shape (3,), got (2,)"),
    "k_zero_for_one": (good(k=np.array([1, 0, 2])), ValueError, "k must be at least 1, got 0 for query 1"),
    "metric": (good(metric="euclid"), ValueError, "metric must be one of 'cosine', 'dot', got 'euclid'"),
    "backend": (
        good(backend="gpu"),
        ValueError,
        "backend must be one of 'auto', 'cpu', 'reference', 'triton', 'cuda', got 'gpu'",
    ),
    "threads_zero": (good(num_threads=0), ValueError, "num_threads must be at least 1, got 0"),
    "max_per_group_true": (
        good(groups=np.zeros(12, int), max_per_group=True), TypeError, "max_per_group must be an integer, got True",
    ),
    "threads_true": (good(num_threads=np.True_), TypeError, "num_threads must be an integer, got True"),
    "threads_float": (good(num_threads=1.5), TypeError, "num_threads must be an integer, got float"),
    "check_values": (good(check_values="yes"), TypeError, "check_values must be None, True or False, got 'yes'"),
    "queries_nan": (
        good(queries=with_value(f32(3, 4), (1, 2), np.nan)), ValueError,
        "queries must be finite, got NaN or inf in row 1",
    ),
    "queries_inf": (
        good(queries=with_value(f32(3, 4), (2, 0), np.inf)), ValueError,
        "queries must be finite, got NaN or inf in row 2",
    ),
    "queries_beyond_float32": (
        good(queries=with_value(f32(3, 4).astype(np.float64), (2, 0), 1e40)), ValueError,
        "queries must be finite, got NaN or inf in row 2",
    ),
    "embeddings_nan": (
        good(embeddings=with_value(f32(12, 4), (6, 3), np.nan)), ValueError,
        "embeddings must be finite, got NaN or inf in row 6",
    ),
    "embeddings_inf": (
        good(embeddings=with_value(f32(12, 4), (11, 0), -np.inf)), ValueError,
        "embeddings must be finite, got NaN or inf in row 11",
    ),
    "embeddings_float16_inf": (
        good(embeddings=with_value(f32(12, 4).astype(np.float16), (3, 0), np.inf)), ValueError,
        "embeddings must be finite, got NaN or inf in row 3",
    ),
    "embeddings_nan_whole_corpus": (
        good(embeddings=with_value(f32(12, 4), (9, 3), np.nan), candidates=None), ValueError,
        "embeddings must be finite, got NaN or inf in row 9",
    ),
    "embeddings_nan_dot": (
        good(embeddings=with_value(f32(12, 4), (6, 3), np.nan), metric="dot"), ValueError,
        "embeddings must be finite, got NaN or inf in row 6",
    ),
    "embeddings_nan_dense": (
        dense(embeddings=with_value(f32(3, 5, 4), (2, 3, 0), np.nan)), ValueError,
        "embeddings must be finite, got NaN or inf in row 2, position 3",
    ),
    "embeddings_nan_initial": (
        good(embeddings=with_value(f32(12, 4), (9, 3), np.nan), candidates=IDS[:2], queries=f32(2, 4),
             initial=np.array([[-1], [9]])), ValueError,
        "embeddings must be finite, got NaN or inf in row 9",
    ),
    "embeddings_tiny": (
        good(embeddings=with_value(f32(12, 4), 7, 1e-30)), ValueError,
        "embeddings must have row norms of 0 or within [1e-15, 1e+15], got 2e-30 in row 7; rescale them",
    ),
    "embeddings_huge": (
        good(embeddings=with_value(f32(12, 4), 7, 1e30)), ValueError,
        "embeddings must have row norms of 0 or within [1e-15, 1e+15], got 2e+30 in row 7; rescale them",
    ),
}  # fmt: skip

MMR = {
    "queries_missing": (good(queries=None), ValueError, "queries must be given unless relevance is, got None"),
    "bias_shape": (
        good(bias=f32(5)), ValueError, "bias must have shape (N,) = (12,) or (Q, P) = (3, 5), got (5,)",
    ),
    "bias_shape_dense": (dense(bias=f32(15)), ValueError, "bias must have shape (Q, P) = (3, 5), got (15,)"),
    "bias_integers": (good(bias=np.zeros(12, int)), TypeError, "bias must be floating point, got int64"),
    "bias_nan": (
        good(bias=with_value(f32(12), 8, np.nan)), ValueError, "bias must be finite, got NaN or inf in row 8",
    ),
    "bias_nan_per_candidate": (
        good(bias=with_value(f32(3, 5), (1, 3), np.inf)), ValueError,
        "bias must be finite, got NaN or inf in row 1, position 3",
    ),
    "lambda_d_negative": (good(lambda_d=-0.1), ValueError, "lambda_d must be within [0, 1], got -0.1"),
    "lambda_d_large": (good(lambda_d=1.01), ValueError, "lambda_d must be within [0, 1], got 1.01"),
    "lambda_d_nan": (good(lambda_d=np.nan), ValueError, "lambda_d must be within [0, 1], got nan"),
    "lambda_d_nan_for_one": (
        good(lambda_d=np.array([0.5, np.nan, 1])), ValueError, "lambda_d must be within [0, 1], got nan",
    ),
    "lambda_d_large_for_one": (
        good(lambda_d=np.array([0.5, 0.5, 75])), ValueError, "lambda_d must be within [0, 1], got 75",
    ),
    "lambda_d_shape": (
        good(lambda_d=np.array([0.5, 0.5])), ValueError, "lambda_d must be a number or have shape (3,), got (2,)",
    ),
    "lambda_d_text": (
        good(lambda_d="0.5"), TypeError, "lambda_d must be an array of numbers, got str of dtype <U3",
    ),
    "lambda_d_none": (
        good(lambda_d=None), TypeError, "lambda_d must be an array of numbers, got NoneType of dtype object",
    ),
    "lambda_b_negative": (good(lambda_b=-1), ValueError, "lambda_b must be within [0, 1], got -1"),
    "lambda_b_large": (good(lambda_b=2), ValueError, "lambda_b must be within [0, 1], got 2"),
}  # fmt: skip

VRSD = {
    "queries_missing": (good(queries=None), ValueError, "queries must be given, got None"),
    "queries_missing_with_relevance": (
        good(queries=None, relevance=f32(3, 5)), ValueError, "queries must be given, got None",
    ),
}  # fmt: skip


@methods
@pytest.mark.parametrize("case", BOTH)
def test_bad_argument_of_either_method_is_named(backend, method, case):
    check_error(method, *BOTH[case], backend=backend)


@pytest.mark.parametrize("case", MMR)
def test_bad_argument_of_mmr_is_named(backend, case):
    check_error("mmr", *MMR[case], backend=backend)


@pytest.mark.parametrize("case", VRSD)
def test_bad_argument_of_vrsd_is_named(backend, case):
    check_error("vrsd", *VRSD[case], backend=backend)


@pytest.mark.parametrize("name", ["bias", "lambda_d", "lambda_b"])
def test_vrsd_has_no_parameters_of_mmr(name):
    with pytest.raises(TypeError, match=re.escape(f"got an unexpected keyword argument '{name}'")):
        rk.vrsd(**good(**{name: 0.5}))


@methods
def test_the_base_calls_are_good(backend, method):
    for arguments in (good(), dense()):
        testing.check_selection(method, arguments, METHODS[method](**arguments, backend=backend))


@methods
def test_the_first_bad_query_is_named(backend, method):
    queries = with_value(f32(3, 4), ([1, 2], 0), np.nan)
    message = "queries must be finite, got NaN or inf in row 1"
    check_error(method, good(queries=queries), ValueError, message, backend=backend)
    candidates = with_value(IDS, ([1, 2], [0, 0]), [77, 66])
    message = "candidates must be -1 or rows of the corpus, below N = 12, got 77 for query 1"
    check_error(method, good(candidates=candidates), ValueError, message, backend=backend)


@methods
def test_the_first_bad_query_is_named_whatever_the_threads(backend, method):
    """Threads meet bad queries in any order."""
    problem = testing.selection_problem(300, 60, 5, 65, seed=1)
    problem["queries"][123:, 0] = np.nan
    message = "queries must be finite, got NaN or inf in row 123"
    check_error(method, problem, ValueError, message, backend=backend, num_threads=5)


@methods
def test_the_bad_query_of_a_whole_corpus_is_named_in_any_block(backend, method):
    initial = np.full((300, 1), -1)
    initial[290:] = 9999
    arguments = {"queries": f32(300, 4), "embeddings": f32(3000, 4), "k": 1, "initial": initial}
    if backend == "reference":  # which would need minutes for all queries
        arguments["embeddings"] = f32(30, 4)
    message = (
        f"initial must be -1 or rows of the corpus, below N = {len(arguments['embeddings'])}, got 9999 for query 290"
    )
    check_error(method, arguments, ValueError, message, backend=backend)


@methods
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_bad_values_that_no_query_reads_are_no_errors(backend, metric, method):
    """Row 11 is in no pool; position 4 of query 1 is padding."""
    arguments = good(candidates=np.array([[0, 1, 2, 3, 4], [5, 6, 7, 8, -1], [4, 10, 9, 8, 7]]), metric=metric)
    expected = METHODS[method](**arguments, backend=backend)
    arguments["embeddings"] = with_value(arguments["embeddings"], 11, np.nan)
    result = METHODS[method](**arguments, backend=backend)
    np.testing.assert_array_equal(result.indices, expected.indices)
    relevance = f32(3, 5)
    expected = METHODS[method](**arguments, relevance=relevance, backend=backend)
    result = METHODS[method](**arguments, relevance=with_value(relevance, (1, 4), np.nan), backend=backend)
    np.testing.assert_array_equal(result.scores, expected.scores)


def test_products_beyond_float32_are_an_error_not_an_inf(backend):
    """Of finite values: no score may come out as inf or NaN, and no warning of NumPy's instead of an error."""
    arguments = good(metric="dot", embeddings=with_value(f32(12, 4), (0, slice(None)), 1e25))
    arguments["queries"] = with_value(f32(3, 4), 0, 1e25)
    message = "queries and embeddings must have products within the range of float32, got one beyond it for query 0; "
    check_error("mmr", arguments, ValueError, message + "rescale them", backend=backend)
    message = "embeddings must have row norms of 0 or within [1e-15, 1e+15], got 2e+25 in row 0; rescale them"
    check_error("vrsd", arguments, ValueError, message, backend=backend)


@methods
def test_read_only_inputs_are_taken_and_none_is_modified(backend, method):
    problem = testing.selection_problem(4, 15, 4, 9, ragged=True, bias=method == "mmr", groups=True)
    problem["initial"] = np.array([[0, -1]] * 4)
    problem["relevance"] = f32(4, 15)
    before = {name: np.array(value) for name, value in problem.items()}
    for value in problem.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    METHODS[method](**problem, backend=backend)
    for name, value in before.items():
        np.testing.assert_array_equal(problem[name], value)


@pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning")
@methods
def test_nothing_is_clamped(backend, method):
    """Scores outside [-1, 1] and biases of any size are taken as they are."""
    relevance = np.array([[-50, 70, 20, -5, 3]] * 3, np.float32)
    result = METHODS[method](**good(relevance=relevance, candidates=IDS[:1].repeat(3, 0)), backend=backend)
    assert result.relevance[:, 0].tolist() == [70] * 3
    if method == "mmr":
        bias = np.full(12, -1e6, np.float32)
        bias[3] = 1e6
        result = rk.mmr(**good(bias=bias, lambda_b=0.5, candidates=IDS[:1].repeat(3, 0)), backend=backend)
        np.testing.assert_allclose(result.relevance[:, 0], 5e5, rtol=1e-6)


@methods
@pytest.mark.parametrize("k", [5, 9, np.array([5, 6, 7])], ids=["equal", "beyond", "per_query"])
def test_pool_no_larger_than_k_warns_once_at_the_call(backend, method, k):
    with pytest.warns(rk.PoolSizeWarning) as caught:
        METHODS[method](**good(k=k), backend=backend)
    (warning,) = caught
    assert warning.filename == __file__
    assert re.fullmatch(
        rf"{method}: the pool of 5 is no larger than k = \d, so that the selection only reorders it; "
        "use a larger pool or a smaller k",
        str(warning.message),
    )
    assert issubclass(rk.PoolSizeWarning, UserWarning)


@methods
def test_a_pool_of_all_rows_is_not_told_to_grow(backend, method):
    def told(embeddings, candidates=None):
        with pytest.warns(rk.PoolSizeWarning) as caught:
            METHODS[method](f32(2, 4), embeddings, 5, candidates=candidates, backend=backend)
        (warning,) = caught
        return str(warning.message).rpartition("; ")[2]

    every = np.arange(5)[None].repeat(2, 0)
    larger, smaller = "use a larger pool or a smaller k", "use a smaller k"
    assert [told(f32(5, 4)), told(f32(5, 4), every)] == [smaller, smaller]
    # More rows than the pool has, and pools of each query's own.
    assert [told(f32(6, 4), every), told(f32(2, 5, 4)), told(f32(1, 5, 4).repeat(2, 0))] == [larger] * 3


@methods
@pytest.mark.parametrize("pool", [None, 5])
def test_corpus_select_warns_at_the_call(backend, method, pool):
    corpus = rk.Corpus(f32(5, 4))
    with pytest.warns(rk.PoolSizeWarning) as caught:
        corpus.select(f32(2, 4), 5, pool=pool, method=method, backend=backend)
    (warning,) = caught
    assert warning.filename == __file__


@methods
def test_pool_larger_than_k_does_not_warn(backend, method):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        METHODS[method](**good(k=4), backend=backend)


def test_num_threads_of_the_environment_is_checked(backend, monkeypatch):
    for text in ("0", "many", "-1", "1.5"):
        monkeypatch.setenv("RAGSYS_KERNELS_NUM_THREADS", text)
        message = f"RAGSYS_KERNELS_NUM_THREADS must be a whole number of at least 1, got '{text}'"
        with pytest.raises(ValueError, match=f"^{message}$"):
            rk.mmr(**good(), backend=backend)
        rk.mmr(**good(), backend=backend, num_threads=1)


def test_num_threads_of_the_environment_may_be_any_number(monkeypatch):
    """As the argument may: the kernels take as many as they have a use for."""
    rows = f32(20, 4)
    expected = rk.Corpus(rows).select(f32(3, 4), 2, num_threads=1)
    for threads in ("4097", "99999999999"):
        monkeypatch.setenv("RAGSYS_KERNELS_NUM_THREADS", threads)
        corpus = rk.Corpus(rows)
        for found in (corpus.select(f32(3, 4), 2), corpus.select(f32(3, 4), 2, num_threads=int(threads))):
            np.testing.assert_array_equal(found.indices, expected.indices)


def test_relevance_alone_tells_the_number_of_queries():
    with pytest.raises(ValueError, match=r"^mmr: relevance must have shape \(Q, N\), got \(12,\)$"):
        rk.mmr(None, f32(12, 4), 2, relevance=f32(12))


@methods
def test_more_picks_than_the_pool_has_are_padding(backend, method):
    """Whose number costs no work: only as many picks are made as there can be."""
    with pytest.warns(rk.PoolSizeWarning):
        few = METHODS[method](**good(k=5), backend=backend)
    with pytest.warns(rk.PoolSizeWarning):
        many = METHODS[method](**good(k=65_536), backend=backend)
    assert [field.shape for field in many] == [(3, 65_536)] * 4 + [(3,)]
    padding = rk.Selection.empty(3, 65_536 - 5)
    for name, x, y, rest in zip(rk.Selection._fields[:4], many, few, padding, strict=False):
        np.testing.assert_array_equal(x[:, :5], y, err_msg=name)
        np.testing.assert_array_equal(x[:, 5:], rest, err_msg=name)
        assert x.dtype == y.dtype
    np.testing.assert_array_equal(many.lengths, few.lengths)
    ks = np.array([2, 7, 60_000])
    each = METHODS[method](**good(k=ks), backend=backend)
    assert each.indices.shape == (3, 60_000)
    assert each.lengths.tolist() == [2, 4, 5]


@methods
@pytest.mark.parametrize("k", [65_537, 10**8, 10**12, np.array([1, 2, 10**8])], ids=str)
def test_picks_far_above_the_pool_are_refused_at_once(method, k):
    got = np.max(k)
    message = f"k must be at most 65536 where the pool has fewer items, got {got} for a pool of 5"
    check_error(method, good(k=k), ValueError, message)
    with pytest.raises(ValueError, match=r"^search: n must be at most 65536 where the pool has fewer items, got "):
        rk.Corpus(f32(12, 4)).search(f32(3, 4), int(got))
    with pytest.raises(ValueError, match=rf"^{method}: {message}$"):
        rk.Corpus(f32(12, 4)).select(f32(3, 4), k, pool=5, method=method)


@methods
def test_a_pool_of_more_items_gives_more_picks(backend, method, monkeypatch):
    monkeypatch.setattr(validate, "MOST_PADDED", 4)
    with pytest.warns(rk.PoolSizeWarning):
        assert METHODS[method](**good(k=5), backend=backend).lengths.tolist() == [5, 4, 5]
    with pytest.raises(ValueError, match=f"^{method}: k must be at most 4 where the pool has fewer items, got 6 "):
        METHODS[method](**good(k=6), backend=backend)


def test_without_memory_the_error_says_of_what(monkeypatch):
    def none(*_, **__):
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr(validate, "selection", none)
    corpus = rk.Corpus(f32(12, 4))
    calls = {
        "mmr": lambda: rk.mmr(**good()),
        "search": lambda: corpus.search(f32(3, 4), 2),
        "vrsd": lambda: corpus.select(f32(3, 4), 2, pool=None, method="vrsd"),
    }
    for op, call in calls.items():
        message = f"^{op}: memory must suffice for the call, got: Unable to allocate 9 GiB$"
        with pytest.raises(MemoryError, match=message):
            call()
