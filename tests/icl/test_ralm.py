"""In-Context RALM against a plain loop over full logits, and scores of tokens against those of texts."""

import copy

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("bm25s")

import lm_models
from ralm_data import WORDS

from ragsys_kernels.icl import CachedModel, HuggingFaceModel, PairError, Ralm, sliding_windows
from ragsys_kernels.icl.ralm import Window

RNG = np.random.default_rng(5)
DOCUMENTS = [f"Title {i}\n" + " ".join(RNG.choice(WORDS, RNG.integers(3, 25))) for i in range(12)]
TEXT = " ".join(RNG.choice(WORDS, 40)) + " . é \n" + " ".join(RNG.choice(WORDS, 12))
SIZES = {"query_tokens": 12, "document_tokens": 14, "past_tokens": 5}


@pytest.fixture(scope="module")
def model():
    return HuggingFaceModel(lm_models.model(), lm_models.tokenizer(), batch_tokens=200)


@pytest.fixture(scope="module")
def system(model):
    return Ralm(model, DOCUMENTS, **SIZES)


def test_what_the_tokenizer_puts_before_a_text_stands_before_the_document():
    """BOS is outside of the window: it takes the place of no token, and what comes after a text is left out."""
    tokenizer = lm_models.tokenizer(leading=True)
    system = Ralm(HuggingFaceModel(lm_models.model(), tokenizer), DOCUMENTS, **SIZES)
    text = system.encode(TEXT)
    window = Window(10, 40, 44)
    document = lm_models.tokenizer()(DOCUMENTS[3])["input_ids"][:14]
    (found,) = system.logprobs(text, [window], [[3]], past=2)
    ids = text.tokens.tolist()
    np.testing.assert_allclose(found, lm_models.logprobs([0, *document, *ids[10 + len(document) : 44]])[-6:], atol=1e-4)
    (bare,) = system.logprobs(text, [window], [[]])
    np.testing.assert_allclose(bare, lm_models.logprobs([0, *ids[10:44]])[-4:], atol=1e-4)


# --- Windows.


@pytest.mark.parametrize(
    ("size", "length", "stride"), [(2, 2, 1), (3, 2, 1), (9, 4, 2), (10, 4, 3), (4, 4, 1), (3, 8, 7), (64, 16, 5)]
)
def test_windows_predict_every_token_once(size, length, stride):
    windows = sliding_windows(size, length, stride)
    assert [token for window in windows for token in range(window.begin, window.end)] == list(range(1, size))
    # By the loop of the paper's code: windows begin at multiples of the stride.
    expected, reached = [], 0
    for begin in range(0, size, stride):
        end = min(begin + length, size)
        expected.append((begin, reached or 1, end))
        reached = end
        if end == size:
            break
    assert windows == expected


def test_windows_refuse():
    with pytest.raises(ValueError, match="sliding_windows: size must be at least 2, got 1"):
        sliding_windows(1, 4, 2)
    for stride in (0, 4):
        with pytest.raises(ValueError, match=f"stride must be from 1 to length - 1 = 3, got {stride}"):
            sliding_windows(9, 4, stride)
    with pytest.raises(TypeError, match="sliding_windows: length must be an integer, got float"):
        sliding_windows(9, 4.0, 2)


# --- The system.


def test_words_are_the_spaces_of_the_targets(system):
    text = system.encode(TEXT)
    ids = lm_models.tokenizer()(TEXT)["input_ids"]
    assert text.tokens.tolist() == ids
    windows = sliding_windows(len(ids), 30, 7)
    counts = text.words(windows)
    assert counts.tolist() == [lm_models.tokenizer().decode(ids[b:e]).count(" ") for _, b, e in windows]
    assert counts.sum() == TEXT.count(" ")


def test_ralm_refuses(model, system):
    for name in SIZES:
        with pytest.raises(ValueError, match=f"Ralm: {name} must be at least 1, got 0"):
            Ralm(model, DOCUMENTS, **{**SIZES, name: 0})

    class NoTokens:
        fingerprint = ""

    with pytest.raises(TypeError, match=r"Ralm: model must have a tokenizer .*, got NoneType of NoTokens"):
        Ralm(NoTokens(), DOCUMENTS)
    text = system.encode(TEXT)
    with pytest.raises(ValueError, match="choose must be one of none, first, random, rerank, oracle, got 'best'"):
        system.score(text, [], choose="best")
    with pytest.raises(ValueError, match="score: candidates must be at least 1, got 0"):
        system.score(text, [], candidates=0)
    with pytest.raises(
        ValueError, match=r"room before the target for 14 tokens of documents, 5 .*, got 19 in window 0"
    ):
        system.score(text, [Window(0, 19, 22)], choose="rerank")
    assert system.score(text, [], choose="rerank").logp == []


def test_errors_know_the_window_among_all():
    """Windows go to the model 16 at a time, and those without a document apart."""
    model = HuggingFaceModel(lm_models.model("gpt2"), lm_models.tokenizer())
    system = Ralm(model, DOCUMENTS, **SIZES)
    text = system.encode(TEXT * 3)
    windows = [Window(5, 30, 33)] * 20 + [Window(0, 140, 143), Window(5, 30, 33)]
    with pytest.raises(PairError, match=r"contexts must leave room for the answer .* in pair 20") as caught:
        system.logprobs(text, windows, [()] * len(windows))
    assert caught.value.pair == 20
    for rule in ("none", "first", "rerank"):
        with pytest.raises(PairError, match="in pair 20"):
            system.score(text, [Window(0, 1, 4), *windows[1:]], choose=rule)
    with pytest.raises(ValueError, match=r"got 19 in window 2"):
        system.score(text, [*windows[:2], Window(0, 19, 22)], choose="rerank")


# --- Scores of tokens.


def test_tokens_score_as_their_texts(model):
    prompts, continuations = ["Why do cats", "Why do cats", "The capital"], [" purr?", " in", " is Paris"]
    expected = model.score(prompts, continuations)
    ids = [lm_models.tokenizer()(text)["input_ids"] for text in prompts]
    answers = [expected.tokens[a:b] for a, b in zip(expected.cu_answers, expected.cu_answers[1:], strict=False)]
    found = model.score_tokens(ids, answers)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    none = model.score_tokens([[], [1]], [[], []])
    assert none.count.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("contexts", "answers", "kind", "match"),
    [
        ([[1]], [], ValueError, "score_tokens: answers must be as many as contexts, 1, got 0"),
        ([[1], []], [[2], [3]], PairError, "contexts must have a token before the answer, got none in pair 1"),
        ([[1]], [[320]], PairError, "answers must be tokens from 0 to 319, got 320 in pair 0"),
        ([[1], [-1]], [[2], [3]], PairError, "contexts must be tokens from 0 to 319, got -1 in pair 1"),
        ([[1.5]], [[2]], TypeError, "contexts must be sequences of token ids, got shape \\(1,\\) of float64 in pair 0"),
        ([[1]], [3], TypeError, "answers must be sequences of token ids, got shape \\(\\) of int64 in pair 0"),
    ],
)
def test_what_is_no_token_is_refused(model, contexts, answers, kind, match):
    with pytest.raises(kind, match=match):
        model.score_tokens(contexts, answers)


def test_cache_of_tokens(tmp_path, model):
    inner = copy.copy(model)
    asked = []
    inner.score_tokens = lambda contexts, answers: asked.extend(contexts) or model.score_tokens(contexts, answers)
    contexts, answers = [[1, 2], [12], [1, 2], [1]], [[3], [3], [3], [2, 3]]
    expected = model.score_tokens(contexts, answers)
    with CachedModel(inner, tmp_path / "scores") as cached:
        cached.score_tokens(contexts[:1], answers[:1])
        found = cached.score_tokens(contexts, answers)
        assert cached.hits == 2
        assert asked == [[1, 2], [12], [1]]  # neither 1, 2 and 12 nor the border are mistaken
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert cached.tokenizer is model.tokenizer
        with pytest.raises(PairError, match="answers must be tokens from 0 to 319, got 999 in pair 1"):
            cached.score_tokens([[1, 2], [4]], [[3], [999]])

    class Texts:
        fingerprint = "one"

    with CachedModel(Texts(), tmp_path / "scores") as cached:
        with pytest.raises(TypeError, match="score_tokens: model must be one that scores tokens, got Texts"):
            cached.score_tokens([[1]], [[2]])
        assert cached.tokenizer is None
