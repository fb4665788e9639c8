"""Corpus.search, the exact nearest rows, against FAISS IndexFlatIP."""

import pytest

from benchmarks.suites import selection as contenders
from benchmarks.suites import shapes


@pytest.mark.parametrize("shape", shapes.SEARCH, ids=str)
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
