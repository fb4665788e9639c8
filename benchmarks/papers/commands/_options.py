"""What the commands share: the application, options in the same words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from benchmarks import papers
from ragsys_kernels.cli._app import INPUT, RUN, SETTINGS, Commands, option, run
from ragsys_kernels.cli._options import Quiet
from ragsys_kernels.cli._takes import Command, takes


class WeightDtype(str, Enum):
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


app = Commands(help="Reproduce the papers' tables, with real data and models.", add_completion=False, **SETTINGS)

Out = Annotated[Path, option(INPUT, "Folder of the report: new, empty, or with an earlier report, which is replaced.")]
Data = Annotated[
    Path | None,
    option(INPUT, "Folder that holds the data sets.", show_default="RAGSYS_KERNELS_DATA, else ../shared/data"),
]
Cache = Annotated[
    Path | None,
    option(
        INPUT,
        "Folder that keeps embeddings, scores, answers and models for later runs.",
        show_default="RAGSYS_KERNELS_CACHE, else ~/.cache/ragsys_kernels",
    ),
]
Model = Annotated[
    str,
    option(RUN, "Language model: smollm2 (from a package), a folder, a .gguf file, or a name on the Hugging Face hub."),
]
Dtype = Annotated[WeightDtype, option(RUN, "Type of the model's weights in memory.")]
Encoder = Annotated[
    str, option(RUN, "Text encoder: minilm, mpnet (the VRSD paper's), a folder, or a name on the Hugging Face hub.")
]
QuestionSets = Annotated[
    str | None,
    option(RUN, "Data sets, separated by commas: arc-da, openbookqa, puzzle.", metavar="NAMES", show_default="all"),
]
NumThreads = Annotated[
    int | None, option(RUN, "Number of threads of torch and of the kernels.", metavar="N", show_default="one per core")
]


def command(
    name: str,
    bar: tuple[str, str, str] = ("texts", "loading the models", "working"),
    **options: Any,
) -> Callable[[Callable[..., dict[str, Any]]], Command]:
    """Add the command of the evaluation of that name, with these options and those that all evaluations have.

    The decorated function gets the values of the command line and returns the arguments of the evaluation.
    """

    function = name.replace("-", "_")

    def decorate(arguments: Callable[..., dict[str, Any]]) -> Command:
        def called(out: Path, quiet: bool, **given: Any) -> None:
            evaluated = getattr(papers, function)
            run(name, quiet, bar, lambda progress: evaluated(out=out, progress=progress, **arguments(**given)))

        own = inspect.signature(arguments, eval_str=True).parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        place = inspect.Parameter("out", kind, default=Path("evaluation-output", name), annotation=Out)
        silent = inspect.Parameter("quiet", kind, default=False, annotation=Quiet)
        shown = [each.replace(kind=kind) for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
        called.__signature__ = inspect.Signature([place, *shown, silent])  # type: ignore[attr-defined]
        called.__doc__, called.__name__ = arguments.__doc__, arguments.__name__
        every = {"out": ..., "data": Data, "cache": Cache, **options, "num_threads": NumThreads}
        added: Command = app.command(name)(takes(getattr(papers, function), **every)(called))
        return added

    return decorate


def names_of(text: str | None) -> list[str] | None:
    """Return the names of an option that are separated by commas; None stays None, which is all."""
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]
