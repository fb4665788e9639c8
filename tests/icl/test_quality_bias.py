"""The cache of scores, and the quality bias: what it is, how it goes on after a stop, what it refuses."""

import copy
import sqlite3
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import lm_models  # noqa: E402

from ragsys_kernels.icl import CachedModel, HuggingFaceModel, PairError, quality_bias  # noqa: E402
from ragsys_kernels.icl.language_model import Part, Scores  # noqa: E402
from ragsys_kernels.icl.storage.database import Kept  # noqa: E402

PAIRS = [
    ("Q: a\nA:", " b"),
    ("Q: a\nA:", " bcd"),
    ("", "x"),
    ("Q: é", ""),
    ("Q: a\nA:", " b"),
    ("Q", "🙂"),
    ("Q: aa", " b"),
]


# --- The cache.


class Recorder:
    """A model that scores texts by their letters, and remembers what it was asked."""

    def __init__(self, fingerprint="one", fail_at=None):
        self.fingerprint, self.fail_at, self.asked = fingerprint, fail_at, []

    def score(self, prompts, continuations):
        if self.fail_at is not None and len(self.asked) >= self.fail_at:
            raise KeyboardInterrupt
        self.asked += list(zip(prompts, continuations, strict=True))
        parts = []
        for prompt, continuation in zip(prompts, continuations, strict=True):
            tokens = np.array([ord(letter) for letter in continuation], np.int64)
            logp = -(tokens % 7 + len(prompt) % 5 + 0.25).astype(np.float32)
            parts.append(Part(tokens, logp, len(continuation) % 2 == 0))
        return Scores.of(parts)


def same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


def test_cache_gives_back_the_same_scores(tmp_path):
    prompts, continuations = zip(*PAIRS, strict=True)
    expected = Recorder().score(prompts, continuations)
    inner = Recorder()
    with CachedModel(inner, tmp_path / "scores") as model:
        same(model.score(prompts[1:4], continuations[1:4]), Recorder().score(prompts[1:4], continuations[1:4]))
        same(model.score(prompts, continuations), expected)
        assert model.hits == len([pair for pair in PAIRS if pair in PAIRS[1:4]])
    assert len(inner.asked) == len(set(PAIRS))  # also of equal ones within one call
    again = Recorder(fail_at=0)
    with CachedModel(again, tmp_path / "scores") as model:
        same(model.score(prompts, continuations), expected)
        assert (model.hits, model.fingerprint) == (len(PAIRS), "one")


def test_cache_tells_pairs_and_models_apart(tmp_path):
    """Neither the border between prompt and continuation nor the model is lost in the key."""
    with CachedModel(Recorder(), tmp_path / "scores") as model:
        model.score(["ab"], ["cd"])
        for pair in (("abc", "d"), ("a", "bcd"), ("", "abcd")):
            model.score([pair[0]], [pair[1]])
        assert model.hits == 0
    other = Recorder("two")
    with CachedModel(other, tmp_path / "scores") as model:
        model.score(["ab"], ["cd"])
        assert (model.hits, other.asked) == (0, [("ab", "cd")])


def test_fingerprint_follows_weights_and_tokenizer(tmp_path):
    first = HuggingFaceModel(lm_models.model(), lm_models.tokenizer())
    saved = HuggingFaceModel.from_pretrained(lm_models.save(tmp_path / "elsewhere"))
    assert saved.fingerprint == first.fingerprint  # of the same model under a path
    changed = copy.deepcopy(lm_models.model())
    with torch.no_grad():
        changed.model.layers[1].mlp.up_proj.weight[3, 5] += 1e-3
    others = [
        HuggingFaceModel(changed, lm_models.tokenizer()),
        HuggingFaceModel(lm_models.model(), lm_models.tokenizer(leading=True)),
        HuggingFaceModel(lm_models.model("gpt2"), lm_models.tokenizer()),
        HuggingFaceModel(copy.deepcopy(lm_models.model()).bfloat16(), lm_models.tokenizer()),
    ]
    assert len({first.fingerprint, *(model.fingerprint for model in others)}) == 5
    made = []
    for value in (0.0, 1.0):  # as the corrections by which DeepSeek V3 chooses experts: no parameters, but saved
        network = copy.deepcopy(lm_models.model())
        network.model.register_buffer("correction", torch.full((2,), value))
        network.model.register_buffer("steps", torch.tensor(3))  # without a dimension
        network.model.register_buffer("scratch", torch.full((2,), value), persistent=False)
        made.append(HuggingFaceModel(network, lm_models.tokenizer()).fingerprint)
    assert len({first.fingerprint, *made}) == 3
    network.model.scratch += 1
    assert HuggingFaceModel(network, lm_models.tokenizer()).fingerprint == made[1]
    network.model.steps += 1
    assert HuggingFaceModel(network, lm_models.tokenizer()).fingerprint not in made


def test_fingerprint_does_not_follow_earlier_calls():
    """A tokenizer keeps how it padded and truncated last."""
    fresh = HuggingFaceModel(lm_models.model(), copy.deepcopy(lm_models.tokenizer()))
    expected = fresh.fingerprint
    used = copy.deepcopy(lm_models.tokenizer())
    used(["a b", "a"], truncation=True, max_length=8)
    assert HuggingFaceModel(lm_models.model(), used).fingerprint == expected


def test_cache_may_be_used_from_any_thread(tmp_path):
    """Threads that begin at once, with pairs of their own and some in common."""
    pairs = [[(f"Q {i % 20 if i % 3 else 20 * t + i}", " b" * (1 + i % 4)) for i in range(30)] for t in range(4)]
    begin, found = threading.Barrier(len(pairs)), {}
    with CachedModel(Recorder(), tmp_path / "scores") as model:

        def run(t):
            begin.wait()
            found[t] = [model.score(*([text] for text in pair)) for pair in pairs[t]]

        threads = [threading.Thread(target=run, args=(t,)) for t in range(len(pairs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for t, some in enumerate(pairs):
        for pair, scores in zip(some, found[t], strict=True):
            same(scores, Recorder().score(*([text] for text in pair)))
    silent = Recorder(fail_at=0)
    with CachedModel(silent, tmp_path / "scores") as model:  # all of it was kept
        model.score(*zip(*(pair for some in pairs for pair in some), strict=True))


def test_fingerprint_is_another_where_kept_scores_may_be_wrong(monkeypatch):
    """Of models whose places padding moves; others have the one that they had."""
    for kind, changes in (("llama", False), ("mamba", False), ("mpt", True), ("marian", True)):
        model = HuggingFaceModel(lm_models.model(kind), lm_models.tokenizer())
        now = model.fingerprint
        model.network.uneven, model.share_prompts = False, True
        del model.fingerprint
        assert (model.fingerprint != now) == changes
        assert HuggingFaceModel(lm_models.model(kind), lm_models.tokenizer(), share_prompts=False).fingerprint == now


def test_foreign_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(ValueError, match=r"cache must be a file of scores, got .*text"):
        CachedModel(Recorder(), tmp_path / "text")
    with sqlite3.connect(tmp_path / "other") as database:
        database.execute("CREATE TABLE mine (a)")
    database.close()
    with pytest.raises(ValueError, match=r"cache must be a new file or one made by this version, got .*other"):
        CachedModel(Recorder(), tmp_path / "other")
    with pytest.raises(OSError, match=r"cache must be a file that can be opened, got .*nowhere"):
        CachedModel(Recorder(), tmp_path / "nowhere" / "scores")
    with pytest.raises(OSError, match=r"cache must be a file that can be"):
        CachedModel(Recorder(), tmp_path)


@pytest.mark.parametrize("mark", [b"RSK7", b"RSK8"])
def test_another_process_may_make_the_file_meanwhile(tmp_path, mark):
    """As early as SQLite lets it, after this one has read that the file is new."""
    path, journal = tmp_path / "rows", tmp_path / "rows-journal"  # which there is once the other has the file's lock
    other = threading.Thread(target=lambda: Kept(None, path, "rows", mark, "v BLOB").close())

    class Late(Kept):
        def _tables(self):
            if not other.ident:
                other.start()
                while other.is_alive() and not journal.exists():
                    time.sleep(0.001)
            return super()._tables()

    if mark == b"RSK7":
        with Late(None, path, "rows", b"RSK7", "v BLOB") as made:
            made._add([(b"k", b"v")])
            assert made._find([b"k"]) == {b"k": (b"v",)}
    else:
        with pytest.raises(ValueError, match="cache must be a new file or one made by this version"):
            Late(None, path, "rows", b"RSK7", "v BLOB")
    other.join()


def test_a_file_that_is_removed_while_it_is_written_is_named(tmp_path):
    with CachedModel(Recorder(), tmp_path / "rows") as model:
        (tmp_path / "rows").unlink()
        with pytest.raises(OSError, match=r"cache must not be removed while it is written, got .*rows, which was"):
            model.score(["Q"], ["A"])


# --- The quality bias.


def test_quality_bias_is_the_mean_log_probability():
    questions = [f"What is the capital of {name}?" for name in ("France", "cats", "France")]
    answers = ["Paris", "The north.", "content"]
    model = HuggingFaceModel(lm_models.model(), lm_models.tokenizer())
    bias = quality_bias(model, questions, answers)
    assert (bias.dtype, bias.shape) == (np.float32, (3,))
    for i in range(3):
        # " Paris" follows "A:"; the space of the template is the token's.
        prompt = f"Q: {questions[i]}\nA:"
        context, text = (lm_models.tokenizer()(part)["input_ids"] for part in (prompt, " " + answers[i]))
        assert bias[i] == pytest.approx(lm_models.logprobs(context + text)[-len(text) :].mean(), abs=1e-4)
    other = quality_bias(model, questions, answers, template="{question} Why? {answer}")
    assert np.abs(other - bias).min() > 1e-3


def test_quality_bias_goes_on_where_it_was_stopped(tmp_path):
    questions = [f"{i % 61} why" for i in range(400)]
    answers = [f"because {i}" for i in range(400)]
    expected = quality_bias(Recorder(), questions, answers)
    stopped, seen = Recorder(fail_at=200), []
    with pytest.raises(KeyboardInterrupt):
        quality_bias(stopped, questions, answers, cache=tmp_path / "scores")
    rest = Recorder()
    bias = quality_bias(rest, questions, answers, cache=tmp_path / "scores", progress=lambda *a: seen.append(a))
    np.testing.assert_array_equal(bias, expected)
    assert sorted(stopped.asked + rest.asked) == sorted(
        (f"Q: {q}\nA: ", a) for q, a in zip(questions, answers, strict=True)
    )
    assert seen[0] == (0, 400)
    assert seen[-1] == (400, 400)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_pair_that_comes_again_has_one_score():
    """Whatever the batches: this model's score depends on what is scored beside a pair."""

    class Beside(Recorder):
        def score(self, prompts, answers):
            self.asked += answers
            logp = np.array([-1 - float(answers[0])], np.float32)
            return Scores.of([Part(np.array([1]), logp, True) for _ in answers])

    questions, answers = ["same length"] * 400, [f"{i % 150:03}" for i in range(400)]
    for _ in range(5):
        model = Beside()
        bias = quality_bias(model, questions, answers)
        np.testing.assert_array_equal(bias[:250], bias[150:])
        assert len(model.asked) == 150


def test_braces_in_texts_are_just_letters():
    inner = Recorder()
    quality_bias(inner, ["{answer} {question}"], ["{question}"], template="{question}|{question}: {answer}")
    assert inner.asked == [("{answer} {question}|{answer} {question}: ", "{question}")]


def test_quality_bias_refuses_bad_input():
    with pytest.raises(ValueError, match="quality_bias: answers must be as many as questions, 2, got 1"):
        quality_bias(Recorder(), ["a", "b"], ["c"])
    for template in ("Q: {question}", "{answer}", "{question} {answer} ", "{answer} {question}"):
        with pytest.raises(ValueError, match=r"quality_bias: template must have \{question\} and end with \{answer\}"):
            quality_bias(Recorder(), ["a"], ["b"], template=template)
    with pytest.raises(PairError, match="quality_bias: answers must have at least one token, got none in pair 1"):
        quality_bias(Recorder(), ["aa", "a", "aaa"], ["b", "", "c"])

    class Broken(Recorder):
        def score(self, prompts, continuations):
            good = super().score(prompts, continuations)
            return good._replace(mean=np.where(np.array(continuations) == "x", np.nan, good.mean))

    with pytest.raises(PairError, match="must give finite log-probabilities, got a mean of nan in pair 2"):
        quality_bias(Broken(), ["a", "b", "c"], ["y", "y", "x"])
    limited = HuggingFaceModel(lm_models.model("gpt2"), lm_models.tokenizer())
    with pytest.raises(PairError, match=r"quality_bias: prompts must leave room .* of 128 tokens, .* in pair 1"):
        quality_bias(limited, ["a", "Z" * 200, "b"], ["y", "y", "x"])
    assert quality_bias(Recorder(), [], []).shape == (0,)
