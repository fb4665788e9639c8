"""Given similarities of `dpp`: they must be symmetric and have no negative eigenvalue.

To look at all of a matrix would take longer than the picks. `check` looks at neighbours before the picks; the rule
looks at what it reads for them (`unequal`, `NEGATIVE`).
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


def unequal(one: Any, other: Any, own: Any) -> Any:
    """Return whether the similarities of pairs differ; ``own``: the product of those of the items to themselves."""
    return abs(one - other) > UNEQUAL * abs(own) ** 0.5


def suspicious(similarity: np.ndarray, candidates: np.ndarray | None) -> np.ndarray:
    """Return for which queries, of matrices (Q, P, P) and candidates (Q, P) with -1 for no item, `check` raises."""
    differ, negative = _pairs(similarity, None if candidates is None else candidates >= 0)
    found: np.ndarray = (differ | negative).any(axis=1)
    return found


def check(op: str, similarity: np.ndarray, items: np.ndarray, of_query: str) -> None:
    """Raise where neighbours in the matrix of a query (P, P) cannot be those of a DPP; ``items``: which count (P,)."""
    (differ,), (negative,) = _pairs(similarity[None], items[None])
    if differ.any():
        i = int(np.argmax(differ))
        refuse_unequal(op, i, i + 1, similarity[i, i + 1], similarity[i + 1, i], of_query)
    if negative.any():
        refuse_negative(op, of_query)


def _pairs(similarity: np.ndarray, items: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return which items differ from the next one as that from them, and which have a negative determinant with it."""
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
