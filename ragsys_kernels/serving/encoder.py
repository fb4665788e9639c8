"""Vectors of texts, from an embeddings endpoint of the shape that OpenAI's has and most servers of encoders copy."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx
import orjson

from .limits import RefusedError, invalid

_CONNECT, _CONNECTIONS = 5.0, 64
# What the endpoint says of a text that it does not take, as one that is too long.
_OF_THE_TEXT = (400, 413, 422)
# Bytes of an answer: of a number as JSON, of what stands around them, and of an error.
_NUMBER, _AROUND, _ERROR = 40, 1 << 16, 4096


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
        self._headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._client: httpx.AsyncClient | None = None

    async def encode(self, text: str, dims: int, deadline: float) -> list[float]:
        """Return the vector of a text.

        Raises
        ------
        RefusedError
            422: the endpoint refuses the text. 502: it fails, or its vectors are not of this corpus. 504: no time left.
        """
        if not text.strip():
            raise invalid("rerank", "query", "be an id, a vector or a text", "an empty text")
        left = deadline - asyncio.get_running_loop().time()
        content: dict[str, Any] = {"input": [text], "encoding_format": "float"}
        if self._model is not None:
            content["model"] = self._model
        asking = asyncio.ensure_future(self._asked(content, _NUMBER * dims + _AROUND))
        try:
            # Not `wait_for`, which waits until what it cancels has ended.
            await asyncio.wait({asking}, timeout=max(0.0, min(left, self._seconds)))
            if not asking.done():
                raise httpx.ReadTimeout("")
            status, answer = asking.result()
        except httpx.TimeoutException:
            if left <= self._seconds:
                raise RefusedError(504, "rerank: the deadline has passed while the encoder worked") from None
            raise _failed(f"answer within {self._seconds:g} seconds") from None
        except httpx.HTTPError as error:
            raise _failed(f"be reached ({type(error).__name__})") from None
        finally:
            asking.cancel()
        if status in _OF_THE_TEXT:
            got = f"its error: {answer.decode('utf-8', 'replace')[:200]}"
            raise invalid("rerank", "query", "be a text that the encoder takes", got)
        if status != 200:
            raise _failed(f"answer with status 200, got {status}")
        return _vector(answer, dims)

    async def _asked(self, content: dict[str, Any], most: int) -> tuple[int, bytes]:
        """Return the status and the body of the endpoint's answer; of an error, where the body begins."""
        async with self._opened().stream("POST", self.url, json=content) as response:
            well, body = response.status_code == 200, b""
            if response.headers.get("content-encoding", "identity") != "identity":
                raise _failed("answer with a body that is not compressed")
            async for part in response.aiter_bytes():
                body += part
                if len(body) > (most if well else _ERROR):
                    if well:
                        raise _failed(f"answer with at most {most} bytes, got more")
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


def _vector(body: bytes, dims: int) -> list[float]:
    """Return the vector in an answer."""
    try:
        [item] = orjson.loads(body)["data"]
        vector = item["embedding"]
    except (ValueError, KeyError, TypeError):
        raise _failed("answer with data of one embedding, got another JSON") from None
    if type(vector) is not list or len(vector) != dims:
        got = len(vector) if type(vector) is list else type(vector).__name__
        raise _failed(f"have the corpus's {dims} dimensions, got {got}")
    if not all(type(x) in (int, float) and math.isfinite(x) for x in vector):
        raise _failed("return finite numbers, got others")
    return vector


def _failed(rule: str) -> RefusedError:
    return RefusedError(502, f"rerank: encoder must {rule}", "encoder")
