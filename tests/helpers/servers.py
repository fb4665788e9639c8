"""Services for tests: an application called in this process, a server in a thread, and one in a process of its own."""

import asyncio
import atexit
import base64
import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import pytest
from ports import free_port

pytest.importorskip("fastapi")
pa = pytest.importorskip("pyarrow")

import ragsys_kernels as rk  # noqa: E402
from ragsys_kernels.serving import AsyncClient, make_service  # noqa: E402
from ragsys_kernels.serving.listening import bound  # noqa: E402
from ragsys_kernels.serving.server import Server, Settings  # noqa: E402

# Seconds after which what has not come does not come, on a busy machine either.
HANGS = 120
# A connection of its own for each request. A client that could ask by https would take 40 ms to load certificates.
http = httpx.Client(verify=False, limits=httpx.Limits(max_keepalive_connections=0), timeout=HANGS)


@contextlib.asynccontextmanager
async def in_process(corpora, **options):
    """Yield a client of an application in this process, and its service."""
    service = make_service(corpora, **options)
    async with service.app.router.lifespan_context(service.app):
        transport = httpx.ASGITransport(service.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=HANGS) as client:
            yield client, service


def run(corpora, use, **options):
    """Return what the coroutine function ``use`` returns of a client and a service."""

    async def main():
        async with in_process(corpora, **options) as (client, service):
            return await use(client, service)

    return asyncio.run(main())


class _Kept:
    """An application that is there until the process ends: to make one takes longer than most requests to it."""

    def __init__(self, corpora):
        self._loop, self._corpora, self._context = asyncio.new_event_loop(), corpora, in_process(corpora)
        self._found = self._loop.run_until_complete(self._context.__aenter__())
        atexit.register(self._close)

    def run(self, use):
        return self._loop.run_until_complete(use(*self._found))

    def _close(self):
        self._loop.run_until_complete(self._context.__aexit__(None, None, None))
        self._loop.close()


_kept = {}


def posted(corpora, *requests, **options):
    """Return the answers to requests: a path, a body (bytes or a JSON value) and, if wanted, headers."""

    async def use(client, _):
        found = []
        for path, body, *headers in requests:
            how = {"content": body} if isinstance(body, bytes) else {"json": body}
            found.append(await client.post(path, headers=dict(*headers), **how))
        return found

    if options:
        return run(corpora, use, **options)
    of = tuple((name, id(corpus)) for name, corpus in corpora.items())
    if of not in _kept:
        _kept[of] = _Kept(corpora)
    return _kept[of].run(use)


def with_client(corpora, use, *, limits=None, **options):
    """Return what the coroutine function ``use`` returns of an `AsyncClient` of a service in this process."""

    async def main(_, service):
        transport = httpx.ASGITransport(service.asgi)
        async with AsyncClient("http://service", transport=transport, **options) as client:
            return await use(client)

    return run(corpora, main, limits=limits)


def encoded(array):
    """Return an array as the JSON of a request has it."""
    return {"b64": base64.b64encode(array.tobytes()).decode(), "shape": list(array.shape), "dtype": str(array.dtype)}


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


def until(wanted, seconds=HANGS):
    """Wait until a function returns something true; return it."""
    end = time.monotonic() + seconds
    while not (found := wanted()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def metric(url, name, *labels, headers=None):
    """The sum of a metric's values with these labels."""
    lines = http.get(f"{url}/metrics", headers=headers).text.splitlines()
    found = [line for line in lines if line.startswith(name) and all(label in line for label in labels)]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def kill(*pids):
    """Kill processes, some of which may have ended since they were listed."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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

    def __init__(self, corpora, flight=False, **options):
        if flight:
            options["flight_port"] = free_port()
            self.flight = f"grpc://127.0.0.1:{options['flight_port']}"
        self._socket = bound("127.0.0.1", 0)
        self._socket.listen(2048)
        self.port = self._socket.getsockname()[1]
        self.url = f"{'https' if 'tls_cert' in options else 'http'}://127.0.0.1:{self.port}"
        given = {"num_threads": 1, "log": False, "drain": 0, **options}
        settings = Settings(corpora=corpora, port=self.port, **given)
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
        self._thread.join(HANGS)
        self._socket.close()
        assert not self._thread.is_alive()


class Process:
    """``ragsys-kernels serve`` as users start it; ``url`` when it is ready."""

    def __init__(self, *arguments, **environment):
        self.port = free_port()
        self.url = f"{'https' if '--tls-cert' in arguments else 'http'}://127.0.0.1:{self.port}"
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

    def wait_ready(self, seconds=HANGS):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if http.get(f"{self.url}/health/ready").status_code == 200:
                    return self
            time.sleep(0.02)
        raise AssertionError(self.stop())

    def stop(self, number=signal.SIGTERM):
        """End it; return its exit code and what it printed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(HANGS)
        return self.process.returncode, *(file.read_text() for file in self._printed)

    def __enter__(self):
        return self.wait_ready()

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(HANGS)
        self._folder.cleanup()
