"""A checked selection problem, which is the one argument of every backend, and the results of selection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import _arrays
from .._types import Array
from .constraints import NONE, Constraints

_Answer = TypeVar("_Answer", bound="_Answers")


class _Answers:
    """A named tuple that also says which queries failed (``on_error="skip"``)."""

    errors: dict[int, str] | None = None
    cost: Any = None
    lambda_d: Any = None

    def with_errors(self: _Answer, errors: dict[int, str] | None) -> _Answer:
        self.errors = errors
        return self

    def with_attributes(self: _Answer, other: _Answers) -> _Answer:
        """Take over what is not an item of the tuple."""
        self.errors, self.cost, self.lambda_d = other.errors, other.cost, other.lambda_d
        return self


class _SelectionFields(NamedTuple):
    indices: Array
    scores: Array
    relevance: Array
    redundancy: Array
    lengths: Array


class Selection(_SelectionFields, _Answers):
    """The picks of every query, in the order they were made: a tuple of five arrays.

    Attributes
    ----------
    indices : (Q, K) int64
        Rows of the corpus; positions in the pool for dense pools. -1 where there was nothing left to pick.
    scores : (Q, K) float32
        The value of each pick when it was made. MMR, MSD: w, for the first pick λ_d·v. VRSD: cosine of the query with
        the sum after the pick. DPP: d, by which the determinant grows. SSD, coverage: the value. SIFT: the variance
        left at the query after the pick. -inf where there is no pick.
    relevance : (Q, K) float32
        v, the relevance with bias; VRSD, SIFT: the relevance. NaN where there is no pick.
    redundancy : (Q, K) float32
        MMR, and any other rule but MSD with ``max_similarity``: the largest similarity to the earlier picks. MSD: the
        mean similarity to them. 0 for the first pick, else NaN.
    lengths : (Q,) int32
        How many picks of each row are real.
    errors : dict of int to str, or None
        Not an item of the tuple, nor are the next two. With ``on_error="skip"`` the reason of each query that could not
        be answered, else None.
    cost : (Q,) float64, or None
        What the picks of each query cost together, with a ``budget``.
    lambda_d : (Q,) float32, or None
        The weights that ``lambda_d="adagres"`` came to.
    """

    __module__ = "ragsys_kernels"  # where pickles look for it, whichever file it is in

    def _replace(self, /, **fields: Any) -> Selection:
        return super()._replace(**fields).with_attributes(self)

    @classmethod
    def empty(cls, num_queries: int, k: int) -> Selection:
        shape = (num_queries, k)
        return cls(
            np.full(shape, -1, np.int64),
            np.full(shape, -np.inf, np.float32),
            np.full(shape, np.nan, np.float32),
            np.full(shape, np.nan, np.float32),
            np.zeros(num_queries, np.int32),
        )


class _SearchFields(NamedTuple):
    indices: Array
    scores: Array


class SearchResult(_SearchFields, _Answers):
    """The nearest rows of every query, best first: a tuple of two arrays.

    Attributes
    ----------
    indices : (Q, n) int64
        Rows of the corpus; -1 where there are no more.
    scores : (Q, n) float32
        v, the relevance with bias; -inf where there is no row.
    errors : dict of int to str, or None
        As in `Selection`.
    """

    __module__ = "ragsys_kernels"

    def _replace(self, /, **fields: Any) -> SearchResult:
        return super()._replace(**fields).with_attributes(self)


@dataclass(frozen=True)
class Rows:
    """Embeddings as they are stored, and how a stored row becomes the vector of the formulas.

    The arrays are NumPy's, or on a device torch's or CuPy's. bfloat16 is stored as its bits in uint16, by torch as its
    own type.
    """

    data: Any  # (N, D) float32 | float16 | uint16 (bfloat16 bits) | int8, last axis contiguous
    dtype: str  # one of _arrays.CORPUS_STORAGE
    metric: str  # "cosine" | "dot"
    norm: str  # "as_given" | "scaled": row * scales[row] | "computed": row / |row|
    scales: Any = None  # (N,) float32
    bias: Any = None  # (N,) float32
    groups: Any = None  # (N,) int64
    costs: Any = None  # (N,) float64
    max_norm: float | None = None  # the largest norm of a vector of the formulas; None: the rows are not checked yet
    codes: Any = None  # (N, stride) uint8, csrc/cpu/simd/codes.inl; on a device int8, codes.py
    code_error: float = 0.0  # the largest error of a code row

    def vectors(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the vectors of the formulas in float64."""
        vectors = _arrays.widen(self.data[rows], self.dtype).astype(np.float64)
        if self.norm == "scaled":
            assert self.scales is not None
            vectors *= self.scales[rows, None]
        elif self.norm == "computed":
            vectors = unit(vectors)
        return vectors


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return rows divided by their norms, in float64; a zero row stays zero."""
    vectors = np.asarray(vectors, np.float64)
    # Scaled by the largest element first, so that squares neither overflow nor vanish.
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    vectors = divide(vectors, largest)
    norms = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    return divide(vectors, norms)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b, and 0 where b is not positive."""
    quotient: np.ndarray = np.divide(a, b, out=np.zeros_like(a), where=b > 0)
    return quotient


@dataclass(slots=True)  # frozen would take 3 us of every call
class Problem:
    """The checked arguments of one call, as arrays of one library in one place (`_arrays.Place`).

    Arrays on a device have the element types and shapes below too. The methods need host arrays.
    """

    op: str
    rows: Rows
    num_queries: int
    pool: int  # P
    k: int  # the largest of ks
    pool_stride: int  # P for dense pools, else 0
    queries: Any  # (Q, D) float32
    unit_queries: bool
    lambda_d: Any  # (Q,) float32
    lambda_b: Any  # (Q,) float32
    candidates: Any = None  # (Q, P) int32 | int64, -1: padding
    relevance: Any = None  # (Q, P) float32
    bias: Any = None  # (N,) or (Q, P) float32
    ks: Any = None  # (Q,) int64
    constraints: Constraints = NONE
    options: Any = None  # what belongs to the rule alone: one of options.py

    @property
    def num_ids(self) -> int:
        """One more than the largest id of a query."""
        return self.pool_stride or len(self.rows.data)

    def take(self, queries: np.ndarray | slice) -> Problem:
        """Return the problem of some of the queries."""
        names = ("queries", "candidates", "relevance", "lambda_d", "lambda_b", "ks")
        changes = {name: array[queries] for name in names if (array := getattr(self, name)) is not None}
        if self.bias is not None and self.bias.ndim == 2:
            changes["bias"] = self.bias[queries]
        dense = None
        if self.pool_stride:
            dense = self.num_queries, self.pool_stride
            pools = self.rows.data.reshape(*dense, -1)[queries]
            changes["rows"] = replace(self.rows, data=pools.reshape(-1, pools.shape[2]))
        if self.options is not None:
            changes["options"] = self.options.take(queries)
        taken = self.constraints.take(queries, dense)
        return replace(self, num_queries=len(changes["lambda_d"]), constraints=taken, **changes)

    def eligible(self, q: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows and positions of the items that query q may pick, in order of position."""
        limits = self.constraints
        ids = np.arange(self.pool) if self.candidates is None else self.candidates[q].astype(np.int64)
        rows = ids + q * self.pool_stride
        keep = ids >= 0
        if limits.filter is not None:
            keep &= limits.filter.keeps(q, ids)
        if limits.initial is not None:
            keep &= ~np.isin(ids, limits.initial[q])
        if limits.query_groups is not None:
            keep[keep] = limits.groups[rows[keep]] != limits.query_groups[q]
        return rows[keep], np.flatnonzero(keep)

    def initial_rows(self, q: int) -> np.ndarray:
        """Return the rows that count as picked before query q picks."""
        initial = self.constraints.initial
        if initial is None:
            return np.zeros(0, np.int64)
        ids: np.ndarray = initial[q].astype(np.int64)
        return np.asarray(ids[ids >= 0] + q * self.pool_stride)

    def item_bias(self, q: int, rows: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
        """Return the bias of some items in float64, or None without a bias."""
        if self.bias is None:
            return None
        bias: np.ndarray = self.bias[rows] if self.bias.ndim == 1 else self.bias[q, positions]
        return bias.astype(np.float64)
