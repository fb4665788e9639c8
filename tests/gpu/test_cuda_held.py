"""CUDA kernels for pools in the registers of a cluster, run on the CPU: what only they have.

What all kernels of selection are asked is in test_cuda_selection.py.
"""

import cuda_selection
import numpy as np
import pytest
from clustered_pools import pools
from cuda_on_cpu import emulator
from cuda_selection import OPS, assert_same, dtypes, problem_of

from ragsys_kernels import testing

pytestmark = pytest.mark.sampled(6)


@pytest.fixture
def run(monkeypatch):
    return cuda_selection.Runs(monkeypatch)


# Around what each kernel has room for, the rows of a warp and K = P.
@pytest.mark.parametrize(
    ("P", "K", "D", "kernel"),
    [
        (129, 129, 8, "256_384"),
        (256, 3, 384, "256_384"),
        (257, 3, 376, "512_384"),
        (512, 3, 32, "512_384"),
        (513, 3, 64, "1024_384"),
        (1024, 3, 40, "1024_384"),
        (129, 3, 392, "256_768"),
        (300, 3, 768, "512_768"),
        (1000, 2, 768, "1024_768"),
        (1024, 2, 400, "1024_768"),
    ],
)
@pytest.mark.parametrize("dtype", dtypes("float16", "bfloat16"))
@pytest.mark.parametrize("op", OPS)
def test_sizes(run, op, P, K, D, kernel, dtype):
    arguments = problem_of(op, 1, P, K, D, dtype=dtype, kind="clustered", bias=True, seed=P)
    testing.check_selection(op, arguments, run(op, arguments, place="held", seed=1))
    assert run.kernel == f"rsk_{op}_held_{kernel}_{dtype}"


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


@pytest.mark.parametrize("op", OPS)
def test_most_picks_find_their_products_made(run, op):
    """Each pass reads 16 rows in each of eight blocks, after the whole pool and 14 rows in each of them."""
    P, D = 1000, 384
    problem = pools(P, D, "best first") | {"k": 10}
    if op != "vrsd":
        problem["lambda_d"] = 0.75
    problem["embeddings"] = rows = cuda_selection.of_a_sector(problem["embeddings"].astype(np.float16))
    with cuda_selection.kernels("greedy_held", "float16").counted(rows) as reads:
        found = run(op, problem, place="held")
        rows_read = reads() / (2 * D)
    testing.check_selection(op, problem, found)
    passes = (rows_read - P - 14 * 8) / (16 * 8)
    assert passes in (0, 1, 2, *((3,) if op == "msd" else ()))


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
        assert "_held_" not in run.kernel, what
    of_vrsd = [problem_of("vrsd", *shape, dtype="float16") for shape in ((1, 1025, 2, 8), (1, 130, 2, 776))]
    of_vrsd.append(problem_of("vrsd", 2, 140, 2, 40, dtype="float16") | {"initial": np.array([[3], [4]])})
    for arguments in of_vrsd:
        run("vrsd", arguments, place="held")
        assert "_held_" not in run.kernel
    run("mmr", good)  # without the variant
    assert run.kernel == "rsk_mmr_resident_float16"
    run.capability = 89
    run("mmr", good, place="held")
    assert "_held_" not in run.kernel
