"""No time without the right results: what a contender returns is checked before it is timed."""

from __future__ import annotations

from typing import Any

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness.contender import Contender
from ragsys_kernels import testing

TOLERANCE = 4e-6  # of a value that a contender computes in float32


def library(op: str, contender: Contender, picks: np.ndarray, replayed: int) -> None:
    """Assert that the library's selections are right in float64, and that its picks are the dense rule's."""
    assert contender.arguments is not None
    few = contender.arguments(replayed)
    testing.check_selection(op, few, getattr(rk, op)(**few, num_threads=1))
    dense = testing.selection_work(op, contender.arguments(len(picks)), bounds="dense")[0]
    assert (dense.indices == picks).all(), f"{contender.name}, {contender.dtype}: not the picks of the dense rule"


def peer(
    contender: Contender, q: int, candidates: np.ndarray, rows: np.ndarray, query: np.ndarray, picks: np.ndarray,
    lambda_d: float | None,
) -> None:  # fmt: skip
    """Assert that each pick is worth as much, by the peer's own rule, as the best item that was left.

    In float64, up to near-ties. ``candidates`` and ``picks`` are those of query q, places in ``rows``.
    """
    pool, chosen = rows[candidates].astype(np.float64), rows[picks].astype(np.float64)
    relevance = pool @ query
    if contender.rule == "sum":
        sums = chosen.cumsum(axis=0)[:-1, None]
        values = (sums + pool) @ query / np.linalg.norm(sums + pool, axis=2)
    else:
        similarity = chosen[:-1] @ pool.T
        if contender.rule != "last":
            similarity = np.maximum.accumulate(similarity)
        if contender.rule == "max, at least 0":
            similarity = np.maximum(similarity, 0)
        assert lambda_d is not None
        values = lambda_d * relevance - (1 - lambda_d) * similarity
    values = np.concatenate([relevance[None], values])
    for step, row in enumerate(picks):
        values[step, np.isin(candidates, picks[:step])] = -np.inf
        worth, best = values[step, candidates == row].item(), values[step].max()
        assert worth >= best - TOLERANCE, (
            f"{contender.name}, query {q}, step {step}: row {row} is worth {worth:.9g}, the best {best:.9g}"
        )


def nearest(name: str, cosines: np.ndarray, found: np.ndarray) -> None:
    """Assert that the rows found are as near as the nearest, up to the rounding of float32; (Q, N), (Q, n)."""
    best = -np.sort(-cosines, axis=1)[:, : found.shape[1]]
    error = np.abs(np.take_along_axis(cosines, found, 1) - best).max()
    assert error < TOLERANCE, f"{name}: cosines differ by {error:.3g} from the nearest rows'"
    assert all(len(set(rows)) == len(rows) for rows in found.tolist()), f"{name}: a row twice"


def log_probs(contender: Contender, found: Any, exact: np.ndarray) -> float:
    """Assert that log p is within the error that the contender may have; return the largest error."""
    assert contender.error is not None
    error = float(np.abs(np.asarray(found, np.float64) - exact).max())
    assert error <= contender.error, f"{contender.name}: log p is off by {error:.3g}"
    return error
