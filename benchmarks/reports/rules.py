"""What each rule does to the picks on real vectors, into results/rules.md: relevance, redundancy, breadth, time.

python -m benchmarks.reports.rules [DATA ...]

Of the data sets that are named; the tables of the others stay as they are.
"""

from __future__ import annotations

import re
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import data
from benchmarks.harness.ledger import RESULTS
from benchmarks.reports import lambda_sweep, rule_plots, tables
from ragsys_kernels.metrics import pairwise_cosine, sum_cosine

OUT = RESULTS / "rules.md"
K, POOL, QUERIES = 6, 100, 800
NEAR = 0.9  # two picks of a larger cosine are near-duplicates
RUNS = 5

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "top-k": ("mmr", {"lambda_d": 1.0}),
    "top-k, ceiling 0.8": ("mmr", {"lambda_d": 1.0, "max_similarity": 0.8}),
    "MMR, λ_d 0.75": ("mmr", {"lambda_d": 0.75}),
    "MMR, λ_d 0.5": ("mmr", {"lambda_d": 0.5}),
    "VRSD": ("vrsd", {}),
    "MSD, λ_d 0.9": ("msd", {"lambda_d": 0.9}),
    "MSD, λ_d 0.75": ("msd", {"lambda_d": 0.75}),
    "DPP, λ_d 0.5": ("dpp", {"lambda_d": 0.5}),
    "DPP, λ_d 0.9": ("dpp", {"lambda_d": 0.9}),
    "SSD, λ_d 0.5": ("ssd", {"lambda_d": 0.5}),
    "SIFT": ("sift", {}),
    "facility location, λ_d 0.25": ("coverage", {"lambda_d": 0.25}),
    "COVER, λ_d 0.5": ("coverage", {"lambda_d": 0.5, "kind": "cover"}),
    "xQuAD, λ_d 0.25": ("coverage", {"lambda_d": 0.25, "kind": "xquad"}),
}

Call = Callable[[], rk.Selection]


def calls(queries: np.ndarray, corpus: rk.Corpus, candidates: np.ndarray) -> dict[str, Call]:
    """Return a call for each setting, all over the same pools."""

    def call(rule: str, arguments: dict[str, Any]) -> Call:
        select = getattr(rk, rule)
        return lambda: select(queries, corpus, K, candidates=candidates, num_threads=1, **arguments)

    return {name: call(*setting) for name, setting in SETTINGS.items()}


def seconds(made: dict[str, Call]) -> dict[str, float]:
    """Return the median time of each call; the calls take turns."""
    found: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(RUNS):
        for name, call in made.items():
            begin = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - begin)
    return {name: float(np.median(each)) for name, each in found.items()}


def table(
    rows: np.ndarray,
    queries: np.ndarray,
    corpus: rk.Corpus,
    candidates: np.ndarray,
    judged: list[set[int]] | None = None,
) -> str:
    """Return a table of what each setting picks, and how long it takes; ``judged``: the relevant rows."""
    made = calls(queries, corpus, candidates)
    taken = seconds(made)
    header = ["rule", "cosine with the query", "between picks", "of the sum", "near-duplicates", "of top-k", "picks"]
    header += ["time", *([] if judged is None else ["judged relevant"])]
    lines = []
    top = made["top-k"]().indices
    for name, call in made.items():
        picks = call().indices
        real = picks >= 0  # a ceiling may leave fewer
        relevance = (rows[picks] * queries[:, None]).sum(-1)[real].mean()
        one, other = np.triu_indices(K, 1)
        cosines = (rows[picks[:, one]] * rows[picks[:, other]]).sum(-1)[real[:, one] & real[:, other]]
        between = np.nanmean(pairwise_cosine(rows, picks))
        shared = np.mean([np.isin(a[a >= 0], b).mean() for a, b in zip(picks, top, strict=True)])
        lines.append([
            name, f"{relevance:.3f}", f"{between:.3f}", f"{sum_cosine(queries, rows, picks).mean():.3f}",
            f"{(cosines > NEAR).mean():.1%}", f"{shared:.0%}", f"{real.sum() / len(picks):.1f}",
            f"{taken[name] / taken['MMR, λ_d 0.75']:.2g}",
        ])  # fmt: skip
        if judged is not None:
            right = sum(len(few.intersection(row.tolist())) for few, row in zip(judged, picks, strict=True))
            lines[-1].append(f"{right / real.sum():.1%}")
    return tables.table(header, lines, tight=True)


def truthfulqa() -> tuple[str, str]:
    rows, source, queries = lambda_sweep.embeddings()
    corpus = rk.Corpus(rows, groups=source)
    candidates, _ = corpus.search(queries, POOL, query_groups=np.arange(len(queries)))
    about = (
        f"{len(queries)} questions of TruthfulQA, {len(rows):,} question-answer pairs (MiniLM, 384 dimensions): "
        "several answers of one question say nearly the same. Pairs of a question's own are left out."
    )
    return about, table(rows, queries, corpus, candidates)


def ag_news() -> tuple[str, str]:
    found = data.ag_news()
    if found is None:
        raise SystemExit("error: AG News must be in the folder of RAGSYS_KERNELS_DATA")
    at = {text: row for row, text in enumerate(data.texts())}
    news, others = (list(dict.fromkeys(at[text.strip()] for text in some)) for some in found)
    others = list(np.random.default_rng(0).permutation([row for row in others if row not in set(news)])[:QUERIES])
    vectors = data.minilm()
    rows, queries = vectors[news], vectors[others]
    corpus = rk.Corpus(rows)
    candidates, _ = corpus.search(queries, POOL)
    about = (
        f"{len(queries)} news as queries, {len(rows):,} others of AG News (MiniLM, 384 dimensions): an event is told "
        "by several agencies."
    )
    return about, table(rows, queries, corpus, candidates)


def cranfield() -> tuple[str, str]:
    found = data.cranfield()
    if found is None:
        raise SystemExit("error: Cranfield must be in the folder of RAGSYS_KERNELS_DATA")
    numbers = list(found.documents)
    rows = data.embed(list(found.documents.values()))
    queries = data.embed(list(found.queries.values()))
    corpus = rk.Corpus(rows)
    candidates, _ = corpus.search(queries, POOL)
    place, asked = ({name: row for row, name in enumerate(some)} for some in (numbers, found.queries))
    judged: list[set[int]] = [set() for _ in asked]
    for query, document, grade in found.qrels:
        if grade > 0:
            judged[asked[query]].add(place[document])
    about = (
        f"{len(queries)} questions of the Cranfield collection, {len(rows):,} abstracts (MiniLM, 384 dimensions). The "
        "last column is the share of the picks that judges found relevant: no judgement asks whether two abstracts say "
        "the same."
    )
    return about, table(rows, queries, corpus, candidates, judged)


def glove() -> tuple[str, str]:
    rows = np.array(data.glove(50_000), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    own = np.random.default_rng(0).choice(20_000, QUERIES, replace=False)
    corpus = rk.Corpus(rows)
    candidates, _ = corpus.search(rows[own], POOL, exclude=own[:, None])
    about = f"{QUERIES} words among the 50,000 most frequent of GloVe (50 dimensions), the word itself left out."
    return about, table(rows, rows[own], corpus, candidates)


SECTIONS: dict[str, Callable[[], tuple[str, str]]] = {
    "TruthfulQA": truthfulqa,
    "GloVe": glove,
    "AG News": ag_news,
    "Cranfield": cranfield,
}


def main(named: list[str]) -> None:
    if unknown := set(named) - set(SECTIONS):
        raise SystemExit(f"error: data sets must be among {', '.join(SECTIONS)}, got {', '.join(sorted(unknown))}")
    before = re.split(r"^## (.*)\n\n", OUT.read_text(encoding="utf-8"), flags=re.M)[1:] if OUT.exists() else []
    kept = dict(zip(before[::2], (text.rstrip() for text in before[1::2]), strict=True))
    about = (
        f"Written by `python -m benchmarks.reports.rules`. Each rule picks {K} items out of the {POOL} nearest of a "
        "query, the same for all rules. Means over the queries: of the picks' cosine with the query, of the cosine "
        "between two picks, of the cosine of the query with the sum of the picks, of the share of pairs of picks above "
        f"{NEAR}, of the share of picks that top-k has too, and how many picks a query gets. Time is that of the "
        f"call by one thread, MMR with λ_d = 0.75 being 1, all of a table in one run, the median of {RUNS}."
    )
    parts = []
    for title, made in SECTIONS.items():
        if title in named or not named or title not in kept:
            what, rows = made()
            kept[title] = f"{textwrap.fill(what, 120)}\n\n{rows}"
        parts += [f"## {title}", kept[title]]
    tables.write(OUT, "What each rule picks", about, *parts)
    rule_plots.draw(OUT.parent)


if __name__ == "__main__":
    main(sys.argv[1:])
