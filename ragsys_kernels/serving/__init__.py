"""``ragsys-kernels serve``: selection as a service that other programs call over HTTP.

    routes/      what each kind of request reads and writes: select, select_arrow (with arrow_answers), rerank (with
                 rerank_shapes), open_inference (with tensors), flight (with flight_messages); about (health, info,
                 metrics); page, and explore, which it asks: texts of documents, vectors of texts, MMR at every λ
    queries/     queries as callers send them, read and checked into blocks: reading, rules, cursors, own_vectors
    batcher, stop, together, kernel
                 what waits becomes the next kernel call, cut by its work; small requests are read together; one call,
                 one answer a query
    corpora, limits, metrics, encoder, texts
                 state: loaded and swapped in one step; what a request may ask for; what is counted; texts; encoders
    service, app, connections, protocol, server, workers (with messages)
                 what routes share; the ASGI application; which way connections go; /v1/select without ASGI; processes
    http/        raw requests and answers, tokens, the access log, allowed hosts, TLS, the OpenAPI document
    client, wire for callers: needs httpx and NumPy alone; ray_serve: a deployment of Ray Serve

The extra ``serve`` brings what this package imports; ``import ragsys_kernels`` imports none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._base.loading import imports

if TYPE_CHECKING:
    from .app import create_app, make_service
    from .client import AsyncClient, Client, DeadlineError, InvalidRequestError, ServiceError, UnavailableError
    from .limits import Limits
    from .ray_serve import ray_deployment
    from .service import Service
    from .texts import TextFile
    from .wire import Picks

_CLIENT = ("AsyncClient", "Client", "DeadlineError", "InvalidRequestError", "ServiceError", "UnavailableError")
_HOMES = {
    **dict.fromkeys(_CLIENT, "client"),
    "Limits": "limits",
    "Picks": "wire",
    "Service": "service",
    "TextFile": "texts",
    "create_app": "app",
    "make_service": "app",
    "ray_deployment": "ray_serve",
}

__all__ = [
    "AsyncClient",
    "Client",
    "DeadlineError",
    "InvalidRequestError",
    "Limits",
    "Picks",
    "Service",
    "ServiceError",
    "TextFile",
    "UnavailableError",
    "create_app",
    "make_service",
    "ray_deployment",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with imports():
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
