"""The report of the evaluation of questions with passages: accuracies with their intervals, and what decides them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.icl.retrievers import Rule
from ragsys_kernels.reporting.statistics import Interval

from ..report import BLUE, GREEN, GREY, ORANGE, Report
from ..statistics import bootstrap_class_means, bootstrap_means, share_of

MMR, VRSD = Rule("mmr", 0.5), Rule("vrsd")
NONE, ANY, OWN = "no document", "any passage", "own passage"
BM25, BM25_PAIR = "BM25, first", "BM25, first two"
DENSE, DENSE_PAIR = "dense, first", "dense, first two"
MMR_PAIR, VRSD_PAIR = f"{MMR.label}, two", f"{VRSD.label}, two"
METHODS = (NONE, ANY, BM25, BM25_PAIR, DENSE, DENSE_PAIR, MMR_PAIR, VRSD_PAIR, OWN)
RETRIEVED = METHODS[2:-1]
# (method, rival, what their difference says)
_PAIRS = (
    *((label, NONE, "what the documents are worth in all") for label in METHODS[1:]),
    (DENSE, ANY, "what retrieval says, against any passage"),
    (BM25_PAIR, BM25, "what the second document adds"),
    (DENSE_PAIR, DENSE, "what the second document adds"),
    (BM25, DENSE, "BM25 against the dense retriever"),
    (BM25_PAIR, DENSE_PAIR, "BM25 against the dense retriever"),
    (MMR_PAIR, DENSE_PAIR, f"{MMR.label} against the two nearest"),
    (VRSD_PAIR, DENSE_PAIR, f"{VRSD.label} against the two nearest"),
    (OWN, DENSE, "what a perfect retriever would add"),
)
# What In-Context RALM finds, and the methods whose difference is above 0 where it is so here.
_FINDINGS = (
    ("documents help to answer questions: the dense retriever's first (Section 7)", (DENSE, NONE)),
    ("documents help to answer questions: its first two (Section 7)", (DENSE_PAIR, NONE)),
    ("documents help to answer questions: BM25's first two (Section 7)", (BM25_PAIR, NONE)),
    ("a second document adds to the dense retriever's first (Section 7)", (DENSE_PAIR, DENSE)),
    ("BM25 is better than a dense retriever, which it finds for text (Figure 3)", (BM25, DENSE)),
)


class BoolQResult(NamedTuple):
    """Q questions: the documents before each, and the log-probabilities (nats) of both answers, by method."""

    questions: Array  # (Q,) positions in the data set
    truth: Array  # (Q,) bool, True for yes
    own: Array  # (Q,) positions of the questions' passages in the collection
    picks: dict[str, list[tuple[int, ...]]]  # documents of each question, in their order in the prompt
    logp: dict[str, Array]  # (Q, 2) of yes and of no
    prompts: int  # distinct ones

    def yes(self, label: str) -> Array:
        """Return which questions are answered yes: (Q,) bool."""
        return np.asarray(self.logp[label][:, 0] > self.logp[label][:, 1])

    def right(self, label: str) -> Array:
        """Return where the right answer has the larger log-probability: (Q,) bool. Equal ones are not right."""
        return np.asarray(self.raw(label) > np.where(self.truth, *self.logp[label].T[::-1]))

    def raw(self, label: str) -> Array:
        """Return the log-probability of the right answer: (Q,)."""
        return np.asarray(np.where(self.truth, *self.logp[label].T))

    def normalised(self, label: str) -> Array:
        """Return the log-probability of the right answer among the two: (Q,)."""
        return np.asarray(self.raw(label) - np.logaddexp(*self.logp[label].T))

    def found(self, label: str) -> Array:
        """Return which questions have their own passage among their documents: (Q,) bool."""
        return np.array([own in row for own, row in zip(self.own, self.picks[label], strict=True)])


class _Versus(NamedTuple):
    """Differences between two methods, paired by question."""

    balanced: Interval
    accuracy: Interval
    normalised: Interval

    @property
    def cells(self) -> Iterator[str]:
        """Each difference, and what its interval says of it."""
        texts = (_points(self.balanced), _points(self.accuracy), self.normalised.signed())
        for text, interval in zip(texts, self, strict=True):
            yield from (text, interval.verdict)


def report_of(
    result: BoolQResult, samples: int, *, collection: int, words: int, cut: int, quick: bool = False
) -> Report:
    """Return the report; `cut` of the `collection`'s passages are longer than the `words` that stand in a prompt."""
    report = Report("boolq", "In-Context RALM: what retrieved passages are worth to answer questions")
    means, versus = _means(result, samples), _versus(result, samples)
    size, share = len(result.truth), float(result.truth.mean())
    report.text(
        f"""{"**Quick run.** " if quick else ""}{size} questions of BoolQ (validation), each after the passages that a
        method finds among {collection}; the model answers yes or no, whichever has the larger log-probability. The
        answer to {share:.1%} is yes, which is the accuracy of a model that always says so; balanced accuracy, the mean
        of the accuracies over yes- and no-questions, is then 50 %. A passage is cut to its first {words} words, so that
        prompts stay short: {cut} are longer. Intervals are of 95 %: Wilson's for shares, else by the bootstrap over
        questions, paired where methods are compared. Model, questions and collection are not the paper's, so that its
        directions can be compared and not its figures."""
    )
    report.heading("What the paper finds, and what is found here")
    findings = [
        (text, versus[pair].balanced.same(1), _points(versus[pair].balanced, " points")) for text, pair in _FINDINGS
    ]
    report.text(
        f"""Same direction? "Undecided": 0 is in the interval. Changes are of balanced accuracy, in percentage points:
        a model that only says yes more often does not gain. Of the {len(findings)} findings, had none been there,
        {len(findings) / 20:.1f} would be decided by chance. The paper answers NaturalQuestions and TriviaQA by exact
        match."""
    )
    report.table(("finding", "here", "change"), findings, numbers=False)
    report.heading("Answers by method")
    report.text(
        f"""Log-probabilities are means over the questions, in nats: of the right answer among the two, which is
        {np.log(0.5):.3f} for a model that knows nothing, and as it is. "{OWN}" is no method but shows what a perfect
        retriever would find; "{ANY}" is one of another question, at random. "Found" is the share of the questions whose
        own passage is among the documents."""
    )
    report.table(
        ("method", "accuracy", "95 % interval", "balanced", "95 % interval", "says yes", "95 % interval",
         "log p among the two", "95 % interval", "log p", "95 % interval", "found", "95 % interval"),
        [(label, *_cells(result, label, means[label])) for label in METHODS],
    )  # fmt: skip
    caption = "Accuracy, balanced accuracy and the share of the questions answered yes, with 95 % intervals."
    report.plot("methods.png", (9.2, 0.3 * len(METHODS) + 1.0), caption, _plot_methods, means, share)
    report.heading("What decides it")
    report.text(
        f"""Differences are of percentage points and of nats; above 0 the method is better. Of the {len(_PAIRS)}
        differences of each measure, had none been there, {len(_PAIRS) / 20:.1f} would be decided by chance."""
    )
    report.table(
        ("method", "against", "says", "balanced accuracy", "which is", "accuracy", "which is",
         "log p among the two", "which is"),
        [
            (one, other, why, *versus[one, other].cells)
            for one, other, why in _PAIRS
        ],
        numbers=False,
    )  # fmt: skip
    caption = f"Change against {NONE}, with paired 95 % intervals."
    report.plot("changes.png", (7.4, 0.3 * len(METHODS) + 1.0), caption, _plot_changes, versus)
    report.values(_values(result))
    report.text("`values.csv` has both log-probabilities and the documents of every question and method, by number.")
    return report


class _Means(NamedTuple):
    accuracy: Interval
    balanced: Interval
    yes: Interval
    normalised: Interval
    raw: Interval


def _means(result: BoolQResult, samples: int) -> dict[str, _Means]:
    right = np.stack([result.right(label) for label in METHODS], axis=1)
    balanced = bootstrap_class_means(right, result.truth, samples=samples)
    logs = [values(label) for values in (result.normalised, result.raw) for label in METHODS]
    means = bootstrap_means(np.stack(logs, axis=1), samples=samples)
    return {
        label: _Means(
            share_of(right[:, i]), balanced[i], share_of(result.yes(label)), means[i], means[len(METHODS) + i]
        )
        for i, label in enumerate(METHODS)
    }  # fmt: skip


def _versus(result: BoolQResult, samples: int) -> dict[tuple[str, str], _Versus]:
    pairs = [(one, other) for one, other, _ in _PAIRS]
    right = {label: result.right(label).astype(np.float64) for label in METHODS}
    gaps = np.stack([right[one] - right[other] for one, other in pairs], axis=1)
    logs = np.stack([result.normalised(one) - result.normalised(other) for one, other in pairs], axis=1)
    found = zip(
        bootstrap_class_means(gaps, result.truth, samples=samples),
        bootstrap_means(gaps, samples=samples),
        bootstrap_means(logs, samples=samples),
        strict=True,
    )
    return {pair: _Versus(*intervals) for pair, intervals in zip(pairs, found, strict=True)}


def _points(interval: Interval, unit: str = "") -> str:
    if interval == Interval(0, 0, 0):  # an interval without width says nothing of other questions
        return "the same answers"
    return interval.times(100).signed("{:+.1f}") + unit


def _cells(result: BoolQResult, label: str, means: _Means) -> Iterator[str]:
    for share in means[:3]:
        yield from share.cells("{:.1%}")
    for mean in means[3:]:
        yield from mean.cells()
    yield from share_of(result.found(label)).cells("{:.1%}") if label in RETRIEVED else ("", "")


def _values(result: BoolQResult) -> Iterator[tuple[object, ...]]:
    yield "question", "method", "answer", "logp_yes", "logp_no", "right", "own_passage", "documents"
    for label in METHODS:
        rows = zip(
            result.questions, result.truth, result.logp[label], result.right(label), result.own, result.picks[label],
            strict=True,
        )  # fmt: skip
        for question, truth, (yes, no), right, own, picks in rows:
            documents = " ".join(map(str, picks))
            yield question, label, int(truth), f"{yes:.6f}", f"{no:.6f}", int(right), own, documents


_COLOURS = {
    BM25: GREEN, BM25_PAIR: GREEN, DENSE: BLUE, DENSE_PAIR: BLUE, MMR_PAIR: ORANGE, VRSD_PAIR: ORANGE,
}  # fmt: skip


def _rows(axes: Any, intervals: Mapping[str, Interval], scale: float = 100) -> None:
    for y, (label, interval) in enumerate(intervals.items()):
        scaled = interval.times(scale)
        axes.errorbar(scaled.mean, y, xerr=scaled.bar, fmt="o", color=_COLOURS.get(label, GREY), markersize=4)
    axes.set_yticks(range(len(intervals)), list(intervals))
    axes.grid(axis="x")


def _plot_methods(figure: Any, means: Mapping[str, _Means], share: float) -> None:
    panels = figure.subplots(1, 3, sharey=True)
    names = ("accuracy, %", "balanced accuracy, %", "answered yes, %")
    marks = (
        (100 * max(share, 1 - share), "the commoner answer"),
        (50, "one answer to all"),
        (100 * share, "true share"),
    )
    for i, (axes, name, (at, says)) in enumerate(zip(panels, names, marks, strict=True)):
        _rows(axes, {label: values[i] for label, values in means.items()})
        axes.axvline(at, color=GREY, linestyle="--", linewidth=1, label=says)
        axes.set_xlabel(name)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), borderaxespad=0)
    panels[0].invert_yaxis()


def _plot_changes(figure: Any, versus: Mapping[tuple[str, str], _Versus]) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    against = {label: versus[label, NONE] for label in METHODS[1:]}
    _rows(panels[0], {label: found.balanced for label, found in against.items()})
    panels[0].set_xlabel("balanced accuracy, percentage points")
    _rows(panels[1], {label: found.normalised for label, found in against.items()}, scale=1)
    panels[1].set_xlabel("log p of the right answer among the two, nats")
    for axes in panels:
        axes.axvline(0, color=GREY, linestyle="--", linewidth=1)
    panels[0].invert_yaxis()
