"""What the routes of a service share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson
import pyarrow as pa
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from .. import __version__
from ..corpus import Corpus
from ..selection.request import Request as Selecting
from .asked import Asked
from .batcher import Batcher
from .corpora import UNUSABLE, Corpora, Served, naming
from .http import openapi
from .http.accesslog import AccessLog
from .http.followed import follow
from .http.hosts import Hosts
from .http.messages import Handler, Load, Receive, Request, Response, Scope, Send, failed
from .http.tokens import Tokens
from .kernel import Block, answer
from .limits import LOAD_FAILED, Limits, RefusedError
from .metrics import Metrics, place
from .stop import Stop, StoppedError
from .texts import TextFile
from .together import Together

if TYPE_CHECKING:
    from .encoder import TextEncoder

_Found = TypeVar("_Found")
_LOOK = 0.25  # seconds between looks at files


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
        token_file: str | Path | None = None,
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
        load_from: str | Path | None = None,
        gzip_bytes: int | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.load = Load(self.limits)
        self.corpora = Corpora(corpora, device, verify, unknown, texts)
        for served in self.corpora.all():
            with naming(served.name):
                warm(served)
        self.metrics = Metrics(self.corpora.all)
        self.batcher = Batcher(self.limits, self.metrics, num_threads, batch_wait_us)
        self.hosts = hosts or Hosts()
        self.tokens = Tokens(token, token_file, place(), workers)
        self.log = AccessLog(log, self.metrics.dropped.inc)
        self.workers = workers
        self.load_from = None if load_from is None else Path(load_from)  # where folders lie that requests may load
        self.gzip_bytes = gzip_bytes  # of answers that are compressed; None: none is
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
        # Called when the service has started, and four times a second: what reads files again that have changed.
        self.looks: list[Callable[[], None]] = []
        if token_file is not None:
            self.follow("tokens", {"token_file": token_file}, self.tokens.read_again, "the tokens stay as they were")
        # Of all workers, where there are several.
        self.reload: Callable[..., Awaitable[dict[str, Any]]] = self.reload_here
        self.unload: Callable[[str], Awaitable[dict[str, Any]]] = self.unload_here
        self._changing = asyncio.Lock()  # one corpus at a time
        self._parsers = ThreadPoolExecutor(1, "parser")
        self._lookers = ThreadPoolExecutor(1, "looker")
        self.quick: dict[tuple[str, str], Handler] = {("GET", "/openapi.json"): self._openapi}
        self._documented: list[openapi.Operation] = []
        self._document: asyncio.Future[bytes] | None = None
        self.asgi: Any = None  # the whole application: `app` behind its front
        self.app = FastAPI(
            title="ragsys-kernels",
            version=__version__,
            lifespan=self._lifespan,
            redirect_slashes=False,
            generate_unique_id_function=lambda route: openapi.operation_id(min(route.methods or ["GET"]), route.path),
        )
        self.app.openapi = lambda: openapi.document(self.app, self._documented, self.limits)  # type: ignore[method-assign]

    def route(self, method: str, path: str, handler: Handler, **documented: Any) -> None:
        """Add a quick route: ``handler`` takes a `Request` and returns a `Response`, or raises `RefusedError`.

        ``documented``: see `openapi.Operation`. A path without parameters is found without the router.
        """
        if "{" not in path:
            self.quick[method, path] = handler
        self.app.router.routes.append(Route(path, _Endpoint(handler, path), methods=[method]))
        self._documented.append(openapi.Operation(method, path, **documented))

    async def _openapi(self, request: Request) -> Response:
        """Answer with the OpenAPI document, made once and beside the event loop: it takes a second."""
        if self._document is None:
            loop = asyncio.get_running_loop()
            self._document = loop.run_in_executor(None, lambda: orjson.dumps(self.app.openapi()))
        return Response(await asyncio.shield(self._document))

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
        request.asks(asked.served.name, asked.count)
        request.stage("parse")
        if (size := asked.nbytes + asked.answer_bytes) > request.bytes_in:
            request.holds(size)
        ticket = await self.batcher.answer(asked, deadline)
        request.kernel(ticket.begun - ticket.submitted, ticket.kernel)

    def ended(self, request: Request, status: int, size: int) -> None:
        """Count and log a request that has its answer, and give back what it held."""
        request.release()
        token = request.account.name if request.account is not None else ""
        self.metrics.request(request.route, status, request.seconds(), request.corpus, token)
        self.log.add(request, status, size)

    def follow(self, what: str, files: Mapping[str, str | Path], use: Callable[[], None], stays: str) -> None:
        """Use files again when they have changed, as `http.followed` does; one of several workers logs and counts."""
        ended = None if place() else partial(self.metrics.file_reload, what)
        self.looks.append(follow(files, use, stays, ended))

    async def reload_here(self, name: str, folder: Path | None = None) -> dict[str, Any]:
        """Load a corpus anew, or from another folder, and put it in service in this process."""
        async with self._changing:
            try:
                own = folder is None
                served = await self.prepared(name, folder or self.corpora.folder(name), own)
            except RefusedError as error:
                if error.status != 404:  # names of callers must not become labels
                    self.metrics.reload(name, "refused")
                raise
            self.corpora.put(served)
            self.metrics.reload(name, "loaded")
            return {"corpus": name, "rows": served.corpus.num_live, "version": served.version}

    async def unload_here(self, name: str) -> dict[str, Any]:
        """Take a corpus out of service in this process."""
        async with self._changing:
            self.corpora.at(name, "unload")
            self.corpora.remove(name)
            self.metrics.reload(name, "unloaded")
            return {"corpus": name}

    async def prepared(self, name: str, folder: Path, own: bool, verify: bool | None = None) -> Served:
        """Return a corpus loaded from its own or another folder, not yet in service; `verify`: as `Corpora.load`."""
        loop = asyncio.get_running_loop()
        try:
            served = await loop.run_in_executor(None, self.corpora.load, name, folder, verify)
            await loop.run_in_executor(None, warm, served)
        except UNUSABLE as error:
            known = any(each.name == name for each in self.corpora.all())
            op, state = "reload" if own else "load", "stays as it was" if known else "is not in service"
            # A request names no folder where it means that of the corpus, or of the corpus's name.
            argument, rule, got = "name", "be of a corpus whose folder loads", name
            if not own and folder.name != name:
                argument, rule, got = "folder", "be one that loads", folder.name
            why = str(error).replace("Corpus: path must", "it must", 1) or type(error).__name__
            message = f"{op}: {argument} must {rule}, got {got!r}; corpus {name!r} {state}: {why}"
            raise RefusedError(409, message, argument, code=LOAD_FAILED) from error
        return served

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        # These import what the first request would wait for: the framework's threads, and pandas, if there is one.
        await run_in_threadpool(self.metrics.text)
        await run_in_threadpool(pa.array, ())
        for start in self.starting:
            await start()
        self.status = "ready"
        self.metrics.serves()
        looking = asyncio.ensure_future(self._look())
        try:
            yield
        finally:
            self.status = "stopping"
            looking.cancel()
            for stop in self.stopping:
                await stop()
            self.batcher.close()
            self.log.close()

    async def _look(self) -> None:
        while True:
            for look in self.looks:
                look()
            await asyncio.sleep(_LOOK)


class _Endpoint:
    """A quick handler as the router takes it: an ASGI application."""

    def __init__(self, handler: Handler, path: str) -> None:
        self._handler, self._path = handler, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request = scope["ragsys.request"]
        request.scope, request.route = scope, self._path  # with the parameters of the path
        try:
            response = request.answered(await self._handler(request))
        except Exception as error:  # the framework would answer in words of its own
            response = failed(request, error)
        await response.send(send)


def warm(served: Served) -> None:
    """Answer one query of each method: what the kernels prepare in their first call is ready then."""
    vectors = served.vectors_of(np.zeros(1, np.int64))
    for method in ("mmr", "vrsd"):
        answer(Block(served, Selecting(method, vectors, served.corpus, 1, lambda_d=0.75, lambda_b=0.95), 1, 100))
