"""CUDA kernels by products with sixteen vectors, of rows in registers or read in each pass: what only they have.

What all kernels of selection are asked is in test_cuda_selection.py.
"""

import re

import cuda_selection
import numpy as np
import pytest
from clustered_pools import pools
from cuda_on_cpu import emulator
from cuda_selection import COLUMNS, OPS, assert_same, dtypes, problem_of

from ragsys_kernels import testing

pytestmark = pytest.mark.sampled(6)


@pytest.fixture
def run(monkeypatch):
    return cuda_selection.Runs(monkeypatch)


# Around what each kernel has room for, the rows of a warp and K = P.
@pytest.mark.parametrize(
    ("P", "K", "D", "kernel"),
    [
        (129, 129, 8, "held_256_384"),
        (256, 3, 384, "held_256_384"),
        (257, 3, 376, "held_512_384"),
        (512, 3, 32, "held_512_384"),
        (513, 3, 64, "held_1024_384"),
        (1024, 3, 40, "held_1024_384"),
        (129, 3, 392, "held_256_768"),
        (300, 3, 768, "held_512_768"),
        (1000, 2, 768, "held_1024_768"),
        (1024, 2, 400, "held_1024_768"),
        (129, 20, 776, "met_1024"),
        (1025, 2, 40, "met_2048"),
        (2048, 2, 24, "met_2048"),
        (2049, 2, 8, "met_4096"),
        (4096, 2, 32, "met_4096"),
    ],
)
@pytest.mark.parametrize("dtype", dtypes("float16", "bfloat16"))
@pytest.mark.parametrize("op", OPS)
def test_sizes(run, op, P, K, D, kernel, dtype):
    arguments = problem_of(op, 1, P, K, D, dtype=dtype, kind="clustered", bias=True, seed=P)
    testing.check_selection(op, arguments, run(op, arguments, place="held", seed=1))
    assert run.kernel == f"rsk_{op}_{kernel}_{dtype}"


@pytest.mark.parametrize("S", [1, 16, 17, 40])
@pytest.mark.parametrize("op", ["mmr", "msd"])
def test_initial_items_are_picks_before_the_first(run, op, S):
    """As many as columns and more; out of rows that the pool has none of, and out of it."""
    arguments = problem_of(op, 1, 140, 4, 64, dtype="float16", N=300, kind="clustered", bias=True, groups=True, seed=S)
    arguments["initial"] = np.random.default_rng(S).integers(-1, 300, (1, S))
    for metric, dtype in (("cosine", np.int64), ("dot", np.int32)):
        given = arguments | {"metric": metric, "initial": arguments["initial"].astype(dtype)}
        found = run(op, given, place="held", seed=1)
        assert "_held_" in run.kernel
        testing.check_selection(op, given, found)
        assert not np.isin(found.indices, given["initial"]).any()
        assert_same(run(op, given, place="held", seed=2), found)


@pytest.mark.parametrize("place", COLUMNS)
@pytest.mark.parametrize("op", OPS)
def test_most_picks_find_their_products_made(run, op, place):
    """The pool is read once, or in each pass but for what was picked; 14 rows first and 16 a pass in each block."""
    P, D = 1000, 384
    problem = pools(P, D, "best first") | {"k": 10}
    if op != "vrsd":
        problem["lambda_d"] = 0.75
    problem["embeddings"] = rows = cuda_selection.of_a_sector(problem["embeddings"].astype(np.float16))
    with cuda_selection.kernels(f"greedy_{place}", "float16").counted(rows) as reads:
        found = run(op, problem, place=place)
        rows_read = reads() / (2 * D)
    testing.check_selection(op, problem, found)
    blocks, again = (8, 0) if place == "held" else (1, P)
    after_the_first = rows_read - P - 14 * blocks
    passes = -(-after_the_first // (16 * blocks + again))
    assert passes in (0, 1, 2, *((3,) if op == "msd" else ()))
    picked = passes * (16 * blocks + again) - after_the_first
    assert picked == 0 if place == "held" else passes <= picked <= 9 * passes


def test_what_keeps_other_kernels(run, monkeypatch):
    """By size, type, the place of rows, the device, what rows meet, and the variant; none is run."""
    monkeypatch.setattr(emulator.Module, "_launch", lambda *launch: None)
    good = problem_of("mmr", 2, 140, 2, 40, dtype="float16")
    run("mmr", good, place="held")
    assert run.kernel == "rsk_mmr_held_256_384_float16"
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
        run("mmr", good | changes, place="held")
        assert not re.search("_(held|met)_", run.kernel), what
    initial = problem_of("vrsd", 2, 140, 2, 40, dtype="float16") | {"initial": np.array([[3], [4]])}
    run("vrsd", initial, place="held")
    assert run.kernel == "rsk_vrsd_resident_float16"
    run("mmr", good)  # without the variant
    assert run.kernel == "rsk_mmr_resident_float16"
    for capability, P, D, kernel in (
        (90, 1024, 768, "held_1024_768"),
        (90, 1025, 768, "met_2048"),
        (90, 130, 776, "met_1024"),
        (90, 4097, 8, None),
        (90, 130, 8192, None),  # of 16 vectors there is no room
        (89, 140, 40, "met_1024"),
        (89, 1024, 40, "met_1024"),
        (89, 1025, 40, None),
        (75, 1024, 40, None),
    ):
        run.capability = capability
        run("vrsd", problem_of("vrsd", 1, P, 2, D, dtype="float16"), place="held")
        chosen = re.search("(held|met)_(.+)_float16", run.kernel)
        assert (chosen and chosen[0]) == (kernel and f"{kernel}_float16"), (capability, P, D)
