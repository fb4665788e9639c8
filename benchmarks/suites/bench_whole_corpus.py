"""Exact selection over the whole corpus against one exact search for the nearest rows, in batches of 256 queries."""

import pytest

from benchmarks.suites import peers, selection, shapes


@pytest.mark.parametrize(("shape", "lambda_d"), shapes.WHOLE, ids=str)
def bench_mmr(race, problem, shape, lambda_d):
    made = problem(shape)
    entries = [
        *(selection.ours("mmr", made, lambda_d, dtype=dtype) for dtype in shapes.DTYPES),
        *peers.nearest(made),
        selection.dense("mmr", made, lambda_d),
    ]
    race(selection.Selecting("mmr", made, entries, lambda_d))


@pytest.mark.parametrize("shape", sorted({shape for shape, _ in shapes.WHOLE}, key=str), ids=str)
def bench_vrsd(race, problem, shape):
    made = problem(shape)
    entries = [selection.ours("vrsd", made), *peers.nearest(made), selection.dense("vrsd", made)]
    race(selection.Selecting("vrsd", made, entries))
