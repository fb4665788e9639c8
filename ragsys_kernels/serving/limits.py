"""What a request may ask for, and the errors of those that ask for more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_logger = logging.getLogger("ragsys_kernels.serving")

# Connections beyond the limit that are taken, to say so.
SPARE = 32
# The error of a request or query if the server itself failed.
FAILED = "the server failed; its log says why"

# The code of an error unless it has one of its own. Programs compare codes, which stay; messages are for people.
CODES = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    421: "misdirected_request",
    422: "invalid_argument",
    429: "queue_full",
    431: "headers_too_large",
    499: "client_gone",
    500: "server_failed",
    502: "encoder_failed",
    503: "unavailable",
    504: "deadline_exceeded",
}
# Codes that a status has beside that one.
UNKNOWN_ID, UNKNOWN_CORPUS, QUOTA, LOAD_FAILED = "unknown_id", "unknown_corpus", "quota_exceeded", "load_failed"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server; ``/info`` shows them all.

    Attributes
    ----------
    body_bytes : int
        Of a request; a larger one is answered with 413.
    queries : int
        Of a request.
    candidates : int
        Of a query; ``initial``, ``allowed`` and ``exclude`` each have the same limit.
    k, pool : int
        The most picks of a query, and the most rows retrieved for one.
    path_k, path_pool : int
        The same of ``/v1/path``, which finds every selection of a query: there may be thousands.
    queue : int
        Queries that may wait for the kernels; a request that does not fit is answered with 429.
    timeout_ms : int
        Time that a request has, or less by its ``x-timeout-ms``; then it gets 504.
    connections, requests : int
        Open at the same time, and under way at the same time; those beyond get 503. Some more connections are taken
        for that, and for ``/health``, which they can still ask.
    memory_bytes : int
        Of all requests under way: their bodies and what they unpack to, and their answers until clients have taken
        them; a request that does not fit gets 503.
    header_bytes, headers : int
        Of a request, its URL included; more gets 431, whoever asks.
    body_seconds, idle_seconds : float
        Time that a client has to send headers, and then a body (408), and that a connection may stay without a request.
    write_seconds : float
        Time that a client has to take an answer, or each MiB of a longer one; then its connection is closed.
    """

    body_bytes: int = 32 << 20
    queries: int = 4096
    candidates: int = 10_000
    k: int = 1000
    pool: int = 10_000
    path_k: int = 50
    path_pool: int = 1000
    queue: int = 16_384
    timeout_ms: int = 30_000
    connections: int = 4096
    requests: int = 1024
    memory_bytes: int = 1 << 30
    header_bytes: int = 1 << 16
    headers: int = 100
    body_seconds: float = 20.0
    idle_seconds: float = 60.0
    write_seconds: float = 20.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"serve: {name} must be above 0, got {value}")
        if self.memory_bytes < self.body_bytes:
            raise ValueError(f"serve: memory_bytes must be at least body_bytes, got {self.memory_bytes}")
        if self.queries > self.queue:
            raise ValueError(f"serve: queries must be at most the queue, {self.queue}, got {self.queries}")


class RefusedError(Exception):
    """A request that gets an error: its status, what is wrong with which argument, and the code of such errors."""

    def __init__(
        self,
        status: int,
        message: str,
        argument: str | None = None,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.argument, self.headers = status, argument, headers or {}
        self.code = code or CODES.get(status, "refused")

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "argument": self.argument, "message": str(self)}}

    def kept(self) -> RefusedError:
        """Return this error without the frames it came through: they hold the request's body as long as it is kept."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


def failed(what: str, error: BaseException) -> RefusedError:
    """Log an error that no caller caused, and return the error that the caller gets."""
    _logger.error("%s failed", what, exc_info=error)
    error.__traceback__ = error.__context__ = None  # as in `RefusedError.kept`
    return RefusedError(500, FAILED)


def busy(what: str) -> RefusedError:
    """Return the error of a request that comes at a bad time."""
    return RefusedError(503, f"serve: {what}; ask again", headers={"retry-after": "1"})


def gone() -> RefusedError:
    """Return the error of a request whose client has gone, which nobody reads."""
    return RefusedError(499, "serve: the client has gone")


def invalid(op: str, argument: str, rule: str, got: object, code: str | None = None) -> RefusedError:
    """Return the error of an argument: 422, worded as every error of this library."""
    return RefusedError(422, f"{op}: {argument} must {rule}, got {got}", argument, code=code)


def shown(value: object) -> str:
    """Return what an error says it got: a short value, else its type."""
    if value is None or isinstance(value, (str, int, float)):
        text = repr(value)
        return text if len(text) <= 100 else f"{text[:100]}.."
    return "a list" if isinstance(value, list) else "an object"
