"""Corpus.search, the exact nearest rows, against FAISS IndexFlatIP."""

from dataclasses import replace

import contenders
import pytest
import shapes

SHAPES = [replace(shape, K=n) for shape, lambda_d in shapes.WHOLE if lambda_d == 0.75 for n in (10, 100)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def bench_search(race, problem, shape):
    made = problem(shape)
    faiss = [] if "FAISS" in contenders.missing() else [contenders.faiss_search(made, picks=True)]
    entries = [
        *(contenders.search(made, dtype) for dtype in shapes.DTYPES),
        *faiss,
        contenders.matrix_product(made),
        contenders.floor(made),
    ]
    race("search", made, entries)
