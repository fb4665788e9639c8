"""HTTP connections: those of uvicorn, with limits on slow clients, and a short way for ``POST /v1/select``.

A request whose headers promise nothing unusual has its body gathered here, and its answer is written at once, head and
body; small requests need no task, for `together` calls back. ASGI would take longer for its messages than a query takes
to be answered. Everything else, and whatever must be refused, goes the way of uvicorn; both end in the same functions.

What a client has not taken of its answers counts as memory that is held. A connection that is closed before its request
has come to an end is read on for a while: else the kernel resets it, and many clients do not see their answer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .app import BEYOND, Front
from .http.messages import CLOSE, REQUEST_ID, Request, Response, Scope, failed, refused
from .limits import SPARE, Limits, RefusedError
from .routes.select import Share, select, shared

_PATH = "/v1/select"
_URL = _PATH.encode()
_PART = 1 << 16  # bytes of an answer that are joined with its headers, and of a long one written at a time with TLS
_RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: what is unsent is dropped
_TAKEN = 1 << 20  # bytes of a long answer that a client has to take in the time for writing


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


class _Transport:
    """A connection as a request of uvicorn sees it, which closes it behind its answer."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.is_ending()

    def close(self) -> None:
        self._protocol.end()


class _Secured:
    """A connection with TLS, which gets a long answer in parts: of what it has, it does not say how much it still has.

    With a buffer that it does not report, clients that do not read would hold memory that nobody counts.
    """

    def __init__(self, transport: Any) -> None:
        transport.set_write_buffer_limits(_PART)
        self._transport = transport
        self._waiting: deque[memoryview] = deque()
        self._closes = False  # behind what waits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._waiting.append(memoryview(data))
        self.go_on()

    def go_on(self) -> None:
        """Write what there is room for; beyond its limit the transport pauses, and calls when there is room again."""
        if self._transport.is_closing():
            self._waiting.clear()
        while self._waiting and self._transport.get_write_buffer_size() <= _PART:
            data = self._waiting.popleft()
            if len(data) > _PART:
                self._waiting.appendleft(data[_PART:])
            self._transport.write(data[:_PART])
        if self._closes and not self._waiting:
            self._transport.close()

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._waiting)) + int(self._transport.get_write_buffer_size())

    def is_closing(self) -> bool:
        return self._closes or self._transport.is_closing()

    def close(self) -> None:
        self._closes = True
        self.go_on()

    def abort(self) -> None:
        self._waiting.clear()
        self._transport.abort()


class _HeadersError(Exception):
    """Headers beyond the limits; the parser stops there."""


class Protocol(HttpToolsProtocol):
    """A connection that knows since when the server waits for its client."""

    waiting_since: float | None = None
    _in_headers = False  # the headers of a request have begun
    _unused = 0  # bytes that have come since a part of a body: headers, and what else a parser keeps
    _most = _fields = 0  # bytes, and headers, that may come
    _running: Any = None  # the request that is answered now: others behind it wait for their turn
    _ended = False  # the last answer is written; what still comes is dropped
    _unsent = 0  # bytes of answers that the client has not taken, which are counted as held
    _left: int | None = None  # of these at the time from which on it has to take more
    _left_since = 0.0
    transport: Any  # uvloop's, or `_Secured`
    app: Any  # `Front`, or what traces it
    cycle: Any  # `_Cycle`, or uvicorn's
    scope: Any

    def __init__(self, front: Front, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._front = front
        self._service = front.service

    def connection_made(self, transport: Any) -> None:
        secured: Any = _Secured(transport) if self.config.ssl else transport
        super().connection_made(secured)
        self.waiting_since = time.monotonic()
        limits, beyond = self._service.limits, self._service.load.beyond
        self._most, self._fields = limits.header_bytes, limits.headers
        if len(self.connections) > limits.connections:
            self._service.metrics.refused.inc()
            beyond[self] = None
            if len(beyond) > SPARE:
                oldest = next(iter(beyond))
                del beyond[oldest]
                oldest.close_at_once("beyond")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._service.load.beyond.pop(self, None)
        self._count_unsent(0)
        self._leave()
        if type(self.cycle) is not _Cycle and self.cycle is not None:
            self.cycle.transport = self.transport  # without a circle of references

    def _leave(self) -> None:
        """Tell the request that is answered that its client has gone."""
        cycle, self._running = self._running, None
        if cycle is None or cycle.response_complete:
            return
        if type(cycle) is not _Cycle:
            request = cycle.scope.get("ragsys.request")
            if request is not None:
                request.leave()
        elif cycle is self.cycle and self.waiting_since is not None and not self._in_headers:
            cycle.response_complete = True  # its body will not come
            self._front.ended(cycle.request, 499, 0)
        elif cycle.share is not None:
            cycle.share.party.leave()
        else:
            cycle.request.leave()

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._unused += len(data)
        super().data_received(data)
        if self._unused > self._most and not self.is_ending():
            self._refuse_headers()

    def send_400_response(self, msg: str) -> None:
        if self._too_many():
            self._refuse_headers()
        else:
            self._refuse(RefusedError(400, "serve: request must be HTTP/1.1, got other bytes"), self._in_headers)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.waiting_since = time.monotonic()
        self._in_headers = True
        if (beyond := self._service.load.beyond) and self in beyond:
            if len(self.connections) - len(beyond) < self._service.limits.connections:
                del beyond[self]  # others have gone
            else:
                self.scope[BEYOND] = True

    def on_headers_complete(self) -> None:
        if (self._unused > self._most or len(self.headers) > self._fields) and self._too_many():
            raise _HeadersError
        self._in_headers, self._unused = False, 0
        if not self._begin():
            super().on_headers_complete()
            self.cycle.transport = _Transport(self)

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
        self._left = None
        if self.is_ending():
            return
        if self.cycle.response_complete:  # no other was sent behind it
            self.waiting_since = time.monotonic()
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def pause_writing(self) -> None:
        super().pause_writing()
        self._count_unsent(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        transport: Any = self.transport
        if isinstance(transport, _Secured):
            self.loop.call_soon(transport.go_on)
        self._count_unsent(self.transport.get_write_buffer_size())

    def close_if_slow(self, now: float, limits: Limits, idle_since: float) -> None:
        """Close a connection whose client sends or reads too slowly, or nothing; ``idle_since`` is too long ago."""
        size = self.transport.get_write_buffer_size()
        self._count_unsent(size)
        if not size:
            self._left = None
        elif self._left is None or size <= self._left - _TAKEN:
            self._left, self._left_since = size, now
        elif now - self._left_since > limits.write_seconds:
            self.close_at_once("reads slowly")
            return
        if self.waiting_since is None or self.transport.is_closing():
            return
        waited, begun = now - self.waiting_since, self.cycle is not None and not self.cycle.response_complete
        if self._ended:
            if waited > limits.body_seconds:
                self.transport.close()
        elif self._in_headers and begun:  # the client waits for an answer
            return
        elif self._in_headers or begun:
            if waited > limits.body_seconds:
                self._service.metrics.closed.labels("sends slowly").inc()
                self._refuse_slow(begun, limits.body_seconds)
        elif size:
            self.waiting_since = now  # the client still reads
        elif self.waiting_since <= idle_since:
            self._hang_up()

    def close_at_once(self, why: str) -> None:
        """Close the connection without waiting for the client to take what is left, in buffers of the kernel too.

        Else the kernel keeps megabytes for a client that never reads, and does not tell it of the end.
        """
        self._service.metrics.closed.labels(why).inc()
        if (own := self.transport.get_extra_info("socket")) is not None:
            with suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def end(self) -> None:
        """Close the connection behind its last answer, and if a request still comes, when the client has seen that."""
        if self.waiting_since is None:
            self.transport.close()
        elif not self.is_ending():
            self._ended, self.waiting_since = True, time.monotonic()
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self._leave()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.flow.resume_reading()

    def is_ending(self) -> bool:
        return self._ended or self.transport.is_closing()

    def _count_unsent(self, size: int) -> None:
        self._service.load.bytes += size - self._unsent
        self._unsent = size

    def _hang_up(self) -> None:
        """Close an idle connection, unless its next request has come in this moment.

        The client is told by a call of its own: `close` takes a round of the event loop, in which a request could come.
        """
        with suppress(OSError), self.transport.get_extra_info("socket").dup() as own:
            try:
                if own.recv(1, socket.MSG_PEEK):
                    return
            except BlockingIOError:
                if self.transport.can_write_eof():  # with TLS, `close` alone can tell
                    own.shutdown(socket.SHUT_WR)
        self._service.metrics.closed.labels("idle").inc()
        self.transport.close()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _too_many(self) -> bool:
        """Return whether the headers, as far as they have come, are beyond the limits."""
        limits: Limits = self._service.limits
        if not self._in_headers or (len(self.headers) <= limits.headers and self._unused <= limits.header_bytes):
            return False
        # Bytes of a body may have come with them.
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        return len(self.headers) > limits.headers or size > limits.header_bytes

    def _refuse_headers(self) -> None:
        limits: Limits = self._service.limits
        rule = f"have at most {limits.headers} fields and {limits.header_bytes} bytes"
        self._refuse(RefusedError(431, f"serve: headers must {rule}, got more", "headers"), True)

    def _refuse_slow(self, begun: bool, seconds: float) -> None:
        """Refuse a request whose headers have not come in time, or, where it has `begun`, its body."""
        error = RefusedError(408, f"serve: request must come within {seconds:g} seconds, got a part")
        if not begun:
            self._refuse(error, True)
            return
        cycle = self.cycle
        if not cycle.response_started:
            request = cycle.request if type(cycle) is _Cycle else cycle.scope.get("ragsys.request")
            request = request or Request(cycle.scope, None, self._service.load)  # traces have a scope of their own
            self._send(refused(error, request), request, False)
        self.end()  # which counts it as left

    def _refuse(self, error: RefusedError, known: bool) -> None:
        """Answer what is not read as a request; ``known``: its headers, as far as they have come, are."""
        scope = {"method": "", "path": "", "client": self.client, "headers": self.headers if known else ()}
        request = Request(scope, None, self._service.load)
        response = refused(error, request)
        self._send(response, request, False)
        self._service.ended(request, error.status, response.size)
        self.end()

    def _send(self, response: Response, request: Request, keep_alive: bool) -> None:
        """Write an answer, with uvicorn's headers of all answers."""
        headers = [*self.server_state.default_headers, *response.headers, (REQUEST_ID, request.id)]
        if not keep_alive and CLOSE not in headers:
            headers.append(CLOSE)
        head = STATUS_LINE[response.status] + b"\r\n".join((*map(b": ".join, headers), b"", b""))
        if response.size <= _PART:
            self.transport.write(b"".join((head, *response.parts)))
            return
        for part in (head, *response.parts):
            self.transport.write(part)
        if self.flow.write_paused:  # by one of the first parts
            self._count_unsent(self.transport.get_write_buffer_size())

    def _begin(self) -> bool:
        """Take a request the short way, if its headers allow that."""
        parser, url, before = self.parser, self.url, self.cycle
        path, _, query = url.partition(b"?")
        if path != _URL or b"#" in query or parser.get_method() != b"POST" or parser.get_http_version() != "1.1":
            return False
        if (before is not None and not before.response_complete) or self.flow.write_paused:
            return False
        front: Front = self._front
        scope: Scope = self.scope
        if self.app is not front:
            return False
        request = Request(scope, None, front.service.load)
        headers = request.headers
        if b"content-length" not in headers or not front.unusual.isdisjoint(headers):
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
        scope["method"], scope["path"], scope["query_string"] = "POST", _PATH, query
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
            share = shared(self._service, request, body)
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
            response = cycle.request.answered(share.response())
        except Exception as error:
            response = failed(cycle.request, error)
        self._respond(cycle, response)

    async def _select(self, cycle: _Cycle) -> None:
        """Answer a request that goes by itself."""
        try:
            response = cycle.request.answered(await select(self._service, cycle.request))
        except asyncio.CancelledError:
            cycle.response_complete = True  # the client has gone
            self._front.ended(cycle.request, 499, 0)
            raise
        except Exception as error:
            response = failed(cycle.request, error)
        self._respond(cycle, response)

    def _respond(self, cycle: _Cycle, response: Response) -> None:
        status, size = 499, 0
        if not self.is_ending():
            status, size = response.status, response.size
            if CLOSE in response.headers or self._front.is_last(self.scope):
                cycle.keep_alive = False
            self._send(response, cycle.request, cycle.keep_alive)
        cycle.response_complete = True
        if not cycle.keep_alive:
            self.end()
        self.on_response_complete()
        self._front.ended(cycle.request, status, size)
