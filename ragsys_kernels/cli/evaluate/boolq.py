"""In-Context RALM with questions: ``evaluate boolq``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ... import evaluation
from .._app import RUN, WeightDtype, option
from ._options import Cache, Data, Dtype, Encoder, Model, NumThreads, Out, Quiet, evaluate, run


@evaluate.command("boolq")
def evaluate_boolq(
    out: Out = Path("evaluation-output/boolq"),
    data: Data = None,
    cache: Cache = None,
    model: Model = "smollm2",
    dtype: Dtype = WeightDtype.bfloat16,
    encoder: Encoder = "minilm",
    bm25: Annotated[
        str, option(RUN, "Sparse retriever: lucene, or pyserini, BM25 with the paper's parameters and stems.")
    ] = "lucene",
    quick: Annotated[bool, option(RUN, "Take 300 questions.", "--quick")] = False,
    questions: Annotated[
        int | None,
        option(RUN, "Number of questions, drawn at random.", metavar="N", show_default="all, or 300 if quick"),
    ] = None,
    words: Annotated[int, option(RUN, "Most words of a passage in a prompt.", metavar="N")] = 150,
    seed: Annotated[int, option(RUN, "Seed of the questions drawn and of the passages at random.")] = 0,
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:
    """In-Context RALM with questions: what retrieved passages are worth to a model that answers BoolQ's by yes or no.

    Writes report.html and report.md with accuracy by what stands before the question: nothing, any passage, BM25's, the
    encoder's nearest, two by MMR or VRSD, or the question's own. A run that was stopped is resumed when it is run
    again. Needs the extra evaluate and the packages of model and encoder.
    """
    run(
        "boolq",
        quiet,
        ("texts", "loading the models", "working"),
        lambda progress: evaluation.boolq(
            out=out,
            data=data,
            cache=cache,
            model=model,
            dtype=dtype.value,
            encoder=encoder,
            bm25=bm25,  # type: ignore[arg-type]
            quick=quick,
            questions=questions,
            words=words,
            seed=seed,
            num_threads=num_threads,
            progress=progress,
        ),
    )
