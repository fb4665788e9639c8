"""Texts with their vectors: from a question to the texts that together answer it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..corpus import Corpus
from ..selection.problem import Selection
from .encoders import CachedEncoder, Encoder, open_encoder
from .language_model import some_texts
from .language_model import texts as checked


class TextCorpus:
    """Texts, encoded once.

    Parameters
    ----------
    texts : sequence of N str
    encoder : str or Encoder
        "minilm", "mpnet", a name of sentence-transformers, a folder, or an object with `encode`.
    cache : path, optional
        File that keeps the vectors of texts and queries; see `CachedEncoder`.
    **options
        Of `Corpus`: ``bias``, ``groups``, ``costs``, ``metric``, ``dtype``.

    Attributes
    ----------
    texts : list of str
    corpus : Corpus
        Its rows are those of ``texts``.
    """

    def __init__(self, texts: Sequence[str], encoder: str | Encoder = "minilm", *, cache: Any = None, **options: Any):
        op = "TextCorpus"
        self.texts = some_texts(op, "texts", texts)
        model = open_encoder(op, encoder)
        self.encoder = model if cache is None else CachedEncoder(model, cache)
        self.corpus = Corpus(self.encoder.encode(self.texts), **options)

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, queries: str | Sequence[str], k: int, **options: Any) -> Selection:
        """Return `Corpus.select` for one query or several; ``indices`` are positions in `texts`."""
        queries = [queries] if isinstance(queries, str) else checked("select", "queries", queries)
        vectors = self.encoder.encode(queries) if queries else np.zeros((0, self.corpus.dims), np.float32)
        return self.corpus.select(vectors, k, **options)

    def pick(self, query: str, k: int, **options: Any) -> list[str]:
        """Return the k texts that `select` picks for a query, the first pick first."""
        if not isinstance(query, str):
            raise TypeError(f"pick: query must be a str, got {type(query).__name__}; select takes several")
        picks = self.select(query, k, **options)
        return [self.texts[i] for i in picks.indices[0] if i >= 0]
