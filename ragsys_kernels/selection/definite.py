"""Given similarities of `dpp`: they must be symmetric and have no negative eigenvalue.

To look at all of a matrix would take longer than the picks. `check` looks at the diagonal and a few pairs before the
picks; the rule looks at what it reads for them (`unequal`, `NEGATIVE`).
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

# Two similarities of a pair differ if they do by more than this share of the items' similarities to themselves, more
# than bfloat16 rounds.
UNEQUAL = 0.02
# A determinant is negative if it is below zero by this share of what it would be without the picks. Of pools of vectors
# with 2 to 384 dimensions, rounded to bfloat16, it came to 0.04 if each pick had at least the share `SOUND` left.
NEGATIVE = SOUND = 0.1
# How many pairs are looked at before the picks: each takes two cache lines, a pool of 100 reads 400 for five picks.
PAIRS = 8


def unequal(one: Any, other: Any, own: Any) -> Any:
    """Return whether the similarities of pairs differ; ``own``: the product of those of the items to themselves."""
    return abs(one - other) > UNEQUAL * abs(own) ** 0.5


def pairs(items: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first and second positions of the pairs that are looked at, and which there are, all (Q, PAIRS).

    ``items`` (Q, P): which a query may pick. Pairs are of every n-th of these and the next one, for the smallest n that
    makes no more than `PAIRS`, so that neither padding nor another query changes which they are.
    """
    order = np.argsort(~items, axis=1, kind="stable")
    last = items.sum(axis=1)[:, None] - 1
    at = np.arange(PAIRS) * (-(-last // PAIRS)).clip(1)
    real = at < last
    first, second = (np.take_along_axis(order, np.where(real, x, 0), axis=1) for x in (at, at + 1))
    return first, second, real


def suspicious(similarity: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return for which queries, of matrices (Q, P, P) and items (Q, P), `check` raises."""
    own = np.diagonal(similarity, 0, 1, 2)
    differ, negative = _looked_at(similarity, *pairs(items))
    found: np.ndarray = (differ | negative).any(axis=1) | (items & ~((own >= 0) & np.isfinite(own))).any(axis=1)
    return found


def check(op: str, similarity: np.ndarray, items: np.ndarray, of_query: str) -> None:
    """Raise where the matrix of a query (P, P) cannot be that of a DPP; ``items``: which count (P,)."""
    if not items.any():
        return
    own = np.diagonal(similarity)
    if (bad := items & ~np.isfinite(own)).any():
        at = int(np.argmax(bad))
        raise ValueError(f"{op}: similarity must be finite, got NaN or inf{of_query}, of position {at} with {at}")
    first, second, real = pairs(items[None])
    (differ,), (negative,) = _looked_at(similarity[None], first, second, real)
    if differ.any():
        i, j = (int(x[0, np.argmax(differ)]) for x in (first, second))
        refuse_unequal(op, i, j, similarity[i, j], similarity[j, i], of_query)
    if negative.any() or (own[items] < 0).any():
        refuse_negative(op, of_query)


def _looked_at(
    similarity: np.ndarray, first: np.ndarray, second: np.ndarray, real: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which pairs differ from one side to the other, and which have a negative determinant."""
    queries = np.arange(len(similarity))[:, None]
    one, other = similarity[queries, first, second], similarity[queries, second, first]
    own = similarity[queries, first, first] * similarity[queries, second, second]
    with np.errstate(over="ignore", invalid="ignore"):
        return unequal(one, other, own) & real, (one * other > (1 + NEGATIVE) * own) & real


def refuse_unequal(op: str, i: int, j: int, one: float, other: float, of_query: str) -> NoReturn:
    """Raise for a pair of positions: row i has ``one`` for item j, row j ``other`` for item i."""
    raise ValueError(
        f"{op}: similarity must be symmetric, got {one:g} of position {j} with {i} and {other:g} of {i} with {j}"
        f"{of_query}; use the mean of the matrix and its transpose"
    )


def refuse_negative(op: str, of_query: str) -> NoReturn:
    raise ValueError(f"{op}: similarity must have no negative eigenvalue, got a negative determinant{of_query}")
