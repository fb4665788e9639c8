"""The choice of how connections are handled: by `protocol`, or by plain ASGI if uvicorn lacks what that needs.

`protocol` builds on private parts of uvicorn, which some versions do not have. Both ways end in the same functions.
With plain ASGI `/v1/select` takes longer, and slow clients and long headers have uvicorn's own limits.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .._base.extras import install, missing

SHORT, ASGI = "short", "asgi"

# What each class has to have, as a method or as an attribute of what it makes.
_PARTS = {
    "HttpToolsProtocol": (
        *("connection_made", "connection_lost", "data_received", "send_400_response", "on_message_begin"),
        *("on_headers_complete", "on_body", "on_message_complete", "on_response_complete", "_start_asgi_task"),
        *("app", "loop", "parser", "flow", "pipeline", "scope", "url", "headers", "cycle", "connections", "tasks"),
        *("transport", "server_state", "pause_writing", "resume_writing"),
    ),
    "RequestResponseCycle": (
        *("response_started", "response_complete", "scope", "message_event", "keep_alive", "transport"),
    ),
    "FlowControl": ("write_paused", "resume_reading"),
    "ServerState": ("total_requests", "default_headers", "connections", "tasks"),
}
_MODULE = "uvicorn.protocols.http.httptools_impl"


def chosen(plain: str | None = None) -> tuple[Any, str]:
    """Return uvicorn's ``http``, a class or "auto", and what ``/info`` says of it; ``plain``: why ASGI is wanted."""
    lacking = _lacking()
    if lacking:
        import uvicorn

        return "auto", f"{ASGI}: uvicorn {uvicorn.__version__} has no {', '.join(lacking)}"
    from .protocol import Protocol

    return Protocol, SHORT if plain is None else f"{ASGI}: {plain}"


def traced(application: Any) -> Any:
    """Return an ASGI application whose requests OpenTelemetry's own instrumentation traces."""
    try:
        from opentelemetry import trace
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
        from opentelemetry.util.http import get_excluded_urls
    except ModuleNotFoundError as error:
        raise missing("serve: traces", "opentelemetry-instrumentation-asgi", install("otel"), error.name) from error

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        """Call the application with the id of the trace, for the access log."""
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            scope["ragsys.trace_id"] = trace.format_trace_id(context.trace_id)
        await application(scope, receive, send)

    return OpenTelemetryMiddleware(noted, excluded_urls=get_excluded_urls("ASGI"))


def _lacking() -> list[str]:
    """Return the parts that uvicorn lacks."""
    try:
        theirs = import_module(_MODULE)
    except ImportError as error:
        return [str(error.name or error)]
    found = [] if hasattr(theirs, "STATUS_LINE") else ["STATUS_LINE"]
    for name, parts in _PARTS.items():
        kind = getattr(theirs, name, None)
        if kind is None:
            found.append(name)
            continue
        has = {*dir(kind), *_names_in(kind)}
        found += [f"{name}.{part}" for part in parts if part not in has]
    return found


def _names_in(kind: Any) -> set[str]:
    """Return the names in the code of a class, among which are the attributes that its methods set."""
    methods = (method for base in kind.__mro__ for method in vars(base).values())
    return {name for method in methods if hasattr(method, "__code__") for name in method.__code__.co_names}
