"""The report of the evaluation of adaptive in-context learning: its table in the paper's order, and its plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...icl.datasets import ClassificationSet
from ...metrics import MacroScores, macro_scores
from ..report import BLUE, GREY, ORANGE, PALE, Report, panels
from ..statistics import Interval, bootstrap_f1

Array = npt.NDArray[Any]

STATIC = {"0-shot": 0, "static k=1": 1, "static k=3": 3, "static k=5": 5}
QPP, SAICL = "QPP-AICL", "SAICL"
METHODS = (*STATIC, QPP, SAICL)  # in the order of the paper's Table 1


class SetResult(NamedTuple):
    """One set: for each method and text, the demonstrations, the prediction and what it took."""

    items: ClassificationSet
    ks: dict[str, Array]  # (Q,) numbers of demonstrations
    predictions: dict[str, Array]  # (Q,) labels
    entropies: dict[str, Array]  # (Q,) nats
    tokens: dict[str, Array]  # (Q,) of the prompts
    learnt: Array  # (n,) best k of the texts that SAICL learnt from


class _Row(NamedTuple):
    scores: MacroScores
    f1: Interval
    above: dict[str, Interval]  # F1 minus that of another method


def report_of(results: Sequence[SetResult], samples: int, max_k: int) -> Report:
    report = Report("aicl", "Adaptive in-context learning: how many demonstrations each text gets")
    rows = [_rows(result, samples) for result in results]
    report.text(
        f"""Each text is labelled by a language model after k labelled texts that are near to it. Static k is the same
        for all; QPP-AICL gives fewer demonstrations to texts whose neighbours' similarities spread widely (NQC, in
        {max_k} steps); SAICL learns k from training texts: for each, the k with which the model is right and least
        uncertain, then logistic regression on embeddings. The intervals are 95 % bootstrap intervals over the texts,
        drawn for all methods together. {_verdict(results, rows)}"""
    )
    report.heading("Table 1: macro precision, recall and F1")
    report.text(
        """The rows are in the order of the paper's Table 1, whose model is GPT-J-6B. Its figures are not at hand here,
        so only the order of the methods can be compared: there SAICL is above static k, and QPP-AICL is not."""
    )
    report.table(
        ("set", "method", "precision", "recall", "F1", "95 % interval", "mean k", "mean input tokens"),
        [
            (
                result.items.title, label, f"{row.scores.precision:.3f}", f"{row.scores.recall:.3f}",
                f"{row.f1.mean:.3f}", row.f1.span(), f"{result.ks[label].mean():.2f}",
                f"{result.tokens[label].mean():.0f}",
            )
            for result, found in zip(results, rows, strict=True)
            for label, row in found.items()
        ],
    )  # fmt: skip
    width = 3.3 * len(results) + 0.6
    caption = "Macro F1 with its 95 % interval against the mean length of the prompts."
    report.plot("f1.png", (width, 3.2), caption, _plot_f1, results, rows)
    report.heading("Differences in F1")
    report.text("The methods that adapt k against the others, on the same texts; **bold** where 0 is outside.")
    report.table(
        ("set", "method", *(f"minus {label}" for label in METHODS[:-1])),
        [
            (
                result.items.title, label,
                *("" if other == label else found[label].above[other].marked() for other in METHODS[:-1]),
            )
            for result, found in zip(results, rows, strict=True)
            for label in (QPP, SAICL)
        ],
    )  # fmt: skip
    report.heading("Numbers of demonstrations")
    report.text("Shares of the texts that get k demonstrations; and of SAICL's training texts with which k is best.")
    labels = (QPP, SAICL, "best, training texts")
    report.table(
        ("set", "method", *(f"k={k}" for k in range(max_k + 1))),
        [
            (result.items.title, label, *(f"{share:.0%}" for share in shares))
            for result in results
            for label, shares in zip(labels, _shares(result, max_k), strict=True)
        ],
    )
    caption = "Shares of the texts that get k demonstrations."
    report.plot("k.png", (width, 2.4), caption, _plot_k, results, labels, max_k)
    report.values(_values(results))
    report.text("`values.csv` has k, prediction, entropy of the posterior and tokens of every method for every text.")
    return report


def _rows(result: SetResult, samples: int) -> dict[str, _Row]:
    labels, predictions = result.items.test_labels, np.stack([result.predictions[label] for label in METHODS], axis=1)
    scores, differences = bootstrap_f1(labels, predictions, samples=samples)
    return {
        label: _Row(
            macro_scores(labels, predictions[:, at]), scores[at], dict(zip(METHODS, differences[at], strict=True))
        )
        for at, label in enumerate(METHODS)
    }


def _verdict(results: Sequence[SetResult], rows: Sequence[dict[str, _Row]]) -> str:
    """Say where the methods that adapt k stand beside the static k that is best for the test texts."""
    sentences = []
    for label in (SAICL, QPP):
        places: dict[str, list[str]] = {"above": [], "below": [], "not distinguishable from": []}
        for result, found in zip(results, rows, strict=True):
            best = max((found[other].f1.mean, other) for other in STATIC)[1]
            gap = found[label].above[best]
            places[gap.place].append(f"{result.items.title} ({gap.mean:+.3f}, {best})")
        parts = [f"{place} it on {', '.join(sets)}" for place, sets in places.items() if sets]
        sentences.append(f"{label}, against the best static k of the test texts: {'; '.join(parts)}.")
    return " ".join(sentences)


def _shares(result: SetResult, max_k: int) -> list[Array]:
    return [
        np.bincount(ks, minlength=max_k + 1)[: max_k + 1] / len(ks)
        for ks in (result.ks[QPP], result.ks[SAICL], result.learnt)
    ]


def _values(results: Sequence[SetResult]) -> Iterator[tuple[object, ...]]:
    yield "set", "text", "label", "method", "k", "prediction", "entropy", "tokens"
    for result in results:
        for q, truth in enumerate(result.items.test_labels):
            for label in METHODS:
                entropy = f"{result.entropies[label][q]:.6f}"
                found = (result.ks[label][q], result.predictions[label][q], entropy, result.tokens[label][q])
                yield result.items.name, q, truth, label, *found


_COLOURS = {QPP: ORANGE, SAICL: BLUE}


def _plot_f1(figure: Any, results: Sequence[SetResult], rows: Sequence[dict[str, _Row]]) -> None:
    titles = [f"{result.items.title}, {len(result.items.test_texts)} texts" for result in results]
    for axes, result, found in zip(panels(figure, titles, "macro F1"), results, rows, strict=True):
        for label in METHODS:
            f1, tokens = found[label].f1, result.tokens[label].mean()
            axes.errorbar(tokens, f1.mean, yerr=f1.bar, fmt="o", color=_COLOURS.get(label, GREY))
            # A method that adapts k may lie on a static one: its name stands at an end of its bar.
            end, down = {SAICL: (f1.high, 4), QPP: (f1.low, -11)}.get(label, (f1.mean, 4))
            place = {"ha": "center"} if label in _COLOURS else {}
            axes.annotate(
                label.removeprefix("static "),
                (tokens, end),
                (0 if place else 4, down),
                textcoords="offset points",
                **place,
            )
        axes.plot([result.tokens[label].mean() for label in STATIC], [found[label].f1.mean for label in STATIC],
                  color=PALE, zorder=0)  # fmt: skip
        axes.set_xlabel("mean input tokens")
        axes.margins(x=0.15)
        axes.grid(axis="y")


def _plot_k(figure: Any, results: Sequence[SetResult], labels: Sequence[str], max_k: int) -> None:
    handles = []
    made = panels(figure, [result.items.title for result in results], "% of the texts", sharey=True)
    for axes, result in zip(made, results, strict=True):
        colours = (_COLOURS[QPP], _COLOURS[SAICL], PALE)
        handles = [
            axes.bar(np.arange(max_k + 1) + 0.27 * (at - 1), 100 * shares, 0.25, color=colour, label=label)
            for at, (label, shares, colour) in enumerate(zip(labels, _shares(result, max_k), colours, strict=True))
        ]
        axes.set_xlabel("k")
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
