"""Exact selection over the whole corpus against one exact search for the nearest rows, in batches of 256 queries."""

import pytest

from benchmarks.suites import selection as contenders
from benchmarks.suites import shapes


@pytest.mark.parametrize(("shape", "lambda_d"), shapes.WHOLE, ids=str)
def bench_mmr(race, problem, shape, lambda_d):
    made = problem(shape)
    entries = [
        *(contenders.ours("mmr", made, lambda_d, dtype=dtype) for dtype in shapes.DTYPES),
        *nearest(made),
        contenders.dense("mmr", made, lambda_d),
    ]
    race("mmr", made, entries, lambda_d=lambda_d)


@pytest.mark.parametrize("shape", sorted({shape for shape, _ in shapes.WHOLE}, key=str), ids=str)
def bench_vrsd(race, problem, shape):
    made = problem(shape)
    race("vrsd", made, [contenders.ours("vrsd", made), *nearest(made), contenders.dense("vrsd", made)])


def nearest(made):
    faiss = [] if "FAISS" in contenders.missing() else [contenders.faiss_search(made, picks=False)]
    return [*faiss, contenders.matrix_product(made), contenders.floor(made)]
