"""What λ does to the picks on real texts, into results/lambda.md: relevance, redundancy, number of sources.

TruthfulQA's question-answer pairs by MiniLM: for each question six pairs of other questions, out of the 100 nearest.
Several answers of one question say nearly the same, which is what the redundancy term is to see.
"""

from __future__ import annotations

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import data
from benchmarks.harness.ledger import RESULTS
from benchmarks.reports import page_plots
from benchmarks.reports.tables import table, write
from ragsys_kernels.metrics import pairwise_cosine, sum_cosine

OUT = RESULTS / "lambda.md"
ALT = "With λ relevance and redundancy rise, redundancy faster; the cosine with the sum is largest between"
LAMBDAS = (0.0, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
K, POOL = 6, 100


def embeddings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return vectors of the pairs, the question of each, vectors of the questions."""
    pairs = data.truthfulqa()
    source = np.repeat(np.arange(len(pairs)), [len(answers) for _, answers in pairs])
    texts = [f"{question} {answer}" for question, answers in pairs for answer in answers]
    vectors = data.kept("truthfulqa_pairs", lambda: data.embed([*texts, *(question for question, _ in pairs)]))
    return vectors[: len(source)], source, vectors[len(source) :]


def main() -> None:
    rows, source, queries = embeddings()
    corpus = rk.Corpus(rows, groups=source)
    own = np.arange(len(queries))
    candidates, _ = corpus.search(queries, POOL, query_groups=own)
    made = {f"{value:g}": corpus.select(queries, K, candidates=candidates, lambda_d=value) for value in LAMBDAS}
    made["VRSD"] = corpus.select(queries, K, method="vrsd", candidates=candidates)
    about = (
        "Written by `python -m benchmarks.reports.lambda_sweep`. "
        f"For each of the {len(queries)} questions of TruthfulQA {K} question-answer pairs of other questions, out of "
        f"the {POOL} nearest of {len(rows):,} (MiniLM, cosine), by MMR without bias: means over the questions of the "
        "picks' cosine with the question, of the cosine between two picks, of the cosine of the question with the sum "
        f"of the picks, and of how many questions the {K} pairs are from. VRSD has no λ."
    )
    shown = []
    for name, found in made.items():
        picks = found.indices
        relevance = (rows[picks] * queries[:, None]).sum(-1).mean()
        of_sum = sum_cosine(queries, rows, picks).mean()
        between = pairwise_cosine(rows, picks).mean()
        sources = np.mean([len(set(source[each])) for each in picks])
        shown.append([name, f"{relevance:.3f}", f"{between:.3f}", f"{of_sum:.3f}", f"{sources:.2f}"])
    header = ("λ", "cosine with the question", "between picks", "of the sum", "sources")
    write(OUT, "What λ does to the picks", about, f"![{ALT}](lambda.svg)", table(header, shown, tight=True))
    page_plots.draw(OUT.parent, ["lambda"])


if __name__ == "__main__":
    main()
