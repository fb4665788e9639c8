"""The ASGI application: FastAPI, and before it a front that checks the token, counts, logs, answers quick routes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..corpus import Corpus
from .http.messages import CLOSE, DisconnectedError, Receive, Request, Scope, Send, failed
from .limits import busy
from .routes import about, explore, open_inference, page, rerank, select
from .service import Service

_PLAIN = {"/info", "/metrics", "/openapi.json", "/docs", "/redoc", *page.PATHS}

# In the scope of requests on connections beyond the limit.
BEYOND = "ragsys.beyond"

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


async def _http_error(request: Any, error: Any) -> JSONResponse:
    """Return the framework's own errors, as of an unknown path, in the form of all others."""
    return JSONResponse({"error": {"argument": None, "message": str(error.detail)}}, error.status_code, error.headers)


class Front:
    """Around all routes: token, quick routes, metrics, access log. `protocol` comes here without ASGI."""

    def __init__(self, service: Service) -> None:
        self._app, self.service = service.app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service = self.service
        request = Request(scope, receive, service.load)
        service.load.requests += 1
        scope["ragsys.request"] = request
        sent = [500, 0]
        send = self._counting(scope, send, sent)
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
            sent = [499, 0]
        except asyncio.CancelledError:
            if not request.gone:
                raise
            sent = [499, 0]
        except Exception as error:
            with suppress(RuntimeError):  # it had begun to answer
                await failed(request, error).send(send)
        finally:
            self.ended(request, *sent)

    def admit(self, request: Request) -> None:
        """Refuse a request for another host, one without the token, and one too many."""
        self.service.hosts.check(request.headers)
        self.service.bearer.check(request.headers)
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
        request.release()
        self.service.metrics.request(request.route, status, request.seconds())
        self.service.log.add(request, status, size)

    def _counting(self, scope: Scope, send: Send, sent: list[int]) -> Send:
        """Return ``send`` that notes the status and size of what it sends, and says if the connection ends."""

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                sent[0] = message["status"]
                if self.is_last(scope) and CLOSE not in (headers := list(message.get("headers", ()))):
                    message = {**message, "headers": [*headers, CLOSE]}
            else:
                sent[1] += len(message.get("body", b""))
            await send(message)

        return counted
