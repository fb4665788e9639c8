"""The RAGSys papers: ``evaluate ragsys``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

from ... import evaluation
from .._app import INPUT, RULE, RUN, WeightDtype, option
from ._options import Cache, Data, Dtype, Encoder, Model, NumThreads, Out, Quiet, evaluate, names_of, run


class Counts(str, Enum):
    clean = "clean"
    paper = "paper"


class Weights(str, Enum):
    fixed = "fixed"
    per_query = "per-query"


class Embedded(str, Enum):
    question = "question"
    pair = "pair"


@evaluate.command("ragsys")
def evaluate_ragsys(
    out: Out = Path("evaluation-output/ragsys"),
    data: Data = None,
    cache: Cache = None,
    embed: Annotated[
        Embedded, option(RULE, "Part of a demonstration that is embedded: its question, or question and answer.")
    ] = Embedded.question,
    primer: Annotated[
        Path | None,
        option(
            INPUT,
            "Demonstrations of the retriever Fix: .json or .toml with pairs of question and answer, all of them shown.",
            show_default="the library's six",
        ),
    ] = None,
    counts: Annotated[
        Counts,
        option(INPUT, "Answers of TruthfulQA: clean, or the paper's, with 24 empty answers and the repeated ones."),
    ] = Counts.clean,
    model: Model = "smollm2",
    dtype: Dtype = WeightDtype.bfloat16,
    encoder: Encoder = "minilm",
    questions: Annotated[
        int | None, option(RUN, "Number of questions, drawn with a fixed seed.", metavar="N", show_default="all")
    ] = None,
    quick: Annotated[bool, option(RUN, "Take 100 questions.", "--quick")] = False,
    k: Annotated[int, option(RULE, "Number of demonstrations of a question.")] = 6,
    pool: Annotated[int, option(RULE, "Number of candidates that they are selected from.")] = 100,
    lambda_d: Annotated[
        float, option(RULE, "Weight of relevance against redundancy, in the retrievers with diversity.")
    ] = 0.75,
    lambda_b: Annotated[float, option(RULE, "Weight of similarity against bias, in the retrievers with bias.")] = 0.95,
    lambdas: Annotated[
        str,
        option(
            RULE,
            "Values of lambda_d in the sweep over the whole corpus, separated by commas; an empty text leaves it out.",
            metavar="VALUES",
        ),
    ] = "0,0.125,0.25,0.375,0.5,0.625,0.75,0.875,1",
    weights: Annotated[
        Weights,
        option(
            RULE,
            "per-query also asks what a lambda_d for each question gives: the best one, and one that other questions "
            "choose.",
            "--lambda",
        ),
    ] = Weights.fixed,
    selections: Annotated[
        int, option(RULE, "Number of selections of a question's path that are scored with --lambda per-query.")
    ] = 12,
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
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:
    """RAGSys' six retrievers of demonstrations on TruthfulQA: what their picks do to a language model's answers.

    Writes report.html and report.md with MC1, MC2, MC3 and DPO with intervals, which of the paper's orderings hold,
    what further rules do to the answers, and the sweep of lambda_d. A run that was stopped is resumed when it is run
    again. Needs the extra evaluate; smollm2 needs its package.
    """
    run(
        "ragsys",
        quiet,
        ("answers", "loading the models", "scoring"),
        lambda progress: evaluation.ragsys(
            out=out,
            data=data,
            cache=cache,
            primer=primer,
            counts=counts.value,
            embed=embed.value,
            model=model,
            dtype=dtype.value,
            encoder=encoder,
            questions=questions,
            quick=quick,
            k=k,
            pool=pool,
            lambda_d=lambda_d,
            lambda_b=lambda_b,
            lambdas=_numbers("lambdas", lambdas),
            weights=weights.value,
            selections=selections,
            methods="all" if methods == "all" else names_of(methods) or [],
            num_threads=num_threads,
            progress=progress,
        ),
    )


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"{name} must be numbers separated by commas, got {text!r}") from None
