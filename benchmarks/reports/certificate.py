"""For how many queries a pool proves its picks, into results/certificate.md: by λ and the size of the pool.

Three corpora of real vectors: news and questions by MiniLM, words of GloVe, abstracts of Cranfield by MiniLM.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import data
from benchmarks.harness.ledger import RESULTS
from benchmarks.reports import page_plots, style
from benchmarks.reports.tables import table, write

OUT = RESULTS / "certificate.md"
ALT = "The share of queries that are proven rises with the pool and with λ; at λ = 0.5 and less next to none is"
LAMBDAS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
# What the plot has of them, with its colour.
SHOWN = {0.5: style.GREY, 0.7: style.GREEN, 0.75: style.BLUE, 0.8: style.ORANGE, 0.9: style.RED}
POOLS = (25, 50, 100, 200, 400, 800)
K, QUERIES = 6, 500


class Shares(NamedTuple):
    """Of the queries with a pool and a λ: those that are proven, and those picked as out of the whole corpus."""

    proven: float
    same: float


def corpora() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return rows and queries, which are not among the rows, by the name of the corpus."""
    drawn = np.random.default_rng(0)
    texts, words = data.minilm(), np.asarray(data.glove(100_000))
    found = {}
    for name, vectors in (("AG News", texts), ("GloVe", words)):
        order = drawn.permutation(len(vectors))
        found[name] = vectors[order[QUERIES:]], vectors[order[:QUERIES]]
    if (rows := cranfield()) is not None:
        found["Cranfield"] = rows
    return found


def cranfield() -> tuple[np.ndarray, np.ndarray] | None:
    collection = data.cranfield()
    if collection is None:
        return None
    documents = list(collection.documents.values())
    vectors = data.kept("minilm_cranfield", lambda: data.embed([*documents, *collection.queries.values()]))
    return vectors[: len(documents)], vectors[len(documents) :]


def measured(rows: np.ndarray, queries: np.ndarray) -> dict[tuple[float, int], Shares]:
    """Return the shares by λ and the size of the pool."""
    corpus, shares = rk.Corpus(rows), {}
    for value in LAMBDAS:
        whole = corpus.select(queries, K, pool=None, lambda_d=value).indices
        for pool in POOLS:
            picks = corpus.select(queries, K, pool=pool, lambda_d=value)
            same = (picks.indices == whole).all(axis=1)
            if (picks.certified & ~same).any():
                raise SystemExit(
                    f"error: λ = {value:g}, P = {pool}: picks are certified that are not the whole corpus's"
                )
            shares[value, pool] = Shares(float(picks.certified.mean()), float(same.mean()))
    return shares


def draw(out: Path = RESULTS) -> None:
    """Draw the plot of the page to a folder."""
    names = [line[3:] for line in OUT.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    drawn, panels = style.figure(2.9, 1, len(names), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        rows = {float(row["λ"]): row for row in page_plots.table(OUT, name)}
        for value, colour in SHOWN.items():
            proven = [page_plots.numbers(rows[value][f"P = {pool}"])[0] for pool in POOLS]
            axes.plot(POOLS, proven, color=colour, marker="o", markersize=3, label=f"λ = {value:g}")
        axes.set(title=name, xscale="log", xlabel="rows in the pool", xticks=(25, 100, 400), xticklabels=(25, 100, 400))
        axes.minorticks_off()
        axes.grid(axis="y")
    panels[0].set(ylabel="% of queries proven", ylim=(-3, 103))
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, handlelength=1.2)
    style.save(drawn, out / "certificate.svg")


def main() -> None:
    given = corpora()
    found = {name: measured(*vectors) for name, vectors in given.items()}
    sizes = ", ".join(
        f"{name} ({len(rows):,} rows of {rows.shape[1]}, {len(queries)} queries)"
        for name, (rows, queries) in given.items()
    )
    about = (
        "Written by `python -m benchmarks.reports.certificate`. "
        f"{K} picks by MMR out of the P rows that the exact search finds, without bias. In percent of the queries: for "
        "how many the pool proves that these are the picks of the whole corpus, and in brackets for how many they are. "
        f"None was proven that is not. {sizes}. AG News has the questions and answers of TruthfulQA too."
    )
    parts = [f"![{ALT}](certificate.svg)"]
    for name, shares in found.items():
        rows = []
        for value in LAMBDAS:
            cells = (shares[value, pool] for pool in POOLS)
            rows.append([f"{value:g}", *(f"{percent(c.proven)} ({percent(c.same)})" for c in cells)])
        parts += [f"## {name}", table(["λ", *(f"P = {pool}" for pool in POOLS)], rows, tight=True)]
    write(OUT, "How large a pool has to be", about, *parts)
    draw()


def percent(share: float) -> str:
    """Return a share in percent, 0 and 100 only where it is none and all."""
    return f"{100 * share:.0f}" if share in (0, 1) else f"{min(max(100 * share, 1), 99):.0f}"


if __name__ == "__main__":
    main()
