"""Which tokens are the prompt's and which the continuation's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")

import lm_models
import tokenizers
import transformers

from ragsys_kernels.icl import HuggingFaceModel, PairError
from ragsys_kernels.icl.tokenization import encode_pairs, tokens_and_ends, trims

TEXT = st.text("Q: WhatPris?A\nhec.", max_size=12)


class WithoutOffsets:
    """The same tokenizer as one written in Python is: without character positions."""

    is_fast = False

    def __init__(self, inner):
        self._inner = inner
        self.bos_token_id = inner.bos_token_id

    def __call__(self, *arguments, **options):
        return self._inner(*arguments, **options)


def one(prompt, continuation, tokenizer=None):
    return encode_pairs("score", tokenizer or lm_models.tokenizer(), [prompt], [continuation])[0]


def spelled(tokens, tokenizer=None):
    return [(tokenizer or lm_models.tokenizer()).decode([token]) for token in tokens]


@given(TEXT, TEXT)
def test_split_lies_where_the_continuation_begins(prompt, continuation):
    """The tokens are those of the whole text; the context ends in the prompt, and one token more would not."""
    tokenizer = lm_models.tokenizer()
    pair = one("x" + prompt, continuation)
    assert list(pair.context + pair.answer) in (tokenizer("x" + prompt + continuation)["input_ids"], [0, *pair.answer])
    context = "" if pair.context == (0,) else tokenizer.decode(pair.context)
    assert ("x" + prompt).startswith(context)
    if pair.answer:
        assert len(context) + len(tokenizer.decode(pair.answer[:1])) > len("x" + prompt)
    assert bool(pair.answer) == bool(continuation)


@given(TEXT, TEXT)
def test_split_without_offsets_scores_at_least_as_much(prompt, continuation):
    pair = one("x" + prompt, continuation, WithoutOffsets(lm_models.tokenizer()))
    exact = one("x" + prompt, continuation)
    if exact.context != (0,) and pair.context != (0,):
        assert pair.context + pair.answer == exact.context + exact.answer
    assert len(pair.answer) >= len(exact.answer)
    assert bool(pair.answer) == bool(continuation)


def test_space_at_the_end_of_the_prompt_joins_the_answer():
    for prompt, continuation in (("A: ", "Paris"), ("A:", " Paris")):
        pair = one(prompt, continuation)
        assert "".join(spelled(pair.answer)) == " Paris"
        assert "".join(spelled(pair.context)) == "A:"


def test_new_line_at_the_end_of_the_prompt_stays_there():
    """lm-eval would score it as part of the answer."""
    pair = one("A:\n", "Paris")
    assert "".join(spelled(pair.context)) == "A:\n"
    assert "".join(spelled(pair.answer)) == "Paris"


def explicit(merges):
    """BPE over single letters with the given merges, over any text: nothing is split beforehand."""
    letters = ["<s>", *"abcdx"]
    vocabulary = {token: i for i, token in enumerate([*letters, *("".join(merge) for merge in merges)])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


def test_merge_that_takes_the_whole_prompt():
    """ "ab" alone is two tokens, "abc" one: counting the prompt's own tokens would leave no answer at all."""
    tokenizer = explicit([("b", "c"), ("a", "bc")])
    assert len(tokenizer("ab")["input_ids"]) == 2
    pair = one("ab", "c", tokenizer)
    assert (spelled(pair.context, tokenizer), spelled(pair.answer, tokenizer)) == (["<s>"], ["abc"])


def test_merge_that_changes_earlier_tokens():
    """The prompt's token "ab" falls apart when "cd" follows: "a" still ends before the continuation."""
    tokenizer = explicit([("b", "c"), ("bc", "d"), ("a", "b")])
    assert spelled(tokenizer("xab")["input_ids"], tokenizer) == ["x", "ab"]
    pair = one("xab", "cd", tokenizer)
    assert (spelled(pair.context, tokenizer), spelled(pair.answer, tokenizer)) == (["x", "a"], ["bcd"])
    # Without positions only the common beginning is sure to be the prompt's.
    pair = one("xab", "cd", WithoutOffsets(tokenizer))
    assert (spelled(pair.context, tokenizer), spelled(pair.answer, tokenizer)) == (["x"], ["a", "bcd"])


def test_letter_of_several_tokens():
    pair = one("Q é", "🙂é")
    tokenizer = lm_models.tokenizer()
    assert tokenizer.decode(pair.context) == "Q é"
    assert tokenizer.decode(pair.answer) == "🙂é"
    assert len(pair.answer) > 2


def test_tokens_that_the_tokenizer_adds():
    """BOS before the text once, also if the prompt spells it; nothing after it."""
    tokenizer = lm_models.tokenizer(leading=True)
    assert tokenizer("A")["input_ids"][-1] == 1
    plain = one("A:", " Paris")
    for prompt in ("A:", "<s>A:"):
        pair = one(prompt, " Paris", tokenizer)
        assert (pair.context, pair.answer) == ((0, *plain.context), plain.answer)
    assert one("", "Paris", tokenizer).context == (0,)


def test_empty_prompt_becomes_bos_or_is_refused():
    pair = one("", "Paris")
    assert pair.context == (0,)
    assert "".join(spelled(pair.answer)) == "Paris"
    with pytest.raises(PairError, match=r"score: prompts must have a token before .* got '' before 'Paris' in pair 1"):
        encode_pairs("score", lm_models.tokenizer(bos=None), ["A:", ""], [" Paris", "Paris"])


def test_empty_continuation():
    for tokenizer in (lm_models.tokenizer(), WithoutOffsets(lm_models.tokenizer()), lm_models.tokenizer(bos=None)):
        assert one("A: ", "", tokenizer).answer == ()
        assert one("", "", tokenizer) == ((), ())
        assert encode_pairs("score", tokenizer, [], []) == []


CODE = "def f(x):\n    return x\n\ndef g(y):\n    if y:\n        return f(y)\n"


def of_code(processor):
    """Byte-level BPE that has learnt indentation: a new line and spaces are one token."""
    inner = lm_models.byte_level(CODE * 5, 320, ["<s>"])
    inner.add_tokens(["g(y)"])
    inner.post_processor = processor
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


TRIMMING = [
    tokenizers.processors.ByteLevel(trim_offsets=True),
    tokenizers.processors.RobertaProcessing(("<s>", 0), ("<s>", 0)),
    tokenizers.processors.Sequence([tokenizers.processors.ByteLevel(trim_offsets=True)]),
]


@pytest.mark.parametrize("processor", TRIMMING, ids=lambda one: type(one).__name__)
def test_no_character_is_lost_where_a_tokenizer_trims_positions(processor):
    whole = of_code(tokenizers.processors.ByteLevel(trim_offsets=False))
    tokenizer = of_code(processor)
    assert (trims(tokenizer), trims(whole), trims(lm_models.tokenizer(leading=True))) == (True, False, False)
    seen = set()
    for cut in range(1, len(CODE)):
        prompt, continuation = CODE[:cut], CODE[cut:]
        pair, expected = one(prompt, continuation, tokenizer), one(prompt, continuation, whole)
        assert pair.answer == expected.answer
        assert tokenizer.decode(pair.answer).endswith(continuation)
        seen.add(spelled(pair.answer[:1], tokenizer)[0])
    assert "\n   " in seen
    tokens, ends = tokens_and_ends(tokenizer, [CODE, ""])
    assert ends == [[len(tokenizer.decode(tokens[0][: i + 1])) for i in range(len(tokens[0]))], []]


def test_kept_scores_are_not_those_of_trimmed_positions(monkeypatch):
    model = HuggingFaceModel(lm_models.model(), of_code(TRIMMING[0]))
    before = model.fingerprint
    monkeypatch.setattr("ragsys_kernels.icl.huggingface.trims", lambda _: False)
    del model.fingerprint
    assert model.fingerprint != before
