"""HTTP connections: those of uvicorn, with limits on slow clients, and a short way for ``POST /v1/select``.

A request whose headers promise nothing unusual has its body gathered here, and its answer is written at once, head and
body; small requests need no task, for `together` calls back. ASGI would take longer for its messages than a query takes
to be answered. Everything else, and whatever must be refused, goes the way of uvicorn; both end in the same functions.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .app import Front
from .http.messages import REQUEST_ID, Request, Response, Scope, failed, refused
from .limits import Limits, RefusedError
from .routes.select import Share, select, shared

_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_PATH = "/v1/select"
_URL = _PATH.encode()
# Headers that change how a request is read or answered; such requests are left to uvicorn.
_UNUSUAL = frozenset((b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"))


class _Gone:
    """The event that uvicorn sets when the client has gone: nobody waits for it."""

    def set(self) -> None:
        pass


class _Cycle:
    """A request on the short way, with what uvicorn looks for in the request of a connection."""

    __slots__ = ("disconnected", "keep_alive", "parts", "request", "response_complete", "share")

    response_started = False
    message_event = _Gone()

    def __init__(self, request: Request, keep_alive: bool) -> None:
        self.request, self.keep_alive = request, keep_alive
        self.parts: list[bytes] = []
        self.share: Share | None = None
        self.disconnected = self.response_complete = False


class _HeadersError(Exception):
    """Headers beyond the limits; the parser stops there."""


class Protocol(HttpToolsProtocol):
    """A connection that knows since when the server waits for its client."""

    waiting_since: float | None = None
    _in_headers = False  # the headers of a request have begun
    _unused = 0  # bytes that have come since a part of a body: headers, and what else a parser keeps
    _most = _fields = 0  # bytes, and headers, that may come
    _running: Any = None  # the request that is answered now: others behind it wait for their turn
    app: Any  # `Front`
    cycle: Any  # `_Cycle`, or uvicorn's
    scope: Any

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.waiting_since = time.monotonic()
        limits = self.app.service.limits
        self._most, self._fields = limits.header_bytes, limits.headers

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        cycle = self._running
        if cycle is None or cycle.response_complete:
            return
        if type(cycle) is not _Cycle:
            request = cycle.scope.get("ragsys.request")
            if request is not None:
                request.leave()
        elif cycle is self.cycle and self.waiting_since is not None:
            cycle.response_complete = True  # its body will not come
            self.app.ended(cycle.request, 499, 0)
        elif cycle.share is not None:
            cycle.share.party.leave()
        else:
            cycle.request.leave()

    def data_received(self, data: bytes) -> None:
        self._unused += len(data)
        super().data_received(data)
        if self._unused > self._most and not self.transport.is_closing():
            self._refuse_headers()

    def send_400_response(self, msg: str) -> None:
        if self._too_many():
            self._refuse_headers()
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.waiting_since = time.monotonic()
        self._in_headers = True

    def on_headers_complete(self) -> None:
        if (self._unused > self._most or len(self.headers) > self._fields) and self._too_many():
            raise _HeadersError
        self._in_headers, self._unused = False, 0
        if not self._begin():
            super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._unused = 0

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        if type(self.cycle) is _Cycle:
            self.cycle.parts.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self.waiting_since, self._unused = None, 0
        if type(self.cycle) is _Cycle:
            self._answer(self.cycle)
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin with the next request that has come; no timer is needed, for `close_if_slow` ends idle connections."""
        self.server_state.total_requests += 1
        if self.cycle.response_complete:  # no other was sent behind it
            self.waiting_since = time.monotonic()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def close_if_slow(self, now: float, limits: Limits) -> None:
        """Close a connection whose client sends too slowly, or nothing."""
        if self.waiting_since is None or self.transport.is_closing():
            return
        waited, begun = now - self.waiting_since, self.cycle is not None and not self.cycle.response_complete
        if self._in_headers and begun:  # the client waits for an answer
            return
        reads = self._in_headers or begun
        if waited > (limits.body_seconds if reads else limits.idle_seconds):
            if reads and not (begun and self.cycle.response_started):
                self.transport.write(_SLOW)
            self.transport.close()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _too_many(self) -> bool:
        """Return whether the headers, as far as they have come, are beyond the limits."""
        limits: Limits = self.app.service.limits
        if not self._in_headers or (len(self.headers) <= limits.headers and self._unused <= limits.header_bytes):
            return False
        # Bytes of a body may have come with them.
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        return len(self.headers) > limits.headers or size > limits.header_bytes

    def _refuse_headers(self) -> None:
        limits: Limits = self.app.service.limits
        rule = f"have at most {limits.headers} fields and {limits.header_bytes} bytes"
        response = refused(RefusedError(431, f"serve: headers must {rule}, got more", "headers"))
        self.app.service.metrics.request("other", 431, 0.0)
        self.transport.write(_written(response, False, []))
        self.transport.close()

    def _begin(self) -> bool:
        """Take a request the short way, if its headers allow that."""
        parser, url, before = self.parser, self.url, self.cycle
        if not url.startswith(_URL) or parser.get_method() != b"POST" or parser.get_http_version() != "1.1":
            return False
        query = url[len(_URL) :]
        if (query and not query.startswith(b"?")) or b"#" in query:
            return False
        if (before is not None and not before.response_complete) or self.flow.write_paused:
            return False
        limit = self.limit_concurrency
        if limit is not None and (len(self.connections) >= limit or len(self.tasks) >= limit):
            return False
        front: Front = self.app
        scope: Scope = self.scope
        request = Request(scope, None, front.service.load)
        headers = request.headers
        if b"content-length" not in headers or not _UNUSUAL.isdisjoint(headers) or front.unusual(headers):
            return False
        front.service.load.requests += 1
        try:
            front.admit(request)
            request.announced()
        except Exception as error:
            front.service.load.requests -= 1  # whatever it was: what is counted for ever fills the server
            if isinstance(error, RefusedError):
                return False
            raise
        scope["method"], scope["path"], scope["query_string"] = "POST", _PATH, query[1:]
        request.route = _PATH
        self.cycle = self._running = _Cycle(request, parser.should_keep_alive())
        return True

    def _answer(self, cycle: _Cycle) -> None:
        """Answer a request whose body is complete, now or later."""
        request, parts = cycle.request, cycle.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        request.read(body)
        request.stage("read")
        try:
            share = shared(self.app.service, request, body)
        except Exception as error:
            self._respond(cycle, failed(request, error))
            return
        if share is not None:
            cycle.share = share
            share.party.then(partial(self._respond_share, cycle, share))
        else:
            task = self.loop.create_task(self._select(cycle))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def _respond_share(self, cycle: _Cycle, share: Share) -> None:
        try:
            response = share.response()
        except Exception as error:
            response = failed(cycle.request, error)
        self._respond(cycle, response)

    async def _select(self, cycle: _Cycle) -> None:
        """Answer a request that goes by itself."""
        try:
            response = await select(self.app.service, cycle.request)
        except asyncio.CancelledError:
            cycle.response_complete = True  # the client has gone
            self.app.ended(cycle.request, 499, 0)
            raise
        except Exception as error:
            response = failed(cycle.request, error)
        self._respond(cycle, response)

    def _respond(self, cycle: _Cycle, response: Response) -> None:
        transport, status, size = self.transport, 499, 0
        if not transport.is_closing():
            status, size = response.status, len(response.body)
            if (b"connection", b"close") in response.headers:
                cycle.keep_alive = False
            response.headers.append((REQUEST_ID, cycle.request.id))
            transport.write(_written(response, cycle.keep_alive, self.server_state.default_headers))
        cycle.response_complete = True
        if not cycle.keep_alive:
            transport.close()
        self.on_response_complete()
        self.app.ended(cycle.request, status, size)


def _written(response: Response, keep_alive: bool, defaults: list[tuple[bytes, bytes]]) -> bytes:
    """Return an answer as it is sent; ``defaults`` are uvicorn's headers of all answers."""
    parts = [STATUS_LINE[response.status]]
    for header in (*defaults, *response.headers):
        parts.append(b"%b: %b\r\n" % header)
    if not keep_alive and (b"connection", b"close") not in response.headers:
        parts.append(b"connection: close\r\n")
    parts += (b"\r\n", response.body)
    return b"".join(parts)
