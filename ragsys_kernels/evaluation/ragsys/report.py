"""The report of the RAGSys evaluation: the methods' metrics, which of the paper's orderings hold, the sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import ragsys_kernels as rk

from ...icl.ragsys import Setting
from ..report import BLUE, GREEN, ORANGE, Report
from ..statistics import Interval, bootstrap_named

Array = npt.NDArray[Any]

METRICS = ("MC1", "MC2", "MC3", "DPO")
BESIDE = ("DPO to none",)
# (better, worse): what the paper finds and, for random demonstrations, implies.
ORDERINGS = (
    ("Rel", "Fix"),
    ("Rel+Div", "Rel"),
    ("Rel+Div+Bias", "Rel+Bias"),
    ("Rel", "random"),
    ("Rel+Div", "random"),
)
# The paper leaves these to the model.
OPEN = (("Bias", "Fix"), ("Rel+Bias", "Rel"), ("Rel+Div+Bias", "Rel+Div"))
# What further rules are compared with: the best k, and the paper's rule.
AGAINST = ("Rel", "Rel+Div")


class Result(NamedTuple):
    """A setting's values for each of Q questions."""

    setting: Setting
    questions: Array  # (Q,) their numbers
    values: dict[str, Array]  # (Q,) float64
    picks: Array | None  # (Q, k) demonstrations, padded with -1
    likeness: Array  # (Q,) mean cosine between the picks; NaN for fewer than two


@dataclass(frozen=True, eq=False)  # compared by identity, to be a key
class Comparison:
    """The first setting's mean less the second's, by metric."""

    better: str
    worse: str
    difference: dict[str, Interval]

    def verdict(self, metric: str) -> str:
        interval = self.difference[metric]
        if interval.sign:
            return "holds" if interval.sign > 0 else "is reversed"
        return "shows in the mean" if interval.mean > 0 else "does not show"


def report_of(
    named: Sequence[Result],
    by_name: Sequence[Result],
    swept: Sequence[Result],
    *,
    of_path: Sequence[Result] = (),
    bias: Array,
    samples: int,
    more: Callable[[Report], None] | None = None,
) -> Report:
    """Write what was found by the settings; those `by_name` are named too, and have a section of their own.

    ``of_path`` are only among the values; ``more`` writes sections after the sweep.
    """
    report = Report("ragsys", "RAGSys: relevant, diverse and probable demonstrations")
    number = len(named[0].questions)
    held, left = ([_compared(named, pair, samples) for pair in pairs] for pairs in (ORDERINGS, OPEN))
    report.text(
        f"""{number} questions of TruthfulQA, each with the demonstrations that a retriever gives it, none of them of
        the question itself. The model scores every answer after them. {verdict(held)}"""
    )
    report.heading("Tables 1 and 2: metrics by retriever")
    report.text(
        """MC1 is the share of questions whose best answer is more probable than all incorrect ones, MC2 the share of
        correct answers that are, MC3 the probability of the correct answers over that of all (the paper writes the
        ratio of the two kinds, whose values would not lie between 0 and 1 as its tables' do), DPO the mean log sigmoid
        of the difference in log-probability over all pairs of a correct and an incorrect answer, "DPO to none" the same
        with the model without demonstrations as the reference. In brackets 95 % bootstrap intervals over questions. The
        paper's tables are of models of 7 billion parameters and more. Their figures are not printed here: they are not
        at hand, and those of another model would not compare; the orderings below do."""
    )
    report.table(
        ("demonstrations", *METRICS, *BESIDE, "picks' mean cosine"),
        [_row(result, samples) for result in named],
    )
    height = 1.0 + 0.25 * len(named)
    report.plot("metrics.png", (9.6, height), "Means with 95 % intervals.", _plot_metrics, named, samples)
    report.heading("Which orderings hold")
    report.text(
        f"""Differences of means with paired 95 % bootstrap intervals over the questions. An ordering holds in a metric
        if its interval is above 0. The paper finds that relevance with diversity is best and that what the bias adds
        depends on the model; the lower rows have no sign to expect. {_bias(bias)}"""
    )
    report.table(
        ("ordering", *METRICS, "holds"),
        [
            (
                f"{one.better} over {one.worse}",
                *(one.difference[metric].signed() for metric in METRICS),
                ", ".join(metric for metric in METRICS if one.verdict(metric) == "holds") or "none",
            )
            for one in (*held, *left)
        ],
    )
    if by_name:
        _rules(report, named, by_name, samples)
    if swept:
        _sweep(report, swept, samples)
    if more is not None:
        more(report)
    report.values(_values([*named, *(one for one in swept if one not in named), *of_path]))
    report.text(
        "`values.csv` has every question's values and picks. A question's DPO is weighted with its number of pairs, so "
        "that the mean is over pairs; log ratio is the logarithm of the ratio that the paper calls MC3."
    )
    return report


_KINDS = {
    "holds": "Orderings that hold",
    "shows in the mean": "Those that show in the means, with intervals that reach 0",
    "does not show": "Those that do not show",
    "is reversed": "Those that are reversed",
}


def verdict(comparisons: Sequence[Comparison], kinds: Sequence[str] = tuple(_KINDS)) -> str:
    """Say which orderings hold, in sentences."""
    parts = []
    for kind, start in ((kind, _KINDS[kind]) for kind in kinds):
        metrics = {one: [metric for metric in METRICS if one.verdict(metric) == kind] for one in comparisons}
        said = [f"{one.better} over {one.worse} in {', '.join(some)}" for one, some in metrics.items() if some]
        if said:
            parts.append(f"**{start}:** {'; '.join(said)}.")
    return " ".join(parts)


def _compared(results: Sequence[Result], pair: tuple[str, str], samples: int) -> Comparison:
    by_label = {result.setting.label: result for result in results}
    better, worse = (by_label[label].values for label in pair)
    differences = {metric: better[metric] - worse[metric] for metric in METRICS}
    return Comparison(*pair, bootstrap_named(differences, samples=samples))


def _intervals(result: Result, samples: int) -> dict[str, Interval]:
    return bootstrap_named({name: result.values[name] for name in (*METRICS, *BESIDE)}, samples=samples)


def _row(result: Result, samples: int) -> tuple[str, ...]:
    cells = (
        f"{one.mean:.3f} {one.span()}" if name in METRICS else f"{one.mean:.3f}"
        for name, one in _intervals(result, samples).items()
    )
    return (result.setting.label, *cells, _likeness(result))


def _likeness(result: Result) -> str:
    mean = result.likeness.mean()
    return "" if np.isnan(mean) else f"{mean:.3f}"


def _bias(bias: Array) -> str:
    return (
        f"The bias of the {len(bias)} demonstrations has a mean of {bias.mean(dtype=np.float64):.2f} nats a token and "
        f"a standard deviation of {bias.std(dtype=np.float64):.2f}."
    )


def _rules(report: Report, named: Sequence[Result], by_name: Sequence[Result], samples: int) -> None:
    compared = [
        (result, _compared(named, (result.setting.label, other), samples))
        for other in AGAINST
        for result in by_name
        if result.setting.label != other
    ]
    report.heading("What each rule does to the answers")
    report.text(
        f"""Further rules, without bias, out of the same candidates: the difference of their metrics to those of Rel,
        the most relevant demonstrations, and of Rel+Div, which is MMR, with paired 95 % bootstrap intervals over the
        questions. An interval that leaves out 0 tells a rule from the other, one in twenty of them by chance.
        {verdict([one for _, one in compared], ("holds", "is reversed"))}"""
    )
    report.table(
        ("rule", *METRICS, "picks' mean cosine"),
        [
            (
                f"{one.better} over {one.worse}",
                *(one.difference[metric].signed() for metric in METRICS),
                _likeness(result),
            )
            for result, one in compared
        ],
    )


def _sweep(report: Report, swept: Sequence[Result], samples: int) -> None:
    report.heading("Figure 1: sweep of λ_d")
    report.text(
        """Selection without bias by relevance, with weight λ_d, against redundancy: the lower, the more diverse; 1 is
        Rel. The picks' mean cosine says how alike the demonstrations of a question are."""
    )
    report.table(
        ("λ_d", "picks' mean cosine", *METRICS),
        [
            (
                f"{result.setting.lambda_d:g}",
                _likeness(result),
                *(f"{one.mean:.3f}" for name, one in _intervals(result, samples).items() if name in METRICS),
            )
            for result in swept
        ],
    )
    caption = "Likeness of the picks and the metrics by λ_d, with 95 % intervals."
    report.plot("sweep.png", (9.6, 2.8), caption, _plot_sweep, swept, samples)


def _values(results: Sequence[Result]) -> Iterator[tuple[object, ...]]:
    yield "question", "demonstrations", *results[0].values, "picks"
    for result in results:
        for at, question in enumerate(result.questions):
            picks = "" if result.picks is None else " ".join(str(row) for row in result.picks[at] if row >= 0)
            cells = (f"{values[at]:.9g}" for values in result.values.values())
            yield question, result.setting.label, *cells, picks


def _ends(intervals: Sequence[Interval]) -> list[list[float]]:
    return [[one.mean - one.low for one in intervals], [one.high - one.mean for one in intervals]]


def _plot_metrics(figure: Any, results: Sequence[Result], samples: int) -> None:
    found: list[Mapping[str, Interval]] = [_intervals(result, samples) for result in results]
    for axes, metric in zip(figure.subplots(1, len(METRICS)), METRICS, strict=True):
        intervals = [rows[metric] for rows in found]
        for y, (result, one) in enumerate(zip(results, intervals, strict=True)):
            setting = result.setting
            colour = BLUE if setting.kind in rk.METHODS and setting.lambda_b else "#969696"
            axes.errorbar(one.mean, y, xerr=one.bar, fmt="o", color=colour)
        axes.set_yticks(range(len(results)), [result.setting.label for result in results] if metric == "MC1" else [])
        axes.invert_yaxis()
        axes.set_title(metric)
        axes.grid(axis="x")


def _plot_sweep(figure: Any, swept: Sequence[Result], samples: int) -> None:
    order = sorted(swept, key=lambda result: result.setting.lambda_d)
    x = [result.setting.lambda_d for result in order]
    found = [_intervals(result, samples) for result in order]
    first, second, third = figure.subplots(1, 3)
    first.plot(x, [result.likeness.mean() for result in order], "o-", color=GREEN)
    first.set_title("picks' mean cosine")
    for metric, colour in zip(METRICS[:3], (BLUE, ORANGE, "#6a51a3"), strict=True):
        intervals = [rows[metric] for rows in found]
        means = [one.mean for one in intervals]
        second.errorbar(x, means, yerr=_ends(intervals), fmt="o-", color=colour, label=metric)
    second.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, columnspacing=1)
    intervals = [rows["DPO"] for rows in found]
    third.errorbar(x, [one.mean for one in intervals], yerr=_ends(intervals), fmt="o-", color=BLUE)
    third.set_title("DPO")
    for axes in (first, second, third):
        axes.set_xlabel("λ_d")
        axes.grid()
