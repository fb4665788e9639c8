"""LangChain vector stores whose searches by maximal marginal relevance run on the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import InMemoryVectorStore as TheirStore

from ._pools import Method, numbers, select
from .langchain_mmr import maximal_marginal_relevance

# A document, its score in the store, and its vector.
Candidate = tuple[Document, float, Sequence[float]]

_RULE = ("method", "bias_key", "lambda_b")  # of the arguments of a search those that are not the store's


def embeddings_of(store: Any) -> Any:
    if store.embeddings is None:
        raise ValueError(f"{type(store).__name__}: embeddings must be set to search by text, got None")
    return store.embeddings


def nearest(store: Any, embedding: Any, query: str | None, n: int, /, **kwargs: Any) -> list[Candidate]:
    """Return the n nearest documents of a store, best first; embed them again where the store does not give vectors.

    A store that does not search by vector is asked for the text of the query, where there is one.
    """
    if isinstance(store, TheirStore):
        found: list[Candidate] = store._similarity_search_with_score_by_vector(embedding, n, **kwargs)
        return found
    try:
        if hasattr(store, "similarity_search_with_score_by_vector"):
            scored = list(store.similarity_search_with_score_by_vector(embedding, k=n, **kwargs))
        else:
            scored = _unscored(store.similarity_search_by_vector(embedding, k=n, **kwargs))
    except NotImplementedError:
        if query is None:
            raise
        scored = _unscored(store.similarity_search(query, k=n, **kwargs))
    return _with_vectors(scored, embeddings_of(store).embed_documents(_texts(scored)))


async def anearest(store: Any, embedding: Any, query: str | None, n: int, /, **kwargs: Any) -> list[Candidate]:
    """Do what `nearest` does, by the awaitable methods of the store, which may have no others."""
    if isinstance(store, TheirStore):
        found: list[Candidate] = await run_in_executor(None, nearest, store, embedding, query, n, **kwargs)
        return found
    try:
        if hasattr(store, "asimilarity_search_with_score_by_vector"):
            scored = list(await store.asimilarity_search_with_score_by_vector(embedding, k=n, **kwargs))
        elif hasattr(store, "similarity_search_with_score_by_vector"):
            call = store.similarity_search_with_score_by_vector
            scored = list(await run_in_executor(None, call, embedding, k=n, **kwargs))
        else:
            scored = _unscored(await store.asimilarity_search_by_vector(embedding, k=n, **kwargs))
    except NotImplementedError:
        if query is None:
            raise
        scored = _unscored(await store.asimilarity_search(query, k=n, **kwargs))
    return _with_vectors(scored, await embeddings_of(store).aembed_documents(_texts(scored)))


def _unscored(documents: Iterable[Document]) -> list[tuple[Document, float]]:
    return [(each, np.nan) for each in documents]


def _texts(scored: list[tuple[Document, float]]) -> list[str]:
    return [document.page_content for document, _ in scored]


def _with_vectors(scored: list[tuple[Document, float]], vectors: Iterable[Any]) -> list[Candidate]:
    return [(document, score, vector) for (document, score), vector in zip(scored, vectors, strict=True)]


def search(
    store: Any, embedding: Any, query: str | None, /, k: int, fetch_k: int, lambda_mult: float, **kwargs: Any
) -> list[tuple[Document, float]]:
    """Pick from the ``fetch_k`` nearest documents of a store; return the picks with the scores of the store.

    Other arguments are those of `picked`, or go to the store.
    """
    rule = {name: kwargs.pop(name) for name in _RULE if name in kwargs}
    if _gives_candidates(store):
        found = store.mmr_candidates(embedding, fetch_k, **kwargs)
    else:
        found = nearest(store, embedding, query, fetch_k, **kwargs)
    return picked(found, embedding, k, lambda_mult, **rule)


async def asearch(
    store: Any, embedding: Any, query: str | None, /, k: int, fetch_k: int, lambda_mult: float, **kwargs: Any
) -> list[tuple[Document, float]]:
    """Do what `search` does; the store's own search is awaited, the selection runs in a thread."""
    rule = {name: kwargs.pop(name) for name in _RULE if name in kwargs}
    if _gives_candidates(store):
        found = await run_in_executor(None, store.mmr_candidates, embedding, fetch_k, **kwargs)
    else:
        found = await anearest(store, embedding, query, fetch_k, **kwargs)
    picks: list[tuple[Document, float]] = await run_in_executor(None, picked, found, embedding, k, lambda_mult, **rule)
    return picks


def _gives_candidates(store: Any) -> bool:
    """Return whether the store has a method `mmr_candidates` of its own."""
    theirs = getattr(type(store), "mmr_candidates", None)
    return isinstance(store, MaxMarginalRelevanceMixin) and theirs is not MaxMarginalRelevanceMixin.mmr_candidates


def picked(
    found: list[Candidate],
    embedding: Any,
    k: int,
    lambda_mult: float,
    method: Method = "mmr",
    bias_key: str | None = None,
    lambda_b: float = 0.95,
) -> list[tuple[Document, float]]:
    vectors = [vector for *_, vector in found]
    if method == "mmr" and bias_key is None:
        picks = maximal_marginal_relevance(embedding, vectors, lambda_mult, k)
    elif min(k, len(found)) <= 0:
        picks = []
    else:
        bias = numbers("max_marginal_relevance_search", [document.metadata for document, *_ in found], bias_key)
        picks, _ = select(embedding, vectors, k, method=method, lambda_mult=lambda_mult, bias=bias, lambda_b=lambda_b)
    return [found[i][:2] for i in picks]


def documents_of(found: Iterable[tuple[Document, float]]) -> list[Document]:
    return [document for document, _ in found]


class MaxMarginalRelevanceMixin:
    """The ``max_marginal_relevance_search*`` methods of a LangChain vector store, on the kernels.

    Put it before the store: ``class Store(MaxMarginalRelevanceMixin, SomeVectorStore)``. A store that can return
    vectors overrides `mmr_candidates`; else the documents it finds are embedded again (but for LangChain's in-memory
    store, which has them).

    All methods take LangChain's ``k=4, fetch_k=20, lambda_mult=0.5``, these by keyword, and others for the store:

    method : {"mmr", "vrsd"}
    bias_key : str, optional
        Entry of the documents' metadata that holds their quality, for MMR with bias (RAGSys, Algorithm 1);
        ``lambda_mult`` must then be within [0, 1].
    lambda_b : float in [0, 1], default 0.95
        Weight of relevance against the bias.

    Without ``method`` and ``bias_key`` the rule and its errors are those of `maximal_marginal_relevance`. As in
    LangChain ``fetch_k`` is not raised to ``k``: no more than ``fetch_k`` documents come back. Scores are the store's
    own, NaN where it gives none. A store that searches by text alone serves the methods that take a text. The methods
    that begin with ``a`` are those without it, awaitable: they await the embeddings and the store's own awaitable
    search; `mmr_candidates` and the selection run in a thread.

    Examples
    --------
    >>> class Store(MaxMarginalRelevanceMixin, SomeVectorStore):
    ...     def mmr_candidates(self, embedding, fetch_k, **kwargs):
    ...         found = self.client.search(embedding, fetch_k, with_vectors=True, **kwargs)
    ...         return [(Document(page_content=hit.text), hit.score, hit.vector) for hit in found]
    """

    def mmr_candidates(self, embedding: list[float], fetch_k: int, **kwargs: Any) -> list[Candidate]:
        """Return the ``fetch_k`` nearest documents: (document, score, vector) of each, best first."""
        return nearest(self, embedding, None, fetch_k, **kwargs)

    def max_marginal_relevance_search_with_score_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return documents and their scores in the store, in the order they were picked."""
        return search(self, embedding, None, k, fetch_k, lambda_mult, **kwargs)

    def max_marginal_relevance_search_with_score(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Do what `max_marginal_relevance_search_with_score_by_vector` does, for a text."""
        return search(self, embeddings_of(self).embed_query(query), query, k, fetch_k, lambda_mult, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Return documents in the order they were picked."""
        return documents_of(search(self, embedding, None, k, fetch_k, lambda_mult, **kwargs))

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Do what `max_marginal_relevance_search_by_vector` does, for a text."""
        return documents_of(self.max_marginal_relevance_search_with_score(query, k, fetch_k, lambda_mult, **kwargs))

    async def amax_marginal_relevance_search_with_score_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        return await asearch(self, embedding, None, k, fetch_k, lambda_mult, **kwargs)

    async def amax_marginal_relevance_search_with_score(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        embedding = await embeddings_of(self).aembed_query(query)
        return await asearch(self, embedding, query, k, fetch_k, lambda_mult, **kwargs)

    async def amax_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        return documents_of(
            await self.amax_marginal_relevance_search_with_score_by_vector(embedding, k, fetch_k, lambda_mult, **kwargs)
        )

    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        return documents_of(
            await self.amax_marginal_relevance_search_with_score(query, k, fetch_k, lambda_mult, **kwargs)
        )


class InMemoryVectorStore(MaxMarginalRelevanceMixin, TheirStore):
    """LangChain's in-memory store with the searches of `MaxMarginalRelevanceMixin`."""
