"""A client of the service, sync and async: NumPy arrays in and out, retries, deadlines, errors as exceptions."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import quote

import httpx
import numpy as np

from .._base.types import Moment, Seconds
from . import wire
from .wire import Picks

_NOT_A_PAGE = {"x-requested-with": "ragsys-kernels"}  # which a page of another site cannot send
# Statuses after which the same request is sent again, as after a broken connection; repeating a request is safe.
_AGAIN = (429, 503)
_FIRST, _LONGEST = 0.05, 2.0  # seconds between tries: the first pause, and the longest but for Retry-After
_PART = 1024  # queries of one request
_FEW = 8  # queries up to which JSON is as quick as Arrow
_PATIENCE = 30.0

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ServiceError(RuntimeError):
    """The service did not answer a request.

    Attributes
    ----------
    status : int or None
        The HTTP status; None if there was no answer.
    argument : str or None
        The argument that is wrong, where the server says it.
    code : str or None
        The kind of error, where the server says it: unlike the message it stays as it is.
    request_id : str or None
        Of the request, in the server's log.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        argument: str | None = None,
        code: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.argument, self.code, self.request_id = status, argument, code, request_id


class InvalidRequestError(ServiceError, ValueError):
    """The request breaks a rule; the message is the server's."""


class UnavailableError(ServiceError):
    """The server is full, stops or cannot be reached, and was so until the last try."""


class DeadlineError(ServiceError, TimeoutError):
    """The time of a call has passed."""


# A step of a call: a request to send, or seconds to sleep. It is resumed with the response or the transport error.
_Step = tuple[str, str, dict[str, Any]] | float
_Steps = Generator[_Step, Any, Any]


class _Calls:
    """The calls as generators of steps, without I/O: shared by the sync and the async client."""

    def __init__(self, token: str | None, corpus: str | None, timeout: float | None, retries: int, wire: str) -> None:
        if wire not in ("auto", "json", "arrow"):
            raise ValueError(f"Client: wire must be one of 'auto', 'json', 'arrow', got {wire!r}")
        if retries < 0:
            raise ValueError(f"Client: retries must be at least 0, got {retries}")
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._corpus, self._timeout, self._retries, self._wire = corpus, timeout, retries, wire

    def _select(self, sent: wire.Queries, common: dict[str, Any], on_error: str, timeout: float | None) -> _Steps:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"select: on_error must be one of 'raise', 'skip', got {on_error!r}")
        arrow = self._wire == "arrow" or (
            self._wire == "auto"
            and (sent.count > _FEW or sent.candidate_vectors is not None)
            and find_spec("pyarrow") is not None
        )
        limit = _Limit(self._timeout if timeout is None else timeout)
        parts = []
        for part in sent.parts(_PART):
            url: dict[str, Any] = {}
            if arrow:
                body, kind = sent.arrow(part)
                url = {name: _in_url(x) for name, x in {**sent.common, **common}.items()}
            else:
                body, kind = sent.json(part, common)
            options = {"content": body, "headers": {"content-type": kind}, "params": url}
            answer = yield from self._request("POST", "/v1/select", limit, options)
            found = _read(answer, part.stop - part.start)
            if found.errors and on_error == "raise":
                index = min(found.errors)
                raise InvalidRequestError(f"query {part.start + index}: {found.errors[index]}", 422)
            parts.append(found)
        return wire.joined(parts)

    def _content(self, method: str, path: str, seconds: float, body: dict[str, Any] | None = None) -> _Steps:
        options: dict[str, Any] = {"headers": _NOT_A_PAGE} if method != "GET" else {}
        if body is not None:
            options["json"] = body
        answer = yield from self._request(method, path, _Limit(None, seconds), options)
        return answer.json()

    def _path(self, op: str, corpus: str | None) -> str:
        name = corpus or self._corpus
        if name is None:
            raise ValueError(f"{op}: corpus must be named, got none")
        return f"/v1/corpora/{quote(name, safe='')}"

    def _request(self, method: str, path: str, limit: _Limit, options: dict[str, Any]) -> _Steps:
        """Send a request until it is answered, may not be sent again, or its time has passed."""
        pause = _FIRST
        for left in range(self._retries, -1, -1):
            headers = {**options.get("headers", {}), **limit.headers()}
            got = yield method, path, {**options, "headers": headers, "timeout": limit.left()}
            if isinstance(got, httpx.TimeoutException) and not isinstance(got, httpx.ConnectTimeout):
                raise DeadlineError(f"no answer within {limit.seconds:g} seconds")
            wait, cause = random.uniform(0, pause), None
            if isinstance(got, httpx.Response):
                if got.status_code < 300 or _has_picks(got):
                    return got
                failure = _error_of(got)
                if got.status_code not in _AGAIN:
                    raise failure
                wait = max(_asked_wait(got), wait)
            else:
                failure, cause = UnavailableError(f"the server cannot be reached: {got}"), got
            if not left or wait >= limit.left():
                raise failure from cause
            yield wait
            pause = min(2 * pause, _LONGEST)
        raise AssertionError("unreachable")


class _Limit:
    """The time limit of a call; one that the caller set is also sent to the server."""

    def __init__(self, asked: float | None, patience: float = _PATIENCE) -> None:
        if asked is not None and not asked > 0:
            raise ValueError(f"Client: timeout must be above 0 seconds, got {asked}")
        self.seconds = patience if asked is None else asked
        self._told, self._end = asked is not None, time.monotonic() + self.seconds

    def left(self) -> float:
        return max(0.001, self._end - time.monotonic())

    def headers(self) -> dict[str, str]:
        return {"x-timeout-ms": str(max(1, int(self.left() * 1000)))} if self._told else {}


def _has_picks(answer: httpx.Response) -> bool:
    """Whether an answer has an error for each query, and not one for the whole request."""
    if answer.status_code != 422:
        return False
    return not answer.headers["content-type"].startswith("application/json") or answer.content.startswith(b'{"results"')


def _read(answer: httpx.Response, count: int) -> wire.Part:
    """Return the picks of an answer; a proxy between client and server may have sent anything."""
    try:
        found = wire.read(answer.content, answer.headers["content-type"])
        if len(found.lengths) != count:
            raise ValueError(f"{len(found.lengths)} results for {count} queries")
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise ServiceError(f"the answer cannot be read: {str(error)[:200]}", answer.status_code) from error
    return found


def _error_of(answer: httpx.Response) -> ServiceError:
    status = answer.status_code
    try:
        error = answer.json()["error"]
        message, argument, code = error["message"], error["argument"], error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):  # the answer of a proxy
        message, argument, code = f"status {status}: {answer.text[:200]}", None, None
    kind = ServiceError
    if status in (404, 408, 409, 413, 415, 422):
        kind = InvalidRequestError
    elif status in _AGAIN:
        kind = UnavailableError
    elif status == 504:
        kind = DeadlineError
    return kind(message, status, argument, code, answer.headers.get("x-request-id"))


def _asked_wait(answer: httpx.Response) -> float:
    """Return the seconds of Retry-After, a number or a date."""
    given = answer.headers.get("retry-after", "")
    if given.isdecimal():
        return float(given)
    try:
        return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0


def _in_url(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value)
    return ",".join(map(str, value)) if isinstance(value, list) else "all" if value is None else value


def _given(**values: Any) -> dict[str, Any]:
    return {name: x for name, x in values.items() if x is not None}


class Client(_Calls):
    """A client of the service.

    Parameters
    ----------
    url : str
        Of the server, as ``http://127.0.0.1:8080``.
    token : str, optional
        The server's bearer token.
    corpus : str, optional
        The corpus of calls that name none; servers with one need no name.
    timeout : float, optional
        Seconds that a call may take with its retries; the server is told, and drops what is too late. Its own limit
        holds for each request, however long the client would wait. None: 30, and that limit alone.
    retries : int
        Times that a request is sent again if the server is full (429), stops (503) or cannot be reached. Pauses double,
        with jitter, from 50 ms to 2 s; ``Retry-After`` is obeyed.
    wire : "auto" | "json" | "arrow"
        JSON with vectors in base64, or Arrow (needs pyarrow), which "auto" takes for more than a few queries.
    transport : httpx transport, optional
        Instead of a connection.

    Examples
    --------
    >>> with Client("http://127.0.0.1:8080") as client:
    ...     picks = client.select(queries, k=6, corpus="docs", pool=100)
    ...     more = client.select(queries, k=6, corpus="docs", pool=100, initial=picks.ids)
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        corpus: str | None = None,
        timeout: float | None = None,
        retries: int = 5,
        wire: str = "auto",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(token, corpus, timeout, retries, wire)
        self._http = httpx.Client(base_url=url, headers=self._headers, transport=transport)

    def select(
        self,
        queries: Any = None,
        k: int | Sequence[int] = 6,
        *,
        corpus: str | None = None,
        query_ids: Any = None,
        method: str = "mmr",
        pool: int | None = 100,
        lambda_d: float | Sequence[float] | None = None,
        lambda_b: float | Sequence[float] | None = None,
        candidates: Any = None,
        relevance: Any = None,
        relevance_scale: str | None = None,
        quality: Any = None,
        aspects: Any = None,
        weights: Any = None,
        initial: Any = None,
        allowed: Any = None,
        exclude: Any = None,
        max_per_group: int | Mapping[Any, int] | None = None,
        min_per_group: int | Mapping[Any, int] | None = None,
        budget: float | Sequence[float] | None = None,
        max_similarity: float | Sequence[float] | None = None,
        min_relevance: float | Sequence[float] | None = None,
        nearest: bool | None = None,
        candidate_vectors: Any = None,
        bias: Any = None,
        groups: Any = None,
        query_groups: Any = None,
        costs: Any = None,
        lists: Any = None,
        fusion: str | None = None,
        fusion_weights: Any = None,
        scale: float | None = None,
        gamma: float | None = None,
        window: int | None = None,
        noise: float | None = None,
        min_gain: float | None = None,
        kind: str | None = None,
        density: bool | None = None,
        eps: float | None = None,
        half_life: Seconds | None = None,
        now: Moment | None = None,
        decay: str | None = None,
        decay_floor: float | None = None,
        metric: str | None = None,
        unknown: str | None = None,
        on_error: str = "raise",
        timeout: float | None = None,
    ) -> Picks:
        """Pick, for each query, the k items that are best together; more than 1,024 queries take several requests.

        Parameters
        ----------
        queries : (Q, D) float32 | float16 | others, optional
            Sent as float16 if they are, else as float32; or ``query_ids`` (Q,), ids of the corpus.
        k, lambda_d, lambda_b, budget, max_similarity, min_relevance : number or (Q,)
            An infinite budget is no limit.
        pool : int or None
            Rows retrieved to pick from; None: the whole corpus, exactly.
        candidates, initial, allowed, exclude : (Q, any) ids, or Q lists
            All integers or all strings. Padding is -1 or None, in arrays and lists; a query whose list is None has
            none, as one that is left out. Candidates to pick from instead of a pool; what was shown before, never
            picked again and kept away from; what alone may be picked; what must not be.
        relevance : (Q, P) numbers, or Q lists
            Of the candidates, instead of the cosine to the query; what stands at padding of the candidates is dropped.
        quality : (Q, P) numbers above 0, or Q lists, optional
            Of the candidates, for dpp: instead of that by z-scores.
        aspects : (Q, A, D) float32 | float16 | others, or Q arrays (any, D), optional
            For coverage: the vectors to cover, instead of the items. A query whose array is None has none.
        weights : (Q, A) numbers at least 0, or Q lists, optional
            Of the aspects; a query without is covered evenly.
        relevance_scale : "as-is" | "minmax" | "zscore" | "rank", optional
            How to rescale it, as in `mmr`.
        candidate_vectors : (Q, P, D) float32 | float16 | others, or Q arrays (any, D), optional
            Vectors of the candidates, whose ids may then be any; without ``candidates`` they are 0 to P - 1. No corpus
            is read, and queries are vectors. What stands at padding of the candidates is dropped. With ``metric``,
            "cosine" unless it is "dot".
        bias, costs : (Q, P) numbers, or Q lists, optional
        groups : (Q, P) integers or strings, or Q lists, optional
            What the rules' functions take of items, beside candidate_vectors alone: a corpus has its own.
        query_groups : (Q,) integers or strings, optional
            The group of each query, whose candidates it does not get. None: of no group.
        max_per_group, min_per_group : int, or mapping of groups to int, optional
            The most, and the least, picks of each group, or of single ones; one value for all queries. ``unmet`` of the
            picks says which minima do not hold.
        lists : sequence of (ids, scores), optional
            What several retrievers found, as `fuse` takes it but with ids of the corpus; instead of candidates and
            relevance, which the server makes of it by ``fusion`` ("rrf", "minmax" or "zscore") and ``fusion_weights``.
        nearest : bool, optional
            Whether ``nearest`` of the picks says which earlier one each is most similar to.
        scale, gamma, window, noise, min_gain, kind, density, eps : optional
            Options of one rule, as in its function; one value for all queries.
        half_life, now, decay, decay_floor : optional
            How relevance falls with the age of rows, as of `Corpus.select`; one value for all queries.
        unknown : "error" | "skip", optional
            How to treat an id that is not in the corpus. "error": its query is not answered. "skip": the query is
            answered without the id, and ``skipped`` has it. Default: the server's.
        on_error : "raise" | "skip"
            A query that is not answered raises; or its picks are empty, with the reason in ``errors``.

        Raises
        ------
        ValueError
            An argument that cannot be sent: of another shape or type.
        InvalidRequestError
            A rule is broken: the server's message. Also a ValueError.
        UnavailableError
            The server was full or could not be reached until the last try.
        DeadlineError
            The time has passed. Also a TimeoutError.
        """
        arguments = {
            "k": k, "lambda_d": lambda_d, "lambda_b": lambda_b, "candidates": candidates, "relevance": relevance,
            "relevance_scale": relevance_scale, "quality": quality, "aspects": aspects, "weights": weights,
            "initial": initial, "allowed": allowed, "exclude": exclude, "max_per_group": max_per_group,
            "min_per_group": min_per_group, "budget": budget, "max_similarity": max_similarity,
            "min_relevance": min_relevance, "bias": bias, "groups": groups, "query_groups": query_groups,
            "costs": costs, "scale": scale, "gamma": gamma,
            "window": window, "noise": noise, "min_gain": min_gain, "kind": kind, "density": density, "eps": eps,
            "metric": metric, "half_life": half_life, "now": now, "decay": decay, "decay_floor": decay_floor,
            "nearest": nearest,
        }  # fmt: skip
        sent = wire.Queries(queries, query_ids, arguments, candidate_vectors, lists)
        whole = _given(method=method, pool=pool, corpus=self._corpus if corpus is None else corpus, unknown=unknown)
        whole |= _given(fusion=fusion)
        common = {"pool": None} | {name: wire.one_value(name, x) for name, x in whole.items()}
        if fusion_weights is not None:
            common["fusion_weights"] = np.asarray(fusion_weights, float).tolist()
        picks: Picks = self._run(self._select(sent, common, on_error, timeout))
        return picks

    def info(self) -> dict[str, Any]:
        """Return the server's version, backends, corpora and limits."""
        content: dict[str, Any] = self._run(self._content("GET", "/info", _PATIENCE))
        return content

    def reload(self, corpus: str | None = None, timeout: float = 600.0) -> dict[str, Any]:
        """Let the server load the folder of a corpus anew; return its name, rows and version."""
        path = self._path("reload", corpus) + "/reload"
        content: dict[str, Any] = self._run(self._content("POST", path, timeout))
        return content

    def load(self, corpus: str | None = None, folder: str | None = None, timeout: float = 600.0) -> dict[str, Any]:
        """Let the server load a corpus, new or in the place of the one of that name; return its name, rows and version.

        Parameters
        ----------
        folder : str, optional
            The name of one in the folder that the server may load from; default: the name of the corpus.
        """
        path = self._path("load", corpus)
        content: dict[str, Any] = self._run(self._content("PUT", path, timeout, _given(folder=folder)))
        return content

    def unload(self, corpus: str | None = None, timeout: float = 600.0) -> dict[str, Any]:
        """Let the server take a corpus out of service; return its name."""
        path = self._path("unload", corpus)
        content: dict[str, Any] = self._run(self._content("DELETE", path, timeout))
        return content

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, steps: _Steps) -> Any:
        got: Any = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                return end.value
            got = None
            if isinstance(step, float):
                time.sleep(step)
                continue
            method, path, options = step
            try:
                got = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                got = error


def _awaited(method: Callable[Concatenate[Client, _P], _R]) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]]:
    """Return a method of `Client` as one of `AsyncClient`, whose ``_run`` returns what is to be awaited."""

    @functools.wraps(method)
    async def awaited(self: Any, /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        return await cast("Awaitable[_R]", method(self, *arguments, **options))

    return awaited


class AsyncClient(_Calls):
    """`Client` for asyncio: the same parameters and methods, which are awaited."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        corpus: str | None = None,
        timeout: float | None = None,
        retries: int = 5,
        wire: str = "auto",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(token, corpus, timeout, retries, wire)
        self._http = httpx.AsyncClient(base_url=url, headers=self._headers, transport=transport)

    select = _awaited(Client.select)
    info = _awaited(Client.info)
    reload = _awaited(Client.reload)
    load = _awaited(Client.load)
    unload = _awaited(Client.unload)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _run(self, steps: _Steps) -> Any:
        got: Any = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                return end.value
            got = None
            if isinstance(step, float):
                await asyncio.sleep(step)
                continue
            method, path, options = step
            try:
                got = await self._http.request(method, path, **options)
            except httpx.TransportError as error:
                got = error
