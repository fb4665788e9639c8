"""What explains a time: clocks under load, counters on the device, the time of each kernel, that of an empty launch.

    python -m benchmarks.gpu.causes         # the clock, a launch and a copy of this machine

None of this may cost a measured time: a value that cannot be found is replaced by the reason.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu.goals import REFUSED
from benchmarks.harness import facts
from ragsys_kernels._base import env as _env
from ragsys_kernels._gpu import plans

LAUNCHES = 1000  # empty launches in a row
LOADED, CYCLES = 20, 2_000_000  # calls before the clock is read, which takes so many cycles
PROFILED_CALLS = 3
KERNELS, LETTERS = 12, 60  # of a call that are written, and of a name


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def while_it_runs(run: Callable[[], Any], loaded: int = LOADED) -> dict[str, Any]:
    """Return the columns of a form's call besides its time; the clock is read after ``loaded`` calls."""
    return {"clock_mhz": _or_why(lambda: clock(run, loaded)), "counts": _or_why(lambda: counts(run))}


def _or_why(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except torch.OutOfMemoryError:
        return f"{REFUSED}the device has too little memory"
    except Exception as error:
        synchronize()  # raises again where the device is lost
        return f"{REFUSED}{type(error).__name__}: {error}".splitlines()[0][:200]


def clock(run: Callable[[], Any], loaded: int = LOADED) -> str:
    """Return the clock of the multiprocessors in MHz after a queue of calls, from a kernel that waits for cycles."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(loaded):
        run()
    begin.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    end.synchronize()
    return f"{CYCLES / 1e3 / max(begin.elapsed_time(end), 1e-3):.0f}"


def counts(run: Callable[[], Any]) -> str:
    """Return numbers that only the device knows: queries left after each check of a proof, contenders per query."""
    from ragsys_kernels.selection.triton import bit_search, proof

    left: list[Any] = []
    found: list[Any] = []
    launched = {proof: proof.launch, bit_search: bit_search.launch}

    def of_proof(kernel: Any, grid: Any, /, **given: Any) -> None:
        launched[proof](kernel, grid, **given)
        if kernel is proof.proof_columns_kernel:
            count = given["count"]
            left.append((given["num_left"] if count is None else count).clone())  # after the last check

    def of_search(kernel: Any, grid: Any, /, **given: Any) -> None:
        launched[bit_search](kernel, grid, **given)
        if kernel is bit_search.filter_list_kernel:
            found.append((given["count"].clone(), given["room"]))

    plans.clear_plans()  # which launch by themselves
    with mock.patch.object(proof, "launch", of_proof), mock.patch.object(bit_search, "launch", of_search):
        run()
    texts = [f"queries left: {' '.join(str(int(count)) for count in left)}"] if left else []
    for count, room in found:
        texts.append(f"contenders: {float(count.float().mean()):.0f} a query, most {int(count.max())}, room {room}")
    return "; ".join(texts)


def kernels(run: Callable[[], Any]) -> str:
    """Return the µs of each kernel of a call, the longest first; or why the profiler has no times."""
    return _or_why(lambda: _kernels(run))


def _kernels(run: Callable[[], Any]) -> str:
    from torch.profiler import ProfilerActivity, profile

    run()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(PROFILED_CALLS):
            run()
        synchronize()
    times = {event.key: event.self_device_time_total / PROFILED_CALLS for event in profiled.key_averages()}
    longest = sorted(((us, name) for name, us in times.items() if us > 0), reverse=True)[:KERNELS]
    if not longest:
        return f"{REFUSED}the profiler saw no kernel"
    return "; ".join(f"{name[:LETTERS].replace(';', ',')} {us:.1f}" for us, name in longest)


def of_machine() -> dict[str, float]:
    """Return the constants of a model of times: µs of a launch on the device and the host, and of a host copy."""
    x = torch.zeros(1024, device="cpu" if _env.triton_interpreter() else "cuda")
    into = torch.empty_like(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):  # the first is to load the kernel
        begin.record()
        start = perf_counter()
        for _ in range(LAUNCHES):
            torch.cuda._sleep(0)
        host = perf_counter() - start
        end.record()
        end.synchronize()
    copies = []
    for _ in range(LAUNCHES):
        start = perf_counter()
        into.copy_(x)
        copies.append(perf_counter() - start)
    return {
        "a launch on the device, us": 1e3 * begin.elapsed_time(end) / LAUNCHES,
        "a launch on the host, us": 1e6 * host / LAUNCHES,
        "torch's copy of an array on the host, us": 1e6 * statistics.median(copies),
        "clock without load, MHz": float(clock(lambda: None, 1)),
    }


def main() -> int:
    found = of_machine()
    for name, value in found.items():
        print(f"{value:10.2f}  {name}")
    facts.tell(machine=found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
