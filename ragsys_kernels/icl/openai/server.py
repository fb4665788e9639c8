"""Models on servers that speak OpenAI's protocol: key, retries, and errors that say what the server said."""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import time
import urllib.error
import urllib.request
from typing import Any

from ..._base import env

_AGAIN = (408, 409, 429, 500, 502, 503, 504)  # answers of a server that is busy, or will be back
_LONGEST_WAIT = 60.0  # seconds


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects taken as answers: urllib would send the key to another host, and no body to the same one."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Served:
    """A model at one address of a server. The name of its class begins its errors."""

    def __init__(
        self,
        path: str,
        base_url: str,
        model: str,
        *,
        api_key: str | None,
        revision: str,
        batch_size: int,
        timeout: float,
        retries: int,
    ) -> None:
        self._op = op = type(self).__name__
        if batch_size < 1:
            raise ValueError(f"{op}: batch_size must be at least 1, got {batch_size}")
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"{op}: base_url must begin with http:// or https://, got {base_url!r}")
        if retries < 0 or not timeout > 0:
            raise ValueError(f"{op}: retries and timeout must be at least 0 and above 0, got {retries} and {timeout}")
        self.name, self._url, self._batch_size = model, f"{base_url.rstrip('/')}/{path}", batch_size
        self.fingerprint = hashlib.blake2b(f"{self._url}\n{model}\n{revision}".encode(), digest_size=20).hexdigest()
        self._key = env.openai_api_key() if api_key is None else api_key
        self._timeout, self._retries = timeout, retries

    def _items(self, what: str, field: str, number: int, message: dict[str, Any]) -> list[Any]:
        """Return the parts of the server's answer to a message with so many texts, `what` they are, in their order."""
        answer = self._post(message)
        items = answer.get(field) if isinstance(answer, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ValueError(f"{self._op}: server must answer with {what}, got {str(answer)[:200]}")
        ordered = {item.get("index", place): item for place, item in enumerate(items)}
        if sorted(ordered) != list(range(number)):
            raise ValueError(f"{self._op}: server must answer each of {number} texts once, got {sorted(ordered)}")
        return [ordered[i] for i in range(number)]

    def _post(self, message: dict[str, Any]) -> Any:
        """Return the server's answer to a message, both JSON."""
        op, url, body = self._op, self._url, json.dumps(message).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        server = urllib.request.build_opener(_NoRedirects)
        for attempt in range(self._retries + 1):
            request = urllib.request.Request(url, body, headers)
            wait = 2.0**attempt * (0.5 + random.random() / 2)
            try:
                with server.open(request, timeout=self._timeout) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                with error:
                    said = f"{error.code} {_message(error.read())}"
                if 300 <= error.code < 400:
                    raise ValueError(
                        f"{op}: server must answer itself, for redirects are not followed, got {error.code} to "
                        f"{error.headers.get('Location')} from {url}"
                    ) from None
                if error.code not in _AGAIN:
                    raise ValueError(f"{op}: server must accept the request, got {said} from {url}") from None
                wait = _seconds(error.headers.get("Retry-After"), wait)
            except json.JSONDecodeError as error:
                raise ValueError(f"{op}: server must answer in JSON, got {error} from {url}") from None
            except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
                said = str(getattr(error, "reason", error)) or type(error).__name__
            if attempt < self._retries:
                time.sleep(min(wait, _LONGEST_WAIT))
        raise OSError(f"{op}: server must answer, got {said} from {url} in {self._retries + 1} attempts")


def _message(body: bytes) -> str:
    """Return what the server says is wrong."""
    text = body.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
        error = answer.get("error", answer)
        return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
    except (ValueError, AttributeError):
        return text[:300]


def _seconds(header: str | None, otherwise: float) -> float:
    try:
        return max(0.0, float(header)) if header is not None else otherwise
    except ValueError:  # a date
        return otherwise
