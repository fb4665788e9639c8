"""Rules that spread the picks over what the items span: MSD, DPP, SSD, SIFT."""

from __future__ import annotations

from typing import Literal

from ..._base.types import ArrayLike, Backend, MaxPerGroup, Metric, MinPerGroup, OnError, RelevanceScale, Similarity
from ..._gpu.plans import planned
from ..problem import Rows, Selection
from ..request import Request
from ..run import run


@planned("msd")
def msd(
    queries: ArrayLike | None = None,
    embeddings: ArrayLike | Rows | None = None,
    k: int | ArrayLike | None = None,
    *,
    candidates: ArrayLike | None = None,
    relevance: ArrayLike | None = None,
    relevance_scale: RelevanceScale = "as-is",
    similarity: Similarity | None = None,
    bias: ArrayLike | None = None,
    lambda_d: float | ArrayLike | Literal["adagres"] = 0.75,
    lambda_b: float | ArrayLike = 0.95,
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
    """Pick k items per query that are relevant and far from one another: max-sum dispersion.

    With v_i the relevance with bias and s_ij the cosine of two items, as in `mmr`::

        C_1 = argmax_i v_i
        C_s = argmax over unpicked i of lambda_d * v_i + (1 - lambda_d) * sum over picks C of (1 - s_iC)

    The distance is -s_ij with ``metric="dot"``. ``lambda_d=1`` is plain top-k. Ties go to the lowest position.
    Parameters, results, errors and notes are those of `mmr`, with these differences.

    Parameters
    ----------
    lambda_d : float or (Q,), in [0, 1], or "adagres"
        The sum grows with the picks, and so does its weight against the relevance. "adagres" (AdaGReS, arXiv
        2512.25052) weighs by how many items fit in the ``budget``, which it needs, and by how relevant and how alike
        the items of the pool are: 1 / (1 + β), β = mean v / ((k̄ - 1)/2 · mean s_ij) with k̄ = floor(budget / mean cost);
        1 where no more than one item fits or a mean is not above 0. k̄ may exceed the pool. Computed on the host.

    Returns
    -------
    Selection
        ``redundancy`` is the mean similarity to the earlier picks; the attribute ``lambda_d`` (Q,) has the values
        computed by "adagres".

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    >>> rk.msd(np.array([[1, 0.2]], np.float32), embeddings, 2, lambda_d=0.3).indices
    array([[1, 2]])
    """
    return run(Request(
        "msd", queries, embeddings, k, candidates, relevance, relevance_scale, groups, query_groups, max_per_group,
        min_per_group, initial, allowed, exclude, costs, budget, max_similarity, min_relevance, metric, check_values,
        backend, num_threads, on_error, similarity, bias, lambda_d, lambda_b, nearest=nearest,
    ))  # fmt: skip


@planned("dpp")
def dpp(
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
    quality: ArrayLike | Literal["zscore"] = "zscore",
    scale: float = 1.0,
    window: int | None = None,
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
    """Pick k items per query whose determinant is largest, greedily: a determinantal point process (Chen et al. 2018).

    With s_ij the cosine of two items and q_i the quality of one::

        L_ij = q_i * s_ij * q_j
        C_s  = argmax over unpicked i of d_i = det L of the picks and i / det L of the picks

    Ties go to the lowest position. Parameters, results, errors and notes are those of `mmr`, with these differences.

    Parameters
    ----------
    similarity : (Q, P, P) floating point, or a function, or sparse rows (N, V), optional
        Must be symmetric, without negative eigenvalues, or there is no determinantal point process. On the host a part
        is checked: the diagonal and eight pairs of a matrix, each pick with the first one, and the sign of
        determinants. s_ij and s_ji may differ by 0.02 of the geometric mean of s_ii and s_jj.
    lambda_d : float or (Q,), in [0, 1]
        Weight of relevance in the quality; no effect if ``quality`` is given.
    quality : "zscore", or (N,) or (Q, P) floating point, above 0
        "zscore": q_i = exp(scale * lambda_d * z_i), with z_i the z-score of v_i (the relevance with bias) among the
        items that the query may pick, before budgets, caps and ceilings apply. Scaling all v by a positive factor
        changes nothing; if all v are equal, z_i = 0.
    scale : float, at least 0
        Weight of the z-scores.
    window : int, optional
        The number of last picks, ``initial`` items before them included, that count in both determinants; the paper's
        window is one more. Default: all. More than D picks need a window below D.

    Returns
    -------
    Selection
        ``scores`` is d, ``redundancy`` NaN without ``max_similarity``.

    Notes
    -----
    An item with d_i at most 1e-5 of L_ii is not picked, because float32 cannot distinguish d_i from rounding error. A
    selection may therefore end early: without a ``window`` after D picks, which span all items. With one, an item that
    the picks in it span may be picked once they have left it. O(Q K P (D + K)) time; when the window W slides, all
    items meet its picks anew: O(Q K P W D). On a GPU's backends a window of less than all picks cannot run.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    >>> rk.dpp(np.array([[1, 0.2]], np.float32), embeddings, 2).indices
    array([[1, 2]])
    """
    return run(Request(
        "dpp", queries, embeddings, k, candidates, relevance, relevance_scale, groups, query_groups, max_per_group,
        min_per_group, initial, allowed, exclude, costs, budget, max_similarity, min_relevance, metric, check_values,
        backend, num_threads, on_error, similarity, bias, lambda_d, lambda_b, quality=quality, scale=scale,
        window=window, nearest=nearest,
    ))  # fmt: skip


@planned("ssd")
def ssd(
    queries: ArrayLike | None,
    embeddings: ArrayLike | Rows,
    k: int | ArrayLike,
    *,
    candidates: ArrayLike | None = None,
    relevance: ArrayLike | None = None,
    relevance_scale: RelevanceScale = "as-is",
    bias: ArrayLike | None = None,
    lambda_d: float | ArrayLike = 0.5,
    lambda_b: float | ArrayLike = 0.95,
    gamma: float = 1.0,
    window: int | None = None,
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
    """Pick k items per query that are relevant and add volume to the last ones: sliding spectrum decomposition (SSD*).

    ::

        C_1 = argmax_i z_i
        C_s = argmax over unpicked i of lambda_d * z_i + (1 - lambda_d) * gamma * |n_i|

    z_i is the z-score of v_i (the relevance with bias, as in `mmr`) among the items that the query may pick, before
    budgets, caps and ceilings apply. Scaling all v by a positive factor changes nothing; if all v are equal, z_i = 0.
    n_i is the part of [e_i, 1] that the last ``window`` picks do not span. ``initial`` items, oldest first, count as
    picks; the first pick then also follows the second line. Ties go to the lowest position. Parameters, results, errors
    and notes are those of `mmr`, with these differences.

    Parameters
    ----------
    lambda_d : float or (Q,), in [0, 1]
        Weight of relevance against volume.
    gamma : float, above 0
        Weight of the volume.
    window : int, optional
        The number of last picks that count. Default: all.

    Returns
    -------
    Selection
        ``scores`` is the value of the second line for every pick, ``redundancy`` NaN without ``max_similarity``.

    Notes
    -----
    A pick with at most 1e-5 of its squared length outside the span of the earlier picks in the window does not extend
    that span. pyversity's algorithm for a window differs: ``integrations.pyversity.ssd``.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    >>> rk.ssd(np.array([[1, 0.2]], np.float32), embeddings, 2, lambda_d=0.2).indices
    array([[1, 2]])
    """
    return run(Request(
        "ssd", queries, embeddings, k, candidates, relevance, relevance_scale, groups, query_groups, max_per_group,
        min_per_group, initial, allowed, exclude, costs, budget, max_similarity, min_relevance, metric, check_values,
        backend, num_threads, on_error, None, bias, lambda_d, lambda_b, gamma=gamma, window=window, nearest=nearest,
    ))  # fmt: skip


@planned("sift")
def sift(
    queries: ArrayLike,
    embeddings: ArrayLike | Rows,
    k: int | ArrayLike,
    *,
    candidates: ArrayLike | None = None,
    relevance: ArrayLike | None = None,
    relevance_scale: RelevanceScale = "as-is",
    noise: float = 0.01,
    min_gain: float = 0.0,
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
    """Pick k items per query that leave the least uncertainty about it: SIFT, or VTL (arXiv 2410.08020).

    Of a Gaussian process with the cosine as its kernel, and observations with noise::

        u_i = covariance of item i with the query given the picks,   d_i = its variance given the picks
        C_s = argmax over unpicked i of u_i ** 2 / (d_i + noise)

    This is the reduction of the variance at the query, which is 1 before the first pick. Ties go to the lowest
    position. Parameters, results, errors and notes are those of `mmr`, with these differences.

    Parameters
    ----------
    queries : (Q, D)
        Required. They are normalised with both metrics.
    relevance : (Q, P), optional
        Used instead of the product of query and item, at which u_i starts. A corpus' bias has no effect.
    noise : float, above 0
        Variance of the observations. With less noise, a second similar item adds less.
    min_gain : float, at least 0
        The selection ends before a pick that would lower the variance by less than this.

    Returns
    -------
    Selection
        ``scores`` is the remaining variance at the query after the pick, ``redundancy`` NaN without ``max_similarity``.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    >>> rk.sift(np.array([[1, 0.4]], np.float32), embeddings, 2).indices
    array([[1, 2]])
    """
    return run(Request(
        "sift", queries, embeddings, k, candidates, relevance, relevance_scale, groups, query_groups, max_per_group,
        min_per_group, initial, allowed, exclude, costs, budget, max_similarity, min_relevance, metric, check_values,
        backend, num_threads, on_error, noise=noise, min_gain=min_gain, nearest=nearest,
    ))  # fmt: skip
