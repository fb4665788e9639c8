"""A checked scoring problem, which is the one argument of every backend, and what a backend returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._base import arrays
from .._base.types import Array


class Partials(NamedTuple):
    """Sums over the columns of one part of the vocabulary, or of all of it, before the logarithm.

    A *slot* is one row at one temperature; z are its scaled logits, and ``ref`` is a number near their maximum.
    `merge_partials` puts the parts of a vocabulary together without loss.

    Attributes
    ----------
    ref : (R,) float32
        Reference: finite and near the maximum, or -inf where no column is finite.
    max : (R,) float32
        Largest z.
    sum : (R,) float64
        Sum of exp(z - ref); NaN where a column is NaN or +inf.
    weighted : (R,) float64, or None
        Sum of (z - ref) exp(z - ref), for the entropy.
    target : (M,) float32
        z of each target, in order of the slots; -inf where the target is not among these columns.
    rank : (M,) int64, or None
        Columns whose z is strictly greater than the target's.
    top : (R, k) float32, or None
        The largest z, from the largest on; -inf where a slot has no more columns above it.
    top_ids : (R, k) int64, or None
        Their ids in the whole vocabulary, the lower one first where two z are equal; -1 where there is none.

    The reference backend gives ``ref``, ``max`` and ``target`` in float64.
    """

    ref: Array
    max: Array
    sum: Array
    weighted: Array
    target: Array
    rank: Array
    top: Array = None
    top_ids: Array = None

    @classmethod
    def nothing(cls, problem: ScoringProblem) -> Partials:
        """Return the sums over no columns."""
        like, slots, targets = problem.rows, (len(problem.rows),), (len(problem.columns),)
        best = (*slots, problem.top)
        return cls(
            arrays.full(like, slots, -np.inf, "float32"),
            arrays.full(like, slots, -np.inf, "float32"),
            arrays.full(like, slots, 0, "float64"),
            arrays.full(like, slots, 0, "float64") if problem.entropy else None,
            arrays.full(like, targets, -np.inf, "float32"),
            arrays.full(like, targets, 0, "int64") if problem.rank else None,
            arrays.full(like, best, -np.inf, "float32") if problem.top else None,
            arrays.full(like, best, -1, "int64") if problem.top else None,
        )


@dataclass(slots=True)  # frozen would take 3 us of every call
class ScoringProblem:
    """The checked arguments of one call, as host arrays or as arrays of one library on one device.

    On a device shapes do not depend on values. So a slot may have row -1: nothing reads it, and its sum is 0. Targets
    from ``pair_begin[R]`` on belong to no slot; they give -inf and rank 0.

    z(slot, v) = softcap_(logit_scale x_v) inverse_temperature[slot] with x the row of ``logits``, or
    x_v = hidden[row]·weight[v] + head_bias[v], and softcap_(x) = softcap tanh(x / softcap), but ±inf stays ±inf.
    """

    rows: np.ndarray  # (R,) int64: the row of each slot; None where `Pairs` say all that follows
    inverse_temperature: np.ndarray  # (R,) float32
    num_columns: int  # columns from here on never enter
    pair_begin: np.ndarray  # (R + 1,) int64: targets of slot r are columns[pair_begin[r] : pair_begin[r + 1]]
    columns: np.ndarray  # (M,) int64; -1: a target that is not read
    logits: np.ndarray | None = None  # (T, V) float32 | float16 | uint16 (bfloat16 bits), last axis contiguous
    logits_dtype: str = ""
    hidden: np.ndarray | None = None  # (T, D)
    hidden_dtype: str = ""
    weight: np.ndarray | None = None  # (V, D)
    weight_dtype: str = ""
    head_bias: np.ndarray | None = None  # (V,) float32
    logit_scale: float = 1.0
    softcap: float | None = None
    allowed: np.ndarray | None = None  # (n,) int64 ascending: only these columns enter
    target_logits: np.ndarray | None = None  # (M,) float32: ranks count what exceeds these, not the targets here
    entropy: bool = False
    rank: bool = False
    top: int = 0  # how many of the largest z of a slot are wanted; at most `num_entering` for a backend

    @property
    def num_entering(self) -> int:
        """The number of columns that enter the sums."""
        return self.num_columns if self.allowed is None else len(self.allowed)

    def vectors(self, name: str, rows: Any) -> np.ndarray:
        """Return rows of ``logits``, ``hidden`` or ``weight`` as float32, exactly."""
        return arrays.widen(getattr(self, name)[rows], getattr(self, name + "_dtype"))


@dataclass(slots=True)
class GivenPairs:
    """The pairs of a call as the caller gives them."""

    targets: Any
    rows: Any
    num_rows: int | None  # T; None with partials, which do not say it
    vocab_size: int
    cu_answers: Any = None
    answer_ids: Any = None
    num_answers: int | None = None
    temperature: Any = 1.0
    ignore_index: int | None = -100
    out_of_range: str = "raise"
    per: str = "A"  # what may have a temperature of its own: an answer, or by another letter each pair


@dataclass(slots=True)
class Pairs:
    """The pairs of a call on a device as they were given, with the rules that its kernels apply to them.

    Its `ScoringProblem` has no slots yet. Where ``rows`` is None pair i is of row i, and slot i is row i if the pair
    counts; else the kernels find the slots.
    """

    targets: Any  # (M,) int64
    rows: Any  # (M,) int64, or None
    num_rows: int  # T
    ignore_index: int | None
    temperature: Any  # a number, or an array with one, with that of each answer, or of each pair
    per_answer: bool
    begin: Any  # (A + 1,): the pairs of answer a are order[begin[a] : begin[a + 1]]; None: there is one answer
    order: Any  # (M,); None: in their own order
    answers: Any  # (M,) the answer of each pair; None: ``begin`` says
    num_answers: int


@dataclass(slots=True)
class Layout:
    """How the pairs of a call map to the targets of its slots, and to answers."""

    num_pairs: int  # M
    num_rows: int  # T
    scored: np.ndarray | None  # (M',) the pair of each target of the slots; None: all pairs in their order
    slot: np.ndarray | None  # (M',) its slot; None: each has its own
    ignored: np.ndarray | None  # (M,) bool
    outside: np.ndarray | None  # (M,) bool: targets that are no columns of the vocabulary
    answer: np.ndarray | None  # (M,) int64; None: one answer
    num_answers: int
    # On a device, where every pair has a target, ``ignored`` and ``outside`` are always given, and these too:
    begin: Any = None  # (A + 1,) the pairs of answer a are order[begin[a] : begin[a + 1]]
    order: Any = None  # (M,); None: in their own order
    sums: Any = None  # function of values (M,), begin and order: sums (A,) in float64
