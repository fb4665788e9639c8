"""The report of the VRSD evaluation: its tables beside the paper's, its plots, and why a figure does not come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.icl.datasets import QuestionSet
from ragsys_kernels.icl.retrievers import Rule
from ragsys_kernels.metrics import max_diff, win_rate
from ragsys_kernels.reporting.statistics import Interval

from ..report import BLUE, GREEN, GREY, ORANGE, PALE, Report, panels
from ..statistics import bootstrap_named, share_of

K, POOL = 4, 20  # the paper's
RULES = (Rule("vrsd"), Rule("mmr", 0.0), Rule("mmr", 0.5), Rule("mmr", 1.0), Rule("top"))
VRSD, *MMR, COSINE = (rule.label for rule in RULES)
BM25, OKAPI, BEST = "BM25 (Lucene)", "BM25 (Okapi)", "best of all"
TOLERANCE = 1e-7  # cosines no farther apart are a tie: the same picks in another order
AGREEMENT = 0.002  # how near a figure of the paper has to be


class Figures(NamedTuple):
    """What the paper prints for all-mpnet-base-v2, by method. Its BM25 is Okapi's; cosine top-k is MMR with λ = 1."""

    mean: Mapping[str, float]
    win_rate: Mapping[str, float]
    max_diff: Mapping[str, float]


def _by_rival(*values: float) -> dict[str, float]:
    return dict(zip((*MMR, OKAPI), values, strict=True))


# Tables 1 and 3.
PAPER = {
    "arc-da": Figures(
        {VRSD: 0.740, **_by_rival(0.696, 0.720, 0.710, 0.550)},
        _by_rival(0.977, 0.925, 0.953, 0.987),
        _by_rival(0.160, 0.108, 0.158, 0.684),
    ),
    "openbookqa": Figures(
        {VRSD: 0.833, **_by_rival(0.809, 0.822, 0.812, 0.544)},
        _by_rival(0.973, 0.926, 0.968, 0.999),
        _by_rival(0.135, 0.101, 0.102, 0.650),
    ),
    "puzzle": Figures(
        {VRSD: 0.592, **_by_rival(0.537, 0.576, 0.577, 0.459)},
        _by_rival(1.0, 0.9, 1.0, 1.0),
        _by_rival(0.161, 0.052, 0.132, 0.262),
    ),
}
_UNKNOWN = Figures({}, {}, {})


class SetResult(NamedTuple):
    """One set: the picks of each method, and the cosine of their sum with the query."""

    questions: QuestionSet
    picks: dict[str, Array]  # (Q, k) positions in the pool, padded with -1
    values: dict[str, Array]  # (Q,) float64
    likeness: dict[str, float]  # mean cosine between the picks of a query


class _Versus(NamedTuple):
    """VRSD against one rival."""

    wins: Interval
    ties: float
    losses: float
    difference: Interval
    max_diff: float


class _Set(NamedTuple):
    """One set with its figures and the paper's."""

    result: SetResult
    means: Mapping[str, Interval]
    versus: Mapping[str, _Versus]
    paper: Figures

    @property
    def title(self) -> str:
        return self.result.questions.title

    @property
    def agreeing(self) -> tuple[dict[str, bool], dict[str, bool], dict[str, bool]]:
        """Which of the paper's means, win rates and largest differences come out."""
        of_means, of_rates, of_largest = self.paper
        return (
            {x: abs(self.means[x].mean - mean) <= AGREEMENT for x, mean in of_means.items() if x in self.means},
            {x: _between(self.versus[x], rate)[1] == "yes" for x, rate in of_rates.items() if x in self.versus},
            {x: abs(self.versus[x].max_diff - most) <= AGREEMENT for x, most in of_largest.items() if x in self.versus},
        )


def report_of(
    results: Sequence[SetResult],
    samples: int,
    paper: Mapping[str, Figures],
    k: int,
    pool: int,
    *,
    quick: bool = False,
) -> Report:
    report = Report("vrsd", "VRSD: similarity and diversity by the sum of the picks")
    sets = [
        _Set(
            result,
            bootstrap_named(result.values, samples=samples),
            _versus(result, samples),
            paper.get(result.questions.name, _UNKNOWN),
        )
        for result in results
    ]
    some = f"**Quick run**: {' and '.join(one.title for one in sets)} only. " if quick else ""
    report.text(
        f"""{some}For each query, {pool} candidates by cosine and {k} picks. The value of the picks is the cosine of the
        query with their sum, which VRSD maximises greedily; the tables have means over the queries with 95 % bootstrap
        intervals, and shares of them with Wilson's. VRSD has no parameter; MMR takes λ of relevance and 1 - λ of
        redundancy.
        {_verdict(sets)}"""
    )
    report.heading("Table 1: mean cosine of the sum")
    report.table(
        ("set", "method", "mean", "95 % interval", "paper", "difference", "picks' mean cosine"),
        [
            (
                one.title, label, *mean.cells("{:.4f}"),
                *_beside(mean.mean, one.paper.mean.get(label)), f"{one.result.likeness[label]:.3f}",
            )
            for one in sets
            for label, mean in one.means.items()
            if label not in (COSINE, BM25, OKAPI, BEST)
        ],
    )  # fmt: skip
    width = 3.1 * len(results) + 0.6
    caption = "Mean cosine of the sum with its 95 % interval; crosses are the paper's figures."
    report.plot("means.png", (width, 3.4), caption, _plot_means, sets)
    report.heading("Table 1: win rate and largest difference")
    report.text(
        f"""VRSD wins a query if the cosine of its sum is larger than the rival's by more than {TOLERANCE:g}; no farther
        apart the two are a tie; {_same_picks(results)}. The authors' script counts every difference above 0, so that
        rounding decides its ties: the paper's rate should lie between wins and wins + ties."""
    )
    report.table(
        ("set", "VRSD against", "wins", "95 % interval", "ties", "losses", "paper's win rate", "between",
         "mean difference", "max-diff", "paper", "difference"),
        [
            (
                one.title, label, *rival.wins.cells("{:.1%}"), f"{rival.ties:.1%}",
                f"{rival.losses:.1%}", *_between(rival, one.paper.win_rate.get(label)),
                rival.difference.signed("{:+.4f}"),
                f"{rival.max_diff:.3f}", *_beside(rival.max_diff, one.paper.max_diff.get(label)),
            )
            for one in sets
            for label, rival in one.versus.items()
            if label in MMR
        ],
    )  # fmt: skip
    caption = "Queries that VRSD wins, ties and loses; marks are the paper's win rates."
    report.plot("win_rates.png", (width, 2.4), caption, _plot_wins, sets)
    report.heading("Table 3, retrieval part: cosine top-k and BM25")
    others = ""
    if any(BM25 in result.picks for result in results):
        others = f"""BM25 picks from all items by their words. {BM25}: lower case, without stop words, by bm25s.
        {OKAPI}: what stands between spaces, as it is, by rank_bm25, beside which the paper's figures stand. """
    report.text(
        f"""{others}Cosine top-k and MMR with λ = 1 are the same rule. "{BEST}" is the best of all sets of {k} of the
        {pool} candidates, found by trying them: no rule that picks from the same candidates can have a larger value."""
    )
    report.table(
        ("set", "method", "mean", "95 % interval", "paper", "picks' mean cosine", "VRSD wins", "95 % interval", "ties",
         "losses", "paper", "max-diff", "paper"),
        [
            (
                one.title, label, *mean.cells("{:.4f}"),
                _printed(one.paper.mean, label, "{:.3f}"), f"{one.result.likeness[label]:.3f}",
                *(("",) * 7 if label == VRSD else _compared(label, one.versus[label], one.paper)),
            )
            for one in sets
            for label, mean in one.means.items()
            if label not in MMR
        ],
    )  # fmt: skip
    notes = [note for one in sets for note in _deviations(one)]
    if notes:
        report.heading("Figures that do not come out")
        report.notes(notes)
    report.values(_values(results))
    report.text("`values.csv` has the picks and the value of every method for every query.")
    return report


def _versus(result: SetResult, samples: int) -> dict[str, _Versus]:
    ours, found = result.values[VRSD], {}
    differences = {label: ours - values for label, values in result.values.items() if label != VRSD}
    for label, difference in bootstrap_named(differences, samples=samples).items():
        rate = win_rate(ours, result.values[label], tolerance=TOLERANCE)
        wins = share_of(differences[label] > TOLERANCE)
        found[label] = _Versus(wins, rate.ties, rate.losses, difference, max_diff(ours, result.values[label]))
    return found


def _verdict(sets: Sequence[_Set]) -> str:
    """Say how many of the paper's figures come out."""
    if not any(one.paper.mean for one in sets):
        return "The paper has no figures for this set-up."
    agreeing = zip(*(one.agreeing for one in sets), strict=True)
    of_means, of_rates, of_largest = ([agrees for one in kind for agrees in one.values()] for kind in agreeing)
    return (
        f"Of the paper's {len(of_means)} means for these sets {sum(of_means)} come out within {AGREEMENT:g}, of its "
        f"{len(of_rates)} win rates {sum(of_rates)} lie between wins and wins + ties, of its {len(of_largest)} largest "
        f"differences {sum(of_largest)} come out within {AGREEMENT:g}."
    )


def _same_picks(results: Sequence[SetResult]) -> str:
    """Say what the ties with MMR are."""
    ties = same = 0
    for result in results:
        ours = np.sort(result.picks[VRSD], axis=1)
        for label in MMR:
            tied = np.abs(result.values[VRSD] - result.values[label]) <= TOLERANCE
            ties += int(tied.sum())
            same += int((ours == np.sort(result.picks[label], axis=1)).all(axis=1)[tied].sum())
    if not ties:
        return "there is none here"
    return f"{'all' if same == ties else same} of the {ties} ties below are the same picks, in whatever order"


def _deviations(one: _Set) -> list[str]:
    """Say why a figure is not the paper's, as far as the data show it."""
    values, notes = one.result.values, []
    of_means, of_rates, of_largest = ([x for x, agrees in kind.items() if not agrees] for kind in one.agreeing)
    for label in of_means:
        mean, figure = one.means[label].mean, one.paper.mean[label]
        notes.append(f"{one.title}, mean of {label}: {mean:.4f} here, {figure:.3f} in the paper.")
    best = one.means[BEST].mean if BEST in one.means else np.inf
    # OKAPI picks from all items.
    beyond = [x for x, figure in one.paper.mean.items() if x in values and x != OKAPI and best < figure - AGREEMENT]
    if beyond:
        notes.append(
            f"{one.title}: even the best of all sets of the same candidates has a mean of {best:.4f}: no rule that "
            f"selects from these candidates has the paper's figures of {', '.join(beyond)}, so {_others(one)}."
        )
    for label in of_rates:
        rival = one.versus[label]
        reach = f"{rival.wins.mean:.1%} to {rival.wins.mean + rival.ties:.1%}"
        figure = one.paper.win_rate[label]
        notes.append(f"{one.title}, win rate against {label}: {reach} here, {figure:.1%} in the paper.")
    for label in of_largest:
        differences, figure = values[VRSD] - values[label], one.paper.max_diff[label]
        largest = ", ".join(f"{differences[q]:.3f} (query {q})" for q in np.argsort(-differences)[:3])
        note = f"{one.title}, max-diff against {label}: {one.versus[label].max_diff:.3f} here, {figure:.3f} in the "
        note += f"paper. The three largest of {len(differences)} differences are {largest}."
        limit = np.inf if BEST not in values or label == OKAPI else float((values[BEST] - values[label]).max())
        if limit < figure - AGREEMENT:
            note += (
                f" Even the best of all sets of the same candidates is never more than {limit:.3f} above {label}, so "
                "no selection from these candidates has the paper's figure."
            )
        notes.append(note)
    return notes


def _others(one: _Set) -> str:
    """Say what must be others than the paper's: BM25 sees the texts alone, and its picks are judged by the vectors."""
    if not one.agreeing[0].get(OKAPI, False):
        return "the texts or their vectors must be others"
    mean = one.means[OKAPI].mean
    return f"its candidates must be others: {OKAPI}, which picks by the texts alone, has the paper's mean, {mean:.4f}"


def _beside(ours: float, paper: float | None) -> tuple[str, str]:
    return ("", "") if paper is None else (f"{paper:.3f}", f"{ours - paper:+.4f}")


def _between(one: _Versus, paper: float | None) -> tuple[str, str]:
    if paper is None:
        return "", ""
    half = 0.0005  # the paper's figures have one decimal of a percent
    inside = one.wins.mean - half <= paper <= one.wins.mean + one.ties + half
    return f"{paper:.1%}", "yes" if inside else "no"


def _printed(figures: Mapping[str, float], label: str, form: str) -> str:
    """Return the paper's figure of a row of Table 3, of which cosine top-k is MMR with λ = 1; empty if it has none."""
    value = figures.get(MMR[2] if label == COSINE else label)
    return "" if value is None else form.format(value)


def _compared(label: str, one: _Versus, figures: Figures) -> tuple[str, ...]:
    return (
        *one.wins.cells("{:.1%}"), f"{one.ties:.1%}", f"{one.losses:.1%}",
        _printed(figures.win_rate, label, "{:.1%}"),
        f"{one.max_diff:.3f}", _printed(figures.max_diff, label, "{:.3f}"),
    )  # fmt: skip


def _values(results: Sequence[SetResult]) -> Iterator[tuple[object, ...]]:
    yield "set", "query", "method", "cosine", "picks"
    for result in results:
        for label, values in result.values.items():
            for q, (value, picks) in enumerate(zip(values, result.picks[label], strict=True)):
                yield result.questions.name, q, label, f"{value:.9f}", " ".join(map(str, picks))


_COLOURS = {VRSD: BLUE, MMR[0]: ORANGE, MMR[1]: "#fdb863", MMR[2]: "#b35806", BM25: GREEN, OKAPI: "#74c476", BEST: GREY}


def _plot_means(figure: Any, sets: Sequence[_Set]) -> None:
    titles = [f"{one.title}, {len(one.result.questions.questions)} queries" for one in sets]
    for axes, one in zip(panels(figure, titles, "mean cos(sum, query)"), sets, strict=True):
        shown = {label: mean for label, mean in one.means.items() if label in _COLOURS}
        for x, (label, mean) in enumerate(shown.items()):
            axes.errorbar(x, mean.mean, yerr=mean.bar, fmt="o", color=_COLOURS[label])
            if label in one.paper.mean:
                axes.plot(x, one.paper.mean[label], "x", color="black", markersize=8, zorder=3)
        axes.set_xticks(range(len(shown)), shown, rotation=40, ha="right")
        axes.grid(axis="y")


def _plot_wins(figure: Any, sets: Sequence[_Set]) -> None:
    made = panels(figure, [one.title for one in sets], "", sharey=True)
    shares = (("wins", BLUE), ("ties", PALE), ("losses", ORANGE))
    for axes, one in zip(made, sets, strict=True):
        rivals = {label: one.versus[label] for label in (*MMR, BM25, OKAPI) if label in one.versus}
        for y, (label, rival) in enumerate(rivals.items()):
            left = 0.0
            for share, (_, colour) in zip((rival.wins.mean, rival.ties, rival.losses), shares, strict=True):
                axes.barh(y, 100 * share, left=left, color=colour, height=0.6)
                left += 100 * share
            if label in one.paper.win_rate:
                axes.plot([100 * one.paper.win_rate[label]] * 2, [y - 0.4, y + 0.4], color="black", clip_on=False)
        axes.set_yticks(range(len(rivals)), rivals)
        axes.set_xlim(50 if min(rival.wins.mean for rival in rivals.values()) > 0.5 else 0, 100)
        axes.set_xlabel("% of the queries")
    made[0].invert_yaxis()
    handles = [made[0].barh(0, 0, color=colour, label=name) for name, colour in shares]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
