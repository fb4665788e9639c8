"""Requests and answers of the routes that must be quick, without the machinery that others go through."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import orjson

from .. import limits
from ..limits import Limits, RefusedError, busy, gone, invalid, shown

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
ARROW = b"application/vnd.apache.arrow.stream"
CLOSE = (b"connection", b"close")
_DIGITS = 18  # of a number in a header, which fits 64 bits; Python refuses to read thousands of them
_LARGE = 1 << 16  # bytes of an answer that is counted before it is written; connections count what they hold


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
    route : str
        The pattern of the path, for metrics.
    """

    def __init__(self, scope: Scope, receive: Receive | None, load: Load) -> None:
        self.scope, self._receive, self._limits, self._load, self._held = scope, receive, load.limits, load, 0
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.begun = self._last = time.perf_counter()
        self.stages: dict[str, float] = {}
        self._whole: bytes | None = None
        self._task: asyncio.Task[Any] | None = None
        self.gone = False  # the client
        self.bytes_in = self.queries = 0
        self.route = "other"  # paths that nobody serves must not become labels of metrics

    @property
    def path_params(self) -> dict[str, str]:
        found: dict[str, str] = self.scope.get("path_params", {})
        return found

    @property
    def content_type(self) -> bytes:
        """The media type alone, in lower case."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()

    def check_type(self, op: str, *kinds: bytes) -> bytes:
        """Return the media type, which must be one of these or left out."""
        kind = self.content_type
        if kind and kind not in kinds:
            rule, got = b" or ".join(kinds).decode(), kind[:100].decode("latin-1")
            raise RefusedError(415, f"{op}: content-type must be {rule}, got {got!r}", "content-type")
        return kind

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
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit():
            size = number_of(length)
            if size is None or size > self._limits.body_bytes:
                raise self._too_large()
            self._hold(size)

    def read(self, body: bytes) -> None:
        """Take the body, which has been read."""
        self._whole, self.bytes_in = body, len(body)

    async def body(self) -> bytes:
        """Return the body. One beyond the limit is refused before it is read, or as soon as that is seen.

        From here on the request ends when its client goes.
        """
        self._task = asyncio.current_task()
        encoding = self.headers.get(b"content-encoding", b"identity")
        if encoding.strip().lower() != b"identity":
            got = repr(encoding[:100].decode("latin-1"))
            rule = f"serve: content-encoding must be left out, for bodies are taken as they are, got {got}"
            raise RefusedError(415, rule, "content-encoding")
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
        return body

    def leave(self) -> None:
        """Take note that the client has gone: nobody waits for the answer."""
        self.gone = True
        if self._task is not None:
            self._task.cancel()

    def unpacks_to(self, size: int) -> None:
        """Make room for what a body of compressed parts unpacks to, or refuse it."""
        if size > self._limits.body_bytes:
            message = f"select: body must unpack to at most {self._limits.body_bytes} bytes, got {size}"
            raise RefusedError(413, message, "body")
        self.holds(size)

    def holds(self, size: int) -> None:
        """Count so many bytes beside those of the body; refuse the request where there is no room."""
        self._hold(self.bytes_in + size)

    def answered(self, response: Response) -> Response:
        """Return its answer, if there is room for it until the client has taken it."""
        if len(response.body) > _LARGE:
            self.holds(len(response.body))
        return response

    def release(self) -> None:
        """Give back what it held."""
        self._load.bytes -= self._held
        self._held = 0

    def _hold(self, size: int) -> None:
        """Count so many bytes; refuse the request where there is no room."""
        more, most = max(0, size - self._held), self._limits.memory_bytes
        if size > most:
            raise RefusedError(413, f"serve: request must take at most {most} bytes with its answer, got {size}")
        if self._load.bytes + more > most:
            raise busy("the bodies and answers of other requests fill its memory")
        self._load.bytes += more
        self._held += more

    def _too_large(self) -> RefusedError:
        message = f"select: body must have at most {self._limits.body_bytes} bytes, got more"
        return RefusedError(413, message, "body", {"connection": "close"})


class Response:
    """An answer whose body is complete."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, body: bytes, status: int = 200, content_type: bytes = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        self.body, self.status = body, status
        self.headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
        for name, value in (headers or {}).items():
            self.headers.append((name.encode("latin-1"), value.encode("latin-1")))

    async def send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


Handler = Callable[[Request], Awaitable[Response]]


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


def refused(error: RefusedError) -> Response:
    return json_response(error.kept().body, error.status, error.headers)


def failed(request: Request, error: BaseException) -> Response:
    """Return the answer to a request that ended with an error."""
    if isinstance(error, DisconnectedError):
        return refused(gone())
    if isinstance(error, RefusedError):
        return refused(error)
    return refused(limits.failed(f"{request.scope['method']} {request.scope['path']}", error))


class Bearer:
    """The check of ``Authorization: Bearer TOKEN``, in constant time."""

    def __init__(self, token: str | None) -> None:
        self._expected = None if token is None else f"Bearer {token}".encode()

    @property
    def required(self) -> bool:
        return self._expected is not None

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        if self._expected is None:
            return
        given = headers.get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        if not hmac.compare_digest(scheme.capitalize() + b" " + token, self._expected):
            message = "authorization must be 'Bearer' and this server's token"
            raise RefusedError(401, message, "authorization", {"www-authenticate": "Bearer"})
