"""Two threads against one on 10,000 queries."""

import pytest

from benchmarks.harness.ledger import cores
from benchmarks.suites import selection, shapes


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("shape", shapes.THREADS, ids=str)
def bench_threads(race, problem, shape):
    made = problem(shape)
    entries = [selection.ours("mmr", made, 0.75, threads=threads) for threads in (1, 2)]
    race(selection.Selecting("mmr", made, entries, 0.75, queries=made.shape.Q))
