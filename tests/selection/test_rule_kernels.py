"""The compiled kernels of every rule and constraint: picks that the float64 replay allows, and one set of bits."""

import numpy as np
import pytest
from rule_problems import OPTIONS, SHAPES, problem_of
from selection_calls import same

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels._base import arrays
from ragsys_kernels.selection import cpu

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
DTYPES = ("float32", "float16", "bfloat16", "int8")
rules = pytest.mark.parametrize("rule", OPTIONS)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", SHAPES)
@rules
def test_picks_are_those_of_the_replay(isa, rule, shape):
    """Of a Corpus and of an array."""
    for seed, dtype in enumerate((DTYPES[(list(SHAPES).index(shape) + isa) % 4], None)):
        method, problem = problem_of(rule, shape, seed, dtype, initial=seed == 1)
        testing.check_selection(method, problem, getattr(rk, method)(**problem, backend="cpu"))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", SHAPES)
@rules
def test_int8_arrays_are_numbers(isa, rule, shape):
    """Their picks are those of the replay, and have the bits of the same numbers in float32."""
    method, problem = problem_of(rule, shape, 3, initial=True)
    problem["embeddings"] = arrays.narrow(problem["embeddings"], "int8")
    found = getattr(rk, method)(**problem, backend="cpu")
    testing.check_selection(method, problem, found)
    problem["embeddings"] = problem["embeddings"].astype(np.float32)
    same(found, getattr(rk, method)(**problem, backend="cpu"))


@pytest.mark.sampled(2)
@rules
def test_bits_depend_on_no_bounds_threads_or_batch(isa, rule):
    shapes, kinds = ("plain", "budget", "ceiling", "everything"), ("clustered", "duplicates", "random", "duplicates")
    for shape, kind, dtype in zip(shapes, kinds, DTYPES, strict=True):
        changes = {"sizes": (3, 90, 12, 40), "kind": kind, "initial": shape == "everything"}
        method, given = problem_of(rule, shape, 5, dtype, **changes)
        problem = testing.checked_problem(method, given)
        found, _ = cpu.run(problem, 1)
        for bounds in ("dense", "pruned", "coded", "coarse"):
            same(found, cpu.run(problem, 1, bounds)[0])
        same(found, cpu.run(problem, 3)[0])
        for bounds in ("automatic", "dense"):  # coverage in blocks
            same(found, cpu.run(problem, 3, bounds, kept=1)[0])
        each = [cpu.run(problem.take(slice(q, q + 1)), 1)[0] for q in range(problem.num_queries)]
        same(found, (np.concatenate(fields) for fields in zip(*each, strict=True)))


def whole_corpus(Q, N, **given):
    problem = testing.selection_problem(Q, 1, 6, 24, N=N, kind="clustered", seed=1)
    del problem["candidates"]
    return problem | {"embeddings": rk.Corpus(problem["embeddings"])} | given


@pytest.mark.parametrize(
    "limits", ["budget", "ceiling", "budget ceiling initial", "bias per query", "budget per query"]
)
def test_a_whole_corpus_by_pools_respects_what_limits_it(isa, limits):
    rng = np.random.default_rng(1)
    given = whole_corpus(4, 2500, lambda_d=0.6)
    if "budget" in limits:
        of_items = (4, 2500) if "per query" in limits else 2500
        given.update(costs=rng.integers(1, 9, of_items).astype(np.float64), budget=rng.uniform(6, 40, 4))
    if "bias" in limits:
        given["bias"] = rng.standard_normal((4, 2500)).astype(np.float32)
    if "ceiling" in limits:
        given["max_similarity"] = rng.uniform(0.1, 0.7, 4)
    if "initial" in limits:
        given["initial"] = rng.integers(0, 2500, (4, 1))
    found, _ = testing.selection_work("mmr", given)
    same(found, testing.selection_work("mmr", given, bounds="dense")[0])
    testing.check_selection("mmr", given, found)


def test_a_spent_budget_ends_a_query_of_a_whole_corpus(isa):
    """Fewer picks than k are no reason to look through all rows, once nothing can fit."""
    costs = np.random.default_rng(2).integers(4, 9, 3000).astype(np.float64)
    given = whole_corpus(5, 3000, k=30, lambda_d=0.7, costs=costs, budget=18)
    found, work = testing.selection_work("mmr", given)
    dense, dense_work = testing.selection_work("mmr", given, bounds="dense")
    same(found, dense)
    assert found.lengths.max() < 5
    assert not testing.selection_work("mmr", given | {"budget": 3})[0].lengths.any()
    assert 10 * (work.products + work.code_products) < dense_work.products


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", ["dpp", "ssd", "coverage", "coverage xquad", "coverage cover"])
def test_few_items_of_a_large_pool_meet_the_picks(isa, rule):
    """Old values are bounds: most items of a pool are left as they were."""
    method, given = problem_of(rule, "plain", 2, sizes=(3, 700, 10, 40))
    given = {name: x for name, x in given.items() if name not in ("aspects", "weights")}
    rows = given["embeddings"] + 1.5 * np.random.default_rng(2).standard_normal(40)  # all on one side
    given["embeddings"] = rk.Corpus(rows.astype(np.float32))
    lazy, dense = (testing.selection_work(method, given, bounds=x)[1].products for x in ("automatic", "dense"))
    if rule in ("dpp", "ssd"):
        assert lazy < 0.5 * dense
    else:  # the products are of the pool with itself, once
        assert lazy == dense < 0.6 * 3 * 700 * 700


def test_coverage_of_too_many_similarities_is_refused(compiled):
    rows = np.zeros((131_073, 1), np.float32)
    with pytest.raises(ValueError, match=r"at most 17179869184 similarities .* Corpus.subset takes neighbors=64$"):
        rk.coverage(rows[:1], rows, 2, backend="cpu")


@pytest.mark.parametrize("lambda_d", [0, 0.5])
@pytest.mark.parametrize("kind", ["facility", "cover", "xquad"])
def test_coverage_in_blocks_shared_by_threads(isa, kind, lambda_d):
    """The bits are those of kept similarities, and old gains are bounds: few are renewed."""
    rows = np.random.default_rng(3).standard_normal((1_500, 12), dtype=np.float32)
    given = {"queries": rows[:2] + 1, "embeddings": rows, "k": 20, "kind": kind, "lambda_d": lambda_d}
    problem = testing.checked_problem("coverage", given)
    (kept, _), (found, work) = cpu.run(problem, 1), cpu.run(problem, 3, kept=1_500 * 1_500 - 1)
    same(found, kept)
    same(cpu.run(problem, 3, kept=1_500 * 1_500)[0], kept)
    assert work[0] < 2 * 1_500 * 1_500 * (1.5 if lambda_d and kind != "cover" else 15)


@pytest.mark.parametrize("kind", ["facility", "cover", "xquad"])
def test_equal_rows_of_coverage_are_picked_in_their_order(isa, kind):
    """Each similarity is computed once for both items, so the lengths of the two rows must enter alike."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = np.tile(rng.standard_normal((10, 8)).astype(np.float32), (2, 1))
        queries = rng.standard_normal((3, 8)).astype(np.float32)
        for picks in rk.coverage(queries, rows, 20, kind=kind, backend="cpu").indices.tolist():
            assert all(picks.index(i) < picks.index(i + 10) for i in range(10)), seed
