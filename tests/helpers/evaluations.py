"""Commands of the evaluations in this process, what they find (an encoder, a model), reports."""

import csv
import json
from functools import cache

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("typer")

import lm_models
from tiny_encoder import TinyEncoder
from typer.testing import CliRunner

from benchmarks.papers import _run, commands  # commands are made of the functions, before a test replaces one
from ragsys_kernels.icl import HuggingFaceModel


def invoke(name, *arguments):
    """Run ``python -m benchmarks.papers`` of that name."""
    return CliRunner().invoke(commands.app, [name, *map(str, arguments)])


@cache
def model(kind="llama"):
    """A tiny model with its tokenizer, the same for all tests."""
    return HuggingFaceModel(lm_models.model(kind), lm_models.tokenizer())


def use_tiny_encoder(monkeypatch):
    """Let every encoder that is given by name or path be the tiny one."""
    monkeypatch.setattr(_run, "SentenceTransformerEncoder", lambda *_, **__: TinyEncoder())


def settings_of(out):
    """What a report says of its run."""
    return json.loads((out / "report.json").read_text())["settings"]


def values_of(out):
    """The rows of ``values.csv``."""
    return list(csv.DictReader((out / "values.csv").read_text().splitlines()))


def check_files(out, plots, texts):
    """The folder has the files of a report with these plots, and none of the texts of the data is in them."""
    names = {path.name for path in out.iterdir()}
    assert names == {*plots, "report.html", "report.json", "report.md", "values.csv"}
    everything = "".join((out / name).read_text() for name in names if not name.endswith(".png"))
    assert not [text for text in texts if text in everything]


def stopping(when):
    """A progress that interrupts its run where that is so of what is done and of the whole."""

    def progress(done, total):
        if when(done, total):
            raise KeyboardInterrupt

    return progress
