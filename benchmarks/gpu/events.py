"""The clock of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

BUSY_CYCLES = 1_000_000  # about half a millisecond, longer than the host needs for a call


class EventTimer:
    """Times of calls on the current stream. ``cuda`` is torch.cuda; ``flush`` and ``busy`` enqueue work before each."""

    def __init__(self, cuda: Any, flush: Callable[[], Any], busy: Callable[[], Any]) -> None:
        self._cuda, self._flush, self._busy = cuda, flush, busy

    @classmethod
    def on(cls, device: Any) -> EventTimer:
        size = 2 * max(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0), 128 << 20)
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        return cls(torch.cuda, memory.zero_, lambda: torch.cuda._sleep(BUSY_CYCLES))

    def seconds(self, run: Callable[[], Any]) -> tuple[float, float]:
        """Return the seconds of a call on the device, and on the host until it returned."""
        begin, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._flush()
        self._busy()
        begin.record()
        start = perf_counter()
        run()
        host = perf_counter() - start
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3, host
