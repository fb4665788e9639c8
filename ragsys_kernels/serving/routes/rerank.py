"""``/rerank``, ``/v1/rerank``, ``/v2/rerank``: selection for clients of rerank services, with ids as documents.

These clients send texts and sort them by the scores of the answer. Here the texts are ids of the corpus, and the scores
fall strictly in the order of the picks, so that sorting keeps that order; documents that were not picked come last. The
answer does not depend on the order of the documents: candidates are sorted by id.

    model   corpus:rule:lambda_d, as docs:mmr:0.7; or in the path, /models/docs:mmr:0.7/rerank, for those that send none
    query   an id of the corpus, base64 of a vector, or text where the server has an encoder
    k       top_n; without it every document is ranked, up to the limit of k
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ...corpus.ids import integer
from ...selection import METHODS
from ...selection.parameters import BY_NAME
from ..asked import Asked
from ..corpora import NOTHING, Corpora, Served
from ..fields import LISTS_OF_RERANK, OF_RERANK
from ..http import schemas
from ..http.messages import JSON, Request, Response, json_response, object_of, refuse_url, url_parameters
from ..limits import UNKNOWN_CORPUS, Limits, RefusedError, invalid, shown
from ..queries.reading import read
from ..queries.rules import FIELDS, rules_of
from . import rerank_shapes as shapes
from .select import LARGE_BODY

if TYPE_CHECKING:
    from ..service import Service

_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank", "/models/{model}/rerank")
# Fields of ``/v1/select`` that a body may have; other fields, of the clients' own services, are ignored.
_RULES = ("method", "unknown", *OF_RERANK)
_FIELDS = ("query_id", *LISTS_OF_RERANK)
_OURS = FIELDS.union(BY_NAME)
# Parameters of the URL, for clients that cannot choose their body.
_OF_URL = ("model", "top_n", "pool_size", "unknown")
_INTEGERS = re.compile(r"(?:0|-?[1-9][0-9]{0,17})(?:,(?:0|-?[1-9][0-9]{0,17}))*\Z")
_NAMED = 5  # ids that an error names


def add(service: Service) -> None:
    """Add the routes to a service."""
    for path in _PATHS:
        service.route(
            "POST",
            path,
            lambda request: rerank(service, request),
            summary="Rank documents, given by their ids, by how good they are together",
            body={JSON: schemas.RerankRequest},
            answers={200: schemas.RerankAnswer},
            errors=(401, 408, 413, 415, 422, 429, 500, 502, 503, 504),
            tags=("rerank",),
        )


class Reranking:
    """A request that has been read, and the position of each candidate in it."""

    def __init__(self, content: dict[str, Any], corpora: Corpora, limits: Limits) -> None:
        self.content, self._limits = content, limits
        self.shape, self.documents = shapes.shape_of(content)
        if len(self.documents) > limits.candidates:
            raise invalid("rerank", "documents", f"be 0 to {limits.candidates} ids", len(self.documents))
        if (size := _count(content, "pool_size")) is not None and size > len(self.documents):
            rule = f"be at most the number of documents, {len(self.documents)}"
            why = "picks of a slice are not those of the pool; send it whole (larger client batches)"
            raise invalid("rerank", "pool_size", rule, f"{size}: {why}")
        self.served, self.common = rule_of(content.get("model"), corpora)
        _refuse_others(content)
        for name in _RULES:
            if (value := content.get(name)) is not None:
                agree("rerank", self.common, name, value)
        self._query = {name: content[name] for name in _FIELDS if content.get(name) is not None}
        self.unknown: list[int] = []  # documents that the corpus does not have, by their places
        skips = rules_of("rerank", self.common, self.served, limits).shared({}).skips
        ids = self._ids(skips)
        self._first: dict[Any, int] = dict(zip(ids, range(len(ids)), strict=True))  # where each stands in the request
        self._repeats: list[tuple[Any, int]] = []
        if len(self._first) < len(ids) or None in self._first:
            self._first.clear()
            for index, each in enumerate(ids):
                if each is None:
                    self.unknown.append(index)
                elif self._first.setdefault(each, index) != index:
                    self._repeats.append((each, index))
        self.candidates = sorted(self._first)
        rows = self.served.rows_of(self.candidates if self.served.named else np.array(self.candidates, np.int64))
        if rows.size and rows.min() < 0:
            unknown = {x for x, row in zip(self.candidates, rows.tolist(), strict=True) if row < 0}
            if not skips:
                raise self._unknown(sorted(unknown))
            self.unknown = sorted({*self.unknown, *(i for i, each in enumerate(ids) if each in unknown)})
            self.candidates = [each for each in self.candidates if each not in unknown]
            self._repeats = [(each, i) for each, i in self._repeats if each not in unknown]
        most = max(1, min(len(self.candidates), limits.k))
        top_n = _count(content, "top_n")
        self.k = most if top_n is None else min(top_n, most)

    def text(self, encodes: bool) -> str | None:
        """Return the query if it is a text for the encoder; read it here otherwise."""
        given, query = self.content.get("query"), self._query
        if "query_id" in query:
            return None
        if type(given) is not str:
            query["query_id" if type(given) is int else "query"] = given
        elif given.startswith("id:"):
            query["query_id"] = self._id(given[3:])
            if query["query_id"] is None:
                raise invalid("rerank", "query", f"be an id of corpus {self.served.name!r}", shown(given[3:]))
        elif not encodes and (each := self._id(given)) is not None and self.served.rows_of([each])[0] >= 0:
            query["query_id"] = each
        elif dtype := self._dtype_of(given):
            query["query"] = {"b64": given, "dtype": dtype}
        elif encodes:
            return given
        else:
            rule = f"be an id of corpus {self.served.name!r} or base64 of {self.served.dims} float32 or float16"
            raise invalid("rerank", "query", f"{rule}: text needs a server with an encoder", shown(given))
        return None

    def asked(self, vector: list[float] | None) -> Asked:
        """Return the query in the form of the kernels."""
        query = {"candidates": self.candidates, "k": self.k, **self._query}
        if vector is not None:
            query["query"] = vector
        asked = read("rerank", [query], self.common, self.served, self._limits)
        for error in asked.errors.values():
            raise shapes.in_its_words(error, self.content)
        return asked

    def ranked(self, picks: Any) -> list[shapes.Ranked]:
        """Return the documents of the answer in their order: the picks, and the others where the shape has them."""
        n, total = int(picks.lengths[0]), len(self.documents)
        picked = self.served.ids_of(picks.indices)[0, :n].tolist()
        columns = [array[0, :n].tolist() for array in (picks.scores, picks.relevance, picks.redundancy)]
        found = []
        for place, (each, *values) in enumerate(zip(picked, *columns, strict=True)):
            found.append((self._first[each], (total - place) / total, _selection(each, True, *values)))
        if shapes.has_picks_alone(self.shape, self.content):
            return found
        known = set(picked)
        rest = [(each, self._first[each]) for each in self.candidates if each not in known]
        rest += sorted(self._repeats)  # a repeated id is picked once
        rest += [(shapes.text_of(self.documents[index]), index) for index in self.unknown]
        for place, (each, index) in enumerate(rest, n):
            found.append((index, (total - place) / total, _selection(each, False)))
        return found

    def _ids(self, skips: bool) -> list[Any]:
        """Return the ids that documents stand for; with ``skips`` None for what cannot be one, which is unknown."""
        texts, kinds = self.documents, set(map(type, self.documents))
        if dict in kinds:
            texts = [shapes.text_of(document) for document in self.documents]
            kinds = set(map(type, texts))
        if not kinds <= {str, int}:
            got = next(x for x in texts if type(x) not in (str, int))
            raise invalid("rerank", "documents", "be ids, or objects with id or text", shown(got))
        if not self.served.named and kinds == {str} and _INTEGERS.match(",".join(texts)):  # one look at all of them
            with suppress(ValueError):  # a text had a comma
                return list(map(int, texts))
        ids = list(map(self._id, texts))
        if None in ids and not skips:
            raise self._unknown([x for x, each in zip(texts, ids, strict=True) if each is None])
        return ids

    def _id(self, each: Any) -> Any:
        """Return the id that a document or a query stands for; None: it cannot be one."""
        if self.served.named:
            return str(each)
        if type(each) is str:
            return integer(each)
        return each if -(2**63) <= each < 2**63 else None

    def _dtype_of(self, text: str) -> str | None:
        """Return the type of the vector that a string is the base64 of, if it is one."""
        for dtype, size in (("float32", 4), ("float16", 2)):
            if len(text) == 4 * ((self.served.dims * size + 2) // 3) and _is_base64(text):
                return dtype
        return None

    def _unknown(self, ids: list[Any]) -> RefusedError:
        named = ", ".join(shown(x) for x in ids[:_NAMED]) + (", .." if len(ids) > _NAMED else "")
        rule = f"be ids of corpus {self.served.name!r}"
        return invalid("rerank", "documents", rule, f"{len(ids)} unknown: {named}")


def _count(content: dict[str, Any], name: str) -> int | None:
    """Return a field that is a number of documents, None where it is not given."""
    value: int | None = content.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise invalid("rerank", name, "be an integer of at least 1", shown(value))
    return value


def _cut(name: str) -> list[str]:
    """Return a name without its underscores, and without each of its letters."""
    word = name.replace("_", "").lower()
    return [word, *(word[:i] + word[i + 1 :] for i in range(len(word)))]


# Fields of `/v1/select` without one of their letters; short ones are near to words of other services.
_NEAR = {cut: name for name in sorted(_OURS, reverse=True) if len(name) > 4 for cut in _cut(name)}


def _refuse_others(content: dict[str, Any]) -> None:
    """Refuse fields of ``/v1/select`` that are not taken here, and names that are a letter away from one."""
    for name, value in content.items():
        if value is None or name in schemas.RerankRequest.model_fields:
            continue
        if name in _OURS:
            raise invalid("rerank", name, "be left out: rerank has none", shown(value))
        if len(name) < 20 and (near := next((_NEAR[cut] for cut in _cut(name) if cut in _NEAR), None)):
            raise invalid("rerank", name, f"be left out: the field is {near!r}", shown(value))


def agree(op: str, rule: dict[str, Any], name: str, value: Any) -> None:
    """Add an argument to the rule of a model's name, which may not say otherwise."""
    if rule.setdefault(name, value) != value:
        raise invalid(op, name, f"be left out, or {rule[name]!r} as in the model", shown(value))


def rule_of(model: Any, corpora: Corpora, vectors: bool = False) -> tuple[Served, dict[str, Any]]:
    """Return the corpus and the rule of a model's name: ``docs:mmr:0.7``, its end left out as wanted.

    With ``vectors`` there is a model of queries that come with these.
    """
    known = [served.name for served in corpora.all()]
    if model is None and len(known) == 1:
        return corpora.get(known[0]), {}
    name, *rest = model.split(":") if isinstance(model, str) else [""]
    if name not in known + [NOTHING] * vectors:
        listed = ", ".join(map(repr, known + [NOTHING] * vectors)) or "of the server, which has none"
        raise invalid(
            "rerank", "model", f"be corpus:rule:lambda_d with one of the corpora {listed}", shown(model), UNKNOWN_CORPUS
        )
    served, common = corpora.get(name), dict[str, Any]()
    if len(rest) > 2 or (rest and rest[0] not in METHODS):
        raise invalid("rerank", "model", "be corpus:rule:lambda_d", shown(model))
    if len(rest) == 2 and "lambda_d" not in METHODS[rest[0]].parameters:
        raise invalid("rerank", "model", f"have no lambda_d behind {rest[0]}", shown(model))
    if rest:
        common["method"] = rest[0]
    if len(rest) == 2:
        try:
            common["lambda_d"] = float(rest[1])
        except ValueError:
            common["lambda_d"] = -1.0
        if not 0 <= common["lambda_d"] <= 1:
            raise invalid("rerank", "model", "have a number within [0, 1] as its lambda", shown(model))
    return served, common


async def rerank(service: Service, request: Request) -> Response:
    """Answer a request."""
    request.check_type("rerank", JSON)
    deadline = request.deadline()
    body = await request.body()
    request.stage("read")
    large = len(body) > LARGE_BODY
    wanted = await service.beside(large, _parsed, body, _outside(request), service)
    request.asks(wanted.served.name, 1)
    vector = None
    if (text := wanted.text(service.encoder is not None)) is not None:
        assert service.encoder is not None
        vector = await service.encoder.encode(text, wanted.served.dims, deadline, "rerank")
        request.stage("encode")
    asked = await service.beside(large, wanted.asked, vector)
    if wanted.unknown:
        service.metrics.skipped.labels(wanted.served.name).inc(len(wanted.unknown))
    await service.answer(asked, request, deadline)
    asked.raise_error()
    answer = shapes.answer(wanted.shape, wanted.content, wanted.documents, wanted.ranked(asked.picks[0]))
    try:
        response = json_response(answer)
    except TypeError:  # of documents that are returned: what can be read is deeper than what can be written
        rule = "be at most 250 objects and lists deep to be returned"
        raise invalid("rerank", "documents", rule, "one that is deeper") from None
    request.stage("write")
    return response


def _parsed(body: bytes, outside: dict[str, Any], service: Service) -> Reranking:
    content = object_of("rerank", body)
    for name, value in outside.items():
        if content.get(name) is None:
            content[name] = value
    try:
        return Reranking(content, service.corpora, service.limits)
    except RefusedError as error:
        raise shapes.in_its_words(error, content) from None


def _outside(request: Request) -> dict[str, Any]:
    """Return fields from the path, the URL and the headers, for bodies that lack them."""
    found: dict[str, Any] = {}
    query: bytes = request.scope["query_string"]
    refuse_url("rerank", query, _OURS.difference(_OF_URL))
    for name, value in url_parameters("rerank", query).items():
        if name in _OF_URL:
            found[name] = value
    if "model" in request.path_params:
        found["model"] = request.path_params["model"]
    if (size := request.headers.get(b"x-pool-size")) is not None:
        found["pool_size"] = size.decode("latin-1")
    for name in ("top_n", "pool_size"):
        if name in found:
            if not found[name].isdecimal() or len(found[name]) > 18:
                raise invalid("rerank", name, "be an integer of at least 1", shown(found[name]))
            found[name] = int(found[name])
    return found


def _selection(
    each: Any, picked: bool, score: float | None = None, relevance: float | None = None, redundancy: float | None = None
) -> dict[str, Any]:
    return {"id": each, "picked": picked, "score": score, "relevance": relevance, "redundancy": redundancy}


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True
