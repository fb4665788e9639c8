"""Text encoders behind the embeddings endpoint of OpenAI, which vLLM, TEI, Ollama and others serve too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..._base.types import NDArray as Array
from ..language_model import some_texts
from .server import Served


class OpenAICompatibleEncoder(Served):
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
        super().__init__(
            "embeddings", base_url, model, api_key=api_key, revision=revision, batch_size=batch_size, timeout=timeout,
            retries=retries,
        )  # fmt: skip

    def encode(self, texts: Sequence[str]) -> Array:
        """Return (N, D) float32 vectors, as the server gives them."""
        sentences = some_texts("encode", "texts", texts)
        size = self._batch_size
        rows = [row for i in range(0, len(sentences), size) for row in self._vectors(sentences[i : i + size])]
        if len({len(row) for row in rows}) != 1:
            lengths = sorted({len(row) for row in rows})
            raise ValueError(f"{self._op}: server must give vectors of one length, got {lengths}")
        return np.array(rows, np.float32)

    def _vectors(self, sentences: list[str]) -> list[list[float]]:
        message = {"model": self.name, "input": sentences, "encoding_format": "float"}
        items = self._items("embeddings", "data", len(sentences), message)
        vectors = [item.get("embedding") for item in items]
        for vector in vectors:
            if not isinstance(vector, list) or not vector:
                raise ValueError(f"{self._op}: server must answer with embeddings, got {str(items)[:200]}")
        return vectors
