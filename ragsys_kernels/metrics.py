"""The papers' metrics as pure NumPy functions.

Over log-probabilities: MC1, MC2, MC3 and DPO of RAGSys, and perplexities. Answers of many questions lie end to end;
answers ``cu_questions[q]`` to ``cu_questions[q + 1]`` belong to question q. All sums are made in log space (float64,
natural logs), so that answers of probability e-1000 still count.

Over picks: cosine of the sum, win rate and largest difference of VRSD, mean pairwise cosine,
coverage, volume, Vendi score, near-duplicates, alpha-nDCG, NQC, and the
macro scores of classifiers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _arrays
from ._checks import shown
from ._types import ArrayLike, Metric
from .selection.problem import unit

Array = npt.NDArray[Any]


class MultipleChoice(NamedTuple):
    """One float64 value a question, all of shape (Q,); the papers report their means over the questions."""

    mc1: Array
    mc2: Array
    mc3: Array
    mc3_ratio: Array
    mc3_log_ratio: Array


class Preference(NamedTuple):
    """One value a question, all of shape (Q,)."""

    dpo: Array  # float64, mean over the question's pairs of log sigmoid of the margin
    margin: Array  # float64, mean margin
    pairs: Array  # int64, number of pairs (correct, incorrect)


class WinRate(NamedTuple):
    """Shares of the queries, which add up to 1."""

    wins: float
    ties: float
    losses: float


class MacroScores(NamedTuple):
    """Means over the classes."""

    precision: float
    recall: float
    f1: float


def multiple_choice(
    logp: ArrayLike, is_correct: ArrayLike, cu_questions: ArrayLike, *, best: ArrayLike | None = None
) -> MultipleChoice:
    """Compare the log-probabilities of each question's correct and incorrect answers (RAGSys).

    With a the correct and b the incorrect answers of a question, and P the probability of an answer::

        mc1           1 if the best correct answer has P(a) > max_b P(b), else 0
        mc2           share of the correct answers with P(a) > max_b P(b)
        mc3           sum_a P(a) / (sum_a P(a) + sum_b P(b))
        mc3_ratio     sum_a P(a) / sum_b P(b)
        mc3_log_ratio log of mc3_ratio

    The names are RAGSys'. TruthfulQA's own code has the last two the other way round: its MC2 is the normalised sum,
    here ``mc3``, and its MC3 the share, here ``mc2``. RAGSys writes its MC3 as the plain ratio, here ``mc3_ratio``.
    That one has no upper bound, and a single question can decide its mean, while the values in the paper's tables lie
    between 0 and 1: they must be those of the normalised form. Means of ratios are best taken of ``mc3_log_ratio``.

    Parameters
    ----------
    logp : (A,) floating point
        Log-probability of each answer, summed over its tokens (nats), at most 0; -inf is probability 0.
    is_correct : (A,) bool
    cu_questions : (Q + 1,) integers
        Where each question's answers begin: 0 first, A last. Each question needs a correct and an incorrect answer.
    best : (Q,) integers, optional
        Position among all answers (0 to A - 1) of the correct answer that counts for ``mc1``; TruthfulQA names one
        for each question. Default: the most probable correct one, so that ``mc1`` says whether the most probable
        answer of all is correct.

    Returns
    -------
    MultipleChoice
        Equal probabilities are not above each other. ``mc3`` and the ratios are NaN where every answer has
        probability 0; ``mc3_ratio`` is inf where it exceeds float64.

    Raises
    ------
    ValueError, TypeError
        Shapes that do not fit, NaN, a log-probability above 0, a question without both kinds of answers.

    Notes
    -----
    O(A) time. Sources: RAGSys (arXiv 2405.17587), section on metrics; TruthfulQA, ``truthfulqa/models.py``, MC_calcs.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import multiple_choice
    >>> multiple_choice(np.log([0.5, 0.1, 0.2]), [True, True, False], [0, 3]).mc3
    array([0.75])
    """
    op = "multiple_choice"
    logp, is_correct, cu = _answers(op, logp, is_correct, cu_questions)
    correct = np.where(is_correct, logp, -np.inf)
    wrong = np.where(is_correct, -np.inf, logp)
    starts = cu[:-1]
    highest_wrong = _over(np.maximum, wrong, starts)
    above = is_correct & (logp > np.repeat(highest_wrong, np.diff(cu)))
    chosen = _over(np.maximum, correct, starts) if best is None else logp[_best(op, best, is_correct, cu)]
    log_correct, log_wrong = _logsumexp(correct, cu), _logsumexp(wrong, cu)
    with np.errstate(over="ignore", invalid="ignore"):  # -inf - -inf: no answer has any probability
        log_ratio = log_correct - log_wrong
        return MultipleChoice(
            mc1=(chosen > highest_wrong).astype(np.float64),
            mc2=_over(np.add, above.astype(np.float64), starts) / _over(np.add, is_correct.astype(np.int64), starts),
            mc3=1 / (1 + np.exp(-log_ratio)),
            mc3_ratio=np.exp(log_ratio),
            mc3_log_ratio=log_ratio,
        )


def dpo(
    logp: ArrayLike,
    is_correct: ArrayLike,
    cu_questions: ArrayLike,
    *,
    reference: ArrayLike | None = None,
    beta: float = 1.0,
) -> Preference:
    """Score how far the model prefers correct to incorrect answers, as direct preference optimisation does (RAGSys).

    For every pair (a, b) of a correct and an incorrect answer to a question::

        margin(a, b) = beta * ((log P(a) - log P_ref(a)) - (log P(b) - log P_ref(b)))
        dpo(a, b)    = log sigmoid(margin(a, b))

    which is the DPO loss with its sign turned, so that more is better and 0 is the most. P is the model with
    demonstrations in its prompt, P_ref the model it is compared with, for instance the same one without. Without a
    reference P_ref is the same for all answers and leaves the formula. RAGSys takes the mean over all triplets
    (question, a, b), so that a question counts by its number of pairs::

        np.average(result.dpo, weights=result.pairs)

    TruthfulQA's own code has no such metric.

    Parameters
    ----------
    logp, is_correct, cu_questions
        As in `multiple_choice`; ``logp`` must be finite.
    reference : (A,) floating point, optional
        Log-probability of each answer under the reference.
    beta : float
        Scale of the margin, above 0.

    Returns
    -------
    Preference

    Raises
    ------
    ValueError, TypeError
        As `multiple_choice`; values that are not finite.

    Notes
    -----
    O(sum over questions of correct x incorrect answers) time.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import dpo
    >>> dpo(np.log([0.5, 0.5]), [True, False], [0, 2]).dpo  # log 0.5
    array([-0.69314718])
    """
    op = "dpo"
    logp, is_correct, cu = _answers(op, logp, is_correct, cu_questions)
    beta = _number(op, "beta", beta)
    if not beta > 0 or not np.isfinite(beta):
        raise ValueError(f"{op}: beta must be above 0 and finite, got {beta}")
    values = logp
    if reference is not None:
        values = logp - _finite(op, "reference", _vector(op, "reference", reference, len(logp)))
    values = beta * _finite(op, "logp", values)
    result = Preference(*(np.empty(len(cu) - 1, kind) for kind in (np.float64, np.float64, np.int64)))
    for q, (begin, end) in enumerate(pairwise(cu)):
        mine, right = values[begin:end], is_correct[begin:end]
        margins = mine[right][:, None] - mine[~right]
        result.dpo[q] = -np.logaddexp(0, -margins).mean()
        result.margin[q] = margins.mean()
        result.pairs[q] = margins.size
    return result


def perplexity(sum_logp: ArrayLike, count: ArrayLike) -> float:
    """Return exp of the mean negative log-probability, of a token if `count` counts tokens, of a word if words.

    Word perplexity divides the same log-probabilities, summed over tokens, by the number of words of the text, so that
    models with different tokenizers compare. (In-Context RALM counts the spaces between WikiText's words.)

    Parameters
    ----------
    sum_logp : scalar or (A,) floating point
        Summed log-probabilities (nats) of texts or of parts of one.
    count : scalar or (A,) integers
        Tokens, or words, that each sum stands for; 0 for an empty part.

    Returns
    -------
    float
        Of all parts together; inf if it exceeds float64.

    Raises
    ------
    ValueError
        Unequal shapes, NaN or positive sums, negative counts, no token at all.

    Examples
    --------
    >>> from ragsys_kernels.metrics import perplexity
    >>> round(perplexity([-2.0, -4.0], [1, 2]), 3)  # exp(6 / 3)
    7.389
    """
    op = "perplexity"
    sums = _array(op, "sum_logp", sum_logp, "fiu", "floating point").astype(np.float64)
    counts = _array(op, "count", count, "iu", "integers")
    if sums.shape != counts.shape or sums.ndim > 1:
        raise ValueError(f"{op}: count must have the shape of sum_logp, {sums.shape}, got {counts.shape}")
    if not (sums <= 0).all():
        raise ValueError(f"{op}: sum_logp must be at most 0, got {_first(sums, ~(sums <= 0))}")
    if (counts < 0).any():
        raise ValueError(f"{op}: count must be at least 0, got {_first(counts, counts < 0)}")
    total = int(counts.sum())
    if not total:
        raise ValueError(f"{op}: count must be at least 1 in all, got 0")
    with np.errstate(over="ignore"):
        return float(np.exp(-sums.sum() / total))


def sum_cosine(queries: ArrayLike, embeddings: ArrayLike, indices: ArrayLike, *, metric: Metric = "cosine") -> Array:
    """Return the cosine of each query with the sum of its picks, which VRSD maximises (its retrieval quality).

    ::

        cos(q, s),  s = sum_j e_j over the picks j

    Parameters
    ----------
    queries : (Q, D) floating point
    embeddings : (N, D) floating point
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1.
    metric : {"cosine", "dot"}
        Whether rows are made unit vectors before they are summed, as in `vrsd`. VRSD sums its model's vectors as they
        are, which are unit vectors.

    Returns
    -------
    (Q,) float64
        0 where the sum or the query is zero, or nothing is picked.

    Raises
    ------
    ValueError, TypeError
        Shapes that do not fit, ids out of range, NaN or inf.

    Notes
    -----
    In float64. The paper's table has the mean of these values over the queries. Source: VRSD (arXiv 2407.04573).

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import sum_cosine
    >>> sum_cosine(np.array([[1.0, 1.0]]), np.eye(2), [[0, 1]])
    array([1.])
    """
    op = "sum_cosine"
    vectors, ids = _picked(op, embeddings, indices, metric)
    q = _matrix(op, "queries", queries)
    if q.shape != (len(ids), vectors.shape[1]):
        raise ValueError(f"{op}: queries must be of shape {(len(ids), vectors.shape[1])}, got {q.shape}")
    sums = np.stack([vectors[row[row >= 0]].sum(axis=0) for row in ids]) if len(ids) else np.zeros_like(q)
    return np.asarray((unit(q) * unit(sums)).sum(axis=1))


def pairwise_cosine(embeddings: ArrayLike, indices: ArrayLike) -> Array:
    """Return the mean cosine between the picks of each query: how alike they are (RAGSys, Figure 1).

    ::

        2 / (n (n - 1)) * sum over i < j of cos(e_i, e_j)      for n picks

    Parameters
    ----------
    embeddings : (N, D) floating point
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1.

    Returns
    -------
    (Q,) float64
        NaN for fewer than two picks.

    Raises
    ------
    ValueError, TypeError
        As `sum_cosine`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import pairwise_cosine
    >>> pairwise_cosine(np.array([[1.0, 0.0], [3.0, 4.0]]), [[0, 1]])
    array([0.6])
    """
    vectors, ids = _picked("pairwise_cosine", embeddings, indices, "cosine")
    result = np.full(len(ids), np.nan)
    for q, row in enumerate(ids):
        chosen = vectors[row[row >= 0]]
        if len(chosen) > 1:
            result[q] = (chosen @ chosen.T)[np.triu_indices(len(chosen), 1)].mean()
    return result


def intra_list_distance(embeddings: ArrayLike, indices: ArrayLike) -> Array:
    """Return the mean cosine distance between the picks of each query: 1 - `pairwise_cosine`.

    Parameters, results and errors are those of `pairwise_cosine`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import intra_list_distance
    >>> intra_list_distance(np.array([[1.0, 0.0], [3.0, 4.0]]), [[0, 1]])
    array([0.4])
    """
    vectors, ids = _picked("intra_list_distance", embeddings, indices, "cosine")
    return np.asarray(1 - pairwise_cosine(vectors, ids))


def log_determinant(embeddings: ArrayLike, indices: ArrayLike) -> Array:
    """Return the log-determinant of the cosines between the picks of each query: twice the log of their volume.

    Parameters
    ----------
    embeddings : (N, D) floating point
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1.

    Returns
    -------
    (Q,) float64
        At most 0; -inf where picks depend on one another, NaN where there are none.

    Raises
    ------
    ValueError, TypeError
        As `sum_cosine`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import log_determinant
    >>> log_determinant(np.array([[1.0, 0.0], [3.0, 4.0]]), [[0, 1]]).round(6)  # log of 0.8 ** 2
    array([-0.446287])
    """
    vectors, ids = _picked("log_determinant", embeddings, indices, "cosine")
    result = np.full(len(ids), np.nan)
    for q, row in enumerate(ids):
        values = _eigenvalues(vectors[row[row >= 0]])
        if len(values):
            smallest = values.min() <= len(values) * np.finfo(np.float64).eps * values.max()
            result[q] = -np.inf if smallest else np.log(values).sum()
    return result


def vendi_score(embeddings: ArrayLike, indices: ArrayLike) -> Array:
    """Return how many different items the picks of each query amount to (Vendi score, Friedman and Dieng 2023).

    The exponential of the entropy of the eigenvalues of the cosines between the picks, divided by their number: 1 where
    all picks are the same, their number where no two have anything in common.

    Parameters
    ----------
    embeddings : (N, D) floating point
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1. A row of zeros counts as like no other and not as itself.

    Returns
    -------
    (Q,) float64
        NaN where there are no picks.

    Raises
    ------
    ValueError, TypeError
        As `sum_cosine`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import vendi_score
    >>> vendi_score(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), [[0, 1], [0, 2]]).round(6)
    array([2., 1.])
    """
    vectors, ids = _picked("vendi_score", embeddings, indices, "cosine")
    result = np.full(len(ids), np.nan)
    for q, row in enumerate(ids):
        values = _eigenvalues(vectors[row[row >= 0]])
        if len(values):
            share = values[values > 0] / len(values)
            result[q] = np.exp(-(share * np.log(share)).sum())
    return result


def coverage(embeddings: ArrayLike, indices: ArrayLike, *, aspects: ArrayLike | None = None) -> Array:
    """Return how near the picks of each query are to what they are to cover: what facility location maximises.

    ::

        mean over aspects a of max(0, largest cosine of a pick with a)

    Parameters
    ----------
    embeddings : (N, D) floating point
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1.
    aspects : (A, D) floating point, optional
        What is to be covered, for all queries. Default: all embeddings.

    Returns
    -------
    (Q,) float64
        0 where there are no picks.

    Raises
    ------
    ValueError, TypeError
        As `sum_cosine`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import coverage
    >>> coverage(np.array([[1.0, 0.0], [3.0, 4.0]]), [[0], [1]])
    array([0.8, 0.8])
    """
    op = "coverage"
    vectors, ids = _picked(op, embeddings, indices, "cosine")
    wanted = vectors if aspects is None else unit(_matrix(op, "aspects", aspects))
    if wanted.shape[1] != vectors.shape[1] or not len(wanted):
        raise ValueError(f"{op}: aspects must be of shape (A, {vectors.shape[1]}), got {wanted.shape}")
    found = [(wanted @ vectors[row[row >= 0]].T).max(axis=1, initial=0).mean() for row in ids]
    return np.asarray(found, np.float64)


def near_duplicates(embeddings: ArrayLike, indices: ArrayLike, *, threshold: float = 0.95) -> Array:
    """Return the share of the picks of each query that are nearly an earlier one: of a cosine above ``threshold``.

    Parameters
    ----------
    embeddings : (N, D) floating point
    indices : (Q, K) integers
        Picks as rows of the embeddings, padded with -1.
    threshold : float in [-1, 1]

    Returns
    -------
    (Q,) float64
        NaN where there are no picks.

    Raises
    ------
    ValueError, TypeError
        As `sum_cosine`; a threshold outside [-1, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import near_duplicates
    >>> near_duplicates(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.1]]), [[0, 1, -1], [0, 1, 2]]).round(3)
    array([0.   , 0.333])
    """
    op = "near_duplicates"
    vectors, ids = _picked(op, embeddings, indices, "cosine")
    least = _number(op, "threshold", threshold)
    if not -1 <= least <= 1:
        raise ValueError(f"{op}: threshold must be within [-1, 1], got {shown(threshold)}")
    result = np.full(len(ids), np.nan)
    for q, row in enumerate(ids):
        chosen = vectors[row[row >= 0]]
        if len(chosen):
            earlier = np.tril(chosen @ chosen.T > least, -1)
            result[q] = earlier.any(axis=1).mean()
    return result


def _eigenvalues(vectors: Array) -> Array:
    """Return the eigenvalues of the products of vectors, none below 0."""
    if not len(vectors):
        return np.zeros(0)
    return np.asarray(np.maximum(np.linalg.eigvalsh(vectors @ vectors.T), 0))


def win_rate(ours: ArrayLike, theirs: ArrayLike, *, tolerance: float = 1e-7) -> WinRate:
    """Return the share of the queries on which one method is better than another (VRSD).

    ::

        wins   = |{q : ours_q - theirs_q >  tolerance}| / Q
        ties   = |{q : |ours_q - theirs_q| <= tolerance}| / Q
        losses = |{q : ours_q - theirs_q < -tolerance}| / Q

    VRSD's script counts every difference above 0. Where two methods pick the same items in another order the sums
    differ by rounding alone, which then decides; the tolerance keeps such queries apart. A figure counted as by the
    script lies between ``wins`` and ``wins + ties``.

    Parameters
    ----------
    ours, theirs : (Q,) floating point
        One value a query, more is better.
    tolerance : float
        At least 0. The default is a rounding error of float32 vectors.

    Raises
    ------
    ValueError, TypeError
        Shapes that do not fit, no query, NaN.

    Examples
    --------
    >>> from ragsys_kernels.metrics import win_rate
    >>> win_rate([0.5, 0.7, 0.6, 0.2], [0.4, 0.6, 0.6, 0.3])
    WinRate(wins=0.5, ties=0.25, losses=0.25)
    """
    difference = _differences("win_rate", ours, theirs)
    tolerance = _number("win_rate", "tolerance", tolerance)
    if not tolerance >= 0:
        raise ValueError(f"win_rate: tolerance must be at least 0, got {tolerance}")
    size = len(difference)
    wins, losses = int((difference > tolerance).sum()), int((difference < -tolerance).sum())
    return WinRate(wins / size, (size - wins - losses) / size, losses / size)


def max_diff(ours: ArrayLike, theirs: ArrayLike) -> float:
    """Return the largest difference ``max_q (ours_q - theirs_q)`` between two methods on one query (VRSD).

    Parameters
    ----------
    ours, theirs : (Q,) floating point

    Raises
    ------
    ValueError, TypeError
        As `win_rate`.

    Examples
    --------
    >>> from ragsys_kernels.metrics import max_diff
    >>> max_diff([0.5, 0.75], [0.25, 0.75])
    0.25
    """
    return float(_differences("max_diff", ours, theirs).max())


def alpha_ndcg(indices: ArrayLike, judgements: ArrayLike, *, alpha: float = 0.5) -> Array:
    """Return alpha-nDCG at K, which rewards new aspects and discounts repeated ones (Clarke et al. 2008).

    With J(d, i) = 1 if item d covers aspect i of the query, and r_i the items ranked before d that cover it::

        gain(d) = sum_i J(d, i) (1 - alpha)^{r_i}
        DCG     = sum_{k=1..K} gain(d_k) / log2(1 + k)
        alpha-nDCG = DCG / DCG of the ideal ranking

    The ideal ranking is made greedily, as in the authors' program ndeval: the item of largest gain next, the exact one
    being NP-hard. So a value can exceed 1. Ties go to the lowest item; ndeval's go to the last name, which can change
    the ideal ranking and thus the value.

    Parameters
    ----------
    indices : (Q, K) integers
        Ranked items of each query, padded with -1 at the end; no item twice in a row.
    judgements : (N, S) or (Q, N, S) bool
        Which of S aspects each item covers, for all queries or for each.
    alpha : float, in [0, 1]
        0 is nDCG with the number of aspects as gain; 1 counts an aspect only once.

    Returns
    -------
    (Q,) float64
        0 for a query no aspect of which is covered by any item.

    Raises
    ------
    ValueError, TypeError
        Shapes that do not fit, ids out of range, an item that is ranked twice.

    Notes
    -----
    O(Q K N S) time.

    Examples
    --------
    >>> from ragsys_kernels.metrics import alpha_ndcg
    >>> alpha_ndcg([[0, 2]], [[True, False], [True, False], [False, True]])
    array([1.])
    """
    op = "alpha_ndcg"
    ids = _ids(op, indices)
    judged = _array(op, "judgements", judgements, "b", "bool")
    if judged.ndim not in (2, 3) or (judged.ndim == 3 and len(judged) != len(ids)):
        raise ValueError(f"{op}: judgements must be of shape (N, S) or ({len(ids)}, N, S), got {judged.shape}")
    alpha = _number(op, "alpha", alpha)
    if not 0 <= alpha <= 1:
        raise ValueError(f"{op}: alpha must be in [0, 1], got {alpha}")
    _within(op, ids, judged.shape[-2])
    discounts = 1 / np.log2(np.arange(2, ids.shape[1] + 2))
    result = np.zeros(len(ids))
    for q, row in enumerate(ids):
        covers = judged[q] if judged.ndim == 3 else judged
        ranked = row[row >= 0]
        if len(np.unique(ranked)) != len(ranked):
            raise ValueError(f"{op}: indices must not repeat an item, got {row.tolist()} for query {q}")
        weights, gains = np.ones(covers.shape[1]), np.zeros(len(row))
        for k, item in enumerate(row):
            if item >= 0:
                gains[k] = weights @ covers[item]
                weights = np.where(covers[item], weights * (1 - alpha), weights)
        ideal = _ideal_gains(covers, len(row), alpha) @ discounts
        result[q] = gains @ discounts / ideal if ideal else 0.0
    return result


def _ideal_gains(covers: Array, depth: int, alpha: float) -> Array:
    weights, left, gains = np.ones(covers.shape[1]), np.ones(len(covers), np.bool_), np.zeros(depth)
    for k in range(min(depth, len(covers))):
        value = np.where(left, covers @ weights, -1)
        best = int(np.argmax(value))
        gains[k], left[best] = value[best], False
        weights = np.where(covers[best], weights * (1 - alpha), weights)
    return gains


def nqc(scores: ArrayLike, *, corpus_score: ArrayLike | None = None) -> Array:
    """Return normalised query commitment: the spread of a query's best scores predicts how well they rank.

    ::

        NQC(q) = sqrt(1/k sum_j (s_j - mean(s))^2) / |s_C|      over the k best scores s_j

    Adaptive in-context learning takes it for how many examples a query needs.

    Parameters
    ----------
    scores : (Q, k) floating point
        The k best scores of each query; -inf, or NaN, where there are fewer.
    corpus_score : (Q,) or scalar floating point, optional
        s_C, the score of the whole collection as one document. Default: 1, the plain deviation.

    Returns
    -------
    (Q,) float64
        NaN for a query without a score; inf or NaN where its corpus score is 0.

    Raises
    ------
    ValueError, TypeError
        Not (Q, k) floats; a score of inf.

    Notes
    -----
    Source: Shtok et al., Predicting query performance by query-drift estimation (TOIS 2012); used in "One size doesn't
    fit all: predicting the number of examples for in-context learning".

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.metrics import nqc
    >>> nqc(np.array([[3.0, 1.0], [2.0, 2.0]]))
    array([1., 0.])
    """
    op = "nqc"
    values = _array(op, "scores", scores, "f", "floating point")
    if values.ndim != 2:
        raise ValueError(f"{op}: scores must be of shape (Q, k), got {values.shape}")
    values = values.astype(np.float64)
    if (values == np.inf).any():
        raise ValueError(f"{op}: scores must be below inf, got inf")
    of_corpus = np.ones(())
    if corpus_score is not None:
        of_corpus = np.abs(_array(op, "corpus_score", corpus_score, "fiu", "floating point").astype(np.float64))
        if of_corpus.shape not in ((), (len(values),)):
            raise ValueError(f"{op}: corpus_score must be a number or of shape ({len(values)},), got {of_corpus.shape}")
    there = np.isfinite(values)
    count = there.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean = np.where(there, values, 0).sum(axis=1) / count
        off = np.where(there, values - mean[:, None], 0)
        scale = np.abs(off).max(axis=1, initial=0)  # so that squares stay in range
        scale[scale == 0] = 1
        spread = scale * np.sqrt(((off / scale[:, None]) ** 2).sum(axis=1) / count)
        return np.asarray(spread / of_corpus)


def macro_scores(labels: ArrayLike, predictions: ArrayLike) -> MacroScores:
    """Return precision, recall and F1 of a classifier, each the mean over the classes (adaptive ICL).

    ::

        precision_c = |label = c and prediction = c| / |prediction = c|
        recall_c    = |label = c and prediction = c| / |label = c|
        F1_c        = 2 precision_c recall_c / (precision_c + recall_c)

    with 0 for 0 / 0, over the classes that occur among labels or predictions. The mean of the F1_c is not the F1 of the
    means.

    Parameters
    ----------
    labels, predictions : (Q,) integers, or strings

    Raises
    ------
    ValueError
        Unequal shapes, or no item.

    Examples
    --------
    >>> from ragsys_kernels.metrics import macro_scores
    >>> macro_scores([0, 0, 1, 1], [0, 0, 1, 0]).recall
    0.75
    """
    op = "macro_scores"
    truth, predicted = _labels(op, "labels", labels), _labels(op, "predictions", predictions)
    if truth.ndim != 1 or truth.shape != predicted.shape:
        raise ValueError(
            f"{op}: labels and predictions must be of one shape (Q,), got {truth.shape}, {predicted.shape}"
        )
    if not len(truth):
        raise ValueError(f"{op}: labels must be at least one, got none")
    if (truth.dtype.kind in "US") != (predicted.dtype.kind in "US"):
        raise TypeError(
            f"{op}: labels and predictions must be of one kind, got dtypes {truth.dtype} and {predicted.dtype}"
        )
    classes = np.unique(np.concatenate((truth, predicted)))[:, None]
    both = ((classes == truth) & (classes == predicted)).sum(axis=1)
    of_label, of_prediction = (classes == truth).sum(axis=1), (classes == predicted).sum(axis=1)
    return MacroScores(
        precision=float((both / np.maximum(of_prediction, 1)).mean()),
        recall=float((both / np.maximum(of_label, 1)).mean()),
        f1=float((2 * both / (of_label + of_prediction)).mean()),
    )


def _array(op: str, name: str, values: Any, kinds: str, rule: str) -> Array:
    """Return an array of these kinds of dtype, given as one of any library on the host."""
    array, dtype = _arrays.host_view(op, name, values)
    array = np.asarray(array)  # rows of a matrix are matrices
    if dtype == "bfloat16":
        array = _arrays.widen(array, dtype)
    if array.dtype.kind not in kinds or (kinds == "iu" and dtype == "uint64"):  # which may hold what int64 does not
        raise TypeError(f"{op}: {name} must be {rule}, got dtype {dtype}")
    return array


def _number(op: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{op}: {name} must be within the range of float64, got {shown(value)}") from None


def _labels(op: str, name: str, values: Any) -> Array:
    """Check names of classes: strings, or numbers that are not NaN."""
    try:
        array = np.asarray(values) if isinstance(values, (list, tuple)) else values
    except ValueError:  # ragged: refused below
        array = values
    if isinstance(array, np.ndarray) and array.dtype.kind in "OUS" and not isinstance(array, np.ma.MaskedArray):
        array = np.array(array.tolist())
        if array.dtype.kind in "US":
            return array
    array = _array(op, name, array, "iufb", "integers or strings")
    if (array != array).any():
        raise ValueError(f"{op}: {name} must not be NaN")
    return array


def _answers(op: str, logp: Any, is_correct: Any, cu_questions: Any) -> tuple[Array, Array, Array]:
    logp = _vector(op, "logp", logp, None)
    bad = ~(logp <= 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"{op}: logp must be log-probabilities of at most 0, got {logp[row]} for answer {row}")
    right = _array(op, "is_correct", is_correct, "b", "bool")
    if right.shape != logp.shape:
        raise ValueError(f"{op}: is_correct must have the shape of logp, {logp.shape}, got {right.shape}")
    cu = _array(op, "cu_questions", cu_questions, "iu", "integers")
    if cu.ndim != 1 or not cu.size or cu[0] != 0 or cu[-1] != len(logp):
        raise ValueError(
            f"{op}: cu_questions must be a vector from 0 to the number of answers, {len(logp)}, got {cu.tolist()}"
        )
    cu = cu.astype(np.int64)
    sizes = np.diff(cu)
    if (sizes < 0).any():
        raise ValueError(f"{op}: cu_questions must not decrease, got {cu.tolist()}")
    corrects = np.diff(np.concatenate(([0], np.cumsum(right)))[cu])
    bad = (corrects < 1) | (corrects >= sizes)
    if bad.any():
        q = int(np.argmax(bad))
        raise ValueError(
            f"{op}: cu_questions must give each question a correct and an incorrect answer, "
            f"got {corrects[q]} correct of {sizes[q]} for question {q}"
        )
    return logp, right, cu


def _vector(op: str, name: str, values: Any, length: int | None) -> Array:
    array = _array(op, name, values, "f", "floating point")
    if array.ndim != 1 or (length is not None and len(array) != length):
        raise ValueError(f"{op}: {name} must be of shape ({'A' if length is None else length},), got {array.shape}")
    return array.astype(np.float64)


def _finite(op: str, name: str, values: Array) -> Array:
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"{op}: {name} must be finite, got {values[row]} for answer {row}")
    return values


def _best(op: str, best: Any, is_correct: Array, cu: Array) -> Array:
    rows = _array(op, "best", best, "iu", "integers")
    if rows.shape != (len(cu) - 1,):
        raise ValueError(f"{op}: best must be of shape ({len(cu) - 1},), one for each question, got {rows.shape}")
    inside = (rows >= cu[:-1]) & (rows < cu[1:])
    bad = ~inside | ~is_correct[np.where(inside, rows, 0)] if len(rows) else ~inside
    if bad.any():
        q = int(np.argmax(bad))
        raise ValueError(f"{op}: best must be a correct answer of the question, got {rows[q]} for question {q}")
    return rows


def _picked(op: str, embeddings: Any, indices: Any, metric: str) -> tuple[Array, Array]:
    if not isinstance(metric, str) or metric not in ("cosine", "dot"):
        raise ValueError(f"{op}: metric must be cosine or dot, got {shown(metric)}")
    vectors, ids = _matrix(op, "embeddings", embeddings), _ids(op, indices)
    _within(op, ids, len(vectors))
    return unit(vectors) if metric == "cosine" else vectors, ids


def _matrix(op: str, name: str, values: Any) -> Array:
    array = _array(op, name, values, "f", "floating point")
    if array.ndim != 2:
        raise ValueError(f"{op}: {name} must have two axes, got shape {array.shape}")
    if array.shape[1] == 0:
        raise ValueError(f"{op}: {name} must have at least one dimension, got shape {array.shape}")
    array = array.astype(np.float64)
    bad = ~np.isfinite(array).all(axis=1)
    if bad.any():
        raise ValueError(f"{op}: {name} must be finite, got NaN or inf in row {int(np.argmax(bad))}")
    return array


def _ids(op: str, indices: Any) -> Array:
    ids = _array(op, "indices", indices, "iu", "integers")
    if ids.ndim != 2:
        raise ValueError(f"{op}: indices must be of shape (Q, K), got {ids.shape}")
    return ids.astype(np.int64)


def _within(op: str, ids: Array, size: int) -> None:
    bad = (ids < -1) | (ids >= size)
    if bad.any():
        raise ValueError(f"{op}: indices must be from -1 to {size - 1}, got {_first(ids, bad)}")


def _differences(op: str, ours: Any, theirs: Any) -> Array:
    first, second = (
        _array(op, name, values, "fiu", "numbers").astype(np.float64)
        for name, values in (("ours", ours), ("theirs", theirs))
    )
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"{op}: ours and theirs must be of one shape (Q,), got {first.shape} and {second.shape}")
    if not len(first):
        raise ValueError(f"{op}: ours must have at least one query, got none")
    difference = first - second
    if np.isnan(difference).any():
        raise ValueError(
            f"{op}: ours and theirs must be finite, got NaN for query {int(np.argmax(np.isnan(difference)))}"
        )
    return difference


def _over(function: np.ufunc, values: Array, starts: Array) -> Array:
    """Reduce each question's values; no question is empty."""
    result: Array = function.reduceat(values, starts) if len(starts) else values[:0]
    return result


def _logsumexp(values: Array, cu: Array) -> Array:
    highest = _over(np.maximum, values, cu[:-1])
    shift = np.where(np.isfinite(highest), highest, 0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(_over(np.add, np.exp(values - np.repeat(shift, np.diff(cu))), cu[:-1])) + shift)


def _first(values: Array, bad: Array) -> Any:
    return values[bad].flat[0]
