"""The way of every selection: arguments checked, a backend chosen and called, results in the caller's library."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Container
from typing import Any

import numpy as np

from .._base import arrays as _arrays
from .._base import checks, env
from .._gpu.plans import planned
from . import certificate, options, quotas, validate
from . import route as routes
from .filtered_problems import narrowed
from .nearest import nearest_of
from .problem import Problem, Selection
from .relevance import warn_narrow, warn_range
from .request import Request
from .route import Route
from .rules import adagres
from .skip import answered

# Candidates of a single query that a kernel never shares among threads: too few products (`kSerialProducts`).
_ONE_THREAD = 128


def run(request: Request, route: Route | None = None) -> Selection:
    """Validate a request once, call a backend: that of its route, else one that is chosen."""
    op, outside, similarity, check_values = request.op, request.outside, request.similarity, request.check_values
    make_options = options.of_rule(request)
    if check_values is not None:
        check_values = checks.check_values(op, check_values)
    nearest = request.nearest is not False and checks.flag(op, "nearest", request.nearest)
    name, implementation, place, library, threads, errors = route or routes.of(request, op)
    adaptive = op == "msd" and isinstance(request.lambda_d, str)
    if adaptive:
        request = adagres.without(request)
    with _arrays.NOTHING if place is _arrays.HOST else _arrays.on_stream(place, library):
        names = None
        if similarity is not None:
            from . import by_similarity  # few calls need it

            problem, names = by_similarity.problem_of(request, place, errors, make_options, bool(check_values))
            implementation = by_similarity.implementation_of(problem, name, request.backend) or implementation
        else:
            problem = validate.problem_of(request, place, errors, make_options)
        wanted = problem.constraints.quotas
        if wanted is not None and name not in quotas.BACKENDS:
            quotas.refuse(op, f"with backend {name!r}")
        if outside is not None:
            problem.outside = certificate.read(problem, outside, errors)
        if adaptive:
            problem.lambda_d = adagres.weights(problem, skip=errors is not None)
        if problem.num_queries == 0:
            result = Selection(*map(place.upload, Selection.empty(0, problem.k)))
            if outside is not None:
                result.certified, result.pool_needed = np.zeros(0, bool), np.zeros(0, np.float32)
        else:
            if request.relevance is not None and request.relevance_scale == "as-is":
                warn_range(problem)
            problem = problem if problem.constraints.filter is None else narrowed(problem)
            result = _picks(request, problem, implementation, threads, place, check_values, errors)
        if problem.constraints.costs is not None:
            result.cost = place.upload(cost_of(problem, result))
        if nearest:
            result.nearest = nearest_of(problem, result, place)
        if wanted is not None and wanted.asked is not None:
            result.unmet = unmet_of(problem, result, errors or ())
        if names is not None:  # of the positions that have been picked
            result = by_similarity.named(result, names)
        if adaptive:
            result.lambda_d = problem.lambda_d
        if library != "numpy":
            result = result.mapped(lambda array: _arrays.to_library(array, library))
        return result if errors is None else result.with_errors(dict(sorted(errors.items())))


# `run` with its launches on a device planned, for callers that no planned public function has called.
planned_run = planned(None)(run)


def _picks(
    request: Request,
    problem: Problem,
    implementation: Any,
    threads: int,
    place: _arrays.Place,
    check_values: bool | None,
    errors: dict[int, str] | None,
) -> Selection:
    """Return the picks of a backend, with as many columns as are asked for."""
    asked = problem.ks if problem.ks is not None else problem.k
    columns = problem.clip()  # the rest is padding
    if not threads:  # to count the processors takes a tenth of a call that one of them answers, or none
        few = problem.num_queries == 1 and problem.pool <= _ONE_THREAD
        threads = 1 if few or place is not _arrays.HOST else env.num_threads()
    backend: Callable[[Problem, int], Selection] = getattr(implementation, problem.op)
    if errors is None and place is _arrays.HOST:  # the common case first
        result = backend(problem, threads)
    else:
        result = _answered(problem, backend, threads, place, check_values, errors)
    validate.warn_small_pool(problem, request, columns, result.lengths, errors)
    if request.relevance is not None and request.relevance_scale == "as-is":
        warn_narrow(problem, result, lambda part: backend(part, threads))
    if columns > problem.pool:
        result = _padded(result, columns)
    if problem.outside is not None:
        certificate.conclude(problem, result, asked)
    return result


def _answered(
    problem: Problem,
    backend: Callable[[Problem, int], Selection],
    threads: int,
    place: _arrays.Place,
    check_values: bool | None,
    errors: dict[int, str] | None,
) -> Selection:
    def answer(problem: Problem) -> tuple[Any, ...]:
        """Return the fields of the picks, and `pool_needed` where it is asked for."""
        with _arrays.on_device(problem.rows.data):
            picks = backend(problem, threads)
        return picks if picks.pool_needed is None else (*picks, picks.pool_needed)

    check = bool(check_values) and place is not _arrays.HOST
    if errors is None:
        if check:
            validate.device_values(problem)
        fields = answer(problem)
    else:
        padding: tuple[Any, ...] = Selection.empty(problem.num_queries, problem.k)
        if problem.outside is not None:
            padding = (*padding, np.full(problem.num_queries, np.nan, np.float32))
        fields = answered(problem, answer, padding, errors, place, check)
    result = Selection(*fields[:5])
    result.pool_needed = fields[5] if len(fields) > 5 else None
    return result


def _padded(result: Selection, columns: int) -> Selection:
    """Return the picks with padding up to so many columns."""
    fields = []
    for picks, (value, dtype) in zip(result[:-1], Selection.PADDING, strict=True):
        wide = _arrays.full(picks, (len(picks), columns), value, dtype)
        wide[:, : picks.shape[1]] = picks
        fields.append(wide)
    return Selection(*[*fields, result.lengths]).with_attributes(result)


def cost_of(problem: Problem, picks: Selection) -> Any:
    """Return what the picks of each query cost, (Q,) float64, summed in their order on the host; waits for a device."""
    costs, indices = (np.asarray(_arrays.to_host(x)) for x in (problem.constraints.costs, picks.indices))
    cost = np.zeros(problem.num_queries)
    for step in range(indices.shape[1]):
        made = indices[:, step] >= 0
        of_pick = indices[made, step]
        if costs.ndim == 1:
            cost[made] += costs[of_pick]
        elif problem.candidates is None:
            cost[made] += costs[made, of_pick]
        else:
            at = (np.asarray(_arrays.to_host(problem.candidates))[made] == of_pick[:, None]).argmax(axis=1)
            cost[made] += costs[made, at]
    return cost


def unmet_of(problem: Problem, picks: Selection, failed: Container[int]) -> list[dict[Any, int]]:
    """Return, of each query, by how many picks each group is below its minimum; nothing of queries that failed."""
    wanted = problem.constraints.quotas
    assert wanted is not None
    groups = wanted.groups[0]
    found: list[dict[Any, int]] = []
    if wanted.pools is not None:
        candidates, items, pool = wanted.pools
        limits = problem.constraints.filtered(items)
        problem = dataclasses.replace(problem, candidates=candidates, pool=pool, constraints=limits)
    for q in range(problem.num_queries):
        if q in failed:
            found.append({})
            continue
        made = picks.indices[q, : picks.lengths[q]] + q * problem.pool_stride
        counts = Counter(groups[np.concatenate([problem.initial_rows(q), made])].tolist())
        if isinstance(wanted.asked, dict):
            asked = [(name, number, least) for name, (number, least) in wanted.asked.items()]
        else:
            there = np.unique(groups[problem.eligible(q)[0]])
            asked = [(name, n, wanted.asked) for name, n in zip(wanted.labels(there), there.tolist(), strict=True)]
        found.append({name: least - counts[n] for name, n, least in asked if least > counts[n]})
    return found
