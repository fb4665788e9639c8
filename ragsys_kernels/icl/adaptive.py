"""Adaptive in-context learning: how many demonstrations each query gets.

Demonstrations are the query's nearest training texts with their labels. Static ICL gives k of them to every query,
QPP-AICL as many as a query performance predictor says, SAICL as many as a classifier learnt from training texts says.

Source: Parry, Ganguly and Chandra, '"In-Context Learning" or: How I learned to stop worrying and love "Applied
Information Retrieval"' (SIGIR 2024); what that leaves open follows the code of Chandra, Ganguly and Ounis, "One size
doesn't fit all: predicting the number of examples for in-context learning" (ECIR 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from .._base.types import NDArray as Array
from .adaptive_k import BestK, KPredictor, optimal_k
from .encoders import Encoder
from .posteriors import CachedLabels, Label, Labeler, Posteriors, words_of
from .prompts import PromptTemplate
from .retrievers import BM25Retriever, DenseRetriever, Found, Rule

Order = Literal["nearest-first", "nearest-last"]
Similarity = Literal["dense", "bm25"]
ORDERS, SIMILARITIES = get_args(Order), get_args(Similarity)
NEAREST = Rule("top")


class LabelPrompt(NamedTuple):
    """How a text and its label stand in a prompt."""

    template: PromptTemplate  # with the fields text and label
    # What stands for the labels 0, 1, ...: a word, or a verbaliser set, words whose probabilities are summed, of which
    # demonstrations have the first.
    words: tuple[str | tuple[str, ...], ...]
    max_words: int | None = None  # texts are cut to so many words; None leaves them as they are

    @property
    def labels(self) -> tuple[Label, ...]:
        """The words as they follow the prompt."""
        follow = [tuple(self.template.answer({"label": word}) for word in words_of(label)) for label in self.words]
        return tuple(words if len(words) > 1 else words[0] for words in follow)

    def render(self, demonstrations: Sequence[tuple[str, int]], query: str) -> str:
        shown = [{"text": self._cut(text), "label": words_of(self.words[label])[0]} for text, label in demonstrations]
        return self.template.prompt({"text": self._cut(query)}, shown)

    def _cut(self, text: str) -> str:
        return text if self.max_words is None else " ".join(text.split()[: self.max_words])


class Neighbours(NamedTuple):
    """The training texts that are nearest to Q queries."""

    vectors: Array  # (Q, D), of the queries
    found: Found  # (Q, P) positions and scores, nearest first


class Demonstrations:
    """Labelled texts to choose demonstrations from.

    Parameters
    ----------
    encoder : Encoder
        For the similarity, for diversity, and for what SAICL learns from.
    texts, labels : sequences of N
    similarity : {"dense", "bm25"}
        By the cosine of embeddings, or by words.
    rule : Rule
        What picks among the nearest: the nearest themselves ("top"), MMR or VRSD.
    pool : int
        How many nearest texts the rule picks from.
    num_threads : int, optional
        Threads of the kernels.
    """

    def __init__(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        labels: Any,
        *,
        similarity: Similarity = "dense",
        rule: Rule = NEAREST,
        pool: int = 50,
        num_threads: int | None = None,
    ) -> None:
        if similarity not in SIMILARITIES:
            raise ValueError(f"demonstrations: similarity must be dense or bm25, got {similarity!r}")
        if pool < 1:
            raise ValueError(f"demonstrations: pool must be at least 1, got {pool}")
        self.texts, self.labels, self.rule = list(texts), np.asarray(labels), rule
        if self.labels.shape != (len(self.texts),):
            raise ValueError(
                f"demonstrations: labels must be as many as texts, {len(self.texts)}, got {self.labels.shape}"
            )
        self.encoder, self.pool, self._num_threads = encoder, min(pool, len(self.texts)), num_threads
        self._dense = DenseRetriever(encoder, self.texts)
        self._words = BM25Retriever(self.texts) if similarity == "bm25" else None

    def ruled(self, rule: Rule) -> Demonstrations:
        """Return the same texts with another rule."""
        other = copy(self)
        other.rule = rule
        return other

    def near(self, queries: Sequence[str], *, own: Any = None) -> Neighbours:
        """Return the nearest texts of each query; `own` (Q,) are positions to leave out, of the queries themselves."""
        vectors = self._dense.encoder.encode(queries)
        number = self.pool + (own is not None)
        if self._words is None:
            found = self._dense.nearest(vectors, number, num_threads=self._num_threads)
        else:
            found = self._words.search(queries, number)
        if own is not None:
            found = _without(found, np.asarray(own))
        return Neighbours(vectors, found)

    def pick(self, near: Neighbours, k: Any) -> Array:
        """Pick up to k demonstrations of each query, in the order of the rule: positions padded with -1.

        k is a number or one for each query, 0 among them; it goes to the kernel as it is. The rules are greedy, so that
        the picks for a smaller k are the first of those for a larger.
        """
        k = np.broadcast_to(np.asarray(k), len(near.vectors))
        if k.dtype.kind not in "iu" or (k < 0).any():
            raise ValueError(f"pick: k must be integers from 0, got {k.min() if k.size else k.dtype}")
        asked = np.flatnonzero(k)
        picks = np.full((len(k), int(k.max(initial=0))), -1, np.int64)
        if len(asked):
            ids, scores = near.found.ids[asked], near.found.scores[asked]
            # Cosines come from the corpus; BM25's scores take their place, scaled to be comparable.
            relevance = None if self._words is None else _unit(scores)
            chosen = self.rule.select(
                near.vectors[asked], self._dense.corpus, k[asked], candidates=ids, relevance=relevance,
                num_threads=self._num_threads,
            )  # fmt: skip
            picks[asked] = chosen.indices
        return picks


class InContextClassifier:
    """A language model that labels a text after some demonstrations.

    Parameters
    ----------
    labeler : Labeler
        One of the prompt's labels.
    demonstrations : Demonstrations
    prompt : LabelPrompt
    order : {"nearest-first", "nearest-last"}
        How the demonstrations stand in the prompt. Nearest first is that of the authors' code, and cheaper where a
        query is run with several k: each prompt's demonstrations are then the beginning of the next's, and `LabelModel`
        shares them. For AG News with k = 0, ..., 5 that is 553 tokens a query instead of 1,110, and half the time.
        Nearest last, beside the query, is usual elsewhere.
    """

    def __init__(
        self,
        labeler: Labeler,
        demonstrations: Demonstrations,
        prompt: LabelPrompt,
        *,
        order: Order = "nearest-first",
    ) -> None:
        if order not in ORDERS:
            raise ValueError(f"in-context classifier: order must be {' or '.join(ORDERS)}, got {order!r}")
        if tuple(labeler.labels) != prompt.labels:
            raise ValueError(
                f"in-context classifier: labeler must have the prompt's labels {prompt.labels}, got {labeler.labels}"
            )
        self.labeler, self.demonstrations, self.prompt, self.order = labeler, demonstrations, prompt, order

    def prompts(self, queries: Sequence[str], near: Neighbours, ks: Any) -> list[list[str]]:
        """Return, for each query, the prompts with each of its k: ks is (Q, S), or (S,) for all."""
        ks = np.asarray(ks)
        ks = np.broadcast_to(ks, (len(queries), ks.shape[-1]))
        picks = self.demonstrations.pick(near, ks.max(axis=1, initial=0))
        step = 1 if self.order == "nearest-first" else -1
        families = []
        for query, row, some in zip(queries, picks, ks, strict=True):
            shown = [(self.demonstrations.texts[i], int(self.demonstrations.labels[i])) for i in row if i >= 0]
            families.append([self.prompt.render(shown[:k][::step], query) for k in some])
        return families

    def classify(
        self,
        queries: Sequence[str],
        near: Neighbours,
        ks: Any,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Posteriors:
        """Return the posteriors of each query with each of its k: Q S of them for ks (Q, S), or (S,) for all."""
        families = self.prompts(queries, near, ks)
        if isinstance(self.labeler, CachedLabels):
            rows = self.labeler.score(families, progress)
        else:
            rows = self.labeler.score(families)
        return Posteriors.of(rows, len(self.prompt.words))


class Tried(NamedTuple):
    """Demonstrations that were run as queries with every k."""

    near: Neighbours  # of the n texts, none its own
    labels: Array  # (n,) the true labels
    log_posterior: Array  # (n, M + 1, L), with k = 0, ..., M

    @property
    def predictions(self) -> Array:
        """The labels (n, M + 1) that the model gives with each k."""
        return np.asarray(self.log_posterior.argmax(axis=2))


def try_every_k(
    classifier: InContextClassifier,
    items: Any,
    max_k: int,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Tried:
    """Run the demonstrations at positions `items` (n,) as queries with k = 0, ..., `max_k`."""
    shown = classifier.demonstrations
    items = np.asarray(items)
    queries = [shown.texts[i] for i in items]
    near = shown.near(queries, own=items)
    found = classifier.classify(queries, near, np.arange(max_k + 1), progress=progress)
    return Tried(near, shown.labels[items], found.log_posterior.reshape(len(items), max_k + 1, -1))


def learn_k(
    classifier: InContextClassifier,
    items: Any,
    max_k: int,
    *,
    best_k: BestK = "posterior",
    model: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> KPredictor:
    """Run some of the demonstrations as queries with every k, and learn the best k from their embeddings (SAICL).

    Parameters
    ----------
    classifier : InContextClassifier
    items : (n,) integers
        Positions of the demonstrations to learn from; none is a demonstration of itself.
    max_k : int
        M.
    best_k : {"posterior", "entropy"}
        Which k is best for a text; see `optimal_k`.
    model : scikit-learn classifier, optional
        Default: logistic regression.
    """
    tried = try_every_k(classifier, items, max_k, progress=progress)
    return KPredictor(tried.near.vectors, optimal_k(tried.log_posterior, tried.labels, best_k=best_k), model)


def _without(found: Found, own: Array) -> Found:
    """Return each row without one position, or without its last where that is not in it."""
    hit = found.ids == own[:, None]
    hit[~hit.any(axis=1), -1] = True
    shape = (len(own), found.ids.shape[1] - 1)
    return Found(found.ids[~hit].reshape(shape), found.scores[~hit].reshape(shape))


def _unit(scores: Array) -> Array:
    """Return BM25's scores over each query's largest, 0 where a query has none."""
    known = np.where(np.isfinite(scores), scores, 0)
    return np.asarray(known / np.maximum(known.max(axis=1, keepdims=True), np.finfo(np.float32).tiny), np.float32)
