"""The command ``ragsys-kernels``: options, a progress bar and one-line errors around the library's own functions."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .._base.extras import absent

# The module that adds a command, imported when the command is called; all of them, in this order, for the help of all.
_MODULES = {
    "bench": "bench", "select": "files", "bias": "files", "compare": "compare", "conform": "conform",
    "serve": "serve", "embed": "texts", "show": "texts", "show-config": "config",
    "corpus": "corpus", "job": "job", "subset": "subset", "dedupe": "subset", "plan": "plan",
}  # fmt: skip


def _load(command: str = "") -> Any:
    """Return the application with a command, or with all."""
    if command == "evaluate":
        raise SystemExit("error: evaluate is python -m benchmarks.papers now, in a checkout of ragsys_kernels")
    app = import_module("._app", __name__)
    for module in dict.fromkeys([_MODULES[command]] if command in _MODULES else _MODULES.values()):
        import_module(f".{module}", __name__)
    return app.app


def __getattr__(name: str) -> Any:
    if name == "app":
        return _load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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


def run(load: Callable[[], Any], name: str) -> None:
    """Load an application of commands and run it; a package that is missing then is one line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    try:
        app = load()
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {absent((error.name or '').partition('.')[0], 'cli')}") from None
    try:
        app(prog_name=name)
    except OSError as error:  # what no command reports as its own: help or the version, written to a full disk
        raise SystemExit(f"error: {error}") from None
    finally:
        _leave_threads()


def main() -> None:
    """Run the command line; the entry point of the console script."""
    run(lambda: _load(next((word for word in sys.argv[1:] if not word.startswith("-")), "")), "ragsys-kernels")
