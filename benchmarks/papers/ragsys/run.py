"""RAGSys' comparison of retrievers on TruthfulQA: what six demonstrations do to the probabilities of the answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

import ragsys_kernels as rk
from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels._base.types import PathLike
from ragsys_kernels.icl.cache import CachedModel
from ragsys_kernels.icl.datasets import TruthfulQA, truthfulqa
from ragsys_kernels.icl.encoders import Encoder
from ragsys_kernels.icl.language_model import LanguageModel
from ragsys_kernels.icl.prompts import QA
from ragsys_kernels.icl.quality import quality_bias
from ragsys_kernels.icl.storage.portions import portions
from ragsys_kernels.metrics import dpo, multiple_choice, pairwise_cosine

from .._run import Progress, Run, Summary, described, digests, drawn
from . import per_query
from .report import add_values, report_of
from .results import METRICS, Result
from .retrievers import LAMBDA_B, LAMBDA_D, NONE, POOL, PRIMER, RANDOM, K, Setting, by_rule, pick, read_primer
from .retrievers import methods as of_the_paper

Pair = dict[str, str]  # question and answer

QUICK_QUESTIONS = 100
LAMBDAS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)  # of the sweep
SELECTIONS = 12  # of a question's path
_WINDOW = 32  # prompts with all their answers; what a killed run loses at most (20 s of SmolLM2-135M on one core)


@dataclass(frozen=True)
class RagsysSummary(Summary):
    """What an evaluation did; as text, a line for each setting and one for the whole."""

    results: list[Result]
    scored: int
    cached: int
    seconds: float
    out: Path
    choices: list[per_query.Choice] = field(default_factory=list)  # with a weight for each question

    def lines(self) -> Iterator[str]:
        found = [(result.setting.label, result.values) for result in self.results]
        for label, values in (*found, *(choice[:2] for choice in self.choices)):
            yield f"{label}: {', '.join(f'{name} {values[name].mean():.3f}' for name in METRICS)}"

    def work(self) -> str:
        return f"{self.scored} answers scored, {self.cached} from the cache"


def ragsys(
    *,
    out: PathLike,
    model: PathLike | LanguageModel = "smollm2",
    dtype: Literal["float32", "float16", "bfloat16"] = "bfloat16",
    encoder: PathLike | Encoder = "minilm",
    embed: Literal["question", "pair"] = "question",
    counts: Literal["clean", "paper"] = "clean",
    questions: int | None = None,
    quick: bool = False,
    k: int = K,
    pool: int = POOL,
    lambda_d: float = LAMBDA_D,
    lambda_b: float = LAMBDA_B,
    lambdas: Sequence[float] = LAMBDAS,
    weights: Literal["fixed", "per-query"] = "fixed",
    selections: int = SELECTIONS,
    methods: Sequence[str] | Literal["all"] = (),
    primer: PathLike | None = None,
    data: PathLike | None = None,
    cache: PathLike | None = None,
    samples: int = 10_000,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> RagsysSummary:
    """Compare the retrievers Fix, Bias, Rel, Rel+Bias, Rel+Div and Rel+Div+Bias on TruthfulQA; write a report folder.

    The demonstrations are the correct answers to all questions with their questions; those of a question's own are left
    out. Each retriever gives a question k of them, the model scores every correct and incorrect answer after them, and
    MC1, MC2, MC3 and DPO compare the two kinds. Random demonstrations and none stand beside. The bias is the mean
    log-probability of a demonstration's answer under the same model. Embeddings and scores are kept in the cache as
    they are made, so that a stopped run resumes where it was.

    Parameters
    ----------
    out : path
        Folder of the report, as for `vrsd`; ``values.csv`` has every question's picks and values.
    model : str, path or LanguageModel
        "smollm2", or whatever else `HuggingFaceModel.from_pretrained` takes; or a model that is open.
    dtype : {"float32", "float16", "bfloat16"}
        How the model's weights are held.
    encoder : str, path or Encoder
        "minilm", "mpnet", a folder or a name on the Hugging Face hub; see `SentenceTransformerEncoder`.
    embed : {"question", "pair"}
        What of a demonstration is embedded: its question, so that all its answers are at one place and diversity keeps
        them apart, or question and answer.
    counts : {"clean", "paper"}
        Which answers `truthfulqa` returns. Empty answers of "paper" are scored as the space before them, and are no
        demonstrations.
    questions : int, optional
        Number of questions, drawn with a fixed seed; a larger number includes the smaller. Default: all, or 100 with
        `quick`. Demonstrations come from all questions in any case.
    quick : bool
    k, pool : int
        Demonstrations of a question, and candidates that they are selected from.
    lambda_d, lambda_b : float, in [0, 1]
        Weights of the retrievers with diversity and bias.
    lambdas : sequence of float
        lambda_d of the sweep, over the whole corpus, with `lambda_b` and without bias; may be empty. With `weights`
        "per-query" over the pools of the paths, without bias.
    weights : {"fixed", "per-query"}
        "per-query" also asks what a lambda_d for each question would give: the best one of the question's own answers
        (an oracle), out of its `mmr_path` and out of the sweep, and one that other questions choose, both against the
        best fixed one, with paired intervals.
    selections : int
        With "per-query", how many selections of a question's path are scored, those of the widest ranges of lambda_d.
    methods : sequence of str, or "all"
        Further rules, by their names in `ragsys_kernels.METHODS`, without bias. MMR has `lambda_d` and is Rel+Div; the
        others have weights and options of their own, which are the defaults of their functions. Each gets its row, and
        its differences to Rel and Rel+Div with paired intervals.
    primer : path, optional
        File with the demonstrations of Fix, which shows all of them, whatever k; see `icl.ragsys.read_primer`. Default:
        six of our own.
    data, cache, samples, num_threads
        As for `vrsd`; see `truthfulqa` for the data. The cache also has ``scores.sqlite``.
    progress : callable, optional
        Called with the answers scored and their number, first with 0; once for the bias and once for the settings.

    Raises
    ------
    ValueError, TypeError, OSError, ModuleNotFoundError
        What can be checked without the model is, before it is loaded.

    Notes
    -----
    Source: RAGSys (arXiv 2405.17587), Tables 1 and 2, Figure 1.
    """
    op = "ragsys"
    numbers = (("k", k, 1), ("pool", pool, k), ("questions", questions, 1), ("selections", selections, 1))
    for name, value, least in numbers:
        if value is not None and value < least:
            raise ValueError(f"{op}: {name} must be at least {least}, got {value}")
    for name, weight in (("lambda_d", lambda_d), ("lambda_b", lambda_b), *(("lambdas", value) for value in lambdas)):
        if not 0 <= weight <= 1:
            raise ValueError(f"{op}: {name} must be in [0, 1], got {weight}")
    rules = _rules(op, methods)
    if embed not in ("question", "pair"):
        raise ValueError(f"{op}: embed must be question or pair, got {embed!r}")
    if weights not in ("fixed", "per-query"):
        raise ValueError(f"{op}: weights must be fixed or per-query, got {weights!r}")
    each = weights == "per-query"
    if each and len(set(lambdas)) < 2:
        raise ValueError(f"{op}: lambdas must have two values or more with weights per-query, got {len(set(lambdas))}")
    run = Run(op, out, cache=cache, samples=samples, num_threads=num_threads)
    whole = truthfulqa(counts, data)
    fixed = PRIMER if primer is None else read_primer(primer)
    questions = QUICK_QUESTIONS if questions is None and quick else questions
    size = len(whole.questions)
    if questions is not None and questions > size:
        raise ValueError(f"{op}: questions must be at most {size}, got {questions}")
    asked = drawn(size, questions)
    own = _of(whole, asked)
    if each and len(asked) < per_query.FOLDS:
        raise ValueError(f"{op}: questions must be at least {per_query.FOLDS} with weights per-query, got {len(asked)}")
    shown = _demonstrations(op, whole, pool)
    paper = of_the_paper(lambda_d, lambda_b)
    by_name = [_same(by_rule(name, lambda_d if name == "mmr" else None), paper) for name in rules]
    named = [*dict.fromkeys([*paper, *by_name]), RANDOM, NONE]
    if each:
        swept = [_same(Setting(f"λ_d = {value:g}", "mmr", value), named) for value in dict.fromkeys(lambdas)]
    else:
        swept = _figure1(dict.fromkeys(lambdas), lambda_b)
    every = list(dict.fromkeys([*named, *swept]))
    with run.embeddings(encoder) as texts, run.language_model(model, dtype=dtype) as scorer:
        rows = texts.encode(shown.keys(embed))
        queries = texts.encode(own.questions)
        begun = time.perf_counter()
        bias = quality_bias(scorer, *shown.columns, progress=progress)
        corpus = rk.Corpus(rows, bias, shown.owners)
        picks = pick(every, corpus, shown.owners, queries, asked, k=k, pool=pool, num_threads=num_threads)
        segments = None
        if each:
            segments = per_query.segments_of(
                corpus, queries, asked, k=k, pool=pool, most=selections, num_threads=num_threads
            )
            picks |= segments.picks
        prompts = {
            setting: _prompts(setting, picks.get(setting), shown, fixed, own.questions)
            for setting in (*every, *(segments.picks if segments else ()))
        }
        scored = score(scorer, prompts, own, progress)
        models = described(model, scorer, texts)
    seconds = time.perf_counter() - begun
    results = {setting: _result(setting, asked, scored.logp, own, picks.get(setting), rows) for setting in prompts}
    of_named, of_rules, of_sweep = ([results[setting] for setting in some] for some in (named, by_name, swept))
    name = models["model"].partition(", fingerprint")[0]
    report = report_of(of_named, of_rules, of_sweep, bias=bias, samples=samples, quick=len(asked) < size, name=name)
    choices: list[per_query.Choice] = []
    if segments:
        of_path = [results[setting] for setting in segments.picks]
        choices = per_query.choices(of_sweep, of_path, np.asarray(queries))
        halves = {
            setting: per_query.by_half(logp, own.is_correct, own.cu_questions) for setting, logp in scored.logp.items()
        }
        first, second = (np.stack([halves[setting] for setting in some]) for some in (swept, segments.picks))
        judged = per_query.judged_by_others(first, second, samples)
        per_query.write(report, found=choices, halves=judged, segments=segments, samples=samples)
    add_values(report, [*results.values()])
    run.write(
        report,
        {
            **models,
            "counts": f"{counts}: {int(whole.is_correct.sum())} correct answers, {whole.triplets} triplets",
            "sha256 of the data": digests([whole.source]),
            "questions": f"{len(asked)} of {size}, drawn with seed 0",
            "demonstrations": f"{len(shown.pairs)}, of which the {embed} is embedded",
            "primer": "the library's" if primer is None else str(primer),
            "demonstrations of Fix": len(fixed),
            "k, candidates": f"{k}, {pool}",
            "lambda_d, lambda_b": f"{lambda_d:g}, {lambda_b:g}",
            **({"selections of a path": selections} if each else {}),
            **({"further rules": ", ".join(rules)} if rules else {}),
            "bootstrap": run.bootstrap(),
            "answers scored, from the cache": f"{scored.new}, {scored.cached}",
            "seconds to score, in all": f"{seconds:.1f}, {run.seconds:.1f}",
        },
    )
    return RagsysSummary(
        [results[setting] for setting in every], scored.new, scored.cached, run.seconds, run.out, choices
    )


class _Shown(NamedTuple):
    """The demonstrations: N pairs, and the question that each belongs to."""

    pairs: list[Pair]
    owners: Array

    @property
    def columns(self) -> tuple[list[str], list[str]]:
        return [pair["question"] for pair in self.pairs], [pair["answer"] for pair in self.pairs]

    def keys(self, embed: str) -> list[str]:
        """Return what is embedded of each."""
        questions, answers = self.columns
        return questions if embed == "question" else list(map(" ".join, zip(questions, answers, strict=True)))


class Scored(NamedTuple):
    """Log-probabilities that `score` found, and how many of them were in the cache."""

    logp: dict[Setting, Array]  # (A,) sums over the tokens of each answer to the questions, end to end
    new: int
    cached: int


def score(
    scorer: CachedModel, prompts: dict[Setting, list[str]], data: TruthfulQA, progress: Progress | None = None
) -> Scored:
    """Score all answers to each question after its prompt of every setting, equal prompts once.

    In the order of the prompts, so that those that begin alike come together.
    """
    answers = [[QA.answer({"answer": text}) for text in data.answers_to(q)] for q in range(len(data.questions))]
    asks = sorted({(prompt, q) for some in prompts.values() for q, prompt in enumerate(some)})
    total, done, before = sum(len(answers[q]) for _, q in asks), 0, scorer.hits
    found: dict[tuple[str, int], Array] = {}
    if progress is not None:
        progress(0, total)
    for part in portions(len(asks), _WINDOW):
        window = asks[part]
        pairs = [(prompt, answer) for prompt, q in window for answer in answers[q]]
        sums = scorer.score(*map(list, zip(*pairs, strict=True))).sum
        ends = np.cumsum([len(answers[q]) for _, q in window])
        found.update(zip(window, np.split(sums, ends[:-1]), strict=True))
        done += len(pairs)
        if progress is not None:
            progress(done, total)
    logp = {
        setting: np.concatenate([found[prompt, q] for q, prompt in enumerate(some)])
        for setting, some in prompts.items()
    }
    return Scored(logp, total - (scorer.hits - before), scorer.hits - before)


def _of(data: TruthfulQA, some: Array) -> TruthfulQA:
    """Return some of the questions, with their answers."""
    spans = [slice(*data.cu_questions[q : q + 2]) for q in some]
    starts = np.cumsum([0, *(span.stop - span.start for span in spans)])
    return data._replace(
        questions=[data.questions[q] for q in some],
        answers=[answer for span in spans for answer in data.answers[span]],
        is_correct=np.concatenate([data.is_correct[span] for span in spans]),
        cu_questions=starts,
        best=starts[:-1] + data.best[some] - data.cu_questions[some],
    )


def _demonstrations(op: str, data: TruthfulQA, pool: int) -> _Shown:
    owners, answers = data.pairs
    usable = [(int(q), data.answers[a]) for q, a in zip(owners, answers, strict=True) if data.answers[a]]
    shown = _Shown(
        [{"question": data.questions[q], "answer": text} for q, text in usable], np.array([q for q, _ in usable])
    )
    others = len(usable) - int(np.bincount(shown.owners).max())
    if pool > others:
        raise ValueError(f"{op}: pool must be at most the {others} demonstrations of other questions, got {pool}")
    return shown


def _rules(op: str, methods: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of the further rules, each once."""
    if isinstance(methods, str):
        methods = [*rk.METHODS] if methods == "all" else [methods]
    for name in methods:
        if name not in rk.METHODS:
            raise ValueError(f"{op}: methods must be all, or some of {', '.join(rk.METHODS)}, got {name!r}")
    return tuple(dict.fromkeys(methods))


def _figure1(lambdas: Iterable[float], lambda_b: float) -> list[Setting]:
    """Return the settings of the sweep over the whole corpus: without bias, then with it."""
    return [
        Setting(f"λ_d = {value:g}" + (f", λ_b = {weight:g}" if weight < 1 else ""), "mmr", value, weight, True)
        for weight in dict.fromkeys((1.0, lambda_b))
        for value in lambdas
    ]


def _same(setting: Setting, named: Sequence[Setting]) -> Setting:
    """Return that of the named settings which does the same, else this one."""
    return next((one for one in named if one[1:] == setting[1:]), setting)


def _prompts(
    setting: Setting,
    picks: Array | None,
    shown: _Shown,
    fixed: Sequence[tuple[str, str]],
    questions: Sequence[str],
) -> list[str]:
    primer = [{"question": question, "answer": answer} for question, answer in fixed if setting.kind == "fix"]
    chosen = [primer] * len(questions)
    if picks is not None:
        chosen = [[shown.pairs[row] for row in ids[ids >= 0]] for ids in picks]
    return [QA.prompt({"question": question}, pairs) for question, pairs in zip(questions, chosen, strict=True)]


def _result(
    setting: Setting, asked: Array, logp: dict[Setting, Array], data: TruthfulQA, picks: Array | None, rows: Array
) -> Result:
    """Return the metrics of a setting, question by question."""
    choice = multiple_choice(logp[setting], data.is_correct, data.cu_questions, best=data.best)
    plain = dpo(logp[setting], data.is_correct, data.cu_questions)
    against = dpo(logp[setting], data.is_correct, data.cu_questions, reference=logp[NONE])
    pairs = plain.pairs / plain.pairs.mean()  # the mean over questions is that over triplets
    values = {
        "MC1": choice.mc1,
        "MC2": choice.mc2,
        "MC3": choice.mc3,
        "log ratio": choice.mc3_log_ratio,
        "DPO": against.dpo * pairs,
        "DPO, no reference": plain.dpo * pairs,
    }
    likeness = np.full(len(asked), np.nan) if picks is None else pairwise_cosine(rows, picks)
    return Result(setting, asked, values, picks, likeness, pairs)
