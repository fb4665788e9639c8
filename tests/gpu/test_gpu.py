"""The backends on a real device; `make gpu-check` runs these. Without a GPU they are skipped."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from backends import missing

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, testing
from ragsys_kernels._base import arrays
from ragsys_kernels._gpu import plans

torch = pytest.importorskip("torch")
import scoring_oracle as oracle  # noqa: E402
import soaks  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


@pytest.fixture(autouse=True)
def device():
    if DEVICE == "cuda" and not torch.cuda.is_available():
        missing("triton", f"torch {torch.__version__} finds no GPU", "cuda")
    return torch.device(DEVICE)


@pytest.fixture(params=["triton", "cuda"])
def backend(request, device):
    """One that selects."""
    reason = _dispatch.why_not(request.param)
    if reason is not None:
        missing(request.param, reason)
    return request.param


@pytest.fixture
def scorer(device):
    """The one that has log-probabilities."""
    if reason := _dispatch.why_not("triton"):
        missing("triton", reason)
    return "triton"


def moved(problem, where=None):
    """The arrays of a call on the device."""
    where = where or DEVICE
    arrays = {name: torch.as_tensor(x).to(where) for name, x in problem.items() if hasattr(x, "shape")}
    return {**problem, **arrays}


def hosted(result):
    """A Selection with NumPy arrays."""
    return type(result)(*(np.asarray(torch.as_tensor(field).cpu()) for field in result))


def select(op, problem, **options):
    result = getattr(rk, op)(**moved(problem), **options)
    assert all(field.device.type == torch.device(DEVICE).type for field in result)
    return hosted(result)


# --- Selection against the specification.

# Gram on chip, streaming pools, K = P, D of odd sizes; the whole corpus is below.
SHAPES = [
    (1, 1, 1, 1),
    (3, 20, 4, 384),
    (2, 100, 10, 768),
    (5, 128, 128, 33),
    (2, 129, 5, 100),
    (2, 1000, 10, 384),
    (1, 4096, 6, 64),
]
DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.filterwarnings("ignore:.*pool.*:UserWarning")
@pytest.mark.parametrize("op", ["mmr", "vrsd"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_picks_are_legal(backend, op, dtype, shape):
    problem = testing.selection_problem(*shape, dtype=dtype, ragged=shape[1] > 4, bias=op == "mmr", kind="clustered")
    if backend == "cuda" and (dtype == "float32" or (shape[1] > 126 and shape[3] % 8)):
        with pytest.raises(
            rk.BackendUnavailableError, match=f"{op}: .+ its kernels take pools and initial items of up"
        ):
            select(op, problem, backend=backend)
        return
    testing.check_selection(op, problem, select(op, problem, backend=backend), tolerance=TOLERANCES[dtype])


# Products of 16-bit rows are exact in float32, but the kernels may round a normalised row's products once more.
TOLERANCES = {"float32": None, "float16": 2e-3, "bfloat16": 1e-2}


@pytest.mark.filterwarnings("ignore:.*pool.*:UserWarning")
@pytest.mark.parametrize("op", ["mmr", "vrsd"])
@pytest.mark.parametrize("dense", [False, True], ids=["ids", "dense"])
@pytest.mark.parametrize("shape", [(4, 60, 8, 16), (3, 300, 9, 40)], ids=str)
def test_exact_sums_give_the_picks_of_the_reference(backend, op, dense, shape):
    problem = testing.selection_problem(
        *shape, kind="integers", dtype="float16", dense=dense, bias=op == "mmr", groups=True, ragged=not dense
    )
    if op == "vrsd":
        del problem["lambda_d"], problem["lambda_b"]
    expected = getattr(rk, op)(**problem, backend="reference")
    result = select(op, problem, backend=backend)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_array_equal(result.lengths, expected.lengths)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-6)


@pytest.mark.parametrize("op", ["mmr", "vrsd"])
def test_whole_corpus(backend, op):
    problem = testing.selection_problem(7, 3000, 5, 96, N=3000)
    del problem["candidates"]
    if backend == "cuda":
        with pytest.raises(rk.BackendUnavailableError, match=f"{op}: .+ its kernels take no corpus without candidates"):
            select(op, problem, backend=backend)
        return
    testing.check_selection(op, problem, select(op, problem, backend=backend))


@pytest.mark.filterwarnings("ignore:.*pool.*:UserWarning")
@pytest.mark.parametrize("op", ["mmr", "vrsd"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(9, 129, 5, 64), (9, 500, 10, 384), (300, 1000, 10, 384), (9, 1024, 12, 768)], ids=str
)
def test_pools_in_the_registers_of_clusters(backend, op, dtype, shape):
    if backend != "cuda":
        pytest.skip("of the CUDA C++ kernels")
    problem = testing.selection_problem(*shape, dtype=dtype, ragged=True, groups=True, bias=op == "mmr")
    found = select(op, problem, backend=backend)
    testing.check_selection(op, problem, found, tolerance=TOLERANCES[dtype])
    for _ in range(20):  # bits that a race would change
        for a, b in zip(found, select(op, problem, backend=backend), strict=True):
            np.testing.assert_array_equal(a, b)


def test_options_of_each_query(backend):
    problem = testing.selection_problem(6, 50, 8, 24, dtype="float16", bias=True, groups=True, ragged=True)
    rng = np.random.default_rng(1)
    problem |= {
        "k": rng.integers(1, 9, 6),
        "lambda_d": rng.random(6, np.float32),
        "lambda_b": rng.random(6, np.float32),
        "initial": np.stack([rng.permutation(100)[:3] for _ in range(6)]),
    }
    testing.check_selection("mmr", problem, select("mmr", problem, backend=backend), tolerance=2e-3)


def test_relevance_given(backend):
    problem = testing.selection_problem(5, 200, 6, 48, dtype="float16")
    problem["relevance"] = np.random.default_rng(2).random((5, 200), np.float32)
    testing.check_selection("mmr", problem, select("mmr", problem, backend=backend), tolerance=2e-3)
    del problem["queries"]
    testing.check_selection("mmr", problem, select("mmr", problem, queries=None, backend=backend), tolerance=2e-3)


@pytest.mark.parametrize("method", ["rrf", "minmax", "zscore"])
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_lists_are_fused_and_relevance_decays_on_the_device(device, library, method):
    rng = np.random.default_rng(0)
    lists = [(np.stack([rng.choice(99, n, replace=False) for _ in range(9)]), rng.random((9, n))) for n in (20, 7, 31)]
    lists[0][0][3, 5:] = -1
    move = pytest.importorskip("cupy").asarray if library == "cupy" else lambda x: torch.as_tensor(x).to(device)
    expected = rk.fuse(lists, method, [1, 0.5, 0.25])
    found = rk.fuse([tuple(map(move, pair)) for pair in lists], method, [1, 0.5, 0.25])
    assert all(type(x).__module__.startswith(library) for x in found)
    ids, relevance = map(arrays.to_host, found)
    np.testing.assert_allclose(relevance, expected.relevance, rtol=1e-6)
    assert np.array_equal(ids, expected.candidates)
    ages = rng.gamma(1, 30, ids.shape)
    later = arrays.to_host(rk.decayed(found.relevance, move(ages), 20, floor=0.1))
    np.testing.assert_allclose(later, rk.decayed(relevance, ages, 20, floor=0.1), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_corpus_on_the_device_selects_like_one_on_the_host(device, dtype):
    rng = np.random.default_rng(3)
    rows, queries = rng.standard_normal((5000, 64), np.float32), rng.standard_normal((20, 64), np.float32)
    host = rk.Corpus(rows, dtype=dtype, bias=rng.random(5000))
    corpus = host.to(DEVICE)
    on_device = torch.from_numpy(queries).to(DEVICE)
    values = corpus.search(on_device, 10)[1]
    np.testing.assert_allclose(values.cpu(), host.search(queries, 10)[1], atol=1e-3)
    for pool in (50, None):
        result = hosted(corpus.select(on_device, 5, pool=pool))
        problem = {"queries": queries, "embeddings": host, "k": 5}
        if pool is not None:
            problem["candidates"] = np.asarray(corpus.search(on_device, pool)[0].cpu())
        testing.check_selection("mmr", problem, result, tolerance=1e-5)


@pytest.mark.parametrize("variant", ["bits", "dense"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_a_whole_corpus_in_every_variant(device, dtype, variant, monkeypatch):
    """The picks are the host's under each."""
    monkeypatch.setenv("RAGSYS_KERNELS_VARIANTS", f"corpus={variant}")
    problem = testing.selection_problem(20, 20, 6, 100, kind="clustered", N=17_000, seed=4)
    corpus = rk.Corpus(problem["embeddings"], dtype=dtype)
    on_device = corpus.to(DEVICE)
    picks = hosted(rk.mmr(torch.as_tensor(problem["queries"]).to(DEVICE), on_device, 6))
    testing.check_selection("mmr", {"queries": problem["queries"], "embeddings": corpus, "k": 6}, picks, tolerance=1e-5)


def test_same_bits_again(backend):
    problem = moved(testing.selection_problem(16, 200, 8, 104, kind="clustered", dtype="float16"))
    first, second = (rk.mmr(**problem, backend=backend) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*pool.*:UserWarning")
@pytest.mark.parametrize("op", ["mmr", "vrsd"])
@pytest.mark.parametrize("P", soaks.POOLS)
def test_soak(backend, op, P):
    """1,000 calls have the bits of the first. racecheck sees shared memory only, and some state is in global memory."""
    problem = soaks.problem(op, P, D=40, dtype="float16")
    if backend == "cuda" and op == "vrsd" and P > 126:
        del problem["initial"]
    given = moved(problem)
    first = getattr(rk, op)(**given, backend=backend)
    testing.check_selection(op, problem, hosted(first), tolerance=2e-3)
    differs = torch.zeros((), dtype=torch.bool, device=DEVICE)
    for _ in range(1000):
        for a, b in zip(first, getattr(rk, op)(**given, backend=backend), strict=True):
            differs |= ~((a == b) | (a.isnan() & b.isnan())).all()
    assert not differs


def test_offsets_beyond_two_to_the_31(backend, device):
    """Rows at the far end of a corpus of more than 2^31 elements."""
    N, D = (1 << 31) // 64 + 1000, 64
    if device.type != "cuda" or torch.cuda.mem_get_info(device)[0] < 2 * 2 * N * D:
        pytest.skip("needs 9 GB of device memory")
    rows = torch.zeros((N, D), dtype=torch.float16, device=device)
    rows[-500:] = torch.randint(-3, 4, (500, D), dtype=torch.float16, device=device)
    candidates = torch.arange(N - 400, N, device=device)[None]
    queries = torch.ones((1, D), device=device)
    options = {"metric": "dot", "lambda_d": 0.5, "backend": backend}
    far = rk.mmr(queries, rows, 6, candidates=candidates, **options).indices
    near = rk.mmr(queries, rows[-400:].clone(), 6, candidates=candidates - (N - 400), **options).indices
    assert torch.equal(far, near + N - 400)


# --- Scoring against float64.


def logps(x, targets):
    z = np.asarray(x.double().cpu())
    return np.array([oracle.logp(row, int(t)) for row, t in zip(z, targets.cpu(), strict=True)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (3, 17), (9, 50_257), (300, 1000), (2, 262_144)], ids=str)
def test_log_probabilities_of_logits(scorer, device, dtype, shape):
    generator = torch.Generator().manual_seed(0)
    x = (4 * torch.randn(shape, generator=generator)).to(device, getattr(torch, dtype))
    x[0, 0] = -torch.inf
    targets = torch.randint(1, shape[1], shape[:1], generator=generator).to(device)
    result = rk.token_logprobs(x, targets, backend=scorer)
    assert result.device == x.device
    oracle.assert_close(result.cpu(), logps(x, targets))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 100, 16), (5, 1003, 40), (70, 5000, 256)], ids=str)
def test_log_probabilities_of_hidden_states(scorer, device, dtype, shape):
    T, V, D = shape
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((T, D), generator=generator).to(device, getattr(torch, dtype))
    weight = (torch.randn((V, D), generator=generator) * 4 / D**0.5).to(device, getattr(torch, dtype))
    targets = torch.randint(V, (T,), generator=generator).to(device)
    cu = torch.tensor([0, T // 2, T], device=device)
    result = rk.answer_logprobs(hidden=hidden, weight=weight, targets=targets, cu_answers=cu, backend=scorer)
    exact = logps(hidden.double() @ weight.double().T, targets)
    np.testing.assert_allclose(result.logp.cpu(), exact, atol=2e-5)
    np.testing.assert_allclose(result.sum.cpu(), [exact[: T // 2].sum(), exact[T // 2 :].sum()], atol=2e-5 * T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [640, 1024, 2048, 4096])
def test_many_dimensions(scorer, device, dtype, D):
    """Matrix units add with truncation: one chain of them over D would be 2 to 10 times further off."""
    generator = torch.Generator().manual_seed(D)
    hidden = torch.randn((70, D), generator=generator).to(device, getattr(torch, dtype))
    weight = (torch.randn((5000, D), generator=generator) * 4 / D**0.5).to(device, getattr(torch, dtype))
    targets = torch.randint(5000, (70,), generator=generator).to(device)
    found = rk.answer_logprobs(hidden=hidden, weight=weight, targets=targets, backend=scorer).logp
    error = np.abs(np.asarray(found.double().cpu()) - logps(hidden.double() @ weight.double().T, targets)).max()
    chain = dtype == "float32"  # of D multiply-adds, rounded to the nearest
    assert error <= oracle.linear_gate(D) * (5 if chain else 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [64, 130])
def test_hidden_states_have_their_bits_in_any_batch(scorer, device, dtype, D):
    generator = torch.Generator().manual_seed(D)
    hidden = torch.randn((512, D), generator=generator).to(device, getattr(torch, dtype))
    weight = torch.randn((3000, D), generator=generator).to(device, getattr(torch, dtype))
    targets = torch.randint(3000, (512,), generator=generator).to(device)
    want = ("logp", "lse", "max", "entropy", "rank")
    for fields in (("logp",), want):
        call = {"weight": weight, "want": fields, "reduce": (), "backend": scorer}
        together = rk.answer_logprobs(hidden=hidden, targets=targets, **call)
        for T in (1, 64, 65):
            alone = rk.answer_logprobs(hidden=hidden[:T].clone(), targets=targets[:T], **call)
            last = rk.answer_logprobs(hidden=hidden[512 - T :], targets=targets[512 - T :], **call)
            for field in fields:
                assert torch.equal(getattr(alone, field), getattr(together, field)[:T]), (field, T)
                assert torch.equal(getattr(last, field), getattr(together, field)[512 - T :]), (field, T)


def test_no_rows(scorer, device):
    result = rk.token_logprobs(torch.zeros((0, 9), device=device), torch.zeros(0, dtype=torch.int64, device=device))
    assert result.shape == (0,)


def test_a_row_has_the_same_bits_in_any_batch(scorer, device):
    x = torch.randn((64, 50_257), device=device)
    targets = torch.randint(50_257, (64,), device=device)
    together = rk.token_logprobs(x, targets, backend=scorer)
    alone = [rk.token_logprobs(x[i : i + 1], targets[i : i + 1], backend=scorer) for i in (0, 31, 63)]
    assert torch.equal(together[[0, 31, 63]], torch.cat(alone))


# --- Devices, streams, graphs, compilers.


def test_auto_stays_on_the_device(device):
    problem = moved(testing.selection_problem(2, 20, 4, 8))
    assert rk.mmr(**problem).indices.device.type == device.type
    with pytest.raises(rk.BackendUnavailableError, match="arrays are on 'cuda"):
        rk.mmr(**problem, backend="cpu")


def test_mixed_devices_are_an_error(device):
    problem = testing.selection_problem(2, 20, 4, 8)
    mixed = moved(problem)
    mixed["queries"] = torch.as_tensor(problem["queries"])
    with pytest.raises(ValueError, match="device"):
        rk.mmr(**mixed)
    with pytest.raises(ValueError, match="device"):
        rk.token_logprobs(torch.zeros((2, 5), device=device), torch.zeros(2, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore:.*pool.*:UserWarning")
def test_no_call_waits_for_the_device(backend, device):
    problem = moved(testing.selection_problem(4, 100, 5, 32, dtype="float16", bias=True))
    x, targets = torch.randn((4, 1000), device=device), torch.randint(1000, (4,), device=device)
    excluded = torch.arange(200, device=device).repeat(4, 1)
    whole = {name: array for name, array in problem.items() if name != "candidates"}
    calls = [
        lambda: rk.mmr(**problem, backend=backend),
        lambda: rk.mmr(**{**problem, "k": 120}, backend=backend),  # more than the pool has
        lambda: rk.mmr(**problem, exclude=excluded, backend=backend),  # of which many comparisons are made
        lambda: rk.mmr(**whole, exclude=excluded[:, :150], backend="triton"),
        lambda: rk.token_logprobs(x, targets, backend="triton"),
    ]
    for call in calls:
        call()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        for call in calls:
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_current_stream_is_used(backend, device):
    """Inputs are written on a stream behind a delay, and results read there: a launch elsewhere reads zeros."""
    problem = moved(testing.selection_problem(8, 100, 5, 32, dtype="float16"))
    x, targets = torch.randn((8, 5000), device=device), torch.randint(5000, (8,), device=device)
    expected = rk.mmr(**problem, backend=backend).indices, rk.token_logprobs(x, targets, backend="triton")
    late = {**problem, "embeddings": torch.zeros_like(problem["embeddings"])}
    late_x = torch.zeros_like(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late["embeddings"].copy_(problem["embeddings"])
        late_x.copy_(x)
        found = rk.mmr(**late, backend=backend).indices, rk.token_logprobs(late_x, targets, backend="triton")
    stream.synchronize()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_cuda_graphs_replay_with_new_inputs(backend, device):
    first, second = (moved(testing.selection_problem(8, 100, 5, 32, dtype="float16", seed=seed)) for seed in range(2))
    static = {name: x.clone() if torch.is_tensor(x) else x for name, x in first.items()}
    x, targets = torch.randn((8, 5000), device=device), torch.randint(5000, (8,), device=device)

    def work():
        return rk.mmr(**static, backend=backend).indices, rk.token_logprobs(x, targets, backend="triton")

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        picks, found = work()
    for name in ("queries", "embeddings", "candidates"):
        static[name].copy_(second[name])
    x.mul_(0.5)
    graph.replay()
    assert torch.equal(picks, rk.mmr(**second, backend=backend).indices)
    assert torch.equal(found, rk.token_logprobs(x, targets, backend="triton"))


def test_planned_calls_have_the_bits_of_others(backend, device):
    """By a plan from the third call on, also in a graph and on another stream."""
    problems = [moved(testing.selection_problem(8, 100, 5, 32, dtype="float16", seed=seed)) for seed in range(5)]
    expected = []
    for problem in problems:
        plans.clear_plans()
        expected.append(rk.mmr(**problem, backend=backend))
    plans.clear_plans()
    for problem, want in zip(problems[:4], expected, strict=False):
        for found, field in zip(rk.mmr(**problem, backend=backend), want, strict=True):
            assert torch.equal(found.nan_to_num(7.0), field.nan_to_num(7.0))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = rk.mmr(**problems[4], backend=backend)
    stream.synchronize()
    assert torch.equal(found.indices, expected[4].indices)
    static = {name: x.clone() if torch.is_tensor(x) else x for name, x in problems[0].items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = rk.mmr(**static, backend=backend)
    for name in ("queries", "embeddings", "candidates"):
        static[name].copy_(problems[1][name])
    graph.replay()
    assert torch.equal(found.indices, expected[1].indices)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own
def test_torch_compile(backend, device):
    from ragsys_kernels import torch_ops  # noqa: F401

    ops = torch.ops.ragsys_kernels

    def picked(queries, rows, candidates):
        indices, *_ = ops.mmr(queries * 2, rows, 4, candidates, backend=backend)
        return rows[indices].sum(1)

    def scored(x, targets):
        return ops.token_logprobs(x + 1, targets, backend="triton").sum()

    problem = moved(testing.selection_problem(4, 50, 4, 16, dtype="float16"))
    given = problem["queries"], problem["embeddings"], problem["candidates"]
    torch.testing.assert_close(torch.compile(picked, fullgraph=True)(*given), picked(*given))
    x, targets = torch.randn((4, 1000), device=device), torch.randint(1000, (4,), device=device)
    torch.testing.assert_close(torch.compile(scored, fullgraph=True)(x, targets), scored(x, targets))


def test_outputs_are_written_whole(backend, device):
    """The allocator gives memory back that was full of NaN."""
    problem = moved(testing.selection_problem(50, 100, 20, 32, dtype="float16", ragged=True))
    x, targets = torch.randn((50, 1000), device=device), torch.randint(1000, (50,), device=device)
    for _ in range(3):
        poison = [torch.full((size,), torch.nan, device=device) for size in (50, 1000, 5000, 50_000) for _ in range(8)]
        del poison
        result = hosted(rk.mmr(**problem, backend=backend))
        made = np.arange(20) < result.lengths[:, None]
        assert np.isfinite(result.scores[made]).all()
        assert (result.indices[~made] == -1).all()
        assert torch.isfinite(rk.token_logprobs(x, targets, backend="triton")).all()


# --- CuPy.


@pytest.fixture
def cupy(device):
    reason = _dispatch.why_not("cuda")
    if reason is not None:
        missing("cuda", reason)
    return importlib.import_module("cupy")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cupy_arrays(cupy, dtype):
    problem = testing.selection_problem(6, 100, 5, 40, dtype=dtype, bias=True)
    given = {name: cupy.asarray(x) if hasattr(x, "shape") else x for name, x in problem.items()}
    result = rk.mmr(**given)
    assert all(isinstance(field, cupy.ndarray) for field in result)
    testing.check_selection("mmr", problem, type(result)(*map(cupy.asnumpy, result)), tolerance=TOLERANCES[dtype])
    x = cupy.asarray(np.random.default_rng(0).standard_normal((5, 3000)), dtype)
    targets = cupy.arange(5)
    result = rk.token_logprobs(x, targets)
    oracle.assert_close(cupy.asnumpy(result), logps(torch.from_numpy(cupy.asnumpy(x)), torch.arange(5)))


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_the_current_stream_of_cupy_is_used(cupy, backend):
    """Inputs are written on a stream behind a delay, and results read there, though torch's current one is another."""
    reason = _dispatch.why_not(backend)
    if reason is not None:
        pytest.skip(f"backend {backend}: {reason}")
    problem = testing.selection_problem(8, 100, 5, 32, dtype="float16")
    given = {name: cupy.asarray(x) if hasattr(x, "shape") else x for name, x in problem.items()}
    x, targets = cupy.random.rand(8, 5000, dtype=cupy.float32), cupy.arange(8)
    expected = rk.mmr(**given, backend=backend).indices, rk.token_logprobs(x, targets, backend="triton")
    rows, late = cupy.zeros_like(given["embeddings"]), cupy.zeros_like(x)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(200):  # a delay
            cupy.random.rand(1 << 22)
        rows[...] = given["embeddings"]
        late[...] = x
        found = [rk.mmr(**{**given, "embeddings": rows}, backend=backend).indices]
        found.append(rk.token_logprobs(late, targets, backend="triton"))
        found = [field.copy() for field in found]
        stream.synchronize()
    for a, b in zip(found, expected, strict=True):
        assert (a == b).all()


# --- compute-sanitizer.

SANITIZED = """
import sys, torch
import ragsys_kernels as rk
from ragsys_kernels import testing
backend = sys.argv[1]
for op in ("mmr", "vrsd"):
    for P in (30, 200):
        problem = testing.selection_problem(3, P, 4, 40, ragged=True, dtype="float16")
        problem = {n: torch.as_tensor(x).cuda() if hasattr(x, "shape") else x for n, x in problem.items()}
        getattr(rk, op)(**problem, backend=backend)
if backend == "triton":
    rk.token_logprobs(torch.randn((3, 5000), device="cuda"), torch.tensor([1, 2, 3], device="cuda"), backend=backend)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_compute_sanitizer(backend, tool):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    # Memory that torch's allocator hands out again would be taken for initialised and in bounds.
    environment = {
        **os.environ,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "PYTHONPATH": str(Path(rk.__file__).parents[1]),
    }
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", SANITIZED, backend]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:]


def test_job(tmp_path, backend):
    """Files in, files out, on the device: the picks of the host, which integers decide exactly."""
    pq, offline = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("ragsys_kernels.offline")
    rng = np.random.default_rng(0)
    for name, rows in (("corpus", 500), ("queries", 200)):
        np.save(tmp_path / f"{name}.npy", rng.integers(-4, 5, (rows, 16)).astype(np.float32))
    np.save(tmp_path / "candidates.npy", np.stack([rng.permutation(500)[:40] for _ in range(200)]))
    files = {name: tmp_path / f"{name}.npy" for name in ("corpus", "queries", "candidates")}
    job = {**files, "k": 5, "metric": "dot", "lambda_d": 0.5, "shard_size": 70, "chunk_size": 30}
    job["dtype"] = "float16"
    offline.select(**job, out=tmp_path / "host")
    offline.select(**job, out=tmp_path / "device", device=DEVICE, backend=backend)
    host, device = (pq.read_table(tmp_path / name) for name in ("host", "device"))
    assert device["ids"].to_pylist() == host["ids"].to_pylist()
