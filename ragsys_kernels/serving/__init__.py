"""``ragsys-kernels serve``: selection as a service that other programs call over HTTP.

    requests     schemas (the JSON, for the OpenAPI document), select (JSON), select_arrow, reading, rules, given (with
                 their candidates' vectors)
    answers      batcher (what waits becomes the next kernel call), kernel (one call, one answer a query)
    protocols    rerank (with rerank_shapes, encoder), open_inference (with tensors), flight, ray_serve
    callers      client (with wire): needs httpx and NumPy alone
    state        corpora (loaded, swapped in one step), limits, metrics
    transport    service (what routes share), app (the ASGI application), http (raw requests and answers), connections
                 (which way they go), protocol (/v1/select without ASGI), server

The extra ``serve`` brings what this package imports; ``import ragsys_kernels`` imports none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._loading import imports

if TYPE_CHECKING:
    from .app import create_app, make_service
    from .client import AsyncClient, Client, DeadlineError, InvalidRequestError, ServiceError, UnavailableError
    from .limits import Limits
    from .ray_serve import ray_deployment
    from .service import Service
    from .wire import Picks

_CLIENT = ("AsyncClient", "Client", "DeadlineError", "InvalidRequestError", "ServiceError", "UnavailableError")
_HOMES = {
    **dict.fromkeys(_CLIENT, "client"),
    "Limits": "limits",
    "Picks": "wire",
    "Service": "service",
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
