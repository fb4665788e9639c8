"""Adaptive in-context learning: ``evaluate aicl``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ... import evaluation
from ...icl.retrievers import Rule
from .._app import RULE, RUN, WeightDtype, option
from ._options import Cache, Data, Dtype, Encoder, Model, NumThreads, Out, Quiet, evaluate, names_of, run


@evaluate.command("aicl")
def evaluate_aicl(
    out: Out = Path("evaluation-output/aicl"),
    data: Data = None,
    cache: Cache = None,
    model: Model = "smollm2",
    dtype: Dtype = WeightDtype.bfloat16,
    encoder: Encoder = "minilm",
    sets: Annotated[
        str | None,
        option(RUN, "Data sets, separated by commas: ag-news, jigsaw, sst-2.", metavar="NAMES", show_default="all"),
    ] = None,
    quick: Annotated[
        bool,
        option(
            RUN,
            "Take 300 texts of each set, 2,000 to choose from and 1,000 to learn from, which takes about half an hour.",
            "--quick",
        ),
    ] = False,
    items: Annotated[
        int | None,
        option(RUN, "Number of texts of each set to classify.", metavar="N", show_default="all, or 300 if quick"),
    ] = None,
    max_k: Annotated[int, option(RUN, "Most demonstrations that the methods that adapt k give.", metavar="M")] = 5,
    top_m: Annotated[
        int, option(RUN, "Nearest texts whose similarities QPP-AICL takes the spread of.", metavar="M")
    ] = 5,
    best_k: Annotated[
        str,
        option(RUN, "Which k is best for a text that SAICL learns from: by posterior (the paper's), or entropy."),
    ] = "posterior",
    similarity: Annotated[str, option(RUN, "Similarity by which demonstrations are found: dense or bm25.")] = "dense",
    method: Annotated[str, option(RULE, "Rule that picks among the nearest 50: top, mmr or vrsd.")] = "top",
    lambda_d: Annotated[float, option(RULE, "MMR's weight of relevance against redundancy.")] = 0.75,
    order: Annotated[
        str, option(RULE, "Order of the demonstrations: nearest-first or nearest-last.")
    ] = "nearest-first",
    seed: Annotated[int, option(RUN, "Seed of the samples.")] = 0,
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:
    """Adaptive in-context learning: static, predicted and learnt numbers of demonstrations in text classification.

    Writes report.html and report.md with macro precision, recall and F1, mean k and mean input tokens. A run that was
    stopped is resumed when it is run again. Needs the extra evaluate and the packages of model and encoder.
    """
    sizes = evaluation.QUICK if quick else evaluation.FULL
    run(
        "aicl",
        quiet,
        ("texts", "loading the models", "working"),
        lambda progress: evaluation.aicl(
            out=out,
            model=model,
            dtype=dtype.value,
            encoder=encoder,
            sets=names_of(sets),
            sizes=sizes if items is None else replace(sizes, test=items),
            max_k=max_k,
            top_m=top_m,
            best_k=best_k,  # type: ignore[arg-type]
            similarity=similarity,  # type: ignore[arg-type]
            rule=Rule(method, lambda_d),
            order=order,  # type: ignore[arg-type]
            seed=seed,
            data=data,
            cache=cache,
            num_threads=num_threads,
            progress=progress,
        ),
    )
