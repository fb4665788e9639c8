"""The quality bias of demonstrations: how probable a model finds their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .._base import checks
from .._base.types import NDArray as Array
from .._base.types import PathLike
from .cache import cached
from .language_model import LanguageModel, PairError, texts
from .prompts import QA
from .storage.portions import portions

TEMPLATE = QA.demonstration
_WINDOW = 64  # pairs; what a killed run loses at most, and what one progress step covers


def quality_bias(
    model: LanguageModel,
    questions: Sequence[str],
    answers: Sequence[str],
    *,
    template: str = TEMPLATE,
    cache: PathLike | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Array:
    """Give each demonstration (question, answer) its quality under the model, the bias of RAGSys.

    The bias is the mean log-probability of the answer's tokens given the question::

        b_i = 1/n_i * sum_t log p(a_it | question_i, a_i1 ... a_i,t-1)

    Parameters
    ----------
    model : LanguageModel
    questions, answers : sequences of N str
        Answers must have at least one token. Pairs with equal questions share the work on the question.
    template : str
        Text of a demonstration, with ``{question}`` and, at its end, ``{answer}``. What comes before ``{answer}`` is
        the prompt: other demonstrations, for instance, or an instruction.
    cache : path, optional
        SQLite file of scores, made if missing. Pairs in it are not scored again, and what is scored is added every 64
        pairs, so that a killed run resumes where it was. Scores are found by model, prompt and answer; see
        `CachedModel`.
    progress : callable, optional
        Called with the distinct pairs done and their number, first with 0.

    Returns
    -------
    (N,) float32
        In nats, at most 0; ready for ``mmr(..., bias=...)``.

    Raises
    ------
    PairError
        A pair that the model cannot score, an empty answer among them.
    ValueError, TypeError
        Unequal numbers of questions and answers, a template without its two fields, a result that is not finite.

    Notes
    -----
    Longest prompts first: what does not fit is known at once. Of several bad pairs any may be named. Source: RAGSys
    (arXiv 2405.17587), quality bias.
    """
    op = "quality_bias"
    checks.function(op, "progress", progress)
    questions, answers = texts(op, "questions", questions), texts(op, "answers", answers)
    if len(questions) != len(answers):
        raise ValueError(f"{op}: answers must be as many as questions, {len(questions)}, got {len(answers)}")
    prompt = prompt_of(op, template)
    prompts = [prompt.replace("{question}", question) for question in questions]
    first: dict[tuple[str, str], int] = {}  # the row of each pair: one that comes again is scored once
    rows = [first.setdefault(pair, i) for i, pair in enumerate(zip(prompts, answers, strict=True))]
    order = sorted(first.values(), key=lambda i: (-len(prompts[i]), prompts[i], len(answers[i])))
    bias = np.empty(len(prompts), np.float32)
    with cached(model, cache) as scorer:
        for part in portions(len(order), _WINDOW, progress):
            window = order[part]
            try:
                scores = scorer.score([prompts[i] for i in window], [answers[i] for i in window])
            except PairError as error:
                raise PairError(op, error.rule, window[error.pair]) from error
            bad = ~np.isfinite(scores.mean)
            if bad.any():
                at = int(np.argmax(bad))
                rule = "answers must have at least one token, got none"
                if scores.count[at]:
                    rule = f"model must give finite log-probabilities, got a mean of {scores.mean[at]}"
                raise PairError(op, rule, window[at])
            bias[window] = scores.mean
    return bias[rows]


def prompt_of(op: str, template: str) -> str:
    """Return the part of a template before ``{answer}``; refuse a template without its two fields."""
    prompt, field, rest = template.partition("{answer}")
    if not field or rest or "{question}" not in prompt:
        raise ValueError(f"{op}: template must have {{question}} and end with {{answer}}, got {template!r}")
    return prompt
