"""Rows of a corpus chosen without queries: `Corpus.subset`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base import arrays, checks
from .._base.arrays import HOST
from ..selection.parameters import SCALES
from ..selection.problem import Selection, unit
from ..selection.request import Request
from ..selection.run import planned_run
from ..selection.validate import NEEDS_QUERIES
from . import certified, folder_index, windows
from .graph import graph_of
from .retrieve import completed
from .rows import place_of

OP = "subset"
TOWARD = ("mean", "max")

_BLOCK_VALUES = 1 << 22  # of float64, in a block of rows and in their products with the targets


def subset(
    request: Request, targets: Any, target_relevance: str, neighbors: Any = None, index: Any = None
) -> Selection:
    """Return the picks of a request without queries over a corpus, as of one query.

    Its relevance is 0, or that to the targets. Values of one rule are None where they are not given.
    """
    corpus, rule = request.embeddings, request.op
    check_toward(targets, target_relevance, request.relevance_scale, request.min_relevance)
    request = completed(request, OP, "rule")
    place = place_of(OP, corpus.device)
    if neighbors is not None:
        neighbors = _neighbors(request, neighbors)
        index = folder_index.chosen(corpus, index, request.backend)
    elif index is not None:
        raise ValueError(f"{OP}: index must come with neighbors, got neighbors=None")
    if targets is None:
        if rule in NEEDS_QUERIES:
            raise ValueError(f"{OP}: targets must be given with rule {rule!r}, got None")
        relevance = place.upload(np.zeros((1, len(corpus)), np.float32))
        request = request.changed(relevance=relevance)
    else:
        if place is not HOST:
            raise ValueError(f"{OP}: targets must come with a corpus on the host, got one on {corpus.device}")
        vectors = _targets(corpus, targets)
        if target_relevance == "mean":
            vectors = vectors.mean(axis=0, keepdims=True)
        if rule in NEEDS_QUERIES:
            if target_relevance != "mean":
                raise ValueError(f"{OP}: target_relevance must be 'mean' with rule {rule!r}, got {target_relevance!r}")
            request = request.changed(queries=vectors.astype(np.float32))
        else:
            request = request.changed(relevance=_relevance(corpus, vectors)[None])
    if neighbors is not None:
        request = request.changed(graph=graph_of(request, neighbors, index))
    picks: Selection = planned_run(request)
    if place is HOST:
        if neighbors is None or index is False:  # an index may miss neighbors
            certified.of_all_rows(picks)
        if corpus._memory is not None:
            windows.forget(corpus, 0, len(corpus))
    return picks


def check_toward(targets: Any, target_relevance: Any, relevance_scale: Any, min_relevance: Any) -> None:
    """Refuse, without targets, what is of the relevance to them."""
    checks.choice(OP, "target_relevance", target_relevance, TOWARD)
    checks.choice(OP, "relevance_scale", relevance_scale, SCALES)
    usual = {"target_relevance": TOWARD[0], "relevance_scale": SCALES[0], "min_relevance": None}
    given = zip(usual.items(), (target_relevance, relevance_scale, min_relevance), strict=True)
    for (name, default), value in given if targets is None else ():
        if value != default:
            raise ValueError(f"{OP}: {name} must come with targets, got {checks.shown(value)} alone")


def _neighbors(request: Request, neighbors: Any) -> int:
    """Return how many nearest rows of each row count; refuse what they do not go with."""
    number = checks.count(OP, "neighbors", neighbors)
    if request.op != "coverage":
        raise ValueError(f"{OP}: neighbors must be left out with rule {request.op!r}, got {number}")
    if request.aspects is not None:
        raise ValueError(f"{OP}: neighbors must come without aspects, got both")
    if request.embeddings.device != "cpu":
        raise ValueError(f"{OP}: neighbors must come with a corpus on the host, got one on {request.embeddings.device}")
    return number


def one_query(ids: Any) -> Any:
    """Return a list of rows (M,) as that of one query, (1, M)."""
    try:
        axes = np.ndim(ids)
    except ValueError:  # a ragged list, which is refused where it is read
        return ids
    if ids is None or axes != 1:
        return ids
    return ids[None] if hasattr(ids, "dtype") else [ids]


def _targets(corpus: Any, targets: Any) -> np.ndarray:
    """Return the vectors of the formulas (T, D) that targets stand for, in float64."""
    if arrays.device_of(targets) != "cpu":
        raise ValueError(f"{OP}: targets must be on the host, got them on {arrays.device_of(targets)}")
    array = checks.doubles(OP, "targets", targets)
    if array.ndim != 2 or array.shape[1] != corpus.dims or not len(array):
        shape = checks.shape_text(array.shape)
        raise ValueError(f"{OP}: targets must have shape (T, D) with D = {corpus.dims}, and T at least 1, got {shape}")
    if not (finite := np.isfinite(array).all(axis=1)).all():
        raise ValueError(f"{OP}: targets must be finite, got NaN or inf in row {int(np.argmin(finite))}")
    return unit(array) if corpus.metric == "cosine" else array


def _relevance(corpus: Any, vectors: np.ndarray) -> np.ndarray:
    """Return each row's largest similarity to some vectors, (N,) float32."""
    found = np.empty(len(corpus), np.float32)
    step = max(1, _BLOCK_VALUES // (corpus.dims + len(vectors)))
    for begin in range(0, len(found), step):
        block = slice(begin, begin + step)
        found[block] = (corpus.vectors(block) @ vectors.T).max(axis=1)
    return found
