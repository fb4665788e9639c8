"""The access log: a line of JSON for each request, with the time of each stage.

Lines are gathered and written beside the event loop: a slow reader of the log must not hold up requests. If the reader
does not keep up, lines are dropped and counted.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import orjson

from .messages import Request

_INTERVAL, _MOST = 0.2, 20_000
_MORE = ("trace_id", "corpus", "token")  # where a request has them; of a token its name


class AccessLog:
    """Lines for a file descriptor; None: no log."""

    def __init__(self, descriptor: int | None, dropped: Callable[[int], None]) -> None:
        self._descriptor, self._dropped = descriptor, dropped
        self._lines: list[bytes] = []
        self._writing = False

    def add(self, request: Request, status: int, size: int) -> None:
        if self._descriptor is None:
            return
        if len(self._lines) >= _MOST:
            self._dropped(1)
            return
        scope, milliseconds = request.scope, (time.perf_counter() - request.begun) * 1000
        line: dict[str, Any] = {
            "time": round(time.time(), 6),
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(milliseconds, 3),
            "stages": {name: round(seconds * 1000, 3) for name, seconds in request.stages.items()},
            "queries": request.queries,
            "bytes_in": request.bytes_in,
            "bytes_out": size,
            "client": (scope.get("client") or ("",))[0],
            "request_id": request.id.decode(),
        }
        more = request.trace_id, request.corpus or None, request.account and request.account.name
        line |= {name: x for name, x in zip(_MORE, more, strict=True) if x is not None}
        self._lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        if not self._writing:
            self._writing = True
            asyncio.get_running_loop().call_later(_INTERVAL, self._hand_over)

    def _hand_over(self) -> None:
        lines, self._lines = self._lines, []
        task = asyncio.get_running_loop().run_in_executor(None, self._write, lines)
        task.add_done_callback(self._written)

    def _written(self, task: asyncio.Future[None]) -> None:
        self._writing = bool(self._lines)
        if self._writing:
            self._hand_over()

    def _write(self, lines: list[bytes]) -> None:
        assert self._descriptor is not None
        rest = memoryview(b"".join(lines))
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:  # nobody reads the log any more
            self._dropped(len(lines))

    def close(self) -> None:
        """Write what is left."""
        lines, self._lines = self._lines, []
        if lines:
            self._write(lines)
