"""Max-min diversification: GIST, whose picks are chosen together."""

from __future__ import annotations

from ..._base.types import ArrayLike, Backend, MaxPerGroup, Metric, MinPerGroup, OnError, RelevanceScale
from ..._gpu.plans import planned
from ..problem import Rows, Selection
from ..request import Request
from ..run import run


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
    max_per_group: MaxPerGroup | None = None,
    min_per_group: MinPerGroup | None = None,
    initial: ArrayLike | None = None,
    allowed: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    budget: float | ArrayLike | None = None,
    max_similarity: float | ArrayLike | None = None,
    min_relevance: float | ArrayLike | None = None,
    nearest: bool = False,
    metric: Metric = "cosine",
    check_values: bool | None = None,
    backend: Backend = "auto",
    num_threads: int | None = None,
    on_error: OnError = "raise",
) -> Selection:
    """Pick at most k items per query by max-min diversification: GIST (Fahrbach et al., NeurIPS 2025).

    With v_i the relevance with bias as in `mmr` and dist the Euclidean distance of items, unit vectors with
    ``metric="cosine"``, where it is sqrt(2 - 2 cos)::

        f(S) = lambda_d * sum of v over S + (1 - lambda_d) * the least dist of two items of S

    For a single item the distance is D, the largest in the pool. The result is the best by f of: the items of largest
    v; the two items at distance D; and, for every threshold (1 + eps)**i * eps * D / 2 up to D, the items of largest v
    that are at least the threshold apart from the earlier ones. Ties go to the first of these, and to the lowest
    position. Of more than 8,192 items, for which to find D takes too long, the largest distance that is found takes its
    place: at least 0.7 D, by a bound, or the thresholds are finer; so the guarantee below holds.

    If no v is below 0, f is at least 2/3 - eps of the optimum over sets of at most k items (theorem 3.3 of arXiv
    2405.18754); exceeding 2/3 is NP-hard. Rules that pick one item at a time, such as `mmr`, have no such guarantee.
    Parameters and errors are those of `mmr`, with these differences.

    Parameters
    ----------
    k : int or (Q,) integers
        The largest number of picks; fewer if their distance is worth more.
    lambda_d : float or (Q,), in [0, 1]
        Weight of the sum of relevance, which grows with the picks, against the least distance, which does not.
    eps : float, above 0 and at most 1
        A smaller eps tries more thresholds, about log(2 / eps) / eps.

    Returns
    -------
    Selection
        In the order in which they were taken. ``scores`` is f of the picks up to each, the last of them that of all;
        ``redundancy`` the largest cosine (product with "dot") to an earlier pick.

    Raises
    ------
    ValueError
        What `mmr` raises; ``max_per_group``, ``initial``, ``costs``, ``budget`` or ``max_similarity``, which all picks
        together cannot keep to.

    Notes
    -----
    NumPy in float64, on the host. O(P² D + P K log(2 / eps) / eps) time for a query of up to 8,192 items. Of more
    O(P K D log(2 / eps) / eps) at most, and usually the time to read the items some 50 times: thresholds that cannot
    be better than the best so far are given up. With an eps below 0.1 the guarantee may take the comparison of all
    pairs, O(P² D). O(P D) memory.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    >>> rk.gist(np.array([[1, 0.2]], np.float32), embeddings, 2).indices
    array([[0, 2]])
    """
    return run(Request(
        "gist", queries, embeddings, k, candidates, relevance, relevance_scale, groups, query_groups, max_per_group,
        min_per_group, initial, allowed, exclude, costs, budget, max_similarity, min_relevance, metric, check_values,
        backend, num_threads, on_error, None, bias, lambda_d, lambda_b, eps=eps, nearest=nearest,
    ))  # fmt: skip
