"""The rules beside MMR and VRSD, out of pools, against pyversity's strategies."""

import pytest

from benchmarks.suites import peers, selection, shapes

# A rule, the options that make it pyversity's strategy, and the strategy.
RULES = (
    ("msd", {}, "msd"),
    ("dpp", {}, "dpp"),
    ("ssd", {}, "ssd"),
    ("coverage", {"kind": "cover"}, "cover"),
)
LAMBDA_D = 0.5  # pyversity's default


@pytest.mark.parametrize("shape", shapes.RULES, ids=str)
@pytest.mark.parametrize(("op", "options", "strategy"), RULES, ids=[rule[2] for rule in RULES])
def bench_rules(race, problem, op, options, strategy, shape):
    made = problem(shape)
    entries = [
        *selection.library(op, made, LAMBDA_D, **options),
        *peers.pyversity_call(made, strategy, LAMBDA_D),
        peers.floor(made, "float32"),
    ]
    race(selection.Selecting(op, made, entries, LAMBDA_D))
