"""Commands that make the papers' tables: ``evaluate``."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

from ragsys_kernels import evaluation
from ragsys_kernels.cli._app import INPUT, RULE, RUN, Commands, WeightDtype, app, one_line_errors, option, progress_bar
from ragsys_kernels.icl.retrievers import Rule

evaluate = Commands(help="Make the papers' tables again, with real data and models.", no_args_is_help=True)
app.add_typer(evaluate, name="evaluate")


class Counts(str, Enum):
    clean = "clean"
    paper = "paper"


class Embedded(str, Enum):
    question = "question"
    pair = "pair"


# Options of several commands.
Out = Annotated[Path, option(INPUT, "Folder for the report: new, empty, or with an earlier one, which is replaced.")]
Data = Annotated[
    Path | None, option(INPUT, "Folder of the data sets.", show_default="RAGSYS_KERNELS_DATA, else ../shared/data")
]
Cache = Annotated[
    Path | None,
    option(
        INPUT,
        "Folder of embeddings, scores, answers and models to use and to keep.",
        show_default="RAGSYS_KERNELS_CACHE, else ~/.cache/ragsys_kernels",
    ),
]
Model = Annotated[
    str,
    option(
        RUN, "Language model: smollm2 (a package has it), a folder, a .gguf file, or a name on the Hugging Face hub."
    ),
]
Dtype = Annotated[WeightDtype, option(RUN, "How the model's weights are held.")]
Encoder = Annotated[
    str, option(RUN, "Encoder of texts: minilm, mpnet (VRSD's), a folder, or a name on the Hugging Face hub.")
]
QuestionSets = Annotated[
    str | None, option(RUN, "arc-da, openbookqa, puzzle, separated by commas.", metavar="NAMES", show_default="all")
]
NumThreads = Annotated[
    int | None, option(RUN, "Threads of torch and of the kernels.", metavar="N", show_default="one per core")
]
Quiet = Annotated[bool, option(RUN, "Print warnings and errors only.", "--quiet")]


@evaluate.command("vrsd")
def evaluate_vrsd(
    out: Out = Path("evaluation-output/vrsd"),
    data: Data = None,
    cache: Cache = None,
    encoder: Encoder = "mpnet",
    sets: QuestionSets = None,
    quick: Annotated[bool, option(RUN, "Only arc-da and puzzle, a third of the work.", "--quick")] = False,
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:
    """VRSD against MMR, cosine top-k and BM25: how well the sum of the picks points to the query.

    Writes report.html and report.md with the paper's figures beside ours. A stopped run goes on when it is run again.
    Needs the extra evaluate and the packages of the encoder.
    """
    with (
        one_line_errors("vrsd", "interrupted; run it again to go on"),
        progress_bar(quiet, "texts", "loading the model", "encoding") as progress,
    ):
        summary = evaluation.vrsd(
            out=out,
            data=data,
            cache=cache,
            encoder=encoder,
            sets=_names(sets),
            quick=quick,
            num_threads=num_threads,
            progress=progress,
        )
    if not quiet:
        print(summary)


@evaluate.command("vrsd-answers")
def evaluate_vrsd_answers(
    out: Out = Path("evaluation-output/vrsd-answers"),
    data: Data = None,
    cache: Cache = None,
    model: Model = "smollm2",
    dtype: Dtype = WeightDtype.bfloat16,
    encoder: Encoder = "minilm",
    sets: QuestionSets = None,
    quick: Annotated[bool, option(RUN, "50 queries a set, for minutes.", "--quick")] = False,
    queries: Annotated[
        int | None, option(RUN, "Queries of each set.", metavar="N", show_default="all, or 50 if quick")
    ] = None,
    seed: Annotated[int, option(RUN, "Of the queries drawn and of the random picks.")] = 0,
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:
    """VRSD against MMR, random and no items: how good a language model's answers are after the picks.

    Writes report.html and report.md with ROUGE and accuracy. A stopped run goes on when it is run again. Needs the
    extra evaluate and the packages of model and encoder.
    """
    with (
        one_line_errors("vrsd-answers", "interrupted; run it again to go on"),
        progress_bar(quiet, "texts", "loading the models", "working") as progress,
    ):
        summary = evaluation.vrsd_answers(
            out=out,
            model=model,
            dtype=dtype.value,
            encoder=encoder,
            sets=_names(sets),
            quick=quick,
            queries=queries,
            seed=seed,
            data=data,
            cache=cache,
            num_threads=num_threads,
            progress=progress,
        )
    if not quiet:
        print(summary)


@evaluate.command("ragsys")
def evaluate_ragsys(
    out: Out = Path("evaluation-output/ragsys"),
    data: Data = None,
    cache: Cache = None,
    embed: Annotated[Embedded, option(RULE, "What of a demonstration is embedded.")] = Embedded.question,
    primer: Annotated[
        Path | None,
        option(
            INPUT,
            "Demonstrations of Fix, whatever --k: .json or .toml with pairs of question and answer.",
            show_default="ours",
        ),
    ] = None,
    counts: Annotated[
        Counts, option(INPUT, "clean, or the paper's: with TruthfulQA's 24 empty answers and its repeated ones.")
    ] = Counts.clean,
    model: Model = "smollm2",
    dtype: Dtype = WeightDtype.bfloat16,
    encoder: Encoder = "minilm",
    questions: Annotated[
        int | None, option(RUN, "So many questions, drawn with a fixed seed.", metavar="N", show_default="all")
    ] = None,
    quick: Annotated[bool, option(RUN, "100 questions.", "--quick")] = False,
    k: Annotated[int, option(RULE, "Demonstrations of a question.")] = 6,
    pool: Annotated[int, option(RULE, "Candidates that they are selected from.")] = 100,
    lambda_d: Annotated[float, option(RULE, "Weight of relevance against redundancy, with diversity.")] = 0.75,
    lambda_b: Annotated[float, option(RULE, "Weight of similarity against bias, with bias.")] = 0.95,
    lambdas: Annotated[
        str, option(RULE, "Values of lambda_d for the sweep, separated by commas; empty for none.", metavar="VALUES")
    ] = "0,0.25,0.5,0.75,1",
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:
    """What demonstrations of six retrievers do to a language model on TruthfulQA: Fix, Bias, Rel, with Div and Bias.

    Writes report.html and report.md: MC1, MC2, MC3 and DPO with intervals, which of the paper's orderings hold, the
    sweep of lambda_d. A stopped run goes on when it is run again. Needs the extra evaluate; smollm2 needs its package.
    """
    with (
        one_line_errors("ragsys", "interrupted; run it again to go on"),
        progress_bar(quiet, "answers", "loading the models", "scoring") as progress,
    ):
        summary = evaluation.ragsys(
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
            num_threads=num_threads,
            progress=progress,
        )
    if not quiet:
        print(summary)


@evaluate.command("ralm")
def evaluate_ralm(
    out: Out = Path("evaluation-output/ralm"),
    data: Data = None,
    cache: Cache = None,
    model: Model = "smollm2",
    dtype: Dtype = WeightDtype.bfloat16,
    encoder: Annotated[
        str, option(RUN, "For dense retrieval and MMR: minilm, mpnet, a folder, a name on the hub, or none.")
    ] = "minilm",
    quick: Annotated[bool, option(RUN, "Fewer and shorter windows, a larger stride: minutes.", "--quick")] = False,
    windows: Annotated[
        int | None, option(RUN, "Windows, evenly spread over the text.", metavar="N", show_default="250, quick 100")
    ] = None,
    window: Annotated[
        int | None, option(RUN, "Tokens of a window.", metavar="N", show_default="1024, quick 384")
    ] = None,
    stride: Annotated[
        int | None,
        option(RUN, "Tokens between retrievals; divides the 32 that a window predicts.", metavar="N",
               show_default="4, quick 32"),
    ] = None,
    query_tokens: Annotated[
        int | None, option(RUN, "Tokens of a query.", metavar="N", show_default="32")
    ] = None,
    document_tokens: Annotated[
        int | None, option(RUN, "Most tokens of a document.", metavar="N", show_default="256, quick 64")
    ] = None,
    candidates: Annotated[
        int | None, option(RUN, "Documents that are ranked.", metavar="N", show_default="16")
    ] = None,
    seed: Annotated[int, option(RUN, "Of passages taken at random.")] = 0,
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """In-Context RALM: what a document before a text is worth to a language model, by how it is chosen.

    Perplexity of WikiText-103 test without documents, with BM25's, reranked, by an oracle and others, against stride,
    query length and number of documents. Writes report.html and report.md. A stopped run goes on when it is run again.
    Needs the extra evaluate; smollm2 needs its package.
    """
    sizes = {
        "windows": windows, "window": window, "stride": stride, "query": query_tokens, "document": document_tokens,
        "candidates": candidates,
    }  # fmt: skip
    with (
        one_line_errors("ralm", "interrupted; run it again to go on"),
        progress_bar(quiet, "runs", "loading the models, encoding passages", "scoring") as progress,
    ):
        summary = evaluation.ralm(
            out=out,
            data=data,
            cache=cache,
            model=model,
            dtype=dtype.value,
            encoder=None if encoder == "none" else encoder,
            quick=quick,
            seed=seed,
            num_threads=num_threads,
            progress=progress,
            sizes={name: size for name, size in sizes.items() if size is not None},
        )
    if not quiet:
        print(summary)


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
    num_threads: NumThreads = None,
    quiet: Quiet = False,
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
            sets=_names(sets),
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


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"{name} must be numbers separated by commas, got {text!r}") from None


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]
