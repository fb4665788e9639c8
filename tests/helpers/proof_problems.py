"""Searches of and selections from whole corpora by Triton's kernels, interpreted, held against float64.

`TRITON_INTERPRET=1 python tests/helpers/proof_problems.py --seed 1 --queries 2000`

A case is drawn from (seed, number) alone: a corpus, some of its rows made hard to tell apart, and a few queries. Sizes
of tiles and pools are small, so that few rows are many.
"""

import argparse
import contextlib
import os
import time
from collections import Counter

os.environ.setdefault("TRITON_INTERPRET", "1")

import interpreted  # noqa: F401 - mends the interpreter
import numpy as np
import searches

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.selection import validate
from ragsys_kernels.selection.triton import bit_search as triton_filter
from ragsys_kernels.selection.triton import proof as triton_proof
from ragsys_kernels.selection.triton.launch import Tile

KINDS = ("random", "clusters", "repeated", "near ties", "zeros", "lengths", "integers")
SMALL = {
    triton_filter: {"ROWS": 32, "EACH": 32, "best_tile": lambda n: Tile(16, 32, 1, 4, 2)},
    triton_proof: {
        "POOL": 24,
        "SLOTS": 32,
        "FIRST": 8,
        "LEAST_SHARE": 1,
        "ROUNDS": 3,
        "REST_TILE": Tile(256, 64, 1, 4, 2),
    },
}


def make_small(setattr_):
    """Make tiles and pools small, by a function such as ``monkeypatch.setattr``."""
    for module, values in SMALL.items():
        for name, value in values.items():
            setattr_(module, name, value)


def rows_of(rng, kind, N, D):
    rows = rng.standard_normal((N, D))
    if kind == "clusters":
        rows = rng.standard_normal((N // 20, D))[rng.integers(0, N // 20, N)] + 0.4 * rows
    elif kind == "repeated":
        rows = rows[rng.integers(0, N // 8, N)]
    elif kind == "near ties":  # a unit of rounding apart in one element
        rows = rows[rng.integers(0, N // 8, N)]
        rows[np.arange(N), rng.integers(0, D, N)] *= 1 + 2.0**-10
    elif kind == "zeros":
        rows[rng.random(N) < 0.3] = 0
    elif kind == "lengths":
        rows *= 2.0 ** rng.integers(-4, 4, (N, 1))
    elif kind == "integers":
        rows = rng.integers(-2, 3, (N, D))
    return rows.astype(np.float32)


def draw(seed, number):
    """The corpus, what is asked of it, and its kind."""
    rng = np.random.default_rng([seed, number])

    def sometimes(share=0.25):
        return bool(rng.random() < share)

    kind = str(rng.choice(KINDS))
    N, Q, D = int(rng.integers(260, 420)), 16, int(rng.choice((8, 16, 24, 33)))
    rows = rows_of(rng, kind, N, D)
    metric = "dot" if kind in ("lengths", "integers") else str(rng.choice(("cosine", "dot")))
    queries = (rows[rng.integers(0, N, Q)] if sometimes(0.5) else 0) + rng.standard_normal((Q, D))
    if kind == "integers":
        queries = rng.integers(-2, 3, (Q, D))
    queries[rng.random(Q) < 0.1] = 0
    k = int(rng.choice((2, 2, 2, 3)))
    ask = {"k": k, "lambda_d": rng.choice((0.0, 0.25, 0.5, 0.6, 0.75, 0.75, 0.8, 0.9, 0.9, 1.0), Q).astype(np.float32)}
    dtype = str(rng.choice(("float32", "float16", "bfloat16", "int8")))
    bias = groups = None
    if sometimes(0.3):
        bias = (rng.standard_normal(N) * rng.choice((0.01, 1.0, 100.0))).astype(np.float32)
        if kind == "integers":
            bias = rng.integers(-2, 3, N).astype(np.float32)
        ask["lambda_b"] = rng.choice((0.0, 0.25, 0.5, 1.0), Q).astype(np.float32)
    if sometimes():
        groups = rng.integers(0, 12, N)
        if sometimes(0.6):
            ask["query_groups"] = rng.integers(0, 14, Q)
        if sometimes(0.6) or "query_groups" not in ask:
            ask["max_per_group"] = int(rng.integers(1, 3))
    if sometimes(0.2):
        ask["initial"] = np.stack([rng.permutation(N)[:2] for _ in range(Q)])
        ask["initial"][rng.random((Q, 2)) < 0.4] = -1
    if sometimes(0.2):
        ask["allowed"] = rng.random(N if sometimes(0.5) else (Q, N)) < rng.choice((0.01, 0.5))
    if sometimes(0.2):
        ask["k"] = rng.integers(1, k + 1, Q)
        ask["k"][0] = k
    if dtype == "int8" or (metric == "cosine" and sometimes(0.6)) or bias is not None or groups is not None:
        corpus = rk.Corpus(rows, bias, groups, metric=metric, dtype=dtype)
        ask["embeddings"] = corpus
    else:
        ask["embeddings"] = rows if dtype == "float32" and metric == "cosine" else rows.astype(np.float16)
    ask["queries"], ask["metric"] = queries.astype(np.float32), metric
    return ask, kind


def check(ask):
    """Hold picks out of a whole corpus against float64."""
    assert triton_proof.fits(validate.selection("mmr", **ask))
    result = rk.Selection(*map(np.asarray, rk.mmr(**ask, backend="triton")))
    testing.check_selection("mmr", ask, result)
    return result


def check_search(ask):
    """Hold the best rows of a search against float64."""
    names = ("queries", "embeddings", "metric", "lambda_b", "query_groups", "allowed")
    problem = validate.selection("search", k=3, k_name="n", **{name: ask[name] for name in names if name in ask})
    if triton_filter.fits(problem):
        searches.check(problem)


@contextlib.contextmanager
def counted():
    """Yield a list that gets, of every call, how many queries were left before each check and after the last."""
    calls, columns = [], triton_proof._Rounds._columns

    def counting(self, draft, last, before, after, finished):
        columns(self, draft, last, before, after, finished)
        if last is None:
            calls.append([])
        calls[-1].append(int(after[1]))

    triton_proof._Rounds._columns = counting
    try:
        yield calls
    finally:
        triton_proof._Rounds._columns = columns


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--queries", type=int, default=2000)
    options = parser.parse_args()
    make_small(setattr)
    done, number, kinds, begun = 0, options.first, Counter(), time.time()
    with counted() as calls:
        while done < options.queries:
            ask, kind = draw(options.seed, number)
            try:
                check(ask)
                check_search(ask)
            except Exception:
                print(f"case {number}, {kind}: {sorted(ask)}, k {ask['k']}")
                raise
            done += len(ask["queries"])
            kinds[kind] += len(ask["queries"])
            number += 1
            left = [sum(call[i] if i < len(call) else 0 for call in calls) for i in range(5)]
            print(f"{number} cases, {done} queries, {time.time() - begun:.0f} s, left {left}", flush=True)
    print(dict(kinds))


if __name__ == "__main__":
    main()
