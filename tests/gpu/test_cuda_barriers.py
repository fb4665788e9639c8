"""The barriers of the CUDA kernels of selection: each is left out once, and an answer is wrong or a race is found."""

import re

import cuda_selection
import numpy as np
import pytest
from clustered_pools import pools
from cuda_on_cpu import emulator
from cuda_selection import COLUMNS, OPS, assert_same, problem_of

pytestmark = pytest.mark.sampled(6)

# What each barrier is for; the tests remove it.
BARRIERS = {
    6: "gram: a slice of the rows is there before it is multiplied",
    7: "gram: all slices are multiplied before the products take their place",
    8: "gram: all products are there before a warp picks",
    # Of larger pools, by products with sixteen columns.
    9: "the query and the first columns are there before they are met",
    10: "every block of the cluster has begun before another writes to it",
    11: "the bests of all warps are there before they are compared",
    12: "the columns are there before they are met",
    13: "VRSD: a row is added to the sum before it is read",
    14: "nothing of the last step is read any more when it is changed; a block alone has all bests",
    15: "the columns have been met before initial items take their place",
    16: "initial items are there before they are met",
    17: "the group of an initial item is there before others are compared with it",
}
# Without 14 what a warp tells comes after what it has read: an answer may still be right.
NEEDED = [
    *((op, barrier, "gram") for op in OPS for barrier in (6, 7, 8)),
    ("vrsd", 13, "resident"),
    *((op, 14, "streamed") for op in OPS),  # its block tells itself
    *((op, barrier, "resident") for op in ("mmr", "msd") for barrier in (9, 10, 11, 12, 15, 16, 17)),
]
RACES = [
    *((op, barrier, "gram") for op in OPS for barrier in (6, 7, 8)),
    *(("vrsd", barrier, "resident") for barrier in (9, 12, 13)),
    ("mmr", 14, "streamed"),
    *((op, barrier, "resident") for op in ("mmr", "msd") for barrier in (9, 12, 14)),
]


@pytest.fixture
def run(monkeypatch):
    return cuda_selection.Runs(monkeypatch)


def test_every_barrier_is_listed():
    kinds = ("gram", "column", "resident", "streamed")
    text = "".join(path.read_text() for kind in kinds for path in emulator.SOURCES.glob(f"*{kind}*.cu*"))
    assert {int(n) for n in re.findall(r"\b(?:SYNC|CLUSTER_SYNC|AWAIT)\((\d+)", text)} == set(BARRIERS)
    assert "__syncthreads" not in text


@pytest.mark.parametrize(
    ("op", "barrier", "place", "dtype"),
    [
        *((*needed, "float16") for needed in NEEDED),
        *(pytest.param(*needed, "int8", marks=pytest.mark.slow) for needed in NEEDED if needed[1] in (6, 7, 8)),
    ],
)
def test_a_missing_barrier_is_caught(run, op, barrier, place, dtype):
    """By a wrong answer under some schedule, by what the emulation finds, or by threads that wait in different ones."""
    arguments = _that_needs(op, barrier, place, dtype)
    expected = run(op, arguments, place=place)

    def right(seed):
        try:
            result = run(op, arguments, place=place, seed=seed, removed=barrier)
        except emulator.LaunchError:
            return False
        return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(result, expected, strict=True))

    assert not all(right(seed) for seed in range(12)), BARRIERS[barrier]


def _that_needs(op, barrier, place, dtype):
    if barrier == 13:
        return against_the_first(200, 80)
    if place not in COLUMNS:
        return problem_of(op, 1, 60, 5, 416, dtype=dtype, seed=6)
    arguments = problem_of(op, 1, 200, 6, 80, dtype=dtype, kind="clustered", seed=6)
    if barrier > 14:
        arguments["initial"] = np.arange(40)[None] * 9 % 200
    if barrier == 17:  # without which 15 has nothing to keep apart
        pairs = np.arange(16)[:, None] + [0, 20]  # of each group as many as there may be, one after the other
        arguments |= {"groups": np.arange(400) % 20, "max_per_group": 2, "initial": pairs.reshape(1, -1), "k": 40}
    return arguments


def against_the_first(P, D):
    """Rows of which each nearly cancels the first pick, so that all warps read VRSD's sum."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((1, D)) * np.sign(np.arange(P) - 0.5)[:, None] + 0.03 * rng.standard_normal((P, D))
    return {"queries": -rows[1:2].astype(np.float32), "embeddings": rows.astype(np.float16), "k": 5}


# --- In processes of their own, built with a sanitizer. One element type: what differs between them is covered above.


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("place", cuda_selection.PLACES)
@pytest.mark.parametrize("op", OPS)
def test_sanitizers(run, sanitizer, op, place):
    P, D = (137, 24) if place in COLUMNS else (37, 19)
    arguments = problem_of(op, 1, P, 4, D, N=P + 3, dtype="float16", bias=True, groups=True, ragged=True, seed=2)
    if op != "vrsd" or place not in COLUMNS:
        arguments["initial"] = np.array([[3, -1, 1 << 40, *range(20, 35 if place in COLUMNS else 20)]])
    arguments["candidates"][0, :2] = [P + 3, -7]
    expected = run(op, arguments, place=place)
    for seed in (0, 1):
        assert_same(run(op, arguments, place=place, seed=seed, sanitizer=sanitizer), expected)
    for dtype in ("float16", "int8") if place == "gram" else ():
        aligned = problem_of(op, 1, 35, 3, 144, dtype=dtype, kind="duplicates")
        assert_same(run(op, aligned, place=place, sanitizer=sanitizer), run(op, aligned, place=place))


@pytest.mark.slow
@pytest.mark.parametrize(("op", "barrier", "place"), RACES)
def test_a_missing_barrier_is_a_race(run, op, barrier, place):
    """ThreadSanitizer names both accesses."""
    arguments = _that_races(op, barrier, place)
    for seed in range(4):  # what a thread reads too early may also lead it out of all memory, before any report
        with pytest.raises(emulator.LaunchError) as error:
            run(op, arguments, place=place, seed=seed, removed=barrier, sanitizer="thread")
        if re.search(r"data race(.|\n)*(gram|column)_\w+\.cuh", str(error.value)):
            return
    raise error.value


def _that_races(op, barrier, place):
    if barrier == 14:  # groups of picks; the first columns are the best items, so no other barrier is met
        arguments = pools(140, 40, "best first") | {"k": 4, "lambda_d": 1.0}
        arguments["embeddings"] = arguments["embeddings"].astype(np.float16)
        # A block that tells itself reads its table too early: what lies there as a pick has no group.
        return arguments if place == "streamed" else arguments | {"max_per_group": 2, "groups": np.arange(160)}
    if place in COLUMNS:
        return against_the_first(140, 40)
    return problem_of(op, 1, 37, 3, 40, seed=6)
