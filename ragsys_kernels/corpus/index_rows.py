"""What an index of the caller's holds, compared with the rows of a corpus when the two are first used together.

An index in another order, or of rows of other lengths, finds other rows without a word. So a few of its vectors, as it
gives them back, are compared with the rows that it says they are. Where an index keeps its numbers as they are given
(IndexIDMap, an inverted file, usearch), these are rows of the corpus or its ids, and each row that is not deleted must
be among them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base import checks
from ..selection.problem import Problem, Rows, divide, unit

Translate = Callable[[np.ndarray], np.ndarray]  # of numbers that an index finds, -1 for none, to rows

_SAMPLE = 32  # rows that are compared
# The largest |v - w| / |w| of a vector and the row that it stands for: what is rounded in it.
_ROUNDED = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 2e-2}
# Of lossy codes and signs: by how much a vector is nearer to its row than to the others of the sample, in cosines as a
# share of what it could be. On 300 random rows of 64 dimensions right ones have 0.48 with 4 x 4 bits a row (PQ4x4) and
# 0.8 as signs; in another order they have 0 +- 0.05.
_NEARER = 0.2

# What has been compared, by the identity of an index: it and a corpus, what it then told of itself, whether its numbers
# are ids. An index that is no more is taken out.
_compared: dict[int, tuple[Any, Any, tuple[int, int, bool], bool]] = {}


@dataclass(frozen=True)
class Held:
    """What an index holds: ``numbers`` (M,) by which it names its rows, None: 0 to M - 1; its vectors by these numbers,
    None where it cannot give them back; and whether these are the floats that it was given."""

    numbers: np.ndarray | None
    vectors: Callable[[np.ndarray], np.ndarray | None]
    exact: bool


def translation(
    problem: Problem, index: Any, key: Any, held: Callable[[], Held], by_distance: bool
) -> Translate | None:
    """Return what makes rows of the numbers that an index finds, None where they are rows; refuse an index of others.

    ``key`` is what the caller holds of it. ``by_distance``: it finds rows by their distance.
    """
    rows: Any = problem.rows
    told = int(index.ntotal), int(index.d), by_distance
    if not once(key, rows, told, lambda: _by_ids(problem, index, held(), by_distance)):
        return None
    return lambda found: np.asarray(rows.ids.rows_of(found, "pad"))


def once(key: Any, rows: Rows, told: tuple[int, int, bool], made: Callable[[], bool]) -> bool:
    """Return what ``made`` returns, which is called once for an index beside a corpus, and again where it changed.

    ``told``: its number of rows, its columns, and whether it finds rows by their distance. Other rows in the place of
    as many are no change that it tells of.
    """
    known = _compared.get(id(key))
    if known is not None and known[0]() is key and known[1]() is rows and known[2] == told:
        return known[3]
    found, name = made(), id(key)
    with suppress(TypeError):  # no weak reference to it can be made
        _compared[name] = weakref.ref(key, lambda _: _compared.pop(name, None)), weakref.ref(rows), told, found
    return found


def _by_ids(problem: Problem, index: Any, held: Held, by_distance: bool) -> bool:
    """Return whether an index has its rows under the corpus's ids, not under the numbers of its rows."""
    op, rows, count = problem.op, problem.rows, len(problem.rows.data)
    live = np.arange(count) if rows.live is None else np.flatnonzero(rows.live)
    some = live[_spread(len(live))]

    def check(numbers: np.ndarray) -> None:
        vectors = held.vectors(numbers)
        if vectors is not None:
            bias = index.d == rows.dims + 1
            compare(op, rows, some, vectors, held.exact, bias=bias, by_distance=by_distance)

    if held.numbers is None:
        if index.ntotal != count:
            rule = f"hold the corpus's N = {count} rows"
            rule += "" if rows.live is None else ", deleted ones too, or be an IndexIDMap2 filled by add_with_ids"
            raise ValueError(f"{op}: index must {rule}, got {index.ntotal}")
        check(some)
        return False
    ids: Any = getattr(rows, "ids", None)
    try:
        _check_complete(op, held.numbers, live, rows)
        check(some)
    except ValueError:
        if ids is None or ids.kind != "int64":
            raise
        _check_complete(op, held.numbers, live, rows, ids)
        check(ids[some])
        return True
    return False


def _check_complete(op: str, numbers: np.ndarray, live: np.ndarray, rows: Rows, ids: Any = None) -> None:
    """Refuse numbers that are no rows, or ids, of the corpus, and an index without a row that is not deleted."""
    count, names = len(rows.data), "numbers" if ids is None else "ids"
    outside = (numbers < 0) | (numbers >= count)
    if ids is None and outside.any():
        got = numbers[int(np.argmax(outside))]
        raise ValueError(f"{op}: index must have numbers of the corpus's rows, below N = {count}, got {got}")
    found = numbers if ids is None else ids.rows_of(numbers, "pad")
    there = np.zeros(count, bool)
    there[found[found >= 0]] = True  # an id that is not there may be one that has been deleted
    if not there[live].all():
        row = int(live[np.argmin(there[live])])
        got = f"row {row}" if ids is None else f"id {checks.shown(ids[row])}"
        rule = f"hold the corpus's N = {count} rows, but for deleted ones, under their {names}"
        raise ValueError(f"{op}: index must {rule}, got {len(numbers)} without {got}")


def _spread(count: int) -> np.ndarray:
    """Return some of so many places: from the first to the last, and as many at random."""
    if count <= _SAMPLE:
        return np.arange(count)
    drawn = np.random.default_rng(0).integers(0, count, _SAMPLE // 2)
    return np.unique(np.concatenate([np.linspace(0, count - 1, _SAMPLE // 2).astype(np.int64), drawn]))


def sampled(rows: Rows) -> np.ndarray:
    """Return some rows of a corpus."""
    return _spread(len(rows.data))


def compare(
    op: str, rows: Rows, some: np.ndarray, vectors: np.ndarray, exact: bool, dtype: str = "float32", *,
    bias: bool = False, by_distance: bool = False, lengths: bool = True,
) -> None:  # fmt: skip
    """Refuse the vectors of an index that are not those of some rows.

    Parameters
    ----------
    some : (M,) int64
        Rows that are not deleted.
    vectors : (M, d)
        Of the first d dimensions; with ``bias`` one more, that of the bias.
    exact : bool
        They are the floats that the index was given; else they are compared with the rows beside them too.
    dtype : str
        How they are stored.
    by_distance, lengths : bool
        What is found depends on the lengths of the vectors, by distance or at all.
    """
    dims = vectors.shape[1] - bias
    own = rows.vectors(some)[:, :dims]
    wanted = unit(own) if rows.metric == "cosine" else own
    got = np.asarray(vectors[:, :dims], np.float64)
    real = own.any(axis=1)
    some, own, wanted, got = some[real], own[real], wanted[real], got[real]
    if not len(some):
        return
    rule = f"{op}: index must hold the rows of the corpus in their order, or under their numbers"
    if dims < rows.dims:
        rule += f", their first {dims} of {rows.dims} dimensions"
    if not exact or rows.dtype == "binary":
        alike = unit(got) @ unit(wanted).T
        others = alike[~np.eye(len(some), dtype=bool)]
        room = 1 - others.mean() if len(some) > 4 else 0
        if room > 1e-3 and np.diag(alike).mean() - others.mean() < _NEARER * room:
            raise ValueError(f"{rule}, got vectors that are no nearer to theirs than to others")
        return
    rounded = sum(_ROUNDED.get(each, 1e-3 + 0.5 * rows.dims**0.5 / 127) for each in (rows.dtype, dtype))
    apart = np.linalg.norm(unit(got) - unit(wanted), axis=1) > rounded
    if apart.any():
        raise ValueError(f"{rule}, got another vector for row {some[int(np.argmax(apart))]}")
    if not lengths:
        return
    # Rows as long as the corpus has them, or all longer by one factor: the order is the same.
    if not any(_scaled(got, each, rounded, bias) for each in ([wanted] if by_distance else [wanted, own])):
        sizes = divide(np.linalg.norm(got, axis=1), np.linalg.norm(wanted, axis=1))
        what = "unit rows, or rows of one length," if rows.metric == "cosine" else "rows as the corpus has them"
        raise ValueError(
            f"{op}: index must hold {what} for its metric to find the nearest, got some {sizes.min():.3g} and some "
            f"{sizes.max():.3g} times as long"
        )
    if bias:
        there, stored = np.asarray(vectors[real, dims], np.float64), rows.bias[some] / 64
        other = np.abs(there - stored) > 1e-3 * (1 + np.abs(stored))
        if other.any():
            raise ValueError(
                f"{op}: index must have the corpus's bias, got another for row {some[int(np.argmax(other))]}"
            )


def _scaled(got: np.ndarray, wanted: np.ndarray, rounded: float, bias: bool) -> bool:
    sizes = np.linalg.norm(wanted, axis=1)
    factor = 1.0 if bias else float(np.median(np.linalg.norm(got, axis=1) / sizes))
    return bool((np.linalg.norm(got - factor * wanted, axis=1) <= 2 * rounded * factor * sizes).all())
