"""Adaptive in-context learning: static, predicted and learnt numbers of demonstrations in text classification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ragsys_kernels._base.checks import choice, count
from ragsys_kernels._base.extras import needed
from ragsys_kernels._base.types import PathLike
from ragsys_kernels.icl.adaptive import (
    NEAREST,
    ORDERS,
    SIMILARITIES,
    Demonstrations,
    InContextClassifier,
    LabelPrompt,
    Order,
    Similarity,
    try_every_k,
)
from ragsys_kernels.icl.adaptive_k import BEST_K, BestK, KPredictor, optimal_k, qpp_k
from ragsys_kernels.icl.datasets import CLASSIFICATION_SETS, ClassificationSet, classification_set
from ragsys_kernels.icl.encoders import Encoder
from ragsys_kernels.icl.language_model import LanguageModel
from ragsys_kernels.icl.posteriors import CachedLabels, LabelModel
from ragsys_kernels.icl.prompts import PromptTemplate
from ragsys_kernels.icl.retrievers import RULE_METHODS, Rule
from ragsys_kernels.metrics import macro_scores, nqc, pairwise_cosine

from .._run import Progress, Run, Summary, described, digests, sets_named
from .report import FIXED, METHODS, QPP, SAICL, STATIC, Diverse, SetResult, report_of

M = 5  # the largest static k, and how many of the nearest texts QPP-AICL looks at
DIVERSE = (Rule("mmr", 0.5), Rule("vrsd"))
MAX_WORDS = 40  # of a text in a prompt; a tenth of AG News' texts and half of Jigsaw's test comments are longer


def _prompt(text: str, label: str, words: Sequence[str], instruction: str = "") -> LabelPrompt:
    template = PromptTemplate(
        f"{text}: {{text}}\n{label}: {{label}}", f"{text}: {{text}}\n{label}:", " {label}", instruction
    )
    return LabelPrompt(template, tuple(words), MAX_WORDS)


# Words and instructions that gave the best F1 with SmolLM2-135M, of two or three that were tried on 60 texts of another
# sample.
PROMPTS = {
    "ag-news": _prompt(
        "Article", "Topic", ("World", "Sports", "Business", "Technology"),
        "Say whether the topic of an article is World, Sports, Business or Technology.",
    ),
    "jigsaw": _prompt("Comment", "Tone", ("polite", "toxic"), "Say whether the comment is polite or toxic."),
    "sst-2": _prompt("Review", "Sentiment", ("negative", "positive")),
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How much of each set takes part; None is all of it."""

    test: int | None  # texts to classify
    train: int | None  # texts that can be demonstrations
    learn: int | None  # of these, the ones that SAICL learns from


QUICK, FULL = Sizes(test=300, train=2000, learn=1000), Sizes(test=None, train=10_000, learn=1000)


@dataclass(frozen=True)
class AiclSummary(Summary):
    """What an evaluation did; as text, a line for each set and one for the whole."""

    results: list[SetResult]
    scored: int
    cached: int
    tokens_run: int
    seconds: float
    out: Path

    def lines(self) -> Iterator[str]:
        for result in self.results:
            rows = [
                f"{label} {macro_scores(result.items.test_labels, result.predictions[label]).f1:.3f} "
                f"(k {result.ks[label].mean():.1f}, {result.tokens[label].mean():.0f} tokens)"
                for label in METHODS
            ]
            yield f"{result.items.title}: macro F1 {', '.join(rows)}"

    def work(self) -> str:
        return f"{self.scored} prompts scored with {self.tokens_run} tokens, {self.cached} from the cache"


def aicl(
    *,
    out: PathLike,
    model: PathLike | LanguageModel = "smollm2",
    dtype: str = "bfloat16",
    encoder: PathLike | Encoder = "minilm",
    sets: Sequence[str] | None = None,
    quick: bool = False,
    sizes: Sizes | None = None,
    max_k: int = M,
    top_m: int = M,
    best_k: BestK = "posterior",
    similarity: Similarity = "dense",
    rule: Rule = NEAREST,
    diverse: Sequence[Rule] = DIVERSE,
    pool: int = 50,
    order: Order = "nearest-first",
    seed: int = 0,
    data: PathLike | None = None,
    cache: PathLike | None = None,
    samples: int = 10_000,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> AiclSummary:
    """Compare static k = 0, 1, 3, 5 with QPP-AICL and SAICL on AG News, Jigsaw and SST-2; write a report folder.

    A text's label is that of the largest posterior of the label words after its demonstrations. QPP-AICL takes the NQC
    of the text's `top_m` largest similarities, over the largest of the texts that SAICL learns from. Beside the static
    k stands the one that is best for those same texts, chosen without the test texts. A last table has static,
    predicted and learnt k with other rules in the place of the nearest texts. Every scored prompt is kept in the cache
    as soon as its window of 16 texts is done, so that a stopped run resumes where it was.

    Parameters
    ----------
    out : path
        Folder of the report, as for `vrsd`; ``values.csv`` has every text's k, prediction, entropy and tokens.
    model, dtype, encoder
        As for `ragsys`; a model that is open must be a `HuggingFaceModel`.
    sets : sequence of {"ag-news", "jigsaw", "sst-2"}, optional
        Default: all.
    quick : bool
        `QUICK` sizes instead of `FULL`.
    sizes : Sizes, optional
        Others. A set with fewer texts gives all it has.
    max_k : int
        M, the most demonstrations of QPP-AICL and SAICL.
    top_m : int
        How many of the largest similarities QPP-AICL takes the spread of, from 2 to `pool`.
    best_k : {"posterior", "entropy"}
        Which k is best for a text that SAICL learns from; see `optimal_k`.
    similarity, rule, pool, order
        How demonstrations are found, chosen and put; see `Demonstrations` and `InContextClassifier`.
    diverse : sequence of Rule
        Those that the last table compares with the nearest texts; empty leaves it out.
    seed : int
        Seed of the samples.
    data, cache, samples, num_threads
        As for `vrsd`; see `classification_set` for the data. The cache also has ``posteriors.sqlite``.
    progress : callable, optional
        Called with the items done and their number, first with 0: texts to encode, then texts to classify; anew for
        each step of each set.

    Raises
    ------
    ValueError, TypeError, OSError, ModuleNotFoundError
        What can be checked without the models is, before they are loaded.
    """
    op = "aicl"
    names = sets_named(op, sets, CLASSIFICATION_SETS, CLASSIFICATION_SETS)
    choice(op, "order", order, ORDERS)
    choice(op, "similarity", similarity, SIMILARITIES)
    choice(op, "best_k", best_k, BEST_K)
    for name, one in (("method", rule), *(("diverse", one) for one in diverse)):
        choice(op, name, one.method, RULE_METHODS)
        if not 0 <= one.lambda_d <= 1:
            raise ValueError(f"{op}: lambda_d must be in [0, 1], got {one.lambda_d}")
    count(op, "max_k", max_k)
    most = max(max_k, *STATIC.values())
    if pool < most:
        raise ValueError(f"{op}: pool must be at least the {most} demonstrations that a text can get, got {pool}")
    if not 2 <= top_m <= pool:
        raise ValueError(f"{op}: top_m must be from 2 to the pool's {pool}, got {top_m}")
    sizes = sizes or (QUICK if quick else FULL)
    for name, value in asdict(sizes).items():
        if value is not None:
            count(op, f"sizes.{name}", value)
    run = Run(op, out, cache=cache, samples=samples, num_threads=num_threads)
    chosen = [classification_set(name, data).sample(train=sizes.train, test=sizes.test, seed=seed) for name in names]
    with needed(op, "evaluate", "scikit-learn"):
        import sklearn  # noqa: F401
    with run.embeddings(encoder, progress) as kept, run.language_model(model, dtype=dtype) as scorer:
        inner = run.hugging_face(scorer)
        results, scored, cached, tokens = [], 0, 0, 0
        for items in chosen:
            shown = Demonstrations(
                kept, items.train_texts, items.train_labels, similarity=similarity, rule=rule, pool=pool,
                num_threads=num_threads,
            )  # fmt: skip
            prompt = PROMPTS[items.name]
            labeler = LabelModel(inner, prompt.labels)
            with CachedLabels(labeler, run.kept("posteriors")) as labels:
                classifier = InContextClassifier(labels, shown, prompt, order=order)
                found = evaluate(
                    classifier, items, max_k=max_k, top_m=top_m, best_k=best_k, learn=sizes.learn, progress=progress
                )
                if diverse:
                    found = found._replace(diverse=compare_rules(classifier, found, diverse, progress=progress))
                results.append(found)
                scored, cached, tokens = scored + labels.misses, cached + labels.hits, tokens + labeler.tokens_run
        models = described(model, scorer, kept)
    report = report_of(results, samples, max_k, quick=sizes != FULL)
    run.write(
        report,
        {
            **models,
            "sets": {
                one.title: f"{len(one.test_texts)} texts and {len(one.train_texts)} for demonstrations"
                for one in chosen
            },
            "SAICL learns from": f"{sizes.learn or 'all'} of each set, logistic regression",
            "best k of a text": best_k,
            "QPP-AICL": f"NQC of the {top_m} nearest texts, over the largest of the texts that SAICL learns from",
            "sha256 of the data": digests(one.source for one in chosen),
            "demonstrations": f"{similarity}, {rule.label} of {pool}, {order}, M = {max_k}",
            "words of a text in a prompt": f"at most {MAX_WORDS}",
            **{f"prompt, {one.title}": repr(PROMPTS[one.name].render([("...", 0)], "...")) for one in chosen},
            **{f"label words, {one.title}": list(PROMPTS[one.name].words) for one in chosen},
            "seed": seed,
            "bootstrap": run.bootstrap(),
            "prompts scored, from the cache": f"{scored}, {cached}",
            "tokens run": tokens,
            "seconds": f"{run.seconds:.1f}",
        },
    )
    return AiclSummary(results, scored, cached, tokens, run.seconds, run.out)


def evaluate(
    classifier: InContextClassifier,
    items: ClassificationSet,
    *,
    max_k: int = M,
    top_m: int = M,
    best_k: BestK = "posterior",
    learn: int | None = None,
    progress: Progress | None = None,
) -> SetResult:
    """Let every method classify the test texts of a set; parameters as `aicl`, `learn` as `Sizes`."""
    shown = classifier.demonstrations
    tried = try_every_k(classifier, np.arange(len(shown.texts))[:learn], max_k, progress=progress)
    best = optimal_k(tried.log_posterior, tried.labels, best_k=best_k)
    near = shown.near(items.test_texts)
    easiest, spread = (nqc(one.found.scores[:, :top_m]) for one in (tried.near, near))
    trained = [macro_scores(tried.labels, predictions).f1 for predictions in tried.predictions.T]
    ks: dict[str, Any] = {label: np.full(len(items.test_texts), k) for label, k in STATIC.items()}
    ks[FIXED] = np.full(len(items.test_texts), int(np.argmax(trained)))
    ks[QPP] = qpp_k(spread, max_k, largest=float(np.nanmax(easiest, initial=0.0)))
    ks[SAICL] = KPredictor(tried.near.vectors, best).predict(near.vectors)
    every = np.stack([ks[label] for label in METHODS], axis=1)
    found = classifier.classify(items.test_texts, near, every, progress=progress)
    columns = [values.reshape(every.shape).T for values in (found.label, found.entropy, found.tokens)]
    predictions, entropies, tokens = (dict(zip(METHODS, column, strict=True)) for column in columns)
    return SetResult(items, ks, predictions, entropies, tokens, best, trained)


def compare_rules(
    classifier: InContextClassifier,
    result: SetResult,
    rules: Sequence[Rule],
    *,
    progress: Progress | None = None,
) -> list[Diverse]:
    """Classify the test texts with demonstrations of the nearest and of other rules, k as `result` has it."""
    texts, labels = result.items.test_texts, tuple(label for label in METHODS if result.ks[label].any())
    ks = np.stack([result.ks[label] for label in labels], axis=1)
    vectors = classifier.demonstrations.encoder.encode(classifier.demonstrations.texts)
    compared = []
    for rule in dict.fromkeys((NEAREST, *rules)):
        shown = classifier.demonstrations.ruled(rule)
        other = InContextClassifier(classifier.labeler, shown, classifier.prompt, order=classifier.order)
        near = shown.near(texts)
        found = other.classify(texts, near, ks, progress=progress)
        picks = shown.pick(near, int(ks.max()))
        shares = (np.where(np.arange(picks.shape[1]) < k[:, None], picks, -1) for k in ks.T)
        cosines = [pairwise_cosine(vectors, share) for share in shares]
        predictions = dict(zip(labels, found.label.reshape(ks.shape).T, strict=True))
        compared.append(Diverse(rule.label, predictions, dict(zip(labels, cosines, strict=True))))
    return compared
