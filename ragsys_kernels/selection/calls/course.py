"""The course of every selection: arguments checked, a backend chosen and called, results in the caller's library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _dispatch
from ..._base import arrays as _arrays
from ..._base import checks, env
from ..._gpu import preference
from .. import capabilities, certificate, options, validate
from ..filtered_problems import narrowed
from ..problem import Problem, Rows, Selection
from ..relevance import warn_narrow, warn_range
from ..rules import adagres
from ..skip import answered

# Candidates of a single query that a kernel never shares among threads: too few products (`kSerialProducts`).
_ONE_THREAD = 128


def run(op: str, given: dict[str, Any]) -> Selection:
    """Validate the arguments of a call once, pick a backend, call it.

    ``given`` are the arguments of the public function by their names: a copy of its ``locals()``, which a debugger that
    looks at its frame writes to, until Python 3.13.
    """
    check_values, backend, num_threads = given["check_values"], given["backend"], given["num_threads"]
    on_error, outside, similarity = given["on_error"], given.get("outside"), given.get("similarity")
    costs, budget, max_similarity = given["costs"], given["budget"], given["max_similarity"]
    embeddings, relevance = given["embeddings"], given["relevance"]
    given["options"] = options.of_rule(op, given)
    if check_values is not None:
        check_values = checks.check_values(op, check_values)
    threads = env.named_threads() if num_threads is None else checks.threads(op, num_threads)
    errors = None if type(on_error) is str and on_error == "raise" else checks.skipped(op, on_error)
    is_corpus = isinstance(embeddings, Rows)
    arrays = {
        "queries": given["queries"], "embeddings": embeddings.data if is_corpus else embeddings,
        "candidates": given["candidates"], "relevance": relevance, "bias": given.get("bias"),
        "groups": given["groups"], "query_groups": given["query_groups"], "initial": given["initial"],
    }  # fmt: skip
    if given["allowed"] is not None or given["exclude"] is not None:
        arrays.update(allowed=given["allowed"], exclude=given["exclude"])
    pairs = similarity is not None
    if pairs:
        arrays["similarity"] = None if callable(similarity) or hasattr(similarity, "tocsr") else similarity
    lacking = None
    binary = is_corpus and embeddings.dtype == "binary"
    # Which every backend has.
    if binary or not (costs is budget is max_similarity is outside is None and op in ("mmr", "vrsd")):
        arrays["costs"] = costs
        arrays["outside"] = None if isinstance(outside, (int, float)) else outside
        lacking = capabilities.Needs(
            op, given.get("kind"), budget is not None, max_similarity is not None, outside is not None, binary
        ).lacking
    adaptive = op == "msd" and isinstance(given["lambda_d"], str)
    if adaptive:
        checks.choice(op, "lambda_d", given["lambda_d"], ("adagres",))
        if budget is None:
            raise ValueError(f"{op}: lambda_d 'adagres' must come with a budget, got budget=None")
        given["lambda_d"] = 1.0
    library, device = checks.library_and_device(op, arrays)
    if adaptive and device != "cpu":
        raise ValueError(f"{op}: lambda_d 'adagres' must come with arrays on the host, got arrays on {device!r}")
    call = None if device == "cpu" else preference.of(op, arrays)
    implementation: Any
    if pairs:
        from . import by_similarity  # few calls need it

        name, implementation = by_similarity.backend_of(op, device, backend)
    else:
        name, implementation = _dispatch.choose(op, "selection", device, backend, call, lacking)
    place = _arrays.place_of(device, name, library)
    if place is not _arrays.HOST and is_corpus:  # a Corpus has tensors there, whoever calls
        library = _arrays.library_of(*(x for name, x in arrays.items() if name != "embeddings"))
    with _arrays.NOTHING if place is _arrays.HOST else _arrays.on_stream(place, library):
        names, scale = None, given["relevance_scale"]
        if pairs:
            problem, names = by_similarity.problem_of(op, similarity, given, place, errors, bool(check_values))
            implementation = by_similarity.implementation_of(problem, name, backend) or implementation
        else:
            problem = validate.problem_of(op, given, place, errors)
        if outside is not None:
            problem.outside = certificate.read(problem, outside, errors)
        if adaptive:
            problem.lambda_d = adagres.weights(problem, skip=errors is not None)
        if problem.num_queries == 0:
            result = Selection(*map(place.upload, Selection.empty(0, problem.k)))
            if outside is not None:
                result.certified, result.pool_needed = np.zeros(0, bool), np.zeros(0, np.float32)
        else:
            as_given = relevance is not None and scale == "as-is"
            if as_given:
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
            validate.warn_small_pool(problem, given, columns, result.lengths, errors)
            if as_given:
                warn_narrow(problem, result, lambda part: backend_op(part, threads))
            if columns > problem.pool:
                result = _padded(result, columns)
            if outside is not None:
                certificate.conclude(problem, result, asked)
        cost = None if problem.constraints.costs is None else place.upload(cost_of(problem, result))
        if names is not None:  # of the positions that have been picked
            result = by_similarity.named(result, names)
        if cost is not None:
            result.cost = cost
        if adaptive:
            result.lambda_d = problem.lambda_d
        if library != "numpy" or name in ("triton", "torch"):
            result = _in_library(result, library)
        return result if errors is None else result.with_errors(dict(sorted(errors.items())))


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
