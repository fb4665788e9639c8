"""Requests at a constant rate, whatever the server answers.

python -m benchmarks.serve.constant URL FILE CONTENT-TYPE RATE CONNECTIONS SECONDS

wrk sends the next request when the last was answered, so that a server that stalls is asked less while it does; h2load
sends those of all connections at the same moment. Here request i is due i / rate seconds after the first, and its time
is counted from then, also if no connection was free. The loop never sleeps, for timers are too coarse: it needs a core
of its own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import uvloop

PATIENCE = 10.0  # seconds for the last answers


class Pacer:
    """Sends requests when they are due, on connections that are free."""

    def __init__(self, requests: list[bytes], rate: float, count: int) -> None:
        self._requests, self._rate, self._count = requests, rate, count
        self.free: deque[Connection] = deque()
        self.taken: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.broken = 0
        self._sent, self._begin = 0, 0.0
        self.ended = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        self._begin = time.perf_counter()
        self._tick()

    def _tick(self) -> None:
        now = time.perf_counter()
        while self.free and self._sent < self._count and (due := self._due(self._sent)) <= now:
            self.free.popleft().send(self._requests[self._sent % len(self._requests)], due)
            self._sent += 1
        done = len(self.taken) + self.broken
        if done >= self._count or now > self._due(self._count) + PATIENCE:
            self.broken += self._count - done
            self.ended.set_result(None)
        else:
            asyncio.get_running_loop().call_soon(self._tick)

    def _due(self, number: int) -> float:
        return self._begin + number / self._rate

    def answered(self, connection: Connection, due: float, status: int) -> None:
        self.taken.append(time.perf_counter() - due)
        self.statuses[status] += 1
        self.free.append(connection)


class Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer, self._due, self._got, self._left = pacer, 0.0, b"", 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._pacer.free.append(self)

    def send(self, request: bytes, due: float) -> None:
        self._due, self._got = due, b""
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, blank, body = self._got.partition(b"\r\n\r\n")
        if blank and len(body) >= int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]):
            due, self._due = self._due, 0.0
            self._pacer.answered(self, due, int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._due:
            self._pacer.broken += 1
        elif self in self._pacer.free:
            self._pacer.free.remove(self)


async def paced(
    url: str, bodies: list[bytes], kind: str, rate: float, connections: int, seconds: float
) -> dict[str, object]:
    """Return what came back, times in microseconds; the first fifth of the time is not counted."""
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: {kind}\r\ncontent-length: "
    requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]
    pacer = Pacer(requests, rate, max(1, round(rate * seconds)))
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(pacer), parts.hostname, parts.port)
    pacer.start()
    begun = time.perf_counter()
    await pacer.ended
    ran = time.perf_counter() - begun
    counted = np.array(pacer.taken[len(pacer.taken) // 5 :]) * 1e6
    p50, p99 = np.percentile(counted, [50, 99]) if len(counted) else (np.nan, np.nan)
    return {
        "requests": len(pacer.taken),
        "seconds": ran,
        "p50": p50,
        "p99": p99,
        "broken": pacer.broken,
        "statuses": dict(pacer.statuses),
    }


if __name__ == "__main__":
    url, file, kind, rate, connections, seconds = sys.argv[1:]
    bodies, content = [], Path(file).read_bytes()
    while content:
        size = int(content[:8])
        bodies.append(content[8 : 8 + size])
        content = content[8 + size :]
    gc.disable()
    uvloop.install()
    print(json.dumps(asyncio.run(paced(url, bodies, kind, float(rate), int(connections), float(seconds)))))
