"""Corpus.search, the exact nearest rows, against FAISS IndexFlatIP."""

import pytest

from benchmarks.suites import peers, selection, shapes


@pytest.mark.parametrize("shape", shapes.SEARCH, ids=str)
def bench_search(race, problem, shape):
    made = problem(shape)
    entries = [
        *(selection.search(made, dtype) for dtype in shapes.DTYPES),
        *peers.faiss_search(made, picks=True),
        peers.matrix_product(made),
        peers.floor(made),
    ]
    race(selection.Selecting("search", made, entries))
