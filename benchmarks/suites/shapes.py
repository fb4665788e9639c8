"""The named problems of the benchmarks and the arrays that every contender gets.

A shape is a source of vectors, the sizes, and whether half of each pool are near-duplicates. Queries are rows of the
source held out of the corpus, so that no query finds itself; pools are the P rows of largest cosine, best first, as a
retriever returns them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import data
from ragsys_kernels._base import arrays as _arrays

SOURCES = {"minilm": "MiniLM", "glove": "GloVe", "synthetic": "synthetic"}  # and how tables call them
DTYPES = tuple(dtype for dtype in _arrays.CORPUS_STORAGE if dtype != "binary")  # signs are other vectors
OF_16_BITS = ("float16", "bfloat16")
LAMBDAS = (0.5, 0.75)

HELD_OUT = 2_000  # queries; longer streams take them again and again
CALL = 10_000  # most queries of one call: longer streams are cut
NOISE = 0.1  # how far a near-duplicate is moved before it is scaled to a unit vector: cosine about 0.995


@dataclass(frozen=True)
class Shape:
    """``P`` None: the whole corpus is the pool. ``Q``: queries of one call."""

    source: str  # "minilm" | "glove" | "synthetic"
    D: int
    P: int | None
    K: int
    N: int = 19_000
    Q: int = 2_000
    duplicates: bool = False

    def __str__(self) -> str:
        pool = "all" if self.P is None else self.P
        end = "-duplicates" if self.duplicates else ""
        return f"{self.source}-N{self.N}-D{self.D}-P{pool}-K{self.K}-Q{self.Q}{end}"

    def small(self) -> Shape:
        """Return the same problem on few synthetic vectors, for a run that only shows that everything works."""
        return replace(
            self,
            source="synthetic",
            N=400,
            D=min(self.D, 24),
            P=self.P and min(self.P, 40),
            K=min(self.K, 4),
            Q=min(self.Q, 64),
        )


def _pools(*sizes: tuple[int, int], dims: tuple[int, ...], **options: int) -> list[Shape]:
    return [Shape("minilm", D, P, K, **options) for P, K in sizes for D in dims]


POOLS = _pools((20, 4), (100, 10), (1000, 10), dims=(384, 768))
DUPLICATES = [
    replace(shape, N=2 * shape.N, duplicates=True)
    for shape in _pools((100, 10), dims=(384, 768)) + _pools((1000, 10), dims=(384,))
]
OTHER_POOLS = [
    *_pools((100, 6), (100, 20), (1000, 20), dims=(384,)),
    *_pools((100, 10), dims=(1536,)),
    Shape("glove", 50, 100, 10, N=100_000),
]
MMR = [
    *((shape, lambda_d) for shape in POOLS + DUPLICATES for lambda_d in LAMBDAS),
    *((shape, 0.75) for shape in OTHER_POOLS),
]
RULES = _pools((100, 10), (1000, 10), dims=(384,))
# A rule, the options that make it a strategy of pyversity's, and the strategy; pyversity's λ.
STRATEGIES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("msd", {}, "msd"),
    ("dpp", {}, "dpp"),
    ("ssd", {}, "ssd"),
    ("coverage", {"kind": "cover"}, "cover"),
)
STRATEGY_LAMBDA = 0.5
WHOLE = [
    (replace(corpus, K=K), lambda_d)
    for corpus in (Shape("minilm", 384, None, 0, Q=256), Shape("glove", 50, None, 0, N=100_000, Q=256))
    for lambda_d, K in ((0.75, 6), (0.5, 10))
]
SEARCH = [replace(shape, K=n) for shape, lambda_d in WHOLE if lambda_d == 0.75 for n in (10, 100)]
ONE_QUERY = _pools((20, 4), dims=(384, 768), Q=1)
# The cost of a peer's call does not depend on the vectors: these need no data.
ONE_CALL = [Shape("synthetic", 384, 20, 4), Shape("synthetic", 384, 100, 10)]
THREADS = _pools((100, 10), dims=(384, 768), Q=CALL)
# How time grows: one size at a time (bench_scaling.py), and what the others are meanwhile.
AXES = {
    "pool size P": ("P", {"N": 19_000, "D": 384, "K": 10, "Q": 2_000}),
    "picks K": ("K", {"N": 19_000, "D": 384, "P": 100, "Q": 2_000}),
    "dimensions D": ("D", {"N": 19_000, "P": 100, "K": 10, "Q": 2_000}),
    "rows N of the whole corpus, MiniLM, K = 6": ("N", {"D": 384, "P": None, "K": 6, "Q": 256}),
    "rows N of the whole corpus, GloVe, K = 6": ("N", {"D": 50, "P": None, "K": 6, "Q": 256}),
    "queries Q": ("Q", {"N": 19_000, "D": 384, "P": 100, "K": 10}),
}


class Problem:
    """The arrays of a shape: unit float32 rows and queries, candidate ids (int64, as FAISS returns), their cosines."""

    dtype = "float32"

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        base = (shape.source, shape.D, shape.N, shape.duplicates)
        self.rows, queries = _corpus(*base)
        index = np.arange(max(HELD_OUT, min(shape.Q, CALL))) % len(queries)
        self.queries = queries[index]
        self.candidates = self.relevance = None
        if shape.P is not None:
            candidates, relevance = _nearest(*base, shape.P if shape.P > 1000 else 1000)
            if shape.duplicates:
                candidates, relevance = _with_duplicates(candidates, self.rows, queries, shape.P)
            self.candidates = np.ascontiguousarray(candidates[index, : shape.P])
            self.relevance = np.ascontiguousarray(relevance[index, : shape.P])

    def corpus(self, dtype: str = "float32") -> rk.Corpus:
        shape = self.shape
        return _stored(shape.source, shape.D, shape.N, shape.duplicates, dtype)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _source(name: str, D: int, count: int) -> np.ndarray:
    """Return at least ``count`` vectors of a source in D dimensions, by a fixed random projection if it has others."""
    if name == "synthetic":
        rng = np.random.default_rng(1)
        vectors = rng.standard_normal((50, D))[rng.integers(0, 50, count)] + rng.standard_normal((count, D))
    else:
        vectors = data.glove(count) if name == "glove" else data.minilm()
    if len(vectors) < count:
        raise ValueError(f"{name} has {len(vectors)} vectors, the shape needs {count}")
    if vectors.shape[1] != D:
        vectors = vectors @ np.random.default_rng(2).standard_normal((vectors.shape[1], D), np.float32)
    return vectors


@lru_cache(maxsize=4)
def _corpus(source: str, D: int, N: int, duplicates: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return corpus and held-out queries; with ``duplicates`` row i + N/2 is row i, moved a little."""
    real = N // 2 if duplicates else N
    held_out = 64 if source == "synthetic" else HELD_OUT
    vectors = _unit(_source(source, D, real + held_out))
    vectors = vectors[np.random.default_rng(3).permutation(len(vectors))]
    queries, rows = vectors[:held_out], vectors[held_out : held_out + real]
    if duplicates:
        moves = _unit(np.random.default_rng(4).standard_normal(rows.shape, np.float32))
        rows = np.concatenate([rows, _unit(rows + np.float32(NOISE) * moves)])
    return rows, queries


@lru_cache(maxsize=4)
def _nearest(source: str, D: int, N: int, duplicates: bool, P: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each query the P real rows of largest cosine, best first."""
    rows, queries = _corpus(source, D, N, duplicates)
    real = rows[: N // 2 if duplicates else N]
    P = min(P, len(real))
    found = []
    for begin in range(0, len(queries), 100):
        cosines = queries[begin : begin + 100] @ real.T
        top = np.argpartition(-cosines, P - 1, axis=1)[:, :P]
        best = np.argsort(-np.take_along_axis(cosines, top, 1), axis=1, kind="stable")
        top = np.take_along_axis(top, best, 1)
        found.append((top, np.take_along_axis(cosines, top, 1)))
    candidates, cosines = (np.concatenate(part) for part in zip(*found, strict=True))
    return candidates, cosines


def _with_duplicates(
    candidates: np.ndarray, rows: np.ndarray, queries: np.ndarray, P: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return pools of the P/2 nearest rows and a moved copy of each."""
    originals = candidates[:, : P // 2]
    pools = np.concatenate([originals, originals + len(rows) // 2], axis=1)
    cosines = np.stack([rows[pool] @ query for pool, query in zip(pools, queries, strict=True)])
    best = np.argsort(-cosines, axis=1, kind="stable")
    return np.take_along_axis(pools, best, 1), np.take_along_axis(cosines, best, 1)


@lru_cache(maxsize=8)
def _stored(source: str, D: int, N: int, duplicates: bool, dtype: str) -> rk.Corpus:
    return rk.Corpus(_corpus(source, D, N, duplicates)[0], dtype=dtype)
