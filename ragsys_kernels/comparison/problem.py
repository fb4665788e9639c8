"""What all methods choose from: queries, their pools, and what is known of both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ragsys_kernels as rk

from .._base.checks import count, floats, shown
from .._base.types import NDArray as Array
from .._base.warn import muted
from .._info import active
from ..selection.problem import unit
from .qrels import Judged, Judgement, placed, relevant_queries
from .settings import OP

_BLOCK_BYTES = 1 << 26  # of the vectors of pools held at a time


@dataclass(frozen=True)
class Problem:
    """Queries with their pools, the same for all methods."""

    corpus: rk.Corpus
    queries: Array  # (Q, D) float32
    numbers: Array  # (Q,) int64, among the queries that were given
    query_ids: list[str]
    candidates: Array  # (Q, P) int64, padded with -1
    outside: Array | None  # (Q,) float32: what no row outside of the pool exceeds; None for pools of another retriever
    k: int
    lambda_b: float
    seed: int
    num_threads: int
    judged: Judged | None

    @property
    def biased(self) -> bool:
        return self.corpus.bias is not None

    def of(self, some: Array) -> Problem:
        """Return the problem of some of the queries, each as often as it is named."""
        return replace(
            self,
            queries=self.queries[some],
            numbers=self.numbers[some],
            query_ids=[self.query_ids[q] for q in some.tolist()],
            candidates=self.candidates[some],
            outside=None if self.outside is None else self.outside[some],
            judged=None if self.judged is None else self.judged.of(some),
        )

    def with_pools(self, candidates: Array) -> Problem:
        """Return the problem with other pools."""
        return replace(self, candidates=np.ascontiguousarray(candidates), outside=None)

    def vectors(self, rows: Array) -> Array:
        """Return unit vectors of rows of the corpus, in float32 or float64."""
        if self.corpus.metric == "cosine" and self.corpus.norm == "as_given" and self.corpus.dtype == "float32":
            return np.asarray(self.corpus.data[rows])
        found = self.corpus.vectors(rows.ravel())
        return (found if self.corpus.metric == "cosine" else unit(found)).reshape(*rows.shape, -1)

    def pools(self) -> Iterator[tuple[slice, Array, Array]]:
        """Yield blocks of queries: which, the unit vectors of their pools (B, P, D), and which of these are real."""
        row = self.candidates.shape[1] * self.corpus.dims * 8
        step = max(1, _BLOCK_BYTES // max(1, row))
        for begin in range(0, len(self.queries), step):
            part = slice(begin, begin + step)
            ids = self.candidates[part]
            yield part, self.vectors(np.maximum(ids, 0)), ids >= 0

    def described(self) -> dict[str, Any]:
        """Return all that the results depend on but the methods; large things by a digest of their content."""
        rows = np.unique(self.candidates[self.candidates >= 0])
        arrays = (self.corpus.data, self.corpus.scales, self.corpus.bias)
        parts = [array[rows] for array in arrays if array is not None]
        return {
            "version": rk.__version__,
            "backend": " ".join(active()).strip(),
            "metric": self.corpus.metric,
            "dtype": self.corpus.dtype,
            "k": self.k,
            "pool": self.candidates.shape[1],
            "lambda_b": self.lambda_b,
            "seed": self.seed,
            "threads": self.num_threads,
            "queries": _digest(self.numbers, self.queries),
            "pools": _digest(self.candidates, *(() if self.outside is None else (self.outside,))),
            "vectors and bias of the pools": _digest(*parts),
            "qrels": None if self.judged is None else _digest(*self.judged[:4]),
        }


def prepare(
    corpus: Any,
    queries: Any,
    *,
    candidates: Any,
    judgements: list[Judgement] | None,
    query_ids: Any,
    k: Any,
    pool: Any,
    lambda_b: float,
    sample: Any,
    seed: Any,
    num_threads: int,
) -> Problem:
    """Draw the queries and retrieve their pools; see `compare`."""
    if not isinstance(corpus, rk.Corpus):
        corpus = rk.Corpus(corpus)
    if corpus.device != "cpu":
        raise ValueError(f"{OP}: corpus must be on the host, got one on {corpus.device}")
    k = count(OP, "k", k)
    vectors = floats(OP, "queries", queries)
    if vectors.ndim != 2 or vectors.shape[1] != corpus.dims or not len(vectors):
        raise ValueError(f"{OP}: queries must have shape (Q, {corpus.dims}), Q at least 1, got {vectors.shape}")
    names = [str(q) for q in range(len(vectors))] if query_ids is None else [str(name) for name in query_ids]
    if len(names) != len(vectors) or len(set(names)) != len(names):
        got = f"{len(names)}, {len(set(names))} different"
        raise ValueError(f"{OP}: query_ids must be {len(vectors)} different names, got {got}")
    numbers = _drawn(names, judgements, sample, seed)
    chosen = np.ascontiguousarray(vectors[numbers], np.float32)
    outside = None
    if candidates is None:
        live = max(1, corpus.num_live)
        size = min(100 if pool is None else count(OP, "pool", pool), live)
        # One row more than the pool: nothing outside of the pool is worth more than it.
        found = corpus.search(chosen, min(size + 1, live), lambda_b=lambda_b, index=False, num_threads=num_threads)
        pools = np.ascontiguousarray(found.indices[:, :size])
        past = found.scores[:, size] if size < live else np.full(len(chosen), -np.inf, np.float32)
        outside = np.ascontiguousarray(past)
    else:
        if pool is not None:
            raise ValueError(f"{OP}: pool must be left out when candidates are given, got {shown(pool)}")
        pools = np.asarray(candidates)
        if pools.ndim != 2 or len(pools) != len(vectors) or pools.dtype not in (np.int32, np.int64):
            raise ValueError(
                f"{OP}: candidates must be int32 or int64 of shape ({len(vectors)}, P), got {pools.dtype} of shape "
                f"{pools.shape}"
            )
        if (bad := (pools < -1) | (pools >= len(corpus))).any():
            query = int(np.argmax(bad.any(axis=1)))
            raise ValueError(
                f"{OP}: candidates must be -1 or rows of the corpus, below N = {len(corpus)}, got "
                f"{pools[query][bad[query]][0]} for query {query}"
            )
        pools = np.ascontiguousarray(pools[numbers], np.int64)
    if pools.shape[1] <= k:
        raise ValueError(f"{OP}: pool must be above k = {k}, or its rows only get another order, got {pools.shape[1]}")
    ids = [names[q] for q in numbers.tolist()]
    judged = None if judgements is None else placed(judgements, ids, corpus)
    return Problem(corpus, chosen, numbers, ids, pools, outside, k, lambda_b, seed, num_threads, judged)


def _drawn(names: list[str], judgements: list[Judgement] | None, sample: Any, seed: int) -> Array:
    """Draw queries, in ascending order; with judgements, of those that have a relevant document."""
    among = np.arange(len(names))
    if judgements is not None:
        wanted = relevant_queries(judgements)
        among = np.array([q for q, name in enumerate(names) if name in wanted], np.int64)
        if not len(among):
            raise ValueError(
                f"{OP}: qrels must have a relevant document for a query of that id, got none; the first query is "
                f"{names[0]!r}, the first that is judged {judgements[0].query!r}"
            )
    size = len(among) if sample is None else min(count(OP, "sample", sample), len(among))
    return np.sort(np.random.default_rng(seed).permutation(among)[:size])


def select(problem: Problem, part: slice, rule: str, arguments: dict[str, Any], *, whole: bool = False) -> rk.Selection:
    """Let a rule choose for some of the queries, out of their pools or of the whole corpus."""
    given = dict(arguments)
    if "lambda_b" in rk.METHODS[rule].parameters:
        given.setdefault("lambda_b", problem.lambda_b)
    with muted(rk.PoolSizeWarning):  # a pool that is padded
        picks: rk.Selection = getattr(rk, rule)(
            problem.queries[part],
            problem.corpus,
            problem.k,
            candidates=None if whole else problem.candidates[part],
            num_threads=problem.num_threads,
            **given,
        )
    return picks


def random_picks(problem: Problem, part: slice) -> Array:
    """Draw k rows of each pool; a query's are the same whatever is drawn with it."""
    found = np.full((len(problem.queries[part]), problem.k), -1, np.int64)
    for place, number in enumerate(problem.numbers[part].tolist()):
        pool = problem.candidates[part][place]
        pool = pool[pool >= 0]
        drawn = np.random.default_rng((problem.seed, number)).permutation(pool)[: problem.k]
        found[place, : len(drawn)] = drawn
    return found


def _digest(*arrays: Array) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
