"""The VRSD paper: its picks, and the answers after them."""

from __future__ import annotations

from typing import Any

from ragsys_kernels.cli._app import RUN, option

from ._options import Dtype, Encoder, Model, QuestionSets, command, names_of


@command(
    "vrsd",
    ("texts", "loading the model", "encoding"),
    encoder=Encoder,
    sets=QuestionSets,
    quick=option(RUN, "Take only arc-da and puzzle, a third of the work."),
)
def evaluate_vrsd(**given: Any) -> dict[str, Any]:
    """VRSD against MMR, cosine top-k and BM25: how well the sum of the picks points to the query.

    Writes report.html and report.md with the paper's figures beside ours. A run that was stopped is resumed when it is
    run again. Needs the extra evaluate and the packages of the encoder.
    """
    return {**given, "sets": names_of(given["sets"])}


@command(
    "vrsd-answers",
    model=Model,
    dtype=Dtype,
    encoder=Encoder,
    sets=QuestionSets,
    quick=option(RUN, "Take 50 queries of each set, which takes minutes."),
    queries=option(RUN, "Number of queries of each set.", metavar="N", show_default="all, or 50 if quick"),
    scores_only=option(RUN, "Write no answers: only score those of the sets, several times as fast."),
    answers_only=option(RUN, "Write answers only: leave the log-probabilities out, half the work."),
    seed=option(RUN, "Seed of the queries drawn and of the random picks."),
)
def evaluate_vrsd_answers(**given: Any) -> dict[str, Any]:
    """VRSD against MMR, random and no items: how good a language model's answers are after the picks.

    Writes report.html and report.md with ROUGE and accuracy. A run that was stopped is resumed when it is run again.
    Needs the extra evaluate and the packages of model and encoder.
    """
    return {**given, "sets": names_of(given["sets"])}
