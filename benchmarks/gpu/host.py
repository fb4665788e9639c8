"""Host overhead of calls on a device, with launches that do nothing: `ragsys-kernels bench --host`.

Tensors are torch's without data, taken for those of a device. Triton compiles its kernels for one and gets a driver
that launches nothing, as CUDA C++ does. What is timed is what this library, Triton's launch and torch do on the
processor, and in the same run what torch does for a copy of an array. A device's own driver takes some microseconds a
launch beside it.

    python -m benchmarks.gpu.host [--out FOLDER]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import ragsys_kernels as rk
from benchmarks.harness.ledger import RESULTS, Ledger, environment
from ragsys_kernels import _dispatch, corpus
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._gpu import compilers, cuda_module, plans
from ragsys_kernels._gpu import driver as nvidia

LEDGER = Ledger(
    RESULTS / "host.csv",
    ("hardware", "call"),
    ("hardware", "call", "unplanned_us", "planned_us", "copy_us", "commit", "versions", "date"),
)
REPEATS, ROUNDS = 200, 7
# An H100, as Triton and this library ask for it.
ARCH, MULTIPROCESSORS, SHARED = 90, 132, 232_448


class Driver:
    """A driver of Triton's that loads and launches nothing; ``launched`` is told what each launch was given."""

    def __init__(self, launched: Callable[..., None] = lambda *arguments: None) -> None:
        properties = {"max_shared_mem": SHARED, "multiprocessor_count": MULTIPROCESSORS, "warpSize": 32}
        self.utils = SimpleNamespace(
            load_binary=lambda *of: (1, 1, 32, 0, 1024),
            unload_module=lambda module: None,
            get_device_properties=lambda device: properties,
        )
        self.launcher_cls = lambda source, metadata: lambda *given: launched(source.fn.__name__, *given)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", ARCH, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Libcuda(nvidia.Driver):
    """NVIDIA's driver, each call of which ends in one of the C library that returns 0."""

    def __init__(self) -> None:
        nothing = ctypes.CDLL(None).ffs
        nothing.argtypes = nvidia.FUNCTIONS["cuLaunchKernel"]
        self._launch, self._contexts = nothing, {0: 1}
        self._current = lambda found: setattr(found._obj, "value", 1)

    def attribute(self, device: int, attribute: int) -> int:
        return {
            nvidia.SHARED_OF_BLOCK: SHARED,
            nvidia.CAPABILITY_MAJOR: ARCH // 10,
            nvidia.CAPABILITY_MINOR: ARCH % 10,
        }[attribute]


@contextmanager
def stubbed(stub: Driver, device: str = "cpu") -> Any:
    """Take torch's tensors on ``device`` for those of an H100 in a block, whose launches go to ``stub``."""
    place, device_of = _arrays.Torch(device), _arrays.device_of
    properties = SimpleNamespace(
        multi_processor_count=MULTIPROCESSORS, L2_cache_size=50 << 20, major=ARCH // 10, minor=ARCH % 10
    )
    with ExitStack() as stack:

        def change(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        def of(device: str, *rest: Any) -> Any:
            return _arrays.HOST if device == "cpu" else place

        change(_arrays, "device_of", lambda x: "cuda:0" if isinstance(x, torch.Tensor) else device_of(x))
        change(_arrays, "place_of", of)
        change(corpus.search, "Torch", lambda device: place)
        change(_dispatch, "_why_no_gpu", lambda: None)
        change(torch.cuda, "get_device_capability", lambda device=None: (ARCH // 10, ARCH % 10))
        change(torch.cuda, "get_device_properties", lambda device=None: properties)
        change(torch.cuda, "current_device", lambda: 0)
        change(plans, "_watching", True)
        change(plans, "_hosts", True)
        change(driver, "_active", stub)
        libcuda = Libcuda()
        change(cuda_module, "driver", lambda: libcuda)
        change(cuda_module, "why_not", lambda: None)
        change(cuda_module, "device_of", lambda x: 0)
        change(cuda_module, "stream_of", lambda like: 0)
        change(cuda_module.Module, "function", lambda self, device, kernel: 0)
        for forget in (compilers._generation.cache_clear, cuda_module._attribute.cache_clear, plans.clear_plans):
            forget()
            stack.callback(forget)
        yield


def calls() -> dict[str, Callable[[], Any]]:
    """Return the calls by what the ledger says of them."""
    rng = np.random.default_rng(0)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    rows, queries = empty(20_000, 384, dtype=torch.float16), empty(2000, 384)
    ids, few = empty(2000, 100, dtype=torch.int64), empty(64, 64)
    logits, targets = empty(64, 32_000, dtype=torch.bfloat16), empty(64, dtype=torch.int64)
    own = rk.Corpus(rng.standard_normal((40_000, 64), np.float32), dtype="float16")
    fields = {name: getattr(own, name) for name in ("data", "scales")}
    held = _arrays.changed(own, codes=None, **{name: torch.from_numpy(x) for name, x in fields.items()})
    return {
        "mmr, ids, Q2000 P100 K10": lambda: rk.mmr(queries, rows, 10, candidates=ids, lambda_d=0.7),
        "token_logprobs, T64 V32000": lambda: rk.token_logprobs(logits, targets),
        "mmr, the same by CUDA C++": lambda: rk.mmr(queries, rows, 10, candidates=ids, lambda_d=0.7, backend="cuda"),
        "Corpus.select, pool=100, Q64 K10": lambda: held.select(few, 10, pool=100),
    }


def median_us(call: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a call, in the quietest of a few rounds, after some that are not counted."""
    for _ in range(10):
        call()
    medians = []
    for _ in range(ROUNDS):
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        medians.append(1e6 * statistics.median(times))
    return min(medians)


def measure(repeats: int = REPEATS) -> list[dict[str, object]]:
    """Return the rows of the ledger."""
    rows: list[dict[str, object]] = []
    array = torch.zeros(1000, 10)
    into = torch.empty_like(array)
    copy_us = median_us(lambda: into.copy_(array), repeats)
    with stubbed(Driver()):
        for name, call in calls().items():
            planned = median_us(call, repeats)
            unplanned = median_us(lambda call=call: (plans.clear_plans(), call()), repeats // 5)
            times = {"unplanned_us": unplanned, "planned_us": planned, "copy_us": copy_us}
            rows.append({**environment(), "call": name, **times})
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of host.csv")
    options = parser.parse_args(arguments)
    rows = measure()
    LEDGER.within(options.out).update(rows)
    for row in rows:
        print(f"{row['call']}: {row['planned_us']:.1f} us, {row['unplanned_us']:.0f} without a plan;", end=" ")
        print(f"torch's copy of an array {row['copy_us']:.1f}")


if __name__ == "__main__":
    main()
