"""Answers for the time in which no worker can give any: 503 with the reason, from the parent of the workers.

The listening sockets stay open when all workers have died; without this, callers would wait for one that cannot start.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import uvicorn

from ..limits import RefusedError
from .messages import Receive, Scope, Send, json_response

_HEADERS = 1 << 16  # bytes


class Refuser:
    """Answers every request to some listening sockets with ``reason``, until `stop`; the sockets stay open."""

    def __init__(self, sockets: Sequence[socket.socket], reason: str) -> None:
        self.reason = reason
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._refuse,
                interface="asgi3",
                http="h11",  # which limits headers
                h11_max_incomplete_event_size=_HEADERS,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )
        own = [each.dup() for each in sockets]
        self._thread = threading.Thread(target=self._server.run, args=(own,), daemon=True, name="refuser")
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A connection that is closed with bytes unread is reset, and the client may not see its answer.
        while (await receive()).get("more_body"):
            pass
        error = RefusedError(503, f"serve: {self.reason}")
        headers = {"retry-after": "1", "connection": "close"}
        await json_response({"status": "failed", **error.body}, error.status, headers).send(send)
