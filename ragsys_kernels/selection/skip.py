"""``on_error="skip"``: answer the good queries of a batch, and name each bad one with the reason.

A call that succeeds costs nothing more. When one fails, the queries with bad values are found and the others run again.
A query whose products leave float32, or whose given similarities are bad, shows only when it runs: its error names a
query, and the batch is halved until that one is found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .._base.arrays import HOST, Place
from . import validate
from .problem import Problem

Answer = Callable[[Problem], tuple[Any, ...]]


def answered(
    problem: Problem, answer: Answer, padding: tuple[np.ndarray, ...], errors: dict[int, str], place: Place, check: bool
) -> tuple[Any, ...]:
    """Return the fields that ``answer`` gives, with those of ``padding`` for queries that cannot be answered.

    Those queries are added to ``errors``, which may hold some already. ``check``: check values before the first run,
    for a device, where the kernels check none.
    """
    if not errors and not check:
        try:
            return answer(problem)
        except ValueError:
            pass
    if place is HOST or check:
        validate.bad_queries(problem, place, errors)
    good = np.setdiff1d(np.arange(problem.num_queries), list(errors))
    parts: list[tuple[np.ndarray, tuple[Any, ...]]] = list(_parts(problem, answer, good, errors)) if good.size else []
    if len(parts) == 1 and len(parts[0][0]) == problem.num_queries:
        return parts[0][1]
    fields = [place.upload(field) for field in padding]
    for queries, part in parts:
        for field, values in zip(fields, part, strict=True):
            field[queries] = values if place is not HOST else np.asarray(values)
    return tuple(fields)


def _parts(problem: Problem, answer: Answer, queries: np.ndarray, errors: dict[int, str]) -> Any:
    """Yield some queries at a time, with their answers."""
    try:
        yield queries, answer(problem.take(queries))
        return
    except ValueError as error:
        reason, named = re.subn(r" for query \d+\b", "", str(error))
        if not named:  # it concerns the whole call
            raise
    if len(queries) == 1:
        errors[int(queries[0])] = reason
        return
    middle = len(queries) // 2
    yield from _parts(problem, answer, queries[:middle], errors)
    yield from _parts(problem, answer, queries[middle:], errors)
