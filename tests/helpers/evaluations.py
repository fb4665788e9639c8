"""Commands of the evaluations in this process, and what they find: an encoder without a model, or no packages."""

from importlib import metadata

from tiny_encoder import TinyEncoder
from typer.testing import CliRunner

from ragsys_kernels import cli
from ragsys_kernels.evaluation import _run


def invoke(name, *arguments):
    """Run ``ragsys-kernels evaluate`` of that name."""
    return CliRunner().invoke(cli.app, ["evaluate", name, *map(str, arguments)])


def use_tiny_encoder(monkeypatch):
    """Let every encoder that is given by name or path be the tiny one."""
    monkeypatch.setattr(_run, "SentenceTransformerEncoder", lambda *_, **__: TinyEncoder())


def without_packages(monkeypatch):
    """Let no package be installed that carries a model."""

    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
