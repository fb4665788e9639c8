"""What a call on a device launches by a plan, with Triton's own compiler and a driver that launches nothing."""

import threading

import pytest

import ragsys_kernels as rk

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.gpu import host  # noqa: E402
from ragsys_kernels._base import env as _env  # noqa: E402
from ragsys_kernels._gpu import cuda_module, plans  # noqa: E402

pytestmark = pytest.mark.skipif(_env.triton_interpreter(), reason="Triton compiles nothing in its interpreter")


def mmr(seed, queries=8):
    rng = torch.Generator().manual_seed(seed)
    return {
        "queries": torch.randn(queries, 64, generator=rng),
        "embeddings": torch.randn(50, 64, generator=rng).half(),
        "candidates": torch.stack([torch.randperm(50, generator=rng)[:16] for _ in range(queries)]),
    }


def tokens(seed):
    rng = torch.Generator().manual_seed(seed)
    return {
        "logits": torch.randn(4, 512, generator=rng).bfloat16(),
        "targets": torch.randint(0, 512, (4,), generator=rng),
    }


CALLS = {
    "mmr": (mmr, lambda given, backend: rk.mmr(**given, k=5, lambda_d=0.7)),
    "token_logprobs": (tokens, lambda given, backend: (rk.token_logprobs(**given, backend=backend),)),
}


def launches(recorded, given, result):
    """Each launch, its tensors by what the call knows them as: an argument, a field of the result, or neither."""
    names = {x.data_ptr(): name for name, x in given.items()}
    names |= {x.data_ptr(): f"result {i}" for i, x in enumerate(result)}
    return [
        [names.get(x.data_ptr(), ("made", x.shape, x.dtype)) if isinstance(x, torch.Tensor) else x for x in launch]
        for launch in recorded
    ]


def planned():
    """Whether the one kind of call has a plan."""
    (plan,) = plans._plans.values()
    return hasattr(plan, "run")


def launched_by_calls(name, backend, launched):
    """What each of four calls launches, the last two by a plan."""
    made, call = CALLS[name]
    seen = []
    for seed in range(4):
        launched.clear()
        given = made(seed)
        seen.append(launches(launched, given, call(given, backend)))
    assert planned()
    assert seen[0]
    assert seen[2] == seen[0]
    assert seen[3] == seen[0]
    return seen[0]


@pytest.mark.parametrize("name", CALLS)
def test_a_plan_launches_what_a_call_without_one_launches(name):
    launched = []

    def record(kernel, g0, g1, g2, stream, function, metadata, *hooks_and_values):
        launched.append([kernel, g0, g1, g2, stream, function, metadata, *hooks_and_values[3:]])

    with host.stubbed(host.Driver(record), "cpu"):
        seen = launched_by_calls(name, "triton", launched)
    assert {"mmr": "candidates", "token_logprobs": "logits"}[name] in seen[-1] + seen[0]


class Module:
    """CUDA kernels that are not launched."""

    def __init__(self, launched):
        self.launched = launched

    def max_shared(self, like):
        return host.SHARED

    def capability(self, like):
        return host.ARCH

    def launch(self, kernel, **how):
        flat = []
        for x in how.pop("arguments"):
            flat += x.members.values() if isinstance(x, cuda_module.Struct) else [x]
        self.launched.append([kernel, how["like"], how["grid"], how["block"], how["shared"], *flat])


def test_a_plan_launches_the_cuda_kernels_of_a_call_without_one(monkeypatch):
    launched = []
    monkeypatch.setattr(cuda_module, "load", lambda source: Module(launched))
    monkeypatch.setattr(cuda_module, "why_not", lambda: None)
    monkeypatch.setenv("RAGSYS_KERNELS_BACKEND", "cuda")
    with host.stubbed(host.Driver(), "cpu"):
        assert "result 0" in launched_by_calls("mmr", "cuda", launched)[-1]


def test_threads_share_plans():
    problems, wrong, at = [mmr(seed) for seed in range(4)], [], threading.local()

    def record(kernel, *values):
        nonlocal wrong
        for x in values:
            if isinstance(x, torch.Tensor) and x.shape == (8, 16):
                wrong += [kernel] * (x.data_ptr() != at.given["candidates"].data_ptr())

    def work(given):
        at.given = given
        for _ in range(200):
            rk.mmr(**given, k=5)

    with host.stubbed(host.Driver(record), "cpu"):
        threads = [threading.Thread(target=work, args=(given,)) for given in problems]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert planned()
    assert not wrong
