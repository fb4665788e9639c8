"""Corpora that are larger than the memory that they may take: rows that are mapped are visited a window at a time.

A search goes through the windows in order and keeps the best rows of all; meanwhile the system reads the next window.
What has been visited leaves the memory of the process, and stays in that of the system for as long as there is room.
A selection out of pools reads their rows alone, in ascending order.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import Thread
from typing import Any

import numpy as np

from .._base import arrays as _arrays
from ..selection.problem import Problem, Rows, compacted
from ..selection.request import Request
from .folder import ARRAYS
from .spans import FileMap, Range

_SHARE = 4  # a window is this part of the memory: the next one is read, and pools are copied, beside it
_LEAST_ROWS = 4096
_OF_ROWS = ("bias", "groups", "costs", "quality")  # arguments that may be (N,), and groups (N, L)

Found = tuple[np.ndarray, np.ndarray]


def search(problem: Problem, answer: Callable[[Problem], Found], memory: int) -> Found:
    """Return what `answer` finds in the whole corpus, from what it finds in one window after the other."""
    rows = problem.rows
    count, size = len(rows.data), _rows_of_window(rows, memory)
    if problem.candidates is not None or size >= count:
        found = answer(problem)
        forget(rows, 0, count)
        return found
    best: Found | None = None
    for begin in range(0, count, size):
        end = min(count, begin + size)
        reads = Thread(target=_read_ahead, args=(rows, end, min(count, end + size)), daemon=True)
        reads.start()
        found = answer(window_of(problem, begin, end))
        found = np.where(found[0] >= 0, found[0] + begin, -1), found[1]
        best = found if best is None else merged([best, found], problem.k)
        forget(rows, begin, end)
        reads.join()
    assert best is not None
    return padded(best, problem.k)


def pools(request: Request, taken: Callable[[np.ndarray], dict[str, np.ndarray]]) -> tuple[Request, np.ndarray | None]:
    """Return the request over the rows that its pools name, as ``taken`` copies them, and their numbers.

    Rows keep their order, so that ties are decided as among all rows. Arguments that a call would refuse, or that have
    other axes than a row, are left to it: then the rows are as they are, and there are no numbers.
    """
    rows = request.embeddings
    given = {name: x for name in ("candidates", "initial") if (x := getattr(request, name)) is not None}
    count = len(rows.data)
    axes = {name: np.ndim(x) for name in _OF_ROWS if (x := getattr(request, name)) is not None}
    of_rows = {name: getattr(request, name) for name, n in axes.items() if n == 1 or name == "groups"}
    right = all(isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype.kind == "i" for x in given.values())
    right = right and all(isinstance(x, np.ndarray) and len(x) == count for x in of_rows.values())
    if not right or request.aspects is not None or any(unusable(x, count).any() for x in given.values()):
        return request, None
    some, places = compacted(np.concatenate([*given.values()], axis=1))
    if not some.size:
        some = np.zeros(1, np.int64)
    parts = np.split(places, np.cumsum([x.shape[1] for x in given.values()])[:-1], axis=1)
    changes = {**dict(zip(given, parts, strict=True)), **{name: x[some] for name, x in of_rows.items()}}
    return request.changed(embeddings=_arrays.changed(rows, **taken(some)), **changes), some


def unusable(ids: np.ndarray, count: int) -> np.ndarray:
    """Return which queries name a row that is not there, or one twice."""
    ordered = np.sort(ids, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    return np.asarray((ordered < -1).any(axis=1) | (ordered >= count).any(axis=1) | twice.any(axis=1))


def copied(rows: Any, some: np.ndarray, memory: int) -> dict[str, np.ndarray]:
    """Return copies of some rows, given in ascending order, of each array by its name."""
    step = max(1, memory // _SHARE // mmap.PAGESIZE)  # each row may be on a page of its own
    copies = {name: np.empty((len(some), *x.shape[1:]), x.dtype) for name, x in _arrays_of(rows)}
    for begin in range(0, len(some), step):
        part = some[begin : begin + step]
        for name, array in _arrays_of(rows):
            np.take(array, part, axis=0, out=copies[name][begin : begin + step], mode="clip")
        forget(rows, int(part[0]), int(part[-1]) + 1)
    return copies


def _rows_of_window(rows: Rows, memory: int) -> int:
    row = sum(array[:1].nbytes for _, array in _arrays_of(rows))
    return max(_LEAST_ROWS, memory // _SHARE // row)


def window_of(problem: Problem, begin: int, end: int) -> Problem:
    """Return the problem over consecutive rows."""
    window, whole = slice(begin, end), problem.constraints.filter
    limits = problem.constraints
    if whole is not None:
        mask = None if whole.mask is None else np.ascontiguousarray(whole.mask[..., window])
        lists = {name: x - begin for name in ("rows", "exclude") if (x := getattr(whole, name)) is not None}
        limits = limits.filtered(replace(whole, num_rows=end - begin, mask=mask, **lists))
    arrays = {name: array[window] for name, array in _arrays_of(problem.rows)}
    return of_rows(
        replace(problem, constraints=limits, pool=end - begin, k=min(problem.k, end - begin)), window, arrays
    )


def of_rows(problem: Problem, some: slice | np.ndarray, arrays: dict[str, np.ndarray]) -> Problem:
    """Return the problem over some of its rows, whose arrays these are; its filter, pool and k stay as they are."""
    limits = problem.constraints
    if limits.groups is not None:
        limits = replace(limits, groups=limits.groups[some])
    bias = None if problem.bias is None else problem.bias[some]
    return replace(problem, rows=_arrays.changed(problem.rows, **arrays), bias=bias, constraints=limits)


def _arrays_of(rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
    return ((name, array) for name in (*ARRAYS, "live") if (array := getattr(rows, name)) is not None)


def merged(parts: Sequence[Found], n: int) -> Found:
    """Return the n best of searches in rows that follow one another; ties go to the lowest row."""
    indices, scores = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    return np.take_along_axis(indices, order, 1), np.take_along_axis(scores, order, 1)


def padded(found: Found, n: int) -> Found:
    """Return searches with n columns, -1 and -inf where there are fewer rows."""
    lacking = ((0, 0), (0, n - found[0].shape[1]))
    if not lacking[1][1]:
        return found
    return np.pad(found[0], lacking, constant_values=-1), np.pad(found[1], lacking, constant_values=-np.inf)


# --- The memory of the process.


def forget(rows: Any, begin: int, end: int) -> None:
    """Give back the memory of rows that are mapped from files, which reading them again maps anew."""
    for _, array in _arrays_of(rows):
        release(array, begin, end)


def release(array: np.ndarray, begin: int, end: int) -> None:
    """Give back the memory of some rows of an array, if they are mapped from a file."""
    _advise(array, begin, end, "MADV_DONTNEED")


def _read_ahead(rows: Any, begin: int, end: int) -> None:
    for _, array in _arrays_of(rows):
        _advise(array, begin, end, "MADV_WILLNEED")


def _advise(array: np.ndarray, begin: int, end: int, name: str) -> None:
    """Advise the system about some rows of an array, if they are mapped from a file."""
    advice = getattr(mmap, name, None)
    if begin >= end or advice is None:  # not on every system
        return
    memory: Any = array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    first = array.ctypes.data + begin * array.strides[0]
    last = array.ctypes.data + end * array.strides[0]
    if isinstance(memory, (FileMap, Range)):
        memory.advise(first, last, advice)
