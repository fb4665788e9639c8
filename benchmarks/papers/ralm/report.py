"""The report of the In-Context RALM evaluation: perplexities with their intervals, plots, and what decides them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.metrics import perplexity
from ragsys_kernels.reporting.statistics import Interval, bootstrap_ratios

from ..report import BLUE, GREEN, GREY, ORANGE, PALE, Report
from ..statistics import bootstrap_named, share_of
from .labels import (
    BY,
    DENSE,
    FIRST,
    FRONT,
    FURTHER,
    NONE,
    ORACLE,
    OWN,
    PREDICTIVE,
    RANDOM,
    RERANK,
    SHORT,
    beginning,
    pairs,
)
from .paper import said

STRIDE, QUERY = 4, 32  # tokens, the paper's choices
MADE = "by construction"  # the answer for what cannot come out otherwise


@dataclass(frozen=True)
class RalmSizes:
    """The sizes of a run, in tokens unless something else is said. The defaults are those of the full run."""

    windows: int = 250  # number of windows, evenly spread over the text
    window: int = 1024
    target: int = 32  # predicted in each window
    stride: int = STRIDE  # the paper's s: tokens between retrievals; divides the target
    query: int = QUERY  # the paper's ℓ for BM25
    dense_query: int = 64  # the paper's ℓ for dense retrievers
    document: int = 256  # most of a document
    candidates: int = 16  # documents that are ranked
    past: int = 16  # tokens before those predicted, by which documents are ranked
    strides: tuple[int, ...] = (4, 8, 16, 32)  # of Figure 5
    queries: tuple[int, ...] = (8, 16, 32, 64, 128)  # of Figure 6
    passage: int = 100  # words of a passage of the collection

    def check(self, op: str) -> None:
        for name, value in asdict(self).items():
            for one in value if isinstance(value, tuple) else (value,):
                if one < 1:
                    raise ValueError(f"{op}: {name} must be at least 1, got {one}")
        for stride in (self.stride, *self.strides):
            if self.target % stride:
                raise ValueError(f"{op}: stride must divide the {self.target} tokens of a target, got {stride}")
        need = self.document + self.past + self.target
        if self.window <= need:
            raise ValueError(
                f"{op}: window must be above document, past and target together, {need} tokens, got {self.window}"
            )


class Halves(NamedTuple):
    """What the second halves of a window's pieces cost (nats), by the document before them: (Q,) each."""

    first: Array  # BM25's first
    chosen: Array  # the one of the candidates under which the first half is the most probable
    tokens: Array  # of the second halves


class RalmResult(NamedTuple):
    """Q windows, each with a target text: negative log-probabilities (nats) of the targets by method."""

    nll: dict[str, Array]  # (Q,) by method
    picks: dict[str, list[list[tuple[int, ...]]]]  # documents of each piece of each window
    words: Array  # (Q,) of the targets
    tokens: Array  # (Q,)
    top_scores: Array  # (Q,) BM25's score of the first document, mean over the pieces
    by_stride: dict[int, Array]
    by_query: dict[int, Array]
    by_ranked: dict[str, dict[int, Array]]  # by rule and number of documents
    runs: int  # of the model
    unit: Literal["word", "token"] = "word"
    halves: Halves | None = None

    @property
    def per(self) -> Array:
        """What perplexity divides by, words or tokens of the targets, (Q,)."""
        return self.words if self.unit == "word" else self.tokens


class _Versus(NamedTuple):
    change: Interval  # of the perplexity, as a share
    better: Interval  # share of the windows

    def __str__(self) -> str:
        return self.change.signed("{:+.2%}")

    @property
    def cells(self) -> tuple[str, str]:
        return self.change.cells("{:+.2%}")

    @property
    def windows(self) -> str:
        return self.better.signed("{:.0%}")


def report_of(
    result: RalmResult,
    sizes: RalmSizes,
    samples: int,
    collection: str,
    *,
    text: str = "WikiText-103 test",
    like: str = "WikiText-103",
    quick: bool = False,
) -> Report:
    """Return the report.

    `collection` says what is retrieved from, `text` what is predicted, `like` which text of the paper's is of its kind.
    """
    unit = result.unit
    title = "In-Context RALM: what documents before the text are worth"
    report = Report("ralm", title if text.startswith("WikiText") else f"{title}, {text}")
    means = _perplexities(result.nll, result.per, samples)
    against = {label: _versus(result, nll, result.nll[NONE], samples) for label, nll in result.nll.items()}
    versus = {
        (one, other): _versus(result, result.nll[one], result.nll[other], samples)
        for one, other, _ in pairs(result.nll)
    }
    report.text(
        f"""{"**Quick run.** " if quick else ""}{len(result.words)} windows of {sizes.window} tokens, evenly spread
        over {text}; the last {sizes.target} tokens of each are predicted. Every {sizes.stride} tokens the {sizes.query}
        tokens before retrieve passages; a document, of at most {sizes.document} tokens, overwrites the first tokens of
        the window. Intervals are 95 % bootstrap intervals over windows, paired where methods are compared. Model and
        collection are not the paper's, so that its directions can be compared and not its figures. The collection:
        {collection}."""
    )
    report.heading("What the paper finds, and what is found here")
    findings = _findings(result, versus, samples, like, sizes.stride)
    tests = sum(answer != MADE for _, answer, *_ in findings)
    report.text(
        f"""Same direction? A change below 0 is an improvement. "Undecided": the interval contains 0. If none of the
        {tests} differences were real, {tests / 20:.1f} would be decided by chance. The oracle chooses by the tokens
        that it is judged on, so it is better {MADE}, even on noise: it shows how much there is to gain, not that a
        ranker can gain it. {_HALVES if result.halves else ""} The paper's changes, of its Table 1
        on {like}, are those of GPT-2 with 110 million to 1.5 billion parameters."""
    )
    report.table(("finding", "here", f"change of {unit} perplexity", f"the paper's, {like}"), findings, numbers=False)
    report.heading("Table 1 and Figure 3: perplexity by method")
    own = learnt = asked = ""
    if DENSE in result.nll:
        asked = (
            f"Dense retrievers are asked with the {sizes.dense_query} tokens before; 64 are the paper's best for them."
        )
    if PREDICTIVE in result.nll:
        learnt = f"""The predictive ranker is a linear head on the encoder's embeddings, which learns what candidates
        were worth to the model: of {len(result.tokens) * sizes.target // sizes.stride} texts in five blocks each is
        ranked by a head that has seen the other four."""
    if OWN in result.nll:
        own = f""""{OWN}" is no method but shows what retrieval could find: the piece of the window's own article,
        outside of the window, that BM25 finds."""
    if beginning(result.nll, BY):
        learnt += " A second model ranks by the same tokens, which it reads as text."
    report.text(
        f"""Random is what to expect of one of the {sizes.candidates} retrieved documents; reranking takes the one
        under which the {sizes.past} tokens before the target are most probable, the oracle the one under which the
        target itself is. "{SHORT}" has the prefix that BM25's document leaves, without the document; "{FRONT}" has the
        whole prefix, for this model takes more tokens than a window has. {asked} {learnt} {own}"""
    )
    report.table(
        ("method", f"{unit} perplexity", "95 % interval", *(["token perplexity"] if unit == "word" else []),
         f"against {NONE}", "95 % interval", "windows better"),
        [
            (label, *mean.cells("{:.2f}"),
             *([f"{perplexity(-result.nll[label], result.tokens):.2f}"] if unit == "word" else []),
             *(("",) * 3 if label == NONE else (*against[label].cells, against[label].windows)))
            for label, mean in means.items()
        ],
    )  # fmt: skip
    caption = f"Change of {unit} perplexity against {NONE}, with paired 95 % intervals."
    report.plot("methods.png", (7.0, 0.32 * len(means) + 0.9), caption, _plot_methods, result.unit, against)
    report.heading("Figures 5, 6 and 7: stride, query length, documents ranked")
    report.text(
        f"""Stride and query length are those of BM25's first document. All strides predict the same tokens: the
        window's several retrievals share its first token. Figure 7 has what reranking can gain: the rules choose among
        BM25's first n at a stride of {sizes.stride}."""
    )
    for title, values, base in (
        ("stride s", result.by_stride, min(result.by_stride)),
        ("query length ℓ", result.by_query, QUERY if QUERY in result.by_query else min(result.by_query)),
    ):
        report.table(
            (title, f"{unit} perplexity", "95 % interval", f"against {NONE}", "95 % interval",
             f"against {title.split()[-1]} = {base}, paired"),
            [
                (str(at), *_cells(result, nll, samples),
                 "" if at == base else str(_versus(result, nll, values[base], samples)))
                for at, nll in sorted(values.items())
            ],
        )  # fmt: skip
    numbers = sorted(result.by_ranked[RERANK])
    rows = {rule: _perplexities(values, result.per, samples) for rule, values in result.by_ranked.items()}
    report.table(
        ("documents n", *(f"{rule.split(', ')[1]}: {unit} perplexity" for rule in rows)),
        [
            (str(n), *(row[n].signed("{:.2f}") for row in rows.values()))
            for n in numbers
        ],
    )  # fmt: skip
    caption = f"Stride, query length, and number of documents that are ranked: change against {NONE}."
    report.plot("figures.png", (9.6, 3.3), caption, _plot_figures, result, samples)
    report.heading("What decides it")
    report.text(f"{_why(versus)} Changes are of {unit} perplexity.")
    report.table(
        ("method", "against", "says", "change", "95 % interval", "perplexity", "windows better"),
        [
            (one, other, why, *found.cells, found.change.verdict, found.windows)
            for one, other, why in pairs(result.nll)
            for found in (versus[one, other],)
        ],
        numbers=False,
    )
    report.text(
        """By how well BM25's first document matches (thirds of the windows by its score): if retrieval helps where it
        finds something, the collection is what is missing elsewhere."""
    )
    report.table(
        ("windows", "BM25's score", "of them", *(f"{one} against {other}" for one, other in _BY_SCORE)),
        _thirds(result, samples),
    )
    report.values(_values(result))
    report.text("`values.csv` has each window's negative log-probability and documents by method.")
    return report


_HALVES = (
    "The row of halves tests that: it chooses the document by the first half of the predicted tokens, and is judged on "
    "the second."
)
_BY_SCORE = ((FIRST, NONE), (FIRST, SHORT), (RERANK, FIRST))


def _perplexities(values: Mapping[Any, Array], words: Array, samples: int) -> dict[Any, Interval]:
    return {label: _exp(one) for label, one in bootstrap_named(values, samples=samples, counts=words).items()}


def _exp(interval: Interval) -> Interval:
    return Interval(*map(float, np.exp(interval)))


def _versus(
    result: RalmResult, ours: Array, theirs: Array, samples: int, some: Any = slice(None), per: Array | None = None
) -> _Versus:
    """Return how a perplexity changes from one method to another."""
    difference = (ours - theirs)[some]
    ratio = _exp(bootstrap_ratios(difference, (result.per if per is None else per)[some], samples=samples)[0])
    return _Versus(Interval(*(end - 1 for end in ratio)), share_of(difference < 0))


def _findings(
    result: RalmResult, versus: Mapping[Any, _Versus], samples: int, like: str, stride: int
) -> list[tuple[str, str, str, str]]:
    """Return the paper's directions, whether they show, and by how much here and there."""
    versus, often = dict(versus), (f"{FIRST}, s = {STRIDE}", NONE)
    if stride != STRIDE and STRIDE in result.by_stride:  # else BM25's first is that
        versus[often] = _versus(result, result.by_stride[STRIDE], result.nll[NONE], samples)
    rows = []
    smaller = [
        ("reranking by a second model is better than BM25's first (section 6.1)", (label, FIRST))
        for label in beginning(result.nll, BY)
    ]
    further = [
        (f"BM25 is better than {label.removesuffix(', first')} retrieval (Figure 3)", (FIRST, label))
        for label in beginning(result.nll, FURTHER)
    ]
    for text, pair in (
        ("BM25's document lowers perplexity (Table 1)", (FIRST, NONE)),
        (f"so it does with one for every {STRIDE} tokens, the paper's stride (Table 1)", often),
        ("so it does in front of the whole window (Table 1)", (FRONT, NONE)),
        ("reranking is better than BM25's first (Table 1)", (RERANK, FIRST)),
        *smaller,
        ("predictive reranking is better than BM25's first (Table 1)", (PREDICTIVE, FIRST)),
        ("predictive reranking is better than zero-shot reranking (Table 1)", (PREDICTIVE, RERANK)),
        ("an oracle is better than BM25's first (Figure 7)", (ORACLE, FIRST)),
        ("BM25 is better than a dense retriever (Figure 3)", (FIRST, DENSE)),
        *further,
    ):
        if pair in versus:
            one = versus[pair]
            answer = MADE if pair[0] == ORACLE else one.change.same(-1)
            rows.append((text, answer, str(one), said(like, FIRST if pair == often else pair[0], pair[1])))
            if pair[0] == ORACLE and result.halves is not None:
                second, chosen, tokens = result.halves
                half = _versus(result, chosen, second, samples, per=tokens)
                text = "chosen by half of the tokens, it is on the other half (Figure 7)"
                rows.append((text, half.change.same(-1), f"{half} of tokens' perplexity", ""))
    small, large = min(result.by_stride), max(result.by_stride)
    if small < large:
        one = _versus(result, result.by_stride[small], result.by_stride[large], samples)
        text = f"the smaller the stride, the better: s = {small} against {large} (Figure 5)"
        rows.append((text, one.change.same(-1), str(one), ""))
    if QUERY in result.by_query and len(result.by_query) > 1:
        rivals = [at for at in result.by_query if at != QUERY]
        others = {at: _versus(result, result.by_query[QUERY], result.by_query[at], samples) for at in rivals}
        signs = [one.change.sign for one in others.values()]
        answer = "no" if max(signs) > 0 else "yes" if max(signs) < 0 else "undecided"
        best = min(others, key=lambda at: float(result.by_query[at].sum()))
        change = f"{others[best]} against the best other, {best}"
        rows.append((f"{QUERY} tokens, the paper's choice, are the best query (Figure 6)", answer, change, ""))
    return rows


def _why(versus: Mapping[Any, _Versus]) -> str:
    """Say whether BM25's document lowers perplexity, and by which of its parts: the text it overwrites, and its own."""
    price, worth, total = (versus[pair] for pair in ((SHORT, NONE), (FIRST, SHORT), (FIRST, NONE)))
    said = {-1: "is worth more than", 0: "is not distinguishable from", 1: "is worth less than"}[total.change.sign]
    parts = f"{total} in all, {price} for the text that is left out and {worth} for the document in its place"
    if (OWN, NONE) in versus:
        parts += (
            f". A piece of the window's own article, which the collection cannot have, makes {versus[OWN, NONE]} in all"
        )
    return f"BM25's document, from this collection, {said} the text that it takes the place of: {parts}."


def _cells(result: RalmResult, nll: Array, samples: int) -> tuple[str, str, str, str]:
    mean = _perplexities({0: nll}, result.per, samples)[0]
    found = _versus(result, nll, result.nll[NONE], samples)
    return *mean.cells("{:.2f}"), *found.cells


def _thirds(result: RalmResult, samples: int) -> list[tuple[str, ...]]:
    rows = []
    parts = np.array_split(np.argsort(result.top_scores, kind="stable"), 3)
    for name, some in zip(("lowest scores", "middle", "highest scores"), parts, strict=True):
        if not len(some):
            continue
        scores = result.top_scores[some]
        changes = [_versus(result, result.nll[a], result.nll[b], samples, some) for a, b in _BY_SCORE]
        rows.append((name, f"{scores.min():.1f} to {scores.max():.1f}", str(len(some)), *map(str, changes)))
    return rows


def _values(result: RalmResult) -> Iterator[tuple[object, ...]]:
    yield "window", "method", "nll", "words", "tokens", "documents"
    for label, values in result.nll.items():
        for q, nll in enumerate(values):
            pieces = result.picks[label][q] if label in result.picks else []
            documents = " ".join("+".join(map(str, ids)) or "-" for ids in pieces)
            yield q, label, f"{nll:.6f}", result.words[q], result.tokens[q], documents


_COLOURS = {NONE: GREY, FIRST: GREEN, RERANK: BLUE, ORACLE: ORANGE, RANDOM: "#9e9ac8", PREDICTIVE: "#c51b8a"}


def _plot_methods(figure: Any, unit: str, against: Mapping[str, _Versus]) -> None:
    axes = figure.subplots()
    labels = [label for label in against if label != NONE]
    for y, label in enumerate(labels):
        percent = against[label].change.times(100)
        axes.errorbar(percent.mean, y, xerr=percent.bar, fmt="o", color=_COLOURS.get(label, "#525252"))
    axes.axvline(0, color=_COLOURS[NONE], linestyle="--", linewidth=1)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(f"change of {unit} perplexity, %")


def _plot_figures(figure: Any, result: RalmResult, samples: int) -> None:
    panels = figure.subplots(1, 3, sharey=True)
    first = ({FIRST: result.by_stride}, {FIRST: result.by_query})
    names = ("retrieval stride s", "query length ℓ", "documents n")
    for axes, name, lines in zip(panels, names, (*first, result.by_ranked), strict=True):
        for label, values in lines.items():
            at = sorted(values)
            changes = [_versus(result, values[x], result.nll[NONE], samples).change for x in at]
            mean, low, high = (100 * np.array(ends) for ends in zip(*changes, strict=True))
            axes.plot(at, mean, "o-", color=_COLOURS.get(label, PALE), label=label, markersize=4)
            axes.fill_between(at, low, high, color=_COLOURS.get(label, PALE), alpha=0.12, linewidth=0)
        axes.axhline(0, color=_COLOURS[NONE], linestyle="--", linewidth=1, label=NONE)
        axes.set_xscale("log", base=2)
        axes.set_xticks(at, list(map(str, at)))
        axes.minorticks_off()
        axes.set_xlabel(name)
    panels[0].set_ylabel(f"change of {result.unit} perplexity, %")
    known: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    columns = len(known) if len(known) <= 6 else 4  # more names than fit into a row
    figure.legend(list(known.values()), list(known), loc="outside lower center", ncols=columns)
