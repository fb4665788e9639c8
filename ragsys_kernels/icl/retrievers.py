"""Retrievers of texts behind one interface, and the rules that select among what they found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

import ragsys_kernels as rk

from .._base.checks import count
from .._base.extras import needed
from .._base.types import NDArray as Array
from .encoders import Encoder
from .language_model import some_texts


class Found(NamedTuple):
    """Texts that a retriever found for Q queries, best first."""

    ids: Array  # (Q, n) int64, positions among the texts; -1 behind the last
    scores: Array  # (Q, n) float32; -inf where ids has -1


class Retriever(Protocol):
    """A search for the texts of a collection that suit a query."""

    def search(self, queries: Sequence[str], n: int) -> Found:
        """Return the n best texts of each query; equal scores by position."""


class DenseRetriever:
    """Texts by the cosine of their embeddings with the query's, exactly or through a FAISS index.

    Parameters
    ----------
    encoder : Encoder
    texts : sequence of N str
    index : None | str | faiss.Index
        None: the exact search of `Corpus`. Else a FAISS factory string or an empty index, as for `Corpus.to_faiss`:
        it finds, and the order and scores are those of the exact search.
    bias, groups : (N,), optional
        Those of `Corpus`.
    **options
        ``dtype``, ``device`` of `Corpus`.
    """

    def __init__(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        index: Any = None,
        bias: Any = None,
        groups: Any = None,
        **options: Any,
    ) -> None:
        self.encoder = encoder
        self.corpus = rk.Corpus(encoder.encode(some_texts("search", "texts", texts)), bias, groups, **options)
        self.index = None if index is None else self.corpus.to_faiss(index)

    def search(self, queries: Sequence[str], n: int) -> Found:
        return self.nearest(self.encoder.encode(some_texts("search", "queries", queries)), n)

    def nearest(self, vectors: Any, n: int, **options: Any) -> Found:
        """Search as `search`, for queries (Q, D) that are encoded already; options of `Corpus.search`."""
        return Found(*self.corpus.search(vectors, n, index=self.index, **options))


class BM25Retriever:
    """Texts by BM25 (Lucene's form) over words in lower case, without English stop words; bm25s does the work.

    ::

        score(q, d) = sum over words t of q: log(1 + (N - n_t + 1/2) / (n_t + 1/2)) * f / (f + k1 (1 - b + b |d| / avg))

    with f the number of t in d and n_t the texts that have t. Texts that share no word with the query are not found.

    Parameters
    ----------
    texts : sequence of N str
    k1, b : float
        Saturation of repeated words, and weight of the text's length. Defaults: bm25s's and Robertson's.
    stopwords : str or list of str
        Stop words as ``bm25s.tokenize`` takes them.
    stemmer : str, optional
        Algorithm of PyStemmer that cuts the words, for instance "porter". Default: none does.

    Raises
    ------
    ModuleNotFoundError
        bm25s is not installed, or PyStemmer where a stemmer is asked for.
    ValueError
        No text has a word; PyStemmer has no such algorithm.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        k1: float = 1.5,
        b: float = 0.75,
        stopwords: str | list[str] = "english",
        stemmer: str | None = None,
    ) -> None:
        texts = some_texts("search", "texts", texts)
        with needed("BM25", "bm25"):
            import bm25s
        self._stemmer: Any = None
        if stemmer is not None:
            with needed("BM25 with a stemmer", "evaluate", "PyStemmer"):
                from Stemmer import Stemmer
            try:
                self._stemmer = Stemmer(stemmer)
            except KeyError:
                raise ValueError(f"BM25: stemmer must be an algorithm of PyStemmer, got {stemmer!r}") from None
        self._tokenize, self._stopwords, self._size = bm25s.tokenize, stopwords, len(texts)
        self._bm25: Any = bm25s.BM25(k1=k1, b=b, method="lucene")
        words = self._words(texts)
        if not any(words):
            raise ValueError("BM25: texts must have words, got none")
        self._bm25.index(words, show_progress=False)

    @classmethod
    def pyserini(cls, texts: Sequence[str]) -> BM25Retriever:
        """Return one with the parameters of Pyserini, which In-Context RALM uses: k1 = 0.9, b = 0.4, Porter's stems."""
        return cls(texts, k1=0.9, b=0.4, stemmer="porter")

    def search(self, queries: Sequence[str], n: int) -> Found:
        n = count("search", "n", n)
        words = self._words(some_texts("search", "queries", queries))
        ids, scores = np.full((len(words), n), -1, np.int64), np.full((len(words), n), -np.inf, np.float32)
        for q, query in enumerate(words):
            known = self._bm25.get_tokens_ids(query)
            if not known:
                continue
            values = np.asarray(self._bm25.get_scores_from_ids(known), np.float32)
            best = _best(values, n)
            ids[q, : len(best)], scores[q, : len(best)] = best, values[best]
        return Found(ids, scores)

    def _words(self, texts: list[str]) -> list[list[str]]:
        found: list[list[str]] = self._tokenize(
            texts, stopwords=self._stopwords, stemmer=self._stemmer, return_ids=False, show_progress=False
        )
        return found


RULE_METHODS = ("top", "mmr", "vrsd")


class Rule(NamedTuple):
    """A rule that selects k of a query's candidates: "top" (by relevance), "mmr" with a lambda, or "vrsd"."""

    method: str
    lambda_d: float = 1.0

    @property
    def label(self) -> str:
        return {"top": "cosine top-k", "mmr": f"MMR λ={self.lambda_d:g}", "vrsd": "VRSD"}[self.method]

    def select(
        self, queries: Any, corpus: rk.Corpus, k: Any, *, candidates: Any = None, **options: Any
    ) -> rk.Selection:
        """Return the picks from the candidates (Q, P), or from the whole corpus; options of the op."""
        if self.method == "vrsd":
            return rk.vrsd(queries, corpus, k, candidates=candidates, **options)
        if self.method not in RULE_METHODS:
            raise ValueError(f"select: method must be top, mmr or vrsd, got {self.method!r}")
        weight = 1.0 if self.method == "top" else self.lambda_d
        return rk.mmr(queries, corpus, k, candidates=candidates, lambda_d=weight, **options)


def _best(values: Array, n: int) -> Array:
    """Return positions of the n largest values above 0, the largest first, equal ones by position."""
    positive = np.flatnonzero(values > 0)
    if len(positive) > n:
        # All values that reach the n-th largest, so that the sort below decides among equal ones.
        least = np.partition(values[positive], len(positive) - n)[len(positive) - n]
        positive = positive[values[positive] >= least]
    return positive[np.argsort(-values[positive], kind="stable")[:n]]
