"""What this device reaches at most, by kernels that do nothing else: the roofs to which times are compared.

python -m benchmarks.gpu.ceilings
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.events import EventTimer
from benchmarks.harness import facts
from ragsys_kernels._base import env as _env

SAMPLES = 15
COPY_BYTES = 4 << 30
READ_BYTES = 4 << 30
CACHED_BYTES, AGAIN = 16 << 20, 256  # fits in the last-level cache of any recent device
SIDE = 8192  # of the matrices


def measure(device: str = "cuda", timer: Any = None, scale: int = 1) -> dict[str, float]:
    """Return rates a second: bytes of a copy (read and written), of reads, of reads from the cache; flops of products.

    Random data: products of zeros are faster. ``scale`` makes everything smaller.
    """
    timer = timer or EventTimer.on(torch.device(device))
    generator = torch.Generator(device=device).manual_seed(0)
    rates = {}

    def rate(work: float, run: Callable[[], Any]) -> float:
        run()
        return work / float(np.median([timer.seconds(run)[0] for _ in range(SAMPLES)]))

    here = torch.randint(100, (COPY_BYTES // scale // 4,), dtype=torch.int32, generator=generator, device=device)
    there = torch.empty_like(here)
    rates["copy, B/s"] = rate(2 * 4 * here.numel(), partial(there.copy_, here))
    side = SIDE // scale
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a, b = (torch.randn((side, side), generator=generator, device=device).to(dtype) for _ in range(2))
        name = str(dtype).removeprefix("torch.")
        rates[f"{name} products, flop/s"] = rate(2.0 * side**3, partial(torch.matmul, a, b))
    rates |= _reads(rate, device, scale)
    return rates


def _reads(rate: Callable[[float, Callable[[], Any]], float], device: str, scale: int) -> dict[str, float]:
    """Return the rates of a kernel that reads a buffer some times, past the caches of the multiprocessors."""
    try:
        from benchmarks.gpu.read_again import read_again
    except ImportError as error:
        facts.tell(absent=[f"ceilings of reads: {error}"])
        return {}
    found, size = {}, 4096
    out = torch.empty(1024 * size, device=device)
    for name, total, again in (("reads, B/s", READ_BYTES // scale, 1), ("cache, B/s", CACHED_BYTES // scale, AGAIN)):
        again = max(again // scale, 1)
        x = torch.ones(max(total // 4 // size, 1) * size, device=device)
        blocks = x.numel() // size
        found[name] = rate(
            4.0 * x.numel() * again,
            partial(read_again[(blocks,)], x, out, blocks, again, BLOCK=size),
        )
    return found


def main() -> None:
    rates = measure("cpu", scale=4096) if _env.triton_interpreter() else measure()
    for name, found in rates.items():
        print(f"{found / 1e12:10.3f} T{name}")
    facts.tell(ceilings=rates)


if __name__ == "__main__":
    main()
