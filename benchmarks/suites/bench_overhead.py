"""A service's smallest call, one query and 20 candidates: all that lies between the Python call and its result."""

import pytest

from benchmarks.suites import selection as contenders
from benchmarks.suites import shapes


@pytest.mark.parametrize("shape", shapes.ONE_QUERY, ids=str)
def bench_one_query(race, problem, shape):
    made = problem(shape)
    entries = [
        contenders.ours("mmr", made, 0.75),
        contenders.ours("mmr", made, 0.75, given=True),
        *contenders.mmr_peers(made, 0.75),
    ]
    race("mmr", made, entries, lambda_d=0.75)
