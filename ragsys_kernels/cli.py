"""The command ``ragsys-kernels``: options, a progress bar and one-line errors around the library's own functions."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import ragsys_kernels as rk

try:
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

    from ragsys_kernels import evaluation, offline
    from ragsys_kernels.icl.quality import TEMPLATE
except ModuleNotFoundError as error:
    # The console script imports this file before it can call `main`: this is the only place for the message.
    raise SystemExit(
        f"error: {(error.name or '').partition('.')[0]} is not installed: pip install 'ragsys_kernels[cli]'"
    ) from None

_LINE_INTERVAL = 5.0  # seconds between progress lines where there is no terminal

app = typer.Typer(
    help="Choose, for each query, the k candidates that are together most useful: relevant and not redundant.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
evaluate = typer.Typer(help="Make the papers' tables again, with real data and models.", no_args_is_help=True)
app.add_typer(evaluate, name="evaluate")


class Method(str, Enum):
    mmr = "mmr"
    vrsd = "vrsd"


class Metric(str, Enum):
    cosine = "cosine"
    dot = "dot"


class Dtype(str, Enum):
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"


class WeightDtype(str, Enum):
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


def _pool(text: str) -> int | str:
    if text == "all" or text.lstrip("-").isdigit():
        return text if text == "all" else int(text)
    raise typer.BadParameter("must be a number or 'all'")


_INPUT, _COLUMNS, _RULE, _RUN = "Input and output", "Columns of Parquet files", "Selection", "Running"
_TEXTS = "Columns and text"


def _in(panel: str, text: str, *names: str, **options: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **options)


@app.command()
def select(
    corpus: Annotated[Path, _in(_INPUT, "Vectors to choose from: .npy (N, D), float32 or float16, or .parquet.")],
    queries: Annotated[Path, _in(_INPUT, "Query vectors: .npy (Q, D), float32 or float16, or .parquet.")],
    out: Annotated[Path, _in(_INPUT, "Folder for the result, new or empty; it appears when the job is complete.")],
    candidates: Annotated[
        Path | None,
        _in(
            _INPUT,
            "Corpus rows to choose from for each query: .npy (Q, P), int32 or int64, padded with -1, or .parquet "
            "with a column of integer lists.",
            show_default="the --pool most relevant rows",
        ),
    ] = None,
    bias: Annotated[Path | None, _in(_INPUT, "Quality of each corpus row: .npy (N,), floats. MMR only.")] = None,
    groups: Annotated[Path | None, _in(_INPUT, "Group of each corpus row: .npy (N,), integers.")] = None,
    query_groups: Annotated[
        Path | None, _in(_INPUT, "Group of each query, whose rows it is not given: .npy (Q,), integers.")
    ] = None,
    overwrite: Annotated[bool, _in(_INPUT, "Replace the result of an earlier job in --out.", "--overwrite")] = False,
    vector_column: Annotated[str | None, _in(_COLUMNS, "Corpus vectors.", show_default="the only float list")] = None,
    id_column: Annotated[str | None, _in(_COLUMNS, "Corpus ids.", show_default="id, else row numbers")] = None,
    bias_column: Annotated[str | None, _in(_COLUMNS, "Bias, in the corpus file instead of --bias.")] = None,
    group_column: Annotated[str | None, _in(_COLUMNS, "Groups, in the corpus file instead of --groups.")] = None,
    query_vector_column: Annotated[
        str | None, _in(_COLUMNS, "Query vectors.", show_default="the only float list")
    ] = None,
    query_id_column: Annotated[str | None, _in(_COLUMNS, "Query ids.", show_default="id, else row numbers")] = None,
    query_group_column: Annotated[
        str | None, _in(_COLUMNS, "Query groups, in the queries file instead of --query-groups.")
    ] = None,
    candidate_column: Annotated[
        str | None, _in(_COLUMNS, "Candidate rows.", show_default="the only integer list")
    ] = None,
    method: Annotated[
        Method, _in(_RULE, "mmr: relevance with bias against redundancy; vrsd: similarity of the picks' sum.")
    ] = Method.mmr,
    k: Annotated[int, _in(_RULE, "Picks of each query.", metavar="N")] = 6,
    pool: Annotated[
        Any,
        _in(
            _RULE,
            "Choose from this many of the most relevant rows; 'all' is exact over the whole corpus.",
            parser=_pool,
            metavar="N|all",
            show_default="100",
        ),
    ] = None,
    lambda_d: Annotated[
        float | None, _in(_RULE, "Weight of relevance against redundancy, 0 to 1. MMR only.", show_default="0.75")
    ] = None,
    lambda_b: Annotated[
        float | None, _in(_RULE, "Weight of similarity against bias, 0 to 1. MMR only.", show_default="0.95")
    ] = None,
    max_per_group: Annotated[
        int | None, _in(_RULE, "Largest number of picks from one group.", metavar="N", show_default="no limit")
    ] = None,
    metric: Annotated[Metric, _in(_RULE, "Similarity; cosine normalises the vectors.")] = Metric.cosine,
    dtype: Annotated[Dtype, _in(_RUN, "How the corpus is held in memory.")] = Dtype.float32,
    backend: Annotated[str, _in(_RUN, "auto, cpu or reference; see the command show-config.")] = "auto",
    num_threads: Annotated[int | None, _in(_RUN, "Threads.", metavar="N", show_default="one per core")] = None,
    chunk_size: Annotated[int, _in(_RUN, "Queries in memory at a time.", metavar="N")] = 1024,
    shard_size: Annotated[int, _in(_RUN, "Queries in each Parquet file of the result.", metavar="N")] = 1_000_000,
    quiet: Annotated[bool, _in(_RUN, "Print warnings and errors only.", "--quiet")] = False,
) -> None:
    """Select for every query of a file and write the picks as Parquet files.

    Each row has query_id, ids (the picks, best first), scores, relevance, redundancy. Memory: the corpus and one chunk.
    """
    with _one_line_errors("select"), _progress(quiet) as progress:
        summary = offline.select(
            corpus=corpus,
            queries=queries,
            out=out,
            candidates=candidates,
            bias=bias,
            groups=groups,
            query_groups=query_groups,
            vector_column=vector_column,
            id_column=id_column,
            bias_column=bias_column,
            group_column=group_column,
            query_vector_column=query_vector_column,
            query_id_column=query_id_column,
            query_group_column=query_group_column,
            candidate_column=candidate_column,
            method=method.value,
            k=k,
            pool=pool,
            lambda_d=lambda_d,
            lambda_b=lambda_b,
            max_per_group=max_per_group,
            metric=metric.value,
            dtype=dtype.value,
            backend=backend,
            num_threads=num_threads,
            chunk_size=chunk_size,
            shard_size=shard_size,
            overwrite=overwrite,
            progress=progress,
        )
    if not quiet:
        print(summary)


@app.command()
def bias(
    pairs: Annotated[Path, _in(_INPUT, "Questions and answers: .parquet, .csv with a header, or .jsonl.")],
    model: Annotated[
        str, _in(_INPUT, "Causal language model: a name on the Hugging Face hub, a folder, or a .gguf file.")
    ],
    out: Annotated[
        Path,
        _in(_INPUT, "Result: .npy (N,) for select --bias, or .parquet with the input's columns and the bias."),
    ],
    cache: Annotated[
        Path | None,
        _in(
            _INPUT,
            "File of scores to use and to keep.",
            show_default="a hidden file beside --out until the job is complete",
        ),
    ] = None,
    overwrite: Annotated[bool, _in(_INPUT, "Replace a file at --out.", "--overwrite")] = False,
    question_column: Annotated[str, _in(_TEXTS, "Questions.")] = "question",
    answer_column: Annotated[str, _in(_TEXTS, "Answers.")] = "answer",
    bias_column: Annotated[
        str | None, _in(_TEXTS, "Name of the new column of a .parquet result.", show_default="bias")
    ] = None,
    template: Annotated[
        str,
        _in(
            _TEXTS,
            "Text of a demonstration, with {question} and, at its end, {answer}; before that is the prompt.",
            show_default=r"Q: {question}\nA: {answer}",
        ),
    ] = TEMPLATE,
    dtype: Annotated[WeightDtype, _in(_RUN, "How the weights are held in memory.")] = WeightDtype.float32,
    batch_tokens: Annotated[int, _in(_RUN, "Most tokens in one forward pass.", metavar="N")] = 512,
    backend: Annotated[str, _in(_RUN, "auto, cpu, numpy or reference; see the command show-config.")] = "auto",
    num_threads: Annotated[
        int | None, _in(_RUN, "Threads of torch and of the kernels.", metavar="N", show_default="one per core")
    ] = None,
    quiet: Annotated[bool, _in(_RUN, "Print warnings and errors only.", "--quiet")] = False,
) -> None:
    """Score every (question, answer) pair of a file with a language model: the quality bias of RAGSys.

    The bias is the mean log-probability of the answer's tokens given the question. A stopped job goes on when it is run
    again. Needs the extra lm.
    """
    with (
        _one_line_errors("bias", "interrupted; run it again to go on"),
        _progress(quiet, "pairs", "loading the model", "scoring") as progress,
    ):
        summary = offline.bias(
            pairs=pairs,
            model=model,
            out=out,
            cache=cache,
            overwrite=overwrite,
            question_column=question_column,
            answer_column=answer_column,
            bias_column=bias_column,
            template=template,
            dtype=dtype.value,
            batch_tokens=batch_tokens,
            backend=backend,
            num_threads=num_threads,
            progress=progress,
        )
    if not quiet:
        print(summary)


@evaluate.command("vrsd")
def evaluate_vrsd(
    out: Annotated[
        Path, _in(_INPUT, "Folder for the report: new, empty, or with an earlier one, which is replaced.")
    ] = Path("evaluation-output/vrsd"),
    data: Annotated[
        Path | None,
        _in(_INPUT, "Folder of the data sets.", show_default="RAGSYS_KERNELS_DATA, else ../shared/data"),
    ] = None,
    cache: Annotated[
        Path | None,
        _in(_INPUT, "Folder of embeddings and models to use and to keep.", show_default="RAGSYS_KERNELS_CACHE"),
    ] = None,
    encoder: Annotated[
        str, _in(_RUN, "mpnet (the paper's), minilm, a folder, or a name on the Hugging Face hub.")
    ] = "mpnet",
    sets: Annotated[
        str | None,
        _in(_RUN, "arc-da, openbookqa, puzzle, separated by commas.", metavar="NAMES", show_default="all"),
    ] = None,
    quick: Annotated[bool, _in(_RUN, "Only arc-da and puzzle, a third of the work.", "--quick")] = False,
    num_threads: Annotated[
        int | None, _in(_RUN, "Threads of torch and of the kernels.", metavar="N", show_default="one per core")
    ] = None,
    quiet: Annotated[bool, _in(_RUN, "Print warnings and errors only.", "--quiet")] = False,
) -> None:
    """VRSD against MMR, cosine top-k and BM25: how well the sum of the picks points to the query.

    Writes report.html and report.md with the paper's figures beside ours. A stopped run goes on when it is run again.
    Needs the extra evaluate and the packages of the encoder.
    """
    with (
        _one_line_errors("vrsd", "interrupted; run it again to go on"),
        _progress(quiet, "texts", "loading the model", "encoding") as progress,
    ):
        summary = evaluation.vrsd(
            out=out,
            data=data,
            cache=cache,
            encoder=encoder,
            sets=None if sets is None else [name.strip() for name in sets.split(",")],
            quick=quick,
            num_threads=num_threads,
            progress=progress,
        )
    if not quiet:
        print(summary)


@app.command()
def bench(
    quick: Annotated[
        bool, _in(_RUN, "Show on few synthetic vectors that everything works; no times are recorded.", "--quick")
    ] = False,
    only: Annotated[
        str | None, _in(_RUN, "Benchmarks to run, as for pytest -k.", "--select", metavar="EXPR", show_default="all")
    ] = None,
    static: Annotated[
        bool,
        _in(
            _RUN,
            "Time nothing: compile the GPU kernels, and write what they need and what bounds them. Needs no GPU.",
            "--static",
        ),
    ] = False,
) -> None:
    """Time the library and its peers in a checkout, then write ledger, report and plots to benchmarks/results.

    Needs the extra bench; --static the extra cuda. Every contender has one thread.
    """
    with _one_line_errors("bench"):
        roots = (Path.cwd(), Path(rk.__file__).parents[1])
        root = next((root for root in roots if (root / "benchmarks" / "conftest.py").is_file()), None)
        if root is None:
            raise FileNotFoundError(f"no folder benchmarks in {Path.cwd()}: run it in a checkout of ragsys_kernels")
        if static:
            if quick or only is not None:
                raise ValueError("--static must be given alone, got --quick or --select")
            if importlib.util.find_spec("triton") is None:
                raise ValueError("triton is not installed: pip install 'ragsys_kernels[cuda]'")
            code = subprocess.run([sys.executable, "benchmarks/report_static.py"], cwd=root).returncode
            if code:
                raise typer.Exit(code)
            return
        if importlib.util.find_spec("pytest_benchmark") is None:
            raise ValueError("pytest-benchmark is not installed: pip install 'ragsys_kernels[bench]'")
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        options = [*(["--quick"] if quick else []), *(["-k", only] if only else [])]
        commands = [["-m", "pytest", "benchmarks", *options], *([] if quick else [["benchmarks/report.py"]])]
        for command in commands:
            code = subprocess.run([sys.executable, *command], cwd=root, env={**os.environ, **threads}).returncode
            if code:
                raise typer.Exit(code)


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


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="ragsys-kernels")


@contextmanager
def _one_line_errors(command: str, interrupted: str = "interrupted, nothing was written") -> Iterator[None]:
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
def _progress(
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


if __name__ == "__main__":
    main()
