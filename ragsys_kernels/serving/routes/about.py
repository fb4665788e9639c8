"""What a server tells of itself: health, info, metrics; and the reload of a corpus."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fastapi import Response

from ... import __version__, _dispatch
from ...selection import METHODS
from ..http.messages import Request, json_response
from ..http.messages import Response as Answer
from ..http.schemas import Health, Info, Reloaded
from ..limits import RefusedError

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
        if not service.bearer.required and b"x-requested-with" not in request.headers:
            # A page of another site may send a POST, but no header of its own choice.
            raise RefusedError(403, "reload: x-requested-with must be sent to a server without a token, got none")
        return json_response(await service.reload(request.path_params["name"]))

    service.route(
        "POST",
        "/v1/corpora/{name}/reload",
        reload,
        summary="Load the folder of a corpus anew and swap it in one step",
        answers={200: Reloaded},
        errors=(401, 404, 409, 500),
    )
