"""Every bad argument is an error of the documented type and wording, on every backend; and nothing is modified."""

import itertools
import re
import warnings

import numpy as np
import pytest
from selection_calls import METHODS, check_error, dense, f32, good, methods, with_value

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.selection import validate

IDS = good()["candidates"]
OF_ROWS = "must be -1 or rows of the corpus, below N = 12, got"
NO_ROWS = "embeddings must have at least one row and one dimension, got shape"
NO_NUMBER, NO_RELEVANCE = (f"{name} must be finite, got NaN or inf in row" for name in ("embeddings", "relevance"))
OF_NORMS = "embeddings must have row norms of 0 or within [1e-15, 1e+15], got"
OF_COSTS = "must be finite and at least 0, got"
NAN_IN_6, NAN_IN_9 = (with_value(f32(12, 4), (row, 3), np.nan) for row in (6, 9))

# By the methods, the call that is changed and the error: what is changed, and the message after "<op>: ".
BAD = {
    ("mmr vrsd", good, ValueError): [
        ({"queries": f32(4)}, "queries must have shape (Q, D), got (4,); use queries[None, :] for one query"),
        ({"queries": f32(3, 5)}, "queries must have the embeddings' D = 4 dimensions, got 5"),
        ({"embeddings": f32(4)}, f"{NO_ROWS} (4,)"),
        ({"embeddings": f32(2, 3, 2, 4)}, "embeddings must have shape (N, D) or (Q, P, D), got (2, 3, 2, 4)"),
        ({"embeddings": f32(0, 4)}, f"{NO_ROWS} (0, 4)"),
        ({"embeddings": f32(12, 0), "queries": f32(3, 0)}, f"{NO_ROWS} (12, 0)"),
        ({"candidates": IDS[0]}, "candidates must have shape (3, any), got (5,)"),
        ({"candidates": IDS[:2]}, "candidates must have shape (3, any), got (2, 5)"),
        ({"candidates": IDS[:, :0]}, "candidates must have at least one column, got shape (3, 0)"),
        ({"candidates": with_value(IDS, (1, 2), 12)}, f"candidates {OF_ROWS} 12 for query 1"),
        ({"candidates": with_value(IDS, (2, 4), 2**62)}, f"candidates {OF_ROWS} {2**62} for query 2"),
        ({"candidates": with_value(IDS, (1, 3), -2)}, f"candidates {OF_ROWS} -2 for query 1"),
        (
            {"candidates": with_value(IDS, (2, 0), 8)},
            "candidates must not repeat an id within a query, got 8 twice for query 2",
        ),
        ({"initial": np.array([[0], [-1], [99]])}, f"initial {OF_ROWS} 99 for query 2"),
        (
            {"initial": np.array([[3, -1, 3], [-1, -1, -1], [1, 2, 3]])},
            "initial must not repeat an id within a query, got 3 twice for query 0",
        ),
        ({"relevance": f32(3, 4)}, "relevance must have shape (Q, P) = (3, 5), got (3, 4)"),
        ({"relevance": with_value(f32(3, 5), (2, 1), np.nan)}, f"{NO_RELEVANCE} 2, position 1"),
        ({"groups": np.zeros(5, int), "max_per_group": 1}, "groups must have shape (N,) = (12,), got (5,)"),
        ({"groups": np.zeros(12, int)}, "groups must come with query_groups, max_per_group or min_per_group, got none"),
        ({"query_groups": np.zeros(3, int)}, "query_groups must come with groups, got groups=None"),
        ({"max_per_group": 1}, "max_per_group must come with groups, got groups=None"),
        (
            {"groups": np.zeros(12, int), "query_groups": np.zeros(2, int)},
            "query_groups must have shape (Q,) = (3,), got (2,)",
        ),
        ({"groups": np.zeros(12, int), "max_per_group": 0}, "max_per_group must be at least 1, got 0"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"k": np.array([1, 2])}, "k must be a number or have shape (3,), got (2,)"),
        ({"k": np.array([1, 0, 2])}, "k must be at least 1, got 0 for query 1"),
        ({"metric": "euclid"}, "metric must be one of 'cosine', 'dot', got 'euclid'"),
        ({"num_threads": 0}, "num_threads must be at least 1, got 0"),
        ({"queries": with_value(f32(3, 4), (1, 2), np.nan)}, "queries must be finite, got NaN or inf in row 1"),
        (
            {"queries": with_value(f32(3, 4).astype(np.float64), (2, 0), 1e40)},
            "queries must be finite, got NaN or inf in row 2",
        ),
        ({"embeddings": NAN_IN_6}, f"{NO_NUMBER} 6"),
        ({"embeddings": with_value(f32(12, 4).astype(np.float16), (3, 0), np.inf)}, f"{NO_NUMBER} 3"),
        ({"embeddings": NAN_IN_9, "candidates": None}, f"{NO_NUMBER} 9"),
        ({"embeddings": NAN_IN_6, "metric": "dot"}, f"{NO_NUMBER} 6"),
        (
            {
                "embeddings": NAN_IN_9,
                "candidates": IDS[:2],
                "queries": f32(2, 4),
                "initial": np.array([[-1], [9]]),
            },
            f"{NO_NUMBER} 9",
        ),
        ({"embeddings": with_value(f32(12, 4), 7, 1e-30)}, f"{OF_NORMS} 2e-30 in row 7; rescale them"),
        ({"embeddings": with_value(f32(12, 4), 7, 1e30)}, f"{OF_NORMS} 2e+30 in row 7; rescale them"),
        ({"allowed": np.ones(5, bool)}, "allowed must be a mask of shape (12,) or (3, 12), got (5,)"),
        ({"exclude": np.zeros((2, 4), int)}, "exclude must be rows of shape (any,) or (3, any), got (2, 4)"),
        ({"exclude": np.zeros((3, 4, 1), int)}, "exclude must be rows of shape (any,) or (3, any), got (3, 4, 1)"),
        ({"exclude": [3, 12]}, "exclude must be -1 or rows below 12, got 12"),
        ({"allowed": [[0, 1], [2, -2], [3, 4]]}, "allowed must be -1 or rows below 12, got -2 for query 1"),
        ({"costs": np.ones(12)}, "costs must come with a budget, got budget=None"),
        ({"budget": 3}, "budget must come with costs, got costs=None"),
        ({"costs": with_value(np.ones(12), 2, -1), "budget": 3}, f"costs {OF_COSTS} -1 in row 2"),
        ({"costs": with_value(np.ones(12), 4, np.nan), "budget": 3}, f"costs {OF_COSTS} nan in row 4"),
        ({"costs": np.ones(7), "budget": 3}, "costs must have shape (N,) = (12,) or (Q, P) = (3, 5), got (7,)"),
        ({"costs": np.ones(12), "budget": [1, -2, 1]}, "budget must be at least 0, got -2"),
        ({"costs": np.ones(12), "budget": [1, 2]}, "budget must be a number or have shape (3,), got (2,)"),
        ({"max_similarity": 1.5}, "max_similarity must be within [-1, 1], got 1.5"),
    ],
    ("msd", good, ValueError): [
        ({"lambda_d": "adagres"}, "lambda_d 'adagres' must come with a budget, got budget=None"),
    ],
    ("dpp", good, ValueError): [
        ({"scale": -1}, "scale must be at least 0, got -1"),
        ({"quality": with_value(np.ones(12), 2, 0)}, "quality must be finite and above 0, got 0 in row 2"),
    ],
    ("ssd", good, ValueError): [({"window": 0}, "window must be at least 1, got 0")],
    ("sift", good, ValueError): [
        ({"noise": 0}, "noise must be above 0, got 0"),
        ({"queries": None, "relevance": f32(3, 5)}, "queries must be given, got None"),
    ],
    ("coverage", good, ValueError): [
        ({"kind": "all"}, "kind must be one of 'facility', 'cover', 'xquad', got 'all'"),
        ({"gamma": 2}, "gamma must be above 0 and at most 1, got 2"),
        ({"density": True}, "density must come with a budget, got budget=None"),
        ({"weights": np.ones((2, 3))}, "weights must come with aspects, got aspects=None"),
        ({"aspects": np.ones((2, 3))}, "aspects must have shape (Q, A, D) = (3, any, 4), got (2, 3)"),
    ],
    ("mmr_path", good, ValueError): [
        ({"low": -0.1}, "low must be within [0, 1], got -0.1"),
        ({"high": np.nan}, "high must be within [0, 1], got nan"),
        ({"low": 0.6, "high": 0.5}, "high must be at least low = 0.6, got 0.5"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"max_per_group": 1}, "max_per_group must come with groups, got groups=None"),
    ],
    ("mmr_path", good, TypeError): [
        ({"low": "0"}, "low must be a number, got '0'"),
        ({"low": True}, "low must be a number, got True"),
        (
            {"lambda_d": 0.5},
            "got an unexpected keyword argument 'lambda_d'; "
            "it is called 'low' here and takes the least weight; the largest is 'high'",
        ),
    ],
    ("mmr vrsd", good, TypeError): [
        ({"queries": np.ones((3, 4), np.int64)}, "queries must be floating point, got int64"),
        ({"queries": "text"}, "queries must be an array of numbers, got str of dtype <U4"),
        ({"queries": [[None] * 4]}, "queries must be an array of numbers, got list of dtype object"),
        ({"queries": f32(3, 4) * 1j}, "queries must be an array of numbers, got ndarray of dtype complex64"),
        ({"queries": [[1.0], [1.0, 2.0]]}, "queries must be an array, got a ragged list; pad it first"),
        (
            {"embeddings": np.ones((12, 4), np.uint8)},
            "embeddings must be float32, float16, bfloat16 or int8, got uint8; convert it once with "
            ".astype('float32'); packed signs go into Corpus(dtype='binary')",
        ),
        ({"candidates": IDS.astype(np.float32)}, "candidates must be int32 or int64, got float32"),
        ({"relevance": np.ones((3, 5), np.int32)}, "relevance must be floating point, got int32"),
        ({"groups": f32(12), "max_per_group": 1}, "groups must be integers or strings, got float32"),
        ({"groups": np.zeros(12, int), "query_groups": f32(3)}, "query_groups must be integers, got float32"),
        ({"groups": np.zeros(12, int), "max_per_group": 1.5}, "max_per_group must be an integer, got float"),
        ({"k": None}, "k must be an integer or an array of integers, got None"),
        ({"num_threads": 1.5}, "num_threads must be an integer, got float"),
        ({"check_values": "yes"}, "check_values must be None, True or False, got 'yes'"),
        ({"allowed": np.ones(12)}, "allowed must be a mask of bool or rows of int32 or int64, got float64"),
        ({"allowed": np.ones(12, np.uint8)}, "allowed must be a mask of bool or rows of int32 or int64, got uint8"),
    ],
    ("mmr vrsd", dense, ValueError): [
        ({"embeddings": f32(2, 5, 4)}, "embeddings must have one pool per query, Q = 3, got 2 pools"),
        ({"candidates": IDS}, "candidates must be None with dense pools (Q, P, D), got an array"),
        (
            {"initial": np.array([[0], [5], [1]])},
            "initial must be -1 or positions of the pool, below P = 5, got 5 for query 1",
        ),
        ({"relevance": with_value(f32(3, 5), (0, 4), -np.inf)}, f"{NO_RELEVANCE} 0, position 4"),
        ({"relevance": with_value(f32(3, 5).astype(np.float64), (0, 4), 1e300)}, f"{NO_RELEVANCE} 0, position 4"),
        ({"groups": np.zeros(5, int), "max_per_group": 1}, "groups must have shape (Q, P) = (3, 5), got (5,)"),
        ({"exclude": [5]}, "exclude must be -1 or rows below 5, got 5"),
        ({"embeddings": with_value(f32(3, 5, 4), (2, 3, 0), np.nan)}, f"{NO_NUMBER} 2, position 3"),
    ],
    ("mmr", good, ValueError): [
        ({"queries": None}, "queries must be given unless relevance is, got None"),
        ({"bias": f32(5)}, "bias must have shape (N,) = (12,) or (Q, P) = (3, 5), got (5,)"),
        ({"bias": with_value(f32(12), 8, np.nan)}, "bias must be finite, got NaN or inf in row 8"),
        ({"bias": with_value(f32(3, 5), (1, 3), np.inf)}, "bias must be finite, got NaN or inf in row 1, position 3"),
        ({"lambda_d": -0.1}, "lambda_d must be within [0, 1], got -0.1"),
        ({"lambda_d": 1.01}, "lambda_d must be within [0, 1], got 1.01"),
        ({"lambda_d": np.nan}, "lambda_d must be within [0, 1], got nan"),
        ({"lambda_d": np.array([0.5, 0.5, 75])}, "lambda_d must be within [0, 1], got 75"),
        ({"lambda_d": np.array([0.5, 0.5])}, "lambda_d must be a number or have shape (3,), got (2,)"),
        ({"lambda_b": 2}, "lambda_b must be within [0, 1], got 2"),
    ],
    ("mmr", good, TypeError): [
        ({"bias": np.zeros(12, int)}, "bias must be floating point, got int64"),
        ({"lambda_d": "0.5"}, "lambda_d must be a number or a float array of shape (Q,), got '0.5'"),
    ],
    ("mmr", dense, ValueError): [
        ({"bias": f32(15)}, "bias must have shape (Q, P) = (3, 5), got (15,)"),
    ],
    ("vrsd", good, ValueError): [
        ({"queries": None}, "queries must be given, got None"),
        ({"queries": None, "relevance": f32(3, 5)}, "queries must be given, got None"),
    ],
}


@pytest.mark.parametrize(("of_methods", "call", "error"), BAD)
def test_bad_argument_is_named(backend, of_methods, call, error):
    for method, (changes, message) in itertools.product(of_methods.split(), BAD[of_methods, call, error]):
        check_error(method, call(**changes), error, message, backend=backend)


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
@pytest.mark.parametrize("limit", ["budget", "max_similarity", "max_per_group"])
def test_what_leaves_items_out_is_no_reordering(backend, method, limit):
    """Filling a budget from all that was found, or the removal of near-duplicates by a ceiling, is no small pool."""
    rows = np.repeat(np.eye(4, dtype=np.float32), 2, axis=0)
    options = {
        "budget": {"costs": np.full(8, 10), "budget": 30.0},
        "max_similarity": {"max_similarity": 0.9},
        "max_per_group": {"groups": np.arange(8) // 2, "max_per_group": 1},
    }[limit]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = METHODS[method](np.ones((1, 4), np.float32), rows, 8, backend=backend, **options)
    assert found.lengths[0] < 8


def told(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    return found, [str(each.message) for each in caught if each.category is rk.PoolSizeWarning]


def test_rules_that_end_by_themselves_are_no_reordering():
    query, rows = f32(1, 4), f32(6, 4)
    for call in (
        lambda: rk.dpp(query, rows, 6),  # after D picks
        lambda: rk.sift(query, rows, 6, min_gain=0.5),
        lambda: rk.gist(query, rows, 6),
        lambda: rk.dpp(similarity=rows[None] @ rows.T, relevance=f32(1, 6), k=6),
    ):
        found, said = told(call)
        assert said == []
        assert found.lengths[0] < 6
    for call in (
        lambda: rk.dpp(query, rows[:4], 4), lambda: rk.sift(query, rows, 6), lambda: rk.ssd(query, rows, 6),
        lambda: rk.msd(query, rows, 6), lambda: rk.coverage(query, rows, 6), lambda: rk.mmr_path(query, rows, 6),
    ):  # fmt: skip
        assert len(told(call)[1]) == 1
    assert told(lambda: rk.mmr_path(query, rows, 6, max_similarity=0.5))[1] == []


def small_pools():
    """Calls of two queries over eight rows that pick all they may pick, with what the warning says of the pool."""
    query, rows = f32(2, 4), f32(8, 4)
    padded = np.array([[5, 2, -1, -1, -1], [1, 3, 7, -1, -1]])
    among = np.array([[5, 2, 0, 1, 3], [1, 3, 7, 4, 2]])
    groups = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    of_pool, of_rows = "use a larger pool or a smaller k", "use a smaller k"
    picked = " what of it may be picked; "
    return query, rows, [
        ("behind", 3, " it; " + of_pool, {"k": 3, "candidates": padded}),
        ("before", 3, " it; " + of_pool, {"k": 3, "candidates": padded[:, ::-1]}),
        ("between", 2, " it; " + of_pool, {"k": 2, "candidates": np.array([[5, -1, 2], [1, -1, 3]])}),
        ("below k", 3, " it; " + of_pool, {"k": 4, "candidates": padded}),
        ("mask", 3, picked + of_rows, {"k": 3, "allowed": np.arange(8) < 3}),
        ("lists", 2, picked + of_rows, {"k": 2, "allowed": np.array([[1, 2], [4, 5]])}),
        ("masks", 4, picked + of_rows, {"k": 4, "allowed": np.arange(8) // 4 == np.arange(2)[:, None]}),
        ("among", 2, picked + of_pool, {"k": 3, "candidates": among, "allowed": np.array([[5, 2], [1, 3]])}),
        ("excluded", 3, picked + of_pool, {"k": 3, "candidates": among, "exclude": np.array([[5, 2], [1, 3]])}),
        ("shown", 2, picked + of_rows, {"k": 2, "initial": np.array([[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7]])}),
        ("group", 2, picked + of_rows, {"k": 2, "groups": groups, "query_groups": np.zeros(2, int)}),
        ("budget", 8, " it; " + of_rows, {"k": 8, "costs": np.ones(8), "budget": 8.0}),
        ("ceiling", 8, " it; " + of_rows, {"k": 8, "max_similarity": 1.0}),
        ("cap", 8, " it; " + of_rows, {"k": 8, "groups": groups, "max_per_group": 6}),
    ]  # fmt: skip


@pytest.mark.parametrize("at", range(14))
def test_a_pool_that_is_picked_whole_is_warned_of_whatever_made_it_small(backend, at):
    query, rows, cases = small_pools()
    _, pool, advice, call = cases[at]
    k = call.pop("k")
    found, said = told(lambda: rk.mmr(query, rows, k, backend=backend, **call))
    number = len(call["candidates"][0]) if "candidates" in call and k >= len(call["candidates"][0]) else pool
    assert said == [f"mmr: the pool of {number} is no larger than k = {k}, so that the selection only reorders{advice}"]
    # Once a query may pick one more item, or leaves one, there was a choice.
    assert told(lambda: rk.mmr(query, rows, int(found.lengths.max()) - 1, backend=backend, **call))[1] == []


def test_one_query_with_a_choice_is_enough_not_to_warn(backend):
    query, rows = f32(2, 4), f32(8, 4)

    def said(k, **call):
        return told(lambda: rk.mmr(query, rows, k, backend=backend, **call))[1]

    for lists in ([[5, 2, -1, -1], [1, 3, 7, 4]], [[5, 2, 1, 0], [1, -1, -1, -1]], [[5, -1, 3, 2], [1, -1, -1, 0]]):
        assert said(2, candidates=np.array(lists)) == []
    assert said(8, costs=np.ones(8), budget=np.array([8.0, 7.0])) == []
    # Nor is nothing an order.
    for k in (1, 3, 5):
        assert said(k, candidates=np.full((2, 3), -1)) == []
    # A query without an answer says nothing of the others.
    assert len(said(2, candidates=np.array([[5, 2, -1], [1, 99, 3]]), on_error="skip")) == 1


def test_small_pools_of_a_corpus_and_of_a_path():
    rows, query = f32(40, 4), f32(2, 4)
    corpus = rk.Corpus(rows).delete(np.arange(20))
    some, padded = np.array([1, 21, 22, 23]), np.array([[21, 22, 23, -1]] * 2)
    for k, warns in ((3, 1), (2, 0)):
        for pool in (10, None):
            assert len(told(lambda k=k, pool=pool: corpus.select(query, k, pool=pool, allowed=some))[1]) == warns
        assert len(told(lambda k=k: rk.mmr_path(query, rows, k, candidates=padded))[1]) == warns
    assert len(told(lambda: rk.mmr_path(query, np.eye(4, dtype=np.float32), 4, max_similarity=0.5))[1]) == 1


def test_what_may_not_be_picked_is_not_reordered():
    """The rule orders the others all the same."""
    query, rows = f32(2, 4), f32(6, 4)
    for filtered in (
        {"exclude": np.array([1])}, {"allowed": np.arange(5)}, {"initial": np.array([[1], [2]])},
        {"groups": np.arange(6), "query_groups": np.array([1, 2])},
    ):  # fmt: skip
        found, said = told(lambda filtered=filtered: rk.mmr(query, rows, 6, **filtered))
        assert found.lengths.tolist() == [5, 5]
        assert said == [
            "mmr: the pool of 6 is no larger than k = 6, so that the selection only reorders what of it may be picked; "
            "use a smaller k"
        ]


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

    monkeypatch.setattr(validate, "problem_of", none)
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


def test_a_problem_of_arguments_that_none_has_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'lamda_d'"):
        validate.selection("mmr", f32(3, 4), f32(12, 4), 2, lamda_d=0.5)


def test_a_matrix_is_an_array():
    """`np.matrix`, whose rows and reductions have two axes."""
    rows = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    pools = np.random.default_rng(1).permuted(np.tile(np.arange(9), (2, 1)), axis=1)[:, :5]
    given = {"queries": rows[:2], "candidates": pools, "relevance": np.float32([[1, 2, 3, 4, 5]] * 2) / 1000}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rk.RelevanceRangeWarning)
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # of NumPy
        expected = rk.mmr(embeddings=rows, k=2, **given)
        for name, array in given.items():
            found = rk.mmr(embeddings=rows, k=2, **{**given, name: np.matrix(array)})
            np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_array_equal(rk.mmr(embeddings=np.matrix(rows), k=2, **given).scores, expected.scores)
