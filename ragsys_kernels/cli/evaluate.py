"""Commands that make the papers' tables: ``evaluate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ragsys_kernels import evaluation
from ragsys_kernels.cli._app import INPUT, RULE, RUN, WeightDtype, app, one_line_errors, option, progress_bar
from ragsys_kernels.icl.retrievers import Rule

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


@evaluate.command("aicl")
def evaluate_aicl(
    out: Annotated[
        Path, option(INPUT, "Folder for the report: new, empty, or with an earlier one, which is replaced.")
    ] = Path("evaluation-output/aicl"),
    data: Annotated[
        Path | None,
        option(INPUT, "Folder of the data sets.", show_default="RAGSYS_KERNELS_DATA, else ../shared/data"),
    ] = None,
    cache: Annotated[
        Path | None,
        option(INPUT, "Folder of scores, embeddings and models to keep.", show_default="RAGSYS_KERNELS_CACHE"),
    ] = None,
    model: Annotated[
        str, option(RUN, "Language model: smollm2, a folder, a .gguf file, or a name on the Hugging Face hub.")
    ] = "smollm2",
    dtype: Annotated[WeightDtype, option(RUN, "How the model's weights are held.")] = WeightDtype.bfloat16,
    encoder: Annotated[
        str, option(RUN, "Encoder of texts: minilm, mpnet, a folder, or a name on the Hugging Face hub.")
    ] = "minilm",
    sets: Annotated[
        str | None,
        option(RUN, "ag-news, jigsaw, sst-2, separated by commas.", metavar="NAMES", show_default="all"),
    ] = None,
    quick: Annotated[
        bool, option(RUN, "500 texts a set, 2,000 to choose from, 150 to learn from, for minutes.", "--quick")
    ] = False,
    items: Annotated[
        int | None, option(RUN, "Texts of each set to classify.", metavar="N", show_default="all, or 500 if quick")
    ] = None,
    max_k: Annotated[int, option(RUN, "The most demonstrations of the methods that adapt k.", metavar="M")] = 5,
    similarity: Annotated[str, option(RUN, "dense or bm25: how demonstrations are found.")] = "dense",
    method: Annotated[str, option(RULE, "top, mmr or vrsd: what picks among the nearest 50.")] = "top",
    lambda_d: Annotated[float, option(RULE, "MMR's weight of relevance against redundancy.")] = 0.75,
    order: Annotated[str, option(RULE, "nearest-first or nearest-last: how demonstrations stand.")] = "nearest-first",
    seed: Annotated[int, option(RUN, "Of the samples.")] = 0,
    num_threads: Annotated[
        int | None, option(RUN, "Threads of torch and of the kernels.", metavar="N", show_default="one per core")
    ] = None,
    quiet: Annotated[bool, option(RUN, "Print warnings and errors only.", "--quiet")] = False,
) -> None:
    """Adaptive in-context learning: static, predicted and learnt numbers of demonstrations in text classification.

    Writes report.html and report.md with macro precision, recall and F1, mean k and mean input tokens. A stopped run
    goes on when it is run again. Needs the extra evaluate and the packages of model and encoder.
    """
    sizes = evaluation.QUICK if quick else evaluation.FULL
    with (
        one_line_errors("aicl", "interrupted; run it again to go on"),
        progress_bar(quiet, "texts", "loading the models", "working") as progress,
    ):
        summary = evaluation.aicl(
            out=out,
            model=model,
            dtype=dtype.value,
            encoder=encoder,
            sets=None if sets is None else [name.strip() for name in sets.split(",")],
            sizes=sizes if items is None else replace(sizes, test=items),
            max_k=max_k,
            similarity=similarity,  # type: ignore[arg-type]
            rule=Rule(method, lambda_d),
            order=order,  # type: ignore[arg-type]
            seed=seed,
            data=data,
            cache=cache,
            num_threads=num_threads,
            progress=progress,
        )
    if not quiet:
        print(summary)


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
