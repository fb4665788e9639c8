"""One call of each drop-in against its peer's, with the same arguments, and against the batched op."""

import pytest

from benchmarks.suites import selection as contenders
from benchmarks.suites import shapes


@pytest.mark.parametrize("shape", shapes.ONE_CALL, ids=str)
def bench_one_call(race, problem, shape):
    made = problem(shape)
    entries = [
        contenders.ours("mmr", made, 0.75),
        contenders.ours("mmr", made, 0.75, given=True),
        *contenders.drop_ins(made, 0.75),
    ]
    race("mmr", made, entries, lambda_d=0.75, recorded="drop-in")
