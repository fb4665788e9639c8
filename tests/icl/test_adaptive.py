"""Adaptive in-context learning against its definitions: steps of NQC, SAICL's labels, per-query k in the kernels."""

import sys

import numpy as np
import pytest
from backends import needs
from tiny_encoder import WORDS, TinyEncoder

pytest.importorskip("transformers")

import lm_models

from ragsys_kernels.icl import HuggingFaceModel, PromptTemplate, Rule
from ragsys_kernels.icl.adaptive import (
    Demonstrations,
    InContextClassifier,
    LabelPrompt,
    learn_k,
)
from ragsys_kernels.icl.adaptive_k import KPredictor, optimal_k, qpp_k
from ragsys_kernels.icl.posteriors import LabelModel, Row

pytestmark = needs("sklearn")

PROMPT = LabelPrompt(PromptTemplate("{text} A:{label}", "{text} A:", "{label}", "Q:"), (" Paris", " cats", " north"))
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, 5)) for _ in range(40)]
LABELS = RNG.integers(0, 3, 40)
QUERIES = [" ".join(RNG.choice(WORDS, 4)) for _ in range(9)]


def demonstrations(**options):
    return Demonstrations(TinyEncoder(), TEXTS, LABELS, **{"pool": 12, **options})


def classifier(labeler=None, order="nearest-first", **options):
    labeler = labeler or LabelModel(HuggingFaceModel(lm_models.model(), lm_models.tokenizer()), PROMPT.labels)
    return InContextClassifier(labeler, demonstrations(**options), PROMPT, order=order)


def test_qpp_steps_are_equal_and_inverse():
    values = np.arange(0, 101) / 100
    found = qpp_k(values, 5)
    for value, k in zip(values, found, strict=True):
        # By counting the upper ends of the steps that the value has reached.
        assert k == 5 - sum(value >= step / 5 - 1e-15 for step in range(1, 6))
    assert found[[0, 19, 20, 99, 100]].tolist() == [5, 5, 4, 1, 0]
    np.testing.assert_array_equal(qpp_k(values * 7, 5), found)  # max-normalised
    assert qpp_k([0.1, 0.3, np.nan], 4, largest=0.2).tolist() == [2, 0, 4]
    assert qpp_k([0.0, 0.0], 3).tolist() == [3, 3]
    assert qpp_k([0.5, 1.0], 0).tolist() == [0, 0]
    for call, message in (
        (lambda: qpp_k([-1.0], 3), "predictions must be finite"),
        (lambda: qpp_k([np.inf], 3), "predictions must be finite"),
        (lambda: qpp_k([1.0], -1), "max_k must be at least 0"),
        (lambda: qpp_k([1.0], 3, largest=np.nan), "largest must be a finite"),
    ):
        with pytest.raises(ValueError, match=f"qpp_k: {message}"):
            call()
    with pytest.raises(TypeError, match="qpp_k: max_k must be an integer, got float"):
        qpp_k([1.0], 2.5)


def best_by_loop(posteriors, label):
    """The paper's Algorithm 2, item by item."""
    most, best = 0.0, 1
    for k, row in enumerate(posteriors):
        predicted = max(range(len(row)), key=lambda i: row[i])
        confidence = row[predicted] * (predicted == label)
        if confidence > most:
            most, best = confidence, k
    return best


def best_by_entropy(posteriors, label):
    """The least uncertain right prediction; where none is right, the least uncertain of all."""
    doubts = [-sum(p * np.log(p) for p in row if p) for row in posteriors]
    right = [k for k, row in enumerate(posteriors) if max(range(len(row)), key=lambda i: row[i]) == label]
    return min(right or range(len(posteriors)), key=lambda k: (round(doubts[k], 12), k))


def test_optimal_k_is_algorithm_2():
    rng = np.random.default_rng(1)
    posteriors = rng.integers(1, 5, (400, 6, 4)).astype(float)  # with ties
    posteriors /= posteriors.sum(axis=2, keepdims=True)
    labels = rng.integers(0, 4, 400)
    # Of numbers that are equal but for rounding, the logarithm is: what is compared is the logarithm of both.
    logp = np.log(posteriors)
    expected = [best_by_loop(np.exp(rows), label) for rows, label in zip(logp, labels, strict=True)]
    assert optimal_k(logp, labels).tolist() == expected
    none = ~(posteriors.argmax(axis=2) == labels[:, None]).any(axis=1)
    assert none.any()
    assert set(optimal_k(logp, labels)[none]) == {1}


def test_optimal_k_by_entropy():
    rng = np.random.default_rng(2)
    posteriors = rng.dirichlet(np.ones(4), (400, 6))
    posteriors[:40, :, 0], posteriors[:40, :, 1:] = 1, 0  # -inf as a logarithm, and all k equal
    labels = rng.integers(0, 4, 400)
    with np.errstate(divide="ignore"):
        logp = np.log(posteriors)
    expected = [best_by_entropy(rows, label) for rows, label in zip(posteriors, labels, strict=True)]
    assert optimal_k(logp, labels, best_k="entropy").tolist() == expected
    assert (optimal_k(logp, labels) != expected).any()
    two = rng.dirichlet(np.ones(2), (400, 6))
    truth = rng.integers(0, 2, 400)
    some = (two.argmax(axis=2) == truth[:, None]).any(axis=1)
    by = [optimal_k(np.log(two), truth, best_k=form) for form in ("posterior", "entropy")]
    np.testing.assert_array_equal(by[0][some], by[1][some])  # of two labels the least entropy is the surest
    assert (by[0][~some] == 1).all()


def test_optimal_k_of_odd_input():
    logp, labels = np.log(np.full((3, 2, 2), 0.5)), np.array([0, 1, 0])
    assert optimal_k(logp, labels).tolist() == [0, 1, 0]
    assert optimal_k(logp[:, :1], labels).tolist() == [0, 0, 0]  # M = 0: there is no k = 1
    assert optimal_k(logp[:0], labels[:0]).tolist() == []
    for some, truth, form, message in (
        (logp, labels[1:], "posterior", "log_posterior and labels must be"),
        (logp[0], labels, "posterior", "log_posterior and labels must be"),
        (logp, labels + 0.5, "posterior", "log_posterior and labels must be"),
        (logp, labels + 1, "posterior", "labels must be from 0 to 1"),
        (logp * np.nan, labels, "posterior", "got NaN"),
        (logp, labels, "best", "best_k must be one of posterior, entropy, got 'best'"),
    ):
        with pytest.raises(ValueError, match=f"optimal_k: .*{message}"):
            optimal_k(some, truth, best_k=form)


@pytest.mark.parametrize("rule", [Rule("top"), Rule("mmr", 0.3), Rule("vrsd")], ids=lambda rule: rule.label)
@pytest.mark.parametrize("similarity", ["dense", "bm25"])
def test_per_query_k_gives_the_first_of_the_longest_selection(rule, similarity):
    pytest.importorskip("bm25s")
    shown = demonstrations(rule=rule, similarity=similarity)
    near = shown.near(QUERIES)
    whole = shown.pick(near, 5)
    k = np.array([0, 1, 2, 3, 4, 5, 0, 2, 1])
    some = shown.pick(near, k)
    assert some.shape == (9, 5)
    for row, longest, number in zip(some, whole, k, strict=True):
        assert row.tolist() == longest[:number].tolist() + [-1] * (5 - number)
    assert shown.pick(near, 0).shape == (9, 0)
    if rule.method == "top":
        np.testing.assert_array_equal(whole, near.found.ids[:, :5])


def test_neighbours_are_the_nearest_without_the_text_itself():
    vectors = TinyEncoder().encode(TEXTS).astype(np.float64)
    items = np.array([3, 0, 39])
    near = demonstrations().near([TEXTS[i] for i in items], own=items)
    for row, scores, item in zip(*near.found, items, strict=True):
        cosines = vectors @ vectors[item]
        cosines[item] = -np.inf
        expected = np.argsort(-cosines, kind="stable")[:12]
        assert row.tolist() == expected.tolist()
        np.testing.assert_allclose(scores, cosines[expected], atol=1e-6)
    words = demonstrations(similarity="bm25").near([TEXTS[i] for i in items], own=items)
    assert all(item not in row for row, item in zip(words.found.ids, items, strict=True))
    assert words.found.ids.shape == (3, 12)


@pytest.mark.parametrize("order", ["nearest-first", "nearest-last"])
def test_prompts_have_k_demonstrations_in_the_order(order):
    whole = classifier(order=order)
    near = whole.demonstrations.near(QUERIES[:2])
    prompts = whole.prompts(QUERIES[:2], near, np.array([[0, 2], [3, 1]]))
    step = 1 if order == "nearest-first" else -1
    for q, ks in enumerate([[0, 2], [3, 1]]):
        for prompt, k in zip(prompts[q], ks, strict=True):
            shown = [f"{TEXTS[i]} A:{PROMPT.words[LABELS[i]]}" for i in near.found.ids[q, :k]][::step]
            assert prompt == "\n\n".join(["Q:", *shown, f"{QUERIES[q]} A:"])
    cut = LabelPrompt(PROMPT.template, PROMPT.words, 2)
    assert cut.render([("a b  c", 0)], "d\ne f") == "Q:\n\na b A: Paris\n\nd e A:"


def test_demonstrations_show_the_first_word_of_a_verbaliser_set():
    sets = PROMPT._replace(words=((" Paris", " capital"), " cats", (" north", " France")))
    assert sets.labels == ((" Paris", " capital"), " cats", (" north", " France"))
    assert sets.render([("a", 0), ("b", 2)], "c") == "Q:\n\na A: Paris\n\nb A: north\n\nc A:"
    inner = HuggingFaceModel(lm_models.model(), lm_models.tokenizer())
    whole = InContextClassifier(LabelModel(inner, sets.labels), demonstrations(), sets)
    near = whole.demonstrations.near(QUERIES)
    assert whole.classify(QUERIES, near, [0, 2]).logp.shape == (18, 3)


class Scripted:
    """Says the query's label surely with `good` demonstrations, and another one otherwise."""

    labels, fingerprint = PROMPT.labels, "scripted"

    def __init__(self, good, label_of):
        self.good, self.label_of = good, label_of

    def score(self, families):
        rows = []
        for prompt in (prompt for family in families for prompt in family):
            _, *shown, query = prompt.split("\n\n")
            text = query.removesuffix(" A:")
            logp = np.full(3, np.log(0.2))
            right = len(shown) == self.good[text]
            logp[self.label_of[text] if right else (self.label_of[text] + 1) % 3] = np.log(0.6)
            rows.append(Row(logp, 1))
        return rows


def test_saicl_learns_the_best_k_from_embeddings():
    label_of = dict(zip(TEXTS, LABELS.tolist(), strict=True))
    vectors = TinyEncoder().encode(TEXTS)
    good = {text: 3 if vector[0] > 0 else 1 for text, vector in zip(TEXTS, vectors, strict=True)}
    whole = classifier(Scripted(good, label_of))
    learnt = learn_k(whole, np.arange(40), 4)
    assert learnt.ks.tolist() == [good[text] for text in TEXTS]
    assert (learnt.predict(vectors) == learnt.ks).mean() > 0.9
    assert set(learnt.predict(TinyEncoder().encode(QUERIES))) <= {1, 3}


def test_a_classifier_of_ones_own_and_nothing_to_learn(monkeypatch):
    from sklearn.neighbors import KNeighborsClassifier

    vectors = np.eye(4)
    assert KPredictor(vectors, [0, 2, 2, 1], KNeighborsClassifier(1)).predict(vectors).tolist() == [0, 2, 2, 1]
    assert KPredictor(vectors, [3] * 4).predict(vectors[:2]).tolist() == [3, 3]
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ModuleNotFoundError, match=r"scikit-learn: pip install '.+\[evaluate\]'"):
        KPredictor(vectors, [0, 1, 1, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: demonstrations(similarity="tf"), "similarity must be dense or bm25, got 'tf'"),
        (lambda: demonstrations(pool=0), "pool must be at least 1"),
        (lambda: Demonstrations(TinyEncoder(), TEXTS, LABELS[1:]), "labels must be as many as texts, 40"),
        (lambda: demonstrations().pick(demonstrations().near(QUERIES), -1), "k must be integers from 0, got -1"),
        (lambda: classifier(order="nearest"), "order must be nearest-first or nearest-last"),
        (
            lambda: InContextClassifier(Scripted({}, {}), demonstrations(), PROMPT._replace(words=("a", "b"))),
            "labeler must have the prompt's labels",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
