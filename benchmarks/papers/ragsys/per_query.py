"""A weight of relevance for each question: what the best one gives, and what one gives that other questions choose."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import ragsys_kernels as rk
from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.reporting.statistics import Interval

from ..report import Report
from ..statistics import bootstrap_means
from .results import METRICS, Result, intervals_of
from .retrievers import Setting

CHOSEN_BY = "MC3"  # the metric by which weights are chosen
FOLDS = 5
NEIGHBOURS = 10

FIXED = "best λ of all questions"
FIXED_BY_OTHERS = "best λ of other questions"
NEAREST = "λ of the nearest other questions"
ORACLE_OF_SWEEP = "oracle, of the sweep"
ORACLE = "oracle, of the path"
# (better, worse)
COMPARED = (
    (ORACLE, FIXED),
    (ORACLE_OF_SWEEP, FIXED),
    (NEAREST, FIXED_BY_OTHERS),
    (NEAREST, FIXED),
    (FIXED_BY_OTHERS, FIXED),
)


class Segments(NamedTuple):
    """Some of the selections of every question's path."""

    picks: dict[Setting, Array]  # (Q, k): of each question its widest selection, its second widest, and so on
    number: Array  # (Q,) selections of the whole path
    share: Array  # (Q,) of the range of λ_d that those here have


class Choice(NamedTuple):
    """A way to choose the weight, and what it gives each question."""

    label: str
    values: dict[str, Array]  # (Q,) by metric
    weights: Array  # (Q,) λ_d; NaN where it is a selection of the path
    pairs: Array  # (Q,) of `Result`


def segments_of(
    corpus: rk.Corpus, queries: Array, groups: Array, *, k: int, pool: int, most: int, num_threads: int | None
) -> Segments:
    """Return at most so many selections of MMR without bias of every question, those of the widest ranges of λ_d."""
    candidates, _ = corpus.search(queries, pool, lambda_b=1.0, query_groups=groups, num_threads=num_threads)
    path = rk.mmr_path(queries, corpus, k, candidates=candidates, lambda_b=1.0, num_threads=num_threads)
    number = path.num_segments
    columns = min(most, int(number.max()))
    rows, share = np.empty((len(number), columns), np.int64), np.empty(len(number))
    for q in range(len(number)):
        begin, end = path.cu_segments[q : q + 2]
        widths = path.high[begin:end] - path.low[begin:end]
        widest = np.argsort(-widths, kind="stable")[:columns]
        rows[q] = begin + widest[np.minimum(np.arange(columns), len(widest) - 1)]  # fewer: the last is repeated
        share[q] = widths[widest].sum()
    picks = {Setting(f"selection {i + 1}", "path"): path.indices[rows[:, i]] for i in range(columns)}
    return Segments(picks, number, share)


def choices(swept: Sequence[Result], of_path: Sequence[Result], queries: Array, seed: int = 0) -> list[Choice]:
    """Choose the weight of each question in every way of the report.

    The questions are dealt to folds. What is chosen by other questions is chosen by those of the other folds: the
    weight with the best mean of all of them, or of those whose questions are nearest. Ties go to the larger weight. The
    oracles look at the question's own answers.
    """
    order = sorted(swept, key=lambda result: -result.setting.lambda_d)
    weights = np.array([result.setting.lambda_d for result in order])
    worth = np.stack([result.values[CHOSEN_BY] for result in order])  # (L, Q)
    number = worth.shape[1]
    vectors = queries / np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-30)
    fold = np.random.default_rng(seed).permutation(number) % FOLDS
    by_others, nearest = np.empty(number, np.int64), np.empty(number, np.int64)
    for q in range(number):
        others = np.flatnonzero(fold != fold[q])
        near = others[np.argsort(-(vectors[others] @ vectors[q]), kind="stable")[:NEIGHBOURS]]
        by_others[q] = worth[:, others].mean(axis=1).argmax()
        nearest[q] = worth[:, near].mean(axis=1).argmax()
    fixed = np.full(number, worth.mean(axis=1).argmax())
    found = [
        _chosen(label, order, at, weights[at])
        for label, at in (
            (FIXED, fixed),
            (FIXED_BY_OTHERS, by_others),
            (NEAREST, nearest),
            (ORACLE_OF_SWEEP, worth.argmax(axis=0)),
        )
    ]
    every = [*order, *of_path]  # a weight of the sweep may be in none of the selections that were scored
    best = np.stack([result.values[CHOSEN_BY] for result in every]).argmax(axis=0)
    named = np.concatenate([weights, np.full(len(of_path), np.nan)])
    return [*found, _chosen(ORACLE, every, best, named[best])]


def by_half(logp: Array, is_correct: Array, starts: Array) -> Array:
    """Return MC3 by each half of every question's answers, (2, Q); NaN where a half lacks one of the two kinds.

    Answers (A,) are dealt to the halves in turn, the correct and the incorrect ones each for themselves.
    """
    found = np.full((2, len(starts) - 1), np.nan)
    for q, (begin, end) in enumerate(itertools.pairwise(starts)):
        correct, wrong = (logp[begin:end][is_correct[begin:end] == kind] for kind in (True, False))
        for half in (0, 1):
            ours, theirs = correct[half::2], wrong[half::2]
            if len(ours) and len(theirs):
                total = np.logaddexp.reduce(ours)
                found[half, q] = np.exp(total - np.logaddexp(total, np.logaddexp.reduce(theirs)))
    return found


class Halves(NamedTuple):
    """What half of a question's answers choose, judged by the other half; over the questions whose halves have both."""

    questions: int
    difference: Interval  # to the best fixed weight


def judged_by_others(swept: Array, of_path: Array, samples: int) -> Halves | None:
    """Let each half of the answers choose a selection of the question, and judge it by the other half.

    ``swept`` (L, 2, Q) and ``of_path`` (S, 2, Q) are of `by_half`. What is only noise in the answers gains nothing
    here. None: no question has answers enough.
    """
    usable = np.isfinite(swept).all(axis=(0, 1))
    if not usable.any():
        return None
    weights, every = swept[..., usable], np.concatenate([swept, of_path])[..., usable]
    fixed = weights.mean(axis=1)[weights.mean(axis=(1, 2)).argmax()]
    of_question = np.arange(every.shape[2])
    chosen = np.mean([every[every[:, half].argmax(axis=0), 1 - half, of_question] for half in (0, 1)], axis=0)
    return Halves(int(usable.sum()), bootstrap_means(chosen - fixed, samples=samples)[0])


def _chosen(label: str, results: Sequence[Result], at: Array, weights: Array) -> Choice:
    of_question = np.arange(len(at))
    values = {name: np.stack([result.values[name] for result in results])[at, of_question] for name in METRICS}
    return Choice(label, values, weights, results[0].pairs)


def write(report: Report, *, found: Sequence[Choice], halves: Halves | None, segments: Segments, samples: int) -> None:
    """Write the section of the report."""
    by_label = {choice.label: choice for choice in found}
    differences = {
        (better, worse): intervals_of(
            {name: by_label[better].values[name] - by_label[worse].values[name] for name in METRICS},
            by_label[worse].pairs,
            samples,
        )
        for better, worse in COMPARED
    }
    report.heading("A weight for each question")
    report.text(
        f"""{_said(differences, halves)} All weights are chosen by {CHOSEN_BY} out of the sweep of λ_d, by selection
        without bias. What other questions choose is chosen by those of the other folds, of {FOLDS}: the λ_d of their
        best mean, or of the best mean of the {NEIGHBOURS} nearest of them. The oracles look at the answers that they
        are judged by, so they are above a fixed weight by their making, in {CHOSEN_BY} always: they say how much could
        be gained at most. Part of that is noise, which the other half of the answers does not share. A path has
        {segments.number.mean():.1f} selections a question; scored were the {len(segments.picks)} of the widest ranges,
        which have {100 * segments.share.mean():.0f} % of the range from 0 to 1, and those of the sweep."""
    )
    report.table(
        ("the weight is", *METRICS, "mean λ_d"),
        [
            (choice.label, *(f"{choice.values[name].mean():.3f}" for name in METRICS), _mean(choice.weights))
            for choice in found
        ],
    )
    report.table(
        ("difference", *METRICS),
        [
            (f"{better} over {worse}", *(differences[better, worse][name].marked() for name in METRICS))
            for better, worse in COMPARED
        ],
    )


def _said(differences: Mapping[tuple[str, str], Any], halves: Halves | None) -> str:
    of_oracle, of_nearest = (differences[pair][CHOSEN_BY] for pair in (COMPARED[0], COMPARED[2]))
    said = (
        f"**The best selection of each question is {of_oracle.place} the best fixed λ_d in {CHOSEN_BY}, "
        f"{of_oracle.signed()}; the weight that the nearest other questions choose is {of_nearest.place} the one that "
        f"all other questions choose, {of_nearest.signed()}.**"
    )
    if halves is None:
        return said
    return (
        f"{said} Where half of a question's answers choose its selection and the other half judge it, it is "
        f"{halves.difference.place} the best fixed λ_d, {halves.difference.signed()}, over the {halves.questions} "
        "questions whose halves both have correct and incorrect answers."
    )


def _mean(weights: Array) -> str:
    return "" if np.isnan(weights).any() else f"{weights.mean():.2f}"
