"""The command line in a process of its own, and a command of a job."""

import sys

import pytest

for module in ("typer", "pyarrow"):
    pytest.importorskip(module)

COMMAND = [sys.executable, "-m", "ragsys_kernels.cli"]
SELECT = ("select", "--corpus", "corpus.npy", "--queries", "queries.npy", "--out", "out")
