"""In-Context RALM: perplexity of a text by document, retrieval stride, query length and documents ranked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ragsys_kernels._base.checks import choice
from ragsys_kernels._base.types import PathLike
from ragsys_kernels.icl.encoders import Encoder
from ragsys_kernels.icl.language_model import LanguageModel, TokenModel
from ragsys_kernels.icl.ralm import Ralm
from ragsys_kernels.icl.retrievers import DenseRetriever
from ragsys_kernels.metrics import perplexity

from .._run import BM25_FORMS, Progress, Run, Summary, described, described_encoder, digests
from .methods import chosen_windows, evaluate, own_articles
from .report import RalmResult, RalmSizes, report_of
from .sources import source

_BATCH = 2048  # tokens in one pass of the model: a tenth faster than 512 where windows need no padding

# With half the words a passage takes up as much of the shorter window as in the full run: about a sixth.
QUICK = RalmSizes(
    windows=100, window=384, stride=32, document=64, strides=(4, 8, 16, 32), queries=(8, 16, 32, 64), passage=50
)


@dataclass(frozen=True)
class RalmSummary(Summary):
    """What an evaluation did; as text, the perplexity of each method and what the run cost."""

    result: RalmResult
    cached: int
    seconds: float
    out: Path

    def lines(self) -> Iterator[str]:
        for label, nll in self.result.nll.items():
            yield f"{label}: {self.result.unit} perplexity {perplexity(-nll, self.result.per):.2f}"

    def work(self) -> str:
        windows, runs = len(self.result.words), self.result.runs
        return f"{windows} windows, {runs} runs of the model, {self.cached} of them from the cache"


def ralm(
    *,
    out: PathLike,
    model: PathLike | TokenModel = "smollm2",
    dtype: str = "bfloat16",
    encoder: PathLike | Encoder | Sequence[PathLike | Encoder] | None = "minilm",
    ranker: PathLike | LanguageModel | None = None,
    text: PathLike = "wikitext",
    bm25: Literal["lucene", "pyserini"] = "lucene",
    quick: bool = False,
    sizes: Mapping[str, Any] | None = None,
    data: PathLike | None = None,
    cache: PathLike | None = None,
    samples: int = 10_000,
    seed: int = 0,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> RalmSummary:
    """Measure what documents before the text are worth to a language model; write a report folder.

    Windows are spread evenly over a text, which has a collection without anything of it. In each the last tokens are
    predicted, with a document over its first ones: none, BM25's first, one of BM25's first 16 that is chosen by
    zero-shot reranking, by a ranker trained on the model's own signal, by the target itself (oracle) or at random, the
    encoder's nearest, two shorter ones by BM25 or by MMR, any passage of the collection, or none and the prefix cut by
    as much as a document takes; and with BM25's first in front of the whole window. Each (window, document) is run once
    and kept in the cache: a stopped run resumes where it was, and strides, query lengths and numbers of documents share
    the runs.

    Parameters
    ----------
    out : path
        Folder of the report, as for `vrsd`; ``values.csv`` has every window's negative log-probability and documents.
    model, dtype
        As for `ragsys`; a model that is open must be a `TokenModel`.
    encoder : str, path, Encoder, a sequence of them, or None
        For the nearest passage, by each; the first also for MMR and for the trained ranker (see `PredictiveRanker`).
        None leaves them out.
    ranker : str, path or LanguageModel, optional
        A second model, usually a smaller one, that ranks the documents too.
    text : "wikitext", "ag-news", "python" or a folder
        What is predicted, and so what is retrieved from: WikiText-103 test from other passages of Wikipedia
        (`ralm_passages`); texts of one kind are AG News (`news_texts`), the modules of Python's standard library
        (`python_texts`) or the files of a folder (`folder_texts`). Perplexity is of words on WikiText, else of tokens.
    bm25 : {"lucene", "pyserini"}
        The retriever: `BM25Retriever` as it is, or `BM25Retriever.pyserini`, whose parameters are the paper's.
    quick : bool
        `QUICK` sizes: minutes on two cores. Those of ``RalmSizes()`` take hours.
    sizes : mapping, optional
        Fields of `RalmSizes` that are to be others.
    data, cache, samples, num_threads
        As for `vrsd`; see `wikitext`, `boolq_passages` and `news_texts` for the data. The cache also has
        ``scores.sqlite``.
    seed : int
        Seed of the passages that are taken at random.
    progress : callable, optional
        Called with the work done and its whole: texts to encode, runs of the model, then texts that the ranker scores.

    Raises
    ------
    ValueError, TypeError, OSError, ModuleNotFoundError
        What can be checked without the model is, before it is loaded.

    Notes
    -----
    Source: Ram et al., In-Context Retrieval-Augmented Language Models (TACL 2023): Table 1, Figures 3, 5, 6 and 7. Its
    code moves the window by s; here a window's several retrievals, if s is less than its target, share its start, so
    that all strides predict the same tokens from the same first token on, and tokens with equal documents are one run.
    """
    op = "ralm"
    used = replace(QUICK if quick else RalmSizes(), **(sizes or {}))
    used.check(op)
    run = Run(op, out, cache=cache, samples=samples, num_threads=num_threads)
    choice(op, "bm25", bm25, BM25_FORMS)
    encoders = _listed(encoder)
    read = source(op, text, data, used.passage)
    documents = [passage.document for passage in read.collection.passages]
    retriever = BM25_FORMS[bm25].made(documents)
    with ExitStack() as opened:
        kept = [opened.enter_context(run.embeddings(one, progress)) for one in encoders]
        scorer = opened.enter_context(run.language_model(model, dtype=dtype, batch_tokens=_BATCH))
        second = None
        if ranker is not None:
            second = opened.enter_context(run.language_model(ranker, dtype=dtype, batch_tokens=_BATCH))
        system = Ralm(
            scorer, documents, retriever,
            query_tokens=used.query, document_tokens=used.document, past_tokens=used.past,
        )  # fmt: skip
        tokens = system.encode(read.test.text)
        windows = chosen_windows(len(tokens.tokens), used)
        dense = [DenseRetriever(one, documents) for one in kept]
        own = None  # articles of news lie in one window
        if text == "wikitext":
            own = own_articles(system, tokens, [article.text for article in read.test.articles], windows, used)
        models = described(model, scorer, kept[0] if kept else None)
        if ranker is not None and second is not None:
            models["ranker"] = described(ranker, second, None)["model"]
        asked_for = re.split(r", | \(", models.get("ranker", ""))[0]  # the name of the second model
        result = evaluate(
            system, tokens, windows, used, dense=dense, ranker=second, ranker_name=asked_for,
            own=own, unit=read.unit, seed=seed, progress=progress,
        )  # fmt: skip
        cached = scorer.hits
    passages = read.said(used.passage)
    report = report_of(result, used, samples, passages, text=read.title, like=read.like, quick=used != RalmSizes())
    run.write(
        report,
        {
            **models,
            **{f"encoder {i}": described_encoder(one) for i, one in enumerate(kept[1:], 2)},
            "text": f"{read.title}, {len(tokens.tokens)} tokens, {read.test.text.count(' ')} words and line ends",
            "texts": read.name,
            "collection": passages,
            "sha256 of the data": digests([read.test.source, read.collection.source]),
            "BM25": BM25_FORMS[bm25].said,
            **{f"sizes: {name}": value for name, value in asdict(used).items()},
            "bootstrap": run.bootstrap("windows"),
            "passages at random": f"seed {seed}",
            "runs of the model, from the cache": f"{result.runs}, {cached}",
            "seconds": f"{run.seconds:.1f}",
        },
    )
    return RalmSummary(result, cached, run.seconds, run.out)


def _listed(encoder: PathLike | Encoder | Sequence[PathLike | Encoder] | None) -> list[PathLike | Encoder]:
    if encoder is None:
        return []
    return [*encoder] if isinstance(encoder, (list, tuple)) else [encoder]  # type: ignore[list-item]
