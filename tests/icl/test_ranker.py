"""The trained ranker of In-Context RALM: what it maximises, what it learns, what it refuses."""

import numpy as np
import pytest
from tiny_encoder import WORDS, TinyEncoder

pytest.importorskip("scipy")

from ragsys_kernels.icl import PredictiveRanker

RNG = np.random.default_rng(0)


def words(number):
    return [" ".join(RNG.choice(WORDS, number)) for _ in range(4)]


def examples(number, useful):
    """Queries, four documents each, and log-probabilities: 2 nats for a document with the word `useful`."""
    queries = [" ".join(RNG.choice(WORDS, 5)) for _ in range(number)]
    documents = [words(3) for _ in queries]
    for row in documents:
        row[RNG.integers(4)] += f" {useful} {useful}"
    logp = [[-10 + 2 * (useful in text) for text in row] for row in documents]
    return queries, documents, logp


def objective(ranker, weights, queries, documents, logp):
    """The docstring's formula, a query after the other."""
    total = 0.0
    for query, texts, worth in zip(queries, documents, logp, strict=True):
        if not texts:
            continue
        q = ranker.encoder.encode([query])[0].astype(np.float64)
        d = ranker.encoder.encode(texts).astype(np.float64)
        q, d = q / np.linalg.norm(q), d / np.linalg.norm(d, axis=1, keepdims=True)
        f = np.sqrt(len(q)) * (q * d) @ weights[:-2] + weights[-2] * 10 * (d @ q)
        f += weights[-1] * np.log(np.arange(1, len(d) + 1))
        p = np.exp(f) / np.exp(f).sum()
        total += np.log(p @ np.exp(worth))
    return total / sum(map(bool, documents)) - ranker.weight_decay * weights @ weights / 2


def test_weights_maximise_the_likelihood_of_what_follows():
    queries, documents, logp = examples(30, "sun")
    documents[3], logp[3], documents[7], logp[7] = documents[3][:2], logp[3][:2], [], []
    ranker = PredictiveRanker(TinyEncoder(), weight_decay=0.05).fit(queries, documents, logp)
    best = objective(ranker, ranker.weights, queries, documents, logp)
    assert best > objective(ranker, np.zeros(26), queries, documents, logp) + 0.01
    for step in RNG.standard_normal((40, 26)) * 0.05:
        assert objective(ranker, ranker.weights + step, queries, documents, logp) < best
    again = PredictiveRanker(TinyEncoder(), weight_decay=0.05).fit(queries, documents, logp)
    np.testing.assert_array_equal(again.weights, ranker.weights)


def test_scores_are_the_formula_and_follow_the_place():
    queries, documents, _ = examples(30, "sun")
    # The third document is always the one that helps, whatever it says.
    logp = [[-10.0, -10.0, -4.0, -10.0]] * 30
    ranker = PredictiveRanker(TinyEncoder()).fit(queries, documents, logp)
    encoder, weights = ranker.encoder, ranker.weights
    scores = ranker.score(queries[:2], [documents[0], documents[1][:1]])
    assert [len(row) for row in scores] == [4, 1]
    for query, texts, row in zip(queries, [documents[0], documents[1][:1]], scores, strict=False):
        q, d = encoder.encode([query])[0], encoder.encode(texts)
        q, d = q / np.linalg.norm(q), d / np.linalg.norm(d, axis=1, keepdims=True)
        expected = np.sqrt(24) * (q * d) @ weights[:-2] + weights[-2] * 10 * (d @ q)
        expected += weights[-1] * np.log(np.arange(1, len(d) + 1))
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)
    assert weights[-1] > 0  # the best is not the first


def test_untrained_it_keeps_the_retrievers_order():
    ranker = PredictiveRanker(TinyEncoder())
    for row in ranker.score(["sun", "rain"], [["a", "b", "c"], []]):
        np.testing.assert_array_equal(np.argsort(-row), np.arange(len(row)))
    assert ranker.score([], []) == []


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (
            (["q"], [["a", "b"]], [[-1.0]]),
            "documents and logp must have a row for each of the 1 queries, of eq",
        ),
        ((["q", "r"], [["a"]], [[-1.0]]), "for each of the 2 queries"),
        ((["q"], [[]], [[]]), "fit: documents must be at least one, got none"),
        ((["q"], [["a", "b"]], [[-1.0, np.nan]]), "fit: logp must be finite, got nan"),
    ],
)
def test_bad_examples(arguments, match):
    with pytest.raises(ValueError, match=match):
        PredictiveRanker(TinyEncoder()).fit(*arguments)


def test_bad_options():
    with pytest.raises(ValueError, match="PredictiveRanker: weight_decay must be above 0, got 0"):
        PredictiveRanker(TinyEncoder(), weight_decay=0)
    with pytest.raises(ValueError, match="score: documents must have a row for each of the 1 queries, got 2"):
        PredictiveRanker(TinyEncoder()).score(["q"], [["a"], ["b"]])
    with pytest.raises(TypeError, match="documents"):
        PredictiveRanker(TinyEncoder()).fit(["q"], [[1]], [[-1.0]])
