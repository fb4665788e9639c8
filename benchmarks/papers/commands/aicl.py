"""Adaptive in-context learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from benchmarks import papers
from ragsys_kernels.cli._app import RULE, RUN, option
from ragsys_kernels.icl.retrievers import Rule

from ._options import Dtype, Encoder, Model, command, names_of


@command(
    "aicl",
    model=Model,
    dtype=Dtype,
    encoder=Encoder,
    sets=Annotated[
        str | None,
        option(RUN, "Data sets, separated by commas: ag-news, jigsaw, sst-2.", metavar="NAMES", show_default="all"),
    ],
    quick=...,
    items=...,
    max_k=option(RUN, "Most demonstrations that the methods that adapt k give.", metavar="M"),
    top_m=option(RUN, "Nearest texts whose similarities QPP-AICL takes the spread of.", metavar="M"),
    best_k=Annotated[
        str,
        option(RUN, "Which k is best for a text that SAICL learns from: by posterior (the paper's), or entropy."),
    ],
    similarity=Annotated[str, option(RUN, "Similarity by which demonstrations are found: dense or bm25.")],
    method=...,
    lambda_d=...,
    order=Annotated[str, option(RULE, "Order of the demonstrations: nearest-first or nearest-last.")],
    seed=option(RUN, "Seed of the samples."),
)
def evaluate_aicl(
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
    method: Annotated[str, option(RULE, "Rule that picks among the nearest 50: top, mmr or vrsd.")] = "top",
    lambda_d: Annotated[float, option(RULE, "MMR's weight of relevance against redundancy.")] = 0.75,
    **given: Any,
) -> dict[str, Any]:
    """Adaptive in-context learning: static, predicted and learnt numbers of demonstrations in text classification.

    Writes report.html and report.md with macro precision, recall and F1, mean k and mean input tokens. A run that was
    stopped is resumed when it is run again. Needs the extra evaluate and the packages of model and encoder.
    """
    sizes = papers.QUICK if quick else papers.FULL
    given["sizes"] = sizes if items is None else replace(sizes, test=items)
    given["sets"] = names_of(given["sets"])
    return {**given, "rule": Rule(method, lambda_d)}
