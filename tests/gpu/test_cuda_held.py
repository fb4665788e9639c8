"""CUDA kernels for pools in the registers of a cluster, run on the CPU by the package's own launcher."""

import functools
import re

import cancelling
import cuda_selection
import numpy as np
import pytest
import soaks
from backends import missing
from clustered_pools import pools
from cuda_on_cpu import emulator
from cuda_selection import OPS, assert_same, checked, kernel_of, not_empty

from ragsys_kernels import testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._gpu import cuda_module
from ragsys_kernels.selection import reference
from ragsys_kernels.selection.cuda import backend as cuda_kernels
from ragsys_kernels.selection.cuda import configuration as cuda_configuration

pytestmark = pytest.mark.sampled(6)

DTYPES = ("float16", "bfloat16")
problem_of = functools.partial(cuda_selection.problem_of, dtype="float16")
# The order of the threads and two shuffled ones, in which stores to other blocks come late.
SEEDS = (0, 1, 2)
# What each barrier is for; the tests remove it.
BARRIERS = {
    9: "the query and the first columns are there before they are met",
    10: "every block of the cluster has begun before another writes to it",
    11: "the bests of all warps are there before they are compared",
    12: "the columns are there before they are met",
    13: "VRSD: a row is added to the sum before it is read",
    14: "nothing of the last step is read any more when it is changed",
    15: "the columns have been met before initial items take their place",
    16: "initial items are there before they are met",
    17: "the group of an initial item is there before others are compared with it",
}


@pytest.fixture(scope="module")
def module():
    reason = emulator.why_not()
    if reason is not None:
        missing("cuda", reason)
    return emulator.Module("greedy_held")


class Other:
    """The kernels of other sources: which one is asked for, but nothing runs."""

    def __init__(self, name, launches):
        self.name, self.launches = name, launches

    def max_shared(self, like):
        return emulator.MAX_SHARED

    def capability(self, like):
        return 90

    def launch(self, kernel, **how):
        self.launches.append((kernel,))


@pytest.fixture
def run(module, monkeypatch):
    """Runs an operation under the variant; returns what it selected."""
    monkeypatch.setattr(_arrays, "empty", not_empty)
    monkeypatch.setenv("RAGSYS_KERNELS_VARIANTS", "pools=held")

    def run(op, arguments, *, seed=0, on=module, removed=0):
        on.seed, on.removed = seed, removed
        monkeypatch.setattr(
            cuda_module, "load", lambda name: on if name == "greedy_held" else Other(name, module.launches)
        )
        return getattr(cuda_kernels, op)(checked(op, arguments), 1)

    return run


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_exact_problems_have_the_reference_s_picks(run, module, op, dtype):
    features = {"bias": True, "groups": True, "ragged": True}
    for options in ({}, features, {"dense": True, "bias": True, "groups": True}, {"bias": True, "groups": True}):
        arguments = problem_of(op, 2, 150, 9, 40, dtype=dtype, kind="integers", seed=len(options), **options)
        if len(options) == 2 and op != "vrsd":
            arguments |= {"initial": np.arange(40).reshape(2, 20) * 3 - 1, "max_per_group": 30}
        expected = getattr(reference, op)(checked(op, arguments), 1)
        for seed in SEEDS:
            found = run(op, arguments, seed=seed)
            assert kernel_of(module) == f"rsk_{op}_held_256_384_{dtype}"
            np.testing.assert_array_equal(found.indices, expected.indices)
            np.testing.assert_array_equal(found.lengths, expected.lengths)
            if op != "vrsd":
                assert_same(found, expected)
            else:
                np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6, atol=1e-6)
                assert np.isnan(found.redundancy).all()


# Around what each kernel has room for, the rows of a warp and K = P.
@pytest.mark.parametrize(
    ("P", "K", "D", "kernel"),
    [
        (129, 129, 8, "256_384"),
        (256, 5, 384, "256_384"),
        (257, 5, 376, "512_384"),
        (512, 3, 32, "512_384"),
        (513, 3, 64, "1024_384"),
        (1000, 10, 384, "1024_384"),
        (1024, 4, 40, "1024_384"),
        (129, 4, 392, "256_768"),
        (300, 4, 768, "512_768"),
        (1000, 4, 768, "1024_768"),
        (1024, 2, 400, "1024_768"),
    ],
)
@pytest.mark.parametrize("op", OPS)
def test_sizes(run, module, op, P, K, D, kernel):
    for dtype in DTYPES[: 1 + (P < 300)]:
        arguments = problem_of(op, 1, P, K, D, dtype=dtype, kind="clustered", bias=True, seed=P)
        testing.check_selection(op, arguments, run(op, arguments, seed=1))
        assert kernel_of(module) == f"rsk_{op}_held_{kernel}_{dtype}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", ["random", "clustered", "duplicates"])
def test_picks_replay(run, op, kind, dtype):
    for metric in ("cosine", "dot"):
        for D in (72, 448):
            arguments = problem_of(op, 2, 160, 12, D, kind=kind, dtype=dtype, bias=True, ragged=D == 72, seed=D)
            arguments["metric"] = metric
            testing.check_selection(op, arguments, run(op, arguments, seed=2))


@pytest.mark.parametrize("op", OPS)
def test_bits_depend_neither_on_the_batch_nor_on_the_schedule(run, op):
    arguments = problem_of(op, 3, 140, 8, 48, kind="clustered", bias=True, groups=True, ragged=True, seed=4)
    first = run(op, arguments)
    for seed in range(1, 6):
        assert_same(run(op, arguments, seed=seed), first)
    one = dict(arguments, **{k: arguments[k][1:2] for k in ("queries", "candidates", "query_groups")})
    for alone, together in zip(run(op, one), first, strict=True):
        np.testing.assert_array_equal(alone[0], together[1])


@pytest.mark.parametrize("P", [200, 600])
def test_ties_go_to_the_lowest_position(run, P):
    """Equal rows in all lanes, warps and blocks, and equal best rows at two positions of them."""
    ones = np.ones((P, 8), np.float16)
    arguments = {"queries": ones[:1].astype(np.float32), "embeddings": ones, "k": 30, "metric": "dot", "lambda_d": 0.5}
    for seed in SEEDS[:2]:
        np.testing.assert_array_equal(run("mmr", arguments, seed=seed).indices[0], np.arange(30))
        of_vrsd = {k: v for k, v in arguments.items() if k != "lambda_d"}
        np.testing.assert_array_equal(run("vrsd", of_vrsd, seed=seed).indices[0], np.arange(30))
    rng = np.random.default_rng(0)
    for _ in range(6):
        pair = np.sort(rng.choice(P, 2, replace=False))
        rows = np.ones((P, 8), np.float16)
        rows[pair] = 2
        arguments.update(embeddings=rows, k=2, lambda_d=1.0)
        np.testing.assert_array_equal(run("mmr", arguments, seed=int(rng.integers(3))).indices[0], pair)


def test_zeros_of_both_signs_are_one(run):
    rows = np.ones((130, 8), np.float16)
    relevance = np.full((1, 130), -1, np.float32)
    relevance[0, [70, 5, 100]] = 0.0, -0.0, -0.0
    arguments = {"queries": None, "embeddings": rows, "relevance": relevance, "k": 3, "lambda_d": 1.0, "metric": "dot"}
    np.testing.assert_array_equal(run("mmr", arguments).indices, [[5, 70, 100]])


FEATURES = (
    "plain",
    "relevance",
    "item bias",
    "whole corpus",
    "per query",
    "caps",
    "int32",
    "dense",
    "empty",
    "initial",
)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("op", OPS)
def test_features(run, module, op, feature):
    rng = np.random.default_rng(5)
    Q, P, K = 3, 140, 7
    arguments = problem_of(op, Q, P, K, 24, N=160, ragged=feature != "whole corpus", seed=3, dense=feature == "dense")
    if feature == "relevance":
        arguments["relevance"] = rng.uniform(-1, 1, (Q, P)).astype(np.float32)
    elif feature == "item bias" and op != "vrsd":
        arguments.update(bias=rng.standard_normal((Q, P)).astype(np.float32), lambda_b=0.3)
    elif feature == "whole corpus":
        del arguments["candidates"]
    elif feature == "per query":
        arguments["k"] = np.array([2, 150, 1])
        if op != "vrsd":
            arguments.update(lambda_d=np.float32([0, 0.3, 1]), lambda_b=np.float32([1, 0.5, 0]))
    elif feature == "caps":
        arguments.update(groups=rng.integers(0, 9, 160), max_per_group=2, query_groups=np.arange(Q), k=20)
    elif feature == "int32":
        arguments["candidates"] = arguments["candidates"].astype(np.int32)
    elif feature == "dense":
        arguments.update(groups=rng.integers(0, 5, (Q, P)), max_per_group=1)
    elif feature == "empty":
        arguments["candidates"][1] = -1
    elif feature == "initial" and op != "vrsd":  # of the pool and others, twice, none, more than columns
        arguments["initial"] = np.array([[150, *arguments["candidates"][0, :3], 150, -1], [-1] * 6, [-1, *range(5)]])
        arguments.update(groups=rng.integers(0, 9, 160), max_per_group=3, k=12)
    for metric in ("cosine", "dot"):
        arguments["metric"] = metric
        for seed in (0, 1):
            testing.check_selection(op, arguments, run(op, arguments, seed=seed))
            assert "_held_" in kernel_of(module)
        if feature == "relevance" and op != "vrsd":
            testing.check_selection(op, arguments, run(op, dict(arguments, queries=None)))


@pytest.mark.parametrize("op", OPS)
def test_what_cannot_be_picked(run, op):
    """Ids out of range are padding, values that are NaN are left out, and nothing hangs."""
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((150, 16)).astype(np.float16)
    rows[:3, 5] = [np.nan, np.inf, -np.inf]
    queries = rng.standard_normal((2, 16)).astype(np.float32)
    queries[1, 0] = np.nan
    candidates = np.stack([np.arange(140), np.arange(140)]) - 2
    candidates[0, 20:30] = [1 << 40, -(1 << 40), 150, *[-1] * 7]
    result = run(op, {"queries": queries, "embeddings": rows, "k": 140, "candidates": candidates})
    np.testing.assert_array_equal(result.lengths, [125, 0])
    assert not np.isin([0, 1, 2], result.indices).any()
    assert (result.indices[1] == -1).all()
    assert np.isneginf(result.scores[1]).all()


@pytest.mark.parametrize("S", [1, 16, 17, 40])
@pytest.mark.parametrize("op", ["mmr", "msd"])
def test_initial_items_are_picks_before_the_first(run, module, op, S):
    """As many as columns and more; out of rows that the pool has none of, and out of it."""
    arguments = problem_of(op, 2, 140, 6, 64, N=300, kind="clustered", bias=True, groups=True, seed=S)
    rng = np.random.default_rng(S)
    arguments["initial"] = rng.integers(-1, 300, (2, S))
    for metric in ("cosine", "dot"):
        for dtype in (np.int64, np.int32):
            given = arguments | {"metric": metric, "initial": arguments["initial"].astype(dtype)}
            found = run(op, given, seed=1)
            assert "_held_" in kernel_of(module)
            testing.check_selection(op, given, found)
            assert not any(np.isin(found.indices[q], given["initial"][q]).any() for q in range(2))
            assert_same(run(op, given, seed=2), found)


@pytest.mark.filterwarnings("ignore:.*pool.*:UserWarning")
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("D", [48, 400])
def test_vrsd_sums_rows_again_where_they_cancel(run, module, metric, D):
    rng = np.random.default_rng(3)
    for delta in (0.1, 1e-2):
        for problem in (cancelling.problem(metric, delta, False, 0, D), cancelling.pair(metric, delta, 0, D)):
            problem["embeddings"] = problem["embeddings"].astype(np.float16)
            items = problem["candidates"][0]
            pool = np.full((1, 300), -1)
            pool[0, np.sort(rng.choice(300, len(items), replace=False))] = items
            result = run("vrsd", problem | {"candidates": pool}, seed=1)
            assert "_held_" in kernel_of(module)
            assert cancelling.units_off(problem, result) < cancelling.UNITS


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-30, 1e-18, 1e18, 1e37])
def test_queries_of_any_length(run, op, size):
    for metric in ("cosine", "dot"):
        arguments = problem_of(op, 2, 130, 4, 16, kind="duplicates", seed=1) | {"metric": metric}
        arguments["queries"] = (arguments["queries"] / np.abs(arguments["queries"]).max() * size).astype(np.float32)
        testing.check_selection(op, arguments, run(op, arguments), tolerance=0.02 if size == 1e-42 else None)


@pytest.mark.parametrize("op", OPS)
def test_soak(run, op):
    arguments = soaks.problem(op, 150, D=40, dtype="float16")
    if op == "vrsd":
        del arguments["initial"]
    first = run(op, arguments)
    testing.check_selection(op, arguments, first)
    for seed in range(1, 6):
        assert_same(run(op, arguments, seed=seed), first)


@pytest.mark.parametrize("op", OPS)
def test_most_picks_find_their_products_made(run, module, op):
    """Each pass reads 16 rows in each of eight blocks, after the whole pool and 14 rows in each of them."""
    P, D = 1000, 384
    problem = pools(P, D, "best first") | {"k": 10}
    if op != "vrsd":
        problem["lambda_d"] = 0.75
    memory = np.empty((P + 20) * D + 16, np.float16)
    rows = memory[-memory.ctypes.data % 32 // 2 :][: (P + 20) * D].reshape(P + 20, D)  # starts with a sector
    rows[...] = problem["embeddings"]
    problem["embeddings"] = rows
    with module.counted(rows) as reads:
        found = run(op, problem)
        rows_read = reads() / (2 * D)
    testing.check_selection(op, problem, found)
    passes = (rows_read - P - 14 * 8) / (16 * 8)
    assert passes in (0, 1, 2)


def test_what_keeps_other_kernels(run, module, monkeypatch):
    """By size, type, the place of rows, the device, what rows meet, and the variant."""
    good = problem_of("mmr", 2, 140, 4, 40)
    run("mmr", good)
    assert kernel_of(module) == "rsk_mmr_held_256_384_float16"
    rows = good["embeddings"]
    wide = np.zeros((len(rows), 52), np.float16)
    wide[:, :40] = rows
    others = {
        "a type of 32 bits": {"embeddings": rows.astype(np.float32)},
        "a row stride that is not whole packs": {"embeddings": wide[:, :40]},
        "a base that is not aligned": {"embeddings": np.pad(rows, ((0, 0), (0, 8)))[:, 4:44]},
        "dimensions that are not whole packs": {"embeddings": rows[:, :36], "queries": good["queries"][:, :36]},
        "few rows": {"candidates": good["candidates"][:, :100]},
    }
    for what, changes in others.items():
        run("mmr", good | changes)
        assert "_held_" not in kernel_of(module), what
    run("vrsd", problem_of("vrsd", 2, 140, 4, 40) | {"initial": np.array([[3], [4]])})
    assert "_held_" not in kernel_of(module)
    for shape in ((1, 1025, 2, 8), (1, 130, 2, 776)):
        run("vrsd", problem_of("vrsd", *shape))
        assert "_held_" not in kernel_of(module)
    monkeypatch.setattr(Other, "capability", lambda self, like: 89)
    run("mmr", good)
    assert "_held_" not in kernel_of(module)
    monkeypatch.undo()


def test_the_variant_decides(run, module, monkeypatch):
    good = problem_of("vrsd", 1, 140, 2, 8)
    monkeypatch.delenv("RAGSYS_KERNELS_VARIANTS")
    run("vrsd", good)
    assert kernel_of(module) == "rsk_vrsd_resident_float16"
    monkeypatch.setenv("RAGSYS_KERNELS_VARIANTS", "pools=read")
    run("vrsd", good)
    assert kernel_of(module) == "rsk_vrsd_resident_float16"


def test_every_kernel_is_described(module):
    kernels = [kernel for kernel in cuda_configuration.kernels() if kernel.source == "greedy_held"]
    assert sorted(kernel.name for kernel in kernels) == sorted(module.kernels())
    for kernel in kernels:
        rows, dims = map(int, kernel.name.split("_")[3:5])
        assert kernel.fits(rows, dims, 5)
        assert not kernel.fits(rows + 1, dims, 5)
        assert not kernel.fits(rows, dims + 8, 5)
        assert kernel.threads(rows, dims, 5) == dims // 3
        assert kernel.shared_bytes(rows, dims, 5) > 8 * dims * 2


def test_every_barrier_is_listed():
    text = "".join((emulator.SOURCES / name).read_text() for name in ("held_pools.cuh", "greedy_held.cu"))
    assert {int(n) for n in re.findall(r"\b(?:SYNC|CLUSTER_SYNC|AWAIT)\((\d+)", text)} == set(BARRIERS)
    assert "__syncthreads" not in text


# Without 14 an answer may still be right: what a warp tells comes after what it has read.
@pytest.mark.parametrize(
    ("op", "barrier"),
    [("vrsd", 13), *((op, n) for op in ("mmr", "msd") for n in sorted(BARRIERS.keys() - {13, 14}))],
)
def test_a_missing_barrier_is_caught(run, op, barrier):
    """By a wrong answer under some schedule, or by what the emulation finds."""
    arguments = against_the_first(200, 80) if barrier == 13 else problem_of(op, 1, 200, 6, 80, kind="clustered", seed=6)
    if barrier > 14:
        arguments["initial"] = np.arange(40)[None] * 9 % 200
    if barrier == 17:  # without which 15 has nothing to keep apart
        pairs = np.arange(16)[:, None] + [0, 20]  # of each group as many as there may be, one after the other
        arguments |= {"groups": np.arange(400) % 20, "max_per_group": 2, "initial": pairs.reshape(1, -1), "k": 40}
    expected = run(op, arguments)

    def right(seed):
        try:
            result = run(op, arguments, seed=seed, removed=barrier)
        except emulator.LaunchError:
            return False
        return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(result, expected, strict=True))

    assert not all(right(seed) for seed in range(12)), BARRIERS[barrier]


def against_the_first(P, D):
    """Rows of which each nearly cancels the first pick, so that all warps read VRSD's sum."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((1, D)) * np.sign(np.arange(P) - 0.5)[:, None] + 0.03 * rng.standard_normal((P, D))
    return {"queries": -rows[1:2].astype(np.float32), "embeddings": rows.astype(np.float16), "k": 5}


# In processes of their own, built with a sanitizer: one element type, as these builds take long.


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_sanitizers(run, module, sanitizer):
    sanitized = emulator.Module("greedy_held", sanitizer, defines=("RSK_HELD_TYPES=1",))
    for op in OPS:
        arguments = problem_of(op, 1, 137, 5, 24, N=140, bias=True, groups=True, ragged=True, seed=2)
        arguments["candidates"][0, :2] = [140, -7]
        if op != "vrsd":
            arguments["initial"] = np.array([[3, -1, 1 << 40, *range(20, 35)]])
        expected = run(op, arguments)
        for seed in (0, 1):
            assert_same(run(op, arguments, seed=seed, on=sanitized), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "barrier"), [*(("vrsd", n) for n in (9, 12, 13)), *((op, n) for op in ("mmr", "msd") for n in (9, 12, 14))]
)
def test_a_missing_barrier_is_a_race(run, op, barrier):
    """ThreadSanitizer names both accesses."""
    racy = emulator.Module("greedy_held", "thread", defines=("RSK_HELD_TYPES=1",))
    arguments = against_the_first(140, 40)
    if barrier == 14:  # groups of picks; the first columns are the best items, so no other barrier is met
        arguments = pools(140, 40, "best first") | {"k": 4, "lambda_d": 1.0, "max_per_group": 2}
        arguments.update(embeddings=arguments["embeddings"].astype(np.float16), groups=np.arange(160))
    with pytest.raises(emulator.LaunchError, match=r"data race(.|\n)*held_pools\.cuh"):
        run(op, arguments, on=racy, removed=barrier)
