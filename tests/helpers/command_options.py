"""Commands of an application of Typer: each with its options, and what it calls with them."""

import enum
import inspect
import itertools
import re
import types
import typing

import pytest

pytest.importorskip("typer")

import typer
from typer import rich_utils
from typer.testing import CliRunner

OF_THE_COMMAND = {"progress", "stop", "out"}  # what it does with a terminal, and where its report goes


def commands(app):
    """All commands of an application: their names, and themselves."""
    return dict(_below(typer.main.get_command(app)))


def _below(group, *names):
    for name, found in getattr(group, "commands", {}).items():
        yield (*names, name), found
        yield from _below(found, *names, name)


def check_help_is_filled(monkeypatch, app, names):
    """Wherever the lines of the docstring end: a line ends where the next one's first word has no room."""
    width = 80
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", width)
    result = CliRunner().invoke(app, [*names, "--help"])
    assert result.exit_code == 0
    usage, *paragraphs = re.split(r"\n\s*\n", result.output.partition("╭")[0].strip())
    assert usage.startswith("Usage: ")
    assert paragraphs
    for paragraph in paragraphs:
        lines = [line.strip() for line in paragraph.splitlines()]
        for line, following in itertools.pairwise(lines):
            assert len(line) + 1 + len(following.split()[0]) > width - 2, (line, following)


def called(monkeypatch, app, words, module, name):
    """The parameters of the function that a command calls, and what it is called with."""
    function, seen = getattr(module, name), {}
    monkeypatch.setattr(module, name, lambda **options: seen.update(options) or types.SimpleNamespace(complete=True))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return inspect.signature(function).parameters, seen


def defaults_of(parameters):
    """Those of a function, but for what is the command's own."""
    return {
        parameter.name: parameter.default
        for parameter in parameters.values()
        if parameter.default is not inspect.Parameter.empty and parameter.name not in OF_THE_COMMAND
    }


def check_defaults(command, defaults, seen):
    """What a command without options calls its function with are the function's defaults, and no option is left out."""
    given = {name: value for name, value in seen.items() if name in defaults}
    assert given == {
        name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items() if name in given
    }
    options = {option.name for option in command.params} - {"quiet"}
    assert options & set(defaults) <= {*given, "quick"}  # which is in the sizes


# What is given to an option that has a form of its own, and what the function gets.
FORMS = {
    "pool": ("7", 7),
    "memory": ("2G", "2G"),
    "half_life": ("7d", 604_800.0),
    "max_per_group": ("3", 3),
    "min_per_group": ("a=1,b=2", {"a": 1, "b": 2}),
    "now": ("2026-03-31", 1_774_915_200.0),
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
    words = ([option.opts[0]] if option.opts[0].startswith("-") else []) + [str(value)]
    return words, [value] if option.multiple else value


def given_to(command):
    """For each option a value that is not its default: as words, and as the function gets it."""
    numbered = enumerate(command.params)
    return {option.name: given(option, number) for number, option in numbered if option.name != "every"}


def shown(command):
    """What the help says the defaults are that the options do not hold themselves."""
    return {option.name: option.show_default for option in command.params if isinstance(option.show_default, str)}
