"""The report of the evaluation of answers after VRSD's picks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.icl.datasets import QuestionSet
from ragsys_kernels.reporting.statistics import Interval

from ..report import BLUE, GREEN, GREY, ORANGE, Report, panels
from ..statistics import bootstrap_means, share_of
from .picks_report import MMR, OKAPI, VRSD

NONE, RANDOM = "no items", "random items"
ROUGE = ("ROUGE-1", "ROUGE-2", "ROUGE-L")
METHODS = (NONE, RANDOM, *MMR, OKAPI, VRSD)
_ACCURACY, _LIKELIEST = "accuracy", "accuracy by log-probability"
_NORMALISED = f"{_LIKELIEST} per character"
SHARES = _ACCURACY, _LIKELIEST, _NORMALISED
_TRUTH = "log-probability of the answer"

# The paper's Tables 2 and 3: ROUGE-L, on OpenBookQA accuracy, of gpt-3.5-turbo and of open-mistral-7b.
PAPER_MODELS = ("gpt-3.5-turbo", "open-mistral-7b")
PAPER = {
    "arc-da": dict(zip((*MMR, OKAPI, VRSD), ((0.355, 0.216), (0.364, 0.218), (0.347, 0.222), (0.347, 0.196),
                                             (0.371, 0.233)), strict=True)),
    "openbookqa": dict(zip((*MMR, OKAPI, VRSD), ((0.767, 0.508), (0.772, 0.507), (0.780, 0.510), (0.753, 0.503),
                                                 (0.789, 0.534)), strict=True)),
    "puzzle": dict(zip((*MMR, OKAPI, VRSD), ((0.206, 0.198), (0.202, 0.188), (0.188, 0.186), (0.188, 0.185),
                                             (0.213, 0.198)), strict=True)),
}  # fmt: skip


class AnswerResult(NamedTuple):
    """One set: the picks of each method, and how good the answers after them are."""

    questions: QuestionSet
    picks: dict[str, Array]  # (Q, k) positions in the pool
    rouge: dict[str, Array]  # (Q, 3) F1 of ROUGE-1, 2 and L; empty where no answers were written
    right: dict[str, Array]  # (Q,) bool; empty also where answers are not options
    likeliest: dict[str, Array]  # (Q,) bool: the right option is the most probable; likewise
    per_character: dict[str, Array]  # (Q,) bool: the same by log-probability per character
    truth: dict[str, Array]  # (Q,) mean log-probability (nats) of a token of the set's answer; empty where not scored

    @property
    def measures(self) -> tuple[str, ...]:
        return (*(ROUGE if self.rouge else ()), *(name for name, values in self._parts.items() if values))

    @property
    def leading(self) -> str:
        """The measure that is told first."""
        return "ROUGE-L" if self.rouge else _TRUTH

    def values(self, measure: str) -> dict[str, Array]:
        """Return a measure's values by method, (Q,)."""
        if measure in ROUGE:
            return {label: values[:, ROUGE.index(measure)] for label, values in self.rouge.items()}
        return self._parts[measure]

    @property
    def _parts(self) -> dict[str, dict[str, Array]]:
        values = self.right, self.likeliest, self.per_character, self.truth
        return dict(zip((*SHARES, _TRUTH), values, strict=True))


def report_of(results: Sequence[AnswerResult], samples: int, k: int, *, quick: bool = False) -> Report:
    report = Report("vrsd-answers", "VRSD: answers of a language model after the picks")
    written = all(result.rouge for result in results)
    options = any(result.likeliest for result in results)
    scored = all(result.truth for result in results)
    found = [{name: _measure(result, name, samples) for name in result.measures} for result in results]
    report.text(
        f"""{"**Quick run.** " if quick else ""}Each question {"is answered greedily" if written else "stands"} after
        {k} questions with their answers, which each method picks from the question's nearest; MMR with λ = 1 is cosine
        top-k.{"" if written else " No answers are written: the model scores those of the set."} The tables have
        means over the questions with 95 % bootstrap intervals, Wilson's for accuracies, the differences paired by
        question.
        {_verdict(results, found)}"""
    )
    report.heading("Table 2: answer quality")
    report.text(
        f"""{_ACCURACY_IS if written else ""}{_LIKELIEST_IS if options else ""}{_TRUTH_IS if scored else ""}The
        paper's figures, of {" and ".join(PAPER_MODELS)}, stand at the end: ROUGE-L, on OpenBookQA accuracy. Its models
        are far larger; what can be compared is the direction of the differences, below. {OKAPI} has the words as they
        stand, as in its Table 3, which also has cosine similarity: it picks as MMR λ=1 does, and has other figures
        there for ARC-DA (0.361 with gpt-3.5-turbo) and Puzzle (0.201 and 0.187)."""
    )
    report.table(
        ("set", "method", *((*ROUGE, "ROUGE-L, 95 % interval", "accuracy", "95 % interval") if written else ()),
         *(("by log-probability", "95 % interval", "per character", "95 % interval") if options else ()),
         *((_TRUTH, "95 % interval") if scored else ()), *PAPER_MODELS),
        [
            (
                result.questions.title, label, *(_rouge(means, label) if written else ()),
                *((*_share(means, _LIKELIEST, label), *_share(means, _NORMALISED, label)) if options else ()),
                *(means[_TRUTH].means[label].cells() if scored else ()),
                *(f"{value:.3f}" for value in PAPER[result.questions.name].get(label, ())),
                *("",) * (0 if label in PAPER[result.questions.name] else 2),
            )
            for result, means in zip(results, found, strict=True)
            for label in METHODS
        ],
    )  # fmt: skip
    report.heading("The paper's directions")
    lines = [*_directions(results, found)]
    report.text(
        f"""In the paper VRSD is above every other method on every set, but for one tie. "Undecided": our interval has 0
        in it; "models differ": the paper's two models disagree, so there is no direction to find. If none of the
        {len(lines)} differences were real, {len(lines) / 20:.1f} would be decided by chance."""
    )
    report.table(("set", "VRSD minus", "measure", *PAPER_MODELS, "here", "same direction?"), lines)
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
    leading = results[0].leading
    caption = f"Mean {leading}{' of the answers' if written else ''} with its 95 % interval."
    if any(_is_below(measures[leading].means) for measures in found):
        caption = f"{caption[:-1]}; an arrow: the mean is below the plot."
    report.plot("answers.png", (3.1 * len(results) + 0.6, 3.2), caption, _plot, results, found)
    report.values(_values(results))
    report.text("`values.csv` has the picks and every measure, for every question.")
    return report


class _Measure(NamedTuple):
    """The mean of each method, and that of VRSD's difference from it."""

    means: dict[str, Interval]
    gaps: dict[str, Interval]


_Measures = dict[str, _Measure]  # by name

_ACCURACY_IS = "Accuracy: the right option is more like the answer, by ROUGE-L, than every other. "
_LIKELIEST_IS = (
    "By log-probability: the model gives the right option the largest of all, whatever it would write; per character "
    "the same after division by the option's length, as short options are the more probable. "
)
_TRUTH_IS = "The log-probability of the answer is the mean of its tokens, in nats. "


def _rouge(measures: _Measures, label: str) -> tuple[str, ...]:
    written = (f"{measures[name].means[label].mean:.3f}" for name in ROUGE)
    return (*written, measures["ROUGE-L"].means[label].span(), *_share(measures, _ACCURACY, label))


def _share(measures: _Measures, name: str, label: str) -> tuple[str, str]:
    return measures[name].means[label].cells("{:.1%}") if name in measures else ("", "")


def _directions(results: Sequence[AnswerResult], found: Sequence[_Measures]) -> Iterator[tuple[str, ...]]:
    for result, measures in zip(results, found, strict=True):
        paper = PAPER[result.questions.name]
        # Of ROUGE and accuracy that which the paper has; then what it has not.
        own = [name for name in SHARES if name in measures] or ["ROUGE-L"]
        for label in (*MMR, OKAPI):
            there = [ours - theirs for ours, theirs in zip(paper[VRSD], paper[label], strict=True)]
            for name in (name for name in (*own, _TRUTH) if name in measures):
                gap = measures[name].gaps[label]
                cells = (f"{difference:+.3f}" for difference in there)
                yield result.questions.title, label, name, *cells, gap.marked(), gap.same(*there)


def _measure(result: AnswerResult, name: str, samples: int) -> _Measure:
    values = result.values(name)
    columns = np.stack([values[label].astype(np.float64) for label in METHODS], axis=1)
    gaps = columns[:, [METHODS.index(VRSD)]] - columns
    means = bootstrap_means(np.hstack([columns, gaps]), samples=samples)
    number = len(METHODS)
    if name in SHARES:
        means[:number] = [share_of(column) for column in columns.T]
    return _Measure(*(dict(zip(METHODS, some, strict=True)) for some in (means[:number], means[number:])))


def _verdict(results: Sequence[AnswerResult], found: Sequence[_Measures]) -> str:
    """Say which differences between VRSD and MMR are decided, and how many are not."""
    gaps = [
        (f"{label} on {result.questions.title}", measures[result.leading].gaps[label])
        for result, measures in zip(results, found, strict=True)
        for label in MMR
    ]
    parts = [f"{gap.place} {where} ({gap.mean:+.3f})" for where, gap in gaps if gap.sign]
    left = len(gaps) - len(parts)
    if not parts:
        return f"VRSD's {results[0].leading} is not distinguishable from MMR's on any set."
    others = "other difference from MMR is" if left == 1 else f"{left} other differences from MMR are"
    rest = f"; its {others} undecided" if left else ""
    return f"VRSD's {results[0].leading} is {', '.join(parts)}{rest}."


def _values(results: Sequence[AnswerResult]) -> Iterator[tuple[object, ...]]:
    yield "set", "query", "method", *ROUGE, "right", "likeliest", "likeliest_per_character", "logprob", "picks"
    for result in results:
        for label in METHODS:
            for q, picks in enumerate(result.picks[label]):
                rouge = [f"{value:.6f}" for value in result.rouge[label][q]] if result.rouge else [""] * len(ROUGE)
                shares = (int(some[label][q]) if some else "" for some in map(result.values, SHARES))
                logp = f"{result.truth[label][q]:.6f}" if result.truth else ""
                yield result.questions.name, q, label, *rouge, *shares, logp, " ".join(map(str, picks))


def _is_below(means: dict[str, Interval]) -> bool:
    """Return whether all others lie above the mean without items, which would press them together in a plot."""
    return means[NONE].high < min(means[label].low for label in METHODS if label != NONE)


def _plot(figure: Any, results: Sequence[AnswerResult], found: Sequence[_Measures]) -> None:
    titles = [f"{result.questions.title}, {len(result.questions.questions)} queries" for result in results]
    leading = results[0].leading
    for axes, measures in zip(panels(figure, titles, f"mean {leading}"), found, strict=True):
        shown = measures[leading].means
        for x, label in enumerate(METHODS):
            mean = shown[label]
            if label == NONE and _is_below(shown):
                axes.annotate(f"{mean.mean:.2f}\n↓", (x, 0.02), xycoords=("data", "axes fraction"), ha="center")
                continue
            colour = BLUE if label == VRSD else ORANGE if label in MMR else GREEN if label == OKAPI else GREY
            axes.errorbar(x, mean.mean, yerr=mean.bar, fmt="o", color=colour)
        axes.set_xlim(-0.6, len(METHODS) - 0.4)
        axes.set_xticks(range(len(METHODS)), METHODS, rotation=40, ha="right")
        axes.grid(axis="y")
