"""Some seconds of each fuzzer (`make fuzz` runs them whole), and that they find what has been broken."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

import fuzz_runs
import fuzz_selections

from ragsys_kernels import _dispatch
from ragsys_kernels.selection import cpu


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch, compiled):
    """The fuzzer names an instruction set in the environment."""
    monkeypatch.setenv(fuzz_selections.ISA, _dispatch.isa())


def failures(fuzzer, amount, seed=1):
    return fuzz_runs.run(fuzzer, fuzz_runs.Share(seed, 0, 1, amount))


def test_selections_and_searches_are_what_brute_force_allows():
    assert failures(fuzz_selections.FUZZER, 1_500) == []


def test_what_is_broken_in_a_selection_is_found_and_told(monkeypatch):
    """A score that is off by a little, a bias that is not of the row, a tie that goes the other way."""
    select = cpu._run

    def off(problem, *arguments):
        selection, work = select(problem, *arguments)
        return selection._replace(scores=selection.scores + np.float32(2e-5)), work

    monkeypatch.setattr(cpu, "_run", off)
    found = failures(fuzz_selections.FUZZER, 200)
    assert found
    assert "score is" in found[0][1]

    def turned(problem, *arguments):
        if problem.bias is not None and problem.bias.ndim == 1:
            problem.bias = problem.bias[::-1].copy()
        return select(problem, *arguments)

    monkeypatch.setattr(cpu, "_run", turned)
    assert failures(fuzz_selections.FUZZER, 300)

    def last_of_equals(problem, *arguments):
        if problem.candidates is not None:
            problem.candidates = problem.candidates[:, ::-1].copy()
            problem.relevance = None if problem.relevance is None else problem.relevance[:, ::-1].copy()
        return select(problem, *arguments)

    monkeypatch.setattr(cpu, "_run", last_of_equals)
    assert any("comes before" in text for _, text in failures(fuzz_selections.FUZZER, 600))
