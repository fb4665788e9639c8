"""What the commands share: the application, options, one-line errors, progress."""

from __future__ import annotations

import inspect
import logging
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, ClassVar, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text
from typer.core import TyperGroup
from typer.models import OptionInfo

import ragsys_kernels as rk

from .._base.checks import line
from .._base.files import without_password
from ..selection.methods import METHODS
from . import ClosedError

Progress = Callable[[int, int], None]  # is told what is done, and of how much

_LINE_INTERVAL = 5.0  # seconds between progress lines where there is no terminal


class Commands(typer.Typer):
    """Commands whose help fills the lines of any terminal, wherever the lines of the docstring end."""

    running: ClassVar[Callable[..., Any] | None] = None  # the last that was called

    def command(self, *arguments: Any, **options: Any) -> Callable[[Any], Any]:
        decorated = super().command

        def decorate(function: Any) -> Any:
            paragraphs = (inspect.getdoc(function) or "").split("\n\n")
            text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

            @wraps(function)
            def called(**given: Any) -> Any:
                Commands.running = function
                return function(**given)

            return decorated(*arguments, help=escape(text), **options)(called)

        return decorate


_UsageError: Any = typer.BadParameter.__base__  # of Click, or of Typer's own copy of it


@contextmanager
def _one_line_usage() -> Iterator[None]:
    """Print wrong usage as one line, as every other error, and exit with 2."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # of Click from 8.2 on: its text is the help
            raise
        at = f"; see {error.ctx.command_path} --help" if error.ctx else ""
        print(f"error: {line(error.format_message()).rstrip('.')}{at}", file=sys.stderr)
        raise typer.Exit(2) from None


class _Group(TyperGroup):
    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _one_line_usage():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _one_line_usage():
            return super().invoke(ctx)


# Of every application of commands.
SETTINGS: dict[str, Any] = {
    "cls": _Group,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 120},
}
app = Commands(
    help="Choose, for each query, the k candidates that are together most useful: relevant and not redundant.",
    **SETTINGS,
)


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


# Panels of the options' help.
INPUT, COLUMNS, RULE, RUN = "Input and output", "Columns and tensors of files", "Selection", "Running"
CLUSTER = "Engine"
TEXTS = "Columns and text"

# What gives the rows of a corpus what a function is given as an array.
_OF_ROWS = {
    "groups": ("group_column", "groups"),
    "costs": ("cost_column", "costs"),
    "times": ("time_column", "time"),
    "relevance": ("relevance_column",),
}

# The commands of functions of other names.
_COMMANDS = {
    "build_corpus": "corpus build",
    "append_corpus": "corpus append",
    "delete_rows": "corpus delete",
    "compact_corpus": "corpus compact",
    "sync_corpus": "corpus sync",
}
# What begins the message of an error, for which a command has its own name.
_FUNCTIONS = frozenset((*METHODS, "Corpus", "duplicates", "select", "show", "verify"))

INTERRUPTED, RESUMABLE = "interrupted, nothing was written", "interrupted; run it again to resume"


def option(panel: str, text: str, *names: str, **options: Any) -> Any:
    """Return an option of a panel; its text is no markup of rich, which takes words in brackets out."""
    return typer.Option(*names, help=escape(text), rich_help_panel=panel, **options)


@contextmanager
def one_line_errors(command: str, interrupted: str | Callable[[], str] = INTERRUPTED) -> Iterator[None]:
    """Print warnings and expected errors as one line each; exit 1 after an error, 128 + its number after a signal.

    ``interrupted`` is what is said after a signal, or returns it then.
    """
    said: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = shown(message)  # Python forgets what it has shown when any thread changes a filter
        if text not in said:
            said.add(text)
            print(f"warning: {text}", file=sys.stderr)

    # A job that is terminated cleans up as one that is interrupted.
    before, hook = signal.signal(signal.SIGTERM, _interrupt), sys.unraisablehook
    sys.unraisablehook = _interrupt_again
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    except KeyboardInterrupt as error:
        print(f"error: {command}: {interrupted if isinstance(interrupted, str) else interrupted()}", file=sys.stderr)
        raise typer.Exit(128 + (error.args[0] if error.args else signal.SIGINT)) from None
    except ClosedError:
        raise
    except (ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_expected(error):
            raise
        print(f"error: {worded(command, error)}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = hook


def worded(command: str, error: BaseException) -> str:
    """Return an error of a command as one line."""
    text = shown(error) or type(error).__name__
    if isinstance(error, MemoryError):
        text = f"not enough memory{f': {shown(error)}' if str(error) else ''}"
    name, colon, rest = text.partition(": ")
    text = rest if colon and name in _FUNCTIONS else text
    return text if text.startswith((f"{command}: ", f"{command} needs ")) else f"{command}: {text}"


def shown(message: object) -> str:
    """Return a message as one line, without the passwords of URLs, that speaks of the command and its options."""
    text = line(message)
    for function, command in _COMMANDS.items():
        if text.startswith((f"{function}: ", f"{function} needs ")):
            text = command + text.removeprefix(function)
    return _of_options(without_password(text))


def _of_options(text: str) -> str:
    """Return a message with the options of the command that runs in place of arguments of Python's functions.

    Of names in plain text only those of several words are taken to be arguments: the others are words as well.
    """
    flags = {} if Commands.running is None else _flags(Commands.running)

    def companion(found: re.Match[str]) -> str:
        own = [flags[name] for name in _OF_ROWS.get(found[2], (found[2],)) if name in flags]
        return found[1] + " or ".join(own) if own else found[0]

    def argument(found: re.Match[str]) -> str:
        if found[2] == "=False":
            return flags.get(found[0], found[0])
        return flags[found[1]] if found[1] in flags and ("_" in found[1] or found[2]) else found[0]

    text = re.sub(
        r"(must come with(?:out)? |, or (?=overwrite be given))(\w+)(?: of the corpus)?\b(?!\.\w|=)", companion, text
    )
    text = re.sub(r"\bgot \w+=None\b", "got none", text)
    return re.sub(r"(?<![\w./'\"=-])([a-z]\w*)(?:(=True|=False)\b|(?![\w/'\"=-]|\.\w))", argument, text)


def _flags(command: Callable[..., Any]) -> dict[str, str]:
    """Return the options of a command by the names of its parameters, and the negative forms by ``name=False``."""
    found = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind, *own = get_args(parameter.annotation) or (None,)
        for each in (one for one in own if isinstance(one, OptionInfo)):
            option = f"--{name.replace('_', '-')}"
            both = f"{option}/--no-{option[2:]}" if kind is bool else option
            found[name], slash, no = (each.param_decls or (both,))[0].partition("/")
            if slash:
                found[f"{name}=False"] = no
    return found


@contextmanager
def notices(quiet: bool) -> Iterator[None]:
    """Print what the library notes, unless `quiet`."""
    logger, handler = logging.getLogger("ragsys_kernels"), _Notices(logging.INFO)
    before = logger.level
    if not quiet:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def run(
    name: str,
    quiet: bool,
    bar: tuple[str, str, str],
    work: Callable[[Progress | None], object],
    noted: bool = False,
    interrupted: str | Callable[[], str] = RESUMABLE,
) -> None:
    """Call what can be resumed with a progress bar, of a unit, what is done before it and during it; print its summary.

    What the library notes is printed too if `noted`; `interrupted` is as of `one_line_errors`.
    """
    with one_line_errors(name, interrupted), notices(quiet or not noted), progress_bar(quiet, *bar) as progress:
        summary = work(progress)
    if not quiet:
        print(summary)


class _Notices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(f"notice: {shown(record.getMessage())}", file=sys.stderr)


class Stop:
    """Whether a signal wants the job to stop. A second signal, or one before the job looks here, interrupts it."""

    def __init__(self, finishing: str) -> None:
        self._message = f"stopping: finishing {finishing} first; a second signal stops at once\n".encode()
        self._looked, self._number = False, 0

    def __call__(self) -> bool:
        self._looked = True
        return self._number > 0

    @property
    def exit_code(self) -> int:
        return 128 + self._number

    def handle(self, number: int, frame: object) -> None:
        if self._number or not self._looked:
            _interrupt(number, frame)
        self._number = number
        os.write(sys.stderr.fileno(), self._message)  # print may be what the signal came into


@contextmanager
def finishing(what: str) -> Iterator[Stop]:
    """Yield a function that says whether to stop: after SIGINT and SIGTERM a job finishes `what` first."""
    stop = Stop(what)
    before = {number: signal.signal(number, stop.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def _interrupt_again(ignored: sys.UnraisableHookArgs) -> None:
    """Send the signal again if it came where Python ignores exceptions, as in a finaliser; show any other exception."""
    error = ignored.exc_value
    if not isinstance(error, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    # Later and by another thread: here it would be ignored too.
    again = threading.Timer(0.01, os.kill, (os.getpid(), error.args[0] if error.args else signal.SIGINT))
    again.daemon = True
    again.start()


def _is_expected(error: RuntimeError) -> bool:
    """Return whether it is a missing backend, or memory that torch did not get: a plain RuntimeError on a CPU."""
    unavailable, name = isinstance(error, rk.BackendUnavailableError), type(error).__name__
    return unavailable or name == "OutOfMemoryError" or "can't allocate memory" in str(error)


@contextmanager
def progress_bar(
    quiet: bool, unit: str = "queries", before: str = "reading the corpus", during: str = "selecting"
) -> Iterator[Progress | None]:
    """Yield a function that shows (done, total): as a bar on a terminal, else as a line every few seconds.

    Work of several steps reports each from its beginning: fewer done than before, or another total, is a new step.
    """
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
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task(before, total=None)

            def report(done: int, total: int) -> None:
                if total != bar.tasks[0].total or done < bar.tasks[0].completed:
                    # A new step: what was done before its first call has no rate.
                    bar.reset(task, total=total, completed=done, description=during)
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
        self._step: tuple[int, int] | None = None  # done and total at the last call
        self._first = 0  # done before the step's first call
        self._start = self._last = time.monotonic()

    def report(self, done: int, total: int) -> None:
        now = time.monotonic()
        new = self._step is None or total != self._step[1] or done < self._step[0]
        self._step = done, total
        if new or done == self._first:  # what was done before takes time again, which tells nothing of the rate
            self._first, self._start, self._last = done, now, now
            return
        if done == total or now - self._last < _LINE_INTERVAL:
            return
        self._last = now
        rate = (done - self._first) / (now - self._start)
        left = f"{(total - done) / rate:.0f} s left"
        print(f"{done} of {total} {self._unit}, {rate:.0f} {self._unit}/s, {left}", file=sys.stderr)
