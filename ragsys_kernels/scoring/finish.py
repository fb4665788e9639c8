"""Results from partials, for every backend and for shards of the vocabulary."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import arrays
from .._base.checks import same_device
from ._namespace import cast, namespace, stable_order
from .problem import Layout, Partials
from .validate import misfits, viewed


def merge_rows(ref: Any, largest: Any, sums: Any, weighted: Any) -> tuple[Any, Any, Any, Any]:
    """Return the sums of S parts about one reference, the largest one; each argument is S arrays (R,).

    With d = ref_s - ref:  Σ exp(z - ref) = Σ_s exp(d) sum_s  and  Σ (z - ref) exp(z - ref) = Σ_s exp(d) (weighted_s +
    d sum_s). The parts are added one by one: a reduction over an axis would round one row unlike many.
    """
    if len(ref) == 1:
        return ref[0], largest[0], sums[0], None if weighted is None else weighted[0]
    xp = namespace(ref[0])
    top, most = ref[0], largest[0]
    for s in range(1, len(ref)):
        top, most = xp.maximum(top, ref[s]), xp.maximum(most, largest[s])
    total: Any = 0.0
    total_weighted: Any = None if weighted is None else 0.0
    top64 = cast(top, xp.float64)
    with np.errstate(invalid="ignore"):  # inf - inf
        for s in range(len(ref)):
            d = xp.where(ref[s] == -np.inf, 0.0, ref[s] - top64)  # a part without a finite column has sum 0, or NaN
            scale = xp.exp(d)
            total += scale * sums[s]
            if weighted is not None:
                total_weighted += scale * (weighted[s] + d * sums[s])
    return top, most, total, total_weighted


def merge_partials(parts: Sequence[Partials]) -> Partials:
    """Merge partials of the same targets over different parts of the vocabulary.

    The parts may be blocks or shards of any sizes. They are added in the given order: the same parts in the same order
    have the same bits; another order or grouping may change the last bits.

    Parameters
    ----------
    parts : sequence of Partials
        At least one; of the same rows, temperatures and targets. Those with NumPy arrays may come from other processes.

    Returns
    -------
    Partials
        ``rank``, ``weighted``, and ``top`` with ``top_ids``, are there if every part has them, the latter two as many
        as in the part that has the fewest. torch tensors if any part has such, on the parts'
        device.

    Raises
    ------
    ValueError
        No parts, or parts whose fields are not of the same slots and targets, or on other devices.

    Notes
    -----
    ``ref`` and ``max`` are the largest, ``sum`` is Σ exp(ref_s - ref) sum_s, ``weighted`` is
    Σ exp(ref_s - ref) (weighted_s + (ref_s - ref) sum_s), ``target`` is the largest (-inf where a part lacks the
    target), ``rank`` is added up, ``top`` the largest of all parts. O(R + M) time a part, and O(k log k) for the top of
    each slot.
    """
    if isinstance(parts, Partials) or not isinstance(parts, Sequence):
        raise TypeError(f"merge_partials: parts must be a sequence of Partials, got {type(parts).__name__}")
    if len(parts) == 0:
        raise ValueError("merge_partials: parts must have at least one element, got none")
    for s, part in enumerate(parts):
        if not isinstance(part, Partials):
            raise TypeError(f"merge_partials: parts must be Partials, got {type(part).__name__} in part {s}")
    library = arrays.library_of(*(field for part in parts for field in part))
    device = same_device("merge_partials", {f"ref of part {s}": part.ref for s, part in enumerate(parts)})
    place = arrays.place_of(device, "cuda", library)
    here = [viewed("merge_partials", f"parts[{s}]", part, place) for s, part in enumerate(parts)]
    first = here[0]
    slots, targets = (0 if x is None or x.ndim == 0 else len(x) for x in (first.ref, first.target))
    for s, part in enumerate(here):
        for name, got, want in misfits(part, slots, targets):
            raise ValueError(
                f"merge_partials: parts must be of the same targets, whose {name} has shape {want}, "
                f"got {got} in part {s}"
            )
    with arrays.on_device(first.ref):
        weighted = None if any(part.weighted is None for part in here) else [part.weighted for part in here]
        ranked = all(part.rank is not None for part in here)
        rank = functools.reduce(operator.add, [part.rank for part in here]) if ranked else None
        rows = merge_rows(
            [part.ref for part in here], [part.max for part in here], [part.sum for part in here], weighted
        )
        target = functools.reduce(namespace(first.target).maximum, [part.target for part in here])
        merged = Partials(*rows, target, rank, *_merged_tops(here))
    if library == "numpy":
        return merged
    return Partials(*(None if x is None else arrays.to_library(x, library) for x in merged))


def _merged_tops(parts: list[Partials]) -> tuple[Any, Any]:
    if any(part.top is None or part.top_ids is None for part in parts):
        return None, None
    xp, k = namespace(parts[0].ref), min(part.top.shape[1] for part in parts)
    top, ids = (xp.concatenate([getattr(part, name) for part in parts], 1) for name in ("top", "top_ids"))
    top, ids = descending(top, ids)
    return top[:, :k], ids[:, :k]


def descending(top: Any, ids: Any) -> tuple[Any, Any]:
    """Return z and ids (R, n) from the largest z on, and of equal ones the lowest id first."""
    take = namespace(top).take_along_axis
    order = stable_order(ids)
    order = take(order, stable_order(-take(top, order, 1)), 1)
    return take(top, order, 1), take(ids, order, 1)


def top_logps(partials: Partials) -> tuple[Any, Any]:
    """Return ids and log p (R, k) of the largest z: -1 and -inf after the last, -1 and NaN without a softmax."""
    xp = namespace(partials.sum)
    with np.errstate(invalid="ignore", divide="ignore"):  # -inf - -inf, log 0
        ref, log_sum = cast(partials.ref, xp.float64), xp.log(partials.sum)
        logps = xp.minimum((partials.top - ref[:, None]) - log_sum[:, None], 0.0)
    none = (xp.isnan(partials.sum) | (partials.sum == 0))[:, None]
    return xp.where(none, -1, partials.top_ids), narrow(xp.where(none, np.nan, logps))


def pair_logps(partials: Partials, layout: Layout) -> Any:
    """Return log p of every pair (M,) in float64: 0 for an ignored pair, NaN for one outside the vocabulary."""
    xp = namespace(partials.sum)
    with np.errstate(invalid="ignore", divide="ignore"):  # -inf - -inf, log 0
        log_sum = xp.log(partials.sum)
        ref, target = cast(partials.ref, xp.float64), partials.target
        if layout.slot is not None:
            log_sum, ref = log_sum[layout.slot], ref[layout.slot]
        # z - lse would cancel where both are large. The bound: the sum has the target's own term in it, but rounded.
        logp = xp.minimum((target - ref) - log_sum, 0.0)
    logps = _by_pair(logp, layout, "float64")
    if layout.outside is not None:
        logps = xp.where(layout.outside, np.nan, logps)
    return logps


def _by_pair(values: Any, layout: Layout, dtype: str) -> Any:
    """Return values of the slots' targets in the order of the pairs; 0 for ignored pairs."""
    xp = namespace(values)
    if layout.scored is not None:
        M = layout.num_pairs
        every = np.empty(M, dtype) if xp is np else arrays.empty(values, (M,), dtype)
        every[layout.scored] = values
        values = every
    return values if layout.ignored is None else xp.where(layout.ignored, xp.zeros_like(values), values)


def pair_ranks(partials: Partials, layout: Layout, logps: Any) -> Any:
    """Return the rank of every pair (M,): 0 for an ignored pair, -1 where log p is NaN."""
    xp = namespace(logps)
    return xp.where(xp.isnan(logps), -1, _by_pair(partials.rank, layout, "int64"))


def missed(partials: Partials, layout: Layout, logps: Any) -> Any:
    """Return whether a column has more than the target of each pair (M,), or its log p is NaN; not if it is ignored."""
    xp = namespace(logps)
    most = narrow(partials.max)
    if layout.slot is not None:
        most = most[layout.slot]
    return _by_pair(~(narrow(partials.target) >= most), layout, "bool") | xp.isnan(logps)


def lse(partials: Partials) -> Any:
    """Return log Σ exp z of every slot (R,) in float64."""
    with np.errstate(divide="ignore"):
        return partials.ref + namespace(partials.sum).log(partials.sum)


def entropy(partials: Partials) -> Any:
    """Return -Σ p log p of every slot (R,) in float64, in nats."""
    xp = namespace(partials.sum)
    with np.errstate(invalid="ignore", divide="ignore"):
        return xp.maximum(xp.log(partials.sum) - partials.weighted / partials.sum, 0.0)


def largest(partials: Partials) -> Any:
    """Return max z of every slot (R,); NaN where a column is NaN or +inf."""
    xp = namespace(partials.sum)
    return xp.where(xp.isnan(partials.sum), np.nan, partials.max)


def narrow(values: Any) -> Any:
    """Return values as float32; those beyond its range are -inf."""
    with np.errstate(over="ignore"):
        return cast(values, namespace(values).float32)


def by_row(values: Any, rows: Any, layout: Layout) -> Any:
    """Return values of slots as (T,) float32: of a row's first slot, NaN for a row without one."""
    xp, T = namespace(values), layout.num_rows
    values = cast(values, xp.float32)
    if layout.begin is None:  # on the host every slot has a row, and they ascend
        if len(rows) == T:
            return values
        every = np.full(T, np.nan, np.float32)
        every[rows] = values
        return every
    if layout.slot is None:
        return xp.where(rows < 0, np.nan, values)
    every = arrays.full(values, (T + 1,), np.nan, "float32")
    again = rows[1:] == rows[:-1]
    every[xp.where(rows < 0, T, rows)[:1]] = values[:1]
    every[xp.where((rows[1:] < 0) | again, T, rows[1:])] = values[1:]
    return every[:T]


def per_answer(values: Any, layout: Layout) -> Any:
    """Return the sum of the values of each answer (A,) in float64, added in the order of the pairs."""
    if layout.begin is not None:
        return layout.sums(values, layout.begin, layout.order)
    answer = np.zeros(layout.num_pairs, np.int64) if layout.answer is None else layout.answer
    sums = np.bincount(answer, weights=values, minlength=layout.num_answers)
    return sums.astype(np.float64, copy=False)  # without a pair they are integers


def counts(layout: Layout) -> Any:
    """Return how many pairs of each answer (A,) are not ignored."""
    if layout.ignored is None:
        if layout.answer is None:
            return np.array([layout.num_pairs])
        return np.bincount(layout.answer, minlength=layout.num_answers)
    sums = per_answer(~layout.ignored, layout)
    return cast(sums, namespace(sums).int64)
