"""``on_error="skip"``: answer the good queries of a batch, and name each bad one with the reason.

A call that succeeds costs nothing more. If a call fails, each query with a bad value runs alone, because a bad value
that no kernel reads is no error. The other queries run again together, and in halves if that fails: products that
overflow float32 and bad similarities show only when their query runs. So each query gets the answer, or the error, that
it gets alone.
"""

from __future__ import annotations

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

    Those queries are added to ``errors``, which may hold some already. ``check``: check values before the first run. It
    is for devices, whose kernels check no values: there a bad value is an error even if it is not read.
    """
    if not errors and not check:
        try:
            return answer(problem)
        except ValueError:
            pass
    suspects: dict[int, str] = {}
    if place is HOST:
        validate.bad_queries(problem, place, suspects)
    elif check:
        validate.bad_queries(problem, place, errors)
    good = np.setdiff1d(np.arange(problem.num_queries), [*errors, *suspects])
    parts: list[tuple[np.ndarray, tuple[Any, ...]]] = list(_parts(problem, answer, good, errors)) if good.size else []
    for q in suspects.keys() - errors.keys():
        try:
            parts.append((alone := np.array([q]), answer(problem.take(alone))))
        except ValueError:
            errors[q] = suspects[q]
    if len(parts) == 1 and len(parts[0][0]) == problem.num_queries:
        return parts[0][1]
    fields = [place.upload(field) for field in padding]
    for queries, part in parts:
        for field, values in zip(fields, part, strict=True):
            field[queries] = values
    return tuple(fields)


def _parts(problem: Problem, answer: Answer, queries: np.ndarray, errors: dict[int, str]) -> Any:
    """Yield some queries at a time, with their answers."""
    try:
        yield queries, answer(problem.take(queries))
        return
    except ValueError as error:
        if validate.concerns_all(problem, error):
            raise
        if len(queries) == 1:
            reason = validate.reason(problem, int(queries[0]), error)
            if reason is None:
                raise
            errors[int(queries[0])] = reason
            return
    middle = len(queries) // 2
    yield from _parts(problem, answer, queries[:middle], errors)
    yield from _parts(problem, answer, queries[middle:], errors)
