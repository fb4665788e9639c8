"""Rules and constraints: the reference against the float64 replay, and by hand."""

import numpy as np
import pytest
from rule_problems import OPTIONS, SHAPES, problem_of
from selection_calls import same

import ragsys_kernels as rk
from ragsys_kernels import testing


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", OPTIONS)
def test_picks_are_those_of_the_replay(rule, shape):
    """The compiled kernels' are asked in test_rule_kernels.py."""
    for seed in range(2):
        method, problem = problem_of(rule, shape, seed, initial=seed == 1)
        found = run(method, problem)
        testing.check_selection(method, problem, found)
        if "max_similarity" not in problem and "until" not in rule and shape != "one item":
            assert (found.lengths > 0).all()


def run(method, problem):
    return getattr(rk, method)(**problem, backend="reference")


@pytest.mark.parametrize("rule", OPTIONS)
def test_a_wrong_pick_or_score_is_seen(rule):
    method, problem = problem_of(rule, "plain")
    found = run(method, problem)
    testing.check_selection(method, problem, found)
    for change in ("first and last", "score", "cut"):
        wrong = type(found)(*(np.array(field) for field in found))
        if change == "first and last":
            wrong.indices[1, [0, found.lengths[1] - 1]] = wrong.indices[1, [found.lengths[1] - 1, 0]]
            if found.lengths[1] < 2:
                continue
        elif change == "score":
            wrong.scores[2, 0] += 1e-2
        else:
            last = found.lengths[3] - 1
            wrong.indices[3, last], wrong.scores[3, last], wrong.lengths[3] = -1, -np.inf, last
            wrong.relevance[3, last] = wrong.redundancy[3, last] = np.nan
        with pytest.raises(AssertionError, match="query"):
            testing.check_selection(method, problem, wrong)


@pytest.mark.parametrize("rule", OPTIONS)
def test_equal_items_go_by_position(rule):
    """Every item twice, one after the other: the first of both is picked before the second."""
    method, problem = problem_of(rule, "plain")
    rows = np.repeat(problem["embeddings"], 2, axis=0)
    twice = np.stack([2 * problem["candidates"], 2 * problem["candidates"] + 1], 2).reshape(4, -1)
    given = {**problem, "embeddings": rows, "candidates": twice}
    for name in ("quality", "costs"):
        if name in given:
            given[name] = np.repeat(given[name], 2)
    found = run(method, given)
    for q, picks in enumerate(found.indices):
        made = picks[: found.lengths[q]].tolist()
        assert all(item - 1 in made[: made.index(item)] for item in made if item % 2)


@pytest.mark.parametrize(
    ("limits", "picks", "without"),
    [
        ({}, [0, 4, 8, 1, 5, 9, 2, 6], 3),
        ({"initial": [[3, -1, 11]]}, [4, 0, 8, 5, 1, 9, 6, 2], 1),
        # Four of the last group, as soon as they can be picked at all.
        ({"groups": np.repeat([0, 1, 2], 4), "min_per_group": {2: 4}}, [0, 8, 4, 1, 9], 3),
    ],
)
def test_dpp_goes_on_past_the_rank_in_a_window(backend, limits, picks, without):
    """Equal rows: of each direction the first that is left, once the one before has left the window."""
    rows = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    given = {"lambda_d": 0.0, "backend": backend, **limits}
    assert rk.dpp(rows[:1], rows, len(picks), **given).lengths.tolist() == [without]
    found = rk.dpp(rows[:1], rows, len(picks), window=2, **given)
    assert found.indices.tolist() == [picks]
    np.testing.assert_allclose(found.scores, 1)


@pytest.mark.parametrize("dims", [8, 50, 384])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_dpp_without_quality_begins_with_the_first_row(backend, dtype, dims):
    """All unit vectors enlarge the determinant by 1, however their lengths are rounded."""
    rows = np.random.default_rng(dims).standard_normal((2000, dims), np.float32)
    assert rk.Corpus(rows, dtype=dtype).subset(1, rule="dpp", backend=backend).indices.tolist() == [[0]]
    assert rk.dpp(rows[:1], rows, 1, lambda_d=0, backend=backend).indices.tolist() == [[0]]


def test_what_a_budget_does_by_hand():
    """The second best costs too much and is passed over; a budget of nothing leaves what is free."""
    rows = np.eye(4, dtype=np.float32)
    query = np.array([[4, 3, 2, 1]], np.float32)
    given = {"costs": [3, 9, 2, 0], "lambda_d": 1.0, "backend": "reference"}
    found = rk.mmr(query, rows, 3, budget=5, **given)
    assert found.indices.tolist() == [[0, 2, 3]]
    assert found.cost.tolist() == [5.0]
    found = rk.mmr(query, rows, 3, budget=0.0, **given)
    assert found.indices.tolist() == [[3, -1, -1]]
    assert found.lengths.tolist() == [1]


def test_items_of_a_corpus_cost_what_it_says():
    corpus = rk.Corpus(np.eye(4, dtype=np.float32), costs=[3, 9, 2, 0])
    found = rk.msd(np.array([[4, 3, 2, 1]], np.float32), corpus, 3, lambda_d=1.0, budget=[5])
    assert found.indices.tolist() == [[0, 2, 3]]
    assert rk.msd(np.array([[4, 3, 2, 1]], np.float32), corpus, 3).cost is None


@pytest.mark.parametrize("batch", [0, 3])
def test_what_a_batch_of_any_size_tells(backend, batch):
    """None too: whoever adds up what batches cost need not look whether one is empty."""
    queries, rows = np.eye(batch, 6, dtype=np.float32), np.eye(6, dtype=np.float32)
    found = rk.mmr(queries, rows, 3, costs=np.ones(6), budget=2.0, backend=backend)
    assert (found.cost.dtype, found.cost.tolist()) == (np.float64, [2.0] * batch)
    assert rk.mmr(queries, rows, 3, backend=backend).cost is None
    of_items = rk.mmr(queries, rows, 3, costs=np.ones((batch, 6)), budget=np.full(batch, 1.0), backend=backend)
    assert of_items.cost.tolist() == [1.0] * batch
    weighed = rk.msd(queries, rows, 3, lambda_d="adagres", costs=np.ones(6), budget=2.0, backend=backend)
    assert (weighed.lambda_d.dtype, weighed.lambda_d.shape) == (np.float32, (batch,))
    torch = pytest.importorskip("torch")
    found = rk.msd(torch.from_numpy(queries), rows, 3, lambda_d="adagres", costs=np.ones(6), budget=2.0)
    assert (found.cost.dtype, found.cost.shape) == (torch.float64, (batch,))
    assert (found.lambda_d.dtype, found.lambda_d.shape) == (torch.float32, (batch,))


@pytest.mark.parametrize(("cost", "budget", "fit"), [(0.1, 1.0, 10), (0.1, 0.7, 6), (3.0, 100.0, 33), (2.0, 5.0, 2)])
def test_how_many_items_adagres_takes_to_fit(cost, budget, fit):
    """floor(budget / mean cost), which `//` of floats is not; of 16 items, 33 may fit. 0.7 / 0.1 is below 7."""
    rng = np.random.default_rng(6)
    rows, query = rng.uniform(0, 1, (16, 5)), rng.uniform(0, 1, 5).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = np.mean([rows[i] @ rows[j] for i in range(16) for j in range(i)])
    beta = (rows @ query).mean() / np.linalg.norm(query) / ((fit - 1) / 2 * pairs)
    given = {"lambda_d": "adagres", "costs": np.full(16, cost), "budget": budget}
    found = rk.msd(query[None], rows.astype(np.float32), 5, **given)
    np.testing.assert_allclose(found.lambda_d, 1 / (1 + beta), rtol=1e-5)
    same(rk.msd(query[None], rows.astype(np.float32), 5, **given | {"lambda_d": found.lambda_d}), found)


@pytest.mark.parametrize("costs", [np.zeros(6), [1, 0, 0, 0, 0, 1]])
def test_adagres_weighs_nothing_where_nothing_is_to_be_weighed(costs):
    found = rk.msd(np.ones((1, 6)), np.eye(6, dtype=np.float32), 3, lambda_d="adagres", costs=costs, budget=0.0)
    assert found.lambda_d.tolist() == [1.0]


def test_a_single_item_takes_the_place_of_others_only_where_it_is_worth_more(backend):
    """Here the picks are worth what their first is: its copy adds nothing, and so no item is worth more."""
    rng = np.random.default_rng(7)
    pools = rng.standard_normal((300, 3, 8)).astype(np.float32)
    pools[:, 1] = pools[:, 0]
    queries = rng.standard_normal((300, 8)).astype(np.float32)
    given = {"aspects": pools[:, :1], "costs": np.ones((300, 3)), "budget": 10.0, "lambda_d": 0.0, "density": True}
    found = rk.coverage(queries, pools, 2, **given, backend=backend)
    np.testing.assert_array_equal(found.indices, np.tile([0, 1], (300, 1)))


@pytest.mark.parametrize("rule", OPTIONS)
def test_a_corpus_selects_by_every_rule(rule):
    """From retrieved pools: what the function of the rule picks from them."""
    method, problem = problem_of(rule, "budget")
    given = {name: value for name, value in problem.items() if name not in ("embeddings", "candidates", "k", "queries")}
    corpus = rk.Corpus(problem["embeddings"])
    found = corpus.select(problem["queries"], 5, method=method, pool=20, **given)
    pools = corpus.search(problem["queries"], 20).indices
    expected = getattr(rk, method)(problem["queries"], corpus, 5, candidates=pools, **given)
    same(found, expected)
    np.testing.assert_array_equal(found.cost, expected.cost)


def test_a_corpus_refuses_arguments_of_another_rule():
    corpus = rk.Corpus(np.eye(4, dtype=np.float32))
    for method, name, value in (("mmr", "scale", 2.0), ("sift", "lambda_d", 0.5), ("sift", "window", 2)):
        with pytest.raises(ValueError, match=f"^select: {name} must be left out with method '{method}', got {value}"):
            corpus.select(np.eye(4), 2, method=method, **{name: value})
