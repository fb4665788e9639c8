"""In-Context RALM with questions."""

from __future__ import annotations

from typing import Annotated, Any

from ragsys_kernels.cli._app import RUN, option

from ._options import Dtype, Encoder, Model, command


@command(
    "boolq",
    model=Model,
    dtype=Dtype,
    encoder=Encoder,
    bm25=Annotated[
        str, option(RUN, "Sparse retriever: lucene, or pyserini, BM25 with the paper's parameters and stems.")
    ],
    quick=option(RUN, "Take 300 questions."),
    questions=option(RUN, "Number of questions, drawn at random.", metavar="N", show_default="all, or 300 if quick"),
    words=option(RUN, "Most words of a passage in a prompt.", metavar="N"),
    seed=option(RUN, "Seed of the questions drawn and of the passages at random."),
)
def evaluate_boolq(**given: Any) -> dict[str, Any]:
    """In-Context RALM with questions: what retrieved passages are worth to a model that answers BoolQ's by yes or no.

    Writes report.html and report.md with accuracy by what stands before the question: nothing, any passage, BM25's, the
    encoder's nearest, two by MMR or VRSD, or the question's own. A run that was stopped is resumed when it is run
    again. Needs the extra evaluate and the packages of model and encoder.
    """
    return given
