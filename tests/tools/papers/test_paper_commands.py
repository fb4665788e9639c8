"""The commands of the evaluations: their help, their options, and the defaults that they name."""

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_options import called, check_defaults, check_help_is_filled, commands, defaults_of, given_to, shown

import ragsys_kernels as rk
from benchmarks import papers
from benchmarks.papers.boolq import QUICK_QUESTIONS
from benchmarks.papers.commands import app
from benchmarks.papers.ralm import QUICK, RalmSizes

COMMANDS = {names[0]: command for names, command in commands(app).items()}
LAMBDA_D = inspect.signature(rk.mmr).parameters["lambda_d"].default


def test_each_evaluation_has_a_command():
    functions = {name for name in papers.__all__ if callable(getattr(papers, name))} - {"Sizes"}
    assert set(COMMANDS) == {name.replace("_", "-") for name in functions}


@pytest.mark.parametrize("names", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_lines_of_help_texts_are_filled(monkeypatch, names):
    check_help_is_filled(monkeypatch, app, names)


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_of_options_are_those_of_the_function(monkeypatch, name):
    parameters, seen = called(monkeypatch, app, [name], papers, name.replace("-", "_"))
    defaults = defaults_of(parameters)
    if name == "aicl":  # where the function's are "the usual", and MMR's lambda is no default of a rule
        assert defaults.pop("sizes") is None
        assert seen.pop("sizes") == papers.FULL
        assert seen.pop("rule") == defaults.pop("rule")._replace(lambda_d=LAMBDA_D)
    if name == "ralm":
        assert (defaults.pop("sizes"), seen.pop("sizes")) == (None, {})
    check_defaults(COMMANDS[name], defaults, seen)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_reaches_the_function(monkeypatch, name):
    options = given_to(COMMANDS[name])
    words = [part for words, _ in options.values() for part in words]
    parameters, seen = called(monkeypatch, app, [name, *words], papers, name.replace("-", "_"))
    expected = {option: str(value) for option, (_, value) in options.items() if option in parameters}
    if name == "aicl":  # with --quick too, each of the sizes that is given counts
        expected |= {
            "rule": "Rule(method='a13', lambda_d=0.21875)",
            "sizes": str(dataclasses.replace(papers.QUICK, test=10)),
        }
        del expected["quick"]
    elif name == "ralm":
        sizes = ["windows", "window", "stride", "query", "dense_query", "document", "passage", "candidates"]
        expected["sizes"] = str({size: number + 12 for number, size in enumerate(sizes)})
    assert {option: str(value) for option, value in seen.items() if option != "progress"} == expected


def test_defaults_that_the_help_says_are_those_that_are_used():
    sizes = {"query_tokens": "query", "document_tokens": "document"}
    for name, text in shown(COMMANDS["ralm"]).items():
        if name in ("windows", "window", "stride", "query_tokens", "document_tokens", "candidates"):
            usual, quick = (getattr(each, sizes.get(name, name)) for each in (RalmSizes(), QUICK))
            assert text == (f"{usual}" if usual == quick else f"{usual}, quick {quick}")
    assert shown(COMMANDS["boolq"])["questions"] == f"all, or {QUICK_QUESTIONS} if quick"
    assert shown(COMMANDS["aicl"])["items"] == f"all, or {papers.QUICK.test} if quick"


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["vrsd", "--sets", "x"], 1, "error: vrsd: set must be one of arc-da, openbookqa, puzzle, got 'x'\n"),
        (["ragsys", "--lambdas", "x"], 1, "error: ragsys: lambdas must be numbers separated by commas, got 'x'\n"),
        (["other"], 2, "No such command 'other'"),
    ],
)
def test_errors_are_one_line(tmp_path, words, status, error):
    """In a process of its own, as it is called in a checkout."""
    root = Path(papers.__file__).parents[2]
    out = ["--out", tmp_path / "out"] if status == 1 else []
    command = [sys.executable, "-m", "benchmarks.papers", *words, *out]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (status, "")
    assert result.stderr == error if status == 1 else error in result.stderr
    assert not (tmp_path / "out").exists()


def test_missing_extra_is_one_line(run_python):
    code = "import runpy, sys; sys.modules['typer'] = None; runpy.run_module('benchmarks.papers', run_name='__main__')"
    result = run_python(code, package=Path(papers.__file__).parents[2], check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(r"error: typer is not installed: pip install '.+\[cli\]'\n", result.stderr)
