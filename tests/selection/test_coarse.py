"""4-bit codes, which bound VRSD and MSD with many picks out of many rows: they change no bit of any selection."""

import numpy as np
import pytest
from code_rows import BOOLEANS, SEEDS, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_calls import for_method, same

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, testing
from ragsys_kernels.selection import cpu

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
RULES = ("vrsd", "msd")
TYPES = ("float32", "float16", "bfloat16", "int8", None)


def check(rule, problem, bounds="coarse"):
    """The picks and numbers of the dense rule, bit for bit; the work."""
    problem = for_method(rule, problem)
    dense, _ = testing.selection_work(rule, problem, bounds="dense")
    found, work = testing.selection_work(rule, problem, bounds=bounds)
    same(found, dense)
    return work


@st.composite
def problems(draw):
    """Clusters and ties, zero, equal and opposite rows, rows of one large element or about one mean; all options."""
    rng = np.random.default_rng(draw(SEEDS))
    N, D = draw(st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 600]))), draw(st.integers(1, 70))
    centres = rng.standard_normal((draw(st.integers(1, 6)), D))
    rows = centres[rng.integers(0, len(centres), N)] * rng.choice(draw(st.sampled_from([(1,), (1, -1)])), (N, 1))
    rows += draw(st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 1, 10])) * rng.standard_normal((N, D))
    rows += draw(st.sampled_from([0, 0, 3])) * rng.standard_normal(D)
    if draw(BOOLEANS):
        rows[rng.random(N) < 0.1, 0] += 50
    if draw(BOOLEANS):
        rows = rows[rng.integers(0, N, N)]
    rows[rng.integers(0, N, draw(st.integers(0, 3)))] = 0
    rows, dtype = rows.astype(np.float32), draw(st.sampled_from(TYPES))
    problem = {
        "queries": np.stack([centres[0], rng.standard_normal(D)]).astype(np.float32),
        "embeddings": rows if dtype is None else rk.Corpus(rows, dtype=dtype),
        "k": draw(st.sampled_from([N, max(1, N // 2), min(N, 40)])),
        "lambda_d": rng.choice([0.0, 0.3, 0.7, 1.0], 2),
        "lambda_b": 0.5,
    }
    if draw(BOOLEANS):
        problem["relevance"] = np.round(rng.uniform(-1, 1, (2, N)), draw(st.integers(0, 7))).astype(np.float32)
        problem["relevance"] *= draw(st.sampled_from([0, 1, 1000]))
    if draw(BOOLEANS):
        problem["bias"] = rng.standard_normal(N).astype(np.float32)
    if draw(BOOLEANS):
        problem["initial"] = rng.integers(-1, N, (2, 1))
    if draw(BOOLEANS):
        problem |= {"groups": rng.integers(0, 1 + N // 4, N), "max_per_group": draw(st.integers(1, 4))}
    if draw(BOOLEANS):
        problem |= {"costs": rng.uniform(0, 1, N), "budget": np.array([0.2, 0.02]) * N}
    if draw(BOOLEANS):
        problem["allowed"] = rng.random(N) < 0.7
    if draw(BOOLEANS):
        problem["min_relevance"] = -0.1
    return problem


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_picks_are_those_of_the_dense_rule(isa, rule, problem):
    check(rule, problem)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_threads_that_share_a_query_change_nothing(isa, rule, problem):
    """Not its work either: what a thread finds in a block does not depend on the others."""
    checked = testing.checked_problem(rule, for_method(rule, problem))
    dense, _ = cpu.run(checked, 1, "dense")
    alone, work = cpu.run(checked, 1, "coarse", shared_items=64)
    same(alone, dense)
    for num_threads in (2, 3, 5):
        found, done = cpu.run(checked, num_threads, "coarse", shared_items=64)
        same(found, dense)
        assert done == work


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", [2, 6])
def test_rows_that_their_codes_hardly_tell_apart(isa, rule, seed):
    """Tight clusters in few dimensions, many to a block: bounds that are off by half a step leave out the best row."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((3, 3))
    rows = (centres[rng.integers(0, 3, 2_000)] + 0.1 * rng.standard_normal((2_000, 3))).astype(np.float32)
    check(rule, {"queries": normal(seed, 2, 3), "embeddings": rows, "k": 200, "lambda_d": np.array([0.0, 0.3])})


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["random", "clustered", "duplicates", "mean"])
def test_picks_are_those_of_exact_arithmetic(isa, rule, kind):
    problem = testing.selection_problem(2, 1, 60, 24, N=500, kind="random" if kind == "mean" else kind, seed=3)
    problem["embeddings"] = rk.Corpus(problem["embeddings"] + np.float32(kind == "mean"))
    del problem["candidates"]
    problem = for_method(rule, problem)
    found, _ = testing.selection_work(rule, problem, bounds="coarse")
    testing.check_selection(rule, problem, found)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["random", "mean", "relevance"])
def test_few_rows_meet_the_picks(compiled, rule, kind):
    """By default where there are many rows and picks, of an array too; few rows meet even the sum of the picks."""
    N, K = 4_200, 400
    rows = normal(1, N, 32) + np.float32(0.5 * (kind == "mean"))
    problem = {"embeddings": rows, "queries": normal(2, 1, 32) + rows[:1], "k": K, "lambda_d": 0.7}
    if kind == "relevance":
        problem["relevance"] = np.random.default_rng(3).uniform(0, 1, (1, N)).astype(np.float32)
    work = check(rule, problem, "automatic")
    if _dispatch.isa() == "base":
        assert work.code_products == 0
        return
    assert work.code_products >= (K - 5) * N
    assert work.products < 0.25 * work.dense_products


@pytest.mark.parametrize("rule", RULES)
def test_what_they_do_not_bound_is_dense(isa, rule):
    """Limits that ask every item at each step, and rows that are no unit vectors."""
    rows, groups = normal(4, 300, 12), np.arange(300) % 7
    problem = {"embeddings": rows, "queries": normal(5, 2, 12), "k": 40}
    for changes in (
        {"max_similarity": 0.6},
        {"groups": groups, "min_per_group": 5},
        {"metric": "dot"},
    ):
        assert check(rule, problem | changes).code_products == 0
    assert check(rule, problem).code_products > 0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_row_is_found(compiled, rule, value):
    rows = normal(6, 5_000, 16)
    rows[4_321, 3] = value
    problem = for_method(rule, {"queries": normal(7, 1, 16), "embeddings": rows, "k": 40})
    with pytest.raises(ValueError, match="embeddings must be finite"):
        getattr(rk, rule)(**problem, backend="cpu")
    allowed = np.arange(5_000) != 4_321
    assert getattr(rk, rule)(**problem, allowed=allowed, backend="cpu").lengths[0] == 40
