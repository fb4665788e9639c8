"""The command ``ragsys-kernels``: options, a progress bar and one-line errors around the library's own functions."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import Annotated

import ragsys_kernels as rk

from .._base.extras import absent

try:
    import typer  # noqa: I001  (imports are in the order that commands have in the help)

    # Each adds its commands.
    from . import bench, files, compare, conform, corpus, evaluate, job, serve, texts  # noqa: F401
    from ._app import app
except ModuleNotFoundError as error:
    # The console script imports this file before it can call `main`: this is the only place for the message.
    raise SystemExit(f"error: {absent((error.name or '').partition('.')[0], 'cli')}") from None


@app.command()
def show_config() -> None:
    """Print versions, the backends with the reason why each can or cannot run, and the instruction set."""
    rk.show_config()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ragsys_kernels {rk.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _leave_threads() -> None:
    """End the process of an interrupted command that leaves a thread.

    Python's own end stops threads where they are, and aborts if that is within C++.
    """
    stop = sys.exc_info()[1]
    if not (isinstance(stop, SystemExit) and isinstance(stop.code, int) and stop.code > 128):
        return
    if any(thread.daemon for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(stop.code)


def main() -> None:
    """Run the command line; the entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    try:
        app(prog_name="ragsys-kernels")
    finally:
        _leave_threads()
