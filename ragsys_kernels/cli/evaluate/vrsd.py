"""The VRSD paper: ``evaluate vrsd`` and ``evaluate vrsd-answers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ... import evaluation
from .._app import RUN, option, run
from .._takes import takes
from ._options import Cache, Data, Dtype, Encoder, Model, NumThreads, Out, QuestionSets, Quiet, evaluate, names_of


@evaluate.command("vrsd")
@takes(
    evaluation.vrsd,
    out=...,
    data=Data,
    cache=Cache,
    encoder=Encoder,
    sets=QuestionSets,
    quick=option(RUN, "Take only arc-da and puzzle, a third of the work."),
    num_threads=NumThreads,
)
def evaluate_vrsd(out: Out = Path("evaluation-output/vrsd"), quiet: Quiet = False, **given: Any) -> None:
    """VRSD against MMR, cosine top-k and BM25: how well the sum of the picks points to the query.

    Writes report.html and report.md with the paper's figures beside ours. A run that was stopped is resumed when it is
    run again. Needs the extra evaluate and the packages of the encoder.
    """
    given["sets"] = names_of(given["sets"])
    bar = ("texts", "loading the model", "encoding")
    run("vrsd", quiet, bar, lambda progress: evaluation.vrsd(out=out, progress=progress, **given))


@evaluate.command("vrsd-answers")
@takes(
    evaluation.vrsd_answers,
    out=...,
    data=Data,
    cache=Cache,
    model=Model,
    dtype=Dtype,
    encoder=Encoder,
    sets=QuestionSets,
    quick=option(RUN, "Take 50 queries of each set, which takes minutes."),
    queries=option(RUN, "Number of queries of each set.", metavar="N", show_default="all, or 50 if quick"),
    scores_only=option(RUN, "Write no answers: only score those of the sets, several times as fast."),
    answers_only=option(RUN, "Write answers only: leave the log-probabilities out, half the work."),
    seed=option(RUN, "Seed of the queries drawn and of the random picks."),
    num_threads=NumThreads,
)
def evaluate_vrsd_answers(
    out: Out = Path("evaluation-output/vrsd-answers"), quiet: Quiet = False, **given: Any
) -> None:
    """VRSD against MMR, random and no items: how good a language model's answers are after the picks.

    Writes report.html and report.md with ROUGE and accuracy. A run that was stopped is resumed when it is run again.
    Needs the extra evaluate and the packages of model and encoder.
    """
    given["sets"] = names_of(given["sets"])
    bar = ("texts", "loading the models", "working")
    run("vrsd-answers", quiet, bar, lambda progress: evaluation.vrsd_answers(out=out, progress=progress, **given))
