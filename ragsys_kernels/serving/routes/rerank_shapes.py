"""The requests and answers of rerank services, as their clients write and read them.

A shape is told by the field that holds the documents, whichever of the paths it comes to:

    texts                   text-embeddings-inference: a list of ``{index, score}``, every document in it
    documents               Cohere and Jina: ``results`` of ``{index, relevance_score}``, those of ``top_n``
    documents + property    Weaviate: ``scores`` of ``{document, score}``, every document in it
    input                   Elasticsearch's custom inference: ``rerank`` of ``{index, relevance_score}``
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..limits import invalid

_KINDS = {"texts": "tei", "documents": "cohere", "input": "elasticsearch"}


@dataclass(slots=True)
class Ranked:
    """One document in its place: the score is for clients, which sort by it; ``selection`` has the true values."""

    index: int
    score: float
    selection: dict[str, Any]


def shape_of(content: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return the name of a request's shape, and its documents."""
    fields = [name for name in _KINDS if content.get(name) is not None]
    if len(fields) != 1:
        got = ", ".join(fields) or "none"
        raise invalid("rerank", "documents", "be given once, as documents, texts or input", got)
    documents = content[fields[0]]
    if type(documents) is not list:
        raise invalid("rerank", fields[0], "be a list of ids", type(documents).__name__)
    shape = _KINDS[fields[0]]
    return ("weaviate" if shape == "cohere" and "property" in content else shape), documents


def answer(shape: str, content: dict[str, Any], documents: list[Any], ranked: list[Ranked]) -> Any:
    """Return the body of an answer."""
    return _ANSWERS[shape](content, documents, ranked)


def _tei(content: dict[str, Any], documents: list[Any], ranked: list[Ranked]) -> Any:
    texts = bool(content.get("return_text"))
    found = []
    for each in ranked:
        result: dict[str, Any] = {"index": each.index, "score": each.score, "selection": each.selection}
        if texts:
            result["text"] = text_of(documents[each.index])
        found.append(result)
    return found


def has_picks_alone(shape: str, content: dict[str, Any]) -> bool:
    """Return whether an answer leaves out what was not picked: those with ``top_n``, where clients expect no more."""
    return shape in ("cohere", "elasticsearch") and content.get("top_n") is not None


def _results(ranked: list[Ranked]) -> list[dict[str, Any]]:
    return [{"index": each.index, "relevance_score": each.score, "selection": each.selection} for each in ranked]


def _cohere(content: dict[str, Any], documents: list[Any], ranked: list[Ranked]) -> Any:
    results = _results(ranked)
    if content.get("return_documents"):
        for result in results:
            document = documents[result["index"]]
            result["document"] = document if type(document) is dict else {"text": str(document)}
    return {
        "id": str(uuid.uuid4()),
        "model": content.get("model"),
        "results": results,
        "usage": {"total_tokens": 0},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }


def _elasticsearch(content: dict[str, Any], documents: list[Any], ranked: list[Ranked]) -> Any:
    return {"rerank": _results(ranked)}


def _weaviate(content: dict[str, Any], documents: list[Any], ranked: list[Ranked]) -> Any:
    scores = [
        {"document": text_of(documents[each.index]), "score": each.score, "selection": each.selection}
        for each in ranked
    ]
    return {"scores": scores}


def text_of(document: Any) -> Any:
    """Return what stands for a document: the string or number itself, or an object's ``id`` or ``text``."""
    if type(document) is dict:
        return document["id"] if document.get("id") is not None else document.get("text")
    return document


_ANSWERS: dict[str, Callable[[dict[str, Any], list[Any], list[Ranked]], Any]] = {
    "tei": _tei,
    "cohere": _cohere,
    "elasticsearch": _elasticsearch,
    "weaviate": _weaviate,
}
