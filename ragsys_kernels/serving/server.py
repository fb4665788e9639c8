"""One server process: uvicorn with limits on slow connections, and signals that stop it or load corpora anew."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import threadpoolctl
import uvicorn

from . import connections
from .app import make_service
from .corpora import Watch
from .http.hosts import Hosts
from .http.tls import Certificate
from .limits import Limits, RefusedError
from .listening import asking, let_nobody_in, listen, room
from .service import Service
from .texts import TextFile

if TYPE_CHECKING:
    from .encoder import TextEncoder

_logger = logging.getLogger("ragsys_kernels.serving")

LOOK = 0.25  # seconds between looks at the connections, and at folders
# Seconds between looks at what is under way when a server ends; that a connection has for its first request then; and
# that a client which has begun to connect has to end that, without and with TLS.
_STEP, _FIRST, _HANDSHAKE, _TLS_HANDSHAKE = 0.02, 0.5, 0.2, 1.0
_SWITCH = 0.5e-3  # seconds that a thread of Python keeps its turn; the default is ten times as long
_QUIET = 60.0  # seconds without a line about too many connections


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a server process is started with; plain values, which go to another process as they are."""

    corpora: dict[str, str]
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    token: str | None = None  # or several, as `http.tokens` reads them
    token_file: str | None = None  # that they stand in, if it is to be read again
    device: str = "cpu"
    num_threads: int | None = None
    batch_wait_us: int = 0
    grace: float = 30.0
    drain: float = 2.0
    log: bool = True
    limits: Limits = field(default_factory=Limits)
    encoder: str | None = None  # the URL of its endpoint, or a model for this process
    encoder_model: str | None = None
    encoder_token: str | None = None
    flight_port: int | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    load_from: str | None = None  # folders that requests may load as corpora
    gzip_bytes: int | None = None  # of answers that are compressed
    tls_cert: str | None = None
    tls_key: str | None = None
    verify: bool = True  # corpora when they are loaded; of several workers' one does
    watch: bool = False  # reload a folder when it has a new version
    unknown: str = "error"  # or "skip": how to treat an id that is not in the corpus
    traces: bool = False
    texts: dict[str, TextFile] = field(default_factory=dict)
    certificate: Certificate | None = field(init=False)  # of tls_cert and tls_key; None: connections are plain

    def __post_init__(self) -> None:
        self.hosts()  # refuses bad names
        for name in ("grace", "drain"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"serve: {name} must be finite, got {getattr(self, name)}")
        most = 65_536 - self.workers
        if self.flight_port is not None and self.flight_port > most:
            rule = f"be at most {most}, for each of {self.workers} workers has a port"
            raise ValueError(f"serve: flight_port must {rule}, got {self.flight_port}")
        if "*" in self.allowed_origins and not self.token and not self.token_file:
            raise ValueError("serve: allowed_origins must name each origin without a token, got '*'")
        if self.load_from is not None and not os.path.isdir(self.load_from):
            raise ValueError(f"serve: load_from must be a folder, got {self.load_from!r}")
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError(f"serve: tls_key must come with tls_cert, got {self.tls_key!r} alone")
        certificate = None if self.tls_cert is None else Certificate(self.tls_cert, self.tls_key)
        object.__setattr__(self, "certificate", certificate)

    def hosts(self) -> Hosts:
        """Return the hosts to answer: with a token, which pages of other sites lack, any, unless some are named."""
        open_ = (self.token or self.token_file) and not self.allowed_hosts
        return Hosts(None if open_ else self.host, self.allowed_hosts, self.allowed_origins)

    @property
    def scheme(self) -> str:
        return "http" if self.tls_cert is None else "https"

    def tls(self) -> ssl.SSLContext | None:
        """Return the context of TLS; None: connections are plain."""
        return None if self.certificate is None else self.certificate.context()

    def service(self, token: str | None = None) -> Service:
        """Load the corpora and make the service; ``token`` None: with the tokens of these settings."""
        service = make_service(
            self.corpora,
            limits=self.limits,
            token=self.token if token is None else token,
            token_file=self.token_file,
            device=self.device,
            num_threads=self.num_threads,
            batch_wait_us=self.batch_wait_us,
            log=1 if self.log else None,
            workers=self.workers,
            encoder=self._encoder(),
            hosts=self.hosts(),
            verify=self.verify and self.workers == 1,
            unknown=self.unknown,
            texts=self.texts,
            load_from=self.load_from,
            gzip_bytes=self.gzip_bytes,
        )
        if self.flight_port is not None:
            from .routes.flight import attach  # gRPC takes time and memory

            attach(service, self.host, self.flight_port, self.grace, self.workers, self.certificate)
        return service

    def _encoder(self) -> TextEncoder | None:
        if self.encoder is None:
            return None
        from .encoder import Encoder, LocalEncoder  # httpx takes time

        if is_url(self.encoder):
            return Encoder(self.encoder, self.encoder_model, self.encoder_token)
        return LocalEncoder(self.encoder, self.num_threads)


def is_url(encoder: str | None) -> TypeGuard[str]:
    """Return whether an encoder is an endpoint, and not a model for this process."""
    return encoder is not None and encoder.startswith(("http://", "https://"))


class Server(uvicorn.Server):
    """A server whose signals are its own: SIGTERM and SIGINT end it with exit code 0, SIGHUP loads all corpora anew."""

    def __init__(self, service: Service, settings: Settings, worker: bool = False) -> None:
        self.service, self._settings, self._worker = service, settings, worker
        self._sockets: list[socket.socket] = []
        self._leaving = math.inf  # since when it ends
        self._warned = -math.inf  # when it last said that there are too many connections
        self.let_go: Callable[[], Awaitable[None]] = self._let_go  # of the address; workers do it together
        service.limits = replace(service.limits, connections=room(service.limits.connections))
        way, service.connections = connections.chosen("traces" if settings.traces else None)
        plain = way == "auto"
        if plain:
            _logger.warning("serve: connections go the plain way, %s", service.connections)
        config = uvicorn.Config(
            connections.traced(service.asgi) if settings.traces else service.asgi,
            http=way if plain else partial(way, service.asgi),  # type: ignore[arg-type]
            timeout_keep_alive=math.ceil(settings.limits.idle_seconds),
            loop="uvloop",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,  # `_leave` has waited for what is under way
            limit_concurrency=service.limits.connections if plain else None,
            lifespan="on",
            backlog=2048,
        )
        config.load()
        if (certificate := settings.certificate) is not None:
            config.ssl = certificate.context()
            renew = partial(certificate.read_again, config.ssl)
            service.follow("certificate", certificate.files, renew, "connections have the certificate before it")
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGTERM: self.stop}
        if not self._worker:  # whose parent has the others
            handlers |= {signal.SIGINT: self.stop, signal.SIGHUP: self._reload_all}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        looks = [loop.create_task(self._close_slow())]
        if self._settings.watch and not self._worker:
            looks.append(loop.create_task(self._watch()))
        settled()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # else a line for each request that is not HTTP
        try:
            yield
        finally:
            for task in looks:
                task.cancel()
            for number in handlers:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Answer what is under way and what still comes for a while, then end. A second call ends at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self.service.status = "stopping"

    def _reload_all(self) -> None:
        for served in self.service.corpora.all():
            self._reload(served.name)

    def _reload(self, name: str) -> None:
        task = asyncio.ensure_future(self.service.reload(name))
        task.add_done_callback(_reloaded)

    async def _watch(self) -> None:
        """Reload the folders that have a new version."""
        watch = Watch()
        while True:
            corpora = self.service.corpora.all()
            folders = {served.name: served.folder for served in corpora}
            for name in watch.changed(folders, {served.name: served.version for served in corpora}):
                self._reload(name)
            await asyncio.sleep(LOOK)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._sockets = sockets or []
        await super().startup(sockets)

    async def main_loop(self) -> None:
        await super().main_loop()
        await self._leave()

    async def _leave(self) -> None:
        """Answer what comes, each answer the last of its connection; then close the address, so that nobody is cut off.

        The address stays open for `drain` seconds, and until the requests that came by then are answered.
        """
        self._leaving = time.monotonic()
        drained = self._leaving + self._settings.drain
        ends = drained + self._settings.grace
        await self._wait(drained)
        before = self._under_way()
        await self._wait(ends, lambda: before.isdisjoint(self._under_way()))
        letting_go = asyncio.ensure_future(self.let_go())
        await self._wait(ends, letting_go.done)
        await self._wait(time.monotonic() + (_TLS_HANDSHAKE if self.config.ssl else _HANDSHAKE))
        await self._wait(ends, lambda: not asking(self._sockets))
        for server in self.servers:  # in the same breath
            server.close()
        await self._wait(ends, lambda: not self.server_state.connections)

    async def _wait(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        while not (self.force_exit or done()) and time.monotonic() < until:
            await self.on_tick(0)  # the date of the answers
            await asyncio.sleep(_STEP)

    def _under_way(self) -> set[Any]:
        """Return the requests that have no answer yet."""
        cycles = [getattr(connection, "cycle", None) for connection in self.server_state.connections]
        return {cycle for cycle in cycles if cycle is not None and not (cycle.response_complete or cycle.disconnected)}

    async def _let_go(self) -> None:
        let_nobody_in(self._sockets)

    async def _close_slow(self) -> None:
        limits, patience = self.service.limits, max(self._settings.drain, _FIRST)
        while True:
            await asyncio.sleep(LOOK)
            now = time.monotonic()
            ends = now > self._leaving + patience
            idle = min(patience, limits.idle_seconds) if ends else limits.idle_seconds
            for connection in tuple(self.server_state.connections):
                if hasattr(connection, "close_if_slow"):
                    connection.close_if_slow(now, limits, now - idle)
                elif ends:  # of the plain way
                    connection.shutdown()
            if self.service.load.beyond and now > self._warned + _QUIET:
                self._warned = now
                _logger.warning("serve: %d connections are open, the most that are taken", limits.connections)


def _reloaded(task: asyncio.Future[Any]) -> None:
    error = task.exception()
    if isinstance(error, RefusedError):
        _logger.warning("%s", error)
    elif error is not None:
        _logger.error("reload failed", exc_info=error)


def limited() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread, since the kernels have their own threads."""
    found: AbstractContextManager[Any] = threadpoolctl.threadpool_limits(1, "blas")
    return found


def settled() -> None:
    """Exclude what is loaded from garbage collection, and let a thread wait less for another's turn.

    Either would delay requests: the event loop waits for its turn several times a request while another thread reads or
    writes a long one.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH)


def run(settings: Settings, sockets: list[socket.socket]) -> None:
    """Serve in this process until a signal ends it."""
    with limited():
        server = Server(settings.service(), settings)
        listen(sockets, settings.host, settings.scheme)
        server.run(sockets)
