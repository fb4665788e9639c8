"""A long selection for one query that another thread follows, and that goes on from the picks of an earlier call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from .problem import Problem

# Coverage and GIST do not choose pick by pick, from values that depend on the picks before alone.
RULES = frozenset(("mmr", "vrsd", "msd", "dpp", "ssd", "sift"))

_picks: ContextVar[np.ndarray | None] = ContextVar("_picks", default=None)


@contextmanager
def continuing(picks: np.ndarray) -> Iterator[None]:
    """Let the next selection by the compiled kernels take over the picks of an array, and add its own as it makes them.

    Parameters
    ----------
    picks : (K,) int64
        Rows of the corpus, -1 from the first that is still to be chosen. Another thread may read it meanwhile.

    Notes
    -----
    The result has the same bits as that of a call which makes all picks. The rows are compared with the picks that are
    taken over too, where they have codes by all threads. Other backends choose all rows anew, and leave the array as
    it is. For the rules of `RULES`.
    """
    before = _picks.set(picks)
    try:
        yield
    finally:
        _picks.reset(before)


def awaited() -> bool:
    """Return whether the next selection is one that continues."""
    return _picks.get() is not None


def taken(problem: Problem) -> np.ndarray | None:
    """Return the array for the picks of a problem, (1, K), for the first selection that asks; None for others."""
    picks = _picks.get()
    if picks is None or problem.num_queries != 1 or problem.op not in RULES:
        return None
    _picks.set(None)
    return picks[None, : problem.k]
