"""The compiled kernels of every rule and constraint: the float64 reference's picks, and one set of bits."""

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.selection import cpu, options, reference, validate
from ragsys_kernels.selection.problem import Selection

DTYPES = ("float32", "float16", "bfloat16", "int8")
# A rule's name, its number for the data, and what makes its options.
RULES = {
    "mmr": None,
    "vrsd": None,
    "msd": None,
    "dpp": lambda **_: options.dpp("dpp", "zscore", 0.8),
    "dpp, quality": lambda quality, **_: options.dpp("dpp", quality, 1.0),
    "ssd": lambda **_: options.ssd("ssd", 0.7, None),
    "ssd, window": lambda **_: options.ssd("ssd", 0.7, 3),
    "sift": lambda **_: options.sift("sift", 0.3, 0.0),
    "sift, min_gain": lambda **_: options.sift("sift", 0.3, 0.01),
    **{
        kind: lambda kind=kind, **_: options.coverage("coverage", kind, None, None, 0.5, False, None)
        for kind in ("facility", "cover", "xquad")
    },
    "cover, power": lambda **_: options.coverage("coverage", "cover", None, None, 0.3, False, None),
    "facility, aspects": lambda aspects, weights, **_: options.coverage(
        "coverage", "facility", aspects, weights, 0.5, False, None
    ),
    "xquad, aspects": lambda aspects, **_: options.coverage("coverage", "xquad", aspects, None, 0.5, False, None),
    "facility, density": lambda **_: options.coverage("coverage", "facility", None, None, 0.5, True, 5.0),
}
LIMITS = ("", "budget", "ceiling", "budget ceiling initial groups")
rules = pytest.mark.parametrize("rule", RULES)


def rows_of(rng, N, D, kind):
    rows = rng.standard_normal((N, D))
    if kind == "clustered":
        rows = rows[rng.integers(0, N // 8 + 1, N)] + 0.3 * rows
    elif kind == "one side":
        rows = rows + 1.5 * rng.standard_normal(D)
    elif kind == "duplicates":
        rows = rows[rng.integers(0, N // 2 + 1, N)]
    return rows.astype(np.float32)


def problem_of(rule, limits="", *, P=60, K=7, D=40, kind="random", dtype="float32", seed=0, stored=True, **given):
    rng = np.random.default_rng(seed)
    Q, N = 3, P + 20
    rows = rows_of(rng, N, D, kind)
    made = {
        "queries": (rows[:Q] + rng.standard_normal((Q, D))).astype(np.float32),
        "embeddings": rk.Corpus(rows, dtype=dtype) if stored else rows,
        "k": K,
        "candidates": np.stack([rng.permutation(N)[:P] for _ in range(Q)]),
        "lambda_d": rng.uniform(0.2, 0.9, Q),
    }
    if "budget" in limits or "density" in rule:
        made.update(costs=rng.integers(0, 9, N).astype(np.float64), budget=rng.uniform(5, 3 * K, Q))
    if "ceiling" in limits:
        made["max_similarity"] = rng.uniform(0.05, 0.6, Q)
    if "initial" in limits:
        made["initial"] = np.stack([rng.permutation(N)[:3] for _ in range(Q)])
    if "groups" in limits:
        made.update(groups=rng.integers(0, N // 4, N), query_groups=np.arange(Q), max_per_group=2)
    if RULES[rule] is not None:
        quality, aspects, weights = rng.uniform(0.5, 2, N), rng.standard_normal((Q, 5, D)), rng.uniform(0, 1, (Q, 5))
        made["options"] = RULES[rule](quality=quality, aspects=aspects, weights=weights)
    if rule == "vrsd":
        del made["lambda_d"]
    name = rule.split(",")[0]
    return validate.selection("coverage" if name in options.KINDS else name, **made, **given)


def check_against_reference(problem, found):
    """The picks of float64; where they are other ones, a pick that is worth as much, after which all may differ."""
    with np.errstate(all="ignore"):
        exact = getattr(reference, problem.op)(problem, 1)
    for q in range(problem.num_queries):
        made = exact.lengths[q]
        same = exact.indices[q] == found.indices[q]
        alike = len(same) if same.all() else int(np.argmin(same))
        for name in ("scores", "relevance", "redundancy"):
            a, b = (np.nan_to_num(getattr(x, name)[q, :alike], neginf=-9) for x in (exact, found))
            np.testing.assert_allclose(a, b, rtol=3e-5, atol=2e-5, err_msg=f"query {q}: {name}")
        if alike < len(same):
            assert found.lengths[q] > alike < made, f"query {q}: {made} picks, not {found.lengths[q]}"
            np.testing.assert_allclose(
                exact.scores[q, alike], found.scores[q, alike], rtol=3e-6, err_msg=f"query {q}, step {alike}"
            )
        else:
            assert found.lengths[q] == made


def same_bits(a, b):
    for name, x, y in zip(Selection._fields, a, b, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=name)


@rules
def test_picks_are_those_of_float64(isa, rule):
    for seed, limits in enumerate(LIMITS, list(RULES).index(rule)):
        dtype, kind = DTYPES[(seed + isa) % 4], ("random", "one side")[seed % 2]
        problem = problem_of(rule, limits, dtype=dtype, kind=kind, seed=seed)
        check_against_reference(problem, cpu.run(problem, 1)[0])


@pytest.mark.sampled(3)
@rules
def test_picks_of_small_and_odd_sizes_are_those_of_float64(isa, rule):
    for seed, (P, K, D) in enumerate([(1, 3, 12), (5, 5, 33), (17, 4, 19), (70, 20, 64)]):
        problem = problem_of(rule, "", P=P, K=K, D=D, seed=seed, stored=False, metric=("cosine", "dot")[seed % 2])
        check_against_reference(problem, cpu.run(problem, 1)[0])


@rules
def test_bits_depend_on_no_bounds_threads_or_batch(isa, rule):
    kinds = ("clustered", "duplicates", "one side", "duplicates")
    for kind, dtype, limits in zip(kinds, ("float32", "float16", "int8", "bfloat16"), LIMITS, strict=True):
        problem = problem_of(rule, limits, P=90, K=12, kind=kind, dtype=dtype, seed=5)
        found, _ = cpu.run(problem, 1)
        for bounds in ("dense", "pruned", "coded"):
            same_bits(found, cpu.run(problem, 1, bounds)[0])
        same_bits(found, cpu.run(problem, 3)[0])
        each = [cpu.run(problem.take(slice(q, q + 1)), 1)[0] for q in range(problem.num_queries)]
        same_bits(found, (np.concatenate(fields) for fields in zip(*each, strict=True)))


@pytest.mark.sampled(3)
@rules
def test_relevance_and_bias_given(isa, rule):
    rng = np.random.default_rng(3)
    relevance = rng.uniform(-1, 1, (3, 60)).astype(np.float32)
    bias = {} if rule.startswith(("vrsd", "sift")) else {"bias": rng.standard_normal(80)}
    for given in ({"relevance": relevance}, bias, {"relevance": relevance, **bias}):
        problem = problem_of(rule, "initial", **given)
        check_against_reference(problem, cpu.run(problem, 1)[0])


@pytest.mark.parametrize("limits", ["budget", "ceiling", "budget ceiling initial"])
def test_a_whole_corpus_by_pools_respects_what_limits_it(isa, limits):
    rng = np.random.default_rng(1)
    rows = rows_of(rng, 2500, 24, "clustered")
    made = {"queries": rows[:9] + rng.standard_normal((9, 24)), "embeddings": rk.Corpus(rows), "k": 6, "lambda_d": 0.6}
    if "budget" in limits:
        made.update(costs=rng.integers(1, 9, 2500).astype(np.float64), budget=rng.uniform(6, 40, 9))
    if "ceiling" in limits:
        made["max_similarity"] = rng.uniform(0.1, 0.7, 9)
    if "initial" in limits:
        made["initial"] = rng.integers(0, 2500, (9, 1))
    problem = validate.selection("mmr", **made)
    found, _ = cpu.run(problem, 1)
    same_bits(found, cpu.run(problem, 1, "dense")[0])
    check_against_reference(problem, found)


def test_a_spent_budget_ends_a_query_of_a_whole_corpus(isa):
    """Fewer picks than k are no reason to look through all rows, once nothing can fit."""
    rng = np.random.default_rng(2)
    rows = rows_of(rng, 3000, 24, "clustered")
    costs = rng.integers(4, 9, 3000).astype(np.float64)
    made = {"queries": rows[:5], "embeddings": rk.Corpus(rows), "k": 30, "lambda_d": 0.7, "costs": costs}
    problem = validate.selection("mmr", **made, budget=18)
    found, work = cpu.run(problem, 1)
    dense, dense_work = cpu.run(problem, 1, "dense")
    same_bits(found, dense)
    assert found.lengths.max() < 5
    with_too_few, _ = cpu.run(validate.selection("mmr", **made, budget=3), 1)
    assert not with_too_few.lengths.any()
    assert 10 * sum(work) < sum(dense_work)


@pytest.mark.parametrize("rule", ["dpp", "ssd", "facility", "xquad", "cover"])
def test_few_items_of_a_large_pool_meet_the_picks(isa, rule):
    """Old values are bounds: most items of a pool are left as they were."""
    problem = problem_of(rule, P=700, K=10, kind="one side", seed=2)
    lazy, dense = cpu.run(problem, 1)[1][0], cpu.run(problem, 1, "dense")[1][0]
    if rule in ("dpp", "ssd"):
        assert lazy < 0.5 * dense
    else:  # the products are of the pool with itself, once
        assert lazy == dense < 0.6 * 3 * 700 * 700


def test_coverage_of_too_many_similarities_is_refused(compiled):
    rows = np.zeros((20_000, 1), np.float32)
    with pytest.raises(ValueError, match="coverage: candidates must leave at most 268435456 similarities"):
        rk.coverage(rows[:1], rows, 2, backend="cpu")
