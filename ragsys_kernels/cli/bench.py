"""The command ``bench``: the benchmarks of a checkout."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import ragsys_kernels as rk

from .._base.extras import absent
from ._app import RUN, app, one_line_errors, option


@app.command()
def bench(
    quick: Annotated[
        bool, option(RUN, "Run everything on few synthetic vectors and record no times.", "--quick")
    ] = False,
    only: Annotated[
        str | None,
        option(
            RUN,
            "Run only the benchmarks that match, as pytest -k does.",
            "--select",
            metavar="EXPR",
            show_default="all",
        ),
    ] = None,
    static: Annotated[
        bool,
        option(
            RUN,
            "Only compile the GPU kernels, and write what they need and what bounds them; needs no GPU.",
            "--static",
        ),
    ] = False,
    host: Annotated[
        bool,
        option(
            RUN,
            "Only time what the host does for calls on a device, with launches that do nothing; needs no GPU.",
            "--host",
        ),
    ] = False,
) -> None:
    """Time the library and its peers in a checkout, then write ledger, report and plots to benchmarks/results.

    Needs the extra bench; --static and --host the extra cuda. Every contender has one thread.
    """
    with one_line_errors("bench"):
        roots = (Path.cwd(), Path(rk.__file__).parents[1])
        root = next((root for root in roots if (root / "benchmarks" / "conftest.py").is_file()), None)
        if root is None:
            raise FileNotFoundError(f"no folder benchmarks in {Path.cwd()}: run it in a checkout of ragsys_kernels")
        if static or host:
            if quick or only is not None or (static and host):
                given = "--static" if static else "--host"
                raise ValueError(f"{given} must be given alone, got --quick, --select or the other")
            if importlib.util.find_spec("triton") is None:
                raise ValueError(absent("triton", "cuda"))
            command = ["benchmarks.reports.gpu", "--compile"] if static else ["benchmarks.gpu.host"]
            code = subprocess.run([sys.executable, "-m", *command], cwd=root).returncode
            if code:
                raise typer.Exit(code)
            return
        if importlib.util.find_spec("pytest_benchmark") is None:
            raise ValueError(absent("pytest-benchmark", "bench"))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        options = [*(["--quick"] if quick else []), *(["-k", only] if only else [])]
        commands = [["-m", "pytest", "benchmarks", *options], *([] if quick else [["-m", "benchmarks.reports"]])]
        for command in commands:
            code = subprocess.run([sys.executable, *command], cwd=root, env={**os.environ, **threads}).returncode
            if code:
                raise typer.Exit(code)
