"""From partials to results, for every backend and for shards of the vocabulary alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _arrays
from .._validate import shape_text
from .problem import Layout, Partials


def merge_rows(ref: Any, largest: Any, sums: Any, weighted: Any) -> tuple[Any, Any, Any, Any]:
    """Sums of S parts about one reference, the largest: the arguments are S arrays (R,) each.

    With d = ref_s - ref:  Σ exp(z - ref) = Σ_s exp(d) sum_s  and  Σ (z - ref) exp(z - ref) = Σ_s exp(d) (weighted_s +
    d sum_s). The parts are added one by one: a reduction over an axis would round one row otherwise than many.
    """
    if len(ref) == 1:
        return ref[0], largest[0], sums[0], None if weighted is None else weighted[0]
    top, most = ref[0], largest[0]
    for s in range(1, len(ref)):
        top, most = np.maximum(top, ref[s]), np.maximum(most, largest[s])
    total = np.zeros(len(top))
    total_weighted = None if weighted is None else np.zeros(len(top))
    top64 = top.astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf
        for s in range(len(ref)):
            d = np.where(ref[s] == -np.inf, 0.0, ref[s] - top64)  # a part without a finite column has sum 0, or NaN
            scale = np.exp(d)
            total += scale * sums[s]
            if total_weighted is not None:
                total_weighted += scale * (weighted[s] + d * sums[s])
    return top, most, total, total_weighted


def merge_partials(parts: Sequence[Partials]) -> Partials:
    """Put together partials of the same targets over different parts of the vocabulary.

    The parts may be blocks or shards of any, also unequal, sizes. They are added in the order given, so that the same
    parts in the same order have the same bits; another order or grouping may change the last bits.

    Parameters
    ----------
    parts : sequence of Partials
        At least one; of the same rows, temperatures and targets. Those with NumPy arrays may come from other processes.

    Returns
    -------
    Partials
        ``rank`` and ``weighted`` are there if every part has them. torch tensors if any part has such.

    Raises
    ------
    ValueError
        No parts, or parts whose shapes differ.

    Notes
    -----
    ``ref`` and ``max`` are the largest, ``sum`` is Σ exp(ref_s - ref) sum_s, ``weighted`` is
    Σ exp(ref_s - ref) (weighted_s + (ref_s - ref) sum_s), ``target`` is the largest (-inf where a part lacks the
    target), ``rank`` is added up. O(R + M) time a part.
    """
    if len(parts) == 0:
        raise ValueError("merge_partials: parts must have at least one element, got none")
    for s, part in enumerate(parts):
        if not isinstance(part, Partials):
            raise TypeError(f"merge_partials: parts must be Partials, got {type(part).__name__} in part {s}")
    library = _arrays.library_of(*(field for part in parts for field in part))
    host = [Partials(*(None if x is None else _arrays.host_view("merge_partials", "parts", x)[0] for x in part))
            for part in parts]  # fmt: skip
    first = host[0]
    for s, part in enumerate(host):
        for name in ("ref", "target"):
            if getattr(part, name).shape != getattr(first, name).shape:
                want, got = shape_text(getattr(first, name).shape), shape_text(getattr(part, name).shape)
                raise ValueError(
                    f"merge_partials: parts must be of the same targets, whose {name} has shape {want}, "
                    f"got {got} in part {s}"
                )
    weighted = None if any(part.weighted is None for part in host) else [part.weighted for part in host]
    rank = None if any(part.rank is None for part in host) else np.add.reduce([part.rank for part in host])
    rows = merge_rows([part.ref for part in host], [part.max for part in host], [part.sum for part in host], weighted)
    merged = Partials(*rows, np.maximum.reduce([part.target for part in host]), rank)
    if library == "numpy":
        return merged
    return Partials(*(None if x is None else _arrays.to_library(x, library) for x in merged))


def pair_logps(partials: Partials, layout: Layout) -> np.ndarray:
    """log p of every pair (M,) in float64: 0 for an ignored one, NaN for one outside the vocabulary."""
    with np.errstate(invalid="ignore", divide="ignore"):  # -inf - -inf, log 0
        log_sum = np.log(partials.sum)
        ref, target = partials.ref.astype(np.float64), partials.target
        if layout.job is not None:
            log_sum, ref = log_sum[layout.job], ref[layout.job]
        # z - lse would lose the difference where both are large; the sum has the target's own term in it, but rounded.
        logp: np.ndarray = np.minimum((target - ref) - log_sum, 0.0)
    if layout.scored is None:
        return logp
    logps = np.zeros(layout.num_pairs)
    logps[layout.scored] = logp
    if layout.outside is not None:
        logps[layout.outside] = np.nan
    return logps


def pair_ranks(partials: Partials, layout: Layout, logps: np.ndarray) -> np.ndarray:
    """Rank of every pair (M,): 0 for an ignored one, -1 where log p is NaN."""
    ranks = np.zeros(layout.num_pairs, np.int64)
    ranks[slice(None) if layout.scored is None else layout.scored] = partials.rank
    ranks[np.isnan(logps)] = -1
    return ranks


def lse(partials: Partials) -> np.ndarray:
    """log Σ exp z of every job (R,) in float64."""
    with np.errstate(divide="ignore"):
        return np.asarray(partials.ref + np.log(partials.sum))


def entropy(partials: Partials) -> np.ndarray:
    """-Σ p log p of every job (R,) in float64, in nats."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.maximum(np.log(partials.sum) - partials.weighted / partials.sum, 0.0))


def largest(partials: Partials) -> np.ndarray:
    """max z of every job (R,); NaN where a column is NaN or +inf."""
    return np.where(np.isnan(partials.sum), np.nan, partials.max)


def narrow(values: np.ndarray) -> np.ndarray:
    """As float32; what is beyond its range is -inf."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def by_row(values: np.ndarray, rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Values of jobs as (num_rows,) float32; NaN where a row has no job."""
    if len(rows) == num_rows:  # they ascend
        return values.astype(np.float32)
    every = np.full(num_rows, np.nan, np.float32)
    every[rows] = values
    return every


def per_answer(values: np.ndarray, layout: Layout) -> np.ndarray:
    """Sums of the values of each answer (A,) in float64, added one by one in the order of the pairs."""
    answer = np.zeros(layout.num_pairs, np.int64) if layout.answer is None else layout.answer
    return np.bincount(answer, weights=values, minlength=layout.num_answers)


def counts(layout: Layout) -> np.ndarray:
    """Pairs of each answer (A,) that are not ignored."""
    if layout.ignored is None:
        if layout.answer is None:
            return np.array([layout.num_pairs])
        return np.bincount(layout.answer, minlength=layout.num_answers)
    return per_answer(~layout.ignored, layout).astype(np.int64)
