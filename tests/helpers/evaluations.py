"""Commands of the evaluations in this process, and an encoder without a model for them."""

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
