"""A checked selection problem, which is the one argument of every backend, and the results of selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .._base import arrays as _arrays
from .._base.types import Array, ArrayLike
from .constraints import NONE, Constraints

_Answer = TypeVar("_Answer", bound="_Answers")


class _Answers:
    """A named tuple that also says which queries failed (``on_error="skip"``)."""

    errors: dict[int, str] | None = None
    cost: Any = None
    lambda_d: Any = None
    certified: Any = None
    pool_needed: Any = None
    nearest: Any = None
    unmet: Any = None

    def with_errors(self: _Answer, errors: dict[int, str] | None) -> _Answer:
        self.errors = errors
        return self

    def with_attributes(self: _Answer, other: _Answers) -> _Answer:
        """Take over what is not an item of the tuple."""
        vars(self).update(vars(other))
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
        Rows of the corpus; positions in the pool for dense pools. -1 after the last pick.
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
        The number of picks in each row.
    errors : dict of int to str, or None
        An attribute, not an item of the tuple, like those below. With ``on_error="skip"`` the reason of each query that
        could not be answered, else None.
    cost : (Q,) float64, or None
        The total cost of each query's picks, with a ``budget``.
    unmet : list of dict, or None
        With ``min_per_group``: of each query, by how many picks each group is below its minimum; groups that are not do
        not appear. Names are those of the groups. For an integer, groups of the items that the query may pick count,
        also those of too little relevance for ``min_relevance``. Empty for a query that failed.
    lambda_d : (Q,) float32, or None
        The weights computed by ``lambda_d="adagres"``.
    certified : (Q,) bool, or None
        Whether the picks from a pool are proven to be those of the whole corpus, in the same order; None if unknown, as
        without ``outside``. Equal to ``outside <= pool_needed``; False for a query that failed.
    pool_needed : (Q,) float32, or None
        With ``outside``: the largest v that rows outside the pool may have for these picks to be proven. A pool that
        contains all rows with a larger v certifies the picks if it gives the same ones. -inf: only the whole corpus
        certifies them. inf: any pool does. NaN: no pool in this order does, because a pick was tied with a lower row at
        a later position.
    nearest : (Q, K) int32, or None
        With ``nearest=True``: the column of the earlier pick that a pick is most similar to, or -2 - j for the initial
        item in column j. Ties go to the earliest, initial items first. -1: there is none, as for the first pick. The
        similarities are those of MMR's ``redundancy``, of which this is the argument, up to rounding.
    """

    __module__ = "ragsys_kernels"  # where pickles look for it, whichever file it is in

    # What the arrays (Q, K) have where there is no pick, and their types.
    PADDING = ((-1, "int64"), (-np.inf, "float32"), (np.nan, "float32"), (np.nan, "float32"))

    def _replace(self, /, **fields: Any) -> Selection:
        return super()._replace(**fields).with_attributes(self)

    @property
    def columns(self) -> list[Any]:
        """The arrays (Q, K)."""
        return [*self[:-1], *([] if self.nearest is None else [self.nearest])]

    def mapped(self, change: Callable[[Any], Any]) -> Selection:
        """Return the selection with all its arrays changed."""
        made = Selection(*map(change, self))
        for name, values in vars(self).items():
            setattr(made, name, values if values is None or name in ("errors", "unmet") else change(values))
        return made

    @classmethod
    def of_columns(cls, columns: Iterable[Any], lengths: Any) -> Selection:
        """Return the selection of arrays that `columns` may have returned."""
        indices, scores, relevance, redundancy, *nearest = columns
        made = cls(indices, scores, relevance, redundancy, lengths)
        made.nearest = nearest[0] if nearest else None
        return made

    @classmethod
    def empty(cls, num_queries: int, k: int, nearest: bool = False) -> Selection:
        padding = (*cls.PADDING, *[(-1, "int32")] * nearest)
        columns = (np.full((num_queries, k), value, dtype) for value, dtype in padding)
        return cls.of_columns(columns, np.zeros(num_queries, np.int32))

    @classmethod
    def joined(cls, parts: Sequence[Selection]) -> Selection:
        """Return the picks of queries that follow one another, with arrays on the host, as those of one call."""
        if len(parts) == 1:
            return parts[0]
        width = max(part.indices.shape[1] for part in parts)
        padding = (*(value for value, _ in cls.PADDING), -1)
        columns = [
            np.concatenate([
                np.pad(np.asarray(array), ((0, 0), (0, width - array.shape[1])), constant_values=value)
                for array in arrays
            ])
            for value, *arrays in zip(padding, *(part.columns for part in parts), strict=False)  # nearest is optional
        ]  # fmt: skip
        joined = cls.of_columns(columns, np.concatenate([part.lengths for part in parts]))
        for name in ("cost", "lambda_d", "certified", "pool_needed"):
            values = [getattr(part, name) for part in parts]
            if all(each is not None for each in values):
                setattr(joined, name, np.concatenate(values))
        if parts[0].unmet is not None:
            joined.unmet = [each for part in parts for each in part.unmet]
        errors, first = {}, 0
        for part in parts:
            errors.update({first + query: why for query, why in (part.errors or {}).items()})
            first += len(part.lengths)
        return joined.with_errors(errors)


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


class _PathFields(NamedTuple):
    cu_segments: Array
    low: Array
    high: Array
    indices: Array


class SelectionPath(_PathFields):
    """The picks of every query for every weight of relevance, from `mmr_path`: a tuple of four arrays.

    A segment is a range of λ_d with the same picks in the same order. Those of query q are
    ``cu_segments[q] : cu_segments[q + 1]``, in increasing λ_d. A segment has every float64 λ_d from ``low`` to
    ``high``, both included; the next one begins at the float64 after. So each λ_d has one segment, no two segments of a
    query have the same picks, and picks that a tie gives to a single λ_d have ``low == high``.

    Attributes
    ----------
    cu_segments : (Q + 1,) int64
        Where the segments of each query begin, and their number S.
    low, high : (S,) float64
        The least and the largest λ_d of each segment.
    indices : (S, K) int64
        The picks, as in `Selection`; -1 where there was nothing left to pick.
    """

    __module__ = "ragsys_kernels"

    @property
    def num_segments(self) -> Array:
        """How many segments each query has, (Q,) int64."""
        return self.cu_segments[1:] - self.cu_segments[:-1]

    def of(self, query: int) -> SelectionPath:
        """Return the path of one query, a view; a negative number counts from the end."""
        num_queries = len(self.cu_segments) - 1
        if not -num_queries <= query < num_queries:
            raise IndexError(f"SelectionPath.of: query must be below Q = {num_queries}, got {query}")
        begin, end = (int(self.cu_segments[query % num_queries + i]) for i in (0, 1))
        cu_segments = self.cu_segments[:2] - self.cu_segments[:1]
        cu_segments[1] = end - begin
        return SelectionPath(cu_segments, *(field[begin:end] for field in self[1:]))

    def at(self, lambda_d: ArrayLike) -> Array:
        """Return the picks at a weight of relevance, or at one for each query.

        `mmr` rounds its weight to float32: ``path.at(np.float32(0.7))`` are the picks of ``mmr(.., lambda_d=0.7)``.

        Parameters
        ----------
        lambda_d : float or (Q,)
            Within the ``low`` and ``high`` that the path was made for.

        Returns
        -------
        (Q, K) int64
            In the library of the path's arrays.

        Raises
        ------
        ValueError
            A weight outside of the path, or one of another shape.
        """
        op = "SelectionPath.at"
        cu_segments, low, high, indices = (np.asarray(field) for field in self)
        num_queries = len(cu_segments) - 1
        weights = np.asarray(lambda_d, np.float64)
        if weights.shape not in ((), (num_queries,)):
            raise ValueError(f"{op}: lambda_d must be a number or have shape ({num_queries},), got {weights.shape}")
        if num_queries == 0:
            return self.indices
        of_query = np.broadcast_to(weights, num_queries)
        least, most = low[cu_segments[:-1]], high[cu_segments[1:] - 1]
        bad = ~((of_query >= least) & (of_query <= most))
        if bad.any():
            q = int(np.argmax(bad))
            raise ValueError(f"{op}: lambda_d must be within [{least[q]:g}, {most[q]:g}], got {of_query[q]:g}")
        begun = low <= np.repeat(of_query, np.diff(cu_segments))
        found = cu_segments[:-1] + np.add.reduceat(begun, cu_segments[:-1], dtype=np.int64) - 1
        return _arrays.to_library(indices[found], _arrays.library_of(self.indices))

    @classmethod
    def joined(cls, parts: list[SelectionPath], k: int) -> SelectionPath:
        """Return the path of all queries from those of each."""
        if not parts:
            return cls(np.zeros(1, np.int64), np.zeros(0), np.zeros(0), np.full((0, k), -1, np.int64))
        counts = [len(part.low) for part in parts]
        return cls(np.cumsum([0, *counts]), *(np.concatenate(fields) for fields in list(zip(*parts, strict=True))[1:]))


# What may belong to each row, as a `Corpus` and its folder have it: (N,) of these types.
COLUMNS = {"bias": "float32", "groups": "int64", "costs": "float64", "time": "float64"}


@dataclass(frozen=True)
class Rows:
    """Embeddings as they are stored, and how a stored row becomes the vector of the formulas.

    The arrays are NumPy's, or on a device torch's or CuPy's. bfloat16 is stored as its bits in uint16, by torch as its
    own type.
    """

    # (N, D) float32 | float16 | uint16 (bfloat16 bits) | int8, last axis contiguous; or (N, D / 8) uint8, "binary"
    data: Any
    dtype: str  # one of _arrays.CORPUS_STORAGE
    metric: str  # "cosine" | "dot"
    norm: str  # "as_given", or signs over the root of D | "scaled": row * scales[row] | "computed": row / |row|
    scales: Any = None  # (N,) float32
    bias: Any = None  # (N,) float32
    groups: Any = None  # (N,) int64
    costs: Any = None  # (N,) float64
    time: Any = None  # (N,) float64, seconds since 1970; NaN: none
    max_norm: float | None = None  # the largest norm of a vector of the formulas; None: the rows are not checked yet
    codes: Any = None  # (N, stride) uint8, csrc/cpu/simd/codes.inl; on a device int8, codes.py
    code_error: float = 0.0  # the largest error of a code row
    live: Any = None  # (N,) bool: rows that are not deleted; None: all
    similarity: Any = None  # (Q, P, P) float32, or given.Called: in the place of the rows of dense pools
    group_names: Any = None  # corpus.ids.Ids: the strings that groups are numbers of; None: groups are integers

    @staticmethod
    def of(data: Any, dtype: str, metric: str, norm: str) -> Rows:
        """Return rows with nothing beside them; the constructor of a frozen class takes three times as long."""
        rows = object.__new__(Rows)
        vars(rows).update(data=data, dtype=dtype, metric=metric, norm=norm)  # the rest has the values of the class
        return rows

    def plan_tensors(self) -> tuple[object, list[Any]]:
        """Return what stands for these rows and all that is fixed in them in `_gpu.plans`, and their arrays."""
        own = vars(self)
        if own.get("_mark", (None,))[0] != id(self):  # a copy has that of its original
            own["_mark"] = id(self), object()
        arrays = (self.data, self.scales, *(getattr(self, name) for name in COLUMNS), self.codes, self.live)
        return own["_mark"][1], [x for x in arrays if x is not None]

    @property
    def dims(self) -> int:
        """The dimensions D of a row."""
        return _arrays.dims_of(self.dtype, int(self.data.shape[-1]))

    def vectors(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the vectors of the formulas in float64."""
        vectors: np.ndarray = _arrays.widen(self.data[rows], self.dtype).astype(np.float64)
        if self.dtype == "binary":
            vectors /= np.sqrt(self.dims)
        elif self.norm == "scaled":
            assert self.scales is not None
            vectors *= self.scales[rows, None]
        elif self.norm == "computed":
            vectors = unit(vectors)
        return vectors


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return rows divided by their norms, in float64; a zero row stays zero."""
    made = np.array(vectors, np.float64)
    # Scaled by the largest element first, so that squares neither overflow nor vanish.
    _divide_by(made, np.maximum(-made.min(axis=-1, keepdims=True), made.max(axis=-1, keepdims=True)))
    _divide_by(made, np.sqrt(np.square(made).sum(axis=-1, keepdims=True)))
    return made


def _divide_by(a: np.ndarray, b: np.ndarray) -> None:
    """Replace a by a / b, and by 0 where b is not positive."""
    if (b > 0).all():  # the usual case, in half the time
        np.divide(a, b, out=a)
    else:
        a[...] = divide(a, b)


def compacted(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different ids, in ascending order, and in place of each its position among them; -1 stays."""
    real = ids >= 0
    rows, found = np.unique(ids[real], return_inverse=True)
    places = np.full(ids.shape, -1, np.int64)
    places[real] = found
    return rows, places


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
    queries: Any  # (Q, D) float32; to "binary" rows also (Q, D / 8) uint8, signs like theirs
    unit_queries: bool
    lambda_d: Any  # (Q,) float32
    lambda_b: Any  # (Q,) float32
    candidates: Any = None  # (Q, P) int32 | int64, -1: padding
    relevance: Any = None  # (Q, P) float32
    bias: Any = None  # (N,) or (Q, P) float32
    ks: Any = None  # (Q,) int64
    constraints: Constraints = NONE
    options: Any = None  # what belongs to the rule alone: one of options.py
    outside: Any = None  # (Q,) float32: no row outside the pool has a larger v; then the picks are certified

    def clip(self) -> int:
        """Leave no query more picks than the pool has items; return the largest k that was asked for."""
        asked = self.k
        if asked > self.pool:
            self.k = self.pool
            self.ks = None if self.ks is None else self.ks.clip(None, self.pool)
        return asked

    @property
    def num_ids(self) -> int:
        """One more than the largest id of a query."""
        return self.pool_stride or len(self.rows.data)

    def take(self, queries: np.ndarray | slice) -> Problem:
        """Return the problem of some of the queries."""
        names = ("queries", "candidates", "relevance", "lambda_d", "lambda_b", "ks", "outside")
        changes = {name: array[queries] for name in names if (array := getattr(self, name)) is not None}
        if self.bias is not None and self.bias.ndim == 2:
            changes["bias"] = self.bias[queries]
        dense = None
        if self.pool_stride:
            dense = self.num_queries, self.pool_stride
            pools = self.rows.data.reshape(*dense, -1)[queries]
            pairs = None if self.rows.similarity is None else self.rows.similarity[queries]
            changes["rows"] = replace(self.rows, data=pools.reshape(-1, pools.shape[2]), similarity=pairs)
        if self.options is not None:
            changes["options"] = self.options.take(queries)
        taken = self.constraints.take(queries, dense)
        return replace(self, num_queries=len(changes["lambda_d"]), constraints=taken, **changes)

    def query_vectors(self, queries: int | np.ndarray | slice) -> np.ndarray:
        """Return some of the queries in float32, signs as 1 and -1."""
        assert self.queries is not None
        found: np.ndarray = self.queries[queries]
        wide: np.ndarray = _arrays.widen(found, "binary") if found.dtype == np.uint8 else found
        return wide

    def eligible(self, q: int, first: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows and positions of the items that query q may pick, in order of position.

        ``first``: look at so many positions of the pool alone.
        """
        limits, some = self.constraints, slice(first)
        ids = np.arange(self.pool)[some] if self.candidates is None else self.candidates[q, some].astype(np.int64)
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
