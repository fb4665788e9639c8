"""``on_error="skip"``: each bad query of a batch is named with its reason, and the others keep their bits."""

import copy
import pickle

import numpy as np
import pytest
from selection_calls import METHODS, methods

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.selection import cpu, skip, validate

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

Q, P, K, D = 9, 12, 4, 6
BEYOND = "queries and embeddings must have products within the range of float32, got one beyond it; rescale them"


def pools(**options):
    """Pools by id, each query with rows of its own, so that a bad row is one query's alone."""
    problem = testing.selection_problem(Q, P, K, D, **options)
    if "candidates" in problem:
        problem["embeddings"] = np.random.default_rng(1).standard_normal((Q * P, D)).astype(np.float32)
        problem["candidates"] = np.arange(Q * P).reshape(Q, P)
    return problem


ROWS = f"must be -1 or rows of the corpus, below N = {Q * P}, got"
# An argument, what it holds where it is not that of `pools`, where query q has a bad value, the value, what is said.
BAD = [
    ("queries", None, lambda q: (q, 2), np.nan, "queries must be finite, got NaN or inf"),
    ("queries", None, lambda q: (q, 0), -np.inf, "queries must be finite, got NaN or inf"),
    ("candidates", None, lambda q: (q, 3), 9999, f"candidates {ROWS} 9999"),
    ("candidates", None, lambda q: (q, [3, 5]), 7, "candidates must not repeat an id within a query, got 7 twice"),
    ("initial", np.full((Q, 1), -1), lambda q: (q, 0), -7, f"initial {ROWS} -7"),
    ("k", np.full(Q, K), lambda q: q, 0, "k must be at least 1, got 0"),
    (
        "relevance", np.ones((Q, P), np.float32), lambda q: (q, 7), np.nan,
        "relevance must be finite, got NaN or inf at position 7",
    ),
    (
        "embeddings", None, lambda q: (q * P + 4, 1), np.nan,
        "embeddings must be finite, got NaN or inf in row {row}",
    ),
    (
        "embeddings", None, lambda q: q * P + 4, 1e30,
        "embeddings must have row norms of 0 or within [1e-15, 1e+15], got 2.44949e+30 in row {row}; rescale them",
    ),
    ("lambda_d", np.full(Q, 0.5), lambda q: q, 1.5, "lambda_d must be within [0, 1], got 1.5"),
    ("lambda_b", np.full(Q, 0.5), lambda q: q, np.nan, "lambda_b must be within [0, 1], got nan"),
    ("bias", np.zeros((Q, P)), lambda q: (q, 2), np.inf, "bias must be finite, got NaN or inf at position 2"),
]  # fmt: skip
CASES = [
    pytest.param(method, *case, id=f"{method}-{case[0]}-{case[3]}")
    for case in BAD
    for method in METHODS
    if method == "mmr" or case[0] not in ("lambda_d", "lambda_b", "bias")
]


def check(found, expected, reasons):
    assert found.errors == reasons
    assert list(found.errors) == sorted(reasons)
    good = np.setdiff1d(np.arange(len(expected[0])), list(reasons))
    for name, x, y in zip(expected._fields, found, expected, strict=True):
        if good.size:  # K is the largest k of those that can be
            np.testing.assert_array_equal(np.asarray(x)[good], np.asarray(y)[good], err_msg=name)
    bad = sorted(reasons)
    padding = rk.Selection.empty(len(bad), found[0].shape[1])
    for name, x, y in zip(expected._fields, found, padding, strict=False):
        np.testing.assert_array_equal(np.asarray(x)[bad], y, err_msg=name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bad", [(4,), (0, 5, 8), tuple(range(Q))], ids=["one", "some", "all"])
@pytest.mark.parametrize(("method", "name", "values", "at", "value", "reason"), CASES)
def test_bad_queries_are_named_and_the_others_answered(backend, method, name, values, at, value, reason, bad):
    problem = pools() if values is None else pools() | {name: values}
    expected = METHODS[method](**problem, backend=backend)
    assert expected.errors is None
    spoiled = copy.deepcopy(problem)
    for q in bad:
        spoiled[name][at(q)] = value
    with pytest.raises(ValueError, match=f"^{method}: "):
        METHODS[method](**spoiled, backend=backend)
    reasons = {q: f"{method}: {reason.format(row=q * P + 4)}" for q in bad}
    check(METHODS[method](**spoiled, backend=backend, on_error="skip"), expected, reasons)


# Values of a rule alone: its call, the shape of the array, a bad value, where it is, and what is said of it.
OF_RULES = {
    "quality": (rk.dpp, (Q, P), -2.0, (5,), "quality must be finite and above 0, got -2"),
    "quality_nan": (rk.dpp, (Q, P), np.nan, (0,), "quality must be finite and above 0, got nan"),
    "aspects": (rk.coverage, (Q, 3, D), np.inf, (1, 2), "aspects must be finite, got NaN or inf"),
    "weights": (rk.coverage, (Q, 3), -1.0, (2,), "weights must be finite and at least 0, got -1"),
}


@pytest.mark.parametrize("bad", [(4,), (0, 5, 8), tuple(range(Q))], ids=["one", "some", "all"])
@pytest.mark.parametrize("case", OF_RULES)
def test_bad_values_of_a_rule_alone(backend, case, bad):
    call, shape, value, at, reason = OF_RULES[case]
    name = case.partition("_")[0]
    problem = pools() | {name: np.random.default_rng(3).uniform(0.5, 2, shape).astype(np.float32)}
    if name == "weights":
        problem["aspects"] = np.random.default_rng(4).standard_normal((Q, 3, D)).astype(np.float32)
    expected = call(**problem, backend=backend)
    for q in bad:
        problem[name][(q, *at)] = value
    before = problem[name].copy()
    with pytest.raises(ValueError, match=f"^{call.__name__}: {reason} in row {bad[0]}, position {at[0]}$"):
        call(**problem, backend=backend)
    found = call(**problem, backend=backend, on_error="skip")
    check(found, expected, dict.fromkeys(bad, f"{call.__name__}: {reason} at position {at[0]}"))
    np.testing.assert_array_equal(problem[name], before)


@pytest.mark.parametrize("bad", [(4,), (0, 5, 8), tuple(range(Q))], ids=["one", "some", "all"])
def test_weights_of_adagres_of_the_other_queries(backend, bad):
    problem = pools() | {"lambda_d": "adagres", "costs": np.ones(Q * P), "budget": 5.0}
    expected = rk.msd(**problem, backend=backend)
    for q in bad:
        problem["queries"][q, 1] = np.nan
    found = rk.msd(**problem, backend=backend, on_error="skip")
    check(found, expected, dict.fromkeys(bad, "msd: queries must be finite, got NaN or inf"))
    good = np.setdiff1d(np.arange(Q), bad)
    np.testing.assert_array_equal(found.lambda_d[good], expected.lambda_d[good])
    with pytest.raises(ValueError, match=f"^msd: queries must be finite, got NaN or inf in row {bad[0]}$"):
        rk.msd(**problem, backend=backend)


def test_products_beyond_float32_are_found_query_by_query(backend):
    problem = pools() | {"metric": "dot"}
    expected = rk.mmr(**problem, backend=backend)
    for bad in ((3,), (0, 1, 7)):
        spoiled = copy.deepcopy(problem)
        for q in bad:
            spoiled["queries"][q] = spoiled["embeddings"][spoiled["candidates"][q]] = 1e25
        spoiled["queries"][5] = np.nan
        reasons = {**dict.fromkeys(bad, f"mmr: {BEYOND}"), 5: "mmr: queries must be finite, got NaN or inf"}
        check(rk.mmr(**spoiled, backend=backend, on_error="skip"), expected, reasons)


def test_the_only_query_that_can_be_answered_keeps_its_row(backend):
    """The halves that fail leave one part, which is no answer to all queries."""
    rows = np.full((6, 4), 1e30, np.float32)
    candidates = np.array([[0, 1], [-1, -1], [2, 3]])  # nothing to pick is no product
    picks = rk.mmr(np.ones((3, 4), np.float32), rk.Corpus(rows, metric="dot"), 2, candidates=candidates,
                   backend=backend, on_error="skip", check_values=True)  # fmt: skip
    assert picks.indices.shape == (3, 2)
    assert picks.lengths.tolist() == [0, 0, 0]


@methods
def test_dense_pools(backend, method):
    problem = pools(dense=True, groups=True)
    expected = METHODS[method](**problem, backend=backend)
    spoiled = copy.deepcopy(problem)
    spoiled["embeddings"][2, 7, 0] = np.nan
    spoiled["queries"][6, 0] = np.inf
    reasons = {
        2: f"{method}: embeddings must be finite, got NaN or inf at position 7",
        6: f"{method}: queries must be finite, got NaN or inf",
    }
    check(METHODS[method](**spoiled, backend=backend, on_error="skip"), expected, reasons)


@methods
@pytest.mark.parametrize("rows", [300, 3000])
@pytest.mark.parametrize("kept", [False, True], ids=["array", "corpus"])
def test_whole_corpora(compiled, method, rows, kept):
    rng = np.random.default_rng(3)
    embeddings = rng.standard_normal((rows, 24)).astype(np.float32)
    queries = rng.standard_normal((300, 24)).astype(np.float32)
    corpus = rk.Corpus(embeddings) if kept else embeddings
    expected = METHODS[method](queries, corpus, 5)
    queries[[0, 17, 299], 3] = np.nan
    reasons = dict.fromkeys((0, 17, 299), f"{method}: queries must be finite, got NaN or inf")
    check(METHODS[method](queries, corpus, 5, on_error="skip"), expected, reasons)
    if not kept:  # a row that all read is no query's fault
        embeddings[7, 2] = np.inf
        with pytest.raises(ValueError, match=f"^{method}: embeddings must be finite, got NaN or inf in row 7$"):
            METHODS[method](queries, embeddings, 5, on_error="skip")


@methods
@pytest.mark.parametrize("pool", [20, None])
def test_search_and_select(backend, method, pool):
    rng = np.random.default_rng(4)
    corpus = rk.Corpus(rng.standard_normal((60, D)).astype(np.float32), groups=np.arange(60) % 5)
    queries = rng.standard_normal((Q, D)).astype(np.float32)
    options = {"query_groups": np.arange(Q) % 5, "initial": np.arange(Q)[:, None], "k": np.full(Q, 3)}
    expected = corpus.select(queries, method=method, pool=pool, backend=backend, **options)
    nearest = corpus.search(queries, 7, backend=backend)
    assert expected.errors is nearest.errors is None
    queries[3] = np.inf
    options["initial"][5] = 60
    options["k"][7] = -2
    reasons = {
        3: f"{'select' if pool else method}: queries must be finite, got NaN or inf",
        5: f"{method}: initial must be -1 or rows of the corpus, below N = 60, got 60",
        7: f"{method}: k must be at least 1, got -2",
    }
    check(
        corpus.select(queries, method=method, pool=pool, backend=backend, on_error="skip", **options), expected, reasons
    )
    found = corpus.search(queries, 7, backend=backend, on_error="skip")
    check(found, nearest, {3: "search: queries must be finite, got NaN or inf"})
    indices, scores = found
    assert indices is found.indices
    assert scores is found.scores


@methods
def test_tensors(backend, method):
    torch = pytest.importorskip("torch")
    problem = pools()
    expected = METHODS[method](**problem, backend=backend)
    problem["queries"][2, 0] = np.nan
    problem = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in problem.items()}
    found = METHODS[method](**problem, backend=backend, on_error="skip")
    assert all(isinstance(field, torch.Tensor) for field in found)
    check(found, expected, {2: f"{method}: queries must be finite, got NaN or inf"})


def test_arrays_on_a_device(place):
    """Values are looked at where that is asked for, whole arrays at a time."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    problem = pools() | {"bias": np.zeros((Q, P), np.float32), "initial": np.tile([1, -1], (Q, 1)) + Q * P - P}
    problem["queries"][2, 0] = np.nan
    problem["bias"][3, 7] = -np.inf
    problem["initial"][4] = problem["initial"][4, 0]
    problem["candidates"][5, 1] = -5
    problem["candidates"][6, 1] = 9999
    problem["candidates"][7, 1] = problem["candidates"][7, 9]
    relevant = {**problem, "queries": None, "relevance": np.ones((Q, P), np.float32)}
    relevant["relevance"][0, 2] = np.inf
    expected = {
        3: "bias must be finite, got NaN or inf at position 7",
        4: f"initial must not repeat an id within a query, got {problem['initial'][4, 0]} twice",
        5: f"candidates {ROWS} -5",
        6: f"candidates {ROWS} 9999",
        7: f"candidates must not repeat an id within a query, got {problem['candidates'][7, 9]} twice",
    }
    of_query = {2: "queries must be finite, got NaN or inf"}
    of_relevance = {0: "relevance must be finite, got NaN or inf at position 2"}
    for given, more in ((problem, of_query), (relevant, of_relevance)):
        tensors = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
        checked, errors, answers = validate.selection("mmr", **tensors, place=place), {}, []

        def answer(part, answers=answers):
            answers.append(part.lambda_d)
            return tuple(place.upload(field) + 0 for field in rk.Selection.empty(part.num_queries, K))

        skip.answered(checked, answer, rk.Selection.empty(Q, K), errors, place, check=True)
        assert errors == {q: f"mmr: {reason}" for q, reason in (expected | more).items()}
        assert [len(part) for part in answers] == [Q - 6]


@pytest.mark.parametrize("shared", [False, True], ids=["pools", "corpus"])
def test_a_value_that_is_not_read_does_no_harm_beside_one_that_is(compiled, shared):
    """MMR with given relevance does not read the rows that it can rule out."""
    rng, size = np.random.default_rng(5), 40
    embeddings = rng.standard_normal((Q * size, D)).astype(np.float32)
    embeddings[::size] = np.nan
    candidates = None if shared else np.arange(Q * size).reshape(Q, size)
    relevance = rng.random((Q, Q * size if shared else size)).astype(np.float32)
    relevance[:, ::size] = 0  # never read
    relevance[3, 0] = relevance[8, 0] = 5  # the best, but NaN

    def select(queries):
        own = None if shared else candidates[queries]
        return rk.mmr(None, embeddings, 2, candidates=own, relevance=relevance[queries], lambda_d=0.9, on_error="skip")

    found, alone = select(np.arange(Q)), [select([q]) for q in range(Q)]
    assert sorted(found.errors) == [3, 8]
    for q, each in enumerate(alone):
        assert each.errors.get(0) == found.errors.get(q)
        for whole, own in zip(found, each, strict=True):
            np.testing.assert_array_equal(whole[q : q + 1], own)


def test_no_bad_query_costs_one_run(monkeypatch, compiled):
    runs = []
    monkeypatch.setattr(cpu, "mmr", lambda *a, function=cpu.mmr: runs.append(a) or function(*a))
    found = rk.mmr(**pools(), on_error="skip", backend="cpu")
    assert found.errors == {}
    assert len(runs) == 1


@pytest.mark.parametrize("queries", [0, 3])
def test_what_is_wrong_with_the_whole_call_is_raised(backend, queries):
    problem = pools()
    problem.update(queries=problem["queries"][:queries], candidates=problem["candidates"][:queries])
    for changes in ({"k": 0}, {"metric": "l2"}, {"lambda_d": 2}, {"bias": np.ones(3, np.float32)}):
        with pytest.raises(ValueError, match=r"^mmr: "):
            rk.mmr(**{**problem, **changes}, backend=backend, on_error="skip")
    assert rk.mmr(**problem, backend=backend, on_error="skip").errors == {}
    with pytest.raises(ValueError, match=r"^mmr: on_error must be one of 'raise', 'skip', got 'ignore'$"):
        rk.mmr(**problem, backend=backend, on_error="ignore")


def test_errors_stay_with_a_result():
    """Five fields are unpacked as ever; what a tuple's own means of copying give has the errors too."""
    problem = pools()
    problem["queries"][1] = np.nan
    found = rk.mmr(**problem, on_error="skip")
    *_, lengths = found
    assert len(found) == 5
    assert isinstance(found, tuple)
    assert lengths[1] == 0
    for other in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found)), found._replace(scores=0)):
        assert other.errors == found.errors == {1: "mmr: queries must be finite, got NaN or inf"}
        assert type(other) is rk.Selection
    assert rk.Selection.empty(1, 1).errors is None
    rows = rk.SearchResult(found.indices, found.scores).with_errors(found.errors)
    assert pickle.loads(pickle.dumps(rows)).errors == found.errors


def test_an_id_out_of_range_beside_queries_that_pick_all_of_their_pools():
    """Whose pools are looked at for the warning; that of the bad query is not."""
    rows = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    with pytest.warns(rk.PoolSizeWarning):
        found = rk.mmr(
            rows[:2], rows, 3, candidates=np.array([[1, 2, 3], [2**31, 5, 6]]), groups=np.arange(9) % 5,
            query_groups=np.array([7, 0]), on_error="skip",
        )  # fmt: skip
    assert list(found.errors) == [1]
    assert found.lengths.tolist() == [3, 0]
