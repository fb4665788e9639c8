"""Two threads against one on 10,000 queries."""

import pytest

from benchmarks.harness import ledger
from benchmarks.suites import selection as contenders
from benchmarks.suites import shapes


@pytest.mark.skipif(ledger.cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("shape", shapes.THREADS, ids=str)
def bench_threads(race, problem, shape):
    made = problem(shape)
    entries = [contenders.ours("mmr", made, 0.75, threads=threads) for threads in (1, 2)]
    race("mmr", made, entries, lambda_d=0.75, queries=made.shape.Q)
