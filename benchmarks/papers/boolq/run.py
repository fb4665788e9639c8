"""Questions with retrieved passages, in the form of In-Context RALM's section 7: BoolQ's, answered by yes or no."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ragsys_kernels._base.checks import choice, count
from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels._base.types import PathLike
from ragsys_kernels.icl.datasets import BoolQ, Passage, boolq_questions
from ragsys_kernels.icl.encoders import Encoder
from ragsys_kernels.icl.language_model import LanguageModel
from ragsys_kernels.icl.prompts import PromptTemplate
from ragsys_kernels.icl.retrievers import DenseRetriever, Retriever
from ragsys_kernels.icl.storage.portions import portions

from .._run import BM25_FORMS, Progress, Run, Summary, described, digests, drawn
from . import report
from .report import METHODS, MMR, VRSD, BoolQResult, report_of

QUICK_QUESTIONS = 300
POOL = 20  # nearest passages that MMR and VRSD pick from
ANSWERS = (" yes", " no")


def _template(lead: str) -> PromptTemplate:
    return PromptTemplate("{document}", f"{lead} these questions:\nQ: {{question}}\nA:", " {answer}")


# In-Context RALM's form, by the number of documents.
PROMPTS = (_template("Answer"), _template("Based on this text, answer"), _template("Based on these texts, answer"))


@dataclass(frozen=True)
class BoolQSummary(Summary):
    """What an evaluation did; as text, the accuracy of each method and what the run cost."""

    result: BoolQResult
    cached: int
    seconds: float
    out: Path

    def lines(self) -> Iterator[str]:
        for label in METHODS:
            yield f"{label}: accuracy {self.result.right(label).mean():.1%}, yes {self.result.yes(label).mean():.1%}"

    def work(self) -> str:
        answers = len(ANSWERS) * self.result.prompts
        return f"{len(self.result.truth)} questions, {answers} answers scored, {self.cached} of them from the cache"


def boolq(
    *,
    out: PathLike,
    model: PathLike | LanguageModel = "smollm2",
    dtype: str = "bfloat16",
    encoder: PathLike | Encoder = "minilm",
    bm25: Literal["lucene", "pyserini"] = "lucene",
    quick: bool = False,
    questions: int | None = None,
    words: int = 150,
    data: PathLike | None = None,
    cache: PathLike | None = None,
    samples: int = 10_000,
    seed: int = 0,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> BoolQSummary:
    """Let a language model answer BoolQ's questions after the passages of each method; write a report folder.

    The collection is the distinct passages of all questions. Before a question stand no document, any passage, BM25's
    first or first two, the encoder's nearest or nearest two, two of its 20 nearest by MMR or VRSD, or the question's
    own passage. The answer is yes or no, whichever has the larger log-probability. Scores are kept question by
    question, so that a stopped run resumes where it was.

    Parameters
    ----------
    out : path
        Folder of the report, as for `vrsd`; ``values.csv`` has the log-probabilities and documents of every question
        and method.
    model, dtype, encoder
        As for `ragsys`.
    bm25 : {"lucene", "pyserini"}
        `BM25Retriever` as it is, or `BM25Retriever.pyserini`, whose parameters are the paper's.
    quick : bool
        300 questions.
    questions : int, optional
        Number of questions, drawn at random; all where the set has no more. Default: all, or with `quick` 300.
    words : int
        Most words of a passage in a prompt. Retrievers see whole passages.
    data, cache, samples, num_threads
        As for `ralm`; see `boolq_questions` for the data.
    seed : int
        Seed of the questions drawn and of the passages at random.
    progress : callable, optional
        Called with the work done and its whole: texts to encode, then questions.

    Raises
    ------
    ValueError, TypeError, OSError, ModuleNotFoundError
        What can be checked without the models is, before they are loaded.

    Notes
    -----
    Source: Ram et al., In-Context Retrieval-Augmented Language Models (TACL 2023), section 7; the prompt is that of
    its code. There questions are NaturalQuestions' and TriviaQA's, and answers are generated.
    """
    op = "boolq"
    questions = QUICK_QUESTIONS if questions is None and quick else questions
    for name, number in (("questions", questions), ("words", words)):
        if number is not None:
            count(op, name, number)
    choice(op, "bm25", bm25, BM25_FORMS)
    run = Run(op, out, cache=cache, samples=samples, num_threads=num_threads)
    items = boolq_questions(data)
    if len(items.passages) < 2:
        raise ValueError(f"{op}: data must have two passages, got {len(items.passages)}")
    some = drawn(len(items.questions), questions, seed)
    sparse = BM25_FORMS[bm25].made([passage.document for passage in items.passages])
    with run.embeddings(encoder, progress) as kept, run.language_model(model, dtype=dtype) as scorer:
        picks = chosen(kept, sparse, items, some, seed=seed, num_threads=num_threads)
        result = evaluate(scorer, items, some, picks, words=words, progress=progress)
        cached, models = scorer.hits, described(model, scorer, kept)
    lengths = [len(passage.text.split()) for passage in items.passages]
    quick = len(some) < len(items.questions)
    cut = sum(length > words for length in lengths)
    run.write(
        report_of(result, samples, collection=len(lengths), words=words, cut=cut, quick=quick),
        {
            **models,
            "questions": f"{len(some)} of {len(items.questions)}, {result.truth.mean():.1%} of them yes",
            "collection": f"{len(lengths)} passages, {cut} of them longer than {words} words",
            "sha256 of the data": digests([items.source]),
            "BM25": BM25_FORMS[bm25].said,
            "candidates of MMR and VRSD": POOL,
            "words of a passage": words,
            "prompt": " | ".join(template.query.replace("\n", "\\n") for template in PROMPTS),
            "answers": ", ".join(map(repr, ANSWERS)),
            "seed": seed,
            "bootstrap": run.bootstrap("questions"),
            "answers scored, from the cache": f"{len(ANSWERS) * result.prompts}, {cached}",
            "seconds": f"{run.seconds:.1f}",
        },
    )
    return BoolQSummary(result, cached, run.seconds, run.out)


def chosen(
    encoder: Encoder, sparse: Retriever, items: BoolQ, some: Array, *, seed: int = 0, num_threads: int | None = None
) -> dict[str, list[tuple[int, ...]]]:
    """Return the documents of every method for the questions at the positions `some`."""
    asked = [items.questions[q] for q in some]
    documents = [passage.document for passage in items.passages]
    vectors, dense = encoder.encode(asked), DenseRetriever(encoder, documents)
    nearest = dense.nearest(vectors, min(POOL, len(documents)), num_threads=num_threads).ids
    first = sparse.search(asked, 2).ids
    own = np.array(items.own)
    # Drawn for all questions, so that a question's is the same in every run; never its own.
    step = 1 + np.random.default_rng(seed).integers(len(documents) - 1, size=len(own))
    options: dict[str, Any] = {"candidates": nearest, "num_threads": num_threads}
    rows = {
        report.NONE: np.empty((len(some), 0), np.int64),
        report.ANY: ((own + step) % len(documents))[some, None],
        report.BM25: first[:, :1],
        report.BM25_PAIR: first,
        report.DENSE: nearest[:, :1],
        report.DENSE_PAIR: nearest[:, :2],
        report.MMR_PAIR: MMR.select(vectors, dense.corpus, 2, **options).indices,
        report.VRSD_PAIR: VRSD.select(vectors, dense.corpus, 2, **options).indices,
        report.OWN: own[some, None],
    }
    return {label: [tuple(row[row >= 0].tolist()) for row in rows[label]] for label in METHODS}


def evaluate(
    scorer: LanguageModel,
    items: BoolQ,
    some: Array,
    picks: dict[str, list[tuple[int, ...]]],
    *,
    words: int,
    progress: Progress | None = None,
) -> BoolQResult:
    """Score both answers to each question after each method's documents."""
    logp = {label: np.empty((len(some), len(ANSWERS))) for label in METHODS}
    prompts = 0
    # A question's prompts together: those that begin with the same document share its run.
    for at in (part.start for part in portions(len(some), 1, progress)):
        q = int(some[at])
        texts = {
            label: prompt(items.questions[q], [items.passages[i] for i in picks[label][at]], words)
            for label in METHODS
        }  # fmt: skip
        distinct = list(dict.fromkeys(texts.values()))
        sums = scorer.score([text for text in distinct for _ in ANSWERS], [*ANSWERS] * len(distinct)).sum
        found = dict(zip(distinct, sums.reshape(-1, len(ANSWERS)), strict=True))
        for label, text in texts.items():
            logp[label][at] = found[text]
        prompts += len(distinct)
    truth, own = np.array(items.answers)[some], np.array(items.own)[some]
    return BoolQResult(some, truth, own, picks, logp, prompts)


def prompt(question: str, documents: Sequence[Passage], words: int) -> str:
    """Return the text before the answer: passages of at most `words` words below their titles, then the question."""
    texts = [(passage.title, " ".join(passage.text.split()[:words])) for passage in documents]
    shown = [{"document": f"{title}\n\n{text}" if title else text} for title, text in texts]
    template = PROMPTS[min(len(shown), len(PROMPTS) - 1)]
    asked = question[:1].lower() + question[1:]
    return template.prompt({"question": asked if asked.endswith("?") else f"{asked}?"}, shown)
