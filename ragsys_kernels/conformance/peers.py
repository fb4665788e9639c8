"""Calls that are no plain functions: LangChain's stores, Haystack's rankers, Qdrant in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from .adapters import Adapter, CallError
from .variants import Question


def _float32(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


class LangChainStore(Adapter):
    """A vector store of LangChain, asked by ``max_marginal_relevance_search_by_vector``.

    ``options`` go to the search: ``fetch_k``, the size of the pool, keeps the store's default.
    """

    name, takes, weight, pages = "LangChain's vector store", "query", "lambda_mult", False

    def __init__(self, store: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._store, self._options = store, options

    def ask(self, question: Question, shown: tuple[int, ...] = ()) -> list[int | None]:
        rows = _float32(question.rows).tolist()
        embeddings = SimpleNamespace(
            embed_documents=lambda texts: [rows[int(text)] for text in texts], embed_query=lambda text: rows[int(text)]
        )
        store = self._store(embeddings)
        store.add_texts(list(map(str, range(len(rows)))))
        found = store.max_marginal_relevance_search_by_vector(
            _float32(question.query).tolist(), k=question.k, lambda_mult=question.weight, **self._options
        )
        return [int(document.page_content) for document in found]


class HaystackRanker(Adapter):
    """A ranker of Haystack: documents have embeddings, scores, and texts that a table embeds; ``options`` make it."""

    name, pages = "Haystack's ranker", False

    def __init__(self, ranker: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._ranker = ranker
        self._run = inspect.signature(ranker.run).parameters  # type: ignore[attr-defined]
        made = inspect.signature(ranker.__init__).parameters
        weights = ("lambda_threshold", "lambda_mult", "diversity")
        self.weight = next((name for name in weights if name in self._run or name in made), None)
        self._embeds = "query" in self._run and "query_embedding" not in self._run
        self.takes = "query" if {"query", "query_embedding"} & set(self._run) else "scores"
        mmr = "maximum_margin_relevance" if "lambda_threshold" in self._run else "mmr"
        default = {"model": "none"} if self._embeds else {}
        self._options = {**default, **({"strategy": mmr} if "strategy" in made else {}), **options}

    def ask(self, question: Question, shown: tuple[int, ...] = ()) -> list[int | None]:
        from haystack import Document

        rows, query = _float32(question.rows), _float32(question.query)
        scores = question.relevance("given") if self.takes == "scores" else [None] * len(rows)
        documents = [
            Document(id=str(i), content=f"text {i}", embedding=row.tolist(), score=score)
            for i, (row, score) in enumerate(zip(rows, scores, strict=True))
        ]
        in_run = self.weight in self._run
        weight = {} if self.weight is None else {self.weight: question.weight}
        ranker = self._ranker(**self._options, **({} if in_run else weight))
        if self._embeds:
            ranker.model = _Table(rows, query)
        asked: dict[str, Any] = {"documents": documents, "top_k": question.k, **(weight if in_run else {})}
        queries = {"query": "query", "query_embedding": query.tolist()}
        asked.update({name: x for name, x in queries.items() if name in self._run})
        return [int(document.id) for document in ranker.run(**asked)["documents"]]


class _Table:
    """In the place of a model: the text of document i has row i, any other the query."""

    def __init__(self, rows: np.ndarray, query: np.ndarray) -> None:
        self._rows, self._query = rows, query

    def encode(self, texts: list[str], convert_to_tensor: bool = False, **_: Any) -> Any:
        found = np.array([self._rows[int(t[5:])] if t.startswith("text ") else self._query for t in texts])
        if not convert_to_tensor:
            return found
        import torch

        return torch.from_numpy(found)


class QdrantLocal(Adapter):
    """Qdrant's local mode: a collection in memory, ``query_points`` with ``Mmr``.

    ``options``: ``candidates_limit`` (default: Qdrant's own) and ``distance`` ("Cosine", "Dot", "Euclid").
    """

    name, takes, weight, pages = "Qdrant's local mode", "query", "diversity", True

    def __init__(self, client: Callable[..., Any], options: Mapping[str, Any]) -> None:
        unknown = set(options) - {"candidates_limit", "distance"}
        if unknown:
            raise CallError(f"conform: options must be candidates_limit and distance for Qdrant, got {min(unknown)!r}")
        self._client = client
        self._limit = options.get("candidates_limit")
        self._distance = options.get("distance", "Cosine")

    def ask(self, question: Question, shown: tuple[int, ...] = ()) -> list[int | None]:
        from qdrant_client import models

        client = self._client(":memory:")
        rows = _float32(question.rows)
        params = models.VectorParams(size=rows.shape[1], distance=models.Distance(self._distance))
        client.create_collection("sets", vectors_config=params)
        client.upsert("sets", [models.PointStruct(id=i, vector=row.tolist()) for i, row in enumerate(rows)])
        mmr = models.Mmr(diversity=question.weight, candidates_limit=self._limit)
        query = models.NearestQuery(nearest=_float32(question.query).tolist(), mmr=mmr)
        found = client.query_points("sets", query=query, limit=question.k, offset=len(shown) or None)
        return [point.id for point in found.points]
