"""Answer quality as in the VRSD paper's Table 2: what a language model answers after the picks of each method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ragsys_kernels._base.checks import count
from ragsys_kernels._base.extras import needed
from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels._base.types import PathLike
from ragsys_kernels.icl.datasets import VRSD_SETS, QuestionSet, vrsd_set
from ragsys_kernels.icl.datasets.vrsd import OPTIONS
from ragsys_kernels.icl.encoders import Encoder
from ragsys_kernels.icl.generation import CachedGenerator, GreedyGenerator, Stop
from ragsys_kernels.icl.language_model import LanguageModel
from ragsys_kernels.icl.prompts import QA, PromptTemplate
from ragsys_kernels.icl.retrievers import DenseRetriever
from ragsys_kernels.icl.storage.portions import portions

from .._run import Progress, Run, Summary, described, digests, drawn, sets_named
from .answers_report import NONE, RANDOM, AnswerResult, report_of
from .picks import check_pool, okapi, rank_bm25
from .picks_report import MMR, OKAPI, POOL, RULES, VRSD, K

QUICK_QUERIES = 50
_BLOCK = 8  # answers scored in one call: what a killed run loses at most
CHOICES = "openbookqa"  # the set whose answers are one of the options in the question


def _template(instruction: str) -> PromptTemplate:
    return PromptTemplate(QA.demonstration, QA.query, QA.continuation, instruction)


PROMPTS = {
    "arc-da": (_template("Answer each question directly, in a few words."), Stop(32)),
    "openbookqa": (_template("Answer each question with one of its options."), Stop(32)),
    "puzzle": (_template("Answer each question in a full sentence."), Stop(64)),
}


@dataclass(frozen=True)
class AnswersSummary(Summary):
    """What an evaluation did; as text, a line for each set and one for the whole."""

    results: list[AnswerResult]
    generated: int
    cached: int
    seconds: float
    out: Path

    def lines(self) -> Iterator[str]:
        for result in self.results:
            name = result.leading
            rows = [f"{label} {result.values(name)[label].mean():.3f}" for label in result.picks]
            yield f"{result.questions.title}: {name} {', '.join(rows)}"

    def work(self) -> str:
        return f"{self.generated} answers generated, {self.cached} from the cache"


def vrsd_answers(
    *,
    out: PathLike,
    model: PathLike | LanguageModel = "smollm2",
    dtype: str = "bfloat16",
    encoder: PathLike | Encoder = "mpnet",
    sets: Sequence[str] | None = None,
    quick: bool = False,
    queries: int | None = None,
    scores_only: bool = False,
    answers_only: bool = False,
    k: int = K,
    pool: int = POOL,
    seed: int = 0,
    data: PathLike | None = None,
    cache: PathLike | None = None,
    samples: int = 10_000,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> AnswersSummary:
    """Answer the questions of VRSD's sets after the picks of each method, random ones, and none; write a report folder.

    The picks are those of `vrsd`: k of each query's `pool` nearest items. They stand as demonstrations before the
    question, in the order picked; the model answers greedily, to the end of the line, in its chat template if it has
    one. ROUGE-1, 2 and L (F1, without stemming, by the package rouge-score) compare with the set's answer; on
    OpenBookQA an answer is right if the right option is more like it, by ROUGE-L, than every other; and the model is
    right by log-probability if it gives the right option the largest of all, which needs no generation. Nor does the
    mean log-probability of a token of the set's answer (nats), which says most of a small difference: it is not a yes
    or no for each question. Answers and scores are kept as they are made, so that a stopped run resumes where it was.

    Parameters
    ----------
    out : path
        Folder of the report, as for `vrsd`; ``values.csv`` has every query's picks and values.
    model, dtype
        As `HuggingFaceModel.from_pretrained` takes them, or a `HuggingFaceModel`.
    encoder : str, path or Encoder
        "mpnet" (the paper's), "minilm", a folder or a name on the hub; see `SentenceTransformerEncoder`.
    sets : sequence of {"arc-da", "openbookqa", "puzzle"}, optional
        Default: all.
    quick : bool
        50 queries a set.
    queries : int, optional
        Number of each set, drawn at random; all where the set has no more. Default: all, or with `quick` 50.
    scores_only : bool
        Leave the written answers out, and with them ROUGE: several times as fast.
    answers_only : bool
        Leave the log-probabilities out: half the work.
    k, pool : int
        Picks and candidates of a query.
    seed : int
        Seed of the queries drawn and of the random picks.
    data, cache, samples, num_threads, progress
        As for `vrsd`; `progress` counts texts to encode, then answers.

    Raises
    ------
    ValueError, TypeError, OSError, ModuleNotFoundError
        What can be checked without the models is, before they are loaded.
    """
    op = "vrsd-answers"
    names = sets_named(op, sets, VRSD_SETS, VRSD_SETS)
    queries = QUICK_QUERIES if queries is None and quick else queries
    for name, number in (("queries", queries), ("k", k)):
        if number is not None:
            count(op, name, number)
    if scores_only and answers_only:
        raise ValueError(f"{op}: answers_only must be False with scores_only, got True")
    if k > pool:
        raise ValueError(f"{op}: k must be at most pool = {pool}, got {k}")
    run = Run(op, out, cache=cache, samples=samples, num_threads=num_threads)
    chosen = [_sample(vrsd_set(name, data), queries, seed) for name in names]
    for one in chosen:
        check_pool(op, one, pool)
    score = None if scores_only else rouge_scorer(op)
    rank_bm25(op)
    with (
        ExitStack() as opened,
        run.embeddings(encoder, progress) as kept,
        run.language_model(model, dtype=dtype) as scorer,
    ):
        generator, prompt = None, "as it is"
        if not scores_only:
            greedy = GreedyGenerator(run.hugging_face(scorer))
            generator = opened.enter_context(CachedGenerator(greedy, run.kept("answers")))
            if greedy.chat:
                prompt = "in the model's chat template"
                prompt += "" if answers_only else " where answers are written, else as it is"
        results = [
            evaluate(
                kept, generator, one, score,
                scorer=None if answers_only else scorer, k=k, pool=pool, seed=seed,
                num_threads=num_threads, progress=progress,
            )
            for one in chosen
        ]  # fmt: skip
        generated, cached = (0, 0) if generator is None else (generator.misses, generator.hits)
        models = described(model, scorer, kept)
    report = report_of(results, samples, k, quick=queries is not None)
    run.write(
        report,
        {
            **models,
            "sets": {one.title: f"{len(one.questions)} queries, {len(one.pool)} items" for one in chosen},
            "sha256 of the data": digests(one.source for one in chosen),
            "k, candidates": f"{k}, {pool}",
            "prompt": prompt,
            **{f"instruction, {one.title}": PROMPTS[one.name][0].instruction for one in chosen},
            "answers end": {
                one.title: f"after {PROMPTS[one.name][1].max_new_tokens} tokens or a line" for one in chosen
            },
            "seed": seed,
            "bootstrap": run.bootstrap(),
            "answers generated, from the cache": f"{generated}, {cached}",
            "seconds": f"{run.seconds:.1f}",
        },
    )
    return AnswersSummary(results, generated, cached, run.seconds, run.out)


def evaluate(
    encoder: Encoder,
    generator: CachedGenerator | None,
    questions: QuestionSet,
    score: Callable[[str, str], Sequence[float]] | None,
    *,
    scorer: LanguageModel | None = None,
    k: int = K,
    pool: int = POOL,
    seed: int = 0,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> AnswerResult:
    """Let the model answer every question of a set after every method's picks.

    A `scorer` also rates the set's answer and the options; without a `generator` it does that alone.
    """
    vectors, dense = encoder.encode(questions.questions), DenseRetriever(encoder, questions.pool)
    candidates = dense.nearest(vectors, pool, num_threads=num_threads).ids
    rng = np.random.default_rng([seed, len(questions.pool)])
    size = len(questions.questions)
    picks = {
        NONE: np.empty((size, 0), np.int64),
        RANDOM: np.stack([rng.choice(len(questions.pool), k, replace=False) for _ in range(size)]),
    }
    for label in (*MMR, VRSD):
        if label == VRSD:
            picks[OKAPI] = okapi(questions.questions, questions.pool, k)
        rule = next(rule for rule in RULES if rule.label == label)
        chosen = rule.select(vectors, dense.corpus, k, candidates=candidates, num_threads=num_threads)
        picks[label] = chosen.indices
    prompts = [prompt for rows in picks.values() for prompt in _prompts(questions, rows)]
    result = AnswerResult(questions, picks, {}, {}, {}, {}, {})
    if generator is not None and score is not None:
        answers = generator.generate(prompts, PROMPTS[questions.name][1], progress)
        for at, label in enumerate(picks):
            mine = [answer.removeprefix("A:").strip() for answer in answers[at * size : (at + 1) * size]]
            triples = [*zip(questions.questions, questions.answers, mine, strict=True)]
            result.rouge[label] = np.array([score(truth, answer) for _, truth, answer in triples])
            if questions.name == CHOICES:
                result.right[label] = np.array([is_right(score, *triple) for triple in triples])
    if scorer is not None:
        for at, label in enumerate(picks):
            own = prompts[at * size : (at + 1) * size]
            if questions.name == CHOICES:  # first: the answer is one of the options, which share a prompt
                result.likeliest[label], result.per_character[label] = is_likeliest(scorer, questions, own, progress)
            result.truth[label] = log_probability(scorer, questions, own, progress)
    return result


def log_probability(
    scorer: LanguageModel, questions: QuestionSet, prompts: Sequence[str], progress: Progress | None = None
) -> Array:
    """Return the mean log-probability (nats) of a token of each question's answer: (Q,)."""
    template = PROMPTS[questions.name][0]
    answers = [template.answer({"answer": answer}) for answer in questions.answers]
    found = np.empty(len(prompts))
    for part in portions(len(prompts), _BLOCK, progress):
        found[part] = scorer.score(prompts[part], answers[part]).mean
    return found


def is_likeliest(
    scorer: LanguageModel, questions: QuestionSet, prompts: Sequence[str], progress: Progress | None = None
) -> Array:
    """Return whether the model gives the right option a larger log-probability than every other: (2, Q) bool.

    As it is, by which short options win, and divided by the option's number of characters: acc and acc_norm of
    lm-evaluation-harness.
    """
    found: dict[int, Array] = {}
    template = PROMPTS[questions.name][0]
    for block in portions(len(prompts), _BLOCK, progress):
        choices = [options_of(question) for question in questions.questions[block]]
        pairs = [
            (prompt, template.answer({"answer": option}))
            for prompt, options in zip(prompts[block], choices, strict=True)
            for option in options
        ]
        logp = scorer.score([prompt for prompt, _ in pairs], [answer for _, answer in pairs]).sum
        ends = np.cumsum([len(options) for options in choices])
        each = zip(np.split(logp, ends[:-1]), choices, questions.answers[block], strict=True)
        for i, (values, options, truth) in enumerate(each, block.start):
            true = np.array([option == truth for option in options])
            by = np.array([values, values / np.maximum([len(option) for option in options], 1)])
            own, rivals = (np.max(by, axis=1, where=which, initial=-np.inf) for which in (true, ~true))
            found[i] = own > rivals
    return np.transpose([found[i] for i in range(len(prompts))])


def options_of(question: str) -> list[str]:
    return question.partition(OPTIONS)[2].split(". ")


def rouge_scorer(op: str) -> Callable[[str, str], list[float]]:
    """Return a function of the true and the given answer: F1 of ROUGE-1, 2 and L."""
    with needed(op, "evaluate", "rouge-score"):
        from rouge_score.rouge_scorer import RougeScorer
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)

    def score(truth: str, answer: str) -> list[float]:
        found: Mapping[str, Any] = scorer.score(truth, answer)
        return [float(found[name].fmeasure) for name in ("rouge1", "rouge2", "rougeL")]

    return score


def is_right(score: Callable[[str, str], Sequence[float]], question: str, truth: str, answer: str) -> bool:
    """Return whether the answer is more like the right option, by ROUGE-L, than like each other option."""
    rivals = [score(option, answer)[2] for option in options_of(question) if option != truth]
    return score(truth, answer)[2] > max(rivals, default=0.0)


def _prompts(questions: QuestionSet, picks: Array) -> list[str]:
    template = PROMPTS[questions.name][0]
    items = [dict(zip(("question", "answer"), item.split("->", 1), strict=True)) for item in questions.pool]
    return [
        template.prompt({"question": question}, [items[i] for i in row if i >= 0])
        for question, row in zip(questions.questions, picks, strict=True)
    ]


def _sample(questions: QuestionSet, number: int | None, seed: int) -> QuestionSet:
    if number is None or number >= len(questions.questions):
        return questions
    some = drawn(len(questions.questions), number, seed)
    return questions._replace(
        questions=[questions.questions[q] for q in some], answers=[questions.answers[q] for q in some]
    )
