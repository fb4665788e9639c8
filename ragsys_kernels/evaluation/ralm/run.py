"""In-Context RALM on WikiText-103: perplexity by document, retrieval stride, query length and documents ranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._types import PathLike
from ...icl.datasets import news_texts, ralm_passages, wikitext
from ...icl.datasets.wikitext import OVERLAP
from ...icl.encoders import Encoder
from ...icl.language_model import TokenModel
from ...icl.ralm import Ralm, Text, Window, sliding_windows
from ...icl.retrievers import BM25Retriever, DenseRetriever
from ...metrics import perplexity
from .._run import BM25_FORMS, Progress, Run, Summary, described, digests
from .plans import Documents, Runs
from .report import (
    ANY,
    DENSE,
    DIVERSE,
    FIRST,
    NONE,
    ORACLE,
    ORDER,
    OWN,
    PAIR,
    RANDOM,
    RERANK,
    RULE,
    SHORT,
    RalmResult,
    RalmSizes,
    report_of,
)

Array = npt.NDArray[Any]

_BATCH = 2048  # tokens in one pass of the model: a tenth faster than 512 where windows need no padding

# With half the words a passage takes up as much of the shorter window as in the full run: about a sixth.
QUICK = RalmSizes(
    windows=100, window=384, stride=32, document=64, strides=(4, 8, 16, 32), queries=(8, 16, 32, 64), passage=50
)


class _Source(NamedTuple):
    title: str
    collection: str


TEXTS = {
    "wikitext": _Source("WikiText-103 test", "BoolQ (validation) and WikiText-103 valid"),
    "ag-news": _Source("AG News test", "AG News train"),
}


@dataclass(frozen=True)
class RalmSummary(Summary):
    """What an evaluation did; as text, the word perplexity of each method and what the run cost."""

    result: RalmResult
    cached: int
    seconds: float
    out: Path

    def lines(self) -> Iterator[str]:
        words = self.result.words
        for label, nll in self.result.nll.items():
            yield f"{label}: word perplexity {perplexity(-nll, words):.2f}"

    def work(self) -> str:
        windows, runs = len(self.result.words), self.result.runs
        return f"{windows} windows, {runs} runs of the model, {self.cached} of them from the cache"


def ralm(
    *,
    out: PathLike,
    model: PathLike | TokenModel = "smollm2",
    dtype: str = "bfloat16",
    encoder: PathLike | Encoder | None = "minilm",
    text: Literal["wikitext", "ag-news"] = "wikitext",
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

    Windows are spread evenly over the test text of WikiText-103, or of AG News, whose training articles are then the
    collection: texts of one kind. In each the last tokens are predicted, with a document over its
    first ones: none, BM25's first, one of BM25's first 16 that is chosen by zero-shot reranking, by the target itself
    (oracle) or at random, the encoder's nearest, two shorter ones by BM25 or by MMR, any passage of the collection, or
    none and the prefix cut by as much as a document takes. Each (window, document) is run once and kept in the cache:
    a stopped run resumes where it was, and strides, query lengths and numbers of documents share the runs.

    Parameters
    ----------
    out : path
        Folder for ``report.md``, ``report.html``, ``report.json``, the plots, and ``values.csv`` with every window's
        negative log-probability and documents. New, empty, or with an earlier report of this evaluation, which is
        replaced.
    model : str, path or TokenModel
        As `HuggingFaceModel.from_pretrained` takes it.
    dtype : {"float32", "float16", "bfloat16"}
        Type of the model's weights in memory.
    encoder : str, path, Encoder or None
        For the nearest passage and for MMR; None leaves both out.
    text : {"wikitext", "ag-news"}
        What is predicted, and so what is retrieved from: see `ralm_passages` and `news_texts`.
    bm25 : {"lucene", "pyserini"}
        The retriever: `BM25Retriever` as it is, or `BM25Retriever.pyserini`, whose parameters are the paper's.
    quick : bool
        `QUICK` sizes: minutes on two cores. Those of ``RalmSizes()`` take hours.
    sizes : mapping, optional
        Fields of `RalmSizes` that are to be others.
    data : path, optional
        Folder of the data sets; see `wikitext`, `boolq_passages` and `news_texts`.
    cache : path, optional
        Folder for ``scores.sqlite``, ``embeddings.sqlite`` and for models that packages carry. Default:
        RAGSYS_KERNELS_CACHE, else ``ragsys_kernels`` in the user's cache folder.
    samples : int
        Draws of the bootstrap.
    seed : int
        Seed of the passages that are taken at random.
    num_threads : int, optional
        torch's threads, and those of the kernels.
    progress : callable, optional
        Called with the runs of the model done and their number, first with 0.

    Returns
    -------
    RalmSummary

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
    for name, value, known in (("text", text, TEXTS), ("bm25", bm25, BM25_FORMS)):
        if value not in known:
            raise ValueError(f"{op}: {name} must be one of {', '.join(known)}, got {value!r}")
    if text == "wikitext":
        test = wikitext("test", data)
        collection = ralm_passages(test, data, words=used.passage)
    else:
        test, collection = news_texts(data, words=used.passage)
    documents = [passage.document for passage in collection.passages]
    retriever = BM25_FORMS[bm25].made(documents)
    with ExitStack() as opened:
        kept = None if encoder is None else opened.enter_context(run.embeddings(encoder))
        scorer = opened.enter_context(run.language_model(model, dtype=dtype, batch_tokens=_BATCH))
        system = Ralm(
            scorer, documents, retriever,
            query_tokens=used.query, document_tokens=used.document, past_tokens=used.past,
        )  # fmt: skip
        tokens = system.encode(test.text)
        windows = chosen_windows(len(tokens.tokens), used)
        dense = None if kept is None else DenseRetriever(kept, documents)
        own = None  # articles of news lie in one window
        if text == "wikitext":
            own = own_articles(system, tokens, [article.text for article in test.articles], windows, used)
        result = evaluate(system, tokens, windows, used, dense=dense, own=own, seed=seed, progress=progress)
        cached, models = scorer.hits, described(model, scorer, kept)
    passages = (
        f"{len(documents)} passages of at most {used.passage} words, of {TEXTS[text].collection}. "
        f"None has the title of an evaluated article, or {OVERLAP} words in a row in common with the evaluated text: "
        f"{collection.same_title} and {collection.same_words} were left out for that"
    )
    report = report_of(result, used, samples, passages, text=TEXTS[text].title, quick=used != RalmSizes())
    run.write(
        report,
        {
            **models,
            "text": f"{TEXTS[text].title}, {len(tokens.tokens)} tokens, {test.text.count(' ')} words and line ends",
            "texts": text,
            "collection": passages,
            "sha256 of the data": digests([test.source, collection.source]),
            "BM25": BM25_FORMS[bm25].said,
            **{f"sizes: {name}": value for name, value in asdict(used).items()},
            "bootstrap": run.bootstrap("windows"),
            "passages at random": f"seed {seed}",
            "runs of the model, from the cache": f"{result.runs}, {cached}",
            "seconds": f"{run.seconds:.1f}",
        },
    )
    return RalmSummary(result, cached, run.seconds, run.out)


def chosen_windows(size: int, sizes: RalmSizes) -> list[Window]:
    """Return windows evenly spread over a text of `size` tokens, without the first and the shorter ones."""
    whole = [
        window for window in sliding_windows(size, sizes.window, sizes.target)[1:]
        if window.end - window.start == sizes.window
    ]  # fmt: skip
    if len(whole) < sizes.windows:
        raise ValueError(f"ralm: windows must be at most the {len(whole)} of the text, got {sizes.windows}")
    return [whole[i] for i in np.linspace(0, len(whole) - 1, sizes.windows).astype(np.int64)]


def own_articles(
    system: Ralm, text: Text, articles: Sequence[str], windows: Sequence[Window], sizes: RalmSizes
) -> dict[int, Documents]:
    """Return, by place, the piece of its own article that BM25 finds outside of a window, of a document's size.

    What a document on the subject is worth, for comparison: no collection without the evaluated text has it. The pieces
    become documents of the system, after those of the collection.
    """
    borders = np.searchsorted(text.ends, np.cumsum([0, *map(len, articles)]), side="right")  # in tokens
    size, found = sizes.document, dict[int, Documents]()
    for window in windows:
        article = int(np.searchsorted(borders, window.begin, side="right"))
        begins = range(int(borders[article - 1]), int(borders[article]) - size + 1, size)
        outside = [at for at in begins if at + size <= window.start or at >= window.end]
        pieces = [system.tokenizer.decode(text.tokens[at : at + size]) for at in outside]
        if pieces:
            places = list(range(window.begin, window.end, sizes.stride))
            best = BM25Retriever(pieces).search(system.queries(text, places), 1).ids[:, 0].tolist()
            for place, i in zip(places, best, strict=True):
                if i >= 0:
                    found[place] = (system.add(pieces[i]),)
    return found


def evaluate(
    system: Ralm,
    text: Text,
    windows: Sequence[Window],
    sizes: RalmSizes,
    *,
    dense: DenseRetriever | None = None,
    own: Mapping[int, Documents] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> RalmResult:
    """Run every method on every window; `own` is what `own_articles` found."""
    runs, stride = Runs(system, text, windows, sizes.past), sizes.stride
    main = runs.places(stride)
    every = sorted({place for one in (stride, *sizes.strides) for place in runs.places(one)})
    found = system.retrieve(text, every, sizes.candidates)
    ranked = {place: ids[ids >= 0].tolist() for place, ids in zip(every, found.ids, strict=True)}
    top = dict(zip(every, np.maximum(found.scores[:, 0], 0).tolist(), strict=True))  # 0 where nothing is found
    first = {place: ids[:1] for place, ids in ranked.items()}
    collection = len(system.documents) - len(own or {})
    any_passage = np.random.default_rng(seed).integers(collection, size=(len(main), 1)).tolist()
    plans = {
        NONE: runs.plan(stride, {}),
        ANY: runs.plan(stride, dict(zip(main, any_passage, strict=True))),
        FIRST: runs.plan(stride, first),
        PAIR: runs.plan(stride, {place: ids[:2] for place, ids in ranked.items()}),
    }
    plans[SHORT] = runs.without(plans[FIRST])
    if own is not None:
        plans[OWN] = runs.plan(stride, own)
    if dense is not None:
        vectors = dense.encoder.encode(system.queries(text, main))
        pool = np.array([[*ranked[place], *[-1] * sizes.candidates][: sizes.candidates] for place in main])
        pair = RULE.select(vectors, dense.corpus, 2, candidates=pool).indices
        plans[DENSE] = runs.plan(stride, _by_place(main, dense.nearest(vectors, 1).ids))
        plans[DIVERSE] = runs.plan(stride, _by_place(main, pair))
    by_stride = {one: runs.plan(one, first) for one in sizes.strides}
    by_query = {
        length: runs.plan(stride, _by_place(main, system.retrieve(text, main, 1, length).ids))
        for length in sizes.queries
    }
    candidates = [
        runs.plan(stride, {place: ids[i : i + 1] for place, ids in ranked.items()}) for i in range(sizes.candidates)
    ]
    runs.make([*plans.values(), *by_stride.values(), *by_query.values(), *candidates], progress)

    # A piece for which nothing is found has one candidate, no document.
    valid = np.array([[[bool(ids) for ids in row] for row in plan.documents] for plan in candidates])
    valid[0] = True
    target = np.stack([runs.target(plan) for plan in candidates])  # (candidates, Q, pieces)
    rank = {RERANK: np.stack([runs.before(plan) for plan in candidates]), ORACLE: target}
    by_ranked: dict[str, dict[int, Array]] = {RANDOM: {}, RERANK: {}, ORACLE: {}}
    picks = {label: plan.documents for label, plan in plans.items() if label != SHORT}
    for number in _numbers(sizes.candidates):
        counted = valid[:number]
        # What to expect of a document taken at random: the mean over all.
        mean = np.where(counted, target[:number], 0).sum(axis=0) / counted.sum(axis=0)
        by_ranked[RANDOM][number] = -mean.sum(axis=1)
        for rule, values in rank.items():
            best = np.argmax(np.where(counted, values[:number], -np.inf), axis=0)  # (Q, pieces), the first of equals
            by_ranked[rule][number] = -np.take_along_axis(target, best[None], axis=0)[0].sum(axis=1)
            picks[rule] = [
                [candidates[i].documents[q][j] for j, i in enumerate(row)] for q, row in enumerate(best.tolist())
            ]
    nll = {label: runs.nll(plan) for label, plan in plans.items()}
    nll |= {rule: values[sizes.candidates] for rule, values in by_ranked.items()}
    return RalmResult(
        nll={label: nll[label] for label in ORDER if label in nll},
        picks=picks,
        words=text.words(windows),
        tokens=np.array([window.end - window.begin for window in windows]),
        top_scores=np.array([top[place] for place in main]).reshape(len(windows), -1).mean(axis=1),
        by_stride={one: runs.nll(plan) for one, plan in by_stride.items()},
        by_query={length: runs.nll(plan) for length, plan in by_query.items()},
        by_ranked=by_ranked,
        runs=len(runs),
    )


def _by_place(places: Sequence[int], ids: Array) -> dict[int, list[int]]:
    return {place: row[row >= 0].tolist() for place, row in zip(places, ids, strict=True)}


def _numbers(candidates: int) -> list[int]:
    """Return the powers of two up to the number of candidates, and that number."""
    return [*(1 << i for i in range(candidates.bit_length()) if 1 << i < candidates), candidates]
