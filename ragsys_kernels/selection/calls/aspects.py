"""Rules that cover aspects: facility location, a concave sum, xQuAD."""

from __future__ import annotations

from typing import Literal

from ..._base.types import ArrayLike, Backend, MaxPerGroup, Metric, MinPerGroup, OnError, RelevanceScale, Similarity
from ..._gpu.plans import planned
from ..problem import Rows, Selection
from ..request import Request
from ..run import run


@planned("coverage")
def coverage(
    queries: ArrayLike | None = None,
    embeddings: ArrayLike | Rows | None = None,
    k: int | ArrayLike | None = None,
    *,
    candidates: ArrayLike | None = None,
    relevance: ArrayLike | None = None,
    relevance_scale: RelevanceScale = "as-is",
    similarity: Similarity | None = None,
    bias: ArrayLike | None = None,
    lambda_d: float | ArrayLike = 0.5,
    lambda_b: float | ArrayLike = 0.95,
    kind: Literal["facility", "cover", "xquad"] = "facility",
    aspects: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    gamma: float = 0.5,
    density: bool = False,
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
    """Pick k items per query that together are near to every aspect: facility location, a concave cover, xQuAD.

    With v_i the relevance with bias as in `mmr`, aspects a of weight w_a and S_ia = max(0, cos(e_i, a))::

        C_s = argmax over unpicked i of lambda_d * v_i + (1 - lambda_d) * gain_i

        facility   gain_i = sum_a w_a * max(0, S_ia - m_a),                     m_a = largest S of a pick
        cover      gain_i = sum_a w_a * ((A_a + S_ia)**gamma - A_a**gamma),     A_a = sum of S over the picks
        xquad      gain_i = sum_a w_a * S_ia * rho_a,                           rho_a = product of 1 - S over the picks

    S above 1 counts as 1 for "xquad", and in a given ``similarity`` unless ``metric="dot"``.

    All three are monotone and submodular: the greedy picks reach at least 1 - 1/e of the best coverage. ``lambda_d=1``
    is plain top-k. Ties go to the lowest position. Parameters, results, errors and notes are those of `mmr`, with these
    differences.

    Parameters
    ----------
    lambda_d : float or (Q,), in [0, 1]
        Weight of relevance against coverage.
    kind : {"facility", "cover", "xquad"}
    aspects : (Q, A, D) floating point, optional
        Vectors to cover, such as sub-queries or intents. Default: the items that the query may pick, before budgets,
        caps and ceilings apply.
    weights : (Q, A) floating point, at least 0, optional
        With ``aspects``. Default: 1 / A, for "cover" 1.
    gamma : float, above 0 and at most 1
        For "cover" only: a smaller gamma favours covering more aspects over items nearer to one.
    density : bool
        With a ``budget``: pick the largest value per cost. If the best single item that fits is worth more than all
        these picks together, it is returned instead, but not with ``min_per_group``. Costs below 1e-4 of the budget are
        raised to that, so items of cost 0 come first, by their gain, if it is above 0. The scores remain values.

    Returns
    -------
    Selection
        ``scores`` is the value, ``redundancy`` NaN without ``max_similarity``.

    Notes
    -----
    O(Q P A (D + K)) time, with the whole corpus as its own aspects O(Q N² (D + K)). The P A similarities of a query are
    kept up to 2^28, those of 16,384 rows as their own aspects. More are computed in blocks, with the same picks and
    bits, in O(P + A) memory beside the rows; a gain that is renewed takes A D time, and with "cover" and a ``gamma``
    other than 0.5 each pick renews all. Of more than 2^34, those of 131,072 rows, `Corpus.subset` takes ``neighbors``.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    >>> rk.coverage(np.array([[1, 0.2]], np.float32), embeddings, 2, lambda_d=0.1).indices
    array([[1, 2]])
    """
    return run(Request(
        "coverage", queries, embeddings, k, candidates, relevance, relevance_scale, groups, query_groups, max_per_group,
        min_per_group, initial, allowed, exclude, costs, budget, max_similarity, min_relevance, metric, check_values,
        backend, num_threads, on_error, similarity, bias, lambda_d, lambda_b, kind=kind, aspects=aspects,
        weights=weights, gamma=gamma, density=density, nearest=nearest,
    ))  # fmt: skip
