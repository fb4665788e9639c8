"""Arrow Flight: ``DoExchange``, a stream of batches of queries in and a stream of their picks out, over gRPC.

The descriptor's command is JSON, the rules for all queries: ``{"corpus": "docs", "k": 6, "pool": null}``. The columns
in and out are those of the Arrow stream of ``/v1/select``; without a column ``id``, queries are numbered along the
stream. Batches are answered in their order, long ones in parts. There is no 429 here: a server that is full reads no
further, and the transport holds the client back.

The server is gRPC's own and runs in the event loop; this module parses the messages. `pyarrow.flight` would unpack a
batch before its size can be checked, and could not end an idle stream.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import orjson
import pyarrow as pa

from ..._base.arrow_sizes import kind_of
from ..asked import Asked
from ..corpora import Served
from ..http.messages import REQUEST_ID, Request
from ..limits import Limits, RefusedError, invalid, shown
from .arrow_answers import batch_of
from .flight_messages import (
    BODY,
    COMMAND,
    DESCRIPTOR,
    HEADER,
    IS_COMMAND,
    TYPE,
    arrow_stream,
    fields_of,
    flight_data,
    trailers,
)
from .select_arrow import asked_of, spelled, table_of, unpacked

if TYPE_CHECKING:
    from ..http.tls import Certificate
    from ..service import Service

_PART = 1024  # queries answered at once
_AHEAD = 2  # parts that are read while one is answered
_STREAMS = 64
_LARGE = 1 << 14  # bytes of metadata, in which each buffer has 16
_PAUSE = 0.005  # seconds between looks at a full queue
_METHOD = "/arrow.flight.protocol.FlightService/DoExchange"
# Statuses of gRPC, and in Flight's words.
_FAILED = {401: ("UNAUTHENTICATED", b"Unauthenticated"), 503: ("UNAVAILABLE", b"Unavailable")}
_OTHERWISE = ("UNKNOWN", b"Failed")

# One part on its way: what it asks for, the task that lets it be answered, and the bytes to give back then.
_Part = tuple[Asked, "asyncio.Task[None]", int]


class FlightServer(grpc.GenericRpcHandler):
    """The server of one service, in its event loop.

    Parameters
    ----------
    host : str
    ports : range
        The first free one is taken, which ``port`` tells once it runs; 0 is any.
    """

    def __init__(self, service: Service, host: str, ports: range, certificate: Certificate | None = None) -> None:
        self._service, self._ports, self._certificate = service, ports, certificate
        self._host, self.port, self._streams = host, 0, 0

    def service(self, details: Any) -> Any:
        """Return the handler of ``DoExchange``; gRPC answers other methods as unimplemented."""
        return grpc.stream_stream_rpc_method_handler(self._exchange) if details.method == _METHOD else None

    async def start(self) -> None:
        """Listen from now on."""
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        limits = self._service.limits
        options = [
            ("grpc.so_reuseport", 0),
            # What is a little too large gets an answer in this library's words, the rest one of gRPC's.
            ("grpc.max_receive_message_length", 2 * limits.body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", limits.header_bytes),
            ("grpc.max_connection_idle_ms", int(limits.idle_seconds * 1000)),
        ]
        self._server = grpc.aio.server(handlers=[self], options=options)
        address = f"[{self._host}]" if ":" in self._host else self._host
        for port in self._ports:
            with suppress(OSError, RuntimeError):  # another worker has it
                if port:
                    _probe(self._host, port)  # gRPC would print what it finds
                self.port = self._listen(f"{address}:{port}")
                break
        else:
            first, last = self._ports[0], self._ports[-1]
            raise OSError(f"serve: flight_port must be free on {self._host}, got {first} to {last}, all of them taken")
        await self._server.start()

    def _listen(self, address: str) -> int:
        if (certificate := self._certificate) is None:
            return int(self._server.add_insecure_port(address))

        def now() -> Any:
            return grpc.ssl_server_certificate_configuration([certificate.pems[::-1]])

        credentials = grpc.dynamic_ssl_server_credentials(now(), now)  # asks at every handshake
        return int(self._server.add_secure_port(address, credentials))

    async def stop(self, seconds: float) -> None:
        """Take no more streams, and wait for the batches under way, but not for ever: a client may not read."""
        if not self._ending.done():
            self._ending.set_result(None)
        await self._server.stop(seconds)

    async def _exchange(self, _: Any, context: Any) -> None:
        """Answer a stream."""
        service, status = self._service, 200
        self._streams += 1
        metadata = [
            (name.encode(), value.encode() if isinstance(value, str) else value)
            for name, value in context.invocation_metadata()
        ]
        scope = {"method": "POST", "path": _METHOD, "headers": metadata, "client": (context.peer(),)}
        request = Request(scope, None, service.load)
        request.route = "DoExchange"
        try:
            await context.send_initial_metadata(((REQUEST_ID.decode(), request.id.decode()),))
            request.account = service.tokens.check(request.headers)
            if self._streams > _STREAMS:
                raise RefusedError(503, f"select: streams must be at most {_STREAMS} at once, got one more")
            await _Stream(service, context, request, self._ending).run()
        except RefusedError as error:
            status = error.status
            code, kind = _FAILED.get(status, _OTHERWISE)
            more = orjson.dumps({"status": status, **error.kept().body["error"]})
            context.set_trailing_metadata(trailers(error, kind, more))
            context.set_code(grpc.StatusCode[code])
            context.set_details(str(error))
        except asyncio.CancelledError:
            status = 499
            raise
        finally:
            self._streams -= 1
            service.ended(request, status, 0)


class _Stream:
    """One stream: a task reads ahead while answers are written."""

    def __init__(self, service: Service, context: Any, request: Request, ending: asyncio.Future[None]) -> None:
        self._service, self._context, self._request, self._ending = service, context, request, ending
        self._parts: asyncio.Queue[_Part | None] = asyncio.Queue(_AHEAD)
        self._held = self._under_way = 0  # bytes, and parts that have no answer yet

    async def run(self) -> None:
        reading = asyncio.ensure_future(self._read())
        try:
            await self._write()
            await reading  # raises what is wrong with the stream, after the answers to what came before
        finally:
            reading.cancel()
            while not self._parts.empty():
                if (part := self._parts.get_nowait()) is not None:
                    part[1].cancel()
            self._service.load.bytes -= self._held

    async def _read(self) -> None:
        """Read queries and hand them to the kernels, until the stream ends or is wrong."""
        service, begin, most = self._service, 0, self._service.limits.body_bytes
        try:
            first = await self._message()
            if first is None:
                return
            common = _rules_of(first)
            served = service.corpora.without(common.pop("corpus", None))
            self._request.corpus = served.name
            async for stream, many in self._batches(first):
                size = len(stream) + await service.beside(many, unpacked, stream, service.limits, "batches")
                if size > most:
                    raise invalid("select", "batches", f"have at most {most} bytes", size)
                await self._hold(size)
                parts = _read(stream, begin, common, served, service.limits, self._most())
                while (part := await service.beside(True, next, parts, None)) is not None:
                    if service.status == "stopping":
                        raise RefusedError(503, "select: the server is not ready, or stops")
                    asked, last = part
                    begin += asked.count
                    self._request.queries = begin
                    self._under_way += 1
                    held = asked.answer_bytes  # without waiting: what is read has to leave before there is room
                    self._count(held)
                    answering = asyncio.ensure_future(self._answer(asked))
                    await self._parts.put((asked, answering, held + size if last else held))
        finally:
            await self._parts.put(None)

    async def _message(self) -> dict[int, Any] | None:
        """Return the fields of the next message, None at the end; an idle client gets an error."""
        reading, seconds = asyncio.ensure_future(self._context.read()), self._service.limits.idle_seconds
        try:
            while True:
                await asyncio.wait({reading, self._ending}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    break
                if self._under_way:  # the client may wait for that
                    await asyncio.sleep(_PAUSE)
                elif self._ending.done():
                    raise RefusedError(503, "select: the server is not ready, or stops")
                else:
                    raise RefusedError(408, f"select: batches must come within {seconds:g} seconds, got none")
        finally:
            reading.add_done_callback(_ended)
        message = reading.result()
        try:
            return None if message is grpc.aio.EOF else fields_of(message)
        except ValueError as error:
            raise invalid("select", "messages", "be Arrow Flight's", error) from None

    async def _batches(self, message: dict[int, Any] | None) -> AsyncIterator[tuple[bytes, bool]]:
        """Yield each batch of queries as an Arrow stream of its own: the schema, the dictionaries so far, the batch.

        With each comes whether looking at its buffers' sizes may take long.
        """
        before: list[dict[int, Any]] = []
        size, most = 0, self._service.limits.body_bytes
        while message is not None:
            if HEADER in message:  # else it is metadata alone
                kind = _kind_of(message[HEADER])
                if kind == "record batch":
                    stream = [*before, message]
                    yield arrow_stream(stream), sum(len(each[HEADER]) for each in stream) > _LARGE
                elif kind == ("dictionary" if before else "schema"):
                    before.append(message)
                    size += len(message[HEADER]) + len(message.get(BODY, b""))
                    if size > most:
                        raise invalid("select", "dictionaries", f"have at most {most} bytes", size)
                else:
                    raise invalid("select", "messages", "be a schema, then batches and dictionaries", f"a {kind}")
            message = await self._message()

    async def _hold(self, size: int) -> None:
        """Wait until there is room for so many bytes."""
        load = self._service.load
        while load.bytes + size > load.limits.memory_bytes:
            await asyncio.sleep(_PAUSE)
        self._count(size)

    def _count(self, size: int) -> None:
        """Count so many bytes as held, or, below 0, as given back."""
        self._service.load.bytes += size
        self._held += size

    def _most(self) -> int:
        """Return the queries of a part: those that its caller may have in flight."""
        account, most = self._request.account, min(_PART, self._service.limits.queries)
        return min(most, (account and account.caller.queries_in_flight) or most)

    async def _answer(self, asked: Asked) -> None:
        """Answer a part, once the queue has room and the quotas of the caller allow it."""
        account, taken = self._request.account, 0
        try:
            while True:
                try:
                    if account is not None and not taken:
                        account.take(asked.count)
                        taken = asked.count
                    await self._service.batcher.answer(asked)
                    return
                except RefusedError as error:
                    if error.status != 429:
                        raise
                await asyncio.sleep(_PAUSE)
        finally:
            if account is not None and taken:
                account.give_back(taken)

    async def _write(self) -> None:
        """Write the answers in order. If a part fails, each of its queries gets the error."""
        begun = False
        while (part := await self._parts.get()) is not None:
            asked, answering, size = part
            try:
                await answering
            except Exception as error:
                failed = RefusedError(500, f"select: the kernels failed: {error}")
                asked.fail(error.kept() if isinstance(error, RefusedError) else failed)
            answer = await self._service.beside(True, batch_of, asked)
            if not begun:
                await self._send(answer.schema.serialize())
                begun = True
            await self._send(answer.serialize())
            self._under_way -= 1
            self._count(-size)

    async def _send(self, content: Any) -> None:
        """Send an Arrow message; a client that does not read it in time gets an error."""
        message, seconds = pa.ipc.read_message(content), self._service.limits.idle_seconds
        sending = asyncio.ensure_future(self._context.write(flight_data(message.metadata, message.body or b"")))
        sending.add_done_callback(_ended)
        await asyncio.wait({sending}, timeout=seconds)
        if not sending.done():
            raise RefusedError(408, f"select: answers must be read within {seconds:g} seconds")
        sending.result()


def _ended(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a gRPC call that nobody awaits any more, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


def _kind_of(metadata: memoryview) -> str:
    try:
        return kind_of(metadata)
    except ValueError as error:
        raise invalid("select", "messages", "be Arrow's", error) from None


def _read(
    stream: bytes, begin: int, common: dict[str, Any], served: Served, limits: Limits, size: int
) -> Iterator[tuple[Asked, bool]]:
    """Yield what the queries of a stream ask for in parts of a size, numbered if they have no ids, and the last."""
    table, _ = spelled(table_of(stream, "batches"), limits)
    if "id" not in table.column_names:
        table = table.append_column("id", pa.array(np.arange(begin, begin + len(table))))
    for place in range(0, len(table), size):
        yield asked_of(table.slice(place, size), dict(common), served, limits), place + size >= len(table)


def _rules_of(message: dict[int, Any]) -> dict[str, Any]:
    """Return the rules that a stream begins with."""
    try:
        descriptor = fields_of(message.get(DESCRIPTOR, b""))
    except (TypeError, ValueError):
        descriptor = {}
    if descriptor.get(TYPE) != IS_COMMAND:
        raise invalid("select", "descriptor", "be a command, JSON", "a path" if descriptor else "none")
    try:
        rules = orjson.loads(descriptor.get(COMMAND) or b"{}")
    except ValueError as error:
        raise invalid("select", "descriptor", "be JSON", error) from None
    if type(rules) is not dict:
        raise invalid("select", "descriptor", "be an object of rules", shown(rules))
    return rules


def attach(
    service: Service,
    host: str,
    port: int,
    grace: float,
    ports: int = 1,
    certificate: Certificate | None = None,
) -> FlightServer:
    """Let a service answer Flight too, from its start to its end, on the first free one of so many ports."""
    server = FlightServer(service, host, range(port, port + ports), certificate)

    async def stop() -> None:
        await server.stop(grace)

    service.starting.append(server.start)
    service.stopping.insert(0, stop)
    return server


def _probe(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
