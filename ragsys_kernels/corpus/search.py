"""The best rows of a corpus for each query: by the exact search, through an index, in windows."""

from __future__ import annotations

from typing import Any

from .. import _dispatch
from .._base import arrays as _arrays
from .._base import checks, env
from .._base.arrays import HOST, Torch
from ..selection import capabilities, validate
from ..selection.filtered_problems import narrowed
from ..selection.problem import Problem, Rows, SearchResult, Selection
from ..selection.request import Request
from ..selection.route import Route
from ..selection.skip import answered
from . import faiss_index, first_stage, folder_index, index_search, windows
from .folder_index import FolderIndex


def search(request: Request, index: Any, route: Route | None = None) -> SearchResult:
    """Return the k best rows of each query; ``op`` of the request is what the caller called, which errors name.

    ``route``: that of a call which the search is a step of.
    """
    op, corpus = request.op, request.embeddings
    name, implementation, place, library, threads, errors = route or _route(request)
    if not threads:
        threads = env.num_threads() if place is HOST else 1
    with _arrays.NOTHING if place is HOST else _arrays.on_stream(place, library):
        problem = validate.problem_of(request, place, errors, k_name="n")
        if problem.ks is not None:
            raise TypeError(f"{op}: n must be one integer, got an array")
        index = folder_index.chosen(corpus, index, name)
        if index is not False and (place is not HOST or name == "triton"):
            raise ValueError(f"{op}: index must come with arrays on the host, got queries for backend {name!r}")
        if problem.constraints.filter is not None and place is HOST and index is False and name != "triton":
            problem = narrowed(problem)

        def answer(problem: Problem) -> Any:
            if isinstance(index, FolderIndex):
                return index_search.search(problem, index, implementation, threads, corpus._memory)
            if index is not False:
                stage = first_stage if isinstance(index, Rows) else faiss_index
                return stage.search(problem, index, implementation, threads)
            if corpus._memory is not None:
                return windows.search(problem, lambda part: implementation.search(part, threads), corpus._memory)
            return implementation.search(problem, threads)

        nothing = Selection.empty(problem.num_queries, problem.k)[:2]
        if not problem.num_queries:
            found: Any = map(place.upload, nothing)
        elif errors is None:
            found = answer(problem)
        else:
            found = answered(problem, answer, nothing, errors, place, check=False)
        result = SearchResult(*(found if library == "numpy" else (_arrays.to_library(x, library) for x in found)))
    return result if errors is None else result.with_errors(dict(sorted(errors.items())))


def _route(request: Request) -> Route:
    """Return the route of a search alone. On a device the arrays are torch's, whichever backend it is."""
    op, corpus, num_threads = request.op, request.embeddings, request.num_threads
    errors = checks.skipped(op, request.on_error)
    of_queries = {name: getattr(request, name) for name in ("queries", "query_groups", "allowed", "exclude")}
    device = checks.same_device(op, {**of_queries, "the corpus": corpus.data})
    needs = capabilities.Needs("mmr", None, (capabilities.BINARY,)) if corpus.dtype == "binary" else None
    name, implementation = _dispatch.choose(op, "selection", device, request.backend, needs=needs)
    threads = 0 if num_threads is None else checks.threads(op, num_threads)
    place = HOST if device == "cpu" else Torch(device)
    return Route(name, implementation, place, _arrays.library_of(*of_queries.values()), threads, errors)
