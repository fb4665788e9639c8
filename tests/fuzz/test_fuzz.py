"""Some seconds of each fuzzer (`make fuzz` runs them whole), and that they find what has been broken."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

import fuzz_calls
import fuzz_certificate
import fuzz_files
import fuzz_runs
import fuzz_selections
import selecting

from ragsys_kernels import _dispatch
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._base import checks as _checks
from ragsys_kernels.selection import certificate, cpu, validate


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch, compiled):
    """The fuzzer names an instruction set in the environment."""
    monkeypatch.setenv(selecting.ISA, _dispatch.isa())


def failures(fuzzer, amount, seed=1):
    return fuzz_runs.run(fuzzer, fuzz_runs.Share(seed, 0, 1, amount))


def finds(fuzzer, what=""):
    """Whether one of the first cases fails with such a text."""
    cases = (fuzz_runs.run(fuzzer, fuzz_runs.Share(1, number, 1, 1)) for number in range(400))
    return any(what in text for failed in cases for _, text in failed)


def test_selections_and_searches_are_what_exact_arithmetic_allows():
    assert failures(fuzz_selections.FUZZER, 700) == []


def test_certified_picks_are_those_of_the_whole_corpus():
    assert failures(fuzz_certificate.FUZZER, 800) == []


def test_a_certificate_that_says_too_much_is_found(monkeypatch):
    reach, draw, check = certificate.reach, fuzz_certificate.draw, fuzz_certificate.check

    def small(seed, number):
        held, queries, asked = draw(seed, number)
        held = {name: x[:100] if hasattr(x, "shape") else x for name, x in held.items()}
        return held, queries, {name: x for name, x in asked.items() if name not in ("initial", "exclude", "allowed")}

    monkeypatch.setattr(certificate, "reach", lambda *given: reach(*given) + 0.02)
    monkeypatch.setattr(fuzz_certificate, "draw", small)
    monkeypatch.setattr(fuzz_certificate, "check", lambda *given: check(*given[:3], "reference"))
    assert finds(fuzz_certificate.FUZZER)


@pytest.mark.parametrize("name", ["costs", "max_similarity", "initial"])
def test_a_limit_that_is_not_kept_is_found(monkeypatch, name):
    make = fuzz_selections.make

    def without(case, *given, **more):
        names = (name, "budget") if name == "costs" else (name,)
        less = {key: value for key, value in case.options.items() if key not in names}
        return make(dataclasses.replace(case, options=less), *given, **more)

    monkeypatch.setattr(fuzz_selections, "make", without)
    assert finds(fuzz_selections.FUZZER)


def test_odd_calls_end_in_documented_errors_or_right_results():
    assert failures(fuzz_calls.FUZZER, 200, seed=2) == []


def test_files_that_lie_end_in_one_error_or_a_whole_result():
    pytest.importorskip("faiss")
    assert failures(fuzz_files.FUZZER, 40) == []


def test_calls_that_end_as_none_may_are_found_and_told(monkeypatch):
    """A raw error, one that names nothing, an array read as another."""
    floats = validate.floats

    def raw(op, name, x, place=_arrays.HOST, more=()):
        return floats(op, name, np.array(x, np.float32), place)

    def nameless(op, name, x, place=_arrays.HOST, more=()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_arrays, "host_view", lambda op, _, x: host_view(op, "it", x))
            return floats(op, "it", x, place, more)

    def misread(op, name, x, place=_arrays.HOST, more=()):
        return floats(op, name, x, place, more) + (getattr(x, "dtype", None) != np.float32)

    host_view = _arrays.host_view
    for broken, what in ((raw, "raises "), (nameless, "the error does not name"), (misread, "in plain form")):
        for module in (_checks, validate):
            monkeypatch.setattr(module, "floats", broken)
        assert finds(fuzz_calls.FUZZER, what)


@pytest.mark.slow
def test_a_process_that_dies_is_named_and_the_others_go_on(tmp_path):
    script = tmp_path / "fuzz.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "from fuzz_runs import Fuzzer, main\n"
        "def run_one(seed, number):\n"
        "    if number in (3, 4):\n"
        "        os.kill(os.getpid(), signal.SIGSEGV if number == 3 else signal.SIGALRM)\n"
        "    return seed\n"
        "sys.exit(main(Fuzzer(__file__, 'cases', 10, run_one, lambda seed, number: f'of {number}'), 'doc'))\n"
    )
    run = [sys.executable, str(script), "--seed", "2", "--cases", "40"]
    result = subprocess.run(
        run, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path(fuzz_runs.__file__).parent)}
    )
    assert result.returncode == 1, result.stderr
    assert "case 3: crashes with SIGSEGV" in result.stdout
    assert "case 4: hangs for 60 s" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("cases: 40 in 22 cases of seed 2, 2 failures")


def test_what_is_broken_in_a_selection_is_found_and_told(monkeypatch):
    """A score that is off by a little, a bias that is not of the row, a tie that goes the other way."""
    select = cpu.run

    def off(problem, *arguments):
        selection, work = select(problem, *arguments)
        return selection._replace(scores=selection.scores + np.float32(2e-5)), work

    monkeypatch.setattr(cpu, "run", off)
    assert finds(fuzz_selections.FUZZER, "has score")

    def turned(problem, *arguments):
        if problem.bias is not None and problem.bias.ndim == 1:
            problem.bias = problem.bias[::-1].copy()
        return select(problem, *arguments)

    monkeypatch.setattr(cpu, "run", turned)
    assert finds(fuzz_selections.FUZZER)

    def last_of_equals(problem, *arguments):
        if problem.candidates is not None:
            problem.candidates = problem.candidates[:, ::-1].copy()
            problem.relevance = None if problem.relevance is None else problem.relevance[:, ::-1].copy()
        return select(problem, *arguments)

    monkeypatch.setattr(cpu, "run", last_of_equals)
    assert finds(fuzz_selections.FUZZER, "comes before")
