"""The command `evaluate vrsd-answers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ragsys_kernels import evaluation
from ragsys_kernels.cli._app import INPUT, RUN, WeightDtype, one_line_errors, option, progress_bar
from ragsys_kernels.cli.evaluate import evaluate


@evaluate.command("vrsd-answers")
def evaluate_vrsd_answers(
    out: Annotated[
        Path, option(INPUT, "Folder for the report: new, empty, or with an earlier one, which is replaced.")
    ] = Path("evaluation-output/vrsd-answers"),
    data: Annotated[
        Path | None,
        option(INPUT, "Folder of the data sets.", show_default="RAGSYS_KERNELS_DATA, else ../shared/data"),
    ] = None,
    cache: Annotated[
        Path | None,
        option(INPUT, "Folder of answers, embeddings and models to keep.", show_default="RAGSYS_KERNELS_CACHE"),
    ] = None,
    model: Annotated[
        str, option(RUN, "Language model: smollm2, a folder, a .gguf file, or a name on the Hugging Face hub.")
    ] = "smollm2",
    dtype: Annotated[WeightDtype, option(RUN, "How the model's weights are held.")] = WeightDtype.bfloat16,
    encoder: Annotated[
        str, option(RUN, "minilm, mpnet (the paper's), a folder, or a name on the Hugging Face hub.")
    ] = "minilm",
    sets: Annotated[
        str | None,
        option(RUN, "arc-da, openbookqa, puzzle, separated by commas.", metavar="NAMES", show_default="all"),
    ] = None,
    quick: Annotated[bool, option(RUN, "50 queries a set, for minutes.", "--quick")] = False,
    queries: Annotated[
        int | None, option(RUN, "Queries of each set.", metavar="N", show_default="all, or 50 if quick")
    ] = None,
    seed: Annotated[int, option(RUN, "Of the queries drawn and of the random picks.")] = 0,
    num_threads: Annotated[
        int | None, option(RUN, "Threads of torch and of the kernels.", metavar="N", show_default="one per core")
    ] = None,
    quiet: Annotated[bool, option(RUN, "Print warnings and errors only.", "--quiet")] = False,
) -> None:
    """VRSD against MMR, random and no items: how good a language model's answers are after the picks.

    Writes report.html and report.md with ROUGE and accuracy. A stopped run goes on when it is run again. Needs the
    extra evaluate and the packages of model and encoder.
    """
    with (
        one_line_errors("vrsd-answers", "interrupted; run it again to go on"),
        progress_bar(quiet, "texts", "loading the models", "working") as progress,
    ):
        summary = evaluation.vrsd_answers(
            out=out,
            model=model,
            dtype=dtype.value,
            encoder=encoder,
            sets=None if sets is None else [name.strip() for name in sets.split(",")],
            quick=quick,
            queries=queries,
            seed=seed,
            data=data,
            cache=cache,
            num_threads=num_threads,
            progress=progress,
        )
    if not quiet:
        print(summary)
