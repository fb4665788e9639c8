"""The best rows of a corpus for each query: by the exact search, through an index, in windows."""

from __future__ import annotations

from typing import Any

from .. import _dispatch
from .._base import arrays as _arrays
from .._base import checks
from .._base.arrays import HOST, Torch
from ..selection import capabilities, validate
from ..selection.filtered_problems import narrowed
from ..selection.problem import Problem, Rows, SearchResult, Selection
from ..selection.request import Request
from ..selection.skip import answered
from . import faiss_index, first_stage, windows


def search(request: Request, index: Any) -> SearchResult:
    """Return the k best rows of each query; ``op`` of the request is what the caller called, which errors name."""
    op, corpus, num_threads, backend = request.op, request.embeddings, request.num_threads, request.backend
    errors = checks.skipped(op, request.on_error)
    of_queries = {name: getattr(request, name) for name in ("queries", "query_groups", "allowed", "exclude")}
    device = checks.same_device(op, {**of_queries, "the corpus": corpus.data})
    library = _arrays.library_of(*of_queries.values())
    lacking = capabilities.Needs("mmr", binary=True).lacking if corpus.dtype == "binary" else None
    name, implementation = _dispatch.choose(op, "selection", device, backend, lacking=lacking)
    place = HOST if device == "cpu" else Torch(device)
    threads = 1 if num_threads is None and place is not HOST else checks.threads(op, num_threads)
    with _arrays.on_stream(place, library):
        problem = validate.problem_of(request, place, errors, k_name="n")
        if problem.ks is not None:
            raise TypeError(f"{op}: n must be one integer, got an array")
        if index is not None and (place is not HOST or name == "triton"):
            raise ValueError(f"{op}: index must come with arrays on the host, got queries for backend {name!r}")
        if place is HOST and index is None and name != "triton":
            problem = narrowed(problem)

        def answer(problem: Problem) -> Any:
            if index is not None:
                stage = first_stage if isinstance(index, Rows) else faiss_index
                return stage.search(problem, index, implementation, threads)
            if corpus._memory is not None:
                return windows.search(problem, lambda part: implementation.search(part, threads), corpus._memory)
            return implementation.search(problem, threads)

        padding = Selection.empty(problem.num_queries, problem.k)[:2]
        if problem.num_queries == 0:
            found: Any = map(place.upload, padding)
        elif errors is None:
            found = answer(problem)
        else:
            found = answered(problem, answer, padding, errors, place, check=False)
        result = SearchResult(*(_arrays.to_library(field, library) for field in found))
    return result if errors is None else result.with_errors(dict(sorted(errors.items())))
