"""The RAGSys papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ragsys_kernels.cli._app import INPUT, RULE, RUN, option

from ._options import Dtype, Encoder, Model, command, names_of


@command(
    "ragsys",
    ("answers", "loading the models", "scoring"),
    embed=option(RULE, "Part of a demonstration that is embedded: its question, or question and answer."),
    primer=Annotated[
        Path | None,
        option(
            INPUT,
            "Demonstrations of the retriever Fix: .json or .toml with pairs of question and answer, all of them shown.",
            show_default="the library's six",
        ),
    ],
    counts=option(INPUT, "Answers of TruthfulQA: clean, or the paper's, with 24 empty answers and the repeated ones."),
    model=Model,
    dtype=Dtype,
    encoder=Encoder,
    questions=option(RUN, "Number of questions, drawn with a fixed seed.", metavar="N", show_default="all"),
    quick=option(RUN, "Take 100 questions."),
    k=option(RULE, "Number of demonstrations of a question."),
    pool=option(RULE, "Number of candidates that they are selected from."),
    lambda_d=option(RULE, "Weight of relevance against redundancy, in the retrievers with diversity."),
    lambda_b=option(RULE, "Weight of similarity against bias, in the retrievers with bias."),
    lambdas=...,
    weights=option(
        RULE,
        "per-query also asks what a lambda_d for each question gives: the best one, and one that other questions "
        "choose.",
        "--lambda",
    ),
    selections=option(RULE, "Number of selections of a question's path that are scored with --lambda per-query."),
    methods=...,
)
def evaluate_ragsys(
    lambdas: Annotated[
        str,
        option(
            RULE,
            "Values of lambda_d in the sweep over the whole corpus, separated by commas; an empty text leaves it out.",
            metavar="VALUES",
        ),
    ] = "0,0.125,0.25,0.375,0.5,0.625,0.75,0.875,1",
    methods: Annotated[
        str,
        option(
            RULE,
            "Further rules, separated by commas, with their own weights: mmr, vrsd, msd, dpp, ssd, sift, coverage; or "
            "all.",
            metavar="NAMES",
            show_default="none",
        ),
    ] = "",
    **given: Any,
) -> dict[str, Any]:
    """RAGSys' six retrievers of demonstrations on TruthfulQA: what their picks do to a language model's answers.

    Writes report.html and report.md with MC1, MC2, MC3 and DPO with intervals, which of the paper's orderings hold,
    what further rules do to the answers, and the sweep of lambda_d. A run that was stopped is resumed when it is run
    again. Needs the extra evaluate; smollm2 needs its package.
    """
    rules = "all" if methods == "all" else names_of(methods) or []
    return {**given, "lambdas": _numbers("lambdas", lambdas), "methods": rules}


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"{name} must be numbers separated by commas, got {text!r}") from None
