"""Reproduce the papers' tables, in a checkout: ``python -m benchmarks.papers NAME``."""

from __future__ import annotations

from typing import Any

from ragsys_kernels import cli


def _load() -> Any:
    from benchmarks.papers import commands  # needs the extra cli

    return commands.app


if __name__ == "__main__":
    cli.run(_load, "python -m benchmarks.papers")
