"""LangChain vector stores whose searches by maximal marginal relevance run on the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.example_selectors import sorted_values
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import InMemoryVectorStore as TheirStore

from ._options import DEFAULTS, are_usual, checked, numbers, of_items
from ._pools import select
from .langchain_mmr import maximal_marginal_relevance

# A document, its score in the store, and its vector.
Candidate = tuple[Document, float, Sequence[float]]
Example = Callable[[Document], dict[str, Any]] | None

_OWN = (*DEFAULTS, "relevance_key")  # of the arguments of a search those that are not the store's
_OP = "max_marginal_relevance_search"


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
    store: Any, embedding: Any, query: str | None, /, k: int, fetch_k: int, lambda_mult: float,
    _example: Example = None, _op: str = _OP, **kwargs: Any,
) -> list[tuple[Document, float]]:  # fmt: skip
    """Pick from the ``fetch_k`` nearest documents of a store; return the picks with the scores of the store.

    ``_example`` returns what a selector gives of a document: of equal ones the first counts, and their texts are those
    that cost tokens. Errors name ``_op``. Other arguments are options to select by, or go to the store.
    """
    rule = _taken(_op, kwargs, lambda_mult)
    if _gives_candidates(store):
        found = store.mmr_candidates(embedding, fetch_k, **kwargs)
    else:
        found = nearest(store, embedding, query, fetch_k, **kwargs)
    return picked(_op, found, embedding, k, lambda_mult, rule, _example)


async def asearch(
    store: Any, embedding: Any, query: str | None, /, k: int, fetch_k: int, lambda_mult: float,
    _example: Example = None, _op: str = _OP, **kwargs: Any,
) -> list[tuple[Document, float]]:  # fmt: skip
    """Do what `search` does; the store's own search is awaited, the selection runs in a thread."""
    rule = _taken(_op, kwargs, lambda_mult)
    if _gives_candidates(store):
        found = await run_in_executor(None, store.mmr_candidates, embedding, fetch_k, **kwargs)
    else:
        found = await anearest(store, embedding, query, fetch_k, **kwargs)
    picks: list[tuple[Document, float]] = await run_in_executor(
        None, picked, _op, found, embedding, k, lambda_mult, rule, _example
    )
    return picks


def _gives_candidates(store: Any) -> bool:
    """Return whether the store has a method `mmr_candidates` of its own."""
    theirs = getattr(type(store), "mmr_candidates", None)
    return isinstance(store, MaxMarginalRelevanceMixin) and theirs is not MaxMarginalRelevanceMixin.mmr_candidates


def _taken(op: str, kwargs: dict[str, Any], lambda_mult: float) -> dict[str, Any]:
    """Take the options out of the arguments of a search, checked; none where they ask for no more than MMR."""
    given = {name: kwargs.pop(name) for name in _OWN if name in kwargs}
    key = given.pop("relevance_key", None)
    if key is None and are_usual(given):
        return {}
    relevance = "relevance_key", key is not None
    return {"relevance_key": key} | checked(op, given, ("lambda_mult", lambda_mult), relevance)


def once(documents: Iterable[Any], example: Callable[[Any], dict[str, Any]]) -> list[Any]:
    """Return the first of those that are the same example."""
    first: dict[str, Any] = {}
    for each in documents:
        first.setdefault(repr(sorted(example(each).items())), each)
    return list(first.values())


def picked(
    op: str,
    found: list[Candidate],
    embedding: Any,
    k: int,
    lambda_mult: float,
    options: dict[str, Any],
    example: Example = None,
) -> list[tuple[Document, float]]:
    """Return the picks of some candidates, by options as `_taken` returns them."""
    if example is not None:
        found = once(found, lambda each: example(each[0]))
    vectors = [vector for *_, vector in found]
    if not options:
        picks = maximal_marginal_relevance(embedding, vectors, lambda_mult, k)
    elif min(k, len(found)) <= 0:
        picks = []
    else:
        documents = [document for document, *_ in found]

        def texts() -> list[str]:
            if example is None:
                return [each.page_content for each in documents]
            return [" ".join(map(str, sorted_values(example(each)))) for each in documents]

        metadata = [each.metadata for each in documents]
        relevance = numbers(op, metadata, options["relevance_key"])
        arguments = of_items(op, options, metadata, texts)
        picks, _ = select(embedding, vectors, k, lambda_mult=lambda_mult, relevance=relevance, **arguments)
    return [found[i][:2] for i in picks]


def documents_of(found: Iterable[tuple[Document, float]]) -> list[Document]:
    return [document for document, _ in found]


class MaxMarginalRelevanceMixin:
    """The ``max_marginal_relevance_search*`` methods of a LangChain vector store, on the kernels.

    Put it before the store: ``class Store(MaxMarginalRelevanceMixin, SomeVectorStore)``. A store that can return
    vectors overrides `mmr_candidates`; else the documents it finds are embedded again (but for LangChain's in-memory
    store, which has them).

    All methods take LangChain's ``k=4, fetch_k=20, lambda_mult=0.5``, these by keyword, and others for the store:

    method, relevance_key, bias_key, group_key, cost_key, token_counter, quality_key, ...
        The options of `SelectionRetriever`.

    Without any of them the rule and its errors are those of `maximal_marginal_relevance`; with one, ``lambda_mult``
    must be within [0, 1]. As in LangChain ``fetch_k`` is not raised to ``k``: no more than ``fetch_k`` documents come
    back. Scores are the store's own, NaN where it gives none. A store that searches by text alone serves the methods
    that take a text. The methods that begin with ``a`` are those without it, awaitable: they await the embeddings and
    the store's own awaitable search; `mmr_candidates` and the selection run in a thread.

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
