"""The search through the index of a folder: it finds rows of each segment, and the kernels rank them by exact scores.

Of each segment so many rows are found as are asked for; the best of all segments remain. Rows without an index are
searched exactly, and so are the rows of a segment that a mask allows, if they are few: the cells near a query may have
none of them. Queries are searched for in such small batches, each by one thread, that what is found for one depends
neither on the others nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from ..selection import validate
from ..selection.filtered_problems import listed, narrowed
from ..selection.filters import Filter
from ..selection.problem import Problem, compacted
from . import faiss_index, windows
from .folder_index import FolderIndex
from .windows import Found

_TASKS = 32  # parts of the queries, which threads take in turn
# Rows of a segment that a query may pick are few up to this, and up to this share of it: most indexes compare as many,
# and of a larger share they find nearly as much as without a mask. So many queries get lists of them at a time: 8 MB.
_FEW, _SHARE, _QUERIES = 4096, 1 / 4, 256


def search(
    problem: Problem, own: FolderIndex, implementation: ModuleType, num_threads: int, memory: int | None
) -> Found:
    """Return the k rows found for each query, ranked by v, as ``search`` of a backend does."""
    for q in np.flatnonzero(~np.isfinite(problem.query_vectors(slice(None))).all(axis=1)):
        validate.values(problem, int(q))

    def exactly(part: Problem) -> Found:
        found: Found = implementation.search(part, num_threads)
        return found

    whole = problem.constraints.filter
    if whole is not None and whole.rows is not None:  # lists of what may be picked
        listed = narrowed(problem)
        return exactly(listed) if memory is None else windows.search(listed, exactly, memory)
    best: Found | None = None
    with faiss_index.threads(problem.op, num_threads) as each:
        for begin, end, number in own.ranges(len(problem.rows.data)):
            window = windows.window_of(problem, begin, end)
            if number is None:
                found = exactly(window) if memory is None else windows.search(window, exactly, memory)
            else:
                index, content = own.opened(problem.op, number, (problem.rows.dims, problem.rows.dims + 1))
                found = _of_part(window, index, each, implementation, num_threads, memory)
                if memory is not None:
                    windows.release(content, 0, len(content))
            found = np.where(found[0] >= 0, found[0] + begin, -1), found[1]
            best = found if best is None else windows.merged([best, found], problem.k)
    assert best is not None
    return windows.padded(best, problem.k)


def _of_part(
    problem: Problem, index: Any, each: Callable[..., Any], implementation: ModuleType, num_threads: int,
    memory: int | None,
) -> Found:  # fmt: skip
    """Return what is found in rows with an index: of few rows that a query may pick, all are ranked."""
    whole, count = problem.constraints.filter, problem.num_queries
    if whole is None or whole.mask is None:
        return _ranked(problem, _nearest(problem, index, each), implementation, num_threads, memory)
    # Of each query alone: what is found for it depends on no other.
    left = np.count_nonzero(whole.mask, axis=-1)
    few = np.broadcast_to(left <= max(problem.k, min(_FEW, _SHARE * problem.pool)), count)
    if memory is None and whole.mask.ndim == 1 and few.all() and left > problem.k:
        exact: Found = implementation.search(problem, num_threads)  # which copies them: faster than lists
        return exact
    parts = [np.flatnonzero(few)[begin : begin + _QUERIES] for begin in range(0, np.count_nonzero(few), _QUERIES)]
    found = np.full((count, problem.k), -1, np.int64), np.full((count, problem.k), -np.inf, np.float32)
    for queries in [*parts, np.flatnonzero(~few)]:
        if queries.size:
            part = problem.take(queries)
            candidates = listed(part).candidates if few[queries[0]] else _nearest(part, index, each)
            assert candidates is not None
            ranked = _ranked(part, candidates, implementation, num_threads, memory)
            found[0][queries], found[1][queries] = ranked
    return found


def _nearest(problem: Problem, index: Any, each: Callable[..., Any]) -> np.ndarray:
    """Return the rows (Q, n), ascending, that an index finds for each query; padded with -1."""
    limits, together = problem.constraints, faiss_index.alone(problem.op, index)
    whole = limits.filter
    if whole is not None and whole.mask is not None and whole.mask.ndim == 1:
        selected = faiss_index.selecting(problem.op, index, whole.mask)
        if selected is not None:  # what no query may pick is left out by FAISS
            rest = None if whole.exclude is None else Filter(whole.num_rows, exclude=whole.exclude)
            index, problem = selected, replace(problem, constraints=limits.filtered(rest))
    count = problem.num_queries
    size = -(-count // (_TASKS * together)) * together
    parts = [range(begin, min(begin + size, count)) for begin in range(0, count, size)]
    found = np.concatenate(list(each(lambda part: faiss_index.nearest(problem, index, part, together), parts)))
    found.sort(axis=1)  # ties go to the lowest row
    return found


def _ranked(
    problem: Problem, candidates: np.ndarray, implementation: ModuleType, num_threads: int, memory: int | None
) -> Found:
    if memory is None:
        return faiss_index.ranked(problem, candidates, implementation, num_threads)
    some, places = compacted(candidates)
    if not some.size:
        some = np.zeros(1, np.int64)
    copies = windows.copied(problem.rows, some, memory)
    indices, scores = faiss_index.ranked(windows.of_rows(problem, some, copies), places, implementation, num_threads)
    return np.where(indices >= 0, some[indices], -1), scores
