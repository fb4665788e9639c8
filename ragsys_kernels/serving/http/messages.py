"""Requests and answers of the routes that must be quick, without the machinery that others go through."""

from __future__ import annotations

import asyncio
import random
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import orjson

from .. import limits
from ..limits import Limits, RefusedError, busy, gone, invalid, shown
from .tokens import Account

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
ARROW = b"application/vnd.apache.arrow.stream"
CLOSE = (b"connection", b"close")
PROBLEM = b"application/problem+json"  # of RFC 9457
REQUEST_ID = b"x-request-id"
_DIGITS = 18  # of a number in a header, which fits 64 bits; Python refuses to read thousands of them
_LARGE = 1 << 16  # bytes of an answer that is counted before it is written; connections count what they hold
_ID, _TRACE = re.compile(rb"[!-~]{1,128}"), re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
_PART = 1 << 20  # bytes that a compressed body is unpacked to at a time


class DisconnectedError(Exception):
    """The client has gone before its request was read."""


class Load:
    """What requests and connections hold.

    Attributes
    ----------
    requests : int
        Under way.
    bytes : int
        Of requests under way, and of answers that their clients have not taken yet.
    beyond : dict
        Connections beyond the limit, the oldest first.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = self.bytes = 0
        self.beyond: dict[Any, None] = {}


class Request:
    """One HTTP request: its headers, its body within the limits, its deadline, and the times of its stages.

    Attributes
    ----------
    headers : dict of bytes
        By lower-case name.
    stages : dict of str to float
        Seconds by stage, for the access log.
    queries : int
        For the access log.
    route, corpus : str
        The pattern of the path, and what is asked of, for metrics.
    id : bytes
        Of the client or a proxy, or made here; the answer and the log have it.
    account : Account or None
        Whose token it has.
    """

    route = "other"  # paths that nobody serves must not become labels of metrics
    corpus = ""
    account: Account | None = None
    gone = False  # the client
    bytes_in = queries = _taken = _held = 0
    _whole: bytes | None = None
    _task: asyncio.Task[Any] | None = None

    def __init__(self, scope: Scope, receive: Receive | None, load: Load) -> None:
        self.scope, self._receive, self._limits, self._load = scope, receive, load.limits, load
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.begun = self._last = time.perf_counter()
        self.stages: dict[str, float] = {}
        self.id = id_of(self.headers.get(REQUEST_ID))

    @property
    def path_params(self) -> dict[str, str]:
        found: dict[str, str] = self.scope.get("path_params", {})
        return found

    @property
    def trace_id(self) -> str | None:
        """The trace that the request is a part of: of this server's own traces, or of its header ``traceparent``."""
        if (own := self.scope.get("ragsys.trace_id")) is not None:
            return str(own)
        found = _TRACE.fullmatch(self.headers.get(b"traceparent", b""))
        return None if found is None else found[1].decode()

    def accepts(self, kind: bytes) -> bool:
        """Return whether the client names a media type among those that it accepts."""
        accepted = self.headers.get(b"accept", b"").lower().split(b",")
        return kind in [each.partition(b";")[0].strip() for each in accepted]

    @property
    def content_type(self) -> bytes:
        """The media type alone, in lower case."""
        given = self.headers.get(b"content-type", b"")
        return given if given == JSON else given.partition(b";")[0].strip().lower()

    def check_type(self, op: str, *kinds: bytes) -> bytes:
        """Return the media type, which must be one of these or left out."""
        kind = self.content_type
        if kind and kind not in kinds:
            rule, got = b" or ".join(kinds).decode(), kind[:100].decode("latin-1")
            raise RefusedError(415, f"{op}: content-type must be {rule}, got {got!r}", "content-type")
        return kind

    def asks(self, corpus: str, queries: int) -> None:
        """Note how many queries a request has, of which corpus, for log and metrics; refuse those beyond a quota."""
        self.corpus, self.queries = corpus, queries
        if self.account is not None and queries > self._taken:
            self.account.take(queries - self._taken)
            self._taken = queries

    def stage(self, name: str) -> None:
        """Note that a stage has ended now."""
        now = time.perf_counter()
        self.stages[name] = self.stages.get(name, 0.0) + now - self._last
        self._last = now

    def kernel(self, queued: float, seconds: float) -> None:
        """Note how long its queries waited and the kernels ran."""
        self.stages["queue"], self.stages["kernel"] = max(0.0, queued), seconds
        self._last = time.perf_counter()

    def seconds(self) -> float:
        """Return the seconds since the request began."""
        return time.perf_counter() - self.begun

    def deadline(self) -> float:
        """Return when the answer is due, in the event loop's time: a client may wait longer than the server does."""
        milliseconds, given = self._limits.timeout_ms, self.headers.get(b"x-timeout-ms")
        if given is not None:
            asked = number_of(given)
            if not asked:
                rule = f"be a whole number of at least 1 and at most {_DIGITS} digits"
                raise invalid("select", "x-timeout-ms", rule, repr(given[:20].decode("latin-1")))
            milliseconds = min(asked, milliseconds)
        return asyncio.get_running_loop().time() + milliseconds / 1000 - (time.perf_counter() - self.begun)

    def announced(self) -> None:
        """Make room for the body that the headers announce, or refuse it before it is read."""
        length = self.headers.get(b"content-length", b"")
        size = number_of(length)
        if size is not None and size <= self._limits.body_bytes:
            self._hold(size)
        elif length.isdigit():
            raise self._too_large()

    def read(self, body: bytes) -> None:
        """Take the body, which has been read."""
        self._whole, self.bytes_in = body, len(body)

    async def body(self) -> bytes:
        """Return the body. One beyond the limit is refused before it is read, or as soon as that is seen.

        From here on the request ends when its client goes.
        """
        self._task = asyncio.current_task()
        encoding = self.headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"identity", b"gzip"):
            got = repr(encoding[:100].decode("latin-1"))
            raise RefusedError(415, f"serve: content-encoding must be gzip or left out, got {got}", "content-encoding")
        if self._whole is not None:
            return self._whole
        most = self._limits.body_bytes
        self.announced()
        assert self._receive is not None
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            parts, size = [body], len(body)
            while message.get("more_body"):
                message = await self._receive()
                part = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise self._too_large()
                self._hold(size)
                parts.append(part)
            body = b"".join(parts)
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        if len(body) > most:
            raise self._too_large()
        self.bytes_in = len(body)
        return body if encoding == b"identity" else await self._unzipped(body)

    async def _unzipped(self, body: bytes) -> bytes:
        """Return what a body unpacks to, a part at a time beside the event loop; no part is kept beyond the limits."""
        parts: list[bytes] = []
        size, rest, unpacking = 0, body, zlib.decompressobj(wbits=31)
        try:
            while not unpacking.eof:
                part = await asyncio.to_thread(unpacking.decompress, rest, _PART)
                rest = unpacking.unconsumed_tail
                if not (part or rest or unpacking.eof):
                    raise zlib.error("it ends too early")
                size += len(part)
                self.unpacks_to(size)
                parts.append(part)
            if unpacking.unused_data:
                raise zlib.error("more follows its end")
        except zlib.error as error:
            raise invalid("serve", "body", "be what its content-encoding says, gzip", error) from None
        return b"".join(parts)

    def leave(self) -> None:
        """Take note that the client has gone: nobody waits for the answer."""
        self.gone = True
        if self._task is not None:
            self._task.cancel()

    def unpacks_to(self, size: int) -> None:
        """Make room for what a body of compressed parts unpacks to, or refuse it."""
        if size > self._limits.body_bytes:
            message = f"serve: body must unpack to at most {self._limits.body_bytes} bytes, got {size}"
            raise RefusedError(413, message, "body")
        self.holds(size)

    def holds(self, size: int) -> None:
        """Count so many bytes beside those of the body; refuse the request where there is no room."""
        self._hold(self.bytes_in + size)

    def answered(self, response: Response) -> Response:
        """Return its answer, if there is room for it until the client has taken it."""
        if response.size > _LARGE:
            self.holds(response.size)
        return response

    def release(self) -> None:
        """Give back what it held."""
        if self.account is not None and self._taken:
            self.account.give_back(self._taken)
            self._taken = 0
        self._load.bytes -= self._held
        self._held = 0

    def _hold(self, size: int) -> None:
        """Count so many bytes; refuse the request where there is no room."""
        more, most = size - self._held, self._limits.memory_bytes
        if more <= 0:
            return
        if size > most:
            raise RefusedError(413, f"serve: request must take at most {most} bytes with its answer, got {size}")
        if self._load.bytes + more > most:
            raise busy("the bodies and answers of other requests fill its memory")
        self._load.bytes += more
        self._held += more

    def _too_large(self) -> RefusedError:
        message = f"serve: body must have at most {self._limits.body_bytes} bytes, got more"
        return RefusedError(413, message, "body", {"connection": "close"})


class Response:
    """An answer whose body is complete. A long one has parts: while they are joined no other request is answered."""

    __slots__ = ("headers", "parts", "size", "status")

    def __init__(
        self,
        body: bytes | Sequence[bytes | memoryview],
        status: int = 200,
        content_type: bytes = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.parts: Sequence[bytes | memoryview]
        self.parts, self.size = ((body,), len(body)) if isinstance(body, bytes) else (body, sum(map(len, body)))
        self.status = status
        self.headers = [(b"content-type", content_type), (b"content-length", b"%d" % self.size)]
        if headers:
            self.headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

    async def send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": b"".join(self.parts)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it as an ASGI application does, where the framework takes one for an answer."""
        await self.send(send)


Handler = Callable[[Request], Awaitable[Response]]


def id_of(given: bytes | None) -> bytes:
    """Return the id of a request: the one that its headers have, if it is one, else a new one."""
    return given if given is not None and _ID.fullmatch(given) else b"%032x" % random.getrandbits(128)


def number_of(header: bytes) -> int | None:
    """Return the whole number that a header is; None if it is none, or too long."""
    return int(header) if header.isdigit() and len(header) <= _DIGITS else None


def url_parameters(op: str, query: bytes) -> dict[str, str]:
    """Return the parameters in the query of a URL; one that stands there twice is refused."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True) if query else ():
        if name in found:
            raise invalid(op, name[:100], "stand once in the URL", f"{shown(found[name])} and {shown(value)}")
        found[name] = value
    return found


def refuse_url(op: str, query: bytes, fields: Collection[str] = ()) -> None:
    """Refuse fields in the URL of a request whose body is JSON; without ``fields`` any parameter."""
    for name in url_parameters(op, query) if query else ():
        if not fields or name in fields:
            raise invalid(op, name[:100] or "parameters", "stand in the body, which is JSON", "it in the URL")


def object_of(op: str, body: bytes, fields: Collection[str] = ()) -> dict[str, Any]:
    """Return the object that a body is; with ``fields`` others are refused."""
    try:
        content = orjson.loads(body)
    except ValueError as error:
        raise RefusedError(422, f"{op}: body must be JSON: {error}", "body") from None
    if type(content) is not dict:
        raise invalid(op, "body", "be an object", shown(content))
    for name in content if fields else ():
        if name not in fields:
            raise invalid(op, name[:100], f"be one of {', '.join(sorted(fields))}", shown(content[name]))
    return content


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), status, JSON, headers)


def refused(error: RefusedError, request: Request | None = None) -> Response:
    """Return the answer that an error is, as RFC 9457 has it where the request asks for that."""
    body, kind = error.kept().body, JSON
    if request is not None and request.accepts(PROBLEM):
        title = HTTPStatus(error.status).phrase
        about = {"type": "about:blank", "title": title, "status": error.status, "detail": str(error)}
        own = {"code": error.code, "argument": error.argument, "request_id": request.id.decode()}
        body, kind = about | own, PROBLEM
    return Response(orjson.dumps(body), error.status, kind, error.headers)


def failed(request: Request, error: BaseException) -> Response:
    """Return the answer to a request that ended with an error."""
    if isinstance(error, DisconnectedError):
        return refused(gone())
    if not isinstance(error, RefusedError):
        error = limits.failed(f"{request.scope['method']} {request.scope['path']}", error)
    return refused(error, request)
