"""What is measured of the picks of a method, one value a query."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from .._base.types import NDArray as Array
from ..metrics import near_duplicates, pairwise_cosine, sum_cosine
from ..selection.problem import compacted, unit
from .problem import Problem
from .settings import NEAR

# A loss or gain below it is rounding of float32.
ROUNDING = 1e-6


class Measure(NamedTuple):
    """A column of the table."""

    name: str
    label: str
    better: int  # 1: more is better, -1: less, 0: neither
    form: str
    about: str

    def shown(self, value: float, *, signed: bool = False) -> str:
        if np.isnan(value):
            return "–"
        text = format(value, ("+" if signed else "") + self.form)
        return text.replace("-", "−") if set(text) & set("123456789") else text.lstrip("+-")


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("relevance", "relevance", 1, ".3f", "mean cosine of the picks with the query (of a corpus of dot "
                "products: mean product)"),
        Measure("bias", "bias", 1, ".3f", "mean bias of the picks: their quality"),
        Measure("similarity", "between picks", -1, ".3f", "mean cosine between two picks; less is more diverse"),
        Measure("sum", "of the sum", 1, ".3f", "cosine of the query with the sum of the picks"),
        Measure("coverage", "coverage", 1, ".3f", "mean, over the items of the pool, of the cosine with the nearest "
                "pick"),
        Measure("near_duplicates", "near-duplicates", -1, ".1%", f"share of the picks that have a cosine above {NEAR} "
                "with an earlier one"),
        Measure("ndcg", "nDCG", 1, ".3f", "gain of the picks by the judgements, discounted by rank, as a share of the "
                "most that is possible"),
        Measure("alpha_ndcg", "α-nDCG", 1, ".3f", "the same over subtopics, where a subtopic that was covered before "
                "counts half"),
        Measure("recall", "recall", 1, ".3f", "share of the relevant documents that were picked"),
        Measure("mrr", "MRR", 1, ".3f", "one over the rank of the first relevant pick"),
        Measure("overlap", "of top-k", 0, ".0%", "share of the picks that top-k has too"),
        Measure("certified", "certified", 1, ".0%", "share of the queries whose picks are proven to be those out of "
                "the whole corpus"),
        Measure("picks", "picks", 0, ".2f", "number of picks"),
        Measure("time", "µs", -1, ".1f", "time of a query in a batch, in microseconds"),
    )
}  # fmt: skip


def measured(problem: Problem, indices: Array, names: Collection[str] = tuple(MEASURES)) -> dict[str, Array]:
    """Return measures of picks (Q, K), each (Q,) float64; NaN where a measure has no value for a query."""
    real = indices >= 0
    rows, compact = compacted(indices)
    vectors = np.asarray(problem.vectors(rows), np.float64)
    ways: dict[str, Callable[[], Array]] = {
        "relevance": lambda: _mean(_relevance(problem, rows, compact), real),
        "similarity": lambda: pairwise_cosine(vectors, compact),
        "sum": lambda: _sum(problem, rows, vectors, compact),
        "coverage": lambda: _coverage(problem, vectors, compact),
        "near_duplicates": lambda: near_duplicates(vectors, compact, threshold=NEAR),
        "picks": lambda: real.sum(axis=1).astype(np.float64),
    }
    if problem.corpus.bias is not None:
        ways["bias"] = lambda: _mean(problem.corpus.bias[np.maximum(indices, 0)], real)
    found = {name: way() for name, way in ways.items() if name in names}
    if problem.judged is not None and {"ndcg", "alpha_ndcg", "recall", "mrr"} & set(names):
        found |= problem.judged.measures(indices)
    return found


def overlap(indices: Array, top: Array) -> Array:
    """Return the share of the picks of each query that are in ``top``, (Q,); NaN without picks."""
    shared = indices[:, :, None] == top[:, None, :]
    return _mean(shared.any(axis=2), indices >= 0)


def _relevance(problem: Problem, rows: Array, compact: Array) -> Array:
    if problem.corpus.metric == "dot":
        vectors, queries = problem.corpus.vectors(rows), problem.queries.astype(np.float64)
    else:
        vectors, queries = np.asarray(problem.vectors(rows), np.float64), unit(problem.queries)
    return np.asarray((vectors[np.maximum(compact, 0)] * queries[:, None]).sum(axis=2))


def _sum(problem: Problem, rows: Array, vectors: Array, compact: Array) -> Array:
    queries = np.asarray(problem.queries, np.float64)
    if problem.corpus.metric == "dot":
        return sum_cosine(queries, problem.corpus.vectors(rows), compact, metric="dot")
    return sum_cosine(queries, vectors, compact)


def _coverage(problem: Problem, vectors: Array, compact: Array) -> Array:
    """`metrics.coverage` with the pool of each query as its aspects, for all queries at once."""
    found = np.zeros(len(compact))
    for part, pools, real in problem.pools():
        picks = vectors[np.maximum(compact[part], 0)].astype(pools.dtype)
        nearest = np.where((compact[part] >= 0)[:, None], pools @ picks.swapaxes(1, 2), 0).max(axis=2, initial=0)
        found[part] = np.where(real, nearest, 0).sum(axis=1) / np.maximum(real.sum(axis=1), 1)
    return found


def _mean(values: Array, real: Array) -> Array:
    """Return the mean of the real values of each row; NaN without one."""
    number = real.sum(axis=1)
    total = np.where(real, values, 0.0).sum(axis=1, dtype=np.float64)
    return np.asarray(np.divide(total, number, out=np.full(len(values), np.nan), where=number > 0))
