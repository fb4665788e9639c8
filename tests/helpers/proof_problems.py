"""Searches of and selections from whole corpora by Triton's kernels, interpreted, held against float64.

`TRITON_INTERPRET=1 python tests/helpers/proof_problems.py --seed 2`

A case is drawn from (seed, number) alone: a corpus, some of its rows made hard to tell apart, and a few queries. Sizes
of tiles and pools are small, so that few rows are many. Every other case hides the second pick of each query from its
first pool, so that what is drafted first is wrong. `behind` makes problems that the bound only just gets right.
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
import torch

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.selection import validate
from ragsys_kernels.selection.triton import bit_search as triton_filter
from ragsys_kernels.selection.triton import dense as triton_dense
from ragsys_kernels.selection.triton import proof as triton_proof
from ragsys_kernels.selection.triton.launch import Tile

# Of which more than 2,000 queries are drafted; those of which few rows may be picked go another way.
CASES = 140
KINDS = ("random", "clusters", "repeated", "near ties", "zeros", "lengths", "integers")
SMALL = {
    triton_filter: {"ROWS": 32, "EACH": 32, "best_tile": lambda n: Tile(16, 32, 1, 4, 2)},
    triton_proof: {
        "POOL": 24,
        "SLOTS": 32,
        "FIRST": 8,
        "LEAST_SHARE": 1,
        "ROUNDS": 3,
        "HOPELESS": 1,  # of so few rows, most are contenders
    },
    triton_dense: {"PROGRAMS": 3},
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


def draw(seed, number, Q=16):
    """The corpus, what is asked of it by Q queries, and its kind."""
    rng = np.random.default_rng([seed, number])

    def sometimes(share=0.25):
        return bool(rng.random() < share)

    kind = str(rng.choice(KINDS))
    N, D = int(rng.integers(260, 420)), int(rng.choice((8, 16, 24, 33)))
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


def stored(x, dtype):
    """Vectors as a corpus of that type keeps them."""
    return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype)).double().numpy()


def _unit(rng, D):
    """A query, of float32."""
    x = rng.standard_normal(D)
    return (x / np.linalg.norm(x)).astype(np.float32).astype(np.float64)


def _losing(rng, dtype, vector, worth, sign=1, share=1.0):
    """A row a little better than ``worth`` by a vector, whose product in 16 bits loses a share of what one can.

    Sign -1: a little worse, and it gains. None where rows of the type have none.
    """
    lost = sign * (vector - stored(vector, dtype))
    size = np.linalg.norm(lost)
    tries = lost / size + 0.01 * rng.standard_normal((4000, len(vector)))
    wanted = (worth + sign * rng.uniform(0, 0.02 * size, 4000)) / share
    tries += np.outer((wanted - tries @ vector) / (vector @ vector), vector)
    tries = stored(share * tries / np.maximum(1, np.linalg.norm(tries, axis=1))[:, None], dtype)
    ahead, loss = sign * (tries @ vector - worth), tries @ lost
    loss[(ahead < 2e-6) | (ahead > 0.02 * size) | (np.linalg.norm(tries, axis=1) > share)] = 0
    return tries[(loss - np.abs(ahead)).argmax()] if loss.max() > 0.97 * share * size else None


def behind(rng, dtype, N=260, D=16):
    """A problem, and its second pick: the row of a better value than another's whose product in 16 bits is smaller.

    The difference is nearly all that the bound allows. All other rows are of negative value. For float32 it is what
    rows lose in 16 bits, else what the column does.
    """
    if dtype == "float32":
        sign, z = rng.choice((-1.0, 1.0), D), rng.permutation(np.repeat((-1.0, 1.0), D // 2))
        column, first = 0.25 * sign, 2.0**-9 * sign
        best = 0.25 * sign * z * (1 + 2.0**-10 + 0.98 * 2.0**-11 * z)  # of which the last bits are lost
        drafted = stored(sign * (best @ column - 3e-6) / (0.25 * D), dtype)
        query = 2 * column + first
    else:
        best = None
        while best is None:
            query = _unit(rng, D)
            first, drafted = stored(0.05 * query, dtype), stored(0.04 * query, dtype)
            column = 0.5 * query - 0.5 * first
            best = _losing(rng, dtype, column, drafted @ column)
    rest = rng.standard_normal((4 * N, D))
    rest /= -np.sign(rest @ column)[:, None] * np.linalg.norm(rest, axis=1)[:, None]
    rest = rest[(rest @ column < -0.02) & (rest @ query < 0)][: N - 3]
    order = rng.permutation(N)
    rows = np.concatenate([[best, drafted, first], rest])[order]
    corpus = rk.Corpus(rows.astype(np.float32), metric="dot", dtype=dtype)
    ask = {"queries": query[None].astype(np.float32), "embeddings": corpus, "k": 2, "metric": "dot", "lambda_d": 0.5}
    return ask, int(np.flatnonzero(order == 0)[0])


def search_behind(rng, dtype, N=80, D=16):
    """A search for one row, and that row: its product in 16 bits loses what one can, that of row 0 gains nearly that.

    Row 0 is of the sample, and by its value alone no row is missing: it is above the bar that it gives.
    """
    best = other = None
    while best is None or other is None:
        query = _unit(rng, D)
        best, other = (_losing(rng, dtype, query, 0.04, *how) for how in ((1,), (-1, 0.91)))
    rest = rng.standard_normal((4 * N, D))
    rest *= -np.sign(rest @ query)[:, None] / np.linalg.norm(rest, axis=1)[:, None]
    order = np.append(0, 1 + rng.permutation(N - 1))
    rows = np.concatenate([[other, best], rest])[order]
    corpus = rk.Corpus(rows.astype(np.float32), metric="dot", dtype=dtype)
    problem = validate.selection("search", query[None].astype(np.float32), corpus, 1, k_name="n")
    return problem, int(np.flatnonzero(order == 1)[0])


@contextlib.contextmanager
def hidden(rows):
    """Keep a row of each query out of its first pool."""
    pool = triton_proof._Rounds._pool

    def without(self, draft, *rest):
        pool(self, draft, *rest)
        if draft is None:
            self.pools[self.pools == torch.as_tensor(rows)[:, None]] = -1

    triton_proof._Rounds._pool = without
    try:
        yield
    finally:
        triton_proof._Rounds._pool = pool


def check(ask, hide=False):
    """Hold picks out of a whole corpus against float64."""
    assert triton_proof.fits(validate.selection("mmr", **ask))
    second = np.asarray(rk.mmr(**ask, backend="reference").indices)[:, 1] if hide else np.array([-1])
    with hidden(second):
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
    """Yield a list that gets, of every call, how many queries each check had, and how many none has proven."""
    calls, columns = [], triton_proof._Rounds._columns

    def counting(self, draft, last, before, after):
        columns(self, draft, last, before, after)
        if last is None:
            calls.append([])
        calls[-1].append(int((after or self.left)[1]))

    triton_proof._Rounds._columns = counting
    try:
        yield calls
    finally:
        triton_proof._Rounds._columns = columns


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=CASES)
    options = parser.parse_args()
    make_small(setattr)
    kinds, begun = Counter(), time.time()
    with counted() as calls:
        for number in range(options.first, options.first + options.cases):
            ask, kind = draw(options.seed, number)
            try:
                check(ask, hide=number % 2 == 1)
                check_search(ask)
            except Exception:
                print(f"case {number}, {kind}: {sorted(ask)}, k {ask['k']}")
                raise
            kinds[kind] += 1
            left = [sum(call[i] if i < len(call) else 0 for call in calls) for i in range(5)]
            print(f"case {number}, {time.time() - begun:.0f} s, drafted and then left {left}", flush=True)
    print(dict(kinds))


if __name__ == "__main__":
    main()
