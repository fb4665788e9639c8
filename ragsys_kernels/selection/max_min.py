"""GIST: a sum of relevance and the least distance between picks, within a known share of the best."""

from __future__ import annotations

import numpy as np

from .. import _arrays, _checks
from .._gpu.plans import planned
from .._types import ArrayLike, Metric, RelevanceScale
from . import options, validate
from .filtered_problems import narrowed
from .problem import Problem, Rows, Selection
from .rules.pool import in_range, pool_of

# A query's items have at most so many distances (512 MiB): whoever asks for more had a pool in mind.
_MOST_DISTANCES = 1 << 26


@planned("gist")
def gist(
    queries: ArrayLike | None,
    embeddings: ArrayLike | Rows,
    k: int | ArrayLike,
    *,
    candidates: ArrayLike | None = None,
    relevance: ArrayLike | None = None,
    relevance_scale: RelevanceScale = "as-is",
    bias: ArrayLike | None = None,
    lambda_d: float | ArrayLike = 0.25,
    lambda_b: float | ArrayLike = 0.95,
    eps: float = 0.1,
    groups: ArrayLike | None = None,
    query_groups: ArrayLike | None = None,
    allowed: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    metric: Metric = "cosine",
    num_threads: int | None = None,
) -> Selection:
    """Pick at most k items per query by max-min diversification: GIST (Fahrbach et al., NeurIPS 2025).

    With v_i the relevance with bias as in `mmr` and dist the Euclidean distance of items, unit vectors with
    ``metric="cosine"``, where it is sqrt(2 - 2 cos)::

        f(S) = lambda_d * sum of v over S + (1 - lambda_d) * the least dist of two items of S

    of which one item alone has the largest distance D of the pool. The result is the best by f of: the items of largest
    v; the two items D apart; and, for every threshold (1 + eps)**i * eps * D / 2 up to D, the items of largest v that
    are each at least the threshold apart from those before. Ties go to the first of these, and to the lowest position.

    Where no v is below 0, f is at least 2/3 - eps of the best that any k items or fewer have (theorem 3.3 of arXiv
    2405.18754), and to come nearer than 2/3 is NP-hard. Rules that pick an item at a time, such as `mmr`, have no
    such bound. Parameters and errors are those of `mmr`, with these differences.

    Parameters
    ----------
    k : int or (Q,) integers
        At most so many picks: fewer where their distance is worth more.
    lambda_d : float or (Q,), in [0, 1]
        Weight of the sum of relevance, which grows with the picks, against the least distance, which does not.
    eps : float, above 0 and at most 1
        With less of it more thresholds are tried, about log(2 / eps) / eps.

    Returns
    -------
    Selection
        In the order in which they were taken. ``scores`` is f of the picks up to each, the last of them that of all;
        ``redundancy`` the largest cosine (product with "dot") to an earlier pick.

    Raises
    ------
    ValueError
        A pool of more than 8,192 items, besides what `mmr` raises: all distances are compared.

    Notes
    -----
    NumPy in float64, on the host. O(P² D + P K log(2 / eps) / eps) time for a query.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    >>> rk.gist(np.array([[1, 0.2]], np.float32), embeddings, 2).indices
    array([[0, 2]])
    """
    op = "gist"
    _checks.threads(op, num_threads)
    step = options.number(op, "eps", eps, "above 0 and at most 1", lambda x: 0 < x <= 1)
    arrays = {
        "queries": queries,
        "embeddings": embeddings.data if isinstance(embeddings, Rows) else embeddings,
        "candidates": candidates, "relevance": relevance, "bias": bias, "groups": groups,
        "query_groups": query_groups, "allowed": allowed, "exclude": exclude,
    }  # fmt: skip
    library, device = _checks.library_and_device(op, arrays)
    if device != "cpu":
        raise ValueError(f"{op}: arrays must be on the host, got arrays on {device!r}")
    problem = validate.selection(
        op, queries, embeddings, k, candidates=candidates, relevance=relevance, relevance_scale=relevance_scale,
        bias=bias, lambda_d=lambda_d, lambda_b=lambda_b, groups=groups, query_groups=query_groups, allowed=allowed,
        exclude=exclude, metric=metric,
    )  # fmt: skip
    found = Selection.empty(problem.num_queries, problem.k)
    if problem.num_queries:
        validate.warn_small_pool(problem)
        problem = problem if problem.constraints.filter is None else narrowed(problem)
        for q in range(problem.num_queries):
            _select(problem, q, step, found)
    return Selection(*(_arrays.to_library(field, library) for field in found))


def _select(problem: Problem, q: int, eps: float, found: Selection) -> None:
    pool = pool_of(problem, q)
    n, k = len(pool.rows), problem.k if problem.ks is None else int(problem.ks[q])
    if n**2 > _MOST_DISTANCES:
        most = int(_MOST_DISTANCES**0.5)
        raise ValueError(f"{problem.op}: candidates must leave at most {most} items a query, got {n}; retrieve a pool")
    if not n:
        return
    similarity = pool.e @ pool.e.T
    in_range(problem, q, similarity)
    squares = np.einsum("nd,nd->n", pool.e, pool.e)
    distance = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * similarity, 0))
    np.fill_diagonal(distance, 0)
    weight = float(problem.lambda_d[q])
    picks = best_of(pool.v, distance, min(k, n), weight, eps)
    values = objective(pool.v, distance, picks, weight)
    in_range(problem, q, np.asarray(values))
    for step, i in enumerate(picks):
        found.indices[q, step] = pool.rows[i] - q * problem.pool_stride
        found.scores[q, step] = values[step]
        found.relevance[q, step] = pool.v[i]
        found.redundancy[q, step] = similarity[i, picks[:step]].max() if step else 0.0
    found.lengths[q] = len(picks)


def objective(v: np.ndarray, distance: np.ndarray, picks: list[int], weight: float) -> list[float]:
    """Return f of the picks up to each."""
    least, total, found = float(distance.max(initial=0)), 0.0, []
    for step, i in enumerate(picks):
        total += float(v[i])
        least = min(least, float(distance[i, picks[:step]].min(initial=np.inf)))
        found.append(weight * total + (1 - weight) * least)
    return found


def best_of(v: np.ndarray, distance: np.ndarray, k: int, weight: float, eps: float) -> list[int]:
    """Return the best of what the thresholds give, as items in the order in which they are taken."""
    order = np.argsort(-v, kind="stable")
    largest = float(distance.max())
    sets = _apart(distance, order, k, np.zeros(1))
    if k >= 2 and largest > 0:
        pair = np.unravel_index(np.argmax(distance), distance.shape)
        sets.append(sorted((int(i) for i in pair), key=lambda i: (-v[i], i)))
    if largest > 0:
        powers = (1 + eps) ** np.arange(1 + int(np.floor(np.log(2 / eps) / np.log1p(eps))))
        sets += _apart(distance, order, k, powers * eps * largest / 2)
    values = [weight * v[picks].sum() + (1 - weight) * _least(distance, picks, largest) for picks in sets]
    return sets[int(np.argmax(values))]


def _least(distance: np.ndarray, picks: list[int], alone: float) -> float:
    """Return the least distance of two picks, or that of one alone."""
    if len(picks) < 2:
        return alone
    among = distance[picks][:, picks]
    return float(among[np.tri(len(picks), k=-1, dtype=bool)].min())


def _apart(distance: np.ndarray, order: np.ndarray, k: int, thresholds: np.ndarray) -> list[list[int]]:
    """Return, for each threshold, the first k items of an order that are so far from those before them."""
    apart = distance[np.ix_(order, order)]
    free = np.ones((len(thresholds), len(order)), bool)
    sets: list[list[int]] = [[] for _ in thresholds]
    for _ in range(k):
        first = free.argmax(axis=1)
        some = np.flatnonzero(free[np.arange(len(thresholds)), first])
        if not some.size:
            break
        for t in some.tolist():
            sets[t].append(int(order[first[t]]))
        free[some] &= apart[first[some]] >= thresholds[some, None]
        free[some, first[some]] = False
    return sets
