"""The clock of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

LEAST_BUSY, MOST_BUSY = 5e-4, 0.2  # seconds
CYCLES = 2e9  # a second, of the fastest device: on a slower one the wait is longer


class EventTimer:
    """Times of calls on the current stream.

    ``cuda`` is torch.cuda; ``flush()`` and ``busy(seconds)`` enqueue work before each call. ``capture`` makes a CUDA
    graph of a call and returns what replays it; None: this clock has no graphs.
    """

    def __init__(self, cuda: Any, flush: Callable[[], Any], busy: Callable[[float], Any], capture: Any = None) -> None:
        self._cuda, self._flush, self._busy, self.capture = cuda, flush, busy, capture

    @classmethod
    def on(cls, device: Any) -> EventTimer:
        size = 2 * max(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0), 128 << 20)
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        return cls(torch.cuda, memory.zero_, lambda seconds: torch.cuda._sleep(int(seconds * CYCLES)), _captured)

    def seconds(self, run: Callable[[], Any], host: float = 0.0) -> tuple[float, float]:
        """Return the seconds of a call on the device, and on the host until it returned.

        The device is kept busy for twice ``host``, the seconds that the host is known to take: a call that it is still
        enqueuing when the device begins would be timed with the gaps between its launches.
        """
        begin, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._flush()
        self._busy(min(max(2 * host, LEAST_BUSY), MOST_BUSY))
        begin.record()
        start = perf_counter()
        run()
        host = perf_counter() - start
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3, host


def _captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return what replays a call from a CUDA graph; raise what torch says where the call waits for the device."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
