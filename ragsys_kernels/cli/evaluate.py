"""Commands that reproduce the papers' tables: ``evaluate``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

from .. import evaluation
from ..icl.retrievers import Rule
from ._app import (
    INPUT,
    RESUMABLE,
    RULE,
    RUN,
    Commands,
    WeightDtype,
    app,
    one_line_errors,
    option,
    progress_bar,
)

Progress = Callable[[int, int], None]

evaluate = Commands(help="Reproduce the papers' tables, with real data and models.", no_args_is_help=True)
app.add_typer(evaluate, name="evaluate")


class Counts(str, Enum):
    clean = "clean"
    paper = "paper"


class Weights(str, Enum):
    fixed = "fixed"
    per_query = "per-query"


class Embedded(str, Enum):
    question = "question"
    pair = "pair"


# Options of several commands.
Out = Annotated[Path, option(INPUT, "Folder of the report: new, empty, or with an earlier report, which is replaced.")]
Data = Annotated[
    Path | None,
    option(INPUT, "Folder that holds the data sets.", show_default="RAGSYS_KERNELS_DATA, else ../shared/data"),
]
Cache = Annotated[
    Path | None,
    option(
        INPUT,
        "Folder that keeps embeddings, scores, answers and models for later runs.",
        show_default="RAGSYS_KERNELS_CACHE, else ~/.cache/ragsys_kernels",
    ),
]
Model = Annotated[
    str,
    option(RUN, "Language model: smollm2 (from a package), a folder, a .gguf file, or a name on the Hugging Face hub."),
]
Dtype = Annotated[WeightDtype, option(RUN, "Type of the model's weights in memory.")]
Encoder = Annotated[
    str, option(RUN, "Text encoder: minilm, mpnet (the VRSD paper's), a folder, or a name on the Hugging Face hub.")
]
QuestionSets = Annotated[
    str | None,
    option(RUN, "Data sets, separated by commas: arc-da, openbookqa, puzzle.", metavar="NAMES", show_default="all"),
]
NumThreads = Annotated[
    int | None, option(RUN, "Number of threads of torch and of the kernels.", metavar="N", show_default="one per core")
]
Quiet = Annotated[bool, option(RUN, "Print only warnings and errors.", "--quiet")]


def _run(name: str, quiet: bool, bar: tuple[str, str, str], evaluation: Callable[[Progress | None], object]) -> None:
    """Call an evaluation with a progress bar, of a unit, what is done before it and during it; print its summary."""
    with one_line_errors(name, RESUMABLE), progress_bar(quiet, *bar) as progress:
        summary = evaluation(progress)
    if not quiet:
        print(summary)


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
    _run(
        "vrsd",
        quiet,
        ("texts", "loading the model", "encoding"),
        lambda progress: evaluation.vrsd(
            out=out,
            data=data,
            cache=cache,
            encoder=encoder,
            sets=_names(sets),
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
    seed: Annotated[int, option(RUN, "Seed of the queries drawn and of the random picks.")] = 0,
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:
    """VRSD against MMR, random and no items: how good a language model's answers are after the picks.

    Writes report.html and report.md with ROUGE and accuracy. A run that was stopped is resumed when it is run again.
    Needs the extra evaluate and the packages of model and encoder.
    """
    _run(
        "vrsd-answers",
        quiet,
        ("texts", "loading the models", "working"),
        lambda progress: evaluation.vrsd_answers(
            out=out,
            model=model,
            dtype=dtype.value,
            encoder=encoder,
            sets=_names(sets),
            quick=quick,
            queries=queries,
            scores_only=scores_only,
            seed=seed,
            data=data,
            cache=cache,
            num_threads=num_threads,
            progress=progress,
        ),
    )


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
    _run(
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
            methods="all" if methods == "all" else _names(methods) or [],
            num_threads=num_threads,
            progress=progress,
        ),
    )


@evaluate.command("ralm")
def evaluate_ralm(
    out: Out = Path("evaluation-output/ralm"),
    data: Data = None,
    cache: Cache = None,
    model: Model = "smollm2",
    dtype: Dtype = WeightDtype.bfloat16,
    encoder: Annotated[
        str,
        option(
            RUN,
            "Encoders for dense retrieval, separated by commas: minilm, mpnet, folders, names on the Hugging Face hub; "
            "or none. The first also serves MMR and the trained ranker.",
        ),
    ] = "minilm",
    ranker: Annotated[
        str | None,
        option(
            RUN, "Second model, usually a smaller one, that ranks the documents too; named as --model.",
            show_default="none",
        ),
    ] = None,
    text: Annotated[
        str,
        option(
            RUN,
            "Text to predict: wikitext; ag-news, whose training articles are retrieved from; python, modules of the "
            "standard library; or a folder of texts, every fifth of which is predicted from the others.",
        ),
    ] = "wikitext",
    bm25: Annotated[
        str, option(RUN, "Retriever: lucene, or pyserini, BM25 with the paper's parameters and stems.")
    ] = "lucene",
    quick: Annotated[
        bool, option(RUN, "Take fewer and shorter windows and a larger stride, which takes minutes.", "--quick")
    ] = False,
    windows: Annotated[
        int | None,
        option(RUN, "Number of windows, evenly spread over the text.", metavar="N", show_default="250, quick 100"),
    ] = None,
    window: Annotated[
        int | None, option(RUN, "Number of tokens of a window.", metavar="N", show_default="1024, quick 384")
    ] = None,
    stride: Annotated[
        int | None,
        option(RUN, "Number of tokens between retrievals, a divisor of the 32 that a window predicts.", metavar="N",
               show_default="4, quick 32"),
    ] = None,
    query_tokens: Annotated[
        int | None, option(RUN, "Number of tokens of a query.", metavar="N", show_default="32")
    ] = None,
    document_tokens: Annotated[
        int | None, option(RUN, "Largest number of tokens of a document.", metavar="N", show_default="256, quick 64")
    ] = None,
    passage_words: Annotated[
        int | None,
        option(RUN, "Largest number of words of a passage.", metavar="N", show_default="100, quick 50"),
    ] = None,
    candidates: Annotated[
        int | None, option(RUN, "Number of documents that are ranked.", metavar="N", show_default="16")
    ] = None,
    seed: Annotated[int, option(RUN, "Seed of the passages taken at random.")] = 0,
    num_threads: NumThreads = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """In-Context RALM: what a document before a text is worth to a language model, by how it is chosen.

    Perplexity of WikiText-103 test, or of another text, without documents, with BM25's, reranked, by an oracle and
    others, against stride, query length and number of documents. Writes report.html and report.md. A run that was
    stopped is resumed when it is run again. Needs the extra evaluate; smollm2 needs its package.
    """
    sizes = {
        "windows": windows, "window": window, "stride": stride, "query": query_tokens, "document": document_tokens,
        "passage": passage_words, "candidates": candidates,
    }  # fmt: skip
    _run(
        "ralm",
        quiet,
        ("texts", "loading the models", "working"),
        lambda progress: evaluation.ralm(
            out=out,
            data=data,
            cache=cache,
            model=model,
            dtype=dtype.value,
            encoder=_encoders(encoder),
            ranker=ranker,
            text=text,
            bm25=bm25,  # type: ignore[arg-type]
            quick=quick,
            seed=seed,
            num_threads=num_threads,
            progress=progress,
            sizes={name: size for name, size in sizes.items() if size is not None},
        ),
    )


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
    _run(
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
    _run(
        "aicl",
        quiet,
        ("texts", "loading the models", "working"),
        lambda progress: evaluation.aicl(
            out=out,
            model=model,
            dtype=dtype.value,
            encoder=encoder,
            sets=_names(sets),
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


def _encoders(text: str) -> str | list[str] | None:
    names = _names(text) or []
    if names == ["none"]:
        return None
    return names[0] if len(names) == 1 else names


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"{name} must be numbers separated by commas, got {text!r}") from None


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]
