"""Selection rules over many queries at once: MMR with quality bias and VRSD here, the others in files of their own."""

from __future__ import annotations

from .._base.types import ArrayLike, Backend, MaxPerGroup, Metric, MinPerGroup, OnError, RelevanceScale, Similarity
from .._gpu.plans import planned
from .calls.aspects import coverage
from .calls.max_min import gist
from .calls.path import mmr_path
from .calls.volume import dpp, msd, sift, ssd
from .methods import METHODS
from .problem import Rows, Selection
from .request import Request
from .run import run

__all__ = ["METHODS", "coverage", "dpp", "gist", "mmr", "mmr_path", "msd", "sift", "ssd", "vrsd"]


@planned("mmr")
def mmr(
    queries: ArrayLike | None = None,
    embeddings: ArrayLike | Rows | None = None,
    k: int | ArrayLike | None = None,
    *,
    candidates: ArrayLike | None = None,
    relevance: ArrayLike | None = None,
    relevance_scale: RelevanceScale = "as-is",
    similarity: Similarity | None = None,
    bias: ArrayLike | None = None,
    lambda_d: float | ArrayLike = 0.75,
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
    outside: float | ArrayLike | None = None,
    metric: Metric = "cosine",
    check_values: bool | None = None,
    backend: Backend = "auto",
    num_threads: int | None = None,
    on_error: OnError = "raise",
) -> Selection:
    """Pick k items per query by maximal marginal relevance with a quality bias (RAGSys, Algorithm 1).

    With r_i the cosine of query and item (or ``relevance``) and b_i the bias::

        v_i = lambda_b * r_i + (1 - lambda_b) * b_i                      relevance with bias
        C_1 = argmax_i v_i
        m_i = max over picks C of cos(e_i, e_C)                          running max similarity
        C_s = argmax over unpicked i of lambda_d * v_i - (1 - lambda_d) * m_i

    Ties go to the lowest position in the pool.

    Parameters
    ----------
    queries : (Q, D) float32 | float16 | bfloat16 | float64 | int8 | uint8, or None if relevance is given
        Of any length with ``metric="cosine"``. No queries give an empty result.
    embeddings : (N, D) float32 | float16 | bfloat16 | int8, or (Q, P, D), or Corpus
        One corpus for all queries, or one dense pool per query. Never copied; the last axis must be contiguous. float64
        (also from lists of numbers) is converted to float32 in each call, with a `ConversionWarning`. int8, on the host
        only, is taken as numbers: cosines do not depend on the scale of a quantised row; for "dot", apply it first.
        uint8 is refused, because it may be packed signs; a `Corpus` takes both.
    k : int or (Q,) integers
        Picks per query, at least 1. K below is the largest k; a device array makes the call synchronise. If k exceeds
        the pool, the rest is padding, up to K = 65,536.
    candidates : (Q, P) int32 | int64, optional
        The pool of each query as rows of the corpus, padded with -1. None: the whole corpus, exactly.
    relevance : (Q, P) floating point, optional
        Scores of a retriever or reranker, used instead of the cosine with the query.
    relevance_scale : {"as-is", "minmax", "zscore", "rank"}
        How to rescale relevance first, in this order: r_i; (r_i - min) / (max - min); (r_i - mean) / standard
        deviation; the share of the other items with a smaller r, where equal ones count half. Each query is rescaled
        over its whole pool, including items that it may not pick. If all r are equal, the last three give 0.
    similarity : (Q, P, P) floating point, or a function, or sparse rows (N, V), optional
        Similarities between items without vectors; pass ``relevance`` instead of ``queries`` and ``embeddings``. Row j
        of a matrix has the similarities of all items to item j; each pick reads one row. It need not be symmetric: the
        similarity of an item to a pick is the one in the pick's row. A function gets ids (n,) int64 and one id, and
        returns (n,) similarities. Rows of a SciPy matrix are compared by cosine, or by product with ``metric="dot"``.
        ``candidates`` (Q, P) name the items, and are required for a function or a SciPy matrix; bias, groups and costs
        are (Q, P), and ``initial``, ``allowed`` and ``exclude`` are positions.
    bias : (N,) or (Q, P) floating point, optional
        Quality of each row or of each candidate; of a demonstration, its mean token log-probability in nats. Default:
        the corpus's own. Without a bias ``lambda_b`` has no effect.
    lambda_d : float or (Q,), in [0, 1]
        Weight of relevance against redundancy. Higher values give less diverse picks.
    lambda_b : float or (Q,), in [0, 1]
        Weight of relevance against the bias. Higher values give the bias less weight.
    groups : (N,) or (N, L) integers or str ((Q, P) or (Q, P, L) for dense pools), optional
        Group of each row, or its group at each of L levels, such as document and source. Default: the corpus's own.
    query_groups : (Q,) integers, or str where groups are, optional
        Items of the query's own group, of the first level, are excluded (leave-one-out). Among strings, None means no
        group.
    max_per_group : int, or mapping of groups to int, optional
        The most picks of one group; initial items count. A mapping, such as ``{"news": 2}``, has caps of single groups
        by their names, 0 for none of the group; others have no cap. With L levels a number or a mapping is for each of
        them; a sequence has one, or None, for each level. GPU kernels take one number and one level.
    min_per_group : int, or mapping of groups to int, optional
        The least picks of each group of the query's items, or of single groups, with one level; initial items count.
        Before each pick, a group lacks what its minimum is above its picks, but no more than it has items that may be
        picked now. While all groups together lack fewer than the picks that remain, any item may be picked; from then
        on only items of groups that lack some. So minima hold wherever items, k and the other limits allow;
        ``unmet`` of the result says where they do not. Not on GPUs, and not with ``outside``.
    initial : (Q, S) int32 | int64, optional
        Items already shown, as ids like ``candidates``, padded with -1. They count as earlier picks and are not
        returned.
    allowed, exclude : (N,) or (Q, N) bool, or (M,) or (Q, M) int32 | int64, optional
        Rows that queries may, or may not, pick, for all queries or per query: a mask of the rows, or row numbers padded
        with -1. With dense pools, positions: (P,) and so on. An item must pass both. If fewer than k items do, the rest
        is padding.
    costs : (N,) or (Q, P) numbers, optional
        Cost of picking each row or candidate, such as its tokens: finite and at least 0. Default: the corpus's own.
    budget : float or (Q,), optional
        The largest total cost of a query's picks. Items that cost more than what is left are skipped; the selection
        ends after k picks, or when no item fits. Initial items cost nothing.
    max_similarity : float or (Q,), in [-1, 1], optional
        Excludes near-duplicates: an item may be picked only if its similarity to each initial item and earlier pick is
        at most this. With cosines, 1 excludes nothing. With ``lambda_d=1``: top-k without near-duplicates.
    min_relevance : float or (Q,), optional
        Items of less relevance, as computed or given and before ``relevance_scale``, are left out of the pool, and the
        rest of a row is padding. The bias does not count.
    nearest : bool
        Whether the result has ``nearest``: which earlier pick, or initial item, each pick is most similar to. It is
        computed from the picks, in O(Q K^2 D) time.
    outside : float or (Q,), optional
        Upper bound of v over the rows outside the pool that the query may pick. If the pool holds the best rows of the
        corpus, pass its smallest v; if no row is outside, -inf. ``certified`` and ``pool_needed`` of the result then
        say whether the picks are proven to be those of the whole corpus. The proof assumes that no row outside has a
        larger bias, or a smaller cost, than every row of ``embeddings``. With metric "cosine" only; GPU kernels raise
        an error.
    metric : {"cosine", "dot"}
        "cosine" normalises rows and queries (a zero row has cosine 0 with everything); "dot" uses them as given. A
        Corpus has its own metric.
    check_values : bool, optional
        On the CPU the kernels check every value that they read, at no cost. On a device they check values only with
        True, which synchronises. Without a check, an id out of range counts as padding, an item whose value is NaN is
        never picked, and a repeated id may be picked twice.
    backend : {"auto", "cpu", "reference", "triton", "cuda"}
        "auto" uses the first that can run: for arrays on a device "triton" or "cuda", in the order that `show_config`
        prints for their shape; for arrays on the CPU "cpu", then "reference". With TRITON_INTERPRET=1 in the
        environment, "triton" also takes arrays on the CPU.
    num_threads : int, optional
        Default: RAGSYS_KERNELS_NUM_THREADS, else all processors that the process may use.
    on_error : {"raise", "skip"}
        "skip": if a query reads a bad value, has an id that is out of range or repeated, or a bad k or lambda of its
        own, the call does not fail. The reason is in ``errors`` of the result, the query's picks are padding, and the
        other queries get the same bits as without it. This costs nothing unless a query fails. On a device values are
        checked only with ``check_values=True``. Errors of the whole call are still raised.

    Returns
    -------
    Selection
        A tuple of five arrays: ``indices`` (Q, K) int64, ``scores``, ``relevance`` and ``redundancy`` (Q, K) float32,
        ``lengths`` (Q,) int32. After the last pick of a query, indices are -1, scores -inf, relevance and redundancy
        NaN. Arrays are on the device of the arguments: torch tensors if an argument is a torch tensor, else CuPy arrays
        if one is a CuPy array, else NumPy arrays. ``k``, the weights, ``budget``, ``max_similarity`` and options that
        only one rule has do not affect this.

        The result also has attributes that are not in the tuple, None without the argument in brackets: ``errors``, a
        dict from query numbers to reasons (``on_error="skip"``); ``cost`` (Q,) float64, the total cost of the picks
        (``budget``); ``unmet``, for each query a dict from groups to the number of picks that they lack
        (``min_per_group``); ``nearest`` (Q, K) int32 (``nearest``), the column of the most similar earlier pick, as
        `Selection` has it; ``certified`` (Q,) bool and ``pool_needed`` (Q,) float32 (``outside``).

    Raises
    ------
    ValueError
        A shape, range or value that breaks a rule above; NaN or inf; an id out of range or repeated within a query.
    TypeError
        An argument of the wrong kind or element type.
    BackendUnavailableError
        The requested backend cannot run here.

    Warns
    -----
    PoolSizeWarning
        Every query has picked all that it may pick, so the selection has only put it in order. Padding and what filters
        exclude do not count; a query that leaves an item, also by a budget, a ceiling or a cap, had a choice. On a
        device: the pool is no larger than k, without a budget, a ceiling or a cap.
    RelevanceRangeWarning
        Relevance on the host, as it is, spreads over more than ten times the largest similarity (1 with cosines), so
        redundancy has no effect. Or, with cosines, it spreads over less than a tenth of what these spread over, by the
        weights of both, and the picks after the first are those without it, in most of up to eight queries, the first
        among them. Equal relevance of all items does not warn.
    ConversionWarning
        Embeddings are float64.

    Notes
    -----
    Sums are float32 for every storage type. Results have the same bits for any ``num_threads``; the last bits may
    differ between backends and instruction sets. O(Q K P D) time, O(P + K) memory per thread besides the result. On a
    device the work runs on the caller's current stream; only an array ``k``, ``costs`` and ``check_values=True``
    synchronise.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    >>> rk.mmr(np.array([[1, 0.2]], np.float32), embeddings, 2, lambda_d=0.3).indices
    array([[1, 2]])
    """
    return run(Request(
        "mmr", queries, embeddings, k, candidates, relevance, relevance_scale, groups, query_groups, max_per_group,
        min_per_group, initial, allowed, exclude, costs, budget, max_similarity, min_relevance, metric, check_values,
        backend, num_threads, on_error, similarity, bias, lambda_d, lambda_b, outside, nearest=nearest,
    ))  # fmt: skip


@planned("vrsd")
def vrsd(
    queries: ArrayLike,
    embeddings: ArrayLike | Rows,
    k: int | ArrayLike,
    *,
    candidates: ArrayLike | None = None,
    relevance: ArrayLike | None = None,
    relevance_scale: RelevanceScale = "as-is",
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
    """Pick k items per query whose sum has the largest cosine with the query, greedily (VRSD, Algorithm 1).

    ::

        C_1 = argmax_i cos(q, e_i);   s = e_C1                           running sum vector
        C_t = argmax over unpicked i of cos(s + e_i, q);   s += e_Ct

    A sum shorter than 1e-6 of the lengths of its terms, the precision of float32 data, counts as zero and has cosine 0.
    Ties go to the lowest position in the pool. Parameters, results, errors and notes are those of `mmr`, with these
    differences.

    Parameters
    ----------
    queries : (Q, D)
        Required.
    relevance : (Q, P), optional
        Used instead of cos(q, e_i), in the first pick and in the sum's product with the query.
    metric : {"cosine", "dot"}
        "cosine" makes rows unit vectors before they are summed. Relevance and scores are cosines with both.

    Returns
    -------
    Selection
        ``scores`` is the cosine of the query with the sum after each pick, ``redundancy`` NaN.

    Notes
    -----
    Unlike the authors' script, this function picks the best item first, not index 0, and never repeats items; the
    script does if no cosine is positive or k exceeds the pool.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0.1], [1, 0.2], [0, 1]], np.float32)
    >>> rk.vrsd(np.array([[1, 1]], np.float32), embeddings, 2).indices
    array([[1, 2]])
    """
    return run(Request(
        "vrsd", queries, embeddings, k, candidates, relevance, relevance_scale, groups, query_groups, max_per_group,
        min_per_group, initial, allowed, exclude, costs, budget, max_similarity, min_relevance, metric, check_values,
        backend, num_threads, on_error, nearest=nearest,
    ))  # fmt: skip
