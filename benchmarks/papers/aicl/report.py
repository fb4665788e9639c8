"""The report of the evaluation of adaptive in-context learning: its table in the paper's order, and its plots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.icl.datasets import ClassificationSet
from ragsys_kernels.metrics import MacroScores, macro_scores
from ragsys_kernels.reporting.statistics import Interval

from ..report import BLUE, GREY, ORANGE, PALE, Report, panels
from ..statistics import bootstrap_f1, bootstrap_means
from .paper import TABLE

STATIC = {"0-shot": 0, "static k=1": 1, "static k=3": 3, "static k=5": 5}
FIXED = "static k of the training texts"
QPP, SAICL = "QPP-AICL", "SAICL"
METHODS = (*STATIC, FIXED, QPP, SAICL)  # in the order of the paper's Table 1, which has no row of FIXED


class Diverse(NamedTuple):
    """The test texts of a set with the demonstrations of one rule."""

    rule: str
    predictions: dict[str, Array]  # (Q,) labels, by method
    cosines: dict[str, Array]  # (Q,) mean cosine of the demonstrations with one another, NaN below two


class SetResult(NamedTuple):
    """One set: for each method and text, the demonstrations, the prediction and what it took."""

    items: ClassificationSet
    ks: dict[str, Array]  # (Q,) numbers of demonstrations
    predictions: dict[str, Array]  # (Q,) labels
    entropies: dict[str, Array]  # (Q,) nats
    tokens: dict[str, Array]  # (Q,) of the prompts
    learnt: Array  # (n,) best k of the texts that SAICL learnt from
    trained: list[float]  # F1 of these texts with k = 0, 1, ..., M
    diverse: Sequence[Diverse] = ()  # the first is of the nearest texts


class _Row(NamedTuple):
    scores: MacroScores
    f1: Interval
    above: dict[str, Interval]  # F1 minus that of another method


def report_of(results: Sequence[SetResult], samples: int, max_k: int, *, quick: bool = False) -> Report:
    report = Report("aicl", "Adaptive in-context learning: how many demonstrations each text gets")
    rows = [_rows(result, samples) for result in results]
    first = results[0]
    parts = ", ".join(f"{len(one.items.test_texts)} of {one.items.title}" for one in results)
    small = f"**Quick run**: the test texts are {parts}. " if quick else ""
    report.text(
        f"""{small}Each text is labelled by a language model after k labelled texts that are near to it. Static k is the
        same for all; QPP-AICL gives fewer demonstrations to texts whose nearest neighbours' similarities spread widely
        (NQC, in {max_k} steps); SAICL learns k from {len(first.learnt)} training texts: for each, the k with which the
        model is right and surest, then logistic regression on embeddings. The intervals are 95 % bootstrap intervals
        over the texts, drawn for all methods together. {_verdict(results, rows)}"""
    )
    report.heading("Table 1: macro precision, recall and F1")
    report.text(
        f"""The rows are in the order of the paper's Table 1; its figures stand at the end of each, its F1 first. Its
        model is GPT-J-6B, its samples are others: the next table compares directions, not figures. '{FIXED}' has no row
        in the paper: it is the static k from 0 to {max_k} whose F1 is largest for the texts that SAICL learns from, so
        that no test text helped to choose it."""
    )
    report.table(
        (
            "set", "method", "precision", "recall", "F1", "95 % interval", "mean k", "mean input tokens", "paper",
            "paper: precision", "paper: recall", "paper: k", "paper: tokens",
        ),
        [
            (
                result.items.title, label, f"{row.scores.precision:.3f}", f"{row.scores.recall:.3f}",
                *row.f1.cells(), f"{result.ks[label].mean():.2f}",
                f"{result.tokens[label].mean():.0f}", *_printed(result, label),
            )
            for result, found in zip(results, rows, strict=True)
            for label, row in found.items()
        ],
    )  # fmt: skip
    report.heading("The paper's directions")
    compared = [line for result, found in zip(results, rows, strict=True) for line in _directions(result, found)]
    report.text(
        f"""Each line is a difference of F1: the paper's by its Table 1, ours with its paired interval. An interval with
        0 in it decides nothing. Of {len(compared)} differences that are none, {len(compared) / 20:.1f} would be outside
        their interval by chance. The best static k is that of the test texts, the paper's by its own figures."""
    )
    report.table(("set", "difference in F1", "paper", "ours", "same direction?"), compared)
    report.heading("Input sizes")
    report.text(
        """The paper also finds that SAICL needs smaller inputs than static k. Mean input tokens, with paired bootstrap
        intervals; the best static k by F1, as above, is the paper's own there and ours here."""
    )
    report.table(
        ("set", "difference in mean input tokens", "paper", "ours", "same direction?"),
        [line for result, found in zip(results, rows, strict=True) for line in _inputs(result, found, samples)],
    )
    width = 3.3 * len(results) + 0.6
    caption = (
        'Macro F1 with its 95 % interval against the mean length of the prompts; "training" is best on those texts.'
    )
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
    if all(result.diverse for result in results):
        _add_diverse(report, results, samples)
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


def _best_static(found: dict[str, _Row], least: int = 0) -> str:
    return max((found[label].f1.mean, label) for label, k in STATIC.items() if k >= least)[1]


def _verdict(results: Sequence[SetResult], rows: Sequence[dict[str, _Row]]) -> str:
    """Say where the methods that adapt k stand beside the static k that is best for test or for training texts."""
    sentences = []
    for label in (SAICL, QPP):
        said = {}
        for texts, chosen in (("test", None), ("training", FIXED)):
            places: dict[str, list[str]] = {"above": [], "below": [], "not distinguishable from": []}
            for result, found in zip(results, rows, strict=True):
                best = chosen or _best_static(found)
                gap, name = found[label].above[best], f"static k={result.ks[best][0]}" if chosen else best
                places[gap.place].append(f"{result.items.title} ({gap.mean:+.3f}, {name})")
            said[texts] = "; ".join(f"{place} it on {', '.join(sets)}" for place, sets in places.items() if sets)
        test, training = (re.sub(r" \([^)]*\)", "", said[texts]) for texts in said)
        sentences.append(f"{label}, against the best static k of the test texts: {said['test']}.")
        if test == training:
            sentences.append("Against that of the training texts the places are the same.")
        else:
            sentences.append(f"Against that of the training texts: {said['training']}.")
    return " ".join(sentences)


def _printed(result: SetResult, label: str) -> tuple[str, ...]:
    """Return F1, precision, recall, k and tokens of the paper's row, empty where it has none."""
    row = TABLE[result.items.name].get(label)
    if row is None:
        return ("",) * 5
    return f"{row.f1:.3f}", f"{row.precision:.3f}", f"{row.recall:.3f}", f"{row.k:.2f}", str(row.tokens)


def _directions(result: SetResult, found: dict[str, _Row]) -> Iterator[tuple[str, ...]]:
    """Yield the rows that compare the paper's differences of one set with ours."""
    paper, best = TABLE[result.items.name], _best_static(found)
    top, shown = _top(result), _best_static(found, least=1)
    pairs = (
        ("best static k from 1 - 0-shot", shown, "0-shot", paper[top].f1 - paper["0-shot"].f1),
        ("SAICL - best static k", SAICL, best, paper[SAICL].f1 - paper[top].f1),
        ("QPP-AICL - best static k", QPP, best, paper[QPP].f1 - paper[top].f1),
        ("SAICL - QPP-AICL", SAICL, QPP, paper[SAICL].f1 - paper[QPP].f1),
    )
    for name, one, other, there in pairs:
        gap = found[one].above[other]
        yield result.items.title, name, f"{there:+.3f}", gap.marked(), gap.same(there)


def _inputs(result: SetResult, found: dict[str, _Row], samples: int) -> Iterator[tuple[str, ...]]:
    """Yield the rows that compare how many tokens SAICL's prompts have with those of static k, there and here."""
    paper = TABLE[result.items.name]
    for name, there, here in (
        ("best static k", _top(result), _best_static(found)),
        ("static k=5", "static k=5", "static k=5"),
    ):
        more = paper[SAICL].tokens - paper[there].tokens
        gap = bootstrap_means(result.tokens[SAICL] - result.tokens[here], samples=samples)[0]
        yield result.items.title, f"SAICL - {name}", f"{more:+d}", gap.marked("{:+.0f}"), gap.same(more)


def _top(result: SetResult) -> str:
    """Return the paper's best static k by its F1."""
    return max((TABLE[result.items.name][label].f1, label) for label in STATIC)[1]


def _add_diverse(report: Report, results: Sequence[SetResult], samples: int) -> None:
    """Add the table of methods with other rules than the nearest texts."""
    lines = []
    for result in results:
        labels = _several(result)
        predictions = [one.predictions[label] for label in labels for one in result.diverse]
        scores, gaps = bootstrap_f1(result.items.test_labels, np.stack(predictions, axis=1), samples=samples)
        for m, label in enumerate(labels):
            nearest = m * len(result.diverse)
            for at, one in enumerate(result.diverse, nearest):
                known = one.cosines[label][~np.isnan(one.cosines[label])]
                lines.append((
                    result.items.title, label, one.rule, *scores[at].cells(),
                    gaps[at][nearest].marked() if at > nearest else "", f"{known.mean():.3f}" if len(known) else "",
                ))  # fmt: skip
    tests = sum(bool(line[5]) for line in lines)
    outside = sum("**" in line[5] for line in lines)
    report.heading("Diverse demonstrations")
    report.text(
        f"""The paper's question on diversity, for which it prints no figures: the same k, but demonstrations that
        another rule picks among the nearest texts. The similarity is the mean cosine of a text's demonstrations with
        one another. One demonstration is the nearest text by every rule, so that only methods with more have rows, and
        of methods with the same numbers only one. {outside} of {tests} differences from the nearest texts have 0
        outside their interval; {tests / 20:.1f} would by chance."""
    )
    report.table(
        ("set", "k", "rule", "F1", "95 % interval", "minus cosine top-k", "similarity of the demonstrations"), lines
    )


def _several(result: SetResult) -> list[str]:
    """Return the methods that give some text two demonstrations or more, each number of them once."""
    found: dict[bytes, str] = {}
    for label in result.diverse[0].predictions:
        if result.ks[label].max() > 1:
            found.setdefault(np.asarray(result.ks[label]).tobytes(), label)
    return [*found.values()]


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
        trained = int(result.ks[FIXED][0])
        fixed = next((label for label, k in STATIC.items() if k == trained), FIXED)  # one of the others, mostly
        lower, upper = sorted((QPP, SAICL), key=lambda label: found[label].f1.mean)
        for label in METHODS:
            if label == FIXED != fixed:
                continue
            f1, tokens = found[label].f1, result.tokens[label].mean()
            axes.errorbar(tokens, f1.mean, yerr=f1.bar, fmt="o", color=_COLOURS.get(label, GREY))
            name = f"k={trained}\n(training)" if label == fixed else label.removeprefix("static ")
            # A method that adapts k may lie on a static one: its name stands at an end of its bar, in its colour.
            above, below = {"ha": "center", "va": "bottom"}, {"ha": "center", "va": "top"}
            end, place, by = {
                upper: (f1.high, above, (0, 3)), lower: (f1.low, below, (0, -3)), fixed: (f1.low, below, (0, -3)),
            }.get(label, (f1.mean, {}, (4, 4)))  # fmt: skip
            axes.annotate(name, (tokens, end), by, textcoords="offset points", color=_COLOURS.get(label, "black"),
                          linespacing=0.9, **place)  # fmt: skip
        axes.plot([result.tokens[label].mean() for label in STATIC], [found[label].f1.mean for label in STATIC],
                  color=PALE, zorder=0)  # fmt: skip
        axes.set_xlabel("mean input tokens")
        axes.margins(x=0.15, y=0.12)
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
