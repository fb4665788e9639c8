"""Greedy generation against a loop over full logits, one prompt and one token at a time."""

import copy
import functools

import pytest

pytest.importorskip("transformers")

import lm_models

from ragsys_kernels.icl import HuggingFaceModel
from ragsys_kernels.icl.generation import CachedGenerator, GreedyGenerator, Stop

PROMPTS = [
    "Q: Why do cats purr? A:",
    "Q: What is the capital of France? A: The capital",
    "Paris in the north, Q: What is the capital content? A:",
    "A:",
    "Q: Why do cats purr? A:",
]
LONG = Stop(12, ())


def generator(kind="llama", leading=False, **options):
    return GreedyGenerator(HuggingFaceModel(lm_models.model(kind), lm_models.tokenizer(leading=leading), **options))


@functools.cache
def loop(kind, prompt, tokens, leading=False):
    """Token ids of the greedy continuation, up to the model's end of text."""
    tokenizer = lm_models.tokenizer(leading=leading)
    ids = [0] * leading + tokenizer(prompt, add_special_tokens=False)["input_ids"]
    begin = len(ids)
    for _ in range(tokens):
        ids.append(int(lm_models.logits(ids, kind)[-1].argmax()))
        if ids[-1] == 1:
            break
    return tokenizer.decode(ids[begin:], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("kind", "batch_tokens"),
    [("llama", 1), ("llama", 512), ("gemma2", 4), ("gemma2", 512), ("mpt", 512), ("marian", 4), ("marian", 512)],
)
def test_tokens_are_those_of_the_loop(kind, batch_tokens):
    found = generator(kind, batch_tokens=batch_tokens).generate(PROMPTS, LONG)
    assert found == [loop(kind, prompt, 12).strip() for prompt in PROMPTS]
    assert len(set(found)) > 2


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mpt", "marian"])
def test_what_all_prompts_begin_with_is_read_once(kind, monkeypatch):
    """Gemma2's window is shorter than the prompts: padding after the beginning would take the place of tokens."""
    beginning = "Why do cats purr? " * 3
    prompts = [beginning + end for end in ("A:", "Paris is the capital", "Why? Why? Why?", "Q")]
    model = generator(kind)
    network, inner, fed, shapes = model.model.network, model.model.model.base_model, [], []
    read, forward = network.read, inner.forward
    monkeypatch.setattr(network, "read", lambda rows: fed.extend(map(tuple, rows)) or read(rows))

    def watched(input_ids, **options):
        shapes.append(tuple(input_ids.shape))
        return forward(input_ids, **options)

    monkeypatch.setattr(inner, "forward", watched)
    assert model.generate(prompts, LONG) == [loop(kind, prompt, 12).strip() for prompt in prompts]
    head = tuple(lm_models.tokenizer()(beginning.rstrip())["input_ids"])
    if kind != "llama":
        assert not fed
    else:
        assert fed == [head]
        longest = max(len(lm_models.tokenizer()(prompt)["input_ids"]) for prompt in prompts)
        assert shapes[:2] == [(1, len(head)), (4, longest - len(head))]
    # Too little in common, one that is the beginning of another, and one alone.
    fed.clear()
    for some in (PROMPTS, [beginning + "Why", beginning + "Why?"], prompts[:1]):
        assert model.generate(some, LONG) == [loop(kind, prompt, 12).strip() for prompt in some]
    assert len(fed) == (kind == "llama")


def test_bos_stands_before_the_prompt_and_nothing_after():
    found = generator(leading=True).generate(PROMPTS, LONG)
    assert found == [loop("llama", prompt, 12, leading=True).strip() for prompt in PROMPTS]


def test_chat_template():
    tokenizer = copy.copy(lm_models.tokenizer(leading=True))
    tokenizer.chat_template = (
        "<s>{{ messages[0].role }}: {{ messages[0].content }}{% if add_generation_prompt %} A:{% endif %}"
    )
    model = HuggingFaceModel(lm_models.model(), tokenizer)
    found = GreedyGenerator(model).generate(PROMPTS, LONG)
    assert found == [loop("llama", f"user: {prompt} A:", 12, leading=True).strip() for prompt in PROMPTS]
    plain = GreedyGenerator(model, chat=False)
    assert plain.generate(PROMPTS, LONG) == generator(leading=True).generate(PROMPTS, LONG)
    assert plain.fingerprint != GreedyGenerator(model).fingerprint
    with pytest.raises(ValueError, match="chat must be False for a tokenizer without a chat template"):
        GreedyGenerator(generator().model, chat=True)


def test_fingerprint_follows_what_ends_a_text():
    made = []
    for ends in (None, 3, [3, 5]):
        network = copy.deepcopy(lm_models.model())
        network.generation_config.eos_token_id = ends
        made.append(GreedyGenerator(HuggingFaceModel(network, lm_models.tokenizer())).fingerprint)
    assert len(set(made)) == 3


def test_settings_of_the_model_change_no_answer():
    network = copy.deepcopy(lm_models.model())
    settings = {
        "repetition_penalty": 5.0, "no_repeat_ngram_size": 1, "suppress_tokens": [*range(10, 300)], "num_beams": 3,
        "max_time": 0.0, "do_sample": True, "temperature": 5.0,
    }  # fmt: skip
    for name, value in settings.items():
        setattr(network.generation_config, name, value)
    kept = network.generation_config
    model = GreedyGenerator(HuggingFaceModel(network, lm_models.tokenizer()))
    assert model.fingerprint == generator().fingerprint
    assert model.generate(PROMPTS, LONG) == [loop("llama", prompt, 12).strip() for prompt in PROMPTS]
    assert network.generation_config is kept


def test_stop_texts():
    whole = [loop("llama", prompt, 12) for prompt in PROMPTS]
    letters = sorted({letter for text in whole for letter in text.strip() if letter.isprintable()})
    assert letters
    for stop in (letters[:1], letters[:3], [whole[1].strip()[2:5]]):
        found = generator().generate(PROMPTS, Stop(12, tuple(stop)))
        for text, answer in zip(whole, found, strict=True):
            begin = len(text) - len(text.lstrip())
            places = [text.find(end, begin) for end in stop if text.find(end, begin) >= 0]
            assert answer == text[: min(places, default=len(text))].strip()


def test_a_stopped_batch_ends_early(monkeypatch):
    model = generator()
    first = loop("llama", PROMPTS[0], 1).strip()
    calls = []
    forward = model.model.model.forward
    monkeypatch.setattr(model.model.model, "forward", lambda *a, **o: calls.append(1) or forward(*a, **o))
    assert model.generate(PROMPTS[:1], Stop(40, (first[:1],))) == [""]
    assert len(calls) == 1


def test_bad_input():
    for call, message in (
        (lambda: generator().generate("A:"), "prompts must be a sequence of str"),
        (
            lambda: generator("gpt2").generate(["A:"], Stop(127)),
            "prompts must leave room for 127 tokens in the model's context of 128",
        ),
        (lambda: generator().generate([""]), "prompts must have a token"),
        (lambda: Stop(0), "max_new_tokens must be at least 1, got 0"),
        (lambda: Stop(3, "\n"), "stop texts must be a sequence of str"),
        (lambda: Stop(3, ("",)), "stop texts must have a character"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"generate: {message}"):
            call()


class Counted:
    fingerprint = "counted"

    def __init__(self):
        self.asked = []

    def generate(self, prompts, stop):
        self.asked += prompts
        return [f"{prompt} {stop.max_new_tokens}" for prompt in prompts]


def test_cache_keeps_the_answers_of_each_limit(tmp_path):
    """A window at a time, as all that are kept: tests of the encoders' have the rest."""
    prompts, seen, inner, again = [f"prompt {i}" for i in range(40)] + ["prompt 3"], [], Counted(), Counted()
    with CachedGenerator(inner, tmp_path / "a" / "g.sqlite") as cache:
        assert cache.generate(prompts, progress=lambda *step: seen.append(step)) == [f"{p} 32" for p in prompts]
        assert cache.generate(prompts[:2], Stop(5)) == ["prompt 0 5", "prompt 1 5"]
    with CachedGenerator(again, tmp_path / "a" / "g.sqlite") as cache:
        assert cache.generate(prompts) == [f"{p} 32" for p in prompts]
    assert (len(inner.asked), again.asked, seen) == (42, [], [(0, 40), (32, 40), (40, 40)])
