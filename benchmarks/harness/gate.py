"""No time without the right picks: every contender is checked on a sample of the queries before it is timed."""

from __future__ import annotations

import numpy as np

import ragsys_kernels as rk
from benchmarks.suites import shapes
from benchmarks.suites.selection import OURS, Contender
from ragsys_kernels import testing

_REPLAYED = 200_000  # items of all pools that are replayed in float64, of 32 queries at most
_COMPARED = 1_000_000  # items of all pools that the dense rule selects from, of 256 queries at most
_TOLERANCE = 4e-6  # of a value that a peer computes in float32


def check(
    op: str, problem: shapes.Problem, lambda_d: float | None, contenders: list[Contender]
) -> dict[tuple[str, str], float]:
    """Assert that all picks are right; returns the share of queries with the picks of the first contender.

    The library's own selections are replayed in float64, and its picks must be the dense rule's. A peer must follow
    the rule that it states, in float64 up to near-ties. A search must find rows as near as the nearest.
    """
    pool = problem.shape.P or problem.shape.N
    replayed = min(max(_REPLAYED // pool, 1), 32)
    first: np.ndarray | None = None
    shares = {}
    for contender in contenders:
        if contender.picks is None:
            continue
        compared = min(_COMPARED // pool, 256) if contender.name.startswith(OURS) else 32
        picks = contender.picks(contender.run(max(contender.unit, compared)))[:compared]
        first = picks if first is None else first
        both = min(len(picks), len(first))
        shares[contender.name, contender.dtype] = float((picks[:both] == first[:both]).all(axis=1).mean())
        if op == "search":
            _check_search(problem, contender, picks[:replayed])
        elif contender.arguments is not None:
            _check_ours(op, contender, picks, replayed)
        elif contender.rule is not None:
            for q in range(replayed):
                _check_peer(problem, lambda_d, contender, q, picks[q])
    return shares


def _check_ours(op: str, contender: Contender, picks: np.ndarray, replayed: int) -> None:
    assert contender.arguments is not None
    few = contender.arguments(replayed)
    testing.check_selection(op, few, getattr(rk, op)(**few, num_threads=1))
    dense = testing.selection_work(op, contender.arguments(len(picks)), bounds="dense")[0]
    assert (dense.indices == picks).all(), f"{contender.name}, {contender.dtype}: not the picks of the dense rule"


def _check_peer(problem: shapes.Problem, lambda_d: float | None, peer: Contender, q: int, picks: np.ndarray) -> None:
    """Each pick must be worth as much, by the peer's rule, as the best item that was left."""
    assert problem.candidates is not None
    candidates = problem.candidates[q]
    pool, chosen = problem.rows[candidates].astype(np.float64), problem.rows[picks].astype(np.float64)
    relevance = pool @ problem.queries[q]
    if peer.rule == "sum":
        sums = chosen.cumsum(axis=0)[:-1, None]
        values = (sums + pool) @ problem.queries[q] / np.linalg.norm(sums + pool, axis=2)
    else:
        similarity = chosen[:-1] @ pool.T
        if peer.rule != "last":
            similarity = np.maximum.accumulate(similarity)
        if peer.rule == "max, at least 0":
            similarity = np.maximum(similarity, 0)
        values = lambda_d * relevance - (1 - lambda_d) * similarity
    values = np.concatenate([relevance[None], values])
    for step, row in enumerate(picks):
        values[step, np.isin(candidates, picks[:step])] = -np.inf
        worth, best = values[step, candidates == row].item(), values[step].max()
        assert worth >= best - _TOLERANCE, (
            f"{peer.name}, query {q}, step {step}: row {row} is worth {worth:.9g}, the best {best:.9g}"
        )


def _check_search(problem: shapes.Problem, contender: Contender, picks: np.ndarray) -> None:
    cosines = problem.queries[: len(picks)] @ problem.corpus(contender.dtype).vectors(slice(None)).T
    nearest = -np.sort(-cosines, axis=1)[:, : picks.shape[1]]
    assert all(len(set(rows)) == len(rows) for rows in picks.tolist()), f"{contender.name}: a row twice"
    error = np.abs(np.take_along_axis(cosines, picks, 1) - nearest).max()
    assert error < _TOLERANCE, f"{contender.name}, {contender.dtype}: cosines differ by {error} from the nearest rows'"
