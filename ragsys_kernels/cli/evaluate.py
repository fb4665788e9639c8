"""Commands that make the papers' tables: ``evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragsys_kernels import evaluation
from ragsys_kernels.cli._app import INPUT, RUN, app, one_line_errors, option, progress_bar

evaluate = typer.Typer(help="Make the papers' tables again, with real data and models.", no_args_is_help=True)
app.add_typer(evaluate, name="evaluate")


@evaluate.command("vrsd")
def evaluate_vrsd(
    out: Annotated[
        Path, option(INPUT, "Folder for the report: new, empty, or with an earlier one, which is replaced.")
    ] = Path("evaluation-output/vrsd"),
    data: Annotated[
        Path | None,
        option(INPUT, "Folder of the data sets.", show_default="RAGSYS_KERNELS_DATA, else ../shared/data"),
    ] = None,
    cache: Annotated[
        Path | None,
        option(INPUT, "Folder of embeddings and models to use and to keep.", show_default="RAGSYS_KERNELS_CACHE"),
    ] = None,
    encoder: Annotated[
        str, option(RUN, "mpnet (the paper's), minilm, a folder, or a name on the Hugging Face hub.")
    ] = "mpnet",
    sets: Annotated[
        str | None,
        option(RUN, "arc-da, openbookqa, puzzle, separated by commas.", metavar="NAMES", show_default="all"),
    ] = None,
    quick: Annotated[bool, option(RUN, "Only arc-da and puzzle, a third of the work.", "--quick")] = False,
    num_threads: Annotated[
        int | None, option(RUN, "Threads of torch and of the kernels.", metavar="N", show_default="one per core")
    ] = None,
    quiet: Annotated[bool, option(RUN, "Print warnings and errors only.", "--quiet")] = False,
) -> None:
    """VRSD against MMR, cosine top-k and BM25: how well the sum of the picks points to the query.

    Writes report.html and report.md with the paper's figures beside ours. A stopped run goes on when it is run again.
    Needs the extra evaluate and the packages of the encoder.
    """
    with (
        one_line_errors("vrsd", "interrupted; run it again to go on"),
        progress_bar(quiet, "texts", "loading the model", "encoding") as progress,
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
