"""Predictive reranking of In-Context RALM: a ranker that learns what documents are worth to the language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base.extras import needed
from .._base.types import NDArray as Array
from .encoders import Encoder
from .language_model import texts as checked


class PredictiveRanker:
    """Ranks the documents that a retriever found by how much they help the language model with what comes next.

    A linear head on an encoder's embeddings, with the place in the retriever's order beside them::

        f(q, d_i) = w . (q * d_i) sqrt(D) + 10 u cos(q, d_i) + v log i        p(d_i | q) = softmax_i f(q, d_i)

    with ``q * d`` the products of the components of unit vectors. The cosine is their sum, which would cost w alone D
    equal weights. It learns from texts y that followed the queries: it maximises the probability of y when the document
    is drawn from p::

        mean over q of log sum_i p(d_i | q) p(y | d_i, q)  -  weight_decay |(w, u, v)|^2 / 2

    Parameters
    ----------
    encoder : Encoder
        Of queries and documents: what makes the ranker bidirectional.
    weight_decay : float
        In nats; the larger, the nearer the ranking stays to the retriever's.

    Notes
    -----
    Source: Ram et al., In-Context Retrieval-Augmented Language Models (TACL 2023), section 6.2. The paper trains all
    weights of RoBERTa-base; here only the head is trained. In our runs 80 queries with 16 documents each taught it
    nothing. Before it is trained the order is the retriever's.
    """

    def __init__(self, encoder: Encoder, *, weight_decay: float = 0.1) -> None:
        if not weight_decay > 0:
            raise ValueError(f"PredictiveRanker: weight_decay must be above 0, got {weight_decay}")
        self.encoder, self.weight_decay = encoder, weight_decay
        self.weights: Array | None = None  # w, u and v: (D + 2,) float64

    def fit(
        self, queries: Sequence[str], documents: Sequence[Sequence[str]], logp: Sequence[Sequence[float]]
    ) -> PredictiveRanker:
        """Learn from Q queries, each with the documents found, best first, and what each was worth; return self.

        Parameters
        ----------
        queries : sequence of Q str
        documents : Q sequences of n_q str
            A query without any teaches nothing.
        logp : Q sequences of n_q floats
            Log-probability (nats) of the text that followed the query, after each document.

        Raises
        ------
        ValueError, TypeError
            No queries, numbers that do not agree, log-probabilities that are not finite.
        ModuleNotFoundError
            scipy, which scikit-learn brings, is not installed.

        Notes
        -----
        L-BFGS from zero: the same input gives the same weights.
        """
        op = "fit"
        with needed("PredictiveRanker", "evaluate", "scipy"):
            from scipy.optimize import minimize
        sizes = [len(row) for row in documents]
        if len(queries) != len(sizes) or [len(row) for row in logp] != sizes:
            raise ValueError(
                f"{op}: documents and logp must have a row for each of the {len(queries)} queries, of equal lengths, "
                f"got {sizes[:4]} and {[len(row) for row in logp][:4]}"
            )
        if not sum(sizes):
            raise ValueError(f"{op}: documents must be at least one, got none")
        worth = np.concatenate([np.asarray(row, np.float64) for row in logp])
        if not np.isfinite(worth).all():
            raise ValueError(f"{op}: logp must be finite, got {worth[~np.isfinite(worth)][0]}")
        features = self._features(queries, documents)
        kept = [size for size in sizes if size]
        begins = np.cumsum([0, *kept[:-1]])
        owner = np.repeat(np.arange(len(kept)), kept)

        def loss(weights: Array) -> tuple[float, Array]:
            prior = _log_softmax(features @ weights, begins, owner)
            joint = prior + worth
            total = _logsumexp(joint, begins, owner)
            # What the target says of the documents, less what the ranker said.
            slope = np.exp(prior) - np.exp(joint - total[owner])
            value = -total.mean() + self.weight_decay * float(weights @ weights) / 2
            return float(value), features.T @ slope / len(kept) + self.weight_decay * weights

        start = np.zeros(features.shape[1])
        self.weights = np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B").x, np.float64)
        return self

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[Array]:
        """Return f of each query's documents, Q arrays (n_q,) float64; larger is better.

        `documents` has them in the retriever's order. Complexity: the encoder's runs, and O(D) a document.
        """
        if len(queries) != len(documents):
            raise ValueError(
                f"score: documents must have a row for each of the {len(queries)} queries, got {len(documents)}"
            )
        sizes = [len(row) for row in documents]
        if self.weights is None:
            return [-np.arange(size, dtype=np.float64) for size in sizes]
        values = self._features(queries, documents) @ self.weights if sum(sizes) else np.empty(0)
        return np.split(values, np.cumsum(sizes)[:-1]) if sizes else []

    def _features(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> Array:
        sizes = [len(row) for row in documents]
        flat = checked("PredictiveRanker", "documents", [text for row in documents for text in row])
        distinct = {text: i for i, text in enumerate(dict.fromkeys(flat))}
        vectors = _unit(self.encoder.encode(list(distinct)))[[distinct[text] for text in flat]]
        asked = _unit(self.encoder.encode(checked("PredictiveRanker", "queries", queries)))
        products = np.repeat(asked, sizes, axis=0) * vectors
        places = np.concatenate([np.log(np.arange(1, size + 1)) for size in sizes])
        return np.column_stack([products * np.sqrt(vectors.shape[1]), 10 * products.sum(axis=1), places])


def _unit(vectors: Any) -> Array:
    found = np.asarray(vectors, np.float64)
    return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.finfo(np.float64).tiny))


def _logsumexp(values: Array, begins: Array, owner: Array) -> Array:
    largest = np.maximum.reduceat(values, begins)
    return np.asarray(largest + np.log(np.add.reduceat(np.exp(values - largest[owner]), begins)))


def _log_softmax(values: Array, begins: Array, owner: Array) -> Array:
    return np.asarray(values - _logsumexp(values, begins, owner)[owner])
