"""The help of the commands: its lines, its options, and the defaults that it names."""

import dataclasses
import inspect
import json
import re

import pytest
import typer
from command_options import called, check_defaults, check_help_is_filled, commands, defaults_of, given_to, shown
from commands import SELECT
from rich.text import Text
from typer.testing import CliRunner

import ragsys_kernels as rk
from ragsys_kernels import cli, comparison, offline
from ragsys_kernels.icl import quality
from ragsys_kernels.offline._spec import JobSpec
from ragsys_kernels.offline.ray.options import RayOptions
from ragsys_kernels.selection.parameters import OF_RULES, SCALARS


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


COMMANDS = commands(cli.app)


def test_each_command_imports_the_module_that_adds_it():
    """`cli._MODULES` names the module of every command of the first level, and no other."""
    added = {names[0]: command.callback.__module__ for names, command in COMMANDS.items() if names and command.callback}
    assert {name: module.split(".")[2] for name, module in added.items()} == cli._MODULES


@pytest.mark.parametrize("names", [(), *COMMANDS], ids=" ".join)
def test_lines_of_help_texts_are_filled(monkeypatch, names):
    check_help_is_filled(monkeypatch, cli.app, names)


@pytest.mark.parametrize("names", [(), *COMMANDS], ids=" ".join)
def test_help_texts_lose_no_words_in_brackets(names):
    """Which rich takes to be markup."""
    command = COMMANDS[names] if names else typer.main.get_command(cli.app)
    for each in (command, *command.params):
        text = getattr(each, "help", None) or ""
        assert Text.from_markup(text).plain == text.replace("\\[", "["), text


def test_the_help_says_what_a_line_of_tokens_may_have(run, folder):
    words = run(folder, "serve", "--help").stdout.replace("│", " ").split()
    assert {"[name=NAME]", "[role=read|admin]", "[queries_per_second=N]"} <= set(words)


# Command, what it calls, and what it has to be given.
CALLS = {
    ("select",): (offline, "select", ["--corpus", "c.npy", "--queries", "q.npy", "--out", "o"]),
    ("bias",): (offline, "bias", ["--pairs", "p.csv", "--model", "m", "--out", "o.npy"]),
    ("embed",): (offline, "embed", ["--texts", "t.csv", "--model", "m", "--out", "o.npy"]),
    ("corpus", "build"): (offline, "build_corpus", ["--corpus", "c.npy", "--out", "o"]),
    ("subset",): (offline, "subset", ["--corpus", "c.npy", "--out", "o.parquet", "--k", "3"]),
    ("dedupe",): (offline, "dedupe", ["--corpus", "c.npy", "--out", "o.parquet", "--threshold", "0.9"]),
    ("corpus", "append"): (offline, "append_corpus", ["--corpus", "c.npy", "--to", "o"]),
    ("corpus", "delete"): (offline, "delete_rows", ["--ids", "i.txt", "--from", "o"]),
    ("corpus", "sync"): (offline, "sync_corpus", ["--from", "x", "--to", "x"]),
    ("corpus", "compact"): (offline, "compact_corpus", ["o"]),
    ("plan",): (offline, "plan", ["--rows", "1e9", "--queries", "1e7"]),
    ("compare",): (comparison, "compare_files", ["--corpus", "c.npy", "--queries", "q.npy", "--out", "o"]),
}


def test_all_commands_with_options_are_compared():
    without = {("show-config",), ("bench",), ("job",), ("job", "status"), ("job", "verify")}
    without |= {("serve",), ("conform",)}  # limits: tests/serving; a function or a service: tests/conformance
    without |= {("show",)}  # which prints: tests/offline/test_embed.py
    assert set(COMMANDS) - without - set(CALLS) <= {("corpus",), ("corpus", "verify"), ("corpus", "show")}


@pytest.mark.parametrize("names", CALLS, ids=" ".join)
def test_defaults_of_options_are_those_of_the_function(monkeypatch, names):
    module, name, words = CALLS[names]
    parameters, seen = called(monkeypatch, cli.app, [*names, *words], module, name)
    defaults = defaults_of(parameters)
    if names == ("select",):  # without a corpus candidates come with their vectors
        assert defaults.pop("corpus") is None
    check_defaults(COMMANDS[names], defaults, seen)


@pytest.mark.parametrize("names", CALLS, ids=" ".join)
def test_every_option_reaches_the_function(monkeypatch, names):
    """Under its own name; and no parameter of a job is forgotten."""
    module, name, _ = CALLS[names]
    options = given_to(COMMANDS[names])
    words = [part for words, _ in options.values() for part in words]
    parameters, seen = called(monkeypatch, cli.app, [*names, *words], module, name)
    parameters = set(parameters) - {"progress", "stop"}
    expected = {name: str(value) for name, (_, value) in options.items() if name in parameters}
    assert {name: str(value) for name, value in seen.items() if name in parameters} == expected
    assert parameters == set(options) - {"quiet"}


LAMBDA_D, LAMBDA_B = (inspect.signature(rk.mmr).parameters[name].default for name in ("lambda_d", "lambda_b"))


def test_defaults_that_the_help_says_are_those_that_are_used(run, folder):
    """Of options that are None until the job knows more."""
    said = shown(COMMANDS["select",])
    run(folder, *SELECT)
    used = json.loads((folder / "out.job" / "_job.json").read_bytes())
    assert (said["pool"], said["lambda_d"], said["lambda_b"]) == (
        "100",
        f"{LAMBDA_D} for mmr and msd, {inspect.signature(rk.dpp).parameters['lambda_d'].default} for dpp, ssd and "
        "coverage, 0.25 for gist",
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
    assert float(said["cpus_per_worker"]) == RayOptions().cpus_per_worker
    assert float(said["ray_timeout"]) == RayOptions().wait
    select = {name: parameter.default for name, parameter in inspect.signature(offline.select).parameters.items()}
    held = {field.name: field.default for field in dataclasses.fields(JobSpec)}
    assert {name: value for name, value in held.items() if name in select} == {
        name: dataclasses.MISSING if value is inspect.Parameter.empty else value
        for name, value in select.items() if name in held
    }  # fmt: skip
    assert shown(COMMANDS["bias",])["template"] == quality.TEMPLATE.replace("\n", r"\n")


def test_jobs_and_ray_take_what_one_value_says():
    """With the same types and defaults; their own defaults are of files and of how they run."""
    select, ray = (inspect.signature(f).parameters for f in (offline.select, offline.selector_for_ray))
    corpus = inspect.signature(rk.Corpus.select).parameters
    for parameter in SCALARS:
        name = parameter.name
        unset = False if parameter.kind == "flag" else parameter.default
        expected = None if (parameter in OF_RULES and unset is not False) or name == "metric" else unset
        assert select[name].default == expected, name
        assert (select[name].annotation, select[name].default) == (ray[name].annotation, ray[name].default), name
        assert name in corpus
    for name in ("k", "method", "dtype", "device", "num_threads", "relevance_column", "candidate_ids"):
        assert (select[name].annotation, select[name].default) == (ray[name].annotation, ray[name].default), name


def test_the_papers_evaluations_are_elsewhere(run_python):
    code = "import sys; from ragsys_kernels.cli import main; sys.argv = ['ragsys-kernels', 'evaluate', 'vrsd']; main()"
    result = run_python(code, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: evaluate is python -m benchmarks.papers now, in a checkout of ragsys_kernels\n"


@pytest.mark.parametrize("module", ["typer", "rich", "pyarrow"])
def test_missing_extra_is_one_line(run_python, module):
    result = run_python(
        f"import sys; sys.modules[{module!r}] = None; from ragsys_kernels.cli import main; main()", check=False
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(rf"error: {module} is not installed: pip install '.+\[cli\]'\n", result.stderr)
