"""Relevance that falls with the age of rows, which selections out of a corpus with times may ask for.

The candidates of a query are those of any other call; then their relevance, given or computed here as the kernels do,
falls, and goes on as given relevance. Pools are not retrieved by age: as relevance only falls, what no row outside a
pool exceeds, it does not exceed later either, and certificates hold.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from .._base import arrays, checks, env, times
from .._base.warn import warn
from ..selection import filters, validate
from ..selection import recency as decay
from ..selection import route as routes
from ..selection.parameters import BY_NAME, RECENCY
from ..selection.problem import Problem
from ..selection.relevance import RelevanceRangeWarning
from ..selection.request import Request
from ..selection.route import Route
from ..selection.skip import answered

_OP = "select"
# Values of relevance that a call holds at once where the whole corpus is the pool: of more, queries go in parts.
MOST_VALUES = 1 << 22
# With less than this share of the relevance redundancy decides alone; other scales only need some, in float32.
_LEAST, _NONE = 1e-3, 1e-45
_NUMBERS = ("half_life", "now", "decay_floor")
_USUAL = {parameter.name: parameter.default for parameter in RECENCY}


def dated(request: Request) -> Request:
    """Return a request whose ages are counted from this moment, where they are not from another."""
    return request.changed(now=time.time()) if request.half_life is not None and request.now is None else request


def settled(corpus: Any, request: Request) -> Request:
    """Return a request with the time that it is asked at; refuse what cannot be asked for together."""
    if request.half_life is None:
        for name, usual in _USUAL.items():
            value = getattr(request, name)
            if value is not usual and not (isinstance(value, (str, int, float)) and value == usual):
                raise ValueError(f"{_OP}: {name} must come with half_life, got {checks.shown(value)} alone")
        return request
    if corpus.time is None:
        raise ValueError(f"{_OP}: half_life must come with a corpus whose rows have times, got one without")
    checks.choice(_OP, "decay", request.decay, BY_NAME["decay"].choices)
    given = dated(request)
    numbers = {x: checks.number(_OP, x, times.scalar(_OP, x, getattr(given, x))) for x in _NUMBERS}
    for name, number in numbers.items():
        parameter = BY_NAME[name]
        if not (parameter.holds(request.op, number) and number < np.inf):
            more, unit = ("", times.likely_unit(number)) if name == "now" else (" and finite", "")
            raise ValueError(f"{_OP}: {name} must be {parameter.rule_of(request.op)}{more}, got {number:g}{unit}")
    if request.relevance is None and request.op == "vrsd" and corpus.metric == "dot":
        raise ValueError(f"{_OP}: half_life must come with relevance for method 'vrsd' and metric 'dot', got none")
    return request.changed(**numbers)


def step_of(corpus: Any, request: Request) -> int:
    """Return for how many queries at a time relevance to the whole corpus is held on the host; 0: for all."""
    step = max(1, MOST_VALUES // len(corpus.data))
    queries = request.queries
    many = request.relevance is None and corpus.device == "cpu" and np.ndim(queries) == 2 and len(queries) > step
    return step if many else 0


def aged(request: Request, route: Route | None) -> tuple[Request, Route | None]:
    """Return a settled request whose relevance has fallen, and the route on which the queries wait that it refuses."""
    route = route or routes.of(request, request.op)
    place, errors = route.place, route.errors
    # Bias and deleted rows are the business of the selection.
    rows = arrays.changed(request.embeddings, bias=None, live=None)
    asked = Request(request.op, request.queries, rows, 1, request.candidates, request.relevance, metric=request.metric)
    with arrays.NOTHING if place is arrays.HOST else arrays.on_stream(place, route.library):
        problem, xp = validate.problem_of(asked, place, errors), filters.module(place)
        given, ids, ages = problem.relevance, problem.candidates, rows.time
        real = True
        if ids is not None:
            real = (ids >= 0) & (ids < len(ages))
            ages = ages[place.int64(xp.where(real, ids, 0))]
        # Uploaded, so that no plan of a device keeps the time of one call for the next.
        ages = place.upload(np.array(request.now, np.float64)) - ages
        if place is arrays.HOST:
            _warn_future(ages, rows.time, request.now)
        ages = xp.where(ages == ages, xp.where(ages > 0, ages, 0.0), np.inf)
        values = place.float64(_computed(problem, route) if given is None else given, "float32")
        if given is not None and place is arrays.HOST:
            good = ~(values < 0) | ~np.asarray(real)
            rule = "at least 0 with half_life, on a scale such as from 0 to 1"
            checks.good_values(request.op, "relevance", values, good, rule, errors)
        half_life, floor = float(request.half_life), float(request.decay_floor)
        made = decay.fallen(xp, values, ages, half_life, request.decay, floor)
        made = xp.where(values > 0, made, values)  # a cosine below 0 would rise
        made = made if ids is None else xp.where(real, made, 0.0)
        if place is arrays.HOST:
            _warn_vanished(request, *(np.max(x, axis=1, initial=0, where=real) for x in (values, made)))
        later = request.changed(relevance=place.float32(made, "float64"), **_USUAL)
    return later, route if place is arrays.HOST else None


def _warn_future(ages: np.ndarray, written: np.ndarray, now: float) -> None:
    """Warn where every row with a time is of the future; only where no candidate is older, the rows are looked at."""
    if -np.inf < np.fmax.reduce(ages, axis=None, initial=-np.inf) < 0 and np.fmin.reduce(written) > now:
        warn(
            f"{_OP}: all times of the corpus are later than now, so that no relevance falls; time and now must be "
            "seconds since 1970, or datetime64 in UTC",
            RelevanceRangeWarning,
        )


def _warn_vanished(request: Request, most: np.ndarray, left: np.ndarray) -> None:
    """Warn where no candidate of a query keeps some relevance: by the most (Q,) before and after it has fallen."""
    least = _LEAST if request.relevance_scale == "as-is" else _NONE
    if ((most > 0) & (left <= least * most)).any():
        warn(
            f"{_OP}: with a half_life of {request.half_life:g} seconds the candidates of a query keep at most "
            f"{least:.1%} of their relevance, which then has hardly a say; half_life is in seconds, and decay_floor "
            "keeps a share",
            RelevanceRangeWarning,
        )


def _computed(problem: Problem, route: Route) -> Any:
    """Return the relevance (Q, P) of a problem without a bias, where it is."""
    on_host = route.place is arrays.HOST
    threads = route.threads or (env.num_threads() if on_host else 1)

    def answer(problem: Problem) -> tuple[Any]:
        found = route.implementation.relevance(problem, threads)
        return (np.asarray(found) if on_host else found,)

    if not problem.num_queries:
        return route.place.upload(np.zeros((0, problem.pool), np.float32))
    if route.errors is None:
        return answer(problem)[0]
    nothing = np.zeros((problem.num_queries, problem.pool), np.float32)
    return answered(problem, answer, (nothing,), route.errors, route.place, check=False)[0]
