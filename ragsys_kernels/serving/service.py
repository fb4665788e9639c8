"""What the routes of a service share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from fastapi import FastAPI
from starlette.routing import Route

from .. import __version__
from ..corpus import Corpus
from ..selection.request import Request as Selecting
from .asked import Asked
from .batcher import Batcher
from .corpora import Corpora, Served
from .http import openapi
from .http.accesslog import AccessLog
from .http.hosts import Hosts
from .http.messages import Bearer, Handler, Load, Receive, Request, Scope, Send, failed
from .kernel import Block, answer
from .limits import Limits, RefusedError
from .metrics import Metrics
from .stop import Stop, StoppedError
from .texts import TextFile
from .together import Together

if TYPE_CHECKING:
    from .encoder import TextEncoder

_Found = TypeVar("_Found")


class Service:
    """What the routes share: corpora, limits, the batcher, metrics, and the FastAPI application as ``app``.

    A module of routes has a function ``add(service)``, which calls `route` for quick routes, or adds FastAPI's own to
    ``service.app``.
    """

    def __init__(
        self,
        corpora: Mapping[str, str | Path | Corpus],
        *,
        limits: Limits | None = None,
        token: str | None = None,
        device: str = "cpu",
        num_threads: int | None = None,
        batch_wait_us: int = 0,
        log: int | None = None,
        workers: int = 1,
        encoder: TextEncoder | None = None,
        hosts: Hosts | None = None,
        verify: bool = False,
        unknown: str = "error",
        texts: Mapping[str, TextFile] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.load = Load(self.limits)
        self.corpora = Corpora(corpora, device, verify, unknown, texts)
        self.metrics = Metrics()
        self.batcher = Batcher(self.limits, self.metrics, num_threads, batch_wait_us)
        self.hosts = hosts or Hosts()
        self.bearer = Bearer(token)
        self.log = AccessLog(log, self.metrics.dropped.inc)
        self.workers = workers
        self.encoder = encoder  # of texts that are queries
        self.together = Together(self.batcher, self.limits)
        self.status = "starting"  # "ready", then "stopping"
        self.connections = "asgi"  # unless a server has another way; see `connections`
        self.open = {"/health", "/health/live", "/health/ready"}  # paths that need no token
        # Awaited when corpora are ready, and when requests have ended.
        self.starting: list[Callable[[], Awaitable[None]]] = []
        self.stopping: list[Callable[[], Awaitable[None]]] = []
        if encoder is not None:
            self.stopping.append(encoder.close)
        self.reload: Callable[[str], Any] = self.reload_here  # of all workers, where there are several
        self._parsers = ThreadPoolExecutor(1, "parser")
        self._lookers = ThreadPoolExecutor(1, "looker")
        self.quick: dict[tuple[str, str], Handler] = {}
        self._documented: list[openapi.Operation] = []
        self.asgi: Any = None  # the whole application: `app` behind its front
        self.app = FastAPI(title="ragsys-kernels", version=__version__, lifespan=self._lifespan, redirect_slashes=False)
        self.app.openapi = lambda: openapi.document(self.app, self._documented, self.limits)  # type: ignore[method-assign]

    def route(self, method: str, path: str, handler: Handler, **documented: Any) -> None:
        """Add a quick route: ``handler`` takes a `Request` and returns a `Response`, or raises `RefusedError`.

        ``documented``: see `openapi.Operation`. A path without parameters is found without the router.
        """
        if "{" not in path:
            self.quick[method, path] = handler
        self.app.router.routes.append(Route(path, _Endpoint(handler, path), methods=[method]))
        self._documented.append(openapi.Operation(method, path, **documented))

    async def beside(self, large: bool, function: Callable[..., _Found], *arguments: Any) -> _Found:
        """Call a function, in a thread beside the event loop if there is much to do."""
        if not large:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._parsers, function, *arguments)

    async def look(self, deadline: float, function: Callable[..., _Found], *arguments: Any) -> _Found:
        """Call a function that reads files, or has much to do, one at a time and beside the kernels.

        A call ends, or does not begin, once its deadline has passed or its client has disconnected.
        """
        loop, stop = asyncio.get_running_loop(), Stop()

        def call() -> _Found:
            if stop.given:
                raise StoppedError
            with stop:
                return function(*arguments)

        late = loop.call_at(deadline, stop.set)
        try:
            return await loop.run_in_executor(self._lookers, call)
        except StoppedError:
            raise RefusedError(504, "serve: the deadline has passed while others were answered") from None
        finally:
            late.cancel()
            stop.set()

    async def answer(self, asked: Asked, request: Request, deadline: float) -> None:
        """Let the kernels pick what a request that has been read asks for."""
        request.queries = asked.count
        request.stage("parse")
        if asked.nbytes > request.bytes_in:
            request.holds(asked.nbytes)
        ticket = await self.batcher.answer(asked, deadline)
        request.kernel(ticket.begun - ticket.submitted, ticket.kernel)

    async def reload_here(self, name: str) -> dict[str, Any]:
        """Load a corpus anew and put it in service in this process."""
        try:
            served = await self.prepared(name)
        except RefusedError:
            self.metrics.reload(name, False)
            raise
        self.put(served)
        return {"corpus": name, "rows": len(served), "version": served.version}

    async def prepared(self, name: str, verify: bool | None = None) -> Served:
        """Return a corpus loaded anew, not yet in service; `verify`: as `Corpora.load`."""
        self.corpora.folder(name)
        loop = asyncio.get_running_loop()
        try:
            served = await loop.run_in_executor(None, self.corpora.load, name, verify)
            await loop.run_in_executor(None, warm, served)
        except (ValueError, OSError, MemoryError) as error:
            raise RefusedError(409, f"reload: corpus {name!r} stays as it was: {error}", "name") from error
        return served

    def put(self, served: Served) -> None:
        """Put a loaded corpus in service."""
        self.corpora.put(served)
        self.metrics.rows.labels(served.name).set(len(served))
        self.metrics.reload(served.name, True)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        for served in self.corpora.all():
            self.metrics.rows.labels(served.name).set(len(served))
            await loop.run_in_executor(None, warm, served)
        for start in self.starting:
            await start()
        self.status = "ready"
        try:
            yield
        finally:
            self.status = "stopping"
            for stop in self.stopping:
                await stop()
            self.batcher.close()
            self.log.close()


class _Endpoint:
    """A quick handler as the router takes it: an ASGI application."""

    def __init__(self, handler: Handler, path: str) -> None:
        self._handler, self._path = handler, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request = scope["ragsys.request"]
        request.scope, request.route = scope, self._path  # with the parameters of the path
        try:
            response = await self._handler(request)
        except Exception as error:  # the framework would answer in words of its own
            response = failed(request, error)
        await response.send(send)


def warm(served: Served) -> None:
    """Answer one query of each method: what the kernels prepare in their first call is ready then."""
    vectors = served.vectors_of(np.zeros(1, np.int64))
    for method in ("mmr", "vrsd"):
        answer(Block(served, Selecting(method, vectors, served.corpus, 1, lambda_d=0.75, lambda_b=0.95), 1, 100))
