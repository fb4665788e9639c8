"""The command ``ragsys-kernels``: options, a progress bar and one-line errors around the library's own functions."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


_SIGPIPE = 13  # signal has it on POSIX alone


class ClosedError(OSError):
    """What is printed has lost its reader, as `head` goes: no error of a file or a service.

    It has no number, and is no BrokenPipeError, of which Typer and rich make an exit code of their own.
    """


@contextmanager
def _to_its_reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ClosedError from None


class _Printed(io.TextIOWrapper):
    """Standard output or error."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer, stream.encoding, "backslashreplace",  # names of files may be any bytes
            line_buffering=stream.line_buffering, write_through=stream.write_through,
        )  # fmt: skip

    def write(self, text: str) -> int:
        with _to_its_reader():
            return super().write(text)

    def flush(self) -> None:
        with _to_its_reader():
            super().flush()


@contextmanager
def _printing() -> Iterator[None]:
    """Have the process end silently, as of SIGPIPE, where the reader of what it prints has gone."""
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    printed = {name: _Printed(stream) for name, stream in streams.items() if isinstance(stream, io.TextIOWrapper)}
    vars(sys).update(printed)
    try:
        yield
    except ClosedError:
        raise SystemExit(128 + _SIGPIPE) from None
    finally:
        for name, each in printed.items():
            try:
                each.detach()  # which flushes it
            except OSError:  # has been said; Python would say it again when it flushes what is left
                os.dup2(os.open(os.devnull, os.O_WRONLY), streams[name].fileno())
        vars(sys).update(streams)


def run(load: Callable[[], Any], name: str) -> None:
    """Load an application of commands and run it; a package that is missing then is one line."""
    try:
        with _printing():
            _run(load, name)
    finally:
        _leave_threads()


def _run(load: Callable[[], Any], name: str) -> None:
    try:
        app = load()
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {absent((error.name or '').partition('.')[0], 'cli')}") from None
    try:
        try:
            app(prog_name=name)
        finally:
            sys.stdout.flush()
    except ClosedError:
        raise
    except OSError as error:  # what no command reports as its own: help or the version, written to a full disk
        raise SystemExit(f"error: {error}") from None


def main() -> None:
    """Run the command line; the entry point of the console script."""
    run(lambda: _load(next((word for word in sys.argv[1:] if not word.startswith("-")), "")), "ragsys-kernels")
