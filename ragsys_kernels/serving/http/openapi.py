"""The OpenAPI document: FastAPI's own routes, and the quick ones, which it does not see into."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ..fields import ID_LISTS, VECTORS
from ..limits import Limits
from .schemas import Failed, PathRequest, ProblemDetails

_NULL = {"type": "null"}
_REF = "#/components/schemas/{model}"
_ERRORS = {
    401: "The token is missing or wrong",
    403: "The token is not an admin's; or a page of another site asks, or one could",
    404: "There is no such thing",
    409: "Nothing was changed",
    408: "The body came too slowly",
    413: "The body is too large",
    415: "The content type is not one of these",
    421: "The request is for another host",
    422: "The request breaks a rule",
    429: "The queue is full, or a quota is used up; see Retry-After",
    431: "The headers are too large, or too many",
    500: "The server failed",
    502: "The encoder failed",
    503: "The server is not ready, or stops",
    504: "The deadline has passed",
}
_HEADERS = {
    "x-timeout-ms": ("Milliseconds that the request has, within the server's limit", {"type": "integer", "minimum": 1}),
    "x-request-id": ("Comes back in the answer and the access log; else one is made", {"type": "string"}),
}


@dataclass(frozen=True)
class Operation:
    """A quick route as the document shows it.

    ``url``: parameters of the URL, and the model that has each as a field.
    ``body`` and ``answers`` map media types and statuses to pydantic models. None: bytes, answered in their own type;
    of an answer, JSON without a model. ``errors``: statuses besides those of headers, which every route has.
    ``refused``: the model of the usual error. ``failed``: a model that the bodies of 422 and 500 may have instead.
    """

    method: str
    path: str
    summary: str = ""
    body: Mapping[bytes, type[BaseModel] | None] = field(default_factory=dict)
    url: Mapping[str, type[BaseModel]] = field(default_factory=dict)
    answers: Mapping[int, type[BaseModel] | None] = field(default_factory=dict)
    errors: tuple[int, ...] = (401, 408, 413, 415, 422, 429, 500, 503, 504)
    description: str = ""
    tags: tuple[str, ...] = ()
    failed: type[BaseModel] | None = None
    refused: type[BaseModel] = Failed

    def models(self) -> list[type[BaseModel]]:
        given = (*self.body.values(), *self.answers.values(), self.failed, self.refused)
        return [model for model in given if model is not None]

    def described(self) -> dict[str, Any]:
        """Return the operation's object."""
        parameters = [
            {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
            for name, (text, schema) in _HEADERS.items()
        ]
        parts = (part[1:-1] for part in self.path.split("/") if part.startswith("{"))
        parameters += [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in parts]
        for name, fields in self.url.items():
            schema = fields.model_json_schema()["properties"][name]
            kinds = [kind for kind in schema["anyOf"] if kind != _NULL] + [{"const": "all"}] * (name == "pool")
            text = f"With a body of Arrow. {schema.get('description', '')}"
            parameters.append(
                {"name": name, "in": "query", "required": False, "description": text, "schema": {"anyOf": kinds}}
            )
        refused = _schema(self.refused)
        answers: dict[str, Any] = {}
        for status in sorted({*self.errors, 431, *((403, 421) if 401 in self.errors else ())}):
            content = {
                "application/json": {"schema": refused},
                "application/problem+json": {"schema": _schema(ProblemDetails)},
            }
            answers[str(status)] = {"description": _ERRORS[status], "content": content}
        for status, model in self.answers.items():
            content = self._content(_schema(model) if model else {})
            answers[str(status)] = {"description": "Answered", "content": content}
        for status in ("422", "500") if self.failed is not None else ():
            answers[status]["content"] |= self._content({"anyOf": [refused, _schema(self.failed)]})
        described: dict[str, Any] = {
            "operationId": operation_id(self.method, self.path),
            "summary": self.summary,
            "parameters": parameters,
            "responses": answers,
        }
        if self.description:
            described["description"] = self.description
        if self.tags:
            described["tags"] = list(self.tags)
        if self.body:
            content = {kind.decode(): {"schema": _schema(model)} for kind, model in self.body.items()}
            described["requestBody"] = {"required": True, "content": content}
        return described

    def _content(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return an answer's schemas by media type."""
        bytes_ = {kind.decode(): {"schema": _schema(None)} for kind, model in self.body.items() if model is None}
        return {"application/json": {"schema": schema}, **bytes_}


def operation_id(method: str, path: str) -> str:
    """Return what generated clients call an operation: ``post_v1_select``, ``get_v2_models_name_ready``."""
    return "_".join([method.lower(), *re.findall(r"\w+", path)])


def document(app: FastAPI, operations: list[Operation], limits: Limits) -> dict[str, Any]:
    """Return the document of an application; it is made once."""
    if app.openapi_schema:
        return app.openapi_schema
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    models = {model for operation in operations for model in operation.models()} | {Failed, ProblemDetails}
    kinds = [(model, "validation") for model in sorted(models, key=lambda model: str(model.__name__))]
    _, schemas = models_json_schema(kinds, ref_template=_REF)
    for name, schema in schemas["$defs"].items():
        is_path = name == PathRequest.__name__
        most = (limits.path_k, limits.path_pool) if is_path else (limits.k, limits.pool)
        _limit(schema.get("properties", {}), *most, limits)
    components = made.setdefault("components", {})
    components["schemas"] = components.get("schemas", {}) | schemas["$defs"]
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    made["security"] = [{}, {"token": []}]
    for operation in operations:
        described = operation.described()
        _limit({each["name"]: each["schema"] for each in described["parameters"]}, limits.k, limits.pool, limits)
        made["paths"].setdefault(operation.path, {})[operation.method.lower()] = described
    app.openapi_schema = made
    return made


def _limit(fields: dict[str, Any], k: int, pool: int, limits: Limits) -> None:
    """Write what this server takes at most into the schemas of fields."""
    most = {"k": ("maximum", k), "pool": ("maximum", pool), "queries": ("maxItems", limits.queries)}
    most |= dict.fromkeys((*ID_LISTS, *VECTORS), ("maxItems", limits.candidates))
    for name in fields.keys() & most.keys():
        word, value = most[name]
        for kind in fields[name].get("anyOf", [fields[name]]):
            if kind.get("type") == ("integer" if word == "maximum" else "array"):
                kind[word] = value


def _schema(model: type[BaseModel] | None) -> dict[str, Any]:
    if model is None:
        return {"type": "string", "format": "binary"}
    return {"$ref": _REF.format(model=model.__name__)}
