"""How often kernels read the rows of a pool or a corpus, counted in Triton's interpreter on real vectors.

    python -m benchmarks.gpu.traffic [--queries 3] [--pool 1000] [--picks 10]
    python -m benchmarks.gpu.traffic --corpus 20000 [--queries 16] [--picks 6]

Prints, for each source of vectors, order of the pool and λ_d, the bytes that loads of rows move over those of one read
of the pool, and what the rest moves (running vectors, ids, queries, results), likewise. With ``--corpus``: for each
variant of the whole corpus and λ_d, over one read of so many rows of 16 bits, for all queries together; what torch's
own top-n moves is not in it. Each load counts the sectors that it touches (`tests/helpers/traffic.py`): no cache is
assumed. `static.py` has its bytes from here.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # before the kernels are imported

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import data
from benchmarks.harness.ledger import ROOT
from ragsys_kernels import _env
from ragsys_kernels._gpu import variants

SECTOR = 32
# Rows that pools are taken from: the most frequent words, or all texts.
MOST_ROWS = 100_000


def pools(source: str, num_queries: int, P: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return held-out queries, unit rows, and the ids of the P rows of largest cosine, best first."""
    vectors = np.asarray(data.glove(MOST_ROWS) if source == "glove" else data.minilm(), np.float32)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors[np.random.default_rng(3).permutation(len(vectors))]
    queries, rows = vectors[:num_queries], np.ascontiguousarray(vectors[100:])
    return queries, rows, np.argsort(-(queries @ rows.T), axis=1, kind="stable")[:, :P]


def one_read(rows: np.ndarray, candidates: np.ndarray) -> int:
    """Return the bytes that one read of all pools moves, each row by itself."""
    begin = candidates.astype(np.int64) * rows.shape[1] * rows.itemsize
    end = begin + rows.shape[1] * rows.itemsize
    return int(SECTOR * (-(-end // SECTOR) - begin // SECTOR).sum())


def of_pools(source: str, num_queries: int, P: int, K: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield the order of the pool, λ_d, reads of rows and of all else for MMR out of float32 pools."""
    import torch

    counted = importlib.import_module("traffic").counted  # of the tests
    queries, rows, nearest = pools(source, num_queries, P)
    corpus = rk.Corpus(rows)
    rng = np.random.default_rng(4)
    for order, candidates in (("best first", nearest), ("any order", rng.permuted(nearest, axis=1))):
        for lambda_d in (0.75, 0.5):
            with counted(rows=torch.from_numpy(corpus.data)) as moved:
                rk.mmr(queries, corpus, K, candidates=candidates, lambda_d=lambda_d, backend="triton")
            once, rest = one_read(corpus.data, candidates), moved.read["others"] + moved.written["others"]
            yield order, lambda_d, moved.read["rows"] / once, rest / once


def of_corpus(source: str, num_queries: int, N: int, K: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield the variant, λ_d, reads of rows and of all else for MMR out of a whole corpus of float16 rows."""
    import torch

    counted = importlib.import_module("traffic").counted
    queries, rows, _ = pools(source, num_queries, 1)
    corpus = rk.Corpus(rows[:N], dtype="float16")
    for variant in variants.VARIANTS["corpus"]:
        for lambda_d in (0.75, 0.5):
            with (
                _env.changed(RAGSYS_KERNELS_VARIANTS=f"corpus={variant}"),
                counted(rows=torch.from_numpy(corpus.data)) as moved,
            ):
                rk.mmr(queries, corpus, K, lambda_d=lambda_d, backend="triton")
            rest = moved.read["others"] + moved.written["others"]
            yield variant, lambda_d, moved.read["rows"] / corpus.data.nbytes, rest / corpus.data.nbytes


def main(arguments: list[str] | None = None) -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int)
    parser.add_argument("--pool", type=int, default=1000)
    parser.add_argument("--corpus", type=int, help="rows of the whole corpus, in place of pools")
    parser.add_argument("--picks", type=int)
    parser.add_argument("--sources", nargs="+", default=["minilm", "glove"], choices=["minilm", "glove"])
    given = parser.parse_args(arguments)
    sys.path.append(str(ROOT / "tests" / "helpers"))
    whole = given.corpus is not None
    queries, K = given.queries or (16 if whole else 3), given.picks or (6 if whole else 10)
    what = f"{given.corpus} rows" if whole else f"P = {given.pool}"
    print(f"{queries} queries, {what}, K = {K}: bytes over those of one read of the {'corpus' if whole else 'pool'}")
    for source in given.sources:
        found = of_corpus(source, queries, given.corpus, K) if whole else of_pools(source, queries, given.pool, K)
        for form, lambda_d, reads, rest in found:
            print(f"{source:7} {form:10}  λ_d {lambda_d:4}  rows {reads:5.2f}  all else {rest:5.2f}", flush=True)


if __name__ == "__main__":
    main()
