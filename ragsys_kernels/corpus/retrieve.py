"""Retrieve, then select: the way of a request over a corpus, whoever has it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._base import arrays, checks, tables
from .._gpu.plans import planned
from ..selection import constraints, filters
from ..selection import route as routes
from ..selection.parameters import DEFAULTS, OF_RULES, WEIGHTED
from ..selection.problem import SearchResult, Selection
from ..selection.request import Request
from ..selection.route import Route
from ..selection.run import planned_run, run
from . import certified, folder_index, recency, windows
from .folder_index import FolderIndex
from .rows import place_of, with_columns

_OP = "select"
# Whoever compares a rule with MMR calls it with MMR's defaults, which are then no request.
_USUAL = {"lambda_d": 0.75, "lambda_b": 0.95}


class Pools(NamedTuple):
    """What a request is once its pools are retrieved."""

    request: Request  # with candidates, and without what the search has taken account of
    errors: dict[int, str] | None  # of the queries that the search refused
    route: Route | None  # which the search went and the selection can go too


def select(corpus: Any, request: Request, pool: Any, index: Any, route: Route | None = None) -> Selection:
    """Return the picks of a request over a corpus, whose values of one rule are None where they are not given.

    ``route``: that of its `retrieve`, if this has been called already.
    """
    request = recency.settled(corpus, request)
    if isinstance(pool, str):
        if pool != "certified":
            raise ValueError(f"{_OP}: pool must be an integer, None or 'certified', got {checks.shown(pool)}")
        return certified.select(corpus, request, index, select)
    request = completed(request)
    if index is not None and index is not False:
        _check_index(request, pool)
    if pool is not None:
        pool = checks.count(_OP, "pool", pool)
    whole = request.candidates is None and (pool is None or request.relevance is not None)
    errors = numbers = None
    if not whole and request.candidates is None:
        request, errors, route = retrieve(corpus, request, pool, index)
    memory = getattr(corpus, "_memory", None)  # of rows that are mapped; rows without a corpus are not
    if memory is not None and not (whole or request.allowed is not None or request.exclude is not None):
        request, numbers = windows.pools(request, request.embeddings._copied)
    if request.half_life is not None:
        if whole and (step := recency.step_of(corpus, request)):
            return _in_parts(corpus, request, step)
        request, route = recency.aged(request, route)
    picks: Selection = planned_run(request) if route is None else run(request, route)
    if numbers is not None:
        picks = picks._replace(indices=np.where(picks.indices < 0, -1, numbers[picks.indices]))
    if memory is not None:
        windows.forget(corpus, 0, len(corpus))
    add_errors(picks, errors)
    if whole and corpus.device == "cpu":
        certified.of_all_rows(picks)
    return picks


def retrieve(corpus: Any, request: Request, pool: int, index: Any = None) -> Pools:
    """Return the request with the ``pool`` best rows of each query, and one more for each that it has been shown."""
    own = routes.of(request, _OP)
    route = own if own.name == "cpu" else None  # which alone searches for every rule that it has
    index = folder_index.chosen(corpus, index, own.name)
    _check_columns(request, len(corpus.data))
    if isinstance(index, FolderIndex) and request.bias is not None:
        raise ValueError(
            f"{_OP}: bias must be that of the corpus where its index finds the pools, got another; index=False "
            "searches exactly"
        )
    constraints.used_by(_OP, request)
    changes: dict[str, Any] = {"allowed": None, "exclude": None}  # all of these may be picked
    groups = request.groups
    if len(_shape(groups)) == 2:  # levels, which are no column of a corpus: a search goes by the first
        groups = None if request.query_groups is None else _first_level(groups)
    else:
        changes["groups"] = None
    if request.bias is not None or groups is not None:
        columns = {"bias": request.bias, "groups": groups}
        corpus = with_columns(_OP, corpus, columns, place_of(_OP, corpus.device))
        changes.update(embeddings=corpus, bias=None)
    num_live = corpus.num_live
    asked = Request(
        _OP,
        request.queries,
        corpus,
        min(pool + width(request.initial), max(1, num_live)),
        query_groups=request.query_groups,
        allowed=request.allowed,
        exclude=request.exclude,
        backend=request.backend,
        num_threads=request.num_threads,
        on_error=request.on_error,
        # By what the rule's relevance is, with the bias or without.
        lambda_b=request.lambda_b if "lambda_b" in DEFAULTS[request.op] else 1.0,
    )
    found = _searched(asked, index, route)
    rows, sizes = cut(found.indices, pool, request.initial)
    if index is not False and sizes is not None:  # of more rows that it finds the first need not be those of fewer
        width_of = np.minimum(np.asarray(sizes), asked.k)
        for few in np.unique(width_of[width_of < asked.k]).tolist():
            part = np.flatnonzero(width_of == few)
            rows[part, :few] = _searched(asked.take(part).changed(k=few), index, route).indices
    changes["candidates"] = rows
    provable = request.op == "mmr" and corpus.metric == "cosine" and index is False and request.min_per_group is None
    if provable and (route is not None or certified.is_exact(corpus, request.backend)):
        changes["outside"] = certified.outside(found, num_live, sizes)
    return Pools(request.changed(**changes), found.errors, route)


def _in_parts(corpus: Any, request: Request, step: int) -> Selection:
    """Return the picks out of the whole corpus, for so many queries at a time."""
    raises = checks.skipped(_OP, request.on_error) is None
    asked = request.changed(on_error="skip")
    begins = range(0, _shape(request.queries)[0], step)
    parts = [select(corpus, asked.take(slice(at, at + step)), None, None) for at in begins]
    picks = Selection.joined(parts)
    errors = picks.errors or {}
    if raises and errors:
        raise ValueError(f"{errors[min(errors)]} for query {min(errors)}")
    library = arrays.library_of(parts[0].indices)
    return picks.mapped(lambda array: arrays.to_library(array, library)).with_errors(None if raises else errors)


def add_errors(picks: Selection, errors: dict[int, str] | None) -> None:
    """Add the errors of queries whose pools could not be retrieved: nothing is proven of what they have picked."""
    if not errors or picks.errors is None:
        return
    picks.errors = dict(sorted({**picks.errors, **errors}.items()))
    for name, unknown in (("certified", False), ("pool_needed", np.nan)):
        if (values := getattr(picks, name)) is not None:
            values[[*errors]] = unknown


def _search(request: Request, index: Any, route: Route | None) -> SearchResult:
    found: SearchResult = request.embeddings._search(request, index, route)
    return found


_planned_search = planned(None)(_search)  # by itself, if the selection that follows cannot be planned


def _searched(request: Request, index: Any, route: Route | None) -> SearchResult:
    if route is None:
        return _planned_search(request, index, None)
    errors: dict[int, str] | None = None if route.errors is None else {}  # those of the search alone
    return _search(request, index, route._replace(library="numpy", errors=errors))


def completed(request: Request, op: str = _OP, name_of_rule: str = "method") -> Request:
    """Return a request with the defaults of its rule; refuse values that the rule does not have."""
    defaults = DEFAULTS[request.op]
    changes = {} if "lambda_d" in defaults else {"lambda_d": 1.0, "lambda_b": 1.0}
    for name in _NAMES:
        value = getattr(request, name)
        if value is None:
            if (default := defaults.get(name)) is not None:
                changes[name] = default
        elif name not in defaults and not (isinstance(value, (int, float)) and value == _USUAL.get(name)):
            rule, got = f"be left out with {name_of_rule} {request.op!r}", checks.shown(value)
            meant = "; did you mean 'bias'?" if name == "quality" and request.op in WEIGHTED else ""
            raise ValueError(f"{op}: {name} must {rule}, got {got}{meant}")
    return request.changed(**changes) if changes else request


_NAMES = tuple(parameter.name for parameter in OF_RULES)


def _check_index(request: Request, pool: int | None) -> None:
    """Refuse what says otherwise than an index where pools come from."""
    for name in ("candidates", "relevance", "bias"):
        if getattr(request, name) is not None:
            raise ValueError(f"{_OP}: index must come without {name}, got both")
    if pool is None:
        raise ValueError(f"{_OP}: index must come with a pool, got pool=None")


def _check_columns(request: Request, num_rows: int) -> None:
    """Refuse values for each query's items: whoever gives them cannot know in which order a search finds the pool."""
    for name in ("bias", "costs", "quality"):
        shape = _shape(getattr(request, name))
        if len(shape) > 1:
            raise ValueError(
                f"{_OP}: {name} must have shape (N,) = ({num_rows},) where the pool is searched for, "
                f"got {checks.shape_text(shape)}; pool=None takes (Q, N)"
            )


def cut(rows: Any, pool: int, initial: Any) -> tuple[Any, Any]:
    """Return pools (Q, any) of ``pool`` rows and one more for each that their own query has shown, and these sizes.

    ``rows`` were found for the query that has shown most. Sizes are None where all pools are whole.
    """
    if initial is None:
        return rows, None
    if arrays.device_of(initial) != arrays.device_of(rows):
        return rows, None  # which is refused where it is read
    own, kind = initial, arrays.library_of(rows)
    if arrays.device_of(rows) == "cpu":
        own = checks.ids(_OP, "initial", initial, len(rows))
        if (own >= 0).all():
            return rows, None
    sizes = (arrays.to_library(own, kind) >= 0).sum(1) + pool
    library = filters.library_of_array(rows)
    return library.where(filters.arange(library, rows.shape[1], rows) < sizes[:, None], rows, -1), sizes


def width(ids: Any) -> int:
    """Return how many ids a query has."""
    shape = _shape(ids)
    return int(shape[-1]) if shape else 0


def _first_level(groups: Any) -> Any:
    if hasattr(groups, "dtype"):
        return groups[:, 0]
    return (tables.texts(groups) if tables.holds_text(groups) else np.asarray(groups))[:, 0]


def _shape(x: Any) -> tuple[int, ...]:
    """Return the shape of an array; what is none is refused where it is read."""
    try:
        return np.shape(x)
    except Exception:  # rows of unequal length, an object that makes no array
        return ()
