"""The ASGI application: FastAPI, and before it a front that checks the token, counts, logs, answers quick routes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from ..corpus import Corpus
from .http.messages import (
    CLOSE,
    REQUEST_ID,
    DisconnectedError,
    Receive,
    Request,
    Scope,
    Send,
    failed,
    refused,
)
from .limits import RefusedError, busy
from .routes import about, explore, open_inference, page, rerank, select
from .service import Service

_PLAIN = {"/info", "/metrics", "/openapi.json", "/docs", "/redoc", *page.PATHS}

# In the scope of requests on connections beyond the limit.
BEYOND = "ragsys.beyond"

# What pages of allowed origins may send and read. They cannot send x-requested-with, which stands for a token.
_METHODS = ("GET", "POST", "PUT", "DELETE")
_TAKEN = (
    "authorization", "content-encoding", "traceparent", "tracestate", "x-request-id", "x-timeout-ms", "x-pool-size",
)  # fmt: skip
_NOTHING = re.compile(rb"q=0(\.0*)?")  # of accept-encoding
_SHOWN = ("x-request-id", "retry-after")
_GZIP_LEVEL = 1  # the quickest: the link that is worth more time is rare

# Modules of routes: each has a function ``add(service)``.
_ROUTES = (about, select, explore, rerank, open_inference, page)


def make_service(corpora: Mapping[str, str | Path | Corpus], **options: Any) -> Service:
    """Make a service with all its routes; options as `Service` takes them."""
    service = Service(corpora, **options)
    service.asgi = Front(service)
    service.app.add_exception_handler(HTTPException, _http_error)
    for module in _ROUTES:
        module.add(service)
    return service


def create_app(corpora: Mapping[str, str | Path | Corpus], **options: Any) -> Any:
    """Make the ASGI application of a service; options as `Service` takes them.

    Examples
    --------
    >>> app = create_app({"docs": "corpus-folder"})  # uvicorn module:app
    """
    return make_service(corpora, **options).asgi


def _takes_gzip(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a client takes answers in gzip, by RFC 9110, 12.5.3."""
    for part in headers.get(b"accept-encoding", b"").split(b","):
        name, _, weight = part.replace(b" ", b"").lower().partition(b";")
        if name == b"gzip":
            return not _NOTHING.fullmatch(weight)
    return False


async def _http_error(request: Any, error: Any) -> Any:
    """Return the framework's own errors, as of an unknown path, in the form of all others."""
    refusal = RefusedError(error.status_code, str(error.detail), headers=error.headers)
    return refused(refusal, request.scope["ragsys.request"])


class Front:
    """Around all routes: token, quick routes, metrics, access log. `protocol` comes here without ASGI."""

    def __init__(self, service: Service) -> None:
        self._app, self.service = service.app, service
        self._answer: Any = self._routed
        # Headers that change how a request is read or answered, which is left to ASGI.
        self.unusual = {b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"}
        if service.gzip_bytes is not None:
            self.unusual.add(b"accept-encoding")
            self._packed = GZipMiddleware(self._routed, service.gzip_bytes, _GZIP_LEVEL)
            self._answer = self._packed_or_not
        if service.hosts.origins:
            self.unusual.add(b"origin")
            self._answer = CORSMiddleware(self._answer, service.hosts.origins, _METHODS, _TAKEN, expose_headers=_SHOWN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service = self.service
        request = Request(scope, receive, service.load)
        service.load.requests += 1
        scope["ragsys.request"] = request
        sent = [500, 0]
        try:
            await self._answer(scope, receive, self._counting(request, send, sent))
        except DisconnectedError:
            sent = [499, 0]
        except asyncio.CancelledError:
            if not request.gone:
                raise
            sent = [499, 0]
        finally:
            self.ended(request, *sent)

    async def _packed_or_not(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with gzip those who take it: the framework takes ``gzip;q=0``, which refuses it, for one of them."""
        takes = _takes_gzip(scope["ragsys.request"].headers)
        await (self._packed if takes else self._routed)(scope, receive, send)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, with an error if need be."""
        service, request = self.service, scope["ragsys.request"]
        handler = service.quick.get((scope["method"], scope["path"]))
        if handler is not None or scope["path"] in _PLAIN:
            request.route = scope["path"]
        try:
            if scope["path"] not in service.open:
                self.admit(request)
            if handler is not None:
                await request.answered(await handler(request)).send(send)
            else:
                await self._app(scope, receive, send)
        except DisconnectedError:
            raise
        except Exception as error:
            with suppress(RuntimeError):  # it had begun to answer
                await failed(request, error).send(send)

    def admit(self, request: Request) -> None:
        """Refuse a request for another host, one without a token, and one too many."""
        self.service.hosts.check(request.headers)
        request.account = self.service.tokens.check(request.headers)
        if self.service.load.requests > self.service.limits.requests:
            raise busy("too many requests are under way")
        if BEYOND in request.scope:
            raise busy("too many connections are open")

    def is_last(self, scope: Scope) -> bool:
        """Return whether a connection is closed behind its answer."""
        return self.service.status == "stopping" or BEYOND in scope

    def ended(self, request: Request, status: int, size: int) -> None:
        """Count and log a request that has its answer."""
        self.service.load.requests -= 1
        self.service.ended(request, status, size)

    def _counting(self, request: Request, send: Send, sent: list[int]) -> Send:
        """Return ``send`` that gives an answer the id of its request, and notes the status and size of what it sends.

        It says also if the connection ends.
        """

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                sent[0] = message["status"]
                headers = [*message.get("headers", ()), (REQUEST_ID, request.id)]
                if self.is_last(request.scope) and CLOSE not in headers:
                    headers.append(CLOSE)
                message = {**message, "headers": headers}
            else:
                sent[1] += len(message.get("body", b""))
            await send(message)

        return counted
