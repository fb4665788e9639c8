"""What one query may pick from, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import validate
from ..problem import Problem, divide, unit

# What is left of an item is no longer told from rounding if it is at most this share of what the item began with.
ROUNDING = 1e-5
# Of unit vectors in float32 a squared length is no further from 1. It counts as 1, or ties would go by its rounding.
UNIT_ROUNDING = 2.0**-19


@dataclass
class Pool:
    """The items that a query may pick, n of them, then the S initial items."""

    rows: np.ndarray  # (n,) rows
    positions: np.ndarray  # (n,) places in the pool as given
    e: np.ndarray  # (n, D) vectors
    initial: np.ndarray  # (S,) rows picked before the first
    e_initial: np.ndarray
    r: np.ndarray  # (n,) relevance
    v: np.ndarray  # (n,) relevance with bias
    query: np.ndarray | None  # of unit length, but for rules that take it as given with metric "dot"
    given: Callable[[np.ndarray, int], np.ndarray] | None = None  # similarities of items to one, without vectors
    steps: int = 0  # D of vectors of signs, whose products are multiples of 1 / D
    unit: bool = False  # the vectors are unit vectors, as exactly as they are stored

    def to(self, j: int) -> np.ndarray:
        """Return the similarity of every item, (n + S,), to item j."""
        if self.given is None:
            return products(self.items, self.items[j], self.steps)
        return self.given(np.arange(len(self.rows) + len(self.initial)), j)

    def own(self) -> np.ndarray:
        """Return the similarity of every item to itself, (n + S,)."""
        if self.given is None:
            own = np.einsum("nd,nd->n", self.items, self.items)
            return np.where(self.unit & (np.abs(own - 1) <= UNIT_ROUNDING), 1.0, own)
        items = np.arange(len(self.rows) + len(self.initial))
        return np.array([self.given(items[[j]], j)[0] for j in items.tolist()])

    @property
    def items(self) -> np.ndarray:
        """The vectors of all, (n + S, D)."""
        return np.concatenate([self.e, self.e_initial])

    @property
    def z(self) -> np.ndarray:
        """How many standard deviations v is above its mean; 0 where all are the same.

        To the deviation comes float32's rounding of the largest |v|, so that rounding alone makes no great differences.
        """
        if not len(self.v) or self.v.min() == self.v.max():
            return np.zeros(len(self.v))
        rounding = np.finfo(np.float32).eps * np.abs(self.v).max()
        return np.asarray((self.v - self.v.mean()) / (self.v.std() + rounding))


def products(rows: np.ndarray, vector: np.ndarray, steps: int = 0) -> np.ndarray:
    """Return rows @ vector. Equal rows get equal bits and tie; a BLAS may round a row by its place in the matrix.

    With ``steps`` they are multiples of its inverse, so that all that are equal tie.
    """
    found: np.ndarray = np.einsum("nd,d->n", rows, vector)
    return np.rint(found * steps) / steps if steps else found


def in_range(problem: Problem, q: int, *values: np.ndarray) -> None:
    """Raise if a value leaves float32, the type of results and of the kernels' products."""
    if any((np.abs(x) > np.finfo(np.float32).max).any() for x in values):
        validate.overflow(problem, q)


def pool_of(problem: Problem, q: int, near: np.ndarray | None = None) -> Pool:
    """Return what query q may pick from; for a search, only the rows that are near."""
    limits = problem.constraints
    if near is None:
        validate.values(problem, q)
        rows, positions = problem.eligible(q)
    else:
        rows = near if limits.query_groups is None else near[limits.groups[near] != limits.query_groups[q]]
        if limits.filter is not None:
            rows = rows[limits.filter.keeps(q, rows)]
        positions = rows
    initial = problem.initial_rows(q)
    e = problem.rows.vectors(rows)
    steps = problem.rows.dims if problem.rows.dtype == "binary" else 0
    query = None
    if problem.queries is not None:
        asked = problem.query_vectors(q)
        query = unit(asked) if problem.unit_queries else asked.astype(np.float64)
    if problem.relevance is not None:
        r = problem.relevance[q, positions].astype(np.float64)
    else:
        assert query is not None
        r = products(e, query, steps if problem.queries.dtype == np.uint8 else 0)
        if problem.op == "vrsd":
            r = divide(r, np.linalg.norm(e, axis=1))
    if limits.min_relevance is not None and near is None:
        fit = r.astype(np.float32) >= limits.min_relevance[q]
        rows, positions, e, r = rows[fit], positions[fit], e[fit], r[fit]
    bias = problem.item_bias(q, rows, positions)
    lambda_b = float(problem.lambda_b[q])
    v = r if bias is None else lambda_b * r + (1 - lambda_b) * bias
    in_range(problem, q, r, v)
    given = None
    if problem.rows.similarity is not None:
        at = np.concatenate([positions, initial - q * problem.pool_stride])
        given = lambda some, j: given_row(problem, q, at[some], int(at[j]))  # noqa: E731
    e_initial, units = problem.rows.vectors(initial), problem.rows.metric == "cosine"
    return Pool(rows, positions, e, initial, e_initial, r, v, query, given, steps, units)


def given_row(problem: Problem, q: int, positions: np.ndarray, j: int) -> np.ndarray:
    """Return the given similarities of some items of a query, by their positions, to that of position j."""
    found: np.ndarray = (
        problem.rows.similarity.of(problem.op, q, positions, j)
        if hasattr(problem.rows.similarity, "of")
        else problem.rows.similarity[q, j, positions].astype(np.float64)
    )
    if not (finite := np.isfinite(found)).all():
        at = int(positions[np.argmin(finite)])
        raise ValueError(
            f"{problem.op}: similarity must be finite, got NaN or inf for query {q}, of position {at} with {j}"
        )
    return found
