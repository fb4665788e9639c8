"""What helps to look at picks: the texts of documents, the vector of a text, and MMR at every λ."""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from pydantic import BaseModel

from ..._base.arrays import HOST
from ..._base.warn import muted
from ...selection import mmr_path, quotas
from ...selection.nearest import nearest_earlier
from ...selection.relevance import scaled
from ...selection.validate import PoolSizeWarning, listed
from ..corpora import Served
from ..fields import OF_PATH
from ..http import schemas
from ..http.messages import JSON, Request, Response, json_response, object_of, refuse_url
from ..kernel import Block, argument_of, host, placed
from ..limits import Limits, RefusedError, invalid, shown
from ..queries.reading import read

if TYPE_CHECKING:
    from ..service import Service

_SEGMENTS = 64  # that are measured at a time
# What limits the picks.
_LIMITS = tuple(each.name for each in OF_PATH if each.kind in ("number", "count") and each.name != "lambda_b")


def add(service: Service) -> None:
    """Add the routes to a service."""
    service.route(
        "POST",
        "/v1/texts",
        lambda request: texts(service, request),
        summary="Texts of documents, given by their ids",
        body={JSON: schemas.TextsRequest},
        answers={200: schemas.TextsResponse},
    )
    service.route(
        "POST",
        "/v1/path",
        lambda request: path(service, request),
        summary="Every selection that MMR makes of a query, with its range of lambda_d",
        body={JSON: schemas.PathRequest},
        answers={200: schemas.PathResponse},
    )
    service.route(
        "POST",
        "/v1/encode",
        lambda request: encode(service, request),
        summary="The vector of a text, where the server has an encoder",
        body={JSON: schemas.EncodeRequest},
        answers={200: schemas.EncodeResponse},
        errors=(401, 408, 413, 415, 422, 429, 500, 502, 503, 504),
    )


def asked_for(op: str, value: Any, served: Served) -> int | None:
    """Return how many characters of each text a request wants: true, all of them (0); None: no texts."""
    if value is None or value is False:
        return None
    if value is not True and (type(value) is not int or value < 1):
        raise invalid(op, "texts", "be true, or how many characters, at least 1", shown(value))
    if served.texts is None:
        raise invalid(op, "texts", f"be left out: corpus {served.name!r} has no texts here", shown(value))
    return 0 if value is True else value


def texts_of(served: Served, rows: np.ndarray, chars: int, limits: Limits) -> list[dict[str, Any] | None]:
    """Return the texts of rows as JSON has them, null where there is none; with ``chars`` 0 they are whole."""
    if len(rows) > limits.candidates:
        raise RefusedError(413, f"select: texts must be at most {limits.candidates}, got {len(rows)}", "texts")
    assert served.texts is not None
    found = served.texts.read(rows, chars or None, limits.body_bytes)
    return [None if text is None else text._asdict() for text in found]


async def _content(op: str, request: Request, model: type[BaseModel]) -> dict[str, Any]:
    request.check_type(op, JSON)
    refuse_url(op, request.scope["query_string"])
    return object_of(op, await request.body(), model.model_fields)


async def texts(service: Service, request: Request) -> Response:
    """Answer ``/v1/texts``: the text of each id, null where there is none."""
    deadline = request.deadline()
    content = await _content("texts", request, schemas.TextsRequest)
    served, limits = service.corpora.get(content.get("corpus"), "texts"), service.limits
    ids, chars = content.get("ids"), content.get("chars")
    kind = str if served.named else int
    if type(ids) is not list or len(ids) > limits.candidates or any(type(each) is not kind for each in ids):
        rule = f"be a list of 0 to {limits.candidates} ids, {'strings' if served.named else 'integers'} in this corpus"
        raise invalid("texts", "ids", rule, f"a list of {len(ids)}" if type(ids) is list else shown(ids))
    if not served.named and (beyond := [each for each in ids if not -(2**63) <= each < 2**63]):
        raise invalid("texts", "ids", "be integers of 64 bits", beyond[0])
    if chars is not None and (type(chars) is not int or chars < 1):
        raise invalid("texts", "chars", "be an integer of at least 1", shown(chars))
    asked_for("texts", True, served)  # refuses a corpus without
    request.asks(served.name, 1)
    request.stage("read")
    rows = served.rows_of(ids if served.named else np.array(ids, np.int64))
    found = await service.look(deadline, texts_of, served, rows, chars or 0, limits)
    request.stage("texts")
    body = orjson.dumps({"texts": found})
    request.holds(len(body))
    return Response(body)


async def encode(service: Service, request: Request) -> Response:
    """Answer ``/v1/encode``: the vector of a text, as ``query`` takes it."""
    deadline = request.deadline()
    content = await _content("encode", request, schemas.EncodeRequest)
    served, text = service.corpora.get(content.get("corpus"), "encode"), content.get("text")
    if service.encoder is None:
        raise invalid("encode", "text", "be sent to a server with an encoder", "one without")
    if type(text) is not str:
        raise invalid("encode", "text", "be a string", shown(text))
    request.asks(served.name, 1)
    request.stage("read")
    vector = np.array(await service.encoder.encode(text, served.dims, deadline, "encode"), "<f4")
    request.stage("encode")
    coded = base64.b64encode(vector.tobytes()).decode()
    return json_response({"query": {"b64": coded, "shape": [len(vector)], "dtype": "float32"}})


async def path(service: Service, request: Request) -> Response:
    """Answer ``/v1/path``: the segments of a query's path, with what each pick had when it was made."""
    deadline, limits = request.deadline(), service.limits
    content = await _content("path", request, schemas.PathRequest)
    served = service.corpora.get(content.pop("corpus", None), "path")
    most = replace(limits, k=min(limits.k, limits.path_k), pool=min(limits.pool, limits.path_pool))
    asked = read("path", [content], {}, served, most)
    asked.raise_error()
    [block] = asked.blocks
    k, pool = block.most, block.pool
    if block.request.candidates is not None:
        pool = block.request.candidates.shape[1]
    items, shown = served.rows if pool is None else pool, len(_shown(block))
    if items + shown > limits.path_pool:
        name = "candidates" if block.request.candidates is not None else "pool"
        got = "the whole corpus" if pool is None else f"{pool}{f' and {shown}' if shown else ''}"
        raise invalid("path", name, f"be at most {limits.path_pool}{' with initial items' if shown else ''}", got)
    request.asks(served.name, 1)
    request.stage("read")
    segments = await service.look(deadline, segments_of, block, k)
    request.stage("path")
    body = orjson.dumps({"segments": segments}, option=orjson.OPT_SERIALIZE_NUMPY)
    request.holds(len(body))
    return Response(body)


def segments_of(block: Block, k: int) -> list[dict[str, Any]]:
    """Return the path of a block's only query.

    The rows of its pool are taken out of the corpus as float32, wherever and however they are stored there.
    """
    served, corpus, request = block.served, block.served.corpus, block.request
    rows, given = _pool(block)
    if not (n := len(rows)):
        return []
    initial = np.zeros(0, np.int64) if request.initial is None else request.initial[0]
    held = np.concatenate([rows, np.setdiff1d(initial[initial >= 0], rows)])
    order = np.argsort(held)
    shown = np.where(initial >= 0, order[np.searchsorted(held, initial, sorter=order)], -1)
    before = np.unique(shown[shown >= 0])
    vectors = served.vectors_of(held)
    query = None if request.queries is None else np.asarray(request.queries, np.float32)
    if query is not None and corpus.metric == "cosine" and (norm := np.linalg.norm(query)) > 0:
        query = query / norm
    columns = {name: _column(corpus, name, held) for name in ("bias", "groups", "costs")}
    try:
        with muted(PoolSizeWarning):
            found = mmr_path(
                query,
                vectors,
                k,
                candidates=np.arange(n)[None],
                relevance=None if given is None else given[None],
                initial=before[None] if len(before) else None,
                bias=columns["bias"],
                lambda_b=float(np.max(request.lambda_b)),
                groups=None if request.max_per_group is None else columns["groups"],
                costs=None if request.budget is None else columns["costs"],
                metric="dot",
                num_threads=1,
                **{name: quotas.by_number(getattr(request, name), corpus.group_names) for name in _LIMITS},
            )
    except ValueError as error:
        raise RefusedError(422, str(error), argument_of(str(error))) from error
    relevance = given if query is None else vectors[:n] @ query[0]
    assert relevance is not None
    if columns["bias"] is not None:
        weight = np.float32(np.max(request.lambda_b))
        relevance = weight * relevance + (1 - weight) * columns["bias"][:n]
    picks, segments = np.asarray(found.indices), []
    likeness, nearest = _likeness(vectors, picks, shown)
    ends = found.low.tolist(), found.high.tolist()
    for low, high, picked, like, near in zip(*ends, picks, likeness, nearest, strict=True):
        places = picked[picked >= 0]
        segments.append(
            {
                "low": low,
                "high": high,
                "ids": served.ids_of(rows[places]).tolist(),
                "relevance": relevance[places],
                "redundancy": like[: len(places)],
                "nearest": near[: len(places)],
            }
        )
    return segments


def _pool(block: Block) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the rows (P,) that a block's only query picks from, and their relevance (P,) float32 if it is given."""
    corpus, request = block.served.corpus, block.request
    if request.candidates is not None:
        rows: np.ndarray = request.candidates[0]
        kept = rows >= 0
        _refuse_repeated(block, rows[kept])
        if request.allowed is not None:
            kept &= np.isin(rows, request.allowed[0])
        if request.exclude is not None:
            kept &= ~np.isin(rows, request.exclude[0])
        relevance = request.relevance
        if relevance is not None and request.relevance_scale != "as-is":
            relevance = scaled(relevance, request.candidates, None, request.relevance_scale, HOST)
        return rows[kept], None if relevance is None else relevance[0, kept]
    found = corpus.search(
        placed(corpus, request.queries),
        min((block.pool or len(corpus)) + len(_shown(block)), max(1, corpus.num_live)),
        lambda_b=placed(corpus, request.lambda_b),
        allowed=placed(corpus, request.allowed),
        exclude=placed(corpus, request.exclude),
        num_threads=1,
    )
    found_rows: np.ndarray = host(found.indices)[0]
    return found_rows[found_rows >= 0], None


def _shown(block: Block) -> np.ndarray:
    """Return the rows that a block's only query has shown before."""
    initial = block.request.initial
    rows: np.ndarray = np.zeros(0, np.int64) if initial is None else initial[0]
    return rows[rows >= 0]


def _refuse_repeated(block: Block, rows: np.ndarray) -> None:
    try:
        listed("path", "candidates", rows, block.served.rows)
    except ValueError as error:
        raise RefusedError(422, block.named(0, str(error)), "candidates") from error


def _column(corpus: Any, name: str, rows: np.ndarray) -> np.ndarray | None:
    column = getattr(corpus, name)
    return None if column is None else host(column[placed(corpus, rows)])


def _likeness(vectors: np.ndarray, picks: np.ndarray, shown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest similarity of each pick (S, K) to those before it, 0 where there are none, and to which it is.

    ``shown``: the places of initial items; -1: none.
    """
    likeness, nearest = np.zeros(picks.shape, np.float32), np.zeros(picks.shape, np.int32)
    for begin in range(0, len(picks), _SEGMENTS):
        part = slice(begin, begin + _SEGMENTS)
        taken = np.concatenate([np.broadcast_to(shown, (len(picks[part]), len(shown))), picks[part]], axis=1)
        nearest[part], likeness[part] = nearest_earlier(taken, len(shown), partial(_to_earlier, vectors[taken]))
    likeness[nearest == -1] = 0
    return likeness, nearest


def _to_earlier(vectors: np.ndarray, column: int) -> np.ndarray:
    found: np.ndarray = np.einsum("qd,qtd->qt", vectors[:, column], vectors[:, :column], dtype=np.float64)
    return found
