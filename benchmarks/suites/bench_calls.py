"""One query a call: what a service pays for the smallest, and each drop-in beside its peer's call."""

import pytest

from benchmarks.suites import peers, selection, shapes

LAMBDA_D = 0.75


def race_calls(race, made, others, **options):
    """The library in its best form beside the others."""
    entries = [*selection.library("mmr", made, LAMBDA_D), *others(made, LAMBDA_D)]
    race(selection.Selecting("mmr", made, entries, LAMBDA_D, **options))


@pytest.mark.parametrize("shape", shapes.ONE_QUERY, ids=str)
def bench_one_query(race, problem, shape):
    """20 candidates: all that lies between the Python call and its result."""
    race_calls(race, problem(shape), peers.mmr_peers)


@pytest.mark.parametrize("shape", shapes.ONE_CALL, ids=str)
def bench_one_call(race, problem, shape):
    """The same arguments for a drop-in and its peer, against the batched op."""
    race_calls(race, problem(shape), peers.drop_ins, name="drop-in")
