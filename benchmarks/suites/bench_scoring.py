"""log p of one target a row, from logits and from hidden states: against torch, NumPy and the floors."""

import pytest

from benchmarks.harness.ledger import cores

pytest.importorskip("torch")

from benchmarks.suites.scoring import Problem, Scoring, of_hidden, of_logits, of_most_probable
from benchmarks.suites.scoring_shapes import DISTILLED, HIDDEN, LOGITS, RECORDED, THREADS


@pytest.mark.parametrize("shape", LOGITS, ids=str)
def bench_logits(race, problem, shape):
    made = problem(shape, Problem)
    race(Scoring(made, of_logits(made)))


@pytest.mark.parametrize("shape", HIDDEN, ids=str)
def bench_hidden(race, problem, shape):
    made = problem(shape, Problem)
    race(Scoring(made, of_hidden(made)))


@pytest.mark.parametrize("shape", RECORDED, ids=str)
def bench_recorded_logits(race, problem, shape):
    made = problem(shape, Problem)
    race(Scoring(made, of_logits(made)))


@pytest.mark.parametrize("shape", DISTILLED, ids=str)
def bench_most_probable(race, problem, shape):
    made = problem(shape, Problem)
    race(Scoring(made, of_most_probable(made)))


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("shape", THREADS, ids=str)
def bench_threads(race, problem, shape):
    made = problem(shape, Problem)
    race(Scoring(made, (of_logits if shape.D is None else of_hidden)(made)))
