"""The VRSD paper: ``evaluate vrsd`` and ``evaluate vrsd-answers``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ... import evaluation
from .._app import RUN, WeightDtype, option
from ._options import Cache, Data, Dtype, Encoder, Model, NumThreads, Out, QuestionSets, Quiet, evaluate, names_of, run


@evaluate.command("vrsd")
def evaluate_vrsd(
    out: Out = Path("evaluation-output/vrsd"),
    data: Data = None,
    cache: Cache = None,
    encoder: Encoder = "mpnet",
    sets: QuestionSets = None,
    quick: Annotated[bool, option(RUN, "Take only arc-da and puzzle, a third of the work.", "--quick")] = False,
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:
    """VRSD against MMR, cosine top-k and BM25: how well the sum of the picks points to the query.

    Writes report.html and report.md with the paper's figures beside ours. A run that was stopped is resumed when it is
    run again. Needs the extra evaluate and the packages of the encoder.
    """
    run(
        "vrsd",
        quiet,
        ("texts", "loading the model", "encoding"),
        lambda progress: evaluation.vrsd(
            out=out,
            data=data,
            cache=cache,
            encoder=encoder,
            sets=names_of(sets),
            quick=quick,
            num_threads=num_threads,
            progress=progress,
        ),
    )


@evaluate.command("vrsd-answers")
def evaluate_vrsd_answers(
    out: Out = Path("evaluation-output/vrsd-answers"),
    data: Data = None,
    cache: Cache = None,
    model: Model = "smollm2",
    dtype: Dtype = WeightDtype.bfloat16,
    encoder: Encoder = "mpnet",
    sets: QuestionSets = None,
    quick: Annotated[bool, option(RUN, "Take 50 queries of each set, which takes minutes.", "--quick")] = False,
    queries: Annotated[
        int | None, option(RUN, "Number of queries of each set.", metavar="N", show_default="all, or 50 if quick")
    ] = None,
    scores_only: Annotated[
        bool,
        option(RUN, "Write no answers: only score those of the sets, several times as fast.", "--scores-only"),
    ] = False,
    answers_only: Annotated[
        bool, option(RUN, "Write answers only: leave the log-probabilities out, half the work.", "--answers-only")
    ] = False,
    seed: Annotated[int, option(RUN, "Seed of the queries drawn and of the random picks.")] = 0,
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:
    """VRSD against MMR, random and no items: how good a language model's answers are after the picks.

    Writes report.html and report.md with ROUGE and accuracy. A run that was stopped is resumed when it is run again.
    Needs the extra evaluate and the packages of model and encoder.
    """
    run(
        "vrsd-answers",
        quiet,
        ("texts", "loading the models", "working"),
        lambda progress: evaluation.vrsd_answers(
            out=out,
            model=model,
            dtype=dtype.value,
            encoder=encoder,
            sets=names_of(sets),
            quick=quick,
            queries=queries,
            scores_only=scores_only,
            answers_only=answers_only,
            seed=seed,
            data=data,
            cache=cache,
            num_threads=num_threads,
            progress=progress,
        ),
    )
