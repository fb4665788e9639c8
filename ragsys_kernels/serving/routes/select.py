"""``POST /v1/select`` in JSON: many queries a request, an answer or an error for each."""

from __future__ import annotations

import asyncio
import binascii
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ...selection.problem import Selection
from ..asked import Asked, status_of
from ..corpora import Corpora, Served
from ..fields import LACKS
from ..http import schemas
from ..http.messages import ARROW, JSON, Request, Response, object_of, refuse_url
from ..kernel import Block, split
from ..limits import Limits, RefusedError, failed, invalid, shown
from ..queries.cursors import encoded
from ..queries.reading import read
from ..queries.rules import OF_URL
from ..together import Party
from .explore import asked_for, texts_of

if TYPE_CHECKING:
    from ..service import Service

# Larger bodies, and requests of more queries, are read and answered in a thread: they would hold up the event loop.
LARGE_BODY, MANY_QUERIES = 1 << 18, 256
# Smaller ones of few queries go together with others.
_SMALL, _FEW = 1 << 14, 4

_OPTION = orjson.OPT_SERIALIZE_NUMPY
_PART = 1 << 20  # bytes of an answer that are joined at a time


def add(service: Service) -> None:
    """Add the route to a service."""
    service.route(
        "POST",
        "/v1/select",
        lambda request: select(service, request),
        summary="Pick, for each query, the items that are best together",
        body={JSON: schemas.SelectRequest, ARROW: None},
        url=dict.fromkeys(OF_URL, schemas.SelectRequest),
        answers={200: schemas.SelectResponse},
        failed=schemas.SelectResponse,
    )


async def select(service: Service, request: Request) -> Response:
    """Answer a request."""
    if request.check_type("select", JSON, ARROW) == ARROW:
        from .select_arrow import select_arrow

        return await select_arrow(service, request)
    refuse_url("select", request.scope["query_string"])  # rules of Arrow stand there
    deadline = request.deadline()
    body = await request.body()
    request.stage("read")
    share = shared(service, request, body)
    if share is not None:
        try:
            await share.party.wait()
        except asyncio.CancelledError:
            share.party.leave()
            raise
        return share.response()
    queries = 0
    if len(body) > _SMALL:
        # If the queue has no room, refuse the request unread: parsing it would delay those that wait.
        queries = min(body.count(b'"query'), service.limits.queries)
        service.batcher.check_room(queries)
    large = len(body) > LARGE_BODY or queries > MANY_QUERIES
    asked = await service.beside(large, parsed, body, service.corpora, service.limits)
    await service.answer(asked, request, deadline)
    found = None
    if asked.chars is not None:
        found = await service.look(deadline, picked_texts, asked, service.limits)
        request.holds(asked.nbytes + sum(len(each["text"]) for each in found if each is not None))
        request.stage("texts")
    content = await service.beside(asked.count > MANY_QUERIES, written, asked, found)
    request.stage("write")
    return Response(content, asked.status)


class Share:
    """The part of one request in a party."""

    def __init__(self, request: Request, party: Party, begin: int, end: int) -> None:
        self._request, self.party, self._begin, self._end = request, party, begin, end

    def response(self) -> Response:
        """Return the answer, or raise the error of the party, which has ended."""
        party, request, begin, end = self.party, self._request, self._begin, self._end
        error = party.error or party.failed.get(begin)
        if error is not None:
            raise error
        ticket = party.ticket
        assert ticket is not None
        request.kernel(ticket.begun - ticket.submitted, ticket.kernel)
        if party.texts is None:
            party.texts = texts(party.asked)
        results, status = party.texts[begin:end], 200
        if party.asked.errors:
            own = {i: why for i in range(end - begin) if (why := party.asked.errors.get(begin + i)) is not None}
            for i, why in own.items():
                results[i] = _failed(why, i)
            if len(own) == len(results):
                status = status_of(own.values())
        content = b'{"results":[%b]}' % b",".join(results)
        request.stage("write")
        return Response(content, status)


def shared(service: Service, request: Request, body: bytes) -> Share | None:
    """Join a small request with others of this round of the event loop; None: it is answered by itself."""
    # A request with its own deadline must be dropped separately when it is late.
    if len(body) > _SMALL or b"x-timeout-ms" in request.headers or request.content_type not in (b"", JSON):
        return None
    if query := request.scope["query_string"]:
        refuse_url("select", query)
    served, queries, common = taken(body, service.corpora, service.limits)
    if len(queries) > _FEW or "texts" in common:
        return None
    request.asks(served.name, len(queries))
    request.stage("parse")
    return Share(request, *service.together.join(queries, common, served))


def taken(body: bytes, corpora: Corpora, limits: Limits) -> tuple[Served, list[Any], dict[str, Any]]:
    """Return the corpus, the queries and the other fields of a body."""
    content = object_of("select", body)
    queries = content.pop("queries", None)
    if type(queries) is not list or not 1 <= len(queries) <= limits.queries:
        got = len(queries) if type(queries) is list else shown(queries)
        raise invalid("select", "queries", f"be a list of 1 to {limits.queries} queries", got)
    return corpora.without(content.pop("corpus", None)), queries, content


def parsed(body: bytes, corpora: Corpora, limits: Limits) -> Asked:
    """Return what a body asks for."""
    served, queries, common = taken(body, corpora, limits)
    chars = asked_for("select", common.pop("texts", None), served)
    asked = read("select", queries, common, served, limits)
    asked.chars = chars
    return asked


def written(asked: Asked, found: list[Any] | None = None) -> list[bytes]:
    """Return the parts of the answer as JSON. Floats have the digits of float32; what is not finite is null.

    ``found`` are the texts of all picks, one after the other.
    """
    results = texts(asked)
    if found is not None:
        begin = 0
        for block, picked in asked.answered():
            for position, length in zip(block.positions, picked.lengths.tolist(), strict=True):
                some = orjson.dumps(found[begin : begin + length])
                results[position] = b'%b,"texts":%b}' % (results[position][:-1], some)
                begin += length
    for position, error in asked.errors.items():
        results[position] = _failed(error, position)
    parts, begin, size = [b'{"results":['], 0, 0
    for end, result in enumerate(results, 1):
        size += len(result)
        if size > _PART or end == len(results):
            parts.append(b",".join([b""] * bool(begin) + results[begin:end]))
            begin, size = end, 0
    return [*parts, b"]}"]


def picked_texts(asked: Asked, limits: Limits) -> list[Any]:
    """Return the texts of all picks, one after the other."""
    assert asked.chars is not None
    rows = []
    for block, picked in asked.answered():
        places = picked.indices[picked.indices >= 0]
        rows.append(places if block.given is None else np.full_like(places, -1))
    return texts_of(asked.served, np.concatenate([*rows, np.zeros(0, np.int64)]), asked.chars, limits)


def texts(asked: Asked) -> list[bytes]:
    """Return the answer to each query as JSON, empty for those with an error."""
    results: list[bytes] = [b""] * asked.count
    for block, picked in asked.answered():
        try:
            found = [_single(block, picked)] if len(block) == 1 else _texts(block, picked)
        except Exception:
            found = _each(asked, block, picked)
        for position, text in zip(block.positions, found, strict=True):
            results[position] = text
    return results


def _each(asked: Asked, block: Block, picks: Selection) -> list[bytes]:
    """Write a block that cannot be written as a whole query by query; a query that fails alone gets an error."""
    found = []
    each = [block[q : q + 1] for q in range(len(block))]
    for q, picked in enumerate(split(picks, each)):
        try:
            found.append(_single(each[q], picked))
        except Exception as error:
            asked.errors[block.positions[q]] = failed("select: writing an answer", error)
            found.append(b"")
    return found


def _failed(error: RefusedError, index: int) -> bytes:
    return orjson.dumps({"error": {"index": index, **error.body["error"]}})


def _single(block: Block, picks: Selection) -> bytes:
    """Return the answer to a query alone; `_texts` is quicker from two on."""
    n = int(picks.lengths[0])
    ids = block.ids_of(picks.indices)[0, :n]
    answer = {
        "ids": ids if ids.dtype.kind != "O" else ids.tolist(),
        "scores": picks.scores[0, :n],
        "relevance": picks.relevance[0, :n],
        "redundancy": picks.redundancy[0, :n],
        "certified": None if picks.certified is None else bool(picks.certified[0]),
        "cursor": None,
    }
    if block.request.budget is not None:
        answer["cost"] = float(picks.cost[0])
    if picks.nearest is not None:
        answer["nearest"] = picks.nearest[0, :n]
    if picks.unmet is not None:
        answer["unmet"] = picks.unmet[0]
    if n == block.k and _has_pages(block):
        seen = ids
        if block.request.initial is not None:
            seen = np.concatenate([block.shown(0), ids])
        answer["cursor"] = encoded(seen)
    if block.skipped:
        answer["skipped"] = block.skipped[0]
    return orjson.dumps(answer, option=_OPTION)


def _texts(block: Block, picks: Selection) -> list[bytes]:
    """Return the answer of each query of a block."""
    lengths = picks.lengths.tolist()
    ids = block.ids_of(picks.indices)
    columns = [_lists(array, lengths) for array in (ids, picks.scores, picks.relevance, picks.redundancy)]
    cursors = _cursors(block, picks, ids, lengths)
    more = [b""] * len(lengths)
    if block.request.budget is not None:
        more = [b',"cost":%b' % orjson.dumps(cost) for cost in picks.cost.tolist()]
    if picks.nearest is not None:
        nearest = _lists(picks.nearest, lengths)
        more = [b'%b,"nearest":%b' % each for each in zip(more, nearest, strict=True)]
    for query, lacking in enumerate(picks.unmet or ()):
        more[query] += b',"unmet":%b' % orjson.dumps(lacking)
    for query, names in (block.skipped or {}).items():
        more[query] += b',"skipped":%b' % orjson.dumps(names)
    certified = [b"null"] * len(lengths)
    if picks.certified is not None:
        certified = [b"true" if proven else b"false" for proven in picks.certified.tolist()]
    return [
        b'{"ids":%b,"scores":%b,"relevance":%b,"redundancy":%b,"certified":%b,"cursor":%b%b}' % fields
        for fields in zip(*columns, certified, cursors, more, strict=True)
    ]


def _lists(array: np.ndarray, lengths: list[int]) -> list[bytes]:
    """Return the first values of each row as JSON."""
    if array.dtype == object:
        return [orjson.dumps(row[:n].tolist()) for row, n in zip(array, lengths, strict=True)]
    array = np.ascontiguousarray(array)
    if min(lengths) == array.shape[1]:  # one call for all rows, then cut between them
        return orjson.dumps(array, option=_OPTION)[1:-1].replace(b"],[", b"]\n[").split(b"\n")
    return [orjson.dumps(row[:n], option=_OPTION) for row, n in zip(array, lengths, strict=True)]


def _has_pages(block: Block) -> bool:
    """Return whether the rule takes what was shown before, which a cursor holds."""
    return "cursor" not in LACKS[block.request.op]


def _cursors(block: Block, picks: Selection, ids: np.ndarray, lengths: list[int]) -> list[bytes]:
    """Return the cursors to the next pages as JSON; null where there is nothing more."""
    if not _has_pages(block):
        return [b"null"] * len(lengths)
    full = (picks.lengths == block.k).tolist()
    if ids.dtype != object and block.request.initial is None:
        size, stored = ids.shape[1] * 8, np.ascontiguousarray(ids, "<i8").tobytes()
        parts = [stored[q * size : q * size + 8 * n] for q, n in enumerate(lengths)]
        text = binascii.b2a_base64
        return [b'"n%b"' % text(part, newline=False) if f else b"null" for part, f in zip(parts, full, strict=True)]
    found = []
    for q, n in enumerate(lengths):
        seen = ids[q, :n]
        if block.request.initial is not None:
            seen = np.concatenate([block.shown(q), seen])
        found.append(b'"%b"' % encoded(seen).encode() if full[q] else b"null")
    return found
