"""Properties of all rules, of budgets and of ceilings, tried on problems that Hypothesis makes up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_calls import same

import ragsys_kernels as rk
from ragsys_kernels import testing

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

# With a window of its own, as that of all picks is as long as there are to be picks.
RULES = {
    "mmr": ("mmr", {}), "vrsd": ("vrsd", {}), "msd": ("msd", {}), "dpp": ("dpp", {}), "ssd": ("ssd", {"window": 3}),
    "sift": ("sift", {"noise": 0.2}), "facility": ("coverage", {}), "cover": ("coverage", {"kind": "cover"}),
    "xquad": ("coverage", {"kind": "xquad"}),
}  # fmt: skip
few = settings(max_examples=12)
rules = pytest.mark.parametrize("rule", RULES)


@st.composite
def problems(draw, kinds=("random", "clustered", "duplicates")):
    pool = draw(st.integers(2, 30))
    return testing.selection_problem(
        draw(st.integers(1, 3)), pool, draw(st.integers(1, min(pool, 9))), draw(st.integers(2, 24)),
        kind=draw(st.sampled_from(kinds)), seed=draw(st.integers(0, 2**32 - 1)),
    )  # fmt: skip


def run(rule, problem, backend, **changes):
    """Return the picks, and the problem as the rule takes it."""
    method, options = RULES[rule]
    given = {**problem, **options, **changes}
    if "lambda_d" not in rk.METHODS[method].parameters:
        given = {name: value for name, value in given.items() if name not in ("lambda_d", "lambda_b", "bias")}
    return getattr(rk, method)(**given, backend=backend), given


def check(rule, picks, problem):
    testing.check_selection(RULES[rule][0], problem, picks)


@rules
@few
@given(problem=problems(), data=st.data())
def test_first_picks_of_more_are_the_picks_of_fewer(backend, rule, problem, data):
    fewer = data.draw(st.integers(1, problem["k"]))
    (more, _), (less, _) = run(rule, problem, backend), run(rule, problem, backend, k=fewer)
    for one, other in zip(more[:4], less[:4], strict=True):
        np.testing.assert_array_equal(one[:, :fewer], other)


@rules
@few
@given(problem=problems(), data=st.data())
def test_the_order_of_the_pool_decides_only_ties(backend, rule, problem, data):
    order = np.array(data.draw(st.permutations(range(problem["candidates"].shape[1]))))
    before, _ = run(rule, problem, backend)
    after, changed = run(rule, problem, backend, candidates=np.ascontiguousarray(problem["candidates"][:, order]))
    check(rule, after, changed)
    np.testing.assert_array_equal(before.lengths, after.lengths)
    np.testing.assert_allclose(before.scores[:, 0], after.scores[:, 0], rtol=1e-4, atol=1e-5)
    rows = problem["embeddings"]
    if rule in ("mmr", "vrsd") and len(np.unique(rows, axis=0)) == len(rows):  # without sums over the pool
        same(before, after)


@pytest.mark.parametrize("rule", ["msd", "facility", "cover", "xquad"])
@few
@given(problem=problems())
def test_lambda_d_one_is_top_k(backend, rule, problem):
    picks, _ = run(rule, problem, backend, lambda_d=1.0)
    best, _ = run("mmr", problem, backend, lambda_d=1.0)
    for name in ("indices", "scores", "relevance", "lengths"):
        np.testing.assert_array_equal(getattr(picks, name), getattr(best, name))


@few
@given(problem=problems(kinds=("random", "clustered")))
def test_lambda_d_one_of_ssd_goes_by_relevance(backend, problem):
    picks, _ = run("ssd", problem, backend, lambda_d=1.0)
    assert (np.diff(picks.relevance, axis=1) <= 1e-6).all()


@pytest.mark.parametrize("rule", ["dpp", "facility", "cover", "xquad"])
@few
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_lambda_d_zero_does_not_look_at_the_query(backend, rule, problem, seed):
    other = np.random.default_rng(seed).standard_normal(problem["queries"].shape).astype(np.float32)
    picks, _ = run(rule, problem, backend, lambda_d=0.0)
    again, _ = run(rule, problem, backend, lambda_d=0.0, queries=other)
    np.testing.assert_array_equal(picks.indices, again.indices)


@few
@given(problem=problems())
def test_lambda_d_zero_of_msd_is_the_sum_of_distances(backend, problem):
    picks, _ = run("msd", problem, backend, lambda_d=0.0)
    rows = problem["embeddings"].astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for chosen, scores in zip(picks.indices, picks.scores, strict=True):
        distances = 1 - rows[chosen] @ rows[chosen].T
        expected = [distances[step, :step].sum() for step in range(len(chosen))]
        np.testing.assert_allclose(scores, expected, atol=1e-4)


@rules
@few
@given(problem=problems(), seed=st.integers(0, 2**32 - 1), budgets=st.tuples(st.floats(0, 9), st.floats(0, 9)))
def test_a_smaller_budget_changes_nothing_that_fits_in_it(backend, rule, problem, seed, budgets):
    """As long as what the larger one picks fits in the smaller one, that picks the same."""
    costs = np.random.default_rng(seed).uniform(0, 3, len(problem["embeddings"]))
    small, large = sorted(budgets)
    less, given = run(rule, problem, backend, costs=costs, budget=small)
    check(rule, less, given)
    more, _ = run(rule, problem, backend, costs=costs, budget=large)
    for q in range(len(less.indices)):
        spent = np.cumsum(costs[more.indices[q, : more.lengths[q]]])
        same = int((spent <= small).sum())
        np.testing.assert_array_equal(less.indices[q, :same], more.indices[q, :same])
        np.testing.assert_array_equal(less.scores[q, :same], more.scores[q, :same])
        assert less.cost[q] <= small
    endless, _ = run(rule, problem, backend, costs=costs, budget=np.inf)
    for one, other in zip(run(rule, problem, backend)[0], endless, strict=True):
        np.testing.assert_array_equal(one, other)


@rules
@few
@given(problem=problems(), ceilings=st.tuples(st.floats(-1, 1, width=32), st.floats(-1, 1, width=32)))
def test_a_lower_ceiling_changes_nothing_that_is_below_it(backend, rule, problem, ceilings):
    low, high = sorted(ceilings)
    below, given = run(rule, problem, backend, max_similarity=low)
    check(rule, below, given)
    above, _ = run(rule, problem, backend, max_similarity=high)
    rows = problem["embeddings"].astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for q in range(len(below.indices)):
        chosen = above.indices[q, : above.lengths[q]]
        nearest = [(rows[chosen[:step]] @ rows[row]).max(initial=-1) for step, row in enumerate(chosen)]
        same = next((step for step, near in enumerate(nearest) if near > low - 1e-5), len(chosen))
        same = max(same, min(len(chosen), 1))  # nothing is above a ceiling before the first pick
        np.testing.assert_array_equal(below.indices[q, :same], chosen[:same])


@few
@given(problem=problems(), rate=st.floats(0.01, 10))
def test_costs_that_are_all_one_are_a_smaller_k(backend, problem, rate):
    picks, _ = run("mmr", problem, backend, costs=np.full(len(problem["embeddings"]), rate), budget=2.5 * rate)
    fewer, _ = run("mmr", problem, backend, k=min(2, problem["k"]))
    np.testing.assert_array_equal(picks.indices[:, : fewer.indices.shape[1]], fewer.indices)
    assert (picks.lengths == fewer.lengths).all()
