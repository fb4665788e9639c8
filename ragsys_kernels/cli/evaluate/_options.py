"""What the commands of ``evaluate`` share: options in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .._app import INPUT, RUN, Commands, WeightDtype, app, option
from .._options import Quiet as Quiet

evaluate = Commands(help="Reproduce the papers' tables, with real data and models.", no_args_is_help=True)
app.add_typer(evaluate, name="evaluate")

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


def names_of(text: str | None) -> list[str] | None:
    """Return the names of an option that are separated by commas; None stays None, which is all."""
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]
