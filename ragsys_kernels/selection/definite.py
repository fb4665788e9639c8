"""Checks of similarities given to `dpp`: they must be symmetric and have no negative eigenvalue.

Checking a whole matrix would take longer than the picks. `check` checks neighbours before the picks; the rule checks
what it reads to make them (`unequal`, `NEGATIVE`).
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

# The two similarities of a pair are unequal if their difference exceeds this share of the items' similarities to
# themselves. Rounding to bfloat16 makes a smaller difference.
UNEQUAL = 0.02
# A determinant counts as negative if it is below zero by this share of its value without the picks. In pools of vectors
# with 2 to 384 dimensions, rounded to bfloat16, the share came to 0.04 if each pick had at least the share `SOUND`
# left.
NEGATIVE = SOUND = 0.1


def unequal(one: Any, other: Any, own: Any) -> Any:
    """Return whether the similarities of pairs differ; ``own``: product of the items' similarities to themselves."""
    return abs(one - other) > UNEQUAL * abs(own) ** 0.5


def suspicious(similarity: np.ndarray, candidates: np.ndarray | None) -> np.ndarray:
    """Return the queries for which `check` raises; matrices (Q, P, P), candidates (Q, P) with -1 for no item."""
    differ, negative = _pairs(similarity, None if candidates is None else candidates >= 0)
    found: np.ndarray = (differ | negative).any(axis=1)
    return found


def check(op: str, similarity: np.ndarray, items: np.ndarray, of_query: str) -> None:
    """Raise if neighbours in the matrix of a query (P, P) contradict a DPP; ``items`` (P,): which positions count."""
    (differ,), (negative,) = _pairs(similarity[None], items[None])
    if differ.any():
        i = int(np.argmax(differ))
        refuse_unequal(op, i, i + 1, similarity[i, i + 1], similarity[i + 1, i], of_query)
    if negative.any():
        refuse_negative(op, of_query)


def _pairs(similarity: np.ndarray, items: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return which items have two unequal similarities with the next item, and which a negative determinant with it."""
    own, one, other = (np.diagonal(similarity, offset, 1, 2) for offset in (0, 1, -1))
    own, next_own = own[:, :-1], own[:, 1:]
    with np.errstate(over="ignore", invalid="ignore"):
        product = own * next_own
        differ = unequal(one, other, product)
        negative = (np.minimum(own, next_own) < 0) | (one * other > (1 + NEGATIVE) * product)
    if items is not None:
        real = items[:, :-1] & items[:, 1:]
        differ, negative = differ & real, negative & real
    return differ, negative


def refuse_unequal(op: str, i: int, j: int, one: float, other: float, of_query: str) -> NoReturn:
    """Raise for a pair of positions: row i has ``one`` for item j, row j ``other`` for item i."""
    raise ValueError(
        f"{op}: similarity must be symmetric, got {one:g} of position {j} with {i} and {other:g} of {i} with {j}"
        f"{of_query}; use the mean of the matrix and its transpose"
    )


def refuse_negative(op: str, of_query: str) -> NoReturn:
    raise ValueError(f"{op}: similarity must have no negative eigenvalue, got a negative determinant{of_query}")
