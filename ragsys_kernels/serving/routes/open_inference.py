"""The Open Inference Protocol, version 2, of KServe and Triton Inference Server: every corpus is a model.

A model's name may go on with a rule, as that of ``/rerank``: ``docs``, ``docs:vrsd``, ``docs:mmr:0.7``. Its inputs are
the columns of the Arrow stream, one query a row; lists of different lengths are padded with -1, or with empty strings.
Its outputs are padded likewise, with NaN in the columns of numbers; ``errors`` has the reason of each query that was
not answered, and an empty string for the others; with ``unknown`` "skip", ``skipped`` has the unknown ids, with
``nearest`` ``nearest`` the places of the most similar earlier picks, with ``min_per_group`` ``unmet`` JSON of groups.
Rules for all queries are the parameters of a request; an object with numbers of groups is JSON text. The model
``vectors`` is of queries that come with the vectors of their candidates (``vectors``, padded as ``candidates`` are),
which any other model takes too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from ... import __version__
from ...selection.parameters import BY_GROUP
from ..asked import Asked
from ..corpora import Corpora, Served
from ..fields import ID_LISTS, NUMBERS, OF_ASPECTS, OF_CALL, OF_CANDIDATES, VECTORS, wording
from ..http import schemas
from ..http.messages import JSON, PROBLEM, Request, Response, json_response, number_of, refuse_url
from ..limits import Limits, RefusedError, invalid, shown
from ..queries.rules import FIELDS
from . import tensors
from .rerank import agree, rule_of
from .select import LARGE_BODY, MANY_QUERIES
from .select_arrow import asked_of, quota_of

if TYPE_CHECKING:
    from ..service import Service

_OCTETS = b"application/octet-stream"
_LENGTH = "inference-header-content-length"
# Rank of each input tensor.
_INPUTS = {
    "vector": 2,
    "query_id": 1,
    **dict.fromkeys(ID_LISTS, 2),
    "vectors": 3,
    **dict.fromkeys((*OF_CANDIDATES, *OF_ASPECTS), 2),
    **dict.fromkeys(VECTORS, 3),
    **dict.fromkeys(("k", "query_groups", *NUMBERS), 1),
}
_IDS = ("query_id", *ID_LISTS)
_RULES = ("method", "k", "pool", "unknown", *NUMBERS, *OF_CALL)
# Parameters that are of the protocol and its servers.
_OTHERS = {"binary_data_output", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
_OUTPUTS = ("ids", "scores", "relevance", "redundancy", "lengths", "errors", "skipped", "nearest", "unmet")
# Of these, what an argument asks for.
_ASKED_BY = {"nearest": "nearest", "unmet": "min_per_group"}


def add(service: Service) -> None:
    """Add the routes to a service."""

    async def about(request: Request) -> Response:
        content = {"name": "ragsys-kernels", "version": __version__, "extensions": ["binary_tensor_data"]}
        return json_response(content)

    async def live(request: Request) -> Response:
        return json_response({"live": True})

    async def ready(request: Request) -> Response:
        well = service.status == "ready"
        return json_response({"ready": well}, 200 if well else 503)

    async def model_ready(request: Request) -> Response:
        served, _ = _model(request, service.corpora)
        return json_response({"name": served.name, "ready": True})

    async def metadata(request: Request) -> Response:
        served, _ = _model(request, service.corpora)
        return json_response(_metadata(request.path_params["name"], served))

    async def answer(request: Request) -> Response:
        return await infer(service, request)

    def route(
        method: str, path: str, handler: Callable[[Request], Awaitable[Response]], summary: str, **more: Any
    ) -> None:
        service.route(
            method,
            path,
            _in_its_words(handler),
            summary=summary,
            tags=("open inference",),
            refused=schemas.Said,
            **more,
        )

    route("GET", "/v2", about, "The server's metadata", answers={200: None}, errors=(401, 500))
    for path, handler, summary in (
        ("/v2/health/live", live, "Whether the process answers"),
        ("/v2/health/ready", ready, "Whether requests should be sent here"),
    ):
        route("GET", path, handler, summary, answers={200: None}, errors=(500, 503))
        service.open.add(path)
    for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        route("GET", model, metadata, "A model's inputs and outputs", answers={200: None}, errors=(401, 404, 500))
        route(
            "GET", f"{model}/ready", model_ready, "Whether a model answers", answers={200: None}, errors=(401, 404, 500)
        )
        route(
            "POST",
            f"{model}/infer",
            answer,
            "Pick, for each query, the items that are best together",
            body={JSON: schemas.InferRequest, _OCTETS: None},
            answers={200: schemas.InferAnswer},
            errors=(401, 404, 408, 413, 415, 422, 429, 500, 503, 504),
        )


def _in_its_words(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler whose errors are of the protocol's form, a string."""

    async def handled(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusedError as error:
            if request.accepts(PROBLEM):
                raise
            return json_response({"error": str(error), "code": error.code}, error.status, error.headers)

    return handled


async def infer(service: Service, request: Request) -> Response:
    """Answer a request."""
    deadline = request.deadline()
    refuse_url("infer", request.scope["query_string"], FIELDS)
    served, rule = _model(request, service.corpora)
    length, json_bytes = request.headers.get(_LENGTH.encode()), None
    if length is not None and (json_bytes := number_of(length)) is None:
        raise invalid("infer", _LENGTH, "be the bytes of the JSON", repr(length)[:100])
    body = await request.body()
    request.stage("read")
    large = len(body) > LARGE_BODY
    content, asked = await service.beside(large, _parsed, body, json_bytes, rule, served, service.limits)
    wanted = _wanted(content, asked)
    await service.answer(asked, request, deadline)
    if len(asked.errors) == asked.count:
        code = next(each.code for each in asked.errors.values() if each.status == asked.status)
        raise RefusedError(asked.status, str(asked.errors[0]), asked.errors[0].argument, code=code)
    name = request.path_params["name"]
    response = await service.beside(asked.count > MANY_QUERIES, _written, name, content, wanted, asked)
    request.stage("write")
    return response


def _model(request: Request, corpora: Corpora) -> tuple[Served, dict[str, Any]]:
    """Return the corpus and the rule of the model in the path."""
    try:
        served, rule = rule_of(request.path_params["name"], corpora, True)
    except RefusedError as error:
        message = str(error).replace("rerank: model", "infer: name", 1)
        raise RefusedError(404, message, "name", code=error.code) from None
    version = request.path_params.get("version", served.version)
    if version != served.version:
        raise RefusedError(404, f"infer: version must be {served.version!r}, got {version[:100]!r}", "version")
    return served, rule


def _metadata(name: str, served: Served) -> dict[str, Any]:
    ids = "BYTES" if served.named else "INT64"
    inputs = []
    for each, rank in _INPUTS.items():
        shape = [-1] * rank
        if each in ("vector", "vectors", *VECTORS) and not served.nothing:
            shape[-1] = served.dims
        kind = ids if each in _IDS else "INT64" if each in ("k", "groups", "query_groups") else "FP32"
        inputs.append({"name": each, "datatype": kind, "shape": shape})
    kinds = {"ids": (ids, 2), "lengths": ("INT32", 1), "errors": ("BYTES", 1), "skipped": (ids, 2)}
    kinds |= {"nearest": ("INT32", 2), "unmet": ("BYTES", 1)}
    outputs = [(each, *kinds.get(each, ("FP32", 2))) for each in _OUTPUTS]
    return {
        "name": name,
        "versions": [served.version],
        "platform": "ragsys_kernels",
        "inputs": inputs,
        "outputs": [{"name": each, "datatype": kind, "shape": [-1] * rank} for each, kind, rank in outputs],
    }


def _parsed(
    body: bytes, json_bytes: int | None, rule: dict[str, Any], served: Served, limits: Limits
) -> tuple[dict[str, Any], Asked]:
    """Return a request's JSON and what it asks for."""
    content, given = tensors.message_of(body, json_bytes)
    if isinstance(each := content.get("id"), (list, dict)):  # the answer has it too
        raise invalid("infer", "id", "be a string", shown(each))
    common = dict(rule)
    for name, value in tensors.parameters_of(content).items():
        if name in BY_GROUP and type(value) is str:
            try:
                value = quota_of(value)
            except ValueError:
                raise invalid("infer", f"parameters.{name}", f"be {wording(OF_CALL[name])}", shown(value)) from None
        if name in _RULES:
            agree("infer", common, name, value)
        elif name not in _OTHERS:
            raise invalid("infer", f"parameters.{name[:100]}", f"be one of {', '.join(_RULES)}", shown(value))
    for name in given.keys() & rule.keys():
        others = given[name][given[name] != rule[name]]  # in the type of the tensor
        for value in others[:1].tolist():
            agree("infer", rule, name, value)
    return content, asked_of(_columns(given), common, served, limits)


def _columns(given: dict[str, np.ndarray]) -> pa.Table:
    """Return tensors as columns: lists without their padding."""
    for name, array in given.items():
        if name not in _INPUTS:
            raise invalid("infer", name[:100], f"be one of the inputs {', '.join(_INPUTS)}", "another")
        if array.ndim != _INPUTS[name]:
            raise invalid("infer", name, f"have {_INPUTS[name]} dimensions", array.ndim)
    counts = set(map(len, given.values()))
    if len(counts) > 1:
        raise invalid("infer", "inputs", "have one row a query", f"{sorted(counts)} rows")
    kept = {name: _real(given[name]) for name in ID_LISTS if name in given}
    columns: dict[str, pa.Array] = {}
    for name, array in given.items():
        if _INPUTS[name] == 1:
            columns[name] = pa.array(array)
        elif (
            name in (*OF_CANDIDATES, "vectors")
            and (real := kept.get("candidates")) is not None
            and real.shape == array.shape[:2]
        ):
            columns[name] = _lists(name, array, real)
        else:
            columns[name] = _lists(name, array, kept.get(name))
    return pa.table(columns)


def _real(ids: np.ndarray) -> np.ndarray:
    """Return where lists of ids have no padding, which is never an id."""
    real: np.ndarray = ids != ("" if ids.dtype == object else -1)
    return real


def _lists(name: str, array: np.ndarray, real: np.ndarray | None) -> pa.Array:
    """Return the rows of a tensor as lists of those values that are real."""
    if real is None or real.all():
        lengths = np.full(len(array), array.shape[1])
        flat = array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
    else:
        lengths, flat = real.sum(axis=1), array[real]
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    if flat.ndim == 2:
        if not flat.shape[1]:
            raise invalid("infer", name, "hold vectors of at least 1 dimension", 0)
        values = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])
    else:
        values = pa.array(flat.tolist(), pa.string()) if flat.dtype == object else pa.array(flat)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _wanted(content: dict[str, Any], answers: Asked) -> list[tuple[str, bool]]:
    """Return the outputs that a request asks for, and which of them as bytes."""
    binary = tensors.parameters_of(content).get("binary_data_output") is True
    asked = content.get("outputs")
    if not asked:
        lacking = {"skipped": not answers.skips, **{name: not getattr(answers, name) for name in _ASKED_BY}}
        return [(name, binary) for name in _OUTPUTS if not lacking.get(name)]
    found = []
    for output in asked if type(asked) is list else [None]:
        if type(output) is not dict or output.get("name") not in _OUTPUTS:
            got = shown(output.get("name") if type(output) is dict else asked if output is None else output)
            raise invalid("infer", "outputs", f"be some of {', '.join(_OUTPUTS)}", got)
        if (name := output["name"]) in _ASKED_BY and not getattr(answers, name):
            raise invalid("infer", "outputs", f"have {name} with the parameter {_ASKED_BY[name]} alone", "it without")
        found.append((output["name"], tensors.parameters_of(output).get("binary_data", binary) is True))
    return found


def _written(name: str, content: dict[str, Any], wanted: list[tuple[str, bool]], asked: Asked) -> Response:
    arrays = arrays_of(asked)
    outputs, parts = [], []
    for each, binary in wanted:
        array = arrays[each]
        output: dict[str, Any] = {"name": each, "datatype": tensors.datatype_of(array), "shape": list(array.shape)}
        if binary:
            parts.append(tensors.bytes_of(array))
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = array.ravel().tolist() if array.dtype == object else array.ravel()
        outputs.append(output)
    answer: dict[str, Any] = {"model_name": name, "model_version": asked.served.version, "outputs": outputs}
    if "id" in content:
        answer["id"] = content["id"]
    head = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if not parts:
        return Response(head)
    return Response(b"".join([head, *parts]), 200, _OCTETS, {_LENGTH: str(len(head))})


def arrays_of(asked: Asked) -> dict[str, np.ndarray]:
    """Return the output tensors."""
    count, width = asked.count, max(each.indices.shape[1] for each in asked.picks)
    padding: Any = "" if asked.strings else -1
    ids = np.full((count, width), padding, object if asked.strings else np.int64)
    numbers = {name: np.full((count, width), np.nan, np.float32) for name in _OUTPUTS[1:4]}
    nearest = np.full((count, width), -1, np.int32)
    lengths = np.zeros(count, np.int32)
    left_out = asked.skipped()
    for block, picked in asked.answered():
        k = picked.indices.shape[1]
        real = np.arange(k) < picked.lengths[:, None]
        positions = np.array(block.positions)
        lengths[positions] = picked.lengths
        rows = positions[:, None]
        ids[rows, np.arange(k)] = np.where(real, block.ids_of(picked.indices), padding)
        for name, array in numbers.items():
            array[rows, np.arange(k)] = np.where(real, getattr(picked, name), np.nan)
        if picked.nearest is not None:
            nearest[rows, np.arange(k)] = picked.nearest
    errors = np.full(count, "", object)
    for position, error in asked.errors.items():
        errors[position] = str(error)
    skipped = np.full((count, max(map(len, left_out.values()), default=0)), padding, ids.dtype)
    for position, names in left_out.items():
        skipped[position, : len(names)] = names
    unmet = np.full(count, "", object)
    for position, groups in asked.lacking().items():
        unmet[position] = orjson.dumps(groups).decode()
    others = {"lengths": lengths, "errors": errors, "skipped": skipped, "nearest": nearest, "unmet": unmet}
    return {"ids": ids, **numbers, **others}
