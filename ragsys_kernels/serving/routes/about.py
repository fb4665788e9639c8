"""What a server tells of itself: health, info, metrics; and the corpora that admins load, reload and unload."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Response

from ... import __version__, _dispatch
from ...selection import METHODS
from ..corpora import NAMES, can_be_named
from ..http.messages import JSON, Request, json_response, object_of, refuse_url
from ..http.messages import Response as Answer
from ..http.schemas import Health, Info, LoadRequest, Reloaded, Unloaded
from ..limits import RefusedError, invalid, shown

if TYPE_CHECKING:
    from ..service import Service

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def add(service: Service) -> None:
    """Add the routes to a service."""
    app = service.app

    async def live(request: Request) -> Answer:
        return Answer(b'{"status":"live"}')

    async def ready(request: Request) -> Answer:
        return json_response({"status": service.status}, 200 if service.status == "ready" else 503)

    answers = {200: Health, 503: Health}
    for path in ("/health", "/health/live"):  # the first is asked for by clients of Text Embeddings Inference
        service.route("GET", path, live, summary="Whether the process answers", answers=answers, errors=())
    service.route("GET", "/health/ready", ready, summary="Whether to send requests here", answers=answers, errors=())

    @app.get("/info", summary="Version, backends, corpora and limits")
    async def info() -> Info:
        return Info(
            version=__version__,
            backends={name: _dispatch.why_not(name) or "can run" for name in _dispatch.BACKENDS["selection"]},
            corpora={served.name: served.described() for served in service.corpora.all()},
            limits=asdict(service.limits),
            methods=list(METHODS),
            encoder=None if service.encoder is None else service.encoder.name or "endpoint",
            workers=service.workers,
            connections=service.connections,
        )

    @app.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    def metrics() -> Response:  # in a thread: of several workers it reads files
        return Response(service.metrics.text(), media_type=_TEXT)

    async def reload(request: Request) -> Answer:
        _check_admin("reload", service, request)
        return json_response(await service.reload(request.path_params["name"]))

    async def load(request: Request) -> Answer:
        _check_admin("load", service, request)
        request.check_type("load", JSON)
        refuse_url("load", request.scope["query_string"])
        given = object_of("load", await request.body(), LoadRequest.model_fields)
        name = request.path_params["name"]
        return json_response(await service.reload(name, _folder(service, name, given.get("folder"))))

    async def unload(request: Request) -> Answer:
        _check_admin("unload", service, request)
        return json_response(await service.unload(request.path_params["name"]))

    corpus = "/v1/corpora/{name}"
    service.route(
        "POST",
        f"{corpus}/reload",
        reload,
        summary="Load the folder of a corpus anew and swap it in one step",
        answers={200: Reloaded},
        errors=(401, 403, 404, 409, 500),
    )
    service.route(
        "PUT",
        corpus,
        load,
        summary="Load a folder of the server as a corpus, new or in the place of another version",
        body={JSON: LoadRequest},
        answers={200: Reloaded},
        errors=(401, 403, 408, 409, 413, 415, 422, 500, 503),
    )
    service.route(
        "DELETE",
        corpus,
        unload,
        summary="Take a corpus out of service; its folder stays",
        answers={200: Unloaded},
        errors=(401, 403, 404, 500),
    )


def _check_admin(op: str, service: Service, request: Request) -> None:
    """Refuse a request that may not change what is served."""
    if request.account is None:
        if b"x-requested-with" not in request.headers:
            # A page of another site may send a POST, but no header of its own choice.
            name = "x-requested-with"
            raise RefusedError(403, f"{op}: {name} must be sent to a server without a token, got none", name)
    elif not request.account.admin:
        rule = f"{op}: authorization must be a token with role=admin, got one with role=read"
        raise RefusedError(403, rule, "authorization")


def _folder(service: Service, name: str, given: object) -> Path:
    """Return the folder that a corpus is to be loaded from: no request names a path."""
    if not can_be_named(name):
        raise invalid("load", "name", f"be {NAMES}", shown(name))
    if service.load_from is None:
        raise RefusedError(403, "load: the server must be started with --load-from FOLDER, got none")
    folder = name if given is None else given
    if type(folder) is not str or folder in ("", ".", "..") or "/" in folder or "\0" in folder:
        raise invalid("load", "folder", "be the name of a folder in that of --load-from", shown(folder))
    return service.load_from / folder
