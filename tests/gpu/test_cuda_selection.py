"""The CUDA kernels of selection, run on the CPU thread by thread through the package's own launcher."""

import functools
import itertools
import mmap
import re

import cancelling
import numpy as np
import pytest
import soaks
from backends import missing
from clustered_pools import pools
from cuda_on_cpu import emulator
from cuda_selection import OPS, assert_same, checked, kernel_of, not_empty, problem_of

from ragsys_kernels import Corpus, testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._gpu import cuda_module
from ragsys_kernels.selection import filtered_problems, reference
from ragsys_kernels.selection.cuda import backend as cuda_kernels
from ragsys_kernels.selection.cuda import configuration as cuda_configuration

pytestmark = pytest.mark.sampled(6)

DTYPES = ("float32", "float16", "bfloat16")
STORED = (*DTYPES, "int8")  # of a corpus
# Shared memory of a block, which decides the kernel: rows in shared memory, or products of few rows of 16 or 8 bits;
# only the state; neither.
PLACES = {"resident": emulator.MAX_SHARED, "streaming": 2_600, "workspace": 700}
# The order of the threads and three shuffled ones.
SEEDS = (0, 1, 2, 3)
# What each barrier is for; the tests remove it.
BARRIERS = {
    1: "the best item of every warp is there before it is compared, and the pick's row before it is read",
    2: "VRSD: the sum is whole before items are added to it",
    3: "MMR from memory: the initial items and the empty bests are there before they are read",
    4: "MMR from memory: a pick's row, and at first what is known of the items, is there before others read it",
    5: "MMR from memory: the scores of a step's first round are known before more items are read",
    6: "small pools: a slice of the rows is there before it is multiplied",
    7: "small pools: all slices are multiplied before the products take their place",
    8: "small pools: all products are there before a warp picks",
}
# The most items and initial items of a small pool; the query has slots too.
SMALL = {"float16": 126, "bfloat16": 125, "int8": 124}
# Without 3 reads go astray, without 5 they are more: an answer may still be right.
NEEDED = [
    *((op, barrier, place) for op, barrier in (*((op, 1) for op in OPS), ("vrsd", 2)) for place in PLACES),
    *(("mmr", 4, place) for place in ("streaming", "workspace")),
    *((op, barrier, "resident") for op in OPS for barrier in (6, 7, 8)),
]
RACES = [(op, 1, "resident") for op in OPS]
RACES += [("mmr", 3, "streaming"), ("mmr", 4, "streaming"), ("msd", 1, "streaming"), ("vrsd", 2, "resident")]
RACES += [(op, barrier, "resident") for op in OPS for barrier in (6, 7, 8)]


@pytest.fixture(scope="module")
def compiler():
    reason = emulator.why_not()
    if reason is not None:
        missing("cuda", reason)


@pytest.fixture(scope="module")
def module(compiler):
    return emulator.Module("greedy_select")


@functools.cache
def small_pools(sanitizer):
    """The kernels of small pools."""
    return emulator.Module("greedy_small", sanitizer, defines=("RSK_SMALL_TYPES=5",) if sanitizer else ())


@pytest.fixture
def run(module, monkeypatch):
    """Runs an operation; returns what it selected, and the checked problem."""
    monkeypatch.setattr(_arrays, "empty", not_empty)

    def run(op, arguments, *, place="resident", seed=0, on=module, removed=0):
        problem = checked(op, arguments)
        small = small_pools(on.sanitizer)
        small.launches = on.launches
        for each in (on, small):
            each.seed, each.removed, each.shared_limit = seed, removed, PLACES[place]
        monkeypatch.setattr(cuda_module, "load", lambda name: small if name == "greedy_small" else on)
        return getattr(cuda_kernels, op)(problem, 1), problem

    return run


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("op", OPS)
def test_exact_problems_have_the_reference_s_picks(run, module, op, dtype, place):
    features = {"bias": True, "groups": True, "ragged": True}
    for options in ({}, features, {"dense": dtype != "int8", "bias": True, "groups": True}):
        shape = (3, 50, 9, 33) if options is features else (2, 37, 6, 64)
        arguments = problem_of(op, *shape, dtype=dtype, kind="integers", seed=len(options), **options)
        results = [run(op, arguments, place=place, seed=seed) for seed in SEEDS]
        kind = "resident" if place == "resident" else "streaming"
        if dtype in SMALL and place == "resident":
            kind = "small_64"
        assert kernel_of(module) == f"rsk_{op}_{kind}_{dtype}"
        expected = getattr(reference, op)(results[0][1], 1)
        for result, _ in results:
            np.testing.assert_array_equal(result.indices, expected.indices)
            np.testing.assert_array_equal(result.lengths, expected.lengths)
            if op != "vrsd":
                assert_same(result, expected)
            else:
                np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-6, atol=1e-6)
                assert np.isnan(result.redundancy).all()


@pytest.mark.parametrize("op", OPS)
def test_bits_depend_neither_on_the_kernel_nor_on_the_schedule(run, op):
    """Many schedules: warps share what they found at even and odd steps in turn, which few of them put to the test."""
    arguments = problem_of(op, 3, 75, 8, 45, kind="clustered", bias=True, groups=True, ragged=True, seed=4)
    first, _ = run(op, arguments)
    for place in PLACES:
        for seed in range(12):
            assert_same(run(op, arguments, place=place, seed=seed)[0], first)
    one = dict(arguments, **{k: arguments[k][1:2] for k in ("queries", "candidates", "query_groups")})
    for alone, together in zip(run(op, one)[0], first, strict=True):
        np.testing.assert_array_equal(alone[0], together[1])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", ["random", "clustered", "duplicates"])
def test_picks_replay(run, op, kind, dtype, place):
    for metric in ("cosine", "dot"):
        seed = STORED.index(dtype)
        options = {"kind": kind, "dtype": dtype, "metric": metric, "bias": True, "ragged": seed == 1, "seed": seed}
        arguments = problem_of(op, 3, 60, 12, 70, **options)
        testing.check_selection(op, arguments, run(op, arguments, place=place, seed=seed)[0])


# Around the items of a warp and of a block, and K = P.
@pytest.mark.parametrize("P", [1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 300])
@pytest.mark.parametrize("op", OPS)
def test_pool_sizes(run, op, P):
    for K in (1, 5, P if P < 40 else 3):
        arguments = problem_of(op, 2, P, K, 20, seed=P)
        for place in ("resident", "workspace"):
            testing.check_selection(op, arguments, run(op, arguments, place=place, seed=1)[0])


@pytest.mark.parametrize("op", OPS)
def test_large_pool(run, op):
    arguments = problem_of(op, 1, 4096, 5, 9, N=5000, seed=1)
    found, _ = run(op, arguments)
    testing.check_selection(op, arguments, found)
    assert_same(run(op, arguments, place="workspace", seed=2)[0], found)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("op", OPS)
def test_dimensions_and_strides(run, op, dtype):
    """Rows that cannot be loaded with 16 bytes, wholly or at their ends; those of a corpus lie one after another."""
    for D in (1, 3, 7, 8, 9, 31, 32, 127, 200, 400):
        arguments = problem_of(op, 2, 20, 4, D, dtype=dtype, seed=D)
        testing.check_selection(op, arguments, run(op, arguments, seed=1)[0])
        if dtype == "int8":
            continue
        rows = arguments["embeddings"]
        wide = np.zeros((len(rows), D + 5), np.asarray(rows.float() if dtype == "bfloat16" else rows).dtype)
        if dtype == "bfloat16":
            import torch

            wide = torch.zeros(len(rows), D + 5, dtype=torch.bfloat16)
        for begin in (0, 1, 3):  # a row stride of D + 5, a base that is not aligned
            part = wide[:, begin : begin + D]
            part[...] = rows
            for place in ("resident", "streaming"):
                moved, _ = run(op, dict(arguments, embeddings=part), place=place)
                testing.check_selection(op, arguments, moved)
                np.testing.assert_array_equal(moved.indices, run(op, arguments, place=place)[0].indices)


@pytest.mark.parametrize("op", OPS)
def test_unaligned_queries(run, op):
    arguments = problem_of(op, 2, 20, 4, 16)
    memory = np.zeros(arguments["queries"].size + 4, np.float32)
    for begin in range(4):
        queries = memory[begin : begin + arguments["queries"].size].reshape(2, 16)
        queries[...] = arguments["queries"]
        assert_same(run(op, dict(arguments, queries=queries))[0], run(op, arguments)[0])


@pytest.mark.parametrize("place", PLACES)
def test_ties_go_to_the_lowest_position(run, place):
    """Equal rows in all lanes and warps, and equal best rows at two positions of them."""
    ones = np.ones((200, 8), np.float32)
    arguments = {"queries": ones[:1], "embeddings": ones, "k": 30, "metric": "dot", "lambda_d": 0.5}
    for seed in SEEDS:
        np.testing.assert_array_equal(run("mmr", arguments, place=place, seed=seed)[0].indices[0], np.arange(30))
        of_vrsd = {k: v for k, v in arguments.items() if k != "lambda_d"}
        np.testing.assert_array_equal(run("vrsd", of_vrsd, place=place, seed=seed)[0].indices[0], np.arange(30))
    rng = np.random.default_rng(0)
    for _ in range(20):
        pair = np.sort(rng.choice(200, 2, replace=False))
        rows = np.ones((200, 8), np.float32)
        rows[pair] = 2
        arguments.update(embeddings=rows, k=2, lambda_d=1.0)
        seed = int(rng.integers(4))
        np.testing.assert_array_equal(run("mmr", arguments, place=place, seed=seed)[0].indices[0], pair)


FEATURES = (
    "plain",
    "relevance",
    "item bias",
    "whole corpus",
    "per query",
    "initial",
    "initial and caps",
    "int32",
    "dense",
)


@pytest.mark.parametrize(
    ("dtype", "place"), [*(("float32", place) for place in PLACES), *((dtype, "resident") for dtype in SMALL)]
)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("op", OPS)
def test_features(run, module, op, feature, dtype, place):
    for metric in ("cosine", "dot"):
        if (feature, dtype) == ("dense", "int8"):
            continue
        arguments = of_feature(op, feature, metric, dtype)
        for seed in (0, 1):
            testing.check_selection(op, arguments, run(op, arguments, place=place, seed=seed)[0])
        assert ("_small_" in kernel_of(module)) == (dtype in SMALL)
        if feature == "relevance" and op != "vrsd":
            testing.check_selection(op, arguments, run(op, dict(arguments, queries=None), place=place)[0])


def of_feature(op, feature, metric, dtype):
    rng = np.random.default_rng(5)
    Q, P, K = 3, 40, 7
    options = {"dtype": dtype, "metric": metric, "ragged": feature != "whole corpus", "dense": feature == "dense"}
    arguments = problem_of(op, Q, P, K, 24, N=60, seed=3, **options)
    candidates = arguments.get("candidates")
    if feature == "relevance":
        arguments["relevance"] = rng.uniform(-1, 1, (Q, P)).astype(np.float32)
    elif feature == "item bias" and op != "vrsd":
        arguments.update(bias=rng.standard_normal((Q, P)).astype(np.float32), lambda_b=0.3)
    elif feature == "whole corpus":
        del arguments["candidates"]
    elif feature == "per query":
        arguments["k"] = np.array([2, 50, 7])
        if op != "vrsd":
            arguments.update(lambda_d=np.float32([0, 0.3, 1]), lambda_b=np.float32([1, 0.5, 0]))
    elif feature.startswith("initial"):
        initial = np.stack([rng.permutation(60)[:4] for _ in range(Q)]).astype(np.int32)
        initial[0, 1], initial[1], initial[2, 3] = -1, -1, -1
        arguments["initial"] = initial
        if feature == "initial and caps":
            arguments.update(groups=rng.integers(0, 9, 60), max_per_group=2, query_groups=np.arange(Q))
    elif feature == "int32":
        arguments["candidates"] = candidates.astype(np.int32)
    elif feature == "dense":
        arguments.update(groups=rng.integers(0, 5, (Q, P)), max_per_group=1)
        arguments["initial"] = np.array([[3, -1], [-1, -1], [0, 39]])
    return arguments


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", STORED)
def test_corpus(run, module, dtype, place):
    """Rows with scales."""
    rng = np.random.default_rng(7)
    for metric in ("cosine", "dot"):
        rows = rng.standard_normal((80, 37)).astype(np.float32)
        corpus = Corpus(rows, dtype=dtype, metric=metric, bias=rows[:, 0].copy())
        candidates = np.stack([rng.permutation(80)[:30] for _ in range(2)])
        arguments = {"queries": rng.standard_normal((2, 37)).astype(np.float32), "embeddings": corpus, "k": 6}
        arguments.update(candidates=candidates, initial=np.array([[1], [-1]]))
        for op in OPS:
            testing.check_selection(op, arguments, run(op, arguments, place=place, seed=1)[0])
            assert kernel_of(module).endswith(dtype)


@pytest.mark.parametrize("op", OPS)
def test_rows_of_a_whole_corpus_that_may_be_picked(run, module, monkeypatch, op):
    rng = np.random.default_rng(12)
    rows, queries = rng.standard_normal((30, 12)).astype(np.float32), rng.standard_normal((3, 12)).astype(np.float32)
    arguments = {"queries": queries, "embeddings": rows, "k": 8, "initial": np.array([[1, 2], [3, -1], [-1, -1]])}
    arguments.update(allowed=rng.random((3, 30)) < 0.3, exclude=np.array([[4], [-1], [6]]))
    together = run(op, arguments)[0]
    testing.check_selection(op, arguments, together)
    # Ids of the rows are made for one query at a time.
    monkeypatch.setattr(filtered_problems, "_WORKSPACE_BYTES", 1)
    module.launches.clear()
    assert_same(run(op, arguments)[0], together)
    assert [grid for _, grid, _, _ in module.launches] == [(1, 1, 1)] * 3


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("op", OPS)
def test_what_cannot_be_picked(run, op, place):
    """Ids out of range are padding, values that are NaN are left out, and nothing hangs."""
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((30, 12)).astype(np.float32)
    queries = rng.standard_normal((4, 12)).astype(np.float32)
    candidates = np.stack([rng.permutation(30)[:20] for _ in range(4)])
    candidates[0, :5] = [-2, 30, 1 << 40, -(1 << 40), -1]
    candidates[1] = -1
    kept = candidates.copy()
    kept[0, :5] = -1
    arguments = {"queries": queries, "embeddings": rows, "k": 25, "candidates": candidates}
    result, _ = run(op, arguments, place=place)
    assert_same(result, run(op, dict(arguments, candidates=kept), place=place)[0])
    np.testing.assert_array_equal(result.lengths, [15, 0, 20, 20])
    assert (result.indices[1] == -1).all()
    assert np.isneginf(result.scores[1]).all()

    bad = rows.copy()
    bad[kept[2, :3], 5] = [np.nan, np.inf, -np.inf]
    queries[3, 0] = np.nan
    result, _ = run(op, dict(arguments, embeddings=bad, queries=queries), place=place)
    assert result.lengths[2] == 17
    assert not np.isin(kept[2, :3], result.indices[2]).any()
    assert result.lengths[3] == 0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("P", soaks.POOLS[:2])
def test_soak(run, op, P):
    """What 1,000 runs are for a device: every option with state of its own, under 40 schedules."""
    arguments = soaks.problem(op, P)
    first, _ = run(op, arguments)
    testing.check_selection(op, arguments, first)
    for seed, place in itertools.product(range(1, 14), PLACES):
        assert_same(run(op, arguments, place=place, seed=seed)[0], first)


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("op", OPS)
def test_small_pools(run, module, op, dtype):
    """Around the slots of each kernel, which the query and initial items share with the pool."""
    for P in (1, 14, 29, 30, 31, 61, 62, 63, 100, 110, 111, SMALL[dtype], SMALL[dtype] + 1):
        for S in (0, 3):
            arguments = problem_of(op, 2, P, min(P, 6), 72, N=140, dtype=dtype, seed=P, bias=True, groups=True)
            arguments["max_per_group"] = 2
            if S:
                arguments["initial"] = np.array([[137, -1, 138], [-1, 139, -1]])
            found, _ = run(op, arguments, seed=1)
            assert ("_small_" in kernel_of(module)) == (SMALL[dtype] >= P + S)
            testing.check_selection(op, arguments, found)
            assert_same(run(op, arguments, seed=2)[0], found)


def test_devices_without_the_instructions_of_small_pools(run, module, monkeypatch):
    monkeypatch.setattr(module, "capability", lambda like: 75)
    run("mmr", problem_of("mmr", 2, 20, 4, 16, dtype="float16"))
    assert kernel_of(module) == "rsk_mmr_resident_float16"


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("op", OPS)
def test_a_query_of_a_small_pool_has_the_same_bits_in_any_batch(run, op, dtype):
    arguments = problem_of(op, 3, 75, 8, 400, dtype=dtype, kind="clustered", bias=True, groups=True, seed=4)
    together = run(op, arguments)[0]
    for q in range(3):
        its = {k: arguments[k][q : q + 1] for k in ("queries", "candidates", "query_groups")}
        for alone, all_of_them in zip(run(op, dict(arguments, **its), seed=5)[0], together, strict=True):
            np.testing.assert_array_equal(alone[0], all_of_them[q])


@pytest.mark.filterwarnings("ignore:.*pool.*:UserWarning")
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_vrsd_of_a_small_pool_reads_rows_again_where_they_cancel(run, module, dtype, metric):
    for delta, initial in itertools.product((0.1, 1e-2), (True, False)):
        problem = cancelling.problem(metric, delta, initial, 0)
        rows = problem["embeddings"]
        if dtype == "int8":
            rows = np.rint(127 / np.abs(rows).max() * rows)
        problem["embeddings"] = stored = rows.astype(dtype)
        if dtype == "int8":
            stored = Corpus(stored, dtype=dtype, metric=metric)  # keeps them as they are
        result, _ = run("vrsd", problem | {"embeddings": stored})
        assert "_small_" in kernel_of(module)
        assert cancelling.units_off(problem, result) < cancelling.UNITS


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-30, 1e-18, 1e18, 1e37])
def test_queries_of_any_length_of_small_pools(run, op, size, dtype):
    for metric in ("cosine", "dot"):
        arguments = problem_of(op, 2, 20, 4, 16, kind="duplicates", dtype=dtype, metric=metric, seed=1)
        arguments["queries"] = (arguments["queries"] / np.abs(arguments["queries"]).max() * size).astype(np.float32)
        testing.check_selection(op, arguments, run(op, arguments)[0], tolerance=0.02 if size == 1e-42 else None)


@pytest.mark.parametrize("op", OPS)
def test_what_cannot_be_picked_from_a_small_pool(run, op):
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((30, 12)).astype(np.float16)
    rows[:3, 5] = [np.nan, np.inf, -np.inf]
    queries = rng.standard_normal((2, 12)).astype(np.float32)
    queries[1, 0] = np.nan
    candidates = np.stack([np.arange(22), np.arange(22)]) - 2
    result, _ = run(op, {"queries": queries, "embeddings": rows, "k": 25, "candidates": candidates})
    np.testing.assert_array_equal(result.lengths, [17, 0])
    assert not np.isin([0, 1, 2], result.indices).any()


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_nothing_is_picked_for_a_query_that_is_not_finite(run, module, dtype, metric):
    for op, bad in itertools.product(OPS, (np.nan, np.inf, -np.inf)):
        arguments = problem_of(op, 2, 20, 4, 16, dtype=dtype, metric=metric)
        arguments["queries"][1, 3] = bad
        np.testing.assert_array_equal(run(op, arguments)[0].lengths, [4, 0])
        assert "_small_" in kernel_of(module)


@pytest.mark.parametrize("op", OPS)
def test_products_with_a_query_of_rows_of_int8_are_as_precise_as_float32(run, module, op):
    """Its elements differ by more than 64 times; relevance against float64."""
    rng = np.random.default_rng(3)
    rows = rng.integers(-128, 128, (40, 384)).astype(np.int8)
    queries = (rng.standard_normal((4, 384)) * 2.0 ** rng.integers(-12, 1, (4, 384))).astype(np.float32)
    for metric in ("cosine", "dot"):
        corpus = Corpus(rows, dtype="int8", metric=metric)
        found, _ = run(op, {"queries": queries, "embeddings": corpus, "k": 40})
        assert kernel_of(module) == f"rsk_{op}_small_64_int8"
        lengths = [np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True) for x in (queries, rows)]
        exact = (queries / lengths[0]) @ (rows / lengths[1]).T
        if metric == "dot" and op != "vrsd":
            exact *= lengths[0] * lengths[1].T
        units = np.take_along_axis(exact, found.indices, 1) - found.relevance
        size = lengths[0] * lengths[1].max() if metric == "dot" and op != "vrsd" else 1.0
        assert np.abs(units / size).max() < 2**-23


@pytest.mark.parametrize("place", PLACES)
def test_a_similarity_that_is_nan(run, place):
    """With relevance given a row is first read when it meets a pick; then it is left out for good."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((30, 12)).astype(np.float32)
    rows[[4, 17], 3] = np.nan
    relevance = np.linspace(1, 0, 30, dtype=np.float32)[None]
    arguments = {"queries": None, "embeddings": rows, "k": 30, "relevance": relevance, "metric": "dot"}
    result, _ = run("mmr", arguments, place=place)
    assert result.lengths[0] == 28
    assert not np.isin([4, 17], result.indices).any()


@pytest.mark.filterwarnings("ignore:.*pool.*:UserWarning")
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_vrsd_is_as_precise_as_its_vectors_where_they_cancel(run, metric):
    for delta, initial, place in itertools.product((0.1, 1e-2, 1e-3, 1e-5), (True, False), PLACES):
        for problem in (cancelling.problem(metric, delta, initial, 0), cancelling.pair(metric, delta, 0)):
            result, _ = run("vrsd", problem, place=place)
            assert cancelling.units_off(problem, result) < cancelling.UNITS


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-30, 1e-18, 1e18, 1e37])
def test_queries_of_any_length(run, op, size):
    arguments = problem_of(op, 2, 20, 4, 16, kind="duplicates", seed=1)
    arguments["queries"] = (arguments["queries"] / np.abs(arguments["queries"]).max() * size).astype(np.float32)
    tolerance = 0.02 if size == 1e-42 else None  # few bits are left of such numbers
    testing.check_selection(op, arguments, run(op, arguments)[0], tolerance=tolerance)


@pytest.mark.parametrize("place", PLACES)
def test_rows_beyond_2_31_elements(run, place):
    """Memory is reserved, but of it three pages are used."""
    N, D, stride = 3, 16, (1 << 30) + (1 << 28)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = np.frombuffer(mmap.mmap(-1, 2 * (N * stride), flags), np.float16)
    rows = np.lib.stride_tricks.as_strided(memory, (N, D), (2 * stride, 2))
    rng = np.random.default_rng(9)
    rows[...] = rng.standard_normal((N, D))
    arguments = {"queries": rng.standard_normal((2, D)).astype(np.float32), "embeddings": rows, "k": 3}
    arguments["candidates"] = np.array([[2, 0, 1], [1, 2, -1]])
    assert (N - 1) * stride > 1 << 31
    for op in OPS:
        testing.check_selection(op, arguments, run(op, arguments, place=place)[0])


def test_the_state_of_a_pool_beyond_2_30_items(compiler):
    """Its three arrays end beyond 2^31 numbers."""
    places, memory, out = (
        emulator.Module("places", sources=emulator.HERE),
        np.zeros(4, np.float32),
        np.zeros(3, np.int64),
    )
    pool = cuda_kernels._LARGEST
    arguments = (np.int32(pool), np.int32(pool - 1), memory, out)
    places.launch("places_of_an_item", grid=(1, 1, 1), block=(1, 1, 1), shared=256, arguments=arguments, like=None)
    assert out.tolist() == [pool - 1, 2 * pool - 1, 3 * pool - 1]


def test_workspace_is_bounded(run, module, monkeypatch):
    """Queries whose state takes too much memory run a few at a time."""
    arguments = problem_of("mmr", 7, 40, 3, 8)
    together, _ = run("mmr", arguments, place="streaming")
    # Four numbers for each item, three for each pick.
    monkeypatch.setattr(cuda_kernels, "_WORKSPACE_BYTES", 2 * (40 * 4 + 3 * 3 + 3) * 4)
    module.launches.clear()
    monkeypatch.setitem(PLACES, "workspace", 300)
    assert_same(run("mmr", arguments, place="workspace")[0], together)
    assert [grid for _, grid, _, _ in module.launches] == [(2, 1, 1)] * 3 + [(1, 1, 1)]


@pytest.mark.parametrize(("lambda_d", "most"), [(0.75, 1.3), (0.5, 2.0)])
def test_rows_in_memory_are_hardly_read_more_than_once(run, module, monkeypatch, lambda_d, most):
    """Without bounds it is 10. The bits are those of the kernel in which all items meet all picks."""
    problem = pools(600, 32, "best first") | {"k": 10, "lambda_d": lambda_d, "metric": "dot"}
    memory = np.empty(620 * 32 + 8, np.float32)
    rows = memory[-memory.ctypes.data % 32 // 4 :][: 620 * 32].reshape(620, 32)  # starts with a sector
    rows[...] = problem["embeddings"]
    problem["embeddings"] = rows
    monkeypatch.setitem(PLACES, "streaming", 600 * 32 * 4)
    with module.counted(problem["embeddings"]) as reads:
        found, _ = run("mmr", problem, place="streaming")
        times = reads() / (600 * 32 * 4)
    assert kernel_of(module) == "rsk_mmr_streaming_float32"
    assert 1 <= times <= most
    assert_same(found, run("mmr", problem)[0])


@pytest.mark.parametrize("place", PLACES)
def test_pools_in_any_order(run, place):
    """Many items have not met the first pick when the choice begins; some are zero."""
    for seed, (metric, size) in enumerate((("cosine", 1), ("cosine", 30), ("dot", 30))):
        problem = pools(150, 20, "any", 2, seed) | {"k": 8, "lambda_d": 0.9, "metric": metric}
        problem["embeddings"] = problem["embeddings"] * np.float32(size)
        problem["embeddings"][::9] = 0
        assert_same(run("mmr", problem, place=place, seed=seed)[0], run("mmr", problem)[0])
        testing.check_selection("mmr", problem, run("mmr", problem, place=place)[0])


def test_items_that_no_round_has_come_to(run):
    """With relevance given nothing bounds the items of the second step: all must meet the first pick."""
    rows = np.ones((1200, 4), np.float32)
    arguments = {"queries": None, "relevance": np.ones((1, 1200), np.float32), "k": 2, "lambda_d": 0.5, "metric": "dot"}
    for position in range(1100, 1107):
        other = rows.copy()
        other[position] = -1
        found, _ = run("mmr", arguments | {"embeddings": other}, place="workspace")
        assert found.indices.tolist() == [[0, position]]


def test_no_query(run, module):
    _, problem = run("mmr", problem_of("mmr", 2, 10, 3, 8))
    problem.num_queries = 0
    before = len(module.launches)
    assert cuda_kernels.mmr(problem, 1).indices.shape == (0, 3)
    assert len(module.launches) == before


def test_the_struct_of_the_source_has_the_members_that_are_passed(run):
    _, problem = run("mmr", problem_of("mmr", 2, 10, 3, 8))
    how = cuda_configuration.configure("mmr", "float32", 10, 8, 3, False, emulator.MAX_SHARED)
    passed = cuda_kernels._arguments(problem, 0, None, how, cuda_kernels.mmr(problem, 1)).members
    text = re.sub(r"//.*", "", (emulator.SOURCES / "select_args.cuh").read_text())
    (members,) = re.findall(r"struct SelectArgs \{(.*?)\};", text, re.DOTALL)
    declared = [re.findall(r"\w+$", name)[0] for line in members.split(";") for name in line.split(",") if name.strip()]
    assert list(passed) == declared


def test_every_kernel_is_described(module):
    kernels = [kernel for kernel in cuda_configuration.kernels() if kernel.source != "greedy_held"]
    assert sorted(kernel.name for kernel in kernels) == sorted([*module.kernels(), *small_pools("").kernels()])
    for kernel in kernels:
        if kernel.source == "greedy_small":
            slots, most = int(kernel.name.split("_")[3]), SMALL[kernel.name.rpartition("_")[2]]
            assert kernel.fits(slots - 128 + most, 64, 5)
            assert not kernel.fits(slots - 127 + most, 64, 5)
            assert kernel.threads(20, 64, 5) == {112: 128}.get(slots, slots)
            assert kernel.shared_bytes(20, 64, 5) >= 4 * slots * slots
            continue
        may_be_small = kernel.name.rpartition("_")[2] in SMALL
        resident = "_resident_" in kernel.name
        assert kernel.fits(130 if may_be_small else 20, 64, 5) == resident
        assert kernel.fits(4096, 768, 5) != resident
        assert (kernel.shared_bytes(100, 64, 5) > 100 * 64) == resident
        assert kernel.threads(20, 64, 5) == 64
        assert kernel.bytes_read(100, 64, 5) >= 100 * 64


# In processes of their own, built with a sanitizer. One element type: what differs between them is covered above, and
# these builds take long.


@pytest.fixture(scope="module", params=["address", "thread"])
def sanitized(request, compiler):
    return emulator.Module("greedy_select", request.param, defines=("RSK_SELECT_TYPES=2",))


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("op", OPS)
def test_sanitizers(run, sanitized, op, place):
    arguments = problem_of(op, 1, 37, 4, 19, N=40, dtype="float16", bias=True, groups=True, ragged=True, seed=2)
    arguments["initial"] = np.array([[3, -1, 1 << 40]])
    arguments["candidates"][0, :2] = [40, -7]
    expected, _ = run(op, arguments, place=place)
    for seed in (0, 1):
        assert_same(run(op, arguments, place=place, seed=seed, on=sanitized)[0], expected)
    # Of int8 there are small pools only.
    for dtype in ("float16", "int8") if place == "resident" else ("float16",):
        aligned = problem_of(op, 1, 35, 3, 144, dtype=dtype, kind="duplicates")
        assert_same(run(op, aligned, place=place, on=sanitized)[0], run(op, aligned, place=place)[0])


def test_every_barrier_is_listed():
    files = [emulator.SOURCES / "greedy_select.cu"]
    files += [file for kind in ("select", "small", "pool") for file in emulator.SOURCES.glob(f"{kind}*.cuh")]
    text = "".join(file.read_text() for file in files)
    assert {int(n) for n in re.findall(r"\bSYNC\((\d+)\)", text)} == set(BARRIERS)
    assert "__sync" not in text


@pytest.mark.parametrize(
    ("op", "barrier", "place", "dtype"),
    [*((*needed, "float16") for needed in NEEDED), *((*needed, "int8") for needed in NEEDED if needed[1] > 5)],
)
def test_a_missing_barrier_is_caught(run, op, barrier, place, dtype):
    """By a wrong answer under some schedule, or by threads that then wait in different barriers."""
    few = place != "resident" or barrier > 5
    arguments = problem_of(op, 1, 60 if few else 140, 5, 416 if barrier > 5 else 40, dtype=dtype, seed=6)
    if barrier in (3, 4, 5):
        arguments["initial"] = np.array([[7, 21, 35, 40]])
    expected, _ = run(op, arguments, place=place)

    def right(seed):
        try:
            result, _ = run(op, arguments, place=place, seed=seed, removed=barrier)
        except emulator.LaunchError:
            return False
        return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(result, expected, strict=True))

    assert not all(right(seed) for seed in range(8)), BARRIERS[barrier]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "barrier", "place"), RACES)
def test_a_missing_barrier_is_a_race(run, op, barrier, place, compiler):
    """ThreadSanitizer names both accesses."""
    racy = emulator.Module("greedy_select", "thread", defines=("RSK_SELECT_TYPES=2",))
    few = place != "resident" or barrier > 5
    arguments = problem_of(op, 1, 37 if few else 140, 3, 40, dtype="float16", seed=6)
    if barrier == 3:
        arguments["initial"] = np.array([[7, 21]])
    for seed in range(4):  # what a thread reads too early may also lead it out of all memory, before any report
        with pytest.raises(emulator.LaunchError) as error:
            run(op, arguments, place=place, on=racy, seed=seed, removed=barrier)
        if re.search(r"data race(.|\n)*(select|small)_\w+\.cuh", str(error.value)):
            return
    raise error.value
