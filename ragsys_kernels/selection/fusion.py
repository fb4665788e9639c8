"""Hits of several retrievers as one list of candidates for each query, with their fused relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from .._base import arrays as _arrays
from .._base import checks
from .._base.arrays import Place
from .._base.hints import hinted
from .._base.tables import holds_text, lengths, padded
from .._base.types import Array, ArrayLike
from . import filters
from .relevance import scaled
from .validate import listed

FUSIONS = ("rrf", "minmax", "zscore")
_OP = "fuse"
_LAST = 2**63 - 1  # a key behind those of all items
_Hits = tuple[Any, Any]  # ids (Q, P) int64 and scores (Q, P) float64, or None
_BLOCK = 512  # queries on the host, whose keys stay in the cache: a third less time than all at once


class Fused(NamedTuple):
    """The candidates of every query by descending relevance, ties to the lower id: a tuple of two arrays.

    Attributes
    ----------
    candidates : (Q, P) int64
        Ids, each once; -1 after the last. P is the largest number of different ids of a query, at least 1.
    relevance : (Q, P) float32
        The fused relevance; 0 after the last.
    """

    candidates: Array
    relevance: Array


Fused.__module__ = "ragsys_kernels"


@hinted(_OP)
def fuse(
    lists: Sequence[tuple[ArrayLike, ArrayLike | None]],
    method: Literal["rrf", "minmax", "zscore"] = "rrf",
    weights: Sequence[float] | ArrayLike | None = None,
    k: float = 60,
) -> Fused:
    """Fuse what several retrievers found into one list for each query: candidates and relevance for `mmr` and others.

    The relevance of an item is the sum over the lists l that have it of w_l * s_l, with::

        rrf      s = 1 / (k + rank)                       rank from 1: reciprocal rank fusion
        minmax   s = (score - min) / (max - min)          over the query's own list; 1 if all its scores are equal
        zscore   s = 1/2 + (score - mean) / (6 σ)         0 and 1 are three standard deviations from the mean; 1/2 if
                                                          all scores are equal

    A list without the item adds 0. So with "minmax" the last hit of a list counts as one that the list lacks, and with
    "zscore" a hit at the mean counts half as much as one far above it; nothing is clamped there, so that a hit more
    than 3 σ below the mean subtracts. Equal relevance goes to the lower id, and the order of the lists has no effect.

    Parameters
    ----------
    lists : sequence of (ids, scores)
        A pair for each retriever, such as the result of `Corpus.search`. ``ids`` (Q, P_i) int32 or int64, at least 0,
        each at most once in a query, padded with -1; ``scores`` (Q, P_i) numbers, larger is better, or None for ids
        that stand best first. Both may be lists of any lengths. Scores of padding are not read.
    method : {"rrf", "minmax", "zscore"}
        "minmax" and "zscore" need scores. "rrf" ranks by them where they are given, and leaves equal ones in their
        order.
    weights : (L,) numbers, optional
        Weight of each list, finite and at least 0, not all 0. Default: 1. With "minmax" relevance is within
        [0, Σ w]; weights of sum 1 put it on the scale of cosines.
    k : float
        How little the first ranks differ with "rrf", at least 0.

    Returns
    -------
    Fused
        ``candidates`` (Q, P) int64 and ``relevance`` (Q, P) float32, in the caller's library and on its device.

    Raises
    ------
    ValueError
        No list, shapes that do not fit, an id below -1 or twice in a list of a query, scores that are not finite or are
        lacking, weights or k out of range.
    TypeError
        A list that is no pair; ids that are not int32 or int64: `Corpus.rows_of` finds the rows of others.

    Notes
    -----
    O(Q M log M) time for M = Σ P_i, in NumPy, torch or CuPy, with sums in float64. A device is waited for, because P
    depends on the ids. With scores of "rrf" (up to L / (k + 1)) redundancy outweighs relevance in MMR: pass
    ``relevance_scale="minmax"`` there.

    Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods",
    SIGIR 2009. Sums of min-max scores are CombSUM: Fox and Shaw, "Combination of Multiple Searches", TREC-2, 1994.

    Examples
    --------
    >>> import ragsys_kernels as rk
    >>> words = [[7, 3, 5]], [[12.0, 9.0, 4.0]]
    >>> vectors = [[5, 7]], [[0.9, 0.4]]
    >>> rk.fuse([words, vectors])
    Fused(candidates=array([[7, 5, 3]]), relevance=array([[0.03252247, 0.03226646, 0.01612903]], dtype=float32))
    >>> rk.fuse([words, vectors], "minmax", weights=[0.25, 0.75]).relevance
    array([[0.75   , 0.25   , 0.15625]], dtype=float32)
    """
    checks.choice(_OP, "method", method, FUSIONS)
    constant = checks.number(_OP, "k", k)
    if not 0 <= constant < np.inf:
        raise ValueError(f"{_OP}: k must be at least 0 and finite, got {checks.shown(k)}")
    pairs = _pairs(lists)
    shares = _weights(weights, len(pairs))
    given = {f"{name} of list {i}": x for i, pair in enumerate(pairs) for name, x in zip(_PARTS, pair, strict=True)}
    library, device = checks.library_and_device(_OP, given)
    place = _arrays.place_of(device, "cuda", library)
    with _arrays.NOTHING if place is _arrays.HOST else _arrays.on_stream(place, library):
        hits: list[_Hits] = []
        for i, (ids, scores) in enumerate(pairs):
            hits.append(_hits(i, ids, scores, len(hits[0][0]) if hits else None, method, place))
        terms = [
            weight * _shares(rows, scores, method, constant, place)
            for (rows, scores), weight in zip(hits, shares, strict=True)
        ]
        found = _fused([rows for rows, _ in hits], terms, place)
        return Fused(*(_arrays.to_library(array, library) for array in found))


_PARTS = ("ids", "scores")


def _pairs(lists: Any) -> list[tuple[Any, Any]]:
    if not isinstance(lists, (list, tuple)):
        raise TypeError(f"{_OP}: lists must be a list of pairs (ids, scores), got {type(lists).__name__}")
    if not lists:
        raise ValueError(f"{_OP}: lists must have at least one pair (ids, scores), got none")
    for i, pair in enumerate(lists):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or pair[0] is None:
            got = f"{len(pair)} values" if isinstance(pair, (list, tuple)) else type(pair).__name__
            raise TypeError(f"{_OP}: lists must be pairs (ids, scores), got {got} for list {i}")
        if holds_text(pair[0]):
            raise TypeError(f"{_OP}: ids of list {i} must be int32 or int64, got strings; see Corpus.rows_of")
    return [tuple(pair) for pair in lists]


def _weights(weights: Any, count: int) -> list[float]:
    if weights is None:
        return [1.0] * count
    array = checks.doubles(_OP, "weights", _arrays.to_host(weights))
    checks.expect_shape(_OP, "weights", array, ((count,), "(L,)"))
    good = np.isfinite(array) & (array >= 0)
    if not good.all():
        raise ValueError(f"{_OP}: weights must be finite and at least 0, got {array[~good][0]:g}")
    if not array.any():
        raise ValueError(f"{_OP}: weights must not all be 0, got {count} of 0")
    found: list[float] = array.tolist()
    return found


def _hits(i: int, ids: Any, scores: Any, num_queries: int | None, method: str, place: Place) -> _Hits:
    """Return the ids of a list (Q, P) int64 and their scores in float64, checked; None where none are given."""
    name, of_scores = f"ids of list {i}", f"scores of list {i}"
    rows = place.int64(checks.ids(_OP, name, ids, num_queries, place))
    if scores is None:
        if method != "rrf":
            raise ValueError(f"{_OP}: {of_scores} must be given with method {method!r}, got None")
        return rows, None
    of_ids, own = lengths(ids), lengths(scores)
    if of_ids is not None and own is not None and len(of_ids) == len(own) and (of_ids != own).any():
        q = int(np.argmax(of_ids != own))
        raise ValueError(f"{_OP}: {of_scores} must be as many as the ids, got {own[q]} for {of_ids[q]} in row {q}")
    values = checks.doubles(_OP, of_scores, padded(scores, "iuf", np.nan), place)
    checks.expect_shape(_OP, of_scores, values, (tuple(rows.shape), f"of the ids of list {i}"))
    # Differences of larger ones might not be finite.
    good = (abs(values) <= float(np.finfo(np.float32).max)) | (rows < 0)
    if not bool(good.all()):
        rule = "within the range of float32"
        checks.good_values(_OP, of_scores, _arrays.to_host(values), _arrays.to_host(good), rule, None)
    return rows, values


def _shares(rows: Any, scores: Any, method: str, constant: float, place: Place) -> Any:
    """Return what a list adds to the relevance of its items, before its weight: (Q, P) float64, any for padding."""
    xp, real = filters.module(place), rows >= 0
    if not rows.shape[1]:
        return place.float64(rows, "int64")
    if method == "rrf":
        if scores is None:
            ranks = xp.cumsum(real, 1)
        else:
            stable: Any = {"stable": True} if xp.__name__ == "torch" else {"kind": "stable"}
            ranks = xp.argsort(xp.argsort(xp.where(real, -scores, np.inf), **stable)) + 1
        return 1 / (constant + place.float64(xp.where(real, ranks, 1), "int64"))
    made = xp.where(real, place.float64(scaled(scores, rows, None, method, place), "float32"), 0.0)
    if method == "zscore":
        return 0.5 + made / 6
    equal = xp.amax(made, 1)[:, None] == 0  # the best of others has 1
    return xp.where(real & equal, 1.0, made)


def _fused(lists: list[Any], terms: list[Any], place: Place) -> tuple[Any, Any]:
    """Return the candidates and the relevance of all queries, from ids and terms (Q, P_i) of each list."""
    xp = filters.module(place)
    num_queries, width = len(lists[0]), sum(ids.shape[1] for ids in lists)
    if not num_queries or not width:
        like = lists[0]
        return _arrays.full(like, (num_queries, 1), -1, "int64"), _arrays.full(like, (num_queries, 1), 0, "float32")
    size = _BLOCK if place is _arrays.HOST else num_queries
    blocks = []
    for at in range(0, num_queries, size):
        part = slice(at, at + size)
        if (block := _block([ids[part] for ids in lists], [each[part] for each in terms], place)) is None:
            for i, ids in enumerate(lists):
                for q, of_query in enumerate(_arrays.to_host(ids)):
                    listed(_OP, f"ids of list {i}", of_query, None, f" for query {q}")
        else:
            blocks.append(block)
    candidates, relevance = (xp.concatenate(parts, 0) for parts in zip(*blocks, strict=True))
    longest = max(1, int((candidates >= 0).sum(1).max()))
    return place.packed(candidates[:, :longest]), place.packed(relevance[:, :longest])


def _block(lists: list[Any], parts: list[Any], place: Place) -> tuple[Any, Any] | None:
    """Return the candidates and the relevance of some queries (Q, sum of P_i); None if an id is wrong.

    Keys of 64 bits, of an id and its position, then of a relevance and its position, are all that is sorted: they have
    no ties, and NumPy sorts them several times as fast as it finds an order.
    """
    xp = filters.module(place)
    along = getattr(xp, "take_along_axis", None) or xp.take_along_dim
    ids, terms = xp.concatenate(lists, 1), xp.concatenate(parts, 1)
    width = ids.shape[1]
    places, bits, names = filters.arange(xp, width, ids), width.bit_length(), None
    if bool((ids < -1).any()):
        return None
    if int(ids.max()) >= _LAST >> bits:  # such as hashes of 64 bits
        names, numbers = xp.unique(ids, return_inverse=True)
        ids = xp.where(ids < 0, -1, numbers.reshape(ids.shape))
    keys = filters.in_order(xp, xp.where(ids >= 0, (ids << bits) | places, _LAST))
    live = keys < _LAST
    at = xp.where(live, keys & ((1 << bits) - 1), 0)
    ids, terms = keys >> bits, along(terms, at, 1)
    again = live[:, 1:] & (ids[:, 1:] == ids[:, :-1])  # the item of the place before
    of_list = xp.concatenate([places[: each.shape[1]] * 0 + i for i, each in enumerate(lists)], 0)[at]
    if bool((again & (of_list[:, 1:] == of_list[:, :-1])).any()):
        return None
    first = xp.concatenate([live[:, :1], live[:, 1:] & ~again], 1)
    relevance = place.float32(_sums(xp, ids, terms, len(lists)), "float64") + 0.0  # no -0: its bits are others
    # Integers in the order of the numbers, the largest first.
    bits_of = place.int64(relevance.view(xp.int32))
    descending = xp.where(bits_of < 0, bits_of & 0x7FFFFFFF, ~bits_of)
    keys = filters.in_order(xp, xp.where(first, (descending << 32) | places, _LAST))
    live = keys < _LAST
    at = xp.where(live, keys & 0xFFFFFFFF, 0)
    found = xp.where(live, along(ids, at, 1), 0)
    found = found if names is None else names[found]
    return xp.where(live, found, -1), xp.where(live, along(relevance, at, 1), 0.0)


def _sums(xp: Any, ids: Any, terms: Any, count: int) -> Any:
    """Return, where an id comes first in its row, the sum of the terms that equal ids have there, at most ``count``.

    The terms of an item are summed in their own order, so that the order of the lists does not change the bits.
    """
    of_item = [terms]
    for step in range(1, count):
        later = xp.zeros_like(terms)
        later[:, :-step] = xp.where(ids[:, step:] == ids[:, :-step], terms[:, step:], 0.0)
        of_item.append(later)
    if count > 2:
        ordered = filters.in_order(xp, xp.stack(of_item, -1))
        of_item = [ordered[..., i] for i in range(count)]
    return sum(of_item)
