"""What the commands share: the application, options, one-line errors, progress."""

from __future__ import annotations

import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

import ragsys_kernels as rk

_LINE_INTERVAL = 5.0  # seconds between progress lines where there is no terminal

app = typer.Typer(
    help="Choose, for each query, the k candidates that are together most useful: relevant and not redundant.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

# Panels of the options' help.
INPUT, COLUMNS, RULE, RUN = "Input and output", "Columns of Parquet files", "Selection", "Running"
TEXTS = "Columns and text"


class WeightDtype(str, Enum):
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


def option(panel: str, text: str, *names: str, **options: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **options)


@contextmanager
def one_line_errors(command: str, interrupted: str = "interrupted, nothing was written") -> Iterator[None]:
    """Print warnings and expected errors as one line each; exit 1 after an error, 130 after an interrupt."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"warning: {_line(message)}", file=sys.stderr)

    # A terminated job cleans up like an interrupted one.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    except KeyboardInterrupt:
        print(f"error: {command}: {interrupted}", file=sys.stderr)
        raise typer.Exit(130) from None
    except (ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError, rk.BackendUnavailableError) as error:
        text = _line(error) or type(error).__name__
        print(f"error: {text if text.startswith(f'{command}: ') else f'{command}: {text}'}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _line(message: object) -> str:
    return " ".join(str(message).split())


@contextmanager
def progress_bar(
    quiet: bool, unit: str = "queries", before: str = "reading the corpus", during: str = "selecting"
) -> Iterator[Callable[[int, int], None] | None]:
    """Give a function to report (done, total) to: a bar on a terminal, else a line now and then."""
    console = Console(stderr=True)
    if quiet:
        yield None
    elif not console.is_terminal:
        yield _Lines(unit).report
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(unit),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(before, total=None)

            def report(done: int, total: int) -> None:
                if not done:
                    bar.reset(task, total=total, description=during)
                bar.update(task, completed=done)

            yield report


class _RateColumn(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {self._unit}/s" if task.speed else "")


class _Lines:
    """Progress for logs: a line every few seconds with rate and time left."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._start = self._last = time.monotonic()

    def report(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not done:
            self._start = self._last = now
        if not done or done == total or now - self._last < _LINE_INTERVAL:
            return
        self._last = now
        rate = done / (now - self._start)
        left = f"{(total - done) / rate:.0f} s left"
        print(f"{done} of {total} {self._unit}, {rate:.0f} {self._unit}/s, {left}", file=sys.stderr)
