"""The course of every selection: arguments checked, a backend chosen and called, results in the caller's library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _dispatch
from ..._base import arrays as _arrays
from ..._base import checks, env
from ..._gpu import preference
from .. import capabilities, certificate, validate
from ..filtered_problems import narrowed
from ..problem import Problem, Rows, Selection
from ..relevance import check_scale, scaled, warn_range
from ..rules import adagres
from ..skip import answered

# Candidates of a single query that a kernel never shares among threads: too few products (`kSerialProducts`).
_ONE_THREAD = 128


# Each argument by itself: passing a dictionary adds some ten microseconds to a call for a single query.
def run(
    op: str,
    queries: Any,
    embeddings: Any,
    k: Any,
    candidates: Any,
    relevance: Any,
    bias: Any,
    lambda_d: Any,
    lambda_b: Any,
    groups: Any,
    query_groups: Any,
    max_per_group: int | None,
    initial: Any,
    allowed: Any,
    exclude: Any,
    costs: Any,
    budget: Any,
    max_similarity: Any,
    metric: str,
    check_values: bool | None,
    backend: str,
    num_threads: int | None,
    on_error: str,
    options: Any = None,
    kind: str | None = None,
    outside: Any = None,
    relevance_scale: str = "as-is",
    similarity: Any = None,
) -> Selection:
    """Validate the arguments of a call once, pick a backend, call it; ``options`` makes those of the rule alone."""
    if check_values is not None:
        check_values = checks.check_values(op, check_values)
    threads = env.named_threads() if num_threads is None else checks.threads(op, num_threads)
    errors = None if type(on_error) is str and on_error == "raise" else checks.skipped(op, on_error)
    is_corpus = isinstance(embeddings, Rows)
    arrays = {
        "queries": queries, "embeddings": embeddings.data if is_corpus else embeddings, "candidates": candidates,
        "relevance": relevance, "bias": bias, "groups": groups, "query_groups": query_groups, "initial": initial,
    }  # fmt: skip
    if allowed is not None or exclude is not None:
        arrays.update(allowed=allowed, exclude=exclude)
    pairs = similarity is not None
    if pairs:
        arrays["similarity"] = None if callable(similarity) or hasattr(similarity, "tocsr") else similarity
    needed = None
    binary = is_corpus and embeddings.dtype == "binary"
    # Which every backend has.
    if binary or not (costs is budget is max_similarity is outside is None and op in ("mmr", "vrsd")):
        arrays["costs"] = costs
        arrays["outside"] = None if isinstance(outside, (int, float)) else outside
        needed = capabilities.Needs(
            op, kind, budget is not None, max_similarity is not None, outside is not None, binary
        )
    adaptive = op == "msd" and isinstance(lambda_d, str)
    if adaptive:
        checks.choice(op, "lambda_d", lambda_d, ("adagres",))
        if budget is None:
            raise ValueError(f"{op}: lambda_d 'adagres' must come with a budget, got budget=None")
        lambda_d = 1.0
    library, device = checks.library_and_device(op, arrays)
    if adaptive and device != "cpu":
        raise ValueError(f"{op}: lambda_d 'adagres' must come with arrays on the host, got arrays on {device!r}")
    call = None if device == "cpu" else preference.of(op, arrays)
    implementation: Any
    if pairs:
        from . import by_similarity  # few calls need it

        name, implementation = _given_backend(op, device, backend)
    elif needed is None:
        name, implementation = _dispatch.choose(op, "selection", device, backend, call)
    else:
        name, implementation = _dispatch.choose(op, "selection", device, backend, call, needed.lacking)
    place = _arrays.place_of(device, name, library)
    if place is not _arrays.HOST and isinstance(embeddings, Rows):  # a Corpus has tensors there, whoever calls
        library = _arrays.library_of(*(x for name, x in arrays.items() if name != "embeddings"))
    with _arrays.NOTHING if place is _arrays.HOST else _arrays.on_stream(place, library):
        names = None
        if pairs:
            embeddings, names = by_similarity.rows_of(
                op, similarity, queries, embeddings, candidates, relevance, metric, place
            )
            candidates = None
        problem = validate.selection(
            op, queries, embeddings, k, candidates=candidates, relevance=relevance,
            relevance_scale="as-is" if pairs else relevance_scale, bias=bias, lambda_d=lambda_d, lambda_b=lambda_b,
            groups=groups, query_groups=query_groups, max_per_group=max_per_group, initial=initial, allowed=allowed,
            exclude=exclude, costs=costs, budget=budget, max_similarity=max_similarity, options=options, metric=metric,
            place=place, errors=errors,
        )  # fmt: skip
        if pairs:
            by_similarity.restrict(problem, names)
            if relevance_scale != "as-is":  # of items, which the problem has no candidates for
                check_scale(op, relevance_scale, relevance)
                problem.relevance = scaled(problem.relevance, names, None, relevance_scale, place)
            if by_similarity.needs_reference(problem):
                if name == "torch" or _asked(backend) == "cpu":
                    rule = "a function, or density, must come with arrays on the host and without backend 'cpu'"
                    raise _dispatch.BackendUnavailableError(f"{op}: similarity that is {rule}")
                implementation = _dispatch.module_of("selection", "reference")
        if outside is not None:
            problem.outside = certificate.read(problem, outside, errors)
        if adaptive:
            problem.lambda_d = adagres.weights(problem, skip=errors is not None)
        if problem.num_queries == 0:
            result = Selection(*map(place.upload, Selection.empty(0, problem.k)))
            if outside is not None:
                result.certified, result.pool_needed = np.zeros(0, bool), np.zeros(0, np.float32)
        else:
            validate.warn_small_pool(problem)
            if relevance is not None and relevance_scale == "as-is":
                warn_range(problem)
            problem = problem if problem.constraints.filter is None else narrowed(problem)
            asked = problem.ks if problem.ks is not None else problem.k
            columns = problem.clip()  # the rest is padding
            if not threads:  # to count the processors takes a tenth of a call that one of them answers, or none
                few = problem.num_queries == 1 and problem.pool <= _ONE_THREAD
                threads = 1 if few or place is not _arrays.HOST else checks.threads(op, None)
            backend_op: Callable[[Problem, int], Selection] = getattr(implementation, op)
            if errors is None and place is _arrays.HOST:  # the common case first
                result = backend_op(problem, threads)
            else:
                result = _answered(problem, backend_op, threads, place, check_values, errors)
            if columns > problem.pool:
                result = _padded(result, columns)
            if outside is not None:
                certificate.conclude(problem, result, asked)
        if names is not None:
            result = by_similarity.named(result, names)
        if problem.constraints.costs is not None:
            result.cost = place.upload(cost_of(problem, result))
        if adaptive:
            result.lambda_d = problem.lambda_d
        if library != "numpy" or name in ("triton", "torch"):
            result = _in_library(result, library)
        return result if errors is None else result.with_errors(dict(sorted(errors.items())))


def _given_backend(op: str, device: str, backend: str) -> tuple[str, Any]:
    """Return the backend of a call with similarities."""
    from . import by_similarity

    asked = _asked(backend)
    if device != "cpu" and asked != "auto":
        raise _dispatch.BackendUnavailableError(
            f"{op}: backend {asked!r} was requested but its kernels take no similarity; on a device only 'auto' does"
        )
    if asked not in ("auto", "cpu", "reference"):
        raise _dispatch.BackendUnavailableError(
            f"{op}: backend {asked!r} was requested but its kernels take no similarity; 'cpu' and 'reference' do"
        )
    if asked == "reference":
        return asked, _dispatch.module_of("selection", asked)
    return "cpu" if device == "cpu" else "torch", by_similarity


def _asked(backend: str) -> str:
    """Return the backend that is asked for, by the argument or the environment."""
    return env.backend() if backend == "auto" else backend


def _answered(
    problem: Problem,
    backend: Callable[[Problem, int], Selection],
    threads: int,
    place: _arrays.Place,
    check_values: bool | None,
    errors: dict[int, str] | None,
) -> Selection:
    def answer(problem: Problem) -> Selection:
        if place is _arrays.HOST:
            return backend(problem, threads)
        with _arrays.on_device(problem.rows.data):
            return backend(problem, threads)

    check = bool(check_values) and place is not _arrays.HOST
    if errors is None:
        if check:
            validate.device_values(problem)
        return answer(problem)
    padding = Selection.empty(problem.num_queries, problem.k)
    if problem.outside is None:
        return Selection(*answered(problem, answer, padding, errors, place, check))

    def certified(problem: Problem) -> tuple[Any, ...]:
        picks = answer(problem)
        return (*picks, picks.pool_needed)

    unproven = np.full(problem.num_queries, np.nan, np.float32)
    *fields, needed = answered(problem, certified, (*padding, unproven), errors, place, check)
    result = Selection(*fields)
    result.pool_needed = needed
    return result


def _in_library(result: Selection, library: str) -> Selection:
    changed = Selection(*(_arrays.to_library(field, library) for field in result))
    for name in ("cost", "lambda_d", "certified", "pool_needed"):
        if (values := getattr(result, name)) is not None:
            setattr(changed, name, _arrays.to_library(values, library))
    return changed


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
