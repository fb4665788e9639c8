"""The report of the evaluation of answers after VRSD's picks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...icl.datasets import QuestionSet
from ..report import BLUE, GREY, ORANGE, Report, panels
from ..statistics import Interval, bootstrap_means
from .picks_report import MMR, VRSD

Array = npt.NDArray[Any]

NONE, RANDOM = "no items", "random items"
ROUGE = ("ROUGE-1", "ROUGE-2", "ROUGE-L")
METHODS = (NONE, RANDOM, *MMR, VRSD)
_ACCURACY = "accuracy"


class AnswerResult(NamedTuple):
    """One set: the picks of each method, and how good the answers after them are."""

    questions: QuestionSet
    picks: dict[str, Array]  # (Q, k) positions in the pool
    rouge: dict[str, Array]  # (Q, 3) F1 of ROUGE-1, 2 and L
    right: dict[str, Array]  # (Q,) bool; empty where answers are not options


def report_of(results: Sequence[AnswerResult], samples: int, k: int) -> Report:
    report = Report("vrsd-answers", "VRSD: answers of a language model after the picks")
    found = [{name: _intervals(result, name, samples) for name in _measures(result)} for result in results]
    report.text(
        f"""Each question is answered greedily after {k} questions with their answers, which each method picks from the
        question's nearest; MMR with λ = 1 is cosine top-k. The tables have means over the questions with 95 % bootstrap
        intervals, the differences paired by question. {_verdict(results, found)}"""
    )
    report.heading("Table 2: answer quality")
    report.text(
        """The paper's models, open-mistral-7b and gpt-3.5-turbo, are far larger, and its figures are not at hand here:
        what can be compared is the order of the methods. Accuracy: the right option is more like the answer, by
        ROUGE-L, than every other."""
    )
    report.table(
        ("set", "method", *ROUGE, "ROUGE-L, 95 % interval", "accuracy", "95 % interval"),
        [
            (
                result.questions.title, label, *(f"{means[name][0][label].mean:.3f}" for name in ROUGE),
                means["ROUGE-L"][0][label].span(),
                *((f"{means[_ACCURACY][0][label].mean:.1%}", means[_ACCURACY][0][label].span("{:.1%}"))
                  if _ACCURACY in means else ("", "")),
            )
            for result, means in zip(results, found, strict=True)
            for label in METHODS
        ],
    )  # fmt: skip
    report.heading("VRSD minus the others")
    report.text("**Bold** where 0 is outside the interval.")
    report.table(
        ("set", "measure", *(f"minus {label}" for label in METHODS[:-1])),
        [
            (result.questions.title, name, *(gaps[label].marked() for label in METHODS[:-1]))
            for result, means in zip(results, found, strict=True)
            for name, (_, gaps) in means.items()
        ],
    )
    caption = "Mean ROUGE-L of the answers with its 95 % interval."
    report.plot("answers.png", (3.1 * len(results) + 0.6, 3.2), caption, _plot, results, found)
    report.values(_values(results))
    report.text(
        "`values.csv` has the picks, ROUGE and, for OpenBookQA, whether the answer is right, for every question."
    )
    return report


_Means = dict[str, Interval]


def _measures(result: AnswerResult) -> tuple[str, ...]:
    return (*ROUGE, _ACCURACY) if result.right else ROUGE


def _intervals(result: AnswerResult, name: str, samples: int) -> tuple[_Means, _Means]:
    """Return the mean of each method, and that of VRSD's difference from it."""
    if name == _ACCURACY:
        columns = np.stack([result.right[label].astype(np.float64) for label in METHODS], axis=1)
    else:
        columns = np.stack([result.rouge[label][:, ROUGE.index(name)] for label in METHODS], axis=1)
    gaps = columns[:, [METHODS.index(VRSD)]] - columns
    means = bootstrap_means(np.hstack([columns, gaps]), samples=samples)
    number = len(METHODS)
    return dict(zip(METHODS, means[:number], strict=True)), dict(zip(METHODS, means[number:], strict=True))


def _verdict(results: Sequence[AnswerResult], found: Sequence[dict[str, tuple[_Means, _Means]]]) -> str:
    sentences = []
    for result, means in zip(results, found, strict=True):
        parts = []
        for label in MMR:
            gap = means["ROUGE-L"][1][label]
            parts.append(f"{gap.place} {label} ({gap.mean:+.3f})")
        sentences.append(f"On {result.questions.title} VRSD's ROUGE-L is {', '.join(parts)}.")
    return " ".join(sentences)


def _values(results: Sequence[AnswerResult]) -> Iterator[tuple[object, ...]]:
    yield "set", "query", "method", *ROUGE, "right", "picks"
    for result in results:
        for label in METHODS:
            for q, (rouge, picks) in enumerate(zip(result.rouge[label], result.picks[label], strict=True)):
                right = int(result.right[label][q]) if result.right else ""
                numbers = (f"{value:.6f}" for value in rouge)
                yield result.questions.name, q, label, *numbers, right, " ".join(map(str, picks))


def _plot(figure: Any, results: Sequence[AnswerResult], found: Sequence[dict[str, tuple[_Means, _Means]]]) -> None:
    titles = [f"{result.questions.title}, {len(result.questions.questions)} queries" for result in results]
    for axes, means in zip(panels(figure, titles, "mean ROUGE-L"), found, strict=True):
        for x, label in enumerate(METHODS):
            mean = means["ROUGE-L"][0][label]
            colour = BLUE if label == VRSD else ORANGE if label in MMR else GREY
            axes.errorbar(x, mean.mean, yerr=mean.bar, fmt="o", color=colour)
        axes.set_xticks(range(len(METHODS)), METHODS, rotation=40, ha="right")
        axes.grid(axis="y")
