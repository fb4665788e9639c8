"""Arrow Flight: ``DoExchange``, a stream of batches of queries in and a stream of their picks out, over gRPC.

The descriptor's command is JSON, the rules for all queries: ``{"corpus": "docs", "k": 6, "pool": null}``. The columns
in and out are those of the Arrow stream of ``/v1/select``; without a column ``id``, queries are numbered along the
stream. Batches are answered in their order, long ones in parts. There is no 429 here: a server that is full reads no
further, and the transport holds the client back.
"""

from __future__ import annotations

import asyncio
import atexit
import hmac
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
from pyarrow import flight

from ..selection.problem import Selection
from .corpora import Served
from .limits import Limits, RefusedError, invalid
from .reading import Asked
from .rules import shown
from .select_arrow import asked_of, batch_of

if TYPE_CHECKING:
    from .service import Service

_PART = 1024  # queries answered at once
_AHEAD = 2  # parts that are read while one is answered
_STREAMS = 64  # each has two threads
_PAUSE = 0.005  # seconds between looks at a full queue

# One part on its way: the queries, what was read of them, and their picks to come; None: the stream has ended.
_Part = tuple[pa.Table, Asked, "Future[list[Selection]]"] | None


class FlightServer(flight.FlightServerBase):
    """The server of one service, in threads beside its event loop.

    Parameters
    ----------
    host, port : str, int
        0 takes a free port, which ``port`` of the server tells. Servers cannot share one.
    """

    def __init__(self, service: Service, host: str, port: int, token: str | None = None) -> None:
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams = threading.BoundedSemaphore(_STREAMS)
        address = f"[{host}]" if ":" in host else host
        super().__init__(f"grpc://{address}:{port}", middleware={"token": _Token(token)})

    async def start(self) -> None:
        """Answer from now on, by the event loop that runs."""
        self._loop = asyncio.get_running_loop()

    async def stop(self, seconds: float) -> None:
        """Take no more streams, and wait for those under way, but not for ever: a client may keep one open."""
        thread = threading.Thread(target=self.shutdown, daemon=True, name="flight")
        thread.start()
        end = time.monotonic() + seconds
        while thread.is_alive() and time.monotonic() < end:
            await asyncio.sleep(0.01)
        if thread.is_alive():  # at the exit of the process pyarrow would wait for that client again, without end
            atexit.register(_leave)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answer a stream; this thread reads, another one writes."""
        if not self._streams.acquire(blocking=False):
            raise flight.FlightUnavailableError(f"select: streams must be at most {_STREAMS} at once, got another")
        begin, status = time.perf_counter(), 200
        try:
            self._exchange(descriptor, reader, writer)
        except RefusedError as error:
            status = error.status
            raise _failure(error) from None
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:  # of the bytes of a stream
            status = 422
            raise _failure(invalid("select", "batches", "be Arrow's", str(error)[:200])) from None
        finally:
            self._streams.release()
            self._service.metrics.request("DoExchange", status, time.perf_counter() - begin)

    def _exchange(self, descriptor: Any, reader: Any, writer: Any) -> None:
        common = _rules_of(descriptor)
        served = self._service.corpora.get(common.pop("corpus", None))
        parts: queue.Queue[_Part] = queue.Queue(_AHEAD)
        output = _Output(writer, parts)
        try:
            for table in _tables(reader, self._service.limits):
                if output.broken:
                    return
                parts.put(self._part(table, common, served))
        finally:
            parts.put(None)
            output.join()
        if output.broken:
            raise output.broken

    def _part(self, table: pa.Table, common: dict[str, Any], served: Served) -> _Part:
        """Read some queries and hand them to the kernels."""
        if self._loop is None or self._service.status == "stopping":
            raise RefusedError(503, "select: the server is not ready, or stops")
        asked = asked_of(table, dict(common), served, self._service.limits)
        return table, asked, asyncio.run_coroutine_threadsafe(self._answer(asked), self._loop)

    async def _answer(self, asked: Asked) -> list[Selection]:
        blocks = [block for block, _ in asked.blocks]
        while True:
            try:
                ticket = await self._service.batcher.answer(blocks)
            except RefusedError as error:
                if error.status != 429:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return ticket.found()


class _Output(threading.Thread):
    """The thread that writes the answers of a stream in their order.

    It raises nothing while the client may still write: the thread that reads could not be woken then. What fails for a
    part is the error of each of its queries; ``broken`` is why nothing can be written any more.
    """

    def __init__(self, writer: Any, parts: queue.Queue[_Part]) -> None:
        super().__init__(daemon=True, name="flight-output")
        self.broken: Exception | None = None
        self._writer, self._parts = writer, parts
        self.start()

    def run(self) -> None:
        begun = False
        while (part := self._parts.get()) is not None:
            if self.broken:
                continue  # the parts that are under way
            answer = _answered(*part)
            try:
                if not begun:
                    self._writer.begin(answer.schema)
                    begun = True
                self._writer.write_batch(answer)
            except Exception as error:  # the client has gone
                self.broken = error


def _answered(table: pa.Table, asked: Asked, future: Future[list[Selection]]) -> pa.RecordBatch:
    try:
        picks = future.result()
        asked.note(picks)
    except Exception as error:
        why = error if isinstance(error, RefusedError) else RefusedError(500, f"select: the kernels failed: {error}")
        asked.blocks, picks = [], []
        asked.errors = {i: asked.errors.get(i, why) for i in range(asked.count)}
    return batch_of(table, asked, picks)


def _tables(reader: Any, limits: Limits) -> Iterator[pa.Table]:
    """Yield the queries of a stream in parts, with a column of ids."""
    begin, most, size = 0, limits.body_bytes, min(_PART, limits.queries)
    while True:
        try:
            batch = reader.read_chunk().data
        except StopIteration:
            return
        if batch is None:  # metadata alone
            continue
        if batch.nbytes > most:
            raise invalid("select", "batches", f"have at most {most} bytes", batch.nbytes)
        batch.validate(full=True)  # of foreign bytes: offsets may lead anywhere
        for place in range(0, len(batch), size):
            table = pa.Table.from_batches([batch.slice(place, size)])
            if "id" not in table.column_names:
                table = table.append_column("id", pa.array(np.arange(begin, begin + len(table))))
            begin += len(table)
            yield table


def _rules_of(descriptor: Any) -> dict[str, Any]:
    """Return the rules that a stream begins with."""
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        raise invalid("select", "descriptor", "be a command, JSON", "a path")
    try:
        rules = orjson.loads(descriptor.command or b"{}")
    except ValueError as error:
        raise invalid("select", "descriptor", "be JSON", error) from None
    if type(rules) is not dict:
        raise invalid("select", "descriptor", "be an object of rules", shown(rules))
    return rules


class _Token(flight.ServerMiddlewareFactory):
    """The check of the bearer token, before anything of a stream is read."""

    def __init__(self, token: str | None) -> None:
        self._expected = None if token is None else f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Any) -> None:
        if self._expected is None:
            return
        given = next(iter(headers.get("authorization", [])), "")
        scheme, _, token = (given if isinstance(given, str) else given.decode("latin-1")).partition(" ")
        if not hmac.compare_digest(f"{scheme.capitalize()} {token}".encode(), self._expected):
            raise flight.FlightUnauthenticatedError("authorization must be 'Bearer' and this server's token")


def _failure(error: RefusedError) -> flight.FlightError:
    """Return an error as Flight's own: of others a client would get the traceback."""
    if error.status == 503:
        return flight.FlightUnavailableError(str(error))
    return flight.FlightServerError(str(error), orjson.dumps({"status": error.status, **error.body["error"]}))


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def attach(service: Service, host: str, port: int, token: str | None, grace: float, ports: int = 1) -> FlightServer:
    """Let a service answer Flight too, from its start to its end, on the first free one of so many ports."""
    server = None
    for each in range(port, port + ports):
        with suppress(OSError, pa.ArrowException):  # another worker has it
            if ports > 1:
                _probe(host, each)  # gRPC would print what it finds
            server = FlightServer(service, host, each, token)
            break
    if server is None:
        raise OSError(f"serve: flight_port must be free on {host}, got {port} to {port + ports - 1}, all of them taken")

    async def stop() -> None:
        await server.stop(grace)

    service.starting.append(server.start)
    service.stopping.insert(0, stop)
    return server


def _probe(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
