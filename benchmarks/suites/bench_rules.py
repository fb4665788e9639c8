"""The rules beside MMR and VRSD, out of pools, against pyversity's strategies."""

import pytest

from benchmarks.suites import peers, selection, shapes


@pytest.mark.parametrize("shape", shapes.RULES, ids=str)
@pytest.mark.parametrize(("op", "options", "strategy"), shapes.STRATEGIES, ids=[x[2] for x in shapes.STRATEGIES])
def bench_rules(race, problem, op, options, strategy, shape):
    made = problem(shape)
    entries = [
        *selection.library(op, made, shapes.STRATEGY_LAMBDA, **options),
        *peers.pyversity_call(made, strategy, shapes.STRATEGY_LAMBDA),
        peers.floor(made, "float32"),
    ]
    race(selection.Selecting(op, made, entries, shapes.STRATEGY_LAMBDA))
