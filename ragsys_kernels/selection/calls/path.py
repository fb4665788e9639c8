"""The public call of the path: every selection of MMR by its weight of relevance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _dispatch
from ..._base import arrays as _arrays
from ..._base import checks
from ..._base.arrays import HOST
from ..._base.hints import hinted
from ..._base.types import ArrayLike, Backend, MaxPerGroup, Metric, RelevanceScale
from .. import capabilities, validate
from ..filtered_problems import narrowed
from ..problem import Problem, Rows, SelectionPath
from ..relevance import warn_range
from ..request import Request

_OP = "mmr_path"
# Arguments that are arrays: their library is that of the results.
_ARRAYS = (
    "queries", "embeddings", "candidates", "relevance", "bias", "groups", "query_groups", "initial", "allowed",
    "exclude", "costs",
)  # fmt: skip


@hinted(_OP)
def mmr_path(
    queries: ArrayLike | None,
    embeddings: ArrayLike | Rows,
    k: int | ArrayLike,
    *,
    candidates: ArrayLike | None = None,
    low: float = 0.0,
    high: float = 1.0,
    relevance: ArrayLike | None = None,
    relevance_scale: RelevanceScale = "as-is",
    bias: ArrayLike | None = None,
    lambda_b: float | ArrayLike = 0.95,
    groups: ArrayLike | None = None,
    query_groups: ArrayLike | None = None,
    max_per_group: MaxPerGroup | None = None,
    initial: ArrayLike | None = None,
    allowed: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    budget: float | ArrayLike | None = None,
    max_similarity: float | ArrayLike | None = None,
    min_relevance: float | ArrayLike | None = None,
    metric: Metric = "cosine",
    backend: Backend = "auto",
    num_threads: int | None = None,
) -> SelectionPath:
    """Return every selection that `mmr` makes of each query, with the range of ``lambda_d`` that makes it.

    After the same picks, the value of an item, ``lambda_d * v - (1 - lambda_d) * m``, is a line in lambda_d, and the
    next pick is the item with the highest line. The picks therefore change only at a few values of lambda_d, which are
    found exactly; a grid of weights would miss some selections and repeat others. Parameters are those of `mmr`, with
    these differences.

    Parameters
    ----------
    queries, embeddings, k, candidates, relevance, relevance_scale, bias, lambda_b
        As in `mmr`.
    low, high : float, in [0, 1]
        The range of lambda_d, both ends included. The first pick of a query without initial items does not depend on
        it.
    groups, query_groups, max_per_group, initial, allowed, exclude, costs, budget, max_similarity, min_relevance,
    metric, num_threads
        As in `mmr`.
    backend : {"auto", "cpu", "reference"}
        Arrays must be on the host: there are no GPU kernels for paths.

    Returns
    -------
    SelectionPath
        ``cu_segments`` (Q + 1,) int64, ``low`` and ``high`` (S,) float64, ``indices`` (S, K) int64 padded with -1: the
        S segments of all queries, those of a query in increasing lambda_d. Torch tensors where `mmr` gives them, else
        NumPy arrays. ``path.at(lambda_d)`` gives the picks at a weight, ``path.of(q)`` the path of one query.

    Raises
    ------
    ValueError
        A shape, range or value that breaks a rule above or of `mmr`; arrays on a device.
    TypeError
        An argument of the wrong kind or element type.
    BackendUnavailableError
        The requested backend cannot run here.

    Warns
    -----
    PoolSizeWarning, RelevanceRangeWarning
        As in `mmr`.
    ConversionWarning
        Embeddings are float64.

    Notes
    -----
    If two lines cross exactly at a float64, the item of the lowest position is picked at that lambda_d, as by `mmr`; on
    either side the higher line wins. Segments therefore include both ends, the next float64 after a segment's ``high``
    is the next one's ``low``, and a selection that holds for a single lambda_d has equal ends. Different segments of a
    query have different picks, or the same picks in another order.

    v and m are the relevance and redundancy that `mmr` reports: float32 in the compiled backend, with its bits, and
    float64 in the reference. The computation from them is exact. `mmr` itself rounds lambda_d and the values to
    float32, so within some 1e-7 of a breakpoint it may return the picks of the other side, a near-tie.

    O(Q P (D R + N)) time, for R different picks and N prefixes of picks a query, and O(P (R + K)) memory a thread
    beside the result. Pools of 100 real embeddings have some 30 segments a query with k = 6 and some 70 with k = 10;
    large k has many more, 50 of 100 a thousand.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    >>> path = rk.mmr_path(np.array([[1, 0.2]], np.float32), embeddings, 2)
    >>> path.indices
    array([[1, 2],
           [1, 0]])
    >>> path.high.round(3)
    array([0.533, 1.   ])
    >>> path.at(0.3)
    array([[1, 2]])
    """
    request = Request(
        _OP, queries, embeddings, k, candidates, relevance, relevance_scale, groups, query_groups, max_per_group,
        None, initial, allowed, exclude, costs, budget, max_similarity, min_relevance, metric, bias=bias,
        lambda_b=lambda_b,
    )  # fmt: skip
    threads = checks.threads(_OP, num_threads)
    low, high = _weight("low", low), _weight("high", high)
    if low > high:
        raise ValueError(f"{_OP}: high must be at least low = {low:g}, got {high:g}")
    arrays = {name: getattr(request, name) for name in _ARRAYS}
    if isinstance(embeddings, Rows):
        arrays["embeddings"] = embeddings.data
    library, device = checks.library_and_device(_OP, arrays)
    if device != "cpu":
        raise ValueError(f"{_OP}: arrays must be on the host, got arrays on {device!r}")
    needs = capabilities.Needs.of(request)
    _, implementation = _dispatch.choose(_OP, "selection", device, backend, None, needs)
    problem = validate.problem_of(request, HOST)
    path = SelectionPath.joined([], problem.k)
    if problem.num_queries:
        if relevance_scale == "as-is":
            warn_range(problem)
        problem = problem if problem.constraints.filter is None else narrowed(problem)
        k = problem.k
        path = _made(problem, low, high, threads, implementation.mmr_path)
        # All that may be picked is picked for every weight, or for none.
        lengths = np.count_nonzero(path.indices[path.cu_segments[:-1]] >= 0, axis=1)
        validate.warn_small_pool(problem, request, k, lengths)
    return SelectionPath(*(_arrays.to_library(field, library) for field in path))


def _made(
    problem: Problem, low: float, high: float, threads: int, backend: Callable[[Problem, float, float, int], Any]
) -> SelectionPath:
    """Call the backend; columns beyond the pool are padding."""
    columns = problem.clip()
    path: SelectionPath = backend(problem, low, high, threads)
    if columns == problem.k:
        return path
    wide = np.full((len(path.low), columns), -1, np.int64)
    wide[:, : problem.k] = path.indices
    return path._replace(indices=wide)


def _weight(name: str, value: Any) -> float:
    """Check a number of [0, 1]."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{_OP}: {name} must be a number, got {checks.shown(value)}")
    if not 0 <= value <= 1:
        raise ValueError(f"{_OP}: {name} must be within [0, 1], got {value:g}")
    return float(value)
