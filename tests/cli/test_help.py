"""The help of the commands: its lines, its options, and the defaults that it names."""

import dataclasses
import enum
import inspect
import itertools
import json
import re
import types
import typing

import pytest
from commands import SELECT
from typer.testing import CliRunner

import ragsys_kernels as rk
from ragsys_kernels import cli, comparison, evaluation, offline
from ragsys_kernels.cli import _app
from ragsys_kernels.evaluation.boolq import QUICK_QUESTIONS
from ragsys_kernels.evaluation.ralm import QUICK, RalmSizes
from ragsys_kernels.icl import quality
from ragsys_kernels.offline._spec import JobSpec
from ragsys_kernels.offline.ray import engine as ray_engine


def test_version_and_config(run, folder):
    assert run(folder, "--version").stdout == f"ragsys_kernels {rk.__version__}\n"
    result = run(folder, "show-config")
    assert result.returncode == 0
    assert rk.__version__ in result.stdout


@pytest.mark.parametrize(
    ("words", "completed"),
    [("corpus b", ["build"]), ("select --memory 2G --met", ["--method", "--metric"]), ("serve --co", ["--corpus"])],
)
def test_a_shell_completes_commands_and_options(words, completed):
    """As the script of `--install-completion` asks."""
    asked = {"COMP_WORDS": f"ragsys-kernels {words}", "COMP_CWORD": str(len(words.split()))}
    result = CliRunner().invoke(
        cli.app, prog_name="ragsys-kernels", env={"_RAGSYS_KERNELS_COMPLETE": "complete_bash", **asked}
    )
    assert set(completed) <= set(result.output.split())
    assert all(each.startswith(words.split()[-1]) for each in result.output.split())


def commands(group, *names):
    """All commands below a group: their names, and themselves."""
    for name, found in getattr(group, "commands", {}).items():
        yield (*names, name), found
        yield from commands(found, *names, name)


COMMANDS = dict(commands(_app.typer.main.get_command(cli.app)))


def test_each_command_imports_the_module_that_adds_it():
    """`cli._MODULES` names the module of every command of the first level, and no other."""
    added = {names[0]: command.callback.__module__ for names, command in COMMANDS.items() if names and command.callback}
    assert {name: module.split(".")[2] for name, module in added.items()} == cli._MODULES


@pytest.mark.parametrize("names", [(), *COMMANDS], ids=" ".join)
def test_lines_of_help_texts_are_filled(monkeypatch, names):
    """Wherever the lines of the docstrings end: a line ends where the next one's first word has no room."""
    from typer import rich_utils

    width = 80
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", width)
    result = CliRunner().invoke(cli.app, [*names, "--help"])
    assert result.exit_code == 0
    usage, *paragraphs = re.split(r"\n\s*\n", result.output.partition("╭")[0].strip())
    assert usage.startswith("Usage: ")
    assert paragraphs
    for paragraph in paragraphs:
        lines = [line.strip() for line in paragraph.splitlines()]
        for line, following in itertools.pairwise(lines):
            assert len(line) + 1 + len(following.split()[0]) > width - 2, (line, following)


# Command, what it calls, and what it has to be given.
CALLS = {
    ("select",): (offline, "select", ["--corpus", "c.npy", "--queries", "q.npy", "--out", "o"]),
    ("bias",): (offline, "bias", ["--pairs", "p.csv", "--model", "m", "--out", "o.npy"]),
    ("embed",): (offline, "embed", ["--texts", "t.csv", "--model", "m", "--out", "o.npy"]),
    ("corpus", "build"): (offline, "build_corpus", ["--corpus", "c.npy", "--out", "o"]),
    ("corpus", "append"): (offline, "append_corpus", ["--corpus", "c.npy", "--to", "o"]),
    ("corpus", "delete"): (offline, "delete_rows", ["--ids", "i.txt", "--from", "o"]),
    ("corpus", "sync"): (offline, "sync_corpus", ["--from", "x", "--to", "x"]),
    ("corpus", "compact"): (offline, "compact_corpus", ["o"]),
    ("compare",): (comparison, "compare_files", ["--corpus", "c.npy", "--queries", "q.npy", "--out", "o"]),
    ("evaluate", "vrsd"): (evaluation, "vrsd", []),
    ("evaluate", "vrsd-answers"): (evaluation, "vrsd_answers", []),
    ("evaluate", "ragsys"): (evaluation, "ragsys", []),
    ("evaluate", "ralm"): (evaluation, "ralm", []),
    ("evaluate", "aicl"): (evaluation, "aicl", []),
    ("evaluate", "boolq"): (evaluation, "boolq", []),
}
OF_THE_COMMAND = {"progress", "stop", "out"}  # what it does with a terminal, and where its report goes


def test_all_commands_with_options_are_compared():
    without = {("show-config",), ("bench",), ("job",), ("job", "status"), ("job", "verify"), ("evaluate",)}
    without |= {("serve",), ("conform",)}  # limits: tests/serving; a function or a service: tests/conformance
    without |= {("show",)}  # which prints: tests/offline/test_embed.py
    assert set(COMMANDS) - without - set(CALLS) <= {("corpus",), ("corpus", "verify"), ("corpus", "show")}


def called(monkeypatch, names, arguments):
    """The parameters of what a command calls, and what it is called with."""
    module, name, _ = CALLS[names]
    function, seen = getattr(module, name), {}
    monkeypatch.setattr(module, name, lambda **options: seen.update(options) or types.SimpleNamespace(complete=True))
    result = CliRunner().invoke(cli.app, [*names, *arguments])
    assert result.exit_code == 0, result.output
    return inspect.signature(function).parameters, seen


@pytest.mark.parametrize("names", CALLS, ids=" ".join)
def test_defaults_of_options_are_those_of_the_function(monkeypatch, names):
    parameters, seen = called(monkeypatch, names, CALLS[names][2])
    defaults = {
        parameter.name: parameter.default
        for parameter in parameters.values()
        if parameter.default is not inspect.Parameter.empty and parameter.name not in OF_THE_COMMAND
    }
    if names == ("evaluate", "aicl"):  # where the function's are "the usual", and MMR's lambda is no default of a rule
        assert defaults.pop("sizes") is None
        assert seen.pop("sizes") == evaluation.FULL
        assert seen.pop("rule") == defaults.pop("rule")._replace(lambda_d=LAMBDA_D)
    if names == ("select",):  # without a corpus candidates come with their vectors
        assert defaults.pop("corpus") is None
    if names == ("evaluate", "ralm"):
        assert (defaults.pop("sizes"), seen.pop("sizes")) == (None, {})
    given = {name: value for name, value in seen.items() if name in defaults}
    assert given == {
        name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items() if name in given
    }
    options = {option.name for option in COMMANDS[names].params} - {"quiet"}
    assert options & set(defaults) <= {*given, "quick"}  # which is in the sizes


# What is given to an option that has a form of its own, and what the function gets.
FORMS = {
    "pool": ("7", 7),
    "memory": ("2G", "2G"),
    "sets": ("sst-2, jigsaw", ["sst-2", "jigsaw"]),
    "lambdas": ("0, 0.5", [0.0, 0.5]),
    "methods": ("msd, dpp", ["msd", "dpp"]),
    "encoder": ("minilm", "minilm"),
}


def given(option, number):
    """An option and a value that is not its default, as arguments and as the function gets it."""
    if option.name in FORMS:
        text, value = FORMS[option.name]
        return [option.opts[0], text], value
    kind = option.type_descriptor.annotation
    kind = next((each for each in typing.get_args(kind) if each is not type(None)), kind)
    if kind is bool:
        return [(option.secondary_opts if option.default else option.opts)[0]], not option.default
    if issubclass(kind, enum.Enum):
        value = next(each.value for each in reversed(kind) if each is not option.default)
    else:
        value = number + 2 if kind is int else number / 64 if kind is float else f"a{number}"
    return ([option.opts[0]] if option.opts[0].startswith("-") else []) + [str(value)], value


@pytest.mark.parametrize("names", CALLS, ids=" ".join)
def test_every_option_reaches_the_function(monkeypatch, names):
    """Under its own name; and no parameter of a job is forgotten."""
    numbered = enumerate(COMMANDS[names].params)
    options = {option.name: given(option, number) for number, option in numbered if option.name != "every"}
    parameters, seen = called(monkeypatch, names, [part for words, _ in options.values() for part in words])
    parameters = set(parameters) - {"progress", "stop"}
    expected = {name: str(value) for name, (_, value) in options.items() if name in parameters}
    if names[-1] == "aicl":  # with --quick too, each of the sizes that is given counts
        expected |= {
            "rule": "Rule(method='a13', lambda_d=0.21875)",
            "sizes": str(dataclasses.replace(evaluation.QUICK, test=10)),
        }
        del expected["quick"]
    elif names[-1] == "ralm":
        sizes = ["windows", "window", "stride", "query", "dense_query", "document", "passage", "candidates"]
        expected["sizes"] = str({size: number + 12 for number, size in enumerate(sizes)})
    assert {name: str(value) for name, value in seen.items() if name in parameters} == expected
    assert names[0] == "evaluate" or parameters == set(options) - {"quiet"}


LAMBDA_D, LAMBDA_B = (inspect.signature(rk.mmr).parameters[name].default for name in ("lambda_d", "lambda_b"))


def shown(*names):
    """What the help says the defaults are that the options do not hold themselves."""
    return {
        option.name: option.show_default for option in COMMANDS[names].params if isinstance(option.show_default, str)
    }


def test_defaults_that_the_help_says_are_those_that_are_used(run, folder):
    """Of options that are None until the job knows more."""
    said = shown("select")
    run(folder, *SELECT)
    used = json.loads((folder / "out" / "_job.json").read_bytes())
    assert (said["pool"], said["lambda_d"], said["lambda_b"]) == (
        "100",
        f"{LAMBDA_D} for mmr and msd, 0.25 for gist, else {inspect.signature(rk.dpp).parameters['lambda_d'].default}",
        str(LAMBDA_B),
    )
    of_rules = {
        name: inspect.signature(getattr(rk, name)).parameters["lambda_d"].default
        for name, method in rk.METHODS.items()
        if "lambda_d" in method.parameters
    }
    assert of_rules == {"mmr": 0.75, "msd": 0.75, "dpp": 0.5, "ssd": 0.5, "coverage": 0.5, "gist": 0.25}
    pool = inspect.signature(rk.Corpus.select).parameters["pool"].default
    expected = {"pool": pool, "lambda_d": LAMBDA_D, "lambda_b": LAMBDA_B}
    assert {name: used["options"][name] for name in expected} == expected
    assert said["fingerprint"].endswith(used["fingerprint"])
    assert float(said["cpus_per_worker"]) == ray_engine.RayOptions().cpus_per_worker
    select = {name: parameter.default for name, parameter in inspect.signature(offline.select).parameters.items()}
    held = {field.name: field.default for field in dataclasses.fields(JobSpec)}
    assert {name: value for name, value in held.items() if name in select} == {
        name: dataclasses.MISSING if value is inspect.Parameter.empty else value
        for name, value in select.items() if name in held
    }  # fmt: skip
    assert inspect.signature(offline.selector_for_ray).parameters["k"].default == select["k"]
    assert shown("bias")["template"] == quality.TEMPLATE.replace("\n", r"\n")
    sizes = {"query_tokens": "query", "document_tokens": "document"}
    for name, text in shown("evaluate", "ralm").items():
        if name in ("windows", "window", "stride", "query_tokens", "document_tokens", "candidates"):
            usual, quick = (getattr(each, sizes.get(name, name)) for each in (RalmSizes(), QUICK))
            assert text == (f"{usual}" if usual == quick else f"{usual}, quick {quick}")
    assert shown("evaluate", "boolq")["questions"] == f"all, or {QUICK_QUESTIONS} if quick"
    assert shown("evaluate", "aicl")["items"] == f"all, or {evaluation.QUICK.test} if quick"


@pytest.mark.parametrize("module", ["typer", "rich", "pyarrow"])
def test_missing_extra_is_one_line(run_python, module):
    result = run_python(
        f"import sys; sys.modules[{module!r}] = None; from ragsys_kernels.cli import main; main()", check=False
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(rf"error: {module} is not installed: pip install '.+\[cli\]'\n", result.stderr)
