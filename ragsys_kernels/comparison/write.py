"""The report of a comparison: what stands in it, and its files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._base.extras import needed
from .._base.files import csv_of, replacing
from ..evaluation.pages import Figure, Heading, Notes, Part, Text, markdown
from ..evaluation.report import surroundings
from . import page, plot
from .examples import RULE
from .measures import MEASURES
from .result import Comparison
from .settings import RANDOM

REPORT_FILES = ("report.html", "report.md", "metrics.csv", "queries.csv", "curve.png", "curve.svg")


def check_plots() -> None:
    """Raise now where matplotlib is missing, before any work."""
    with needed("compare", "compare"):
        import matplotlib  # noqa: F401


def write(found: Comparison, folder: Path, settings: dict[str, Any]) -> None:
    """Write the files of the report; each is replaced whole."""
    images = plot.draw(found.settings, found.figures, found.curve)
    parts = report(found, plot.inline(images["inline"]), settings)
    contents = {
        "report.html": page.page(found.title, parts).encode(),
        "report.md": markdown(found.title, parts).encode(),
        "metrics.csv": csv_of(metrics(found)),
        "queries.csv": csv_of(queries(found)),
        "curve.png": images["png"],
        "curve.svg": images["svg"],
    }
    for name in REPORT_FILES:
        with replacing(folder / name) as file:
            file.write(contents[name])


def report(found: Comparison, svg: str, settings: dict[str, Any]) -> list[Part]:
    """Return what the report says."""
    problem = found.problem
    number, pool = problem.candidates.shape
    judged = problem.judged
    about = (
        f"{number:,} queries, {problem.k} picks each out of pools of {pool}, the same for all methods; a corpus of "
        f"{len(problem.corpus):,} rows of {problem.corpus.dims} dimensions."
    )
    caption = (
        "Means over the queries. The line is MMR from λ = 1 to λ = 0. A method above the line, or to its right, "
        "gives up less of one for the same gain in the other."
    )
    above = f"Means over the queries, with {found.level:.0%} intervals below. Top-k is MMR with λ = 1."
    absent = 0 if judged is None else judged.absent
    missing = f"{absent} relevant documents of these queries are not in the corpus; they count as not picked."
    differences = (
        f"Difference from top-k on the same queries, with its {found.level:.0%} interval. ▲ is certainly better, ▼ "
        "certainly worse: the interval excludes 0. With so many figures one in twenty is marked by chance; the "
        "recommendation above uses wider intervals, which hold for all methods together."
    )
    marks = "* is a pick that top-k has not." + ("" if judged is None else " ✓ is relevant by the judgements.")
    examples: list[Part] = [Heading("Examples"), Text(f"{RULE} {marks}"), *map(page.SideBySide, found.examples)]
    return [
        Text(about, "soft"),
        page.Recommended(found.advice),
        Heading("The trade-off"),
        Figure("curve.png", caption, svg),
        Heading("What each method picks"),
        Text(above),
        *([Text(missing)] if absent else []),
        page.Measured(found, differences=False),
        Heading("Against top-k"),
        Text(differences),
        page.Measured(found, differences=True),
        *(examples if found.examples else []),
        *_weights(found),
        *_sizes(found),
        *_peers(found),
        *_measured(found),
        *_configuration(settings, found),
    ]


def _weights(found: Comparison) -> Iterator[Part]:
    """What MMR does at every λ, exactly."""
    curve, loss = found.curve, found.max_loss
    yield Heading("Which λ")
    yield Text(
        f"Between λ = 0 and λ = 1 MMR makes {curve.selections:.0f} different selections of a query, on average. All of "
        "them are known, so that the line above and what follows have no grid."
    )
    notes = []
    for name in ("relevance", *(() if found.useful is None else (found.useful,))):
        top = float(curve.values[name][-1])
        least = curve.least(name, (1 - loss) * top)
        if top > 0 and least is not None:
            alike = float(curve.values["similarity"][np.searchsorted(curve.ends, least, side="right")])
            notes.append(
                f"Above λ = {least:.3f} the mean {MEASURES[name].label} never is below {1 - loss:.0%} of top-k's. The "
                f"mean cosine between picks is {alike:.3f} there, top-k's {curve.values['similarity'][-1]:.3f}."
            )
    if found.useful is not None:
        label = MEASURES[found.useful].label
        where, most = curve.highest(found.useful)
        notes.append(
            (
                f"No λ below 1 has a mean {label} above top-k's, {most:.3f}."
                if where == 1
                else f"The mean {label} is highest at λ = {where:.3f}: {most:.3f}, top-k's "
                f"{curve.values[found.useful][-1]:.3f}."
            )
            + f" With the best λ of each query, which nothing tells beforehand, it would be "
            f"{curve.best[found.useful]:.3f}. What is chosen on these queries is too high for others."
        )
    if notes:
        yield Notes(notes)


def _sizes(found: Comparison) -> Iterator[Part]:
    if found.sizes is None:
        return
    labels = {setting.name: setting.label for setting in found.settings}
    rows = [[labels[name], *(f"{share:.0%}" for share in shares)] for name, shares in found.sizes.shares.items()]
    text = (
        f"Share of {found.sizes.queries} of the queries whose picks out of the nearest so many rows are those out of "
        "the whole corpus. The more diverse a rule is, the farther from the query it looks, and finds what no pool "
        "has; where the share is low at every size, the pool is a part of the rule."
    )
    header = ("picks of the whole corpus", *(f"pool {size:,}" for size in found.sizes.sizes))
    yield from (Heading("How large a pool"), Text(text), page.Plain(header, rows))


def _peers(found: Comparison) -> Iterator[Part]:
    if not found.peers:
        return
    rows = [
        [f"{each.name}: {each.call}", f"{each.theirs:,.0f}", f"{each.ours:,.1f}", f"{each.theirs / each.ours:,.0f}",
         f"{each.same:.1%}"]
        for each in found.peers
    ]  # fmt: skip
    text = (
        "Calls of other libraries, query by query, and ours for all of these queries in one call, in turns; both begin "
        "with the array of vectors and the rows of each pool. Same picks: share of the picks that are the same in the "
        "same place. Where it is below 100 %, the peer's rule is another one: pyversity counts a cosine below 0 as 0."
    )
    header = ("call", "µs a query", "ours, µs", "times as long", "same picks")
    yield from (Heading("Other libraries on the same pools"), Text(text), page.Plain(header, rows))


def _measured(found: Comparison) -> Iterator[Part]:
    notes = [f"**{measure.label}**: {measure.about}." for measure in found.columns]
    text = (
        f"Intervals are expanded percentiles of {found.samples:,} bootstrap samples of the queries, drawn for all "
        "methods at once, so that differences are paired. Times are those of calls with blocks of queries, of "
        f"{found.problem.num_threads} thread{'s' * (found.problem.num_threads > 1)}, in turns with top-k on the same "
        "block, the median of 3; their intervals are over the blocks. A query that has no value, such as the cosine "
        "between picks where there is one pick, is left out of the mean."
    )
    yield from (Heading("What the columns are"), Text(text), Notes(notes))


def _configuration(settings: dict[str, Any], found: Comparison) -> Iterator[Part]:
    rules = {each.label: _call(each.rule, each.arguments) for each in found.settings}
    about = {**settings, **surroundings(found.problem.num_threads)}
    rows = [[str(name), f"`{value}`"] for name, value in {**about, **rules}.items() if value is not None]
    yield from (Heading("Configuration"), page.Plain(("setting", "value"), rows, numbers=False))


def _call(rule: str, arguments: dict[str, Any]) -> str:
    if rule == RANDOM:
        return "k rows of the pool, drawn at random"
    shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return f"rk.{rule}({shown})"


def metrics(found: Comparison) -> Iterable[Sequence[object]]:
    """Yield the rows of ``metrics.csv``: one for each method and measure."""
    yield (
        "method", "label", "measure", "mean", "low", "high", "difference", "difference_low", "difference_high",
        "together_low", "together_high", "queries",
    )  # fmt: skip
    for setting in found.settings:
        for name in MEASURES:
            figure = found.figures[setting.name].get(name)
            if figure is not None:
                ends = (*figure.mean, *figure.difference, *figure.certain[1:])
                yield (setting.name, setting.label, name, *map(_number, ends), figure.queries)


def queries(found: Comparison) -> Iterable[Sequence[object]]:
    """Yield the rows of ``queries.csv``: one for each method and query, with the picks' ids.

    Ids are separated by blanks; an id with a blank or a quote is written as a JSON string.
    """
    names = [name for name in MEASURES if any(name in values for values in found.values.values())]
    yield ("method", "query", *names, "ids")
    for setting in found.settings:
        values, indices = found.values[setting.name], found.indices[setting.name]
        for q, query in enumerate(found.query_ids):
            rows = indices[q][indices[q] >= 0]
            each = [_number(values[name][q]) if name in values else "" for name in names]
            yield (setting.name, query, *each, " ".join(map(_id, found.problem.corpus.ids[rows].tolist())))


def _id(name: int | str) -> str:
    text = str(name)
    return json.dumps(text, ensure_ascii=False) if '"' in text or text.split() != [text] else text


def _number(value: float) -> str:
    return "" if value != value else f"{value:.9g}"
