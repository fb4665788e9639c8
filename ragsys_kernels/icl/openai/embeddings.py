"""Text encoders behind the embeddings endpoint of OpenAI, which vLLM, TEI, Ollama and others serve too."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from ..._base.types import NDArray as Array
from ..language_model import texts as checked
from .server import Server

_OP = "OpenAICompatibleEncoder"


class OpenAICompatibleEncoder:
    """A model on a server that answers ``POST /embeddings``.

    Parameters
    ----------
    base_url : str
        URL of the API, "http://localhost:8000/v1" for instance; "/embeddings" is added.
    model : str
        Its name on the server.
    api_key, revision, timeout, retries
        As for `OpenAICompatibleModel`.
    batch_size : int
        Texts in one request.

    Raises
    ------
    ValueError
        A server that refuses the request, or does not answer each text with a vector of one length.
    OSError
        A server that cannot be reached, or is busy after all retries.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        revision: str = "",
        batch_size: int = 64,
        timeout: float = 60.0,
        retries: int = 5,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"{_OP}: batch_size must be at least 1, got {batch_size}")
        self._server = Server(_OP, base_url, "embeddings", api_key=api_key, timeout=timeout, retries=retries)
        self.name, self._batch_size = model, batch_size
        identity = "\n".join((self._server.url, model, revision))
        self.fingerprint = hashlib.blake2b(identity.encode(), digest_size=20).hexdigest()

    def encode(self, texts: Sequence[str]) -> Array:
        """Return (N, D) float32 vectors, as the server gives them."""
        sentences = checked("encode", "texts", texts)
        if not sentences:
            raise ValueError("encode: texts must be at least one, got none")
        size = self._batch_size
        rows = [row for i in range(0, len(sentences), size) for row in self._vectors(sentences[i : i + size])]
        if len({len(row) for row in rows}) != 1:
            raise ValueError(f"{_OP}: server must give vectors of one length, got {sorted({len(row) for row in rows})}")
        return np.array(rows, np.float32)

    def _vectors(self, sentences: list[str]) -> list[list[float]]:
        answer = self._server.post({"model": self.name, "input": sentences, "encoding_format": "float"})
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or not all(
            isinstance(item, dict) and isinstance(item.get("embedding"), list) and item["embedding"] for item in data
        ):
            raise ValueError(f"{_OP}: server must answer with embeddings, got {str(answer)[:200]}")
        ordered = {item.get("index", place): item["embedding"] for place, item in enumerate(data)}
        if sorted(ordered) != list(range(len(sentences))):
            raise ValueError(f"{_OP}: server must answer each of {len(sentences)} texts once, got {sorted(ordered)}")
        return [ordered[i] for i in range(len(sentences))]
