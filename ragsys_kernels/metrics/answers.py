"""Metrics over the log-probabilities of answers: MC1 to MC3 and DPO (RAGSys), perplexity."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .._base.checks import number
from .._base.types import ArrayLike
from .._base.types import NDArray as Array
from . import _values


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
    pairs: Array  # int64, number of pairs (correct, incorrect); of correct answers where there are no incorrect ones


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

    which is the DPO loss with its sign turned, so that more is better and 0 is the most. A question without incorrect
    answers is scored by its correct ones alone: b's part of the margin is left out (RAGSys, section 3.2). P is the
    model with demonstrations in its prompt, P_ref the model it is compared with, for instance the same one without.
    Without a reference P_ref is the same for all answers and leaves the formula. RAGSys takes the mean over all
    triplets (question, a, b), so that a question counts by its number of pairs::

        np.average(result.dpo, weights=result.pairs)

    TruthfulQA's own code has no such metric.

    Parameters
    ----------
    logp, is_correct, cu_questions
        As in `multiple_choice`, but a question may lack incorrect answers; ``logp`` must be finite.
    reference : (A,) floating point, optional
        Log-probability of each answer under the reference. Needed by questions without incorrect answers, where an
        equal P_ref does not leave the formula.
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
    logp, is_correct, cu = _answers(op, logp, is_correct, cu_questions, needs_incorrect=False)
    beta = number(op, "beta", beta)
    if not beta > 0 or not np.isfinite(beta):
        raise ValueError(f"{op}: beta must be above 0 and finite, got {beta}")
    values = logp
    if reference is not None:
        values = logp - _finite(op, "reference", _vector(op, "reference", reference, len(logp)))
    alone = np.array([is_correct[begin:end].all() for begin, end in pairwise(cu)], bool)
    if reference is None and alone.any():
        got = f"none for question {int(np.argmax(alone))}"
        raise ValueError(f"{op}: reference must be given where a question has no incorrect answer, got {got}")
    values = beta * _finite(op, "logp", values)
    result = Preference(*(np.empty(len(cu) - 1, kind) for kind in (np.float64, np.float64, np.int64)))
    for q, (begin, end) in enumerate(pairwise(cu)):
        mine, right = values[begin:end], is_correct[begin:end]
        margins = mine if alone[q] else mine[right][:, None] - mine[~right]
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
    sums = _values.array(op, "sum_logp", sum_logp, "fiu", "floating point").astype(np.float64)
    counts = _values.array(op, "count", count, "iu", "integers")
    if sums.shape != counts.shape or sums.ndim > 1:
        raise ValueError(f"{op}: count must have the shape of sum_logp, {sums.shape}, got {counts.shape}")
    if not (sums <= 0).all():
        raise ValueError(f"{op}: sum_logp must be at most 0, got {_values.first(sums, ~(sums <= 0))}")
    if (counts < 0).any():
        raise ValueError(f"{op}: count must be at least 0, got {_values.first(counts, counts < 0)}")
    total = int(counts.sum())
    if not total:
        raise ValueError(f"{op}: count must be at least 1 in all, got 0")
    with np.errstate(over="ignore"):
        return float(np.exp(-sums.sum() / total))


def _answers(
    op: str, logp: Any, is_correct: Any, cu_questions: Any, *, needs_incorrect: bool = True
) -> tuple[Array, Array, Array]:
    logp = _vector(op, "logp", logp, None)
    bad = ~(logp <= 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"{op}: logp must be log-probabilities of at most 0, got {logp[row]} for answer {row}")
    right = _values.array(op, "is_correct", is_correct, "b", "bool")
    if right.shape != logp.shape:
        raise ValueError(f"{op}: is_correct must have the shape of logp, {logp.shape}, got {right.shape}")
    cu = _values.array(op, "cu_questions", cu_questions, "iu", "integers")
    if cu.ndim != 1 or not cu.size or cu[0] != 0 or cu[-1] != len(logp):
        raise ValueError(
            f"{op}: cu_questions must be a vector from 0 to the number of answers, {len(logp)}, got {cu.tolist()}"
        )
    cu = cu.astype(np.int64)
    sizes = np.diff(cu)
    if (sizes < 0).any():
        raise ValueError(f"{op}: cu_questions must not decrease, got {cu.tolist()}")
    corrects = np.diff(np.concatenate(([0], np.cumsum(right)))[cu])
    bad = (corrects < 1) | ((corrects >= sizes) & needs_incorrect)
    if bad.any():
        q = int(np.argmax(bad))
        rule = "a correct and an incorrect answer" if needs_incorrect else "a correct answer"
        raise ValueError(
            f"{op}: cu_questions must give each question {rule}, "
            f"got {corrects[q]} correct of {sizes[q]} for question {q}"
        )
    return logp, right, cu


def _vector(op: str, name: str, values: Any, length: int | None) -> Array:
    array = _values.array(op, name, values, "f", "floating point")
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
    rows = _values.array(op, "best", best, "iu", "integers")
    if rows.shape != (len(cu) - 1,):
        raise ValueError(f"{op}: best must be of shape ({len(cu) - 1},), one for each question, got {rows.shape}")
    inside = (rows >= cu[:-1]) & (rows < cu[1:])
    bad = ~inside | ~is_correct[np.where(inside, rows, 0)] if len(rows) else ~inside
    if bad.any():
        q = int(np.argmax(bad))
        raise ValueError(f"{op}: best must be a correct answer of the question, got {rows[q]} for question {q}")
    return rows


def _over(function: np.ufunc, values: Array, starts: Array) -> Array:
    """Reduce each question's values; no question is empty."""
    result: Array = function.reduceat(values, starts) if len(starts) else values[:0]
    return result


def _logsumexp(values: Array, cu: Array) -> Array:
    highest = _over(np.maximum, values, cu[:-1])
    shift = np.where(np.isfinite(highest), highest, 0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(_over(np.add, np.exp(values - np.repeat(shift, np.diff(cu))), cu[:-1])) + shift)
