"""Adaptive in-context learning: how many demonstrations each query gets.

Demonstrations are the query's nearest training texts with their labels. Static ICL gives k of them to every query,
QPP-AICL as many as a query performance predictor says, SAICL as many as a classifier learnt from training texts says.

Source: Parry, Ganguly and Chandra, '"In-Context Learning" or: How I learned to stop worrying and love "Applied
Information Retrieval"' (SIGIR 2024); what that leaves open follows the code of Chandra, Ganguly and Ounis, "One size
doesn't fit all: predicting the number of examples for in-context learning" (ECIR 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from .._extras import needed
from .encoders import Encoder
from .posteriors import CachedLabels, Labeler, Posteriors
from .prompts import PromptTemplate
from .retrievers import BM25Retriever, DenseRetriever, Found, Rule

Array = npt.NDArray[Any]

Order = Literal["nearest-first", "nearest-last"]
Similarity = Literal["dense", "bm25"]
ORDERS, SIMILARITIES = get_args(Order), get_args(Similarity)
NEAREST = Rule("top")


class LabelPrompt(NamedTuple):
    """How a text and its label stand in a prompt."""

    template: PromptTemplate  # with the fields text and label
    words: tuple[str, ...]  # what stands for the labels 0, 1, ...
    max_words: int | None = None  # texts are cut to so many words; None leaves them as they are

    @property
    def labels(self) -> tuple[str, ...]:
        """The words as they follow the prompt."""
        return tuple(self.template.answer({"label": word}) for word in self.words)

    def render(self, demonstrations: Sequence[tuple[str, int]], query: str) -> str:
        shown = [{"text": self._cut(text), "label": self.words[label]} for text, label in demonstrations]
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
        self.pool, self._num_threads = min(pool, len(self.texts)), num_threads
        self._dense = DenseRetriever(encoder, self.texts)
        self._words = BM25Retriever(self.texts) if similarity == "bm25" else None

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


def qpp_k(predictions: Any, max_k: int, *, largest: float | None = None) -> Array:
    """Return k by QPP-AICL: the easier a query is predicted to be, the fewer demonstrations it gets.

    ::

        k(q) = M - floor(M * NQC(q) / max NQC)

    So the range of the predictor is cut into M equal steps, of which the lowest gets M demonstrations and the highest
    1; the query at the maximum itself needs none.

    Parameters
    ----------
    predictions : (Q,) floating point, at least 0
        `metrics.nqc` of the queries' similarities. NaN, for a query that found nothing, counts as 0.
    max_k : int
        M, the most demonstrations.
    largest : float, optional
        The maximum to normalise by, for instance that of the training texts; what lies above it counts as the maximum.
        Default: the largest of the predictions, which makes k depend on the other queries.

    Returns
    -------
    (Q,) int64, from 0 to M

    Examples
    --------
    >>> from ragsys_kernels.icl.adaptive import qpp_k
    >>> qpp_k([0.0, 0.1, 0.25, 0.5, 0.9, 1.0], 4)
    array([4, 4, 3, 2, 1, 0])
    """
    values = np.asarray(predictions, np.float64)
    values = np.where(np.isnan(values), 0.0, values)
    if values.ndim != 1 or (values < 0).any() or not np.isfinite(values).all():
        raise ValueError(f"qpp_k: predictions must be finite numbers from 0 of shape (Q,), got {predictions!r:.80}")
    if max_k < 0:
        raise ValueError(f"qpp_k: max_k must be at least 0, got {max_k}")
    top = float(values.max(initial=0.0)) if largest is None else largest
    if not top >= 0 or not np.isfinite(top):
        raise ValueError(f"qpp_k: largest must be a finite number from 0, got {largest}")
    share = np.minimum(values / top, 1) if top > 0 else np.zeros_like(values)
    return np.asarray(max_k - np.floor(max_k * share), np.int64)


def optimal_k(correct: Any, uncertainty: Any) -> Array:
    """Return k by SAICL, Algorithms 1 and 2: the one with which the model is right and least uncertain.

    Parameters
    ----------
    correct : (Q, M + 1) bool
        Whether the prediction with k = 0, ..., M demonstrations is right.
    uncertainty : (Q, M + 1) floating point
        Uncertainty of these predictions: the entropy of the posterior.

    Returns
    -------
    (Q,) int64
        The smallest k of equal ones. Where no k is right, that of the least uncertain prediction, as in the code of the
        later paper.
    """
    right, doubt = np.asarray(correct), np.asarray(uncertainty, np.float64)
    if right.dtype != np.bool_ or right.ndim != 2 or right.shape != doubt.shape or not right.shape[1]:
        raise ValueError(
            f"optimal_k: correct and uncertainty must be bool and numbers of one shape (Q, M + 1), got "
            f"{right.dtype} {right.shape} and {doubt.shape}"
        )
    if np.isnan(doubt).any():
        raise ValueError("optimal_k: uncertainty must be numbers, got NaN")
    allowed = right | ~right.any(axis=1, keepdims=True)
    return np.asarray(np.where(allowed, doubt, np.inf).argmin(axis=1), np.int64)


def learn_k(
    classifier: InContextClassifier,
    items: Any,
    max_k: int,
    *,
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
    model : scikit-learn classifier, optional
        Default: logistic regression.
    """
    shown = classifier.demonstrations
    items = np.asarray(items)
    queries = [shown.texts[i] for i in items]
    near = shown.near(queries, own=items)
    found = classifier.classify(queries, near, np.arange(max_k + 1), progress=progress)
    labels = found.label.reshape(len(items), -1)
    best = optimal_k(labels == shown.labels[items, None], found.entropy.reshape(labels.shape))
    return KPredictor(near.vectors, best, model)


class KPredictor:
    """A scikit-learn classifier from embeddings (n, D) to numbers of demonstrations (n,).

    Parameters
    ----------
    vectors, ks
    model : scikit-learn classifier, optional
        Fitted here. Default: logistic regression. Where all ks are equal there is nothing to learn, and they are
        predicted.

    Raises
    ------
    ModuleNotFoundError
        scikit-learn is not installed.
    """

    def __init__(self, vectors: Any, ks: Any, model: Any = None) -> None:
        self.ks = np.asarray(ks, np.int64)
        self._constant = len(np.unique(self.ks)) == 1
        if model is None:
            with needed("adaptive in-context learning", "evaluate", "scikit-learn"):
                from sklearn.linear_model import LogisticRegression
            model = LogisticRegression(C=10.0, max_iter=1000)
        self.model = model if self._constant else model.fit(np.asarray(vectors), self.ks)

    def predict(self, vectors: Any) -> Array:
        """Predict the numbers of demonstrations, (Q,) int64."""
        if self._constant:
            return np.full(len(vectors), self.ks[0])
        return np.asarray(self.model.predict(np.asarray(vectors)), np.int64)


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
