"""BM25, vectors and both fused on Cranfield, before and after MMR, into results/hybrid.md.

Vectors are those of `make compare-demo`, by latent semantic indexing. Needs the packages bm25s and scikit-learn, and
Cranfield in the data folder.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import data
from benchmarks.harness.ledger import RESULTS
from benchmarks.reports.tables import table, write
from ragsys_kernels.icl import BM25Retriever
from ragsys_kernels.metrics import ndcg, recall

POOL, K, WEIGHT = 100, 10, 0.75


def pools(
    corpus: rk.Corpus, texts: list[str], queries: np.ndarray, questions: list[str]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield a name, candidates and relevance of each way to retrieve."""
    words, vectors = BM25Retriever(texts).search(questions, POOL), corpus.search(queries, POOL)
    yield "BM25", words.ids, words.scores
    yield "vectors", *vectors
    for method in ("rrf", "minmax", "zscore"):
        yield f"fused, {method}", *rk.fuse([words, vectors], method)
    yield "fused, minmax, weights 0.3 and 0.7", *rk.fuse([words, vectors], "minmax", [0.3, 0.7])


def main() -> None:
    collection = data.cranfield()
    if collection is None:
        raise SystemExit("error: Cranfield must be in the folder of RAGSYS_KERNELS_DATA")
    texts, questions = list(collection.documents.values()), list(collection.queries.values())
    rows, queries = data.indexed(texts, questions)
    corpus = rk.Corpus(rows)
    grades = np.zeros((len(questions), len(texts) + 1))  # the last column is that of padding
    documents = {name: row for row, name in enumerate(collection.documents)}
    for query, document, grade in collection.qrels:
        grades[int(query) - 1, documents[document]] = grade
    judged, cu = grades.reshape(-1), np.arange(len(questions) + 1) * grades.shape[1]

    def quality(picks: Any, measure: Any = ndcg) -> str:
        return f"{np.nanmean(measure(np.take_along_axis(grades, picks, 1), judged, cu)):.3f}"

    def alike(picks: Any) -> str:
        pairs = np.triu_indices(K, 1)
        cosines = [(vectors @ vectors.T)[pairs].mean() for vectors in corpus.data[picks]]
        return f"{np.mean(cosines):.3f}"

    lines = []
    for name, candidates, relevance in pools(corpus, texts, queries, questions):
        line = [name, quality(candidates, recall), quality(candidates[:, :K]), alike(candidates[:, :K])]
        for scale in ("as-is", "minmax"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", rk.RelevanceRangeWarning)
                picks = rk.mmr(
                    None, corpus, K, candidates=candidates, relevance=relevance, relevance_scale=scale, lambda_d=WEIGHT
                )  # fmt: skip
            line += [quality(picks.indices), alike(picks.indices)]
        lines.append(line)
    about = (
        "Written by `python -m benchmarks.reports.hybrid`. "
        f"{len(texts):,} abstracts and {len(questions)} questions of the Cranfield collection. Each list has the "
        f"best {POOL} by BM25 or by vectors (latent semantic indexing, {rows.shape[1]} dimensions). Means over the "
        f"questions: recall of all that was retrieved; then nDCG of {K} and the mean cosine between two of them, for "
        f"the best by relevance and for MMR's picks at λ = {WEIGHT:g}, with relevance as it is and with "
        "relevance_scale='minmax'."
    )
    header = ["retrieved by", "recall", f"nDCG, best {K}", "between them", "nDCG, MMR as-is", "between picks",
              "nDCG, MMR minmax", "between picks"]  # fmt: skip
    write(RESULTS / "hybrid.md", "Hybrid search, then MMR", about, "## Cranfield", table(header, lines, tight=True))


if __name__ == "__main__":
    main()
