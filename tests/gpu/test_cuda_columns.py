"""CUDA kernels by products with sixteen vectors, of rows in registers or read in each pass: what only they have.

What all kernels of selection are asked is in test_cuda_selection.py.
"""

import cuda_selection
import numpy as np
import pytest
from clustered_pools import pools
from cuda_on_cpu import emulator
from cuda_selection import COLUMNS, OPS, assert_same, dtypes, problem_of

from ragsys_kernels import BackendUnavailableError, Corpus, _dispatch, testing
from ragsys_kernels._gpu import preference
from ragsys_kernels.selection.capabilities import Needs
from ragsys_kernels.selection.cuda import backend as cuda_kernels
from ragsys_kernels.selection.request import Request

pytestmark = pytest.mark.sampled(6)


@pytest.fixture
def run(monkeypatch):
    return cuda_selection.Runs(monkeypatch)


# Around what each kernel has room for, the rows of a warp and K = P.
@pytest.mark.parametrize(
    ("P", "K", "D", "kernel"),
    [
        (129, 129, 8, "resident_256_384"),
        (256, 3, 384, "resident_256_384"),
        (257, 3, 376, "resident_512_384"),
        (512, 3, 32, "resident_512_384"),
        (513, 3, 64, "resident_1024_384"),
        (1024, 3, 40, "resident_1024_384"),
        (129, 3, 392, "resident_256_768"),
        (300, 3, 768, "resident_512_768"),
        (1000, 2, 768, "resident_1024_768"),
        (1024, 2, 400, "resident_1024_768"),
        (129, 20, 776, "streamed_1024"),
        (1025, 2, 40, "streamed_2048"),
        (2048, 2, 24, "streamed_2048"),
        (2049, 2, 8, "streamed_4096"),
        (4096, 2, 32, "streamed_4096"),
    ],
)
@pytest.mark.parametrize("dtype", dtypes("float16", "bfloat16"))
@pytest.mark.parametrize("op", OPS)
def test_sizes(run, op, P, K, D, kernel, dtype):
    arguments = problem_of(op, 1, P, K, D, dtype=dtype, kind="clustered", bias=True, seed=P)
    testing.check_selection(op, arguments, run(op, arguments, place="resident", seed=1))
    assert run.kernel == f"rsk_{op}_{kernel}_{dtype}"


@pytest.mark.parametrize("S", [1, 16, 17, 40])
@pytest.mark.parametrize("op", ["mmr", "msd"])
def test_initial_items_are_picks_before_the_first(run, op, S):
    """As many as columns and more; out of rows that the pool has none of, and out of it."""
    arguments = problem_of(op, 1, 140, 4, 64, dtype="float16", N=300, kind="clustered", bias=True, groups=True, seed=S)
    arguments["initial"] = np.random.default_rng(S).integers(-1, 300, (1, S))
    for metric, dtype in (("cosine", np.int64), ("dot", np.int32)):
        given = arguments | {"metric": metric, "initial": arguments["initial"].astype(dtype)}
        found = run(op, given, place="resident", seed=1)
        assert "_resident_" in run.kernel
        testing.check_selection(op, given, found)
        assert not np.isin(found.indices, given["initial"]).any()
        assert_same(run(op, given, place="resident", seed=2), found)


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
    blocks, again = (8, 0) if place == "resident" else (1, P)
    after_the_first = rows_read - P - 14 * blocks
    passes = -(-after_the_first // (16 * blocks + again))
    assert passes in (0, 1, 2, *((3,) if op == "msd" else ()))
    picked = passes * (16 * blocks + again) - after_the_first
    assert picked == 0 if place == "resident" else passes <= picked <= 9 * passes


@pytest.fixture
def without_launches(monkeypatch):
    monkeypatch.setattr(emulator.Module, "_launch", lambda *launch: None)


def test_which_kernel_runs_on_which_device(run, without_launches):
    for capability, P, D, kernel in (
        (90, 1024, 768, "resident_1024_768"),
        (90, 1025, 768, "streamed_2048"),
        (90, 130, 776, "streamed_1024"),
        (89, 140, 40, "streamed_1024"),
        (89, 1024, 40, "streamed_1024"),
        (80, 100, 33, "gram_112"),
    ):
        run.capability = capability
        run("vrsd", problem_of("vrsd", 1, P, 2, D), place="resident")
        assert run.kernel == f"rsk_vrsd_{kernel}_float16"


def refused():
    """What no kernel takes: the op, its arguments, the device, and what the reason ends with."""
    good = problem_of("mmr", 2, 140, 2, 40)
    rows, begin = good["embeddings"], ", which do not all begin at multiples of 16 bytes"
    wide = np.zeros((len(rows), 52), np.float16)
    wide[:, :40] = rows
    memory = np.zeros(rows.size + 8, np.float16)
    first = -memory.ctypes.data % 16 // 2 + 4
    moved = memory[first : first + rows.size].reshape(rows.shape)
    short = {"embeddings": rows[:, :36].copy(), "queries": good["queries"][:, :36].copy()}
    yield "mmr", good | {"embeddings": rows.astype(np.float32)}, 90, "140 items of float32, rows of 40 dimensions"
    yield "mmr", problem_of("mmr", 2, 20, 2, 40, dtype="float32"), 90, "20 items of float32, rows of 40 dimensions"
    yield "mmr", problem_of("mmr", 1, 140, 2, 40, dtype="int8"), 90, "140 items of int8, rows of 40 dimensions"
    yield "mmr", good | {"embeddings": wide[:, :40]}, 90, f"140 items of float16, rows of 40 dimensions{begin}"
    yield "mmr", good | {"embeddings": moved}, 90, f"140 items of float16, rows of 40 dimensions{begin}"
    yield "mmr", good | short, 90, f"140 items of float16, rows of 36 dimensions{begin}"
    initial = problem_of("vrsd", 2, 140, 2, 40) | {"initial": np.array([[3], [4]])}
    yield "vrsd", initial, 90, "140 items and 1 initial items of float16, rows of 40 dimensions"
    for capability, P, D in ((90, 4097, 8), (90, 130, 8192), (89, 1025, 40)):
        problem = problem_of("vrsd", 1, P, 2, D)
        yield "vrsd", problem, capability, f"{P} items of float16, rows of {D} dimensions"
    yield "mmr", problem_of("mmr", 2, 20, 2, 40), 75, "need compute capability 8.0, got 7.5"


@pytest.mark.parametrize("case", range(11))
def test_what_no_kernel_takes_is_refused_by_name(run, without_launches, monkeypatch, case):
    """Where the backend is chosen, by the arrays as they are given, so that `auto` passes it over; and at a launch."""
    torch = pytest.importorskip("torch")
    op, arguments, run.capability, got = list(refused())[case]
    with pytest.raises(BackendUnavailableError, match=rf"^{op}: .+ its kernels .*{got}; backend 'triton' ") as error:
        run(op, arguments, place="resident")
    assert not run.launches
    corpus = arguments["embeddings"]
    rows = corpus.data if isinstance(corpus, Corpus) else corpus
    given = {"embeddings": torch.from_numpy(rows)}
    request = Request(op, **{"k": 1, "queries": None, **arguments})
    reason = str(error.value).partition("cannot run here: ")[2]
    for initial in (request.initial, None if request.initial is None else request.initial.tolist()):
        assert Needs.of(request.changed(initial=initial), arrays=given).lacking("cuda") == reason
    monkeypatch.setattr(_dispatch, "why_not", lambda name: "it is not here" if name == "triton" else None)
    needs = Needs.of(request, arrays=given)
    for backend, wanted in (("cuda", "backend 'cuda' was requested"), ("auto", "triton: it is not here; cuda: ")):
        with pytest.raises(BackendUnavailableError, match=f"^{op}: .*{wanted}") as error:
            _dispatch.choose(op, "selection", "cuda:0", backend, None, needs)
        assert reason in str(error.value)
    monkeypatch.setattr(_dispatch, "why_not", lambda name: None)
    monkeypatch.setattr(preference, "order", lambda call: ("cuda", "triton"))
    monkeypatch.setattr(_dispatch, "module_of", lambda family, name: cuda_kernels if name == "cuda" else Triton)
    assert _dispatch.choose(op, "selection", "cuda:0", "auto", None, needs)[0] == "triton"


class Triton:
    """What is looked at of a backend."""

    RULES, CONSTRAINTS = frozenset(OPS), frozenset(("initial",))


def test_what_a_kernel_takes_is_not_refused(run):
    torch = pytest.importorskip("torch")
    for place, P, D in (("gram", 20, 33), ("resident", 140, 40), ("streamed", 140, 40)):
        arguments = problem_of("mmr", 1, P, 2, D)
        run("mmr", arguments, place=place)
        given = {"embeddings": torch.from_numpy(arguments["embeddings"])}
        for request in (
            Request("mmr", **arguments),
            Request("mmr", **arguments).changed(candidates=arguments["candidates"].tolist(), k=np.int64(2)),
        ):
            assert Needs.of(request, arrays=given).lacking("cuda") is None
