"""Retrievers against brute force: dense, through FAISS, and BM25 by its formula; the rules on top of them."""

import math
import re
from collections import Counter

import numpy as np
import pytest
import Stemmer
from tiny_encoder import WORDS, TinyEncoder

import ragsys_kernels as rk
from ragsys_kernels.icl import BM25Retriever, DenseRetriever, Rule

RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, size=int(RNG.integers(3, 12)))) for _ in range(80)]
QUERIES = [" ".join(RNG.choice(WORDS, size=4)) for _ in range(6)]


def test_dense_is_the_order_of_the_cosines():
    encoder = TinyEncoder()
    retriever = DenseRetriever(encoder, TEXTS)
    found = retriever.search(QUERIES, 7)
    cosines = encoder.encode(QUERIES).astype(np.float64) @ encoder.encode(TEXTS).astype(np.float64).T
    np.testing.assert_array_equal(found.ids, np.argsort(-cosines, axis=1, kind="stable")[:, :7])
    np.testing.assert_allclose(found.scores, -np.sort(-cosines, axis=1)[:, :7], atol=1e-6)
    np.testing.assert_array_equal(retriever.nearest(encoder.encode(QUERIES), 7).ids, found.ids)


def test_faiss_has_the_same_interface():
    pytest.importorskip("faiss")
    exact, flat = DenseRetriever(TinyEncoder(), TEXTS), DenseRetriever(TinyEncoder(), TEXTS, index="Flat")
    for ours, theirs in zip(exact.search(QUERIES, 9), flat.search(QUERIES, 9), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    clusters = DenseRetriever(TinyEncoder(), TEXTS, index="HNSW8,Flat").search(QUERIES, 9)
    assert clusters.ids.shape == (6, 9)


def plain_words(text):
    return re.findall(r"\w\w+", text)


def bm25(query, texts, k1=1.5, b=0.75, words=plain_words):
    bags = [Counter(words(text)) for text in texts]
    average = sum(sum(bag.values()) for bag in bags) / len(bags)
    scores = np.zeros(len(texts))
    for word in words(query):
        having = sum(word in bag for bag in bags)
        idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for i, bag in enumerate(bags):
            length = 1 - b + b * sum(bag.values()) / average
            scores[i] += idf * bag[word] / (bag[word] + k1 * length)
    return scores


@pytest.mark.parametrize("options", [{}, {"k1": 0.9, "b": 0.4}], ids=str)
def test_bm25_is_its_formula(options):
    pytest.importorskip("bm25s")
    found = BM25Retriever(TEXTS, **options).search(QUERIES, 12)
    for q, query in enumerate(QUERIES):
        scores = bm25(query, TEXTS, **options)
        np.testing.assert_allclose(found.scores[q], -np.sort(-scores)[:12], rtol=1e-5)
        np.testing.assert_allclose(scores[found.ids[q]], found.scores[q], rtol=1e-5)
    assert found.ids.dtype == np.int64
    assert found.scores.dtype == np.float32


def test_bm25_of_equal_texts_and_of_unknown_words():
    pytest.importorskip("bm25s")
    retriever = BM25Retriever(["red apple", "green pear", "red apple", "the red apple", "blue"])
    found = retriever.search(["red", "RED, pear", "violet", "the", ""], 4)
    assert found.ids.tolist() == [[0, 2, 3, -1], [1, 0, 2, 3], [-1] * 4, [-1] * 4, [-1] * 4]
    assert np.isneginf(found.scores[2:]).all()
    assert found.scores[0, 3] == -np.inf
    assert retriever.search(["red"], 2).ids.tolist() == [[0, 2]]
    with pytest.raises(ValueError, match="search: n must be at least 1, got 0"):
        retriever.search(["red"], 0)
    with pytest.raises(TypeError, match="search: n must be an integer, got float"):
        retriever.search(["red"], 2.5)
    with pytest.raises(ValueError, match="search: queries must be at least one, got none"):
        retriever.search([], 1)
    with pytest.raises(ValueError, match="BM25: texts must have words, got none"):
        BM25Retriever(["the", "!"])


@pytest.mark.parametrize("n", [1, 2, 5, 20, 39, 40, 41, 60])
def test_bm25_ties_are_by_position_wherever_they_are_cut(n):
    """Texts of five kinds, many of each, in mixed order: all of a kind score the same."""
    pytest.importorskip("bm25s")
    kinds = ["red apple", "red apple red", "green pear", "red pear plum", "blue"]
    which = np.random.default_rng(1).integers(0, 5, 60)
    texts = [kinds[kind] for kind in which]
    queries = ["red", "pear", "apple pear", "plum"]
    found = BM25Retriever(texts).search(queries, n)
    for q, query in enumerate(queries):
        scores = np.float32(bm25(query, texts)).round(4)  # equal texts have equal scores here, others do not
        order = [i for i in np.argsort(-scores, kind="stable") if scores[i] > 0][:n]
        assert found.ids[q].tolist() == order + [-1] * (n - len(order))
        assert len(set(scores[order])) < max(2, len(order))


def test_missing_bm25s_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '.+\[bm25\]'"):
        BM25Retriever(["a text"])


def test_rules_are_the_ops():
    encoder = TinyEncoder()
    retriever, queries = DenseRetriever(encoder, TEXTS), encoder.encode(QUERIES)
    pool = retriever.search(QUERIES, 20).ids
    corpus = retriever.corpus
    assert Rule("top").select(queries, corpus, 4, candidates=pool).indices.tolist() == pool[:, :4].tolist()
    for weight in (0.0, 0.5, 1.0):
        ours = Rule("mmr", weight).select(queries, corpus, 4, candidates=pool)
        np.testing.assert_array_equal(
            ours.indices, rk.mmr(queries, corpus, 4, candidates=pool, lambda_d=weight).indices
        )
    vrsd = Rule("vrsd").select(queries, corpus, 4, candidates=pool)
    np.testing.assert_array_equal(vrsd.indices, rk.vrsd(queries, corpus, 4, candidates=pool).indices)
    assert [rule.label for rule in (Rule("top"), Rule("mmr", 0.5), Rule("vrsd"))] == [
        "cosine top-k",
        "MMR λ=0.5",
        "VRSD",
    ]
    with pytest.raises(ValueError, match="select: method must be top, mmr or vrsd, got 'dpp'"):
        Rule("dpp").select(queries, corpus, 4)


def test_pyserinis_parameters():
    """By the formula of the class, of words that PyStemmer cuts."""
    with pytest.raises(ValueError, match="BM25: stemmer must be an algorithm of PyStemmer, got 'none'"):
        BM25Retriever(["a dog"], stemmer="none")
    stemmer, stop = Stemmer.Stemmer("porter"), {"in", "the", "and", "a", "is"}
    texts = ["running dogs run in rain", "the dog sleeps", "rains and winds, winds, winds", "a cat is sleeping"]
    queries = ["dogs running", "sleep wind", "zebra"]

    def words(text):
        return stemmer.stemWords([word for word in plain_words(text) if word not in stop])

    found = BM25Retriever.pyserini(texts).search(queries, 4)
    for q, query in enumerate(queries):
        scores = bm25(query, texts, 0.9, 0.4, words)
        order = [i for i in np.argsort(-scores, kind="stable") if scores[i] > 0]
        assert [i for i in found.ids[q] if i >= 0] == order
        np.testing.assert_allclose(found.scores[q, : len(order)], scores[order], rtol=1e-5)
