"""Selection rules over many queries at once: MMR with quality bias and VRSD here, the others in files of their own."""

from __future__ import annotations

from .._gpu.plans import planned
from .._types import ArrayLike, Backend, Metric, OnError, RelevanceScale, Similarity
from .aspects import coverage
from .calls import run
from .max_min import gist
from .methods import METHODS
from .paths import mmr_path
from .problem import Rows, Selection
from .volume import dpp, msd, sift, ssd

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
    max_per_group: int | None = None,
    initial: ArrayLike | None = None,
    allowed: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    budget: float | ArrayLike | None = None,
    max_similarity: float | ArrayLike | None = None,
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
    queries : (Q, D) float32 | float16 | bfloat16 | float64, or None if relevance is given
        Of any length with ``metric="cosine"``. No queries give an empty result.
    embeddings : (N, D) float32 | float16 | bfloat16, or (Q, P, D), or Corpus
        One corpus for all queries, or one dense pool for each. Never copied; the last axis must be contiguous. float64
        (as lists of numbers are) is converted to float32 in each call, with a `ConversionWarning`.
    k : int or (Q,) integers
        Picks per query, at least 1. K below is the largest k; an array on a device is waited for. Where k exceeds the
        pool the rest is padding, up to K = 65,536.
    candidates : (Q, P) int32 | int64, optional
        The pool of each query as rows of the corpus, padded with -1. None: the whole corpus, exactly.
    relevance : (Q, P) floating point, optional
        Scores of a retriever or reranker, used instead of the cosine with the query.
    relevance_scale : {"as-is", "minmax", "zscore", "rank"}
        What is made of the relevance before all else, of each query by itself, over the items of its pool (padding is
        none) whether or not they may be picked: r_i; (r_i - min) / (max - min); (r_i - mean) / standard deviation; the
        share of the other items that have less, those that are equal counting half. Where all r are equal, 0 of these.
    similarity : (Q, P, P) floating point, or a function, or sparse rows (N, V), optional
        How alike items are, where there are no vectors; then ``queries`` and ``embeddings`` are left out and
        ``relevance`` is given. Row j of a matrix has the similarities of all items to item j: one row is read a pick.
        A function gets ids (n,) int64 and one id, and returns (n,) similarities. Of rows of SciPy it is their cosine,
        or product with ``metric="dot"``. With it ``candidates`` (Q, P) name the items, which the last two need; bias,
        groups and costs are (Q, P), and ``initial``, ``allowed`` and ``exclude`` are positions.
    bias : (N,) or (Q, P) floating point, optional
        Quality of each row or of each candidate; of a demonstration, its mean token log-probability in nats. Default:
        the corpus's own. Without a bias ``lambda_b`` has no effect.
    lambda_d : float or (Q,), in [0, 1]
        Weight of relevance against redundancy. Higher values give less diverse picks.
    lambda_b : float or (Q,), in [0, 1]
        Weight of relevance against the bias. Higher values give the bias less weight.
    groups : (N,) integers or str ((Q, P) for dense pools), optional
        Group of each row. Default: the corpus's own.
    query_groups : (Q,) integers, or str where groups are, optional
        Items of the query's own group are left out (leave-one-out). Among strings None is no group.
    max_per_group : int, optional
        The most picks of one group; initial items count.
    initial : (Q, S) int32 | int64, optional
        Items already shown, as ids like ``candidates``, padded with -1. They count as picks made before the first, and
        are not returned.
    allowed, exclude : (N,) or (Q, N) bool, or (M,) or (Q, M) int32 | int64, optional
        What queries may pick, and may not: a mask of the rows, or rows padded with -1, for all queries or for each.
        For dense pools positions, (P,) and so on. An item must pass both. Fewer than k that do: the rest is padding.
    costs : (N,) or (Q, P) numbers, optional
        What it costs to pick each row or each candidate, such as its tokens: finite and at least 0. Default: the
        corpus's own.
    budget : float or (Q,), optional
        The most that the picks of a query may cost together. An item is passed over while it costs more than is left;
        the selection ends after k picks, or when nothing that fits is left. Initial items cost nothing.
    max_similarity : float or (Q,), in [-1, 1], optional
        An item may be picked while its largest similarity to the initial items and the earlier picks is at most this:
        no near-duplicates; 1 bars nothing with cosines. With ``lambda_d=1`` the best k without them, in one pass.
    outside : float or (Q,), optional
        What no row outside the pool exceeds in v: -inf where there is none, the least v of a pool that is the best of a
        corpus. Then ``certified`` and ``pool_needed`` of the result say for which queries the picks are proven to be
        those of the whole corpus. Rows outside are those that the query may pick, have at most the largest bias of
        ``embeddings``, and cost at least as much as its cheapest row. With cosines; a device's kernels refuse it.
    metric : {"cosine", "dot"}
        "cosine" makes rows and queries unit vectors (a zero row has cosine 0 with everything); "dot" takes them as
        given. A Corpus has its own metric.
    check_values : bool, optional
        On the CPU the kernels check every value as they read it, at no cost. On a device values are checked only with
        True, which waits for the device. Unchecked, an id out of range counts as padding, an item whose value is NaN
        is never picked, and a repeated id may be picked twice.
    backend : {"auto", "cpu", "reference", "triton", "cuda"}
        "auto" takes the first that can run. For arrays on a device: "triton" and "cuda", in the order for their shape
        that `show_config` tells.
        For arrays on the CPU: "cpu", then "reference". With TRITON_INTERPRET=1 in the environment, "triton" takes
        arrays on the CPU too.
    num_threads : int, optional
        Default: RAGSYS_KERNELS_NUM_THREADS, else all processors that the process may use.
    on_error : {"raise", "skip"}
        "skip": a query with a bad value, an id out of range or repeated, or a bad k or lambda of its own does not fail
        the call. ``errors`` of the result has its reason, its picks are padding, and the other queries get the same
        bits as without it. This costs nothing until a call fails. On a device values are checked only with
        ``check_values=True``. What is wrong with the whole call is still raised.

    Returns
    -------
    Selection
        ``indices`` (Q, K) int64 padded with -1, ``scores``, ``relevance``, ``redundancy`` (Q, K) float32, ``lengths``
        (Q,) int32, on the arrays' device; torch tensors if any array argument is one, else CuPy arrays if one is,
        else NumPy arrays, where ``k``, the weights, ``budget``, ``max_similarity`` and the options of one rule do not
        count. Not items of the tuple: ``errors`` maps query numbers to reasons with ``on_error="skip"``,
        else it is None; ``cost`` (Q,) float64 is what the picks cost with a budget, else None; ``certified`` (Q,) bool
        and ``pool_needed`` (Q,) float32 with ``outside``, else None.

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
        The pool is no larger than k.
    RelevanceRangeWarning
        Relevance on the host spreads over more than ten times the largest similarity (1 with cosines), so that
        redundancy has no say, and ``relevance_scale`` does not change that.
    ConversionWarning
        Embeddings are float64.

    Notes
    -----
    Sums are float32 for every storage type. The bits are the same for any ``num_threads``; the last ones may differ
    between backends and instruction sets. O(Q K P D) time, O(P + K) memory per thread beside the result. On a device
    the work runs on the caller's current stream, and only an array ``k``, ``costs`` and ``check_values=True`` wait for
    it.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    >>> rk.mmr(np.array([[1, 0.2]], np.float32), embeddings, 2, lambda_d=0.3).indices
    array([[1, 2]])
    """
    return run(
        "mmr",
        queries,
        embeddings,
        k,
        candidates,
        relevance,
        bias,
        lambda_d,
        lambda_b,
        groups,
        query_groups,
        max_per_group,
        initial,
        allowed,
        exclude,
        costs,
        budget,
        max_similarity,
        metric,
        check_values,
        backend,
        num_threads,
        on_error,
        outside=outside,
        relevance_scale=relevance_scale,
        similarity=similarity,
    )


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
    max_per_group: int | None = None,
    initial: ArrayLike | None = None,
    allowed: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    budget: float | ArrayLike | None = None,
    max_similarity: float | ArrayLike | None = None,
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

    A sum that is shorter than 1e-6 of the lengths of its terms, the precision of float32 data, is zero and has cosine
    0. Ties go to the lowest position in the pool. Parameters, results, errors and notes are those of `mmr`, with these
    differences.

    Parameters
    ----------
    queries : (Q, D)
        Always needed.
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
    The authors' script has three quirks that are not reproduced here: its first pick is index 0, its running best
    starts at 0 (so that it repeats items where no cosine is positive), and it repeats items where k exceeds the pool.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> embeddings = np.array([[1, 0.1], [1, 0.2], [0, 1]], np.float32)
    >>> rk.vrsd(np.array([[1, 1]], np.float32), embeddings, 2).indices
    array([[1, 2]])
    """
    return run(
        "vrsd",
        queries,
        embeddings,
        k,
        candidates,
        relevance,
        None,
        1.0,
        1.0,
        groups,
        query_groups,
        max_per_group,
        initial,
        allowed,
        exclude,
        costs,
        budget,
        max_similarity,
        metric,
        check_values,
        backend,
        num_threads,
        on_error,
        relevance_scale=relevance_scale,
    )
