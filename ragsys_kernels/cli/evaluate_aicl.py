"""The command `evaluate aicl`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ragsys_kernels import evaluation
from ragsys_kernels.cli._app import INPUT, RULE, RUN, WeightDtype, one_line_errors, option, progress_bar
from ragsys_kernels.cli.evaluate import evaluate
from ragsys_kernels.icl.retrievers import Rule


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
        bool, option(RUN, "500 texts a set, 2,000 to choose from, 100 to learn from, for minutes.", "--quick")
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
