"""Properties of all rules and of budgets, tried on problems that Hypothesis makes up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_calls import for_method, same

import ragsys_kernels as rk
from ragsys_kernels import testing

pytestmark = [pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning"), pytest.mark.sampled(3)]

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
    given = for_method(method, {**problem, **options, **changes})
    return getattr(rk, method)(**given, backend=backend), given


@rules
@few
@given(problem=problems(), data=st.data())
def test_the_order_of_the_pool_decides_only_ties(backend, rule, problem, data):
    order = np.array(data.draw(st.permutations(range(problem["candidates"].shape[1]))))
    before, _ = run(rule, problem, backend)
    after, changed = run(rule, problem, backend, candidates=np.ascontiguousarray(problem["candidates"][:, order]))
    testing.check_selection(RULES[rule][0], changed, after)
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


@pytest.mark.parametrize("rule", ["dpp", "facility", "cover", "xquad"])
@few
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_lambda_d_zero_does_not_look_at_the_query(backend, rule, problem, seed):
    other = np.random.default_rng(seed).standard_normal(problem["queries"].shape).astype(np.float32)
    picks, _ = run(rule, problem, backend, lambda_d=0.0)
    again, _ = run(rule, problem, backend, lambda_d=0.0, queries=other)
    np.testing.assert_array_equal(picks.indices, again.indices)


@few
@given(problem=problems(), rate=st.floats(0.01, 10))
def test_costs_that_are_all_one_are_a_smaller_k(backend, problem, rate):
    picks, _ = run("mmr", problem, backend, costs=np.full(len(problem["embeddings"]), rate), budget=2.5 * rate)
    fewer, _ = run("mmr", problem, backend, k=min(2, problem["k"]))
    np.testing.assert_array_equal(picks.indices[:, : fewer.indices.shape[1]], fewer.indices)
    assert (picks.lengths == fewer.lengths).all()
    endless, _ = run("mmr", problem, backend, costs=np.full(len(problem["embeddings"]), rate), budget=np.inf)
    same(endless, run("mmr", problem, backend)[0])
