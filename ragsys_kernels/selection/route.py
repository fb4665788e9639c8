"""Which backend answers a request, where its arrays are, by how many threads: looked at once for each call."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _dispatch
from .._base import arrays as _arrays
from .._base import checks, env
from .._gpu import preference
from . import capabilities
from .problem import Rows
from .request import Request


class Route(NamedTuple):
    """What is settled of a call before its arrays are read."""

    name: str  # of the backend
    implementation: Any  # what runs a rule or a search of it
    place: _arrays.Place
    library: str  # of the results
    threads: int  # 0: the number of processors
    errors: dict[int, str] | None  # takes those of single queries; None: they are raised


def of(request: Request, op: str) -> Route:
    """Return the route of a request; ``op`` is what errors name."""
    num_threads, on_error, similarity = request.num_threads, request.on_error, request.similarity
    threads = env.named_threads() if num_threads is None else checks.threads(op, num_threads)
    errors = None if type(on_error) is str and on_error == "raise" else checks.skipped(op, on_error)
    rule, embeddings, outside = request.op, request.embeddings, request.outside
    is_corpus = isinstance(embeddings, Rows)
    arrays = {
        "queries": request.queries, "embeddings": embeddings.data if is_corpus else embeddings,
        "candidates": request.candidates, "relevance": request.relevance, "bias": request.bias,
        "groups": request.groups, "query_groups": request.query_groups, "initial": request.initial,
    }  # fmt: skip
    if request.allowed is not None or request.exclude is not None:
        arrays.update(allowed=request.allowed, exclude=request.exclude)
    if similarity is not None:
        arrays["similarity"] = None if callable(similarity) or hasattr(similarity, "tocsr") else similarity
    needs = None
    binary = is_corpus and embeddings.dtype == "binary"
    usual = rule in ("mmr", "vrsd") and request.costs is None and not binary  # which every backend has
    if not (usual and capabilities.are_usual(request)):
        arrays["costs"] = request.costs
        arrays["outside"] = None if isinstance(outside, (int, float)) else outside
        needs = capabilities.Needs.of(request, binary)
    library, device = checks.library_and_device(op, arrays)
    if device != "cpu":
        whole = request.candidates is None and len(getattr(arrays["embeddings"], "shape", ())) == 2
        needs = capabilities.Needs.of(request, binary, whole, arrays)
    if rule == "msd" and isinstance(request.lambda_d, str) and device != "cpu":
        raise ValueError(f"{op}: lambda_d 'adagres' must come with arrays on the host, got arrays on {device!r}")
    implementation: Any
    if similarity is not None:
        from . import by_similarity

        name, implementation = by_similarity.backend_of(op, device, request.backend)
    else:
        call = None if device == "cpu" else preference.of(rule, arrays)
        name, implementation = _dispatch.choose(op, "selection", device, request.backend, call, needs)
    place = _arrays.place_of(device, name, library)
    if place is not _arrays.HOST and is_corpus:  # a Corpus has tensors there, whoever calls
        library = _arrays.library_of(*(x for name, x in arrays.items() if name != "embeddings"))
    return Route(name, implementation, place, library, threads, errors)
