"""The requests and answers of rerank services, as their clients write and read them.

A shape is told by the field that holds the documents, whichever of the paths it comes to:

    texts                   text-embeddings-inference: a list of ``{index, score}``, every document in it
    documents               Cohere and Jina: ``results`` of ``{index, relevance_score}``, those of ``top_n``
    documents + property    Weaviate: ``scores`` of ``{document, score}``, every document in it
    input                   Elasticsearch's custom inference: ``rerank`` of ``{index, relevance_score}``
"""

from __future__ import annotations

import uuid
from typing import Any

from ..limits import RefusedError, invalid, shown

_KINDS = {"texts": "tei", "documents": "cohere", "input": "elasticsearch"}


# The index of a document, its score for clients, which sort by it, and the true values.
Ranked = tuple[int, float, dict[str, Any]]


def shape_of(content: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return the name of a request's shape, and its documents."""
    fields = [name for name in _KINDS if content.get(name) is not None]
    if len(fields) != 1:
        got = ", ".join(fields) or "none"
        raise invalid("rerank", "documents", "be given once, as documents, texts or input", got)
    documents = content[fields[0]]
    if type(documents) is not list:
        raise invalid("rerank", fields[0], "be a list of ids", shown(documents))
    shape = _KINDS[fields[0]]
    return ("weaviate" if shape == "cohere" and content.get("property") is not None else shape), documents


def in_its_words(error: RefusedError, content: dict[str, Any]) -> RefusedError:
    """Return an error by the name of the field that the request has the argument in."""
    given = [name for name in _KINDS if content.get(name) is not None]
    fields = {"documents": given[0]} if len(given) == 1 else {}
    if content.get("query_id") is None:
        fields["query_id"] = "query"
    if (name := fields.get(error.argument or "")) is None:
        return error
    message = str(error).replace(f" {error.argument} ", f" {name} ", 1)
    return RefusedError(error.status, message, name, code=error.code)


def has_picks_alone(shape: str, content: dict[str, Any]) -> bool:
    """Return whether an answer leaves out what was not picked: those with ``top_n``, where clients expect no more."""
    return shape in ("cohere", "elasticsearch") and content.get("top_n") is not None


def answer(shape: str, content: dict[str, Any], documents: list[Any], ranked: list[Ranked]) -> Any:
    """Return the body of an answer."""
    if shape == "weaviate":
        scores = [{"document": text_of(documents[i]), "score": score, "selection": true} for i, score, true in ranked]
        return {"scores": scores}
    name = "score" if shape == "tei" else "relevance_score"
    results: list[dict[str, Any]] = [{"index": i, name: score, "selection": true} for i, score, true in ranked]
    if shape == "elasticsearch":
        return {"rerank": results}
    if shape == "tei":
        for result in results if content.get("return_text") else ():
            result["text"] = text_of(documents[result["index"]])
        return results
    for result in results if content.get("return_documents") else ():
        document = documents[result["index"]]
        result["document"] = document if type(document) is dict else {"text": str(document)}
    return {
        "id": str(uuid.uuid4()),
        "model": content.get("model"),
        "results": results,
        "usage": {"total_tokens": 0},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }


def text_of(document: Any) -> Any:
    """Return what stands for a document: the string or number itself, or an object's ``id`` or ``text``."""
    if type(document) is dict:
        return document["id"] if document.get("id") is not None else document.get("text")
    return document
