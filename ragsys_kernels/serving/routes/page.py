"""``/``: the page on which a person sees the picks of all rules side by side. It holds no data and needs no token.

Its files are in ``static/``. They are served as they are, load nothing from elsewhere, and the policy that is sent with
them lets a browser load nothing else.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from fastapi import Response

if TYPE_CHECKING:
    from ..service import Service

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
PATHS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/static/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/static/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in ("page", "picks", "plot")},
}


def add(service: Service) -> None:
    """Add the page to a service."""
    for path, (name, kind) in PATHS.items():
        _add(service, path, files(__package__).joinpath("static").joinpath(name).read_bytes(), kind)


def _add(service: Service, path: str, content: bytes, kind: str) -> None:
    async def get() -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    service.app.add_api_route(path, get, methods=["GET", "HEAD"], include_in_schema=False)
    service.open.add(path)
