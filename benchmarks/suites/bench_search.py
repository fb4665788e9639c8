"""Corpus.search, the exact nearest rows, against FAISS IndexFlatIP."""

import pytest

from benchmarks.suites import selection, shapes


@pytest.mark.parametrize("shape", shapes.SEARCH, ids=str)
def bench_search(race, problem, shape):
    made = problem(shape)
    entries = [
        *(selection.search(made, dtype) for dtype in shapes.DTYPES),
        *selection.faiss_search(made, picks=True),
        selection.matrix_product(made),
        selection.floor(made),
    ]
    race(selection.Selecting("search", made, entries))
