"""A part of a data set, and its near-duplicates: times of `Corpus.subset` and `duplicates` by N and k.

Rows are synthetic: clusters around random directions, and copies that are moved a little. `duplicates` goes in turns
with FAISS's range search of the flat index, which finds the same pairs, each twice: for some rows, and the time is that
for all. The pairs are compared first. Seconds are of the processor, the least of the rounds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import faiss
import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import ledger
from ragsys_kernels import _info

CLUSTERS, NOISE, COPIES, MOVED = 2_000, 0.7, 0.05, 0.1
TARGETS = 3  # of VRSD: rows, whose mean is the query
ROUNDING = 1e-5  # of a similarity in float32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="(%(default)s)")
    parser.add_argument("--k", type=int, nargs="+", default=[100, 1_000, 10_000], help="(%(default)s)")
    parser.add_argument("--dims", type=int, default=96, help="(%(default)s)")
    parser.add_argument("--threshold", type=float, default=0.9, help="of duplicates (%(default)s)")
    parser.add_argument("--queries", type=int, default=2_000, help="rows that FAISS searches for (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    options = parser.parse_args()
    print(
        f"{ledger.hardware()}, {' '.join(_info.active())}, {options.threads} threads, load before "
        f"{os.getloadavg()[0]:.1f}, commit {ledger.environment()['commit']}\n"
    )
    faiss.omp_set_num_threads(options.threads)
    print("| rows | k | lambda_d = 0.5 | lambda_d = 0 | msd | vrsd | duplicates | FAISS's range search | ratio |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for number in options.rows:
        corpus = rk.Corpus(made(number, options.dims))
        for k in options.k:
            if k < number:
                rules: list[dict[str, Any]] = [
                    {"lambda_d": 0.5},
                    {"lambda_d": 0.0},
                    {"rule": "msd", "lambda_d": 0.5},
                    {"rule": "vrsd", "targets": corpus.vectors(np.arange(TARGETS))},
                ]
                chosen = [
                    least(options, partial(corpus.subset, k, num_threads=options.threads, **rule)) for rule in rules
                ]
                print(f"| {number:,} | {k:,} | {' | '.join(f'{taken:.2f} s' for taken in chosen)} | | | |", flush=True)
        ours, theirs = duplicates(corpus, options)
        print(f"| {number:,} | | | | | | {ours:.2f} s | {theirs:.2f} s | {ours / theirs:.3f} |", flush=True)


def made(number: int, dims: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((CLUSTERS, dims), np.float32)[rng.integers(0, CLUSTERS, number)]
    rows += NOISE * rng.standard_normal(rows.shape, np.float32)
    some = rng.choice(number, int(COPIES * number), replace=False)
    rows[some] = rows[rng.integers(0, number, len(some))]
    rows[some] += MOVED * rng.standard_normal((len(some), dims), np.float32)
    return rows


def least(options: argparse.Namespace, call: Callable[[], object]) -> float:
    return min(seconds(call) for _ in range(options.rounds))


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def duplicates(corpus: rk.Corpus, options: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds of `duplicates`, and those that FAISS takes for all rows, by the time of some of them."""
    index = faiss.IndexFlatIP(corpus.dims)
    index.add(corpus.data)
    step = max(1, len(corpus) // options.queries)
    some = np.arange(0, len(corpus), step)
    check(corpus, options.threshold, some, *index.range_search(corpus.data[some], options.threshold - ROUNDING))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.rounds):
        times[0].append(seconds(lambda: rk.duplicates(corpus, options.threshold, num_threads=options.threads)))
        times[1].append(
            seconds(lambda: index.range_search(corpus.data[some], options.threshold)) * len(corpus) / len(some)
        )
    return min(times[0]), min(times[1])


def check(
    corpus: rk.Corpus, threshold: float, some: np.ndarray, limits: np.ndarray, similarity: np.ndarray, ids: np.ndarray
) -> None:
    """Compare the pairs of some rows that FAISS finds, and a few more, with those that `duplicates` finds."""
    found = rk.duplicates(corpus, threshold, pairs=True)
    assert found.pairs is not None
    ours = {*map(tuple, found.pairs[np.isin(found.pairs, some).any(axis=1)].tolist())}
    queries = np.repeat(some, np.diff(limits.astype(np.int64)))
    pairs = np.stack([np.minimum(queries, ids), np.maximum(queries, ids)], axis=1)
    other = queries != ids
    assert ours <= {*map(tuple, pairs[other].tolist())}
    assert ours >= {*map(tuple, pairs[other & (similarity >= threshold + ROUNDING)].tolist())}


if __name__ == "__main__":
    main()
