"""The CUDA kernels of selection, run on the CPU thread by thread through the package's own launcher."""

import itertools
import mmap
import re

import cancelling
import cuda_selection
import numpy as np
import pytest
import soaks
from clustered_pools import pools
from cuda_on_cpu import emulator
from cuda_selection import (
    COLUMNS,
    GRAM,
    KERNELS,
    KINDS,
    OPS,
    PLACES,
    QUICK_COLUMNS,
    assert_same,
    checked,
    dtypes,
    pool_of,
    problem_of,
    quick_or_slow,
)

from ragsys_kernels import BackendUnavailableError, Corpus, testing
from ragsys_kernels.selection import reference
from ragsys_kernels.selection.cuda import backend as cuda_kernels
from ragsys_kernels.selection.cuda import configuration as cuda_configuration

pytestmark = pytest.mark.sampled(6)
SLOW = pytest.mark.slow


@pytest.fixture
def run(monkeypatch):
    return cuda_selection.Runs(monkeypatch)


@pytest.mark.parametrize(("dtype", "place"), quick_or_slow(KERNELS))
@pytest.mark.parametrize("op", OPS)
def test_exact_problems_have_the_reference_s_picks(run, op, dtype, place):
    features = {"bias": True, "groups": True, "ragged": True}
    for options in ({}, features, {"dense": dtype != "int8", "bias": True, "groups": True}):
        shape = (3, pool_of(place, 50), 9, 33) if options is features else (2, pool_of(place, 37), 6, 64)
        if place in COLUMNS:
            shape = (1, *shape[1:3], 40)
        arguments = problem_of(op, *shape, dtype=dtype, kind="integers", seed=len(options), **options)
        expected = getattr(reference, op)(checked(op, arguments), 1)
        for seed in (0, 1):  # threads in their order, and in another
            result = run(op, arguments, place=place, seed=seed)
            assert run.kernel.startswith(f"rsk_{op}_{place}_")
            assert run.kernel.endswith(f"_{dtype}")
            np.testing.assert_array_equal(result.indices, expected.indices)
            np.testing.assert_array_equal(result.lengths, expected.lengths)
            if op != "vrsd":
                assert_same(result, expected)
            else:
                np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-6, atol=1e-6)
                assert np.isnan(result.redundancy).all()


@pytest.mark.parametrize(("dtype", "place"), quick_or_slow(KERNELS))
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", ["random", "clustered", "duplicates"])
def test_picks_replay(run, op, kind, dtype, place):
    for seed, metric in enumerate(("cosine", "dot")):
        options = {"kind": kind, "dtype": dtype, "metric": metric, "bias": True, "ragged": seed == 1, "seed": seed}
        arguments = problem_of(op, 2, pool_of(place, 60), 8, 72 if place in COLUMNS else 70, **options)
        testing.check_selection(op, arguments, run(op, arguments, place=place, seed=seed + 2))


# Around the items of a warp and of a tile, and K = P.
@pytest.mark.parametrize("P", [1, 2, 15, 16, 17, 31, 33, 96, 97])
@pytest.mark.parametrize("op", OPS)
def test_pool_sizes(run, op, P):
    for K in {1, P if P < 40 else 3}:
        arguments = problem_of(op, 2, P, K, 20, seed=P)
        testing.check_selection(op, arguments, run(op, arguments, seed=1))


@pytest.mark.parametrize("dtype", dtypes(*GRAM))
@pytest.mark.parametrize("op", OPS)
def test_dimensions_and_strides(run, op, dtype):
    """Rows that cannot be loaded with 16 bytes, wholly or at their ends; those of a corpus lie one after another."""
    for D in (1, 3, 7, 8, 9, 31, 32, 127, 200, 400):
        arguments = problem_of(op, 2, 20, 4, D, dtype=dtype, seed=D)
        alone = run(op, arguments, seed=1)
        testing.check_selection(op, arguments, alone)
        if dtype == "int8":
            continue
        rows = arguments["embeddings"]
        for begin in (0, 1, 3):  # a row stride of D + 5, a base that is not aligned
            part = widened(rows)[:, begin : begin + D]
            part[...] = rows
            moved = run(op, dict(arguments, embeddings=part))
            testing.check_selection(op, arguments, moved)
            np.testing.assert_array_equal(moved.indices, alone.indices)


def widened(rows):
    """Zeros of the same type and library, of five columns more."""
    if isinstance(rows, np.ndarray):
        return np.zeros((len(rows), rows.shape[1] + 5), rows.dtype)
    return rows.new_zeros(len(rows), rows.shape[1] + 5)


@pytest.mark.parametrize("op", OPS)
def test_unaligned_queries(run, op):
    arguments = problem_of(op, 2, 20, 4, 16)
    memory, expected = np.zeros(arguments["queries"].size + 4, np.float32), run(op, arguments)
    for begin in range(4):
        queries = memory[begin : begin + arguments["queries"].size].reshape(2, 16)
        queries[...] = arguments["queries"]
        assert_same(run(op, dict(arguments, queries=queries)), expected)


@pytest.mark.parametrize("place", PLACES)
def test_ties_go_to_the_lowest_position(run, place):
    """Equal rows in all lanes, warps and blocks, and equal best rows at two positions of them."""
    P = 200 if place in COLUMNS else 120
    ones = np.ones((P, 8), np.float16)
    arguments = {"queries": np.ones((1, 8), np.float32), "embeddings": ones, "k": 20, "metric": "dot"}
    for op, seed in itertools.product(("mmr", "vrsd"), (0, 1)):
        np.testing.assert_array_equal(run(op, arguments, place=place, seed=seed).indices[0], np.arange(20))
    rng = np.random.default_rng(0)
    for seed in range(6 if place in COLUMNS else 20):
        pair = np.sort(rng.choice(P, 2, replace=False))
        rows = ones.copy()
        rows[pair] = 2
        arguments.update(embeddings=rows, k=2, lambda_d=1.0)
        np.testing.assert_array_equal(run("mmr", arguments, place=place, seed=seed % 4).indices[0], pair)


@pytest.mark.parametrize("place", PLACES)
def test_zeros_of_both_signs_are_one(run, place):
    P = pool_of(place, 120)
    rows = np.ones((P, 8), np.float16)
    relevance = np.full((1, P), -1, np.float32)
    relevance[0, [70, 5, 100]] = 0.0, -0.0, -0.0
    arguments = {"queries": None, "embeddings": rows, "relevance": relevance, "k": 3, "lambda_d": 1.0, "metric": "dot"}
    np.testing.assert_array_equal(run("mmr", arguments, place=place).indices, [[5, 70, 100]])


FEATURES = (
    "plain",
    "relevance",
    "item bias",
    "whole corpus",
    "per query",
    "initial",
    "initial and caps",
    "caps",
    "int32",
    "dense",
    "empty",
)


@pytest.mark.parametrize(("dtype", "place"), quick_or_slow(KINDS))
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("op", OPS)
def test_features(run, op, feature, dtype, place):
    if (feature, dtype) == ("dense", "int8"):
        return
    for seed, metric in enumerate(("cosine", "dot")):
        arguments = of_feature(op, feature, metric, dtype, pool_of(place, 40))
        if place in COLUMNS and op == "vrsd":
            arguments.pop("initial", None)  # which these kernels do not take
        testing.check_selection(op, arguments, run(op, arguments, place=place, seed=seed))
        assert f"_{place}_" in run.kernel
        if feature == "relevance" and op != "vrsd":
            testing.check_selection(op, arguments, run(op, dict(arguments, queries=None), place=place))


def of_feature(op, feature, metric, dtype, P):
    rng = np.random.default_rng(5)
    Q, N, K = 3, P + 20, 7
    options = {"dtype": dtype, "metric": metric, "ragged": feature != "whole corpus", "dense": feature == "dense"}
    arguments = problem_of(op, Q, P, K, 24, N=N, seed=3, **options)
    if feature == "relevance":
        arguments["relevance"] = rng.uniform(-1, 1, (Q, P)).astype(np.float32)
    elif feature == "item bias" and op != "vrsd":
        arguments.update(bias=rng.standard_normal((Q, P)).astype(np.float32), lambda_b=0.3)
    elif feature == "whole corpus":
        del arguments["candidates"]
    elif feature == "per query":
        arguments["k"] = np.array([2, P + 10, 1])
        if op != "vrsd":
            arguments.update(lambda_d=np.float32([0, 0.3, 1]), lambda_b=np.float32([1, 0.5, 0]))
    elif feature == "int32":
        arguments["candidates"] = arguments["candidates"].astype(np.int32)
    elif feature == "dense":
        arguments.update(groups=rng.integers(0, 5, (Q, P)), max_per_group=1)
        arguments["initial"] = np.array([[3, -1], [-1, -1], [0, P - 1]])
    elif feature == "empty":
        arguments["candidates"][1] = -1
    if "caps" in feature:
        arguments.update(groups=rng.integers(0, 9, N), max_per_group=2, query_groups=np.arange(Q), k=12)
    if feature.startswith("initial"):  # of the pool and others, twice, none
        initial = np.stack([rng.permutation(N)[:4] for _ in range(Q)]).astype(np.int32)
        initial[0, 1:3], initial[1], initial[2, 3] = initial[0, 0], -1, -1
        arguments["initial"] = initial
    return arguments


@pytest.mark.parametrize("dtype", dtypes(*GRAM))
def test_corpus(run, dtype):
    """Rows with scales."""
    rng = np.random.default_rng(7)
    for metric in ("cosine", "dot"):
        rows = rng.standard_normal((80, 37)).astype(np.float32)
        corpus = Corpus(rows, dtype=dtype, metric=metric, bias=rows[:, 0].copy())
        candidates = np.stack([rng.permutation(80)[:30] for _ in range(2)])
        arguments = {"queries": rng.standard_normal((2, 37)).astype(np.float32), "embeddings": corpus, "k": 6}
        arguments.update(candidates=candidates, initial=np.array([[1], [-1]]))
        for op in OPS:
            testing.check_selection(op, arguments, run(op, arguments, seed=1))
            assert run.kernel.endswith(dtype)


@pytest.mark.parametrize(("dtype", "place"), quick_or_slow(KINDS))
@pytest.mark.parametrize("op", OPS)
def test_what_cannot_be_picked(run, op, dtype, place):
    """Ids out of range are padding, rows with a NaN or an infinity are left out, and nothing hangs."""
    rng, P, n = np.random.default_rng(8), pool_of(place, 20), 20
    arguments = problem_of(op, 3, P, n + 5, 16, N=P + 10, dtype=dtype, seed=8)
    candidates = np.full((3, P), -1)
    candidates[:, -n:] = [rng.permutation(P + 10)[:n] for _ in range(3)]
    candidates[1] = -1
    kept = candidates.copy()
    candidates[0, -5:] = [-2, P + 10, 1 << 40, -(1 << 40), -1]
    kept[0, -5:] = -1
    result = run(op, arguments | {"candidates": candidates}, place=place)
    assert_same(result, run(op, arguments | {"candidates": kept}, place=place))
    np.testing.assert_array_equal(result.lengths, [n - 5, 0, n])
    assert (result.indices[1] == -1).all()
    assert np.isneginf(result.scores[1]).all()
    if dtype == "float16":
        arguments["embeddings"][kept[2, -3:], 5] = [np.nan, np.inf, -np.inf]
        result = run(op, arguments | {"candidates": kept}, place=place)
        assert result.lengths[2] == n - 3
        assert not np.isin(kept[2, -3:], result.indices[2]).any()


@pytest.mark.parametrize(("dtype", "place"), quick_or_slow(KINDS))
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_nothing_is_picked_for_a_query_that_is_not_finite(run, dtype, place, metric):
    for op, bad in itertools.product(OPS, (np.nan, np.inf, -np.inf)):
        arguments = problem_of(op, 2, pool_of(place, 20), 2, 16, dtype=dtype, metric=metric)
        arguments["queries"][1, 3] = bad
        np.testing.assert_array_equal(run(op, arguments, place=place).lengths, [2, 0])


@pytest.mark.parametrize(("P", "places"), [(100, ("gram",)), (150, COLUMNS)])
@pytest.mark.parametrize("op", OPS)
def test_soak(run, op, P, places):
    """What 1,000 runs are for a device: every option with state of its own, in many schedules.

    Warps share what they found at even and odd steps in turn, which few schedules put to the test.
    """
    columns = places == COLUMNS
    arguments = soaks.problem(op, P, D=40, dtype="float16")
    if columns and op == "vrsd":
        del arguments["initial"]
    first = run(op, arguments, place=places[0])
    testing.check_selection(op, arguments, first)
    for place, seed in itertools.product(places, range(1, 4 if columns else 9)):
        assert_same(run(op, arguments, place=place, seed=seed), first)


@pytest.mark.parametrize(("dtype", "place"), quick_or_slow(KINDS))
@pytest.mark.parametrize("op", OPS)
def test_a_query_has_the_same_bits_in_any_batch(run, op, dtype, place):
    shape = (3, pool_of(place, 75), 5, 40 if place in COLUMNS else 400)
    arguments = problem_of(op, *shape, dtype=dtype, kind="clustered", bias=True, groups=True, seed=4)
    together = run(op, arguments, place=place)
    for q in (0, 2):
        its = {k: arguments[k][q : q + 1] for k in ("queries", "candidates", "query_groups")}
        for alone, all_of_them in zip(run(op, dict(arguments, **its), place=place, seed=5), together, strict=True):
            np.testing.assert_array_equal(alone[0], all_of_them[q])


# The last have more than there are slots.
@pytest.mark.parametrize("pools", [(1, 14, 29, 30, 31, 61, 62, 63), (100, 110, 111), pytest.param((), marks=SLOW)])
@pytest.mark.parametrize("dtype", dtypes(*GRAM))
@pytest.mark.parametrize("op", OPS)
def test_pools_by_the_products_of_their_rows(run, op, dtype, pools):
    """Around the slots of each kernel, which the query and initial items share with the pool."""
    for P in pools or (GRAM[dtype], GRAM[dtype] + 1):
        for S in (0, 3):
            arguments = problem_of(op, 1, P, min(P, 4), 72, N=140, dtype=dtype, seed=P, bias=True, groups=True)
            arguments["max_per_group"] = 2
            if S:
                arguments["initial"] = np.array([[137, -1, 138]])
            few = GRAM[dtype] >= P + S
            if not few and (dtype == "int8" or (op == "vrsd" and S)):
                with pytest.raises(BackendUnavailableError, match="its kernels take pools and initial items of up to"):
                    run(op, arguments)
                continue
            found = run(op, arguments, seed=1)
            assert ("_gram_" if few else "_resident_") in run.kernel
            testing.check_selection(op, arguments, found)


@pytest.mark.filterwarnings("ignore:.*pool.*:UserWarning")
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize(
    ("dtype", "place", "D"),
    quick_or_slow(
        [*((*kind, 48) for kind in KINDS if kind[0] != "bfloat16"), *((*kind, 400) for kind in QUICK_COLUMNS)]
    ),
)
def test_vrsd_is_as_precise_as_its_vectors_where_they_cancel(run, metric, dtype, place, D):
    """There rows are read and summed again."""
    for delta in (0.1, 1e-2):
        problems = [cancelling.problem(metric, delta, False, 0, D)]
        problems += [cancelling.problem(metric, delta, True, 0, D)] if place not in COLUMNS else []
        problems += [cancelling.pair(metric, delta, 0, D)] if dtype != "int8" else []
        for problem in problems:
            rows = problem["embeddings"]
            if dtype == "int8":
                rows = np.rint(127 / np.abs(rows).max() * rows)
            problem["embeddings"] = stored = rows.astype(dtype)
            if dtype == "int8":
                stored = Corpus(stored, dtype=dtype, metric=metric)  # keeps them as they are
            items = problem["candidates"]
            pool = np.full((1, pool_of(place, items.size)), -1)
            pool[0, np.linspace(0, pool.size - 1, items.size).astype(int)] = items
            result = run("vrsd", problem | {"embeddings": stored, "candidates": pool}, place=place)
            assert f"_{place}_" in run.kernel
            assert cancelling.units_off(problem, result) < cancelling.UNITS


@pytest.mark.parametrize(
    ("dtype", "place"),
    quick_or_slow([*((dtype, "gram") for dtype in ("float16", "int8")), *QUICK_COLUMNS]),
)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-30, 1e-18, 1e18, 1e37])
def test_queries_of_any_length(run, op, size, dtype, place):
    for metric in ("cosine", "dot"):
        shape = (1 if place in COLUMNS else 2, pool_of(place, 20), 3, 16)
        arguments = problem_of(op, *shape, kind="duplicates", dtype=dtype, metric=metric, seed=1)
        arguments["queries"] = (arguments["queries"] / np.abs(arguments["queries"]).max() * size).astype(np.float32)
        tolerance = 0.02 if size == 1e-42 else None  # few bits are left of such numbers
        testing.check_selection(op, arguments, run(op, arguments, place=place), tolerance=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_products_with_a_query_of_rows_of_int8_are_as_precise_as_float32(run, op):
    """Its elements differ by more than 64 times; relevance against float64."""
    rng = np.random.default_rng(3)
    rows = rng.integers(-128, 128, (40, 384)).astype(np.int8)
    queries = (rng.standard_normal((4, 384)) * 2.0 ** rng.integers(-12, 1, (4, 384))).astype(np.float32)
    for metric in ("cosine", "dot"):
        corpus = Corpus(rows, dtype="int8", metric=metric)
        found = run(op, {"queries": queries, "embeddings": corpus, "k": 40})
        assert run.kernel == f"rsk_{op}_gram_64_int8"
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
    rng, P = np.random.default_rng(2), pool_of(place, 30)
    rows = rng.standard_normal((P, 16)).astype(np.float16)
    rows[[4, 17], 3] = np.nan
    relevance = np.linspace(1, 0, P, dtype=np.float32)[None]
    arguments = {"queries": None, "embeddings": rows, "k": P, "relevance": relevance, "metric": "dot"}
    result = run("mmr", arguments, place=place)
    assert result.lengths[0] == P - 2
    assert not np.isin([4, 17], result.indices).any()


@pytest.mark.parametrize("place", PLACES)
def test_rows_beyond_2_31_elements(run, place):
    """Memory is reserved, but of it three pages are used."""
    N, D, stride = 3, 16, (1 << 30) + (1 << 28)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = np.frombuffer(mmap.mmap(-1, 2 * N * stride, flags), np.float16)
    rows = np.lib.stride_tricks.as_strided(memory, (N, D), (2 * stride, 2))
    rng = np.random.default_rng(9)
    rows[...] = rng.standard_normal((N, D))
    arguments = {"queries": rng.standard_normal((2, D)).astype(np.float32), "embeddings": rows, "k": 3}
    arguments["candidates"] = np.full((2, pool_of(place, 3)), -1)
    arguments["candidates"][:, :3] = [[2, 0, 1], [1, 2, -1]]
    assert (N - 1) * stride > 1 << 31
    for op in OPS:
        testing.check_selection(op, arguments, run(op, arguments, place=place))


def test_pools_in_any_order(run):
    """Many picks are none of the first columns; some rows are zero."""
    for seed, (metric, size) in enumerate((("cosine", 1), ("cosine", 30), ("dot", 30))):
        problem = pools(150, 24, "any", 2, seed) | {"k": 8, "lambda_d": 0.9, "metric": metric}
        problem["embeddings"] = (problem["embeddings"] * size).astype(np.float16)
        problem["embeddings"][::9] = 0
        resident, streamed = (run("mmr", problem, place=place, seed=seed) for place in COLUMNS)
        testing.check_selection("mmr", problem, resident)
        assert_same(streamed, resident)


@pytest.mark.parametrize("place", PLACES)
def test_more_queries_than_a_launch_has_blocks_for(run, monkeypatch, place):
    arguments = problem_of("mmr", 5, pool_of(place, 20), 3, 16)
    together, (grid, *_) = run("mmr", arguments, place=place), run.launches[-1][1]
    monkeypatch.setattr(cuda_kernels, "_MOST_BLOCKS", 3 * grid // 5 - 1)  # less than three queries have
    run.launches.clear()
    assert_same(run("mmr", arguments, place=place), together)
    assert [launch[1][0] for launch in run.launches] == [2 * grid // 5, 2 * grid // 5, grid // 5]


def test_no_query(run):
    arguments = problem_of("mmr", 2, 10, 3, 8)
    none = {name: arguments[name][:0] for name in ("queries", "candidates")}
    assert run("mmr", arguments | none).indices.shape == (0, 3)
    assert not run.launches


def test_the_struct_of_the_source_has_the_members_that_are_passed(run):
    arguments = problem_of("mmr", 2, 10, 3, 8)
    passed = cuda_kernels._arguments(checked("mmr", arguments), 0, run("mmr", arguments)).members
    text = re.sub(r"//.*", "", (emulator.SOURCES / "select_args.cuh").read_text())
    (members,) = re.findall(r"struct SelectArgs \{(.*?)\};", text, re.DOTALL)
    declared = [re.findall(r"\w+$", name)[0] for line in members.split(";") for name in line.split(",") if name.strip()]
    assert list(passed) == declared


def test_every_kernel_is_chosen_for_some_shape():
    chosen = set()
    sizes = itertools.product(OPS, GRAM, (20, 60, 100, 120, 250, 500, 1000, 2000, 4096), (384, 768), (80, 90))
    for op, dtype, P, D, capability in sizes:
        pools = cuda_configuration.Pools(op, dtype, P, P, D, 5, False, 0, True, capability, emulator.MAX_SHARED)
        how = cuda_configuration.configure(pools)
        chosen |= set() if how is None else {how.kernel}
    sources = ("greedy_gram", "greedy_resident", "greedy_streamed")
    assert chosen == {kernel for source in sources for kernel in emulator.kernels(source)}
