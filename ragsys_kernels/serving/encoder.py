"""Vectors of texts: of a model in this process, or of an embeddings endpoint, in the shape of OpenAI's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import httpx
import orjson

from .._base.checks import line
from .limits import RefusedError, invalid

_CONNECT, _CONNECTIONS = 5.0, 64
# Statuses with which the endpoint refuses a text, such as one that is too long.
_OF_THE_TEXT = (400, 413, 422)
# Most bytes of an answer: for each number in JSON, around the numbers, and for an error.
_NUMBER, _AROUND, _ERROR = 40, 1 << 16, 4096
# Most characters of a text for a local model, which reads far fewer, but would tokenize all of them.
_LONGEST = 100_000


class TextEncoder(Protocol):
    """Computes vectors of queries that are texts."""

    name: str | None  # of the model, for ``/info``

    async def encode(self, text: str, dims: int, deadline: float, op: str) -> Sequence[float]:
        """Return the vector (dims,) of a text; ``op`` begins the words of errors.

        Raises
        ------
        RefusedError
            422: the text cannot be encoded. 502: the encoder fails, or its vectors are not of this corpus. 504: no time
            left.
        """

    async def close(self) -> None:
        """Give back what it holds."""


class LocalEncoder:
    """A model in this process, which encodes one text at a time beside the event loop.

    Parameters
    ----------
    model : str
        "minilm", "mpnet", a folder or a name on the hub, as `icl.SentenceTransformerEncoder` takes them.
    num_threads : int, optional
        torch's threads.

    Raises
    ------
    ModuleNotFoundError
        The extra ``encoders`` is not installed.
    ValueError
        There is no such model.
    """

    def __init__(self, model: str, num_threads: int | None = None) -> None:
        from ..icl import encoders

        self.name: str | None = model
        self._model = encoders.SentenceTransformerEncoder(model, num_threads=num_threads)
        self._encoders = ThreadPoolExecutor(1, "encoder")
        self.dims = int(self._model.encode(["text"]).shape[1])

    async def encode(self, text: str, dims: int, deadline: float, op: str) -> Sequence[float]:
        _check(op, text)
        if len(text) > _LONGEST:
            raise invalid(op, "query", f"have at most {_LONGEST} characters", len(text))
        if dims != self.dims:
            raise invalid(op, "corpus", f"have the encoder's {self.dims} dimensions for a query of text", dims)
        loop = asyncio.get_running_loop()
        # Cancelled before its turn it is never encoded.
        encoding = loop.run_in_executor(self._encoders, self._encoded, text)
        try:
            await asyncio.wait({encoding}, timeout=max(0.0, deadline - loop.time()))
            if not encoding.done():
                raise RefusedError(504, f"{op}: the deadline has passed while the encoder worked")
            return encoding.result()
        except (RuntimeError, ValueError, MemoryError) as error:
            raise _failed(op, f"encode the text, got {line(error)[:200]}") from None
        finally:
            encoding.cancel()

    def _encoded(self, text: str) -> list[float]:
        vector: list[float] = self._model.encode([text])[0].tolist()
        return vector

    async def close(self) -> None:
        self._encoders.shutdown(wait=False, cancel_futures=True)


class Encoder:
    """An embeddings endpoint.

    Parameters
    ----------
    url : str
        The endpoint itself, as ``http://127.0.0.1:9000/v1/embeddings``.
    model : str, optional
        The model that it is asked for.
    token : str, optional
        Its bearer token.
    seconds : float
        The longest that it may take; a request's deadline may be sooner.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        token: str | None = None,
        seconds: float = 10.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url, self._model, self._seconds, self._transport = url, model, seconds, transport
        self.name = model
        self._headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._client: httpx.AsyncClient | None = None

    async def encode(self, text: str, dims: int, deadline: float, op: str) -> list[float]:
        _check(op, text)
        left = deadline - asyncio.get_running_loop().time()
        content: dict[str, Any] = {"input": [text], "encoding_format": "float"}
        if self._model is not None:
            content["model"] = self._model
        asking = asyncio.ensure_future(self._asked(op, content, _NUMBER * dims + _AROUND))
        try:
            # Not `wait_for`, which waits until what it cancels has ended.
            await asyncio.wait({asking}, timeout=max(0.0, min(left, self._seconds)))
            if not asking.done():
                raise httpx.ReadTimeout("")
            status, answer = asking.result()
        except httpx.TimeoutException:
            if left <= self._seconds:
                raise RefusedError(504, f"{op}: the deadline has passed while the encoder worked") from None
            raise _failed(op, f"answer within {self._seconds:g} seconds") from None
        except httpx.HTTPError as error:
            raise _failed(op, f"be reached ({type(error).__name__})") from None
        finally:
            asking.cancel()
        if status in _OF_THE_TEXT:
            got = f"its error: {answer.decode('utf-8', 'replace')[:200]}"
            raise invalid(op, "query", "be a text that the encoder takes", got)
        if status != 200:
            raise _failed(op, f"answer with status 200, got {status}")
        return _vector(op, answer, dims)

    async def _asked(self, op: str, content: dict[str, Any], most: int) -> tuple[int, bytes]:
        """Return the status and the body of the endpoint's answer; of an error, where the body begins."""
        async with self._opened().stream("POST", self.url, json=content) as response:
            well, body = response.status_code == 200, b""
            if response.headers.get("content-encoding", "identity") != "identity":
                raise _failed(op, "answer with a body that is not compressed")
            async for part in response.aiter_bytes():
                body += part
                if len(body) > (most if well else _ERROR):
                    if well:
                        raise _failed(op, f"answer with at most {most} bytes, got more")
                    break
            return response.status_code, body

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(self._seconds, connect=min(_CONNECT, self._seconds)),
                limits=httpx.Limits(max_connections=_CONNECTIONS),
                transport=self._transport,
            )
        return self._client


def _vector(op: str, body: bytes, dims: int) -> list[float]:
    """Return the vector in an answer."""
    try:
        [item] = orjson.loads(body)["data"]
        vector = item["embedding"]
    except (ValueError, KeyError, TypeError):
        raise _failed(op, "answer with data of one embedding, got another JSON") from None
    if type(vector) is not list or len(vector) != dims:
        got = len(vector) if type(vector) is list else type(vector).__name__
        raise _failed(op, f"have the corpus's {dims} dimensions, got {got}")
    if not all(type(x) in (int, float) and math.isfinite(x) for x in vector):
        raise _failed(op, "return finite numbers, got others")
    return vector


def _check(op: str, text: str) -> None:
    if not text.strip():
        raise invalid(op, "query", "be an id, a vector or a text", "an empty text")


def _failed(op: str, rule: str) -> RefusedError:
    return RefusedError(502, f"{op}: encoder must {rule}", "encoder")
