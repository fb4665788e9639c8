"""What λ does to the picks on real texts, into results/lambda.md: relevance, redundancy, number of sources.

TruthfulQA's question-answer pairs by MiniLM: for each question six pairs of other questions, out of the 100 nearest.
Several answers of one question say nearly the same, which is what the redundancy term is to see.
"""

from __future__ import annotations

import textwrap

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import data
from benchmarks.harness.ledger import RESULTS
from benchmarks.reports import page_plots
from ragsys_kernels.metrics import pairwise_cosine, sum_cosine

OUT = RESULTS / "lambda.md"
ALT = "With λ relevance and redundancy rise, redundancy faster; the cosine with the sum is largest between"
LAMBDAS = (0.0, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
K, POOL = 6, 100


def embeddings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return vectors of the pairs, the question of each, vectors of the questions."""
    pairs = data.truthfulqa()
    source = np.repeat(np.arange(len(pairs)), [len(answers) for _, answers in pairs])
    data.CACHE.mkdir(exist_ok=True)
    path = data.CACHE / "truthfulqa_pairs.npy"
    if not path.exists():
        texts = [f"{question} {answer}" for question, answers in pairs for answer in answers]
        np.save(path, data.embed([*texts, *(question for question, _ in pairs)]))
    vectors = np.load(path)
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
    lines = [
        "# What λ does to the picks",
        "",
        *textwrap.wrap(about, 120),
        "",
        f"![{ALT}](lambda.svg)",
        "",
        "| λ | cosine with the question | between picks | of the sum | sources |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, found in made.items():
        picks = found.indices
        relevance = (rows[picks] * queries[:, None]).sum(-1).mean()
        of_sum = sum_cosine(queries, rows, picks).mean()
        between = pairwise_cosine(rows, picks).mean()
        sources = np.mean([len(set(source[each])) for each in picks])
        lines.append(f"| {name} | {relevance:.3f} | {between:.3f} | {of_sum:.3f} | {sources:.2f} |")
    OUT.write_text("\n".join(lines) + "\n")
    page_plots.draw(OUT.parent, ["lambda"])


if __name__ == "__main__":
    main()
