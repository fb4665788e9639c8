"""A whole corpus of which queries may pick some rows, as problems without a filter.

Lists of rows become pools, and so do masks of each query that leave few rows. Few rows that all queries may pick are
copied to a corpus of their own (`few_rows`). Kernels that take no filter get all rows as pools (`as_pools`), or a bias
of NaN, with which no item is picked (`by_bias`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from .._base.arrays import cache_aligned
from .filters import Filter, arange, library_of_array
from .problem import Problem, Rows

# Rows that queries may pick are few if they are no larger a share of the corpus than this. Measured with 60,000 rows of
# 128 dimensions, 1 % of them to be picked: 64 searches take 0.05 times as long as without a filter, and 1.4 times by a
# scan of all rows.
_FEW = 1 / 16
# A copy of few rows takes no more than this.
_COPY_BYTES = 1 << 28

# What is made of all rows is made for so many queries at a time that it takes no more than this.
_WORKSPACE_BYTES = 1 << 28
# What a bias and what ids take meanwhile, in bytes for each row and query.
_BIAS_BYTES, _ID_BYTES = 16, 32


def narrowed(problem: Problem) -> Problem:
    """Return a problem whose lists of rows that may be picked are its pools; of masks of each query too, if few."""
    found = problem.constraints.filter
    if found is None:
        return problem
    if found.rows is None and isinstance(found.mask, np.ndarray) and found.mask.ndim == 2:
        found = _listed(found)
        problem = dataclasses.replace(problem, constraints=problem.constraints.filtered(found))
    return problem if found.rows is None else _pools(problem, found.rows)


def _listed(found: Filter) -> Filter:
    """Return a filter whose masks of each query have become lists of rows, if these are few."""
    if np.count_nonzero(found.mask) > _FEW * found.mask.size:
        return found
    if np.count_nonzero(found.mask, axis=1).max(initial=0) > _FEW * found.num_rows:
        return found
    return Filter(found.num_rows, rows=_rows_of(found.mask), exclude=found.exclude)


def listed(problem: Problem) -> Problem:
    """Return a problem whose pools are the rows that a mask leaves, however many these are."""
    found = problem.constraints.filter
    assert found is not None
    rows = _rows_of(np.atleast_2d(found.mask))
    return _pools(problem, np.broadcast_to(rows, (problem.num_queries, rows.shape[1])))


def _rows_of(mask: np.ndarray) -> np.ndarray:
    """Return the rows (Q, M) of masks (Q, N), ascending; padded with -1."""
    queries, rows = np.nonzero(mask)
    counts = np.bincount(queries, minlength=len(mask))
    lists = np.full((len(mask), int(counts.max(initial=0))), -1, np.int64)
    lists[queries, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)] = rows
    return lists


def few_rows(problem: Problem) -> tuple[Problem, np.ndarray] | None:
    """Return the problem over a copy of the rows that may be picked, and these rows, if they are few; else None."""
    found, rows = problem.constraints.filter, problem.rows
    if found is None or found.mask is None or found.mask.ndim == 2 or problem.constraints.initial is not None:
        return None
    if np.count_nonzero(found.mask) > _FEW * found.num_rows:
        return None
    ids = np.flatnonzero(found.mask)
    copied = [array for array in (rows.data, rows.codes) if array is not None]
    size = len(ids) * sum(array.shape[1] * array.itemsize for array in copied)
    # Rows that nobody has checked keep their numbers, for errors.
    if len(ids) < problem.k or size > _COPY_BYTES or rows.max_norm is None:
        return None
    data, codes = (None if array is None else _taken(array, ids) for array in (rows.data, rows.codes))
    names = [name for name in ("relevance", "bias") if getattr(problem, name) is not None]
    of_rows: dict[str, Any] = {name: np.take(getattr(problem, name), ids, axis=-1) for name in names}
    limits = dataclasses.replace(problem.constraints)
    for name in ("groups", "costs"):
        if (values := getattr(limits, name)) is not None:
            setattr(limits, name, np.take(values, ids, axis=-1))
    if limits.quotas is not None:
        limits.quotas = dataclasses.replace(limits.quotas, groups=np.take(limits.quotas.groups, ids, axis=-1))
    excluded = None
    if found.exclude is not None:
        places = np.searchsorted(ids, found.exclude).clip(max=len(ids) - 1)
        excluded = np.sort(np.where(ids[places] == found.exclude, places, -1), axis=1)
    few = Rows(
        data,
        rows.dtype,
        rows.metric,
        rows.norm,
        None if rows.scales is None else rows.scales[ids],
        max_norm=rows.max_norm,
        codes=codes,
        code_error=rows.code_error,
    )
    limits.filter = None if excluded is None else Filter(len(ids), exclude=excluded)
    if problem.options is not None:
        of_rows["options"] = problem.options.of_items(lambda values: np.take(values, ids, axis=-1))
    return dataclasses.replace(problem, rows=few, pool=len(ids), constraints=limits, **of_rows), ids


def _taken(array: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return np.take(array, ids, axis=0, out=cache_aligned(len(ids), array.shape[1], array.dtype), mode="clip")


def as_pools(problem: Problem) -> Problem:
    """Return a problem whose pools are the rows that may be picked: for kernels of pools."""
    if problem.constraints.filter is None:
        return problem
    library, num_rows = library_of_array(problem.lambda_d), len(problem.rows.data)
    ids = arange(library, num_rows, problem.lambda_d, "int32" if num_rows < 2**31 else "int64")
    return _pools(problem, library.broadcast_to(ids, (problem.num_queries, num_rows)))


def in_parts(problem: Problem, row_bytes: int = _ID_BYTES) -> Iterator[tuple[slice, Problem]]:
    """Yield as many queries at a time as a workspace holds, of so many bytes for each row of the corpus."""
    step = max(1, _WORKSPACE_BYTES // (row_bytes * len(problem.rows.data)))
    for begin in range(0, problem.num_queries, step):
        part = slice(begin, min(begin + step, problem.num_queries))
        yield part, problem.take(part)


def _pools(problem: Problem, rows: Any) -> Problem:
    """Return the problem with those of some rows (Q, M), ascending, that may be picked as its candidates."""
    found, library = problem.constraints.filter, library_of_array(rows)
    assert found is not None
    keep = found.keep(library, rows)
    keep[:, 1:] &= rows[:, 1:] != rows[:, :-1]
    candidates = library.where(keep, rows, -1)
    if not candidates.shape[1]:  # a pool has at least one position
        candidates = library.full_like(arange(library, len(rows), rows)[:, None], -1)

    def of_pools(values: Any) -> Any:
        """Return values of items of pools, where they are given for the rows of each query."""
        if values is None or values.ndim == 1:
            return values
        at = library.where(candidates < 0, 0, candidates)
        return values.reshape(-1)[at + arange(library, len(rows), rows)[:, None] * found.num_rows]

    return dataclasses.replace(
        problem,
        candidates=candidates,
        pool=candidates.shape[1],
        relevance=of_pools(problem.relevance),
        bias=of_pools(problem.bias),
        constraints=dataclasses.replace(problem.constraints, filter=None, costs=of_pools(problem.constraints.costs)),
        options=None if problem.options is None else problem.options.of_items(of_pools),
    )


def by_bias(problem: Problem) -> Iterator[tuple[slice, Problem]]:
    """Yield the queries of a whole corpus, on a device, with a bias of NaN for rows that may not be picked.

    All at once where the bias is one for all of them, else as many as a workspace holds. Initial items keep theirs:
    they are not picked anyway, and what has been picked is summed.
    """
    found, num_rows = problem.constraints.filter, len(problem.rows.data)
    initial = problem.constraints.initial
    assert found is not None
    library = library_of_array(problem.lambda_d)
    shared = not found.per_query and initial is None and (problem.bias is None or problem.bias.ndim == 1)
    for part, piece in [(slice(None), problem)] if shared else in_parts(problem, _BIAS_BYTES):
        limits = piece.constraints
        assert limits.filter is not None
        ids = arange(library, num_rows, piece.lambda_d)[None]
        if not shared:
            ids = ids + arange(library, piece.num_queries, ids)[:, None] * 0
        keep = limits.filter.keep(library, ids)
        if limits.initial is not None:
            keep = keep | limits.filter.among(library, ids, limits.initial)
        bias = piece.bias if piece.bias is not None else piece.lambda_d[:1] * 0
        bias = library.where(keep, bias, float("nan"))
        lambda_b = piece.lambda_b if piece.bias is not None else piece.lambda_b * 0 + 1
        bias = bias[0] if shared else bias
        yield part, dataclasses.replace(piece, bias=bias, lambda_b=lambda_b, constraints=limits.filtered(None))
