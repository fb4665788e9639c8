"""``/``: the page on which a person sees the picks of all rules side by side. It holds no data and needs no token.

Its files are in ``static/``. They are served as they are, load nothing from elsewhere, and the policy that is sent with
them lets a browser load nothing else.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastapi import Response

from ...selection.parameters import BY_NAME, DEFAULTS, Parameter

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
# The rules in the order of the page: their names there, and what each picks.
_WORDS = {
    "topk": ("top-k", "the nearest to the query, however alike they are"),
    "mmr": ("MMR", "near the query, and unlike each earlier pick"),
    "vrsd": ("VRSD", "picks whose sum points to the query; there is nothing to set"),
    "msd": ("MSD", "near the query, and on average far from the earlier picks"),
    "dpp": ("DPP", "picks that span many directions; fewer than k where nothing new is left"),
    "ssd": ("SSD", "near the query, and different from the last picks"),
    "sift": ("SIFT", "what tells most about the query, given the earlier picks"),
    "coverage": ("Coverage", "an item near every part of the pool"),
    "gist": ("GIST", "near the query, no two near each other; chosen together, so it takes longer"),
}
# What a rule's options mean, as far as the page asks for them.
_OPTIONS = {
    "lambda_d": "at 1 the nearest alone; smaller: picks less alike",
    ("dpp", "scale"): "the larger, the more nearness to the query counts",
    ("ssd", "gamma"): "how much it counts that a pick is new",
    ("dpp", "window"): "how many of the last picks count, fewer than dimensions for more picks; empty: all",
    ("ssd", "window"): "from how many of the last picks to differ; empty: all",
    ("sift", "noise"): "the larger, the more alike picks may be",
    ("sift", "min_gain"): "stop where a pick would tell less than this",
    ("coverage", "kind"): "whether a part is covered by its nearest pick (facility) or by all picks (cover, xquad)",
    ("coverage", "gamma"): "with cover: the smaller, the less a second pick counts for the same part",
    ("gist", "eps"): "step between the distances that are tried: the smaller, the better and slower",
}
RULES = "/static/rules.json"
PATHS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/static/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/static/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in ("page", "picks", "plot")},
}


def add(service: Service) -> None:
    """Add the page to a service."""
    for path, (name, kind) in PATHS.items():
        _add(service, path, files(__package__).joinpath("static").joinpath(name).read_bytes(), kind)
    _add(service, RULES, json.dumps(rules()).encode(), "application/json")


def rules() -> list[dict[str, Any]]:
    """Return the rules with what a person can set of each."""
    return [
        {"rule": rule, "name": name, "words": words, "options": [_option(each, rule) for each in _options(rule)]}
        for rule, (name, words) in _WORDS.items()
    ]


def _options(rule: str) -> list[Parameter]:
    """Return what one field of a form can say of a rule; lambda_b is one field for all."""
    own = [BY_NAME[name] for name in DEFAULTS.get(rule, ()) if name != "lambda_b"]
    return [each for each in own if each.kind in ("number", "count", "choice")]


def _option(parameter: Parameter, rule: str) -> dict[str, Any]:
    low, high = parameter.range_of(rule)
    words = _OPTIONS.get((rule, parameter.name)) or _OPTIONS[parameter.name]
    found: dict[str, Any] = {"name": parameter.name, "words": words, "default": parameter.default_of(rule)}
    if parameter.choices:
        return {**found, "choices": parameter.choices}
    highest = {"high": high} if high < float("inf") else {}
    return {**found, "low": low, "whole": parameter.kind == "count", "rule": parameter.rule_of(rule), **highest}


def _add(service: Service, path: str, content: bytes, kind: str) -> None:
    async def get() -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    service.app.add_api_route(path, get, methods=["GET", "HEAD"], include_in_schema=False)
    service.open.add(path)
