"""Retrieval quality as in the VRSD paper's Tables 1 and 3: how well the sum of the picks points to the query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from ragsys_kernels._base.extras import needed
from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels._base.types import PathLike
from ragsys_kernels.icl.datasets import VRSD_SETS, QuestionSet, vrsd_set
from ragsys_kernels.icl.encoders import Encoder
from ragsys_kernels.icl.retrievers import BM25Retriever, DenseRetriever
from ragsys_kernels.metrics import pairwise_cosine, sum_cosine, win_rate

from .._run import Progress, Run, Summary, described_encoder, digests, sets_named
from .picks_report import BEST, BM25, MMR, OKAPI, PAPER, POOL, RULES, TOLERANCE, VRSD, K, SetResult, report_of

QUICK_SETS = ("arc-da", "puzzle")
_SUBSETS = 20_000  # sets of k candidates that are tried for the best of all; 4 of 20 are 4,845


@dataclass(frozen=True)
class VrsdSummary(Summary):
    """What an evaluation did; as text, a line for each set and one for the whole."""

    results: list[SetResult]
    encoded: int
    cached: int
    seconds: float
    out: Path

    def lines(self) -> Iterator[str]:
        for result in self.results:
            ours = result.values[VRSD]
            rivals = []
            for label in MMR:
                rate = win_rate(ours, result.values[label], tolerance=TOLERANCE)
                rivals.append(f"{label} {result.values[label].mean():.3f} ({rate.wins:.1%} wins, {rate.ties:.1%} ties)")
            yield f"{result.questions.title}: mean cosine VRSD {ours.mean():.3f}, {', '.join(rivals)}"

    def work(self) -> str:
        return f"{self.encoded} texts encoded, {self.cached} from the cache"


def vrsd(
    *,
    out: PathLike,
    encoder: PathLike | Encoder = "mpnet",
    sets: Sequence[str] | None = None,
    quick: bool = False,
    k: int = K,
    pool: int = POOL,
    bm25: bool = True,
    data: PathLike | None = None,
    cache: PathLike | None = None,
    samples: int = 10_000,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> VrsdSummary:
    """Compare VRSD with MMR, cosine top-k and BM25 on ARC-DA, OpenBookQA and Puzzle; write a report folder.

    Each query's `pool` nearest items are the candidates out of which VRSD and MMR (lambda 0, 0.5 and 1) pick k; BM25
    picks from all items. The value of the picks is the cosine of the query with their sum. Embeddings are kept in the
    cache as they are made, so that a stopped run resumes where it was.

    Parameters
    ----------
    out : path
        Folder for ``report.md``, ``report.html``, ``report.json``, the plots, and ``values.csv`` with every query's
        picks and values. New, empty, or with an earlier report of this evaluation, which is replaced.
    encoder : str, path or Encoder
        "mpnet" (the paper's all-mpnet-base-v2), "minilm", a folder or a name on the Hugging Face hub; see
        `SentenceTransformerEncoder`.
    sets : sequence of {"arc-da", "openbookqa", "puzzle"}, optional
        Default: all, or with `quick` ARC-DA and Puzzle, whose texts are a third of all.
    quick : bool
    k, pool : int
        Picks and candidates of a query. The paper's figures stand beside ours only for 4 and 20.
    bm25 : bool
        Whether BM25 takes part, in two forms: of words in lower case without stop words, which needs the package bm25s,
        and Okapi's of what stands between spaces, which needs rank_bm25 and has the paper's figures.
    data : path, optional
        Folder of the data sets; see `vrsd_set`.
    cache : path, optional
        Folder for ``embeddings.sqlite`` and for models that packages carry in pieces. Default: RAGSYS_KERNELS_CACHE,
        else ``ragsys_kernels`` in the user's cache folder.
    samples : int
        Draws of the bootstrap.
    num_threads : int, optional
        torch's threads, and those of the kernels.
    progress : callable, optional
        Called with the texts encoded and their number, first with 0.

    Raises
    ------
    ValueError, TypeError, OSError, ModuleNotFoundError
        What can be checked without the model is, before it is loaded.
    """
    op = "vrsd"
    names = sets_named(op, sets, QUICK_SETS if quick else VRSD_SETS, VRSD_SETS)
    if not 1 <= k <= pool:
        raise ValueError(f"{op}: k must be from 1 to pool = {pool}, got {k}")
    run = Run(op, out, cache=cache, samples=samples, num_threads=num_threads)
    questions = [vrsd_set(name, data) for name in names]
    for one in questions:
        check_pool(op, one, pool)
    words = [BM25Retriever(one.pool) if bm25 else None for one in questions]
    if bm25:
        rank_bm25()
    with run.embeddings(encoder, progress) as scorer:
        scorer.encode([text for one in questions for text in (*one.questions, *one.pool)])
        encoded, cached = scorer.misses, scorer.hits
        results = [
            evaluate(scorer, one, k=k, pool=pool, bm25=retriever, num_threads=num_threads)
            for one, retriever in zip(questions, words, strict=True)
        ]
    like_paper = (k, pool) == (K, POOL) and Path(scorer.name).name in ("mpnet", "all-mpnet-base-v2")
    paper = PAPER if like_paper else {}
    report = report_of(results, samples, paper, k, pool, quick=len(names) < len(VRSD_SETS))
    run.write(
        report,
        {
            "encoder": described_encoder(scorer),
            "sets": {one.title: f"{len(one.questions)} queries, {len(one.pool)} items" for one in questions},
            "sha256 of the data": digests(one.source for one in questions),
            "k, candidates": f"{k}, {pool}",
            "tolerance of ties": TOLERANCE,
            "bootstrap": run.bootstrap(),
            "texts encoded, from the cache": f"{encoded}, {cached}",
            "seconds": f"{run.seconds:.1f}",
        },
    )
    return VrsdSummary(results, encoded, cached, run.seconds, run.out)


def evaluate(
    encoder: Encoder,
    questions: QuestionSet,
    *,
    k: int = K,
    pool: int = POOL,
    bm25: BM25Retriever | None = None,
    num_threads: int | None = None,
) -> SetResult:
    """Let every method pick for every query of a set."""
    queries, dense = encoder.encode(questions.questions), DenseRetriever(encoder, questions.pool)
    candidates = dense.nearest(queries, pool, num_threads=num_threads).ids
    picks = {
        rule.label: rule.select(queries, dense.corpus, k, candidates=candidates, num_threads=num_threads).indices
        for rule in RULES
    }
    items = encoder.encode(questions.pool)
    if bm25 is not None:
        picks[BM25] = bm25.search(questions.questions, k).ids
        picks[OKAPI] = okapi(questions.questions, questions.pool, k)
    if comb(pool, k) <= _SUBSETS:
        picks[BEST] = best_of_all(queries, items, candidates, k)
    values = {label: sum_cosine(queries, items, ids) for label, ids in picks.items()}
    likeness = {label: _mean(pairwise_cosine(items, ids)) for label, ids in picks.items()}
    return SetResult(questions, picks, values, likeness)


def rank_bm25(op: str = "vrsd") -> Any:
    with needed(op, "evaluate", "rank-bm25"):
        import rank_bm25
    return rank_bm25


def okapi(queries: Sequence[str], items: Sequence[str], k: int) -> Array:
    """Return the k items of each query by rank_bm25's Okapi over what stands between spaces: (Q, k) rows.

    Words keep their case and their punctuation, and an item without a word of the query has the score 0: those of equal
    scores come by their number, so that there are always k.
    """
    index = rank_bm25().BM25Okapi([item.split() for item in items])
    return np.stack([np.argsort(-index.get_scores(query.split()), kind="stable")[:k] for query in queries])


def check_pool(op: str, questions: QuestionSet, pool: int) -> None:
    size = len(questions.pool)
    if size < pool:
        raise ValueError(f"{op}: pool must be at most the {size} items of {questions.title}, got {pool}")


def _mean(values: Array) -> float:
    """Return the mean without NaN: fewer than two picks have no cosine between them."""
    found = values[~np.isnan(values)]
    return float(found.mean()) if len(found) else np.nan


def best_of_all(queries: Array, items: Array, candidates: Array, k: int) -> Array:
    """Return the k candidates of each query whose sum has the largest cosine with it, by trying all sets: (Q, k) rows.

    O(Q C(P, k)) time. The greedy rule need not find them: the problem is NP-complete.
    """
    subsets = np.array(list(combinations(range(candidates.shape[1]), k)))
    best = np.empty((len(queries), k), np.int64)
    for q, (query, rows) in enumerate(zip(queries.astype(np.float64), candidates, strict=True)):
        vectors = items[rows].astype(np.float64)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(float).tiny)
        products, gram = vectors @ query, vectors @ vectors.T
        squares = sum(gram[subsets[:, i], subsets[:, j]] for i in range(k) for j in range(k))
        sums = products[subsets].sum(axis=1)
        cosines = np.where(squares > 0, sums / np.sqrt(np.maximum(squares, np.finfo(float).tiny)), 0)
        best[q] = rows[subsets[int(np.argmax(cosines))]]
    return best
