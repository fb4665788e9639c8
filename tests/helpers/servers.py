"""Services for tests: an application called in this process, a server in a thread, and one in a process of its own."""

import asyncio
import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import pyarrow as pa

import ragsys_kernels as rk
from ragsys_kernels.serving import AsyncClient, make_service
from ragsys_kernels.serving.server import Server, Settings, listening


@contextlib.asynccontextmanager
async def in_process(corpora, **options):
    """Yield a client of an application in this process, and its service."""
    service = make_service(corpora, **options)
    async with service.app.router.lifespan_context(service.app):
        transport = httpx.ASGITransport(service.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=30) as client:
            yield client, service


def run(corpora, use, **options):
    """Return what the coroutine function ``use`` returns of a client and a service."""

    async def main():
        async with in_process(corpora, **options) as (client, service):
            return await use(client, service)

    return asyncio.run(main())


def posted(corpora, *requests, **options):
    """Return the answers to requests: a path, a body (bytes or a JSON value) and, if wanted, headers."""

    async def use(client, _):
        found = []
        for path, body, *headers in requests:
            how = {"content": body} if isinstance(body, bytes) else {"json": body}
            found.append(await client.post(path, headers=dict(*headers), **how))
        return found

    return run(corpora, use, **options)


def with_client(corpora, use, *, limits=None, **options):
    """Return what the coroutine function ``use`` returns of an `AsyncClient` of a service in this process."""

    async def main(_, service):
        transport = httpx.ASGITransport(service.asgi)
        async with AsyncClient("http://service", transport=transport, **options) as client:
            return await use(client)

    return run(corpora, main, limits=limits)


ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def arrow(table, compression=None):
    """Return a table as an Arrow stream."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return out.getvalue()


def table_of(answer):
    """Return the table of an answer that is an Arrow stream."""
    return pa.ipc.open_stream(answer.content).read_all()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _Server(Server):
    @contextlib.contextmanager
    def capture_signals(self):  # which only the main thread may
        looks = [self._close_slow(), *([self._watch()] if self._settings.watch else [])]
        tasks = [asyncio.ensure_future(look) for look in looks]
        yield
        for task in tasks:
            task.cancel()


class Thread:
    """A server in a thread of this process, which starts in no time; ``options`` are those of `Settings`."""

    def __init__(self, corpora, **options):
        self._socket = listening("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        settings = Settings(corpora=corpora, port=self.port, num_threads=1, log=False, **options)
        self.service = settings.service()
        self._server = _Server(self.service, settings)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def __enter__(self):
        self._thread.start()
        while self.service.status != "ready":
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self._server.stop()
        self._thread.join(60)
        self._socket.close()
        assert not self._thread.is_alive()


class Process:
    """``ragsys-kernels serve`` as users start it; ``url`` when it is ready."""

    def __init__(self, *arguments, **environment):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "ragsys_kernels.cli", "serve", "--port", self.port, *arguments]
        self._folder = tempfile.TemporaryDirectory()
        self._printed = [Path(self._folder.name, name) for name in ("out", "err")]  # pipes would fill
        variables = {"PYTHONPATH": str(Path(rk.__file__).parents[1]), "OMP_NUM_THREADS": "1", **environment}
        with open(self._printed[0], "wb") as out, open(self._printed[1], "wb") as err:
            self.process = subprocess.Popen(
                list(map(str, command)),
                env={**os.environ, **variables},
                stdout=out,
                stderr=err,
            )

    def wait_ready(self, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200:
                    return self
            time.sleep(0.05)
        raise AssertionError(self.stop())

    def stop(self, number=signal.SIGTERM):
        """End it; return its exit code and what it printed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(60)
        return self.process.returncode, *(file.read_text() for file in self._printed)

    def __enter__(self):
        return self.wait_ready()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        self._folder.cleanup()
