"""Searches by bits, interpreted, against all values in float64."""

import numpy as np

from ragsys_kernels.selection.triton import backend as triton_kernels
from ragsys_kernels.selection.triton import bit_search as triton_filter


def values_of(problem):
    """Values in float64 of rows as they are stored, and NaN where a query may not pick one."""
    vectors, queries = problem.rows.vectors(slice(None)), problem.queries.astype(np.float64)
    if problem.unit_queries:
        norms = np.linalg.norm(queries, axis=1, keepdims=True)
        queries = np.divide(queries, norms, out=np.zeros_like(queries), where=norms > 0)
    v = queries @ vectors.T
    if problem.bias is not None:
        weight = problem.lambda_b.astype(np.float64)[:, None]
        v = weight * v + (1 - weight) * problem.bias
    limits = problem.constraints
    if limits.filter is not None:
        every = np.broadcast_to(np.arange(problem.pool), v.shape)
        v[~limits.filter.keep(np, every)] = np.nan
    if limits.query_groups is not None:
        v[limits.query_groups[:, None] == limits.groups] = np.nan
    return v


def found(problem):
    """Rows and values of a search that goes by bits."""
    assert triton_filter.fits(problem)
    return map(np.asarray, triton_kernels.search(problem, 1))


def check(problem):
    """The best rows in order, up to the rounding of float32, none left out and none twice; lowest row of equal ones."""
    v = values_of(problem)
    scale = np.max(np.abs(v[np.isfinite(v)]), initial=1e-30)
    index, score = found(problem)
    for q, (rows, values) in enumerate(zip(index, score, strict=True)):
        real = rows >= 0
        assert real.sum() == min(problem.k, np.isfinite(v[q]).sum())
        assert len(set(rows[real])) == real.sum()
        rows, values = rows[real], values[real]
        np.testing.assert_allclose(values, v[q][rows], rtol=1e-5, atol=2e-6 * scale)
        best = np.sort(v[q][np.isfinite(v[q])])[::-1][: len(rows)]
        np.testing.assert_allclose(v[q][rows], best, rtol=1e-5, atol=2e-6 * scale)
        assert (values[:-1] >= values[1:]).all()
        tied = values[:-1] == values[1:]
        assert (rows[:-1] < rows[1:])[tied].all()
