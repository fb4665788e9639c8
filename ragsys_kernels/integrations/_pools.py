"""Pools of one query as other libraries hold them, calls of the kernels, and the rules that the kernels lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _dispatch
from .._base import arrays, checks
from .._base.arrays import HOST
from .._base.types import NDArray as Array
from ..selection import validate
from ..selection.capabilities import Needs
from ..selection.options import of_rule
from ..selection.parameters import RULES
from ..selection.problem import Problem, Selection
from ..selection.relevance import warn_narrow, warn_range
from ..selection.request import Request
from ._options import request


def matrix(op: str, name: str, rows: Any) -> Array:
    """Return nested lists, or arrays, of numbers as float32 (N, D)."""
    array = _float32(op, name, rows)
    if array.ndim != 2:
        raise ValueError(f"{op}: {name} must have shape (N, D), got {array.shape}")
    return array


def vector(op: str, name: str, x: Any, dims: int) -> Array:
    """Return a list or an array of ``dims`` numbers, or a matrix of one such row, as float32 (D,)."""
    array = _float32(op, name, x)
    if array.shape not in ((dims,), (1, dims)):
        raise ValueError(f"{op}: {name} must have shape (D,) = ({dims},), got {array.shape}")
    return array.reshape(-1)


def _float32(op: str, name: str, x: Any) -> Array:
    if isinstance(x, (list, tuple)):
        try:
            x = np.asarray(x, np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{op}: {name} must be numbers in rows of one length: {error}") from error
    array, dtype = arrays.host_view(op, name, x)
    return arrays.HOST.float32(array, dtype)


def number_of_picks(op: str, n: int, k: int | None) -> int:
    """Return how many of n items to pick for a caller who asks for k, or for all of them by None.

    A k that can only reorder them is warned of.
    """
    if k is None:
        return n
    if 0 < n <= k:
        validate.warn_only_reorders(op, n, k)
    return max(0, min(k, n))


def run(op: str, rows: Array, k: int, queries: Array | None = None, options: Any = None, **given: Any) -> Selection:
    """Run a rule on NumPy arrays in one thread, without the look at other libraries and devices.

    On a pool of 20 that look takes half the time. ``options`` are those of the rule, checked.
    """
    return answer(Request(op, queries, rows, k, **given), options)


def answer(asked: Request, options: Any = None) -> Selection:
    """Do what `run` does, for a request."""
    op = asked.op
    problem = validate.problem_of(asked, HOST, options=options)
    needs = None if op in ("mmr", "vrsd") else Needs.of(asked)
    _, backend = _dispatch.choose(op, "selection", "cpu", "auto", None, needs)
    rule: Callable[[Problem, int], Selection] = getattr(backend, op)
    if problem.relevance is None or asked.relevance_scale != "as-is":
        return rule(problem, 1)
    warn_range(problem)
    found = rule(problem, 1)
    warn_narrow(problem, found, lambda part: rule(part, 1))
    return found


def select(
    query: Any,
    rows: Any,
    k: int | None,
    *,
    method: str = "mmr",
    lambda_mult: float = 0.5,
    relevance: Any = None,
    **given: Any,
) -> tuple[list[int], list[float]]:
    """Return the positions of the picks of one query by a rule, and the value of each when it was picked.

    ``given``: other arguments of the rule, those of items as lists. Without k as many are picked as may be; a k that
    can only reorder the pool is warned of.
    """
    op = checks.choice("select", "method", method, RULES)
    if len(rows) == 0:
        return [], []
    pool = matrix(op, "embeddings", rows)
    queries = None if query is None else vector(op, "query", query, pool.shape[1])[None]
    given = {name: np.asarray(x) if isinstance(x, list) else x for name, x in given.items()}
    if relevance is not None:
        given["relevance"] = np.asarray(relevance, np.float64)[None]
    number = len(pool) if k is None else min(checks.count(op, "k", k), len(pool))
    asked = request(op, queries, pool, number, lambda_mult, **given)
    found = answer(asked, of_rule(asked))
    made = int(found.lengths[0])
    if k is not None and made == len(pool):
        validate.warn_only_reorders(op, made, k)
    return found.indices[0, :made].tolist(), found.scores[0, :made].tolist()


def newest(old: Array, new: Array) -> Array:
    return new


def greedy(
    relevance: Array,
    similarity: Callable[[int], Array],
    k: int,
    *,
    weight: float,
    first: int,
    fold: Callable[[Array, Array], Array],
    closed: Array | None = None,
) -> tuple[list[int], list[float]]:
    """Run a greedy rule that the kernels lack, in NumPy; return the picks, and the value of each when it was made.

    ::

        C_1 = first
        p_i = similarity of i with C_1, then fold(p_i, similarity of i with the newest pick)
        C_s = argmax over unpicked i of weight * relevance_i - (1 - weight) * p_i

    Ties go to the lowest position. Items that are ``closed``, or whose value is NaN, are not picked; the lists end
    where no others are left. O(k) calls of ``similarity``.
    """
    picks, values = [first], [float(weight * relevance[first])]
    worth_alone = weight * relevance  # -inf once it is picked
    if closed is not None:
        worth_alone[closed] = -np.inf
    redundancy: Array | None = None
    while len(picks) < k:
        worth_alone[picks[-1]] = -np.inf
        latest = similarity(picks[-1])
        redundancy = latest if redundancy is None else fold(redundancy, latest)
        worth = worth_alone - (1 - weight) * redundancy
        best = int(worth.argmax())
        if not worth[best] > -np.inf:  # argmax takes NaN for the largest
            worth[np.isnan(worth)] = -np.inf
            best = int(worth.argmax())
            if worth[best] == -np.inf:
                break
        picks.append(best)
        values.append(float(worth[best]))
    return picks, values


def cover_clipped(
    similarity: Array, relevance: Array, k: int, diversity: float, gamma: float
) -> tuple[list[int], list[float]]:
    """Cover with similarities of rows that are no unit vectors, cut at 1: what the kernels do not have."""
    covered = np.zeros(len(similarity))
    picks: list[int] = []
    values: list[float] = []
    for _ in range(k):
        gains = ((covered + similarity) ** gamma - covered**gamma).sum(axis=1)
        worth = (1 - diversity) * relevance + diversity * gains
        worth[picks] = -np.inf
        picks.append(int(worth.argmax()))
        values.append(float(worth[picks[-1]]))
        covered += similarity[picks[-1]]
    return picks, values


def ssd_forgetting(
    features: Array, n: int, worth: Array, k: int, weight: float, gamma: float, width: int
) -> tuple[list[int], list[float]]:
    """Sliding spectrum decomposition as pyversity has it, of rows as they are; those from n on have been shown before.

    A pick has as its direction what the directions of the window left of it when it was made, and this is given back
    to the items when it leaves the window. So the picks that have left still bend the directions of those in it.
    """
    features = features.astype(np.float64)
    squares = np.einsum("nd,nd->n", features, features)
    left = squares.copy()
    basis: list[Array] = []
    picks: list[int] = []
    values: list[float] = []

    def take(i: int) -> None:
        b = features[i] - sum((features[i] @ other) / (other @ other) * other for other in basis if other.any())
        if len(basis) == width:
            oldest = basis.pop(0)
            if oldest.any():
                left[:] += (features @ oldest) ** 2 / (oldest @ oldest)
        if b @ b <= 1e-5 * squares[i]:  # no longer told from rounding
            b = 0 * b
        else:
            left[:] -= (features @ b) ** 2 / (b @ b)
        basis.append(b)

    for i in range(n, len(features)):
        take(i)
    for _ in range(k):
        value = weight * worth + (1 - weight) * gamma * np.sqrt(np.maximum(left[:n], 0))
        order = value if basis else worth.astype(np.float64)
        order = order.copy()
        order[picks] = -np.inf
        picks.append(int(order.argmax()))
        values.append(float(value[picks[-1]]))
        take(picks[-1])
    return picks, values
