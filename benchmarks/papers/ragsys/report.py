"""The report of the RAGSys evaluation: the methods' metrics, which of the paper's orderings hold, the sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import ragsys_kernels as rk
from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.reporting.statistics import Interval

from ..report import BLUE, Report
from .figure1 import add_figure1
from .paper import TABLES
from .results import BESIDE, METRICS, Result, intervals, intervals_of, likeness_of

# (better, worse) retrievers of the paper's tables. What the bias does, the last three, it leaves to the model.
ORDERINGS = (
    ("Rel", "Fix"),
    ("Rel+Div", "Rel"),
    ("Rel+Div+Bias", "Rel+Bias"),
    ("Bias", "Fix"),
    ("Rel+Bias", "Rel"),
    ("Rel+Div+Bias", "Rel+Div"),
)
# What further rules are compared with: the best k, and the paper's rule.
AGAINST = ("Rel", "Rel+Div")


class Comparison(NamedTuple):
    """The first setting's mean less the second's, by metric."""

    better: str
    worse: str
    difference: dict[str, Interval]

    @property
    def name(self) -> str:
        return f"{self.better} over {self.worse}"

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.name, *(self.difference[metric].marked() for metric in METRICS))


def report_of(
    named: Sequence[Result],
    by_name: Sequence[Result],
    swept: Sequence[Result],
    *,
    bias: Array,
    samples: int,
    quick: bool = False,
    name: str = "",
) -> Report:
    """Write what was found by the settings; those `by_name` are named too, and have a section of their own."""
    report = Report("ragsys", "RAGSys: relevant, diverse and probable demonstrations")
    number = len(named[0].questions)
    lines = [*_directions([_compared(named, pair, samples) for pair in ORDERINGS])]
    start = "**Quick run.** " if quick else ""
    report.text(
        f"""{start}{number} questions of TruthfulQA, each with the demonstrations that a retriever gives it, none of
        them of the question itself. The model{f", {name}," if name else ""} scores every answer after them.
        {lead(lines)}"""
    )
    report.heading("Tables 1 and 2: metrics by retriever")
    report.text(
        f"""MC1 is the share of questions whose best answer is more probable than all incorrect ones, MC2 the share of
        correct answers that are more probable than all incorrect ones, MC3 the probability of the correct answers over
        that of all (the paper writes the ratio of the two kinds, whose values would not lie between 0 and 1 as its
        tables' do). DPO is the paper's: the mean log sigmoid, over all pairs of a correct and an incorrect answer, of
        how much further apart their log-probabilities are than without demonstrations; "no reference" is the same of
        the distance itself. No demonstrations change no distance, and have a DPO of log σ(0) = {np.log(0.5):.3f}. A
        value below that does not say that correct answers became less probable than without: demonstrations move
        distances both ways, and log σ takes off all of a loss and adds at most {np.log(2):.2f} for a gain. The size of
        DPO depends on the model and on the length of the answers: it compares retrievers, not models. In brackets 95 %
        intervals: of MC1, a share of the questions, Wilson's, else by the bootstrap over questions, of DPO as a ratio
        of sums to pairs."""
    )
    report.table(
        ("demonstrations", *METRICS, *BESIDE, "picks' mean cosine"),
        [_row(result, samples) for result in named],
    )
    height = 1.0 + 0.25 * len(named)
    report.plot("metrics.png", (9.6, height), "Means with 95 % intervals.", _plot_metrics, named, samples)
    report.text("The same means beside the paper's Tables 1 and 2, whose models have 7 and 8 billion parameters.")
    report.table(
        ("demonstrations", *(f"{metric}, {model}" for model in ("here", *TABLES) for metric in METRICS)),
        [_beside(result) for result in named if result.setting.label in next(iter(TABLES.values()))],
    )
    report.heading("The paper's directions")
    report.text(
        f"""Which of two retrievers is better, by the paper's two models and here. "Undecided": our interval has 0 in
        it; "models differ": the paper's two models disagree, so there is no direction to find. If none of the
        {len(lines)} differences were real, {len(lines) / 20:.1f} would be decided by chance."""
    )
    report.table(("ordering", "metric", *TABLES, "here", "same direction?"), lines)
    report.heading("Against random demonstrations")
    report.text(
        f"""Differences of means with paired 95 % bootstrap intervals over the questions; the paper has no random ones.
        The bias of the {len(bias)} demonstrations has a mean of {bias.mean(dtype=np.float64):.2f} nats a token and a
        standard deviation of {bias.std(dtype=np.float64):.2f}."""
    )
    random = [_compared(named, (label, "random"), samples) for label in ("Rel", "Rel+Div")]
    report.table(("retriever", *METRICS), [one.cells for one in random])
    if by_name:
        _rules(report, named, by_name, samples)
    if swept:
        add_figure1(report, swept, samples)
    return report


def add_values(report: Report, results: Sequence[Result]) -> None:
    report.values(_values(results))
    report.text(
        "`values.csv` has every question's values and picks. A question's DPO is weighted with its number of pairs, so "
        "that the mean is over pairs; log ratio is the logarithm of the ratio that the paper calls MC3."
    )


_ANSWERS = {
    "yes": "As the paper finds",
    "no": "Against the paper",
    "undecided": "Undecided",
    "models differ": "Where the paper's models differ",
}


def lead(directions: Sequence[Sequence[str]]) -> str:
    """Say what is as in the paper and what is not, in sentences: of the rows of "The paper's directions"."""
    return _sentences(_ANSWERS, [(row[0], row[1], row[-1]) for row in directions])


def _sentences(kinds: Mapping[Any, str], found: Sequence[tuple[str, str, Any]]) -> str:
    """Say of which orderings and metrics each kind was found."""
    parts = []
    for kind, start in kinds.items():
        metrics: dict[str, list[str]] = {}
        for ordering, metric, verdict in found:
            if verdict == kind:
                metrics.setdefault(ordering, []).append(metric)
        if metrics:
            said = (f"{ordering} in {', '.join(some)}" for ordering, some in metrics.items())
            parts.append(f"**{start}:** {'; '.join(said)}.")
    return " ".join(parts)


def _compared(results: Sequence[Result], pair: tuple[str, str], samples: int) -> Comparison:
    by_label = {result.setting.label: result for result in results}
    better, worse = (by_label[label].values for label in pair)
    differences = {metric: better[metric] - worse[metric] for metric in METRICS}
    return Comparison(*pair, intervals_of(differences, by_label[pair[0]].pairs, samples))


def _beside(result: Result) -> tuple[str, ...]:
    label = result.setting.label
    ours = (f"{result.values[metric].mean():.3f}" for metric in METRICS)
    theirs = (
        f"{table[label][metric]:.{2 if metric == 'DPO' else 4}f}" for table in TABLES.values() for metric in METRICS
    )
    return (label, *ours, *theirs)


def _directions(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, ...]]:
    for one in comparisons:
        for metric in METRICS:
            tables = [table for table in TABLES.values() if {one.better, one.worse} <= {*table}]
            if not tables:
                continue
            there = [table[one.better][metric] - table[one.worse][metric] for table in tables]
            interval = one.difference[metric]
            cells = (f"{difference:+.{2 if metric == 'DPO' else 4}f}" for difference in there)
            yield one.name, metric, *cells, interval.marked(), interval.same(*there)


def _row(result: Result, samples: int) -> tuple[str, ...]:
    cells = (
        " ".join(one.cells()) if name in METRICS else f"{one.mean:.3f}"
        for name, one in intervals(result, samples).items()
    )
    return (result.setting.label, *cells, likeness_of(result))


def _rules(report: Report, named: Sequence[Result], by_name: Sequence[Result], samples: int) -> None:
    compared = [
        (result, _compared(named, (result.setting.label, other), samples))
        for other in AGAINST
        for result in by_name
        if result.setting.label != other
    ]
    signs = [(one.name, metric, one.difference[metric].sign) for _, one in compared for metric in METRICS]
    report.heading("What each rule does to the answers")
    report.text(
        f"""Further rules, without bias, out of the same candidates: the difference of their metrics to those of Rel,
        the most relevant demonstrations, and of Rel+Div, which is MMR, with paired 95 % bootstrap intervals over the
        questions. If none were real, one of twenty would exclude 0 by chance.
        {_sentences({1: "Above", -1: "Below"}, signs)}"""
    )
    report.table(
        ("rule", *METRICS, "picks' mean cosine"),
        [(*one.cells, likeness_of(result)) for result, one in compared],
    )


def _values(results: Sequence[Result]) -> Iterator[tuple[object, ...]]:
    yield "question", "demonstrations", *results[0].values, "picks"
    for result in results:
        for at, question in enumerate(result.questions):
            picks = "" if result.picks is None else " ".join(str(row) for row in result.picks[at] if row >= 0)
            cells = (f"{values[at]:.9g}" for values in result.values.values())
            yield question, result.setting.label, *cells, picks


def _plot_metrics(figure: Any, results: Sequence[Result], samples: int) -> None:
    found: list[Mapping[str, Interval]] = [intervals(result, samples) for result in results]
    for axes, metric in zip(figure.subplots(1, len(METRICS)), METRICS, strict=True):
        of_metric = [rows[metric] for rows in found]
        for y, (result, one) in enumerate(zip(results, of_metric, strict=True)):
            setting = result.setting
            colour = BLUE if setting.kind in rk.METHODS and setting.lambda_b else "#969696"
            axes.errorbar(one.mean, y, xerr=one.bar, fmt="o", color=colour)
        axes.set_yticks(range(len(results)), [result.setting.label for result in results] if metric == "MC1" else [])
        axes.invert_yaxis()
        axes.set_title(metric)
        axes.grid(axis="x")
