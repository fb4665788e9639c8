"""Posteriors of labels after prompts: the same as from full logits of each prompt alone, however much is shared."""

import numpy as np
import pytest

pytest.importorskip("transformers")

import lm_models
import torch

from ragsys_kernels.icl import HuggingFaceModel
from ragsys_kernels.icl.posteriors import CachedLabels, LabelModel, Posteriors, Row

LABELS = (" Paris", " cats", " north")
PIECES = [
    "Q: Why do cats purr? A: Paris\n",
    "Q: the capital of France A: north\n",
    "Q: Paris A: cats\n",
    "Q: They A: Paris\n",
]
QUERIES = ["Q: is the capital content? A:", "Q: What A:", "Q: north in the north of the north? A:"]
SHARED = ["llama", "gpt2", "cohere", "granite", "phi", "opt", "bloom"]


def families(order=1):
    """Prompts of 0 to 4 demonstrations for each query."""
    found = []
    for i, query in enumerate(QUERIES):
        pieces = PIECES[i:] + PIECES[:i]
        found.append(["".join(pieces[:k][::order]) + query for k in range(5)])
    return found


def scorer(kind="llama", share=True, leading=False, **options):
    return LabelModel(
        HuggingFaceModel(lm_models.model(kind), lm_models.tokenizer(leading=leading), **options), LABELS, share=share
    )


def brute(kind, prompts, leading=False):
    """log softmax of the last row of the model's own logits, at the labels' first tokens."""
    tokenizer = lm_models.tokenizer(leading=leading)
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    ids = [encode(label)[0] for label in LABELS]
    rows = []
    for prompt in prompts:
        tokens = [0] * leading + encode(prompt)
        logits = lm_models.logits(tokens, kind)[-1]
        rows.append((torch.log_softmax(logits, 0)[ids].numpy(), len(tokens)))
    return rows


def same(rows, expected, atol=2e-4):
    assert len(rows) == len(expected)
    for row, (logp, tokens) in zip(rows, expected, strict=True):
        np.testing.assert_allclose(row.logp, logp, atol=atol)
        assert row.tokens == tokens


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [*SHARED, "gemma2", "mamba", "mpt", "marian", "lfm2"])
@pytest.mark.parametrize("order", [1, -1], ids=["nearest first", "nearest last"])
def test_shared_runs_are_those_of_each_prompt_alone(kind, order):
    prompts = families(order)
    model = scorer(kind)
    assert model.share == (kind in SHARED)
    flat = [prompt for family in prompts for prompt in family]
    expected = brute(kind, flat)
    same(model.score(prompts), expected)
    alone = sum(tokens for _, tokens in expected)
    if model.share and order == 1:
        # The demonstrations once, and each query five times, but for what it has in common with a demonstration.
        queries = [tokens for _, tokens in brute(kind, QUERIES)]
        bound = sum(expected[5 * i + 4][1] + 4 * queries[i] for i in range(3))
        assert bound - 12 * 4 <= model.tokens_run <= bound
    else:
        assert (model.tokens_run < alone) == model.share


@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
@pytest.mark.parametrize("share", [True, False])
def test_batches(batch_tokens, share):
    prompts = families()
    model = scorer(batch_tokens=batch_tokens, share=share, leading=True)
    flat = [prompt for family in prompts for prompt in family]
    same(model.score(prompts), brute("llama", flat, leading=True))
    if not share:
        assert model.tokens_run == sum(tokens for _, tokens in brute("llama", flat, leading=True))


def test_keys_and_values_held_are_bounded(monkeypatch):
    """Short rests after a long prompt: each row repeats its keys, so that few tokens can hold many keys."""
    inner = HuggingFaceModel(lm_models.model(), lm_models.tokenizer(), batch_tokens=40)
    model, held = LabelModel(inner, LABELS), []
    forward = inner.network.forward

    def watched(ids, mask, *rest, **options):
        if options.get("past_key_values") is not None:
            held.append(len(mask) * (mask.shape[1] - ids.shape[1]))
        return forward(ids, mask, *rest, **options)

    monkeypatch.setattr(inner.network, "forward", watched)
    beginning = "".join(PIECES) * 2
    model.score([[beginning + piece + "A:" for piece in (*PIECES, *QUERIES)] + [beginning + "Q: A:"] * 2])
    assert len(held) > 1
    assert max(held) <= 8 * inner.batch_tokens


def test_verbaliser_sets_sum_the_probabilities_of_their_words(tmp_path):
    words, sets = (" Paris", " France", " cats", " north"), ((" Paris", " France"), " cats", [" north"])
    inner = HuggingFaceModel(lm_models.model(), lm_models.tokenizer())
    single, grouped = LabelModel(inner, words), LabelModel(inner, sets)
    assert grouped.labels == ((" Paris", " France"), " cats", " north")
    prompts = families()
    for one, row in zip(single.score(prompts), grouped.score(prompts), strict=True):
        p = np.exp(one.logp)
        np.testing.assert_allclose(np.exp(row.logp), [p[0] + p[1], p[2], p[3]], rtol=1e-5)
    # One cache keeps them apart, also from sets of the same words in the same order.
    other = LabelModel(inner, (" Paris", (" France", " cats"), " north"))
    assert len({single.fingerprint, grouped.fingerprint, other.fingerprint}) == 3
    for labeler in (grouped, other):
        with CachedLabels(labeler, tmp_path / "p.sqlite") as cache:
            for row, expected in zip(cache.score(prompts), labeler.score(prompts), strict=True):
                np.testing.assert_allclose(row.logp, expected.logp, atol=2e-5)
    for labels, error, message in (
        ([(" Paris", " cats")], ValueError, "labels must be at least two words"),
        ([(" Paris",), ()], ValueError, "labels must be at least two words"),
        ([(" Paris", ""), " cats"], ValueError, "labels must be at least two words"),
        (" Paris", TypeError, "labels must be a sequence of str"),
        ([" Paris", 3], TypeError, "labels must be str, got int"),
    ):
        with pytest.raises(error, match=message):
            LabelModel(inner, labels)
    with pytest.raises(ValueError, match="labels must begin with different tokens"):
        LabelModel(inner, ((" Paris", " Paris"), " cats")).score([["Q: A:"]])


def test_families_of_any_form():
    model = scorer()
    longest = families()[0][4]
    odd = [
        [],
        [longest, longest, longest[: len(longest) // 2] + " A:"],
        [QUERIES[0]],
        [longest + "\nQ: A:", QUERIES[1], longest],
    ]
    same(model.score(odd), brute("llama", [prompt for family in odd for prompt in family]))
    assert model.score([]) == model.score([[]]) == []


def test_posterior_and_entropy():
    rows = [
        Row(np.log([0.2, 0.1, 0.1]), 3),
        Row(np.log([0.1, 0.1, 1e-300]), 4),
        Row(np.array([-np.inf, -1, -np.inf]), 5),
    ]
    found = Posteriors.of(rows, 3)
    np.testing.assert_allclose(np.exp(found.log_posterior), [[0.5, 0.25, 0.25], [0.5, 0.5, 0], [0, 1, 0]], atol=1e-12)
    np.testing.assert_allclose(found.entropy, [1.5 * np.log(2), np.log(2), 0], atol=1e-9)
    assert found.label.tolist() == [0, 0, 1]
    assert found.tokens.tolist() == [3, 4, 5]
    assert Posteriors.of([], 3).logp.shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scorer().score(["Q: A:"]) and None, "prompts must be a sequence of str"),
        (lambda: scorer("gpt2").score([["cats " * 200]]), "fit the model's context of 128 tokens, got one of"),
        (lambda: LabelModel(scorer().model, [" a"]), "labels must be at least two words"),
        (lambda: LabelModel(scorer().model, [" Paris", " Paris in"]).score([["A:"]]), "begin with different tokens"),
        (
            lambda: LabelModel(scorer().model, ["Paris", "cats"]).score([["A:", "A: "]]),
            "prompts must end where a token of the labels begins",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


class Counted:
    """Knows a row for each prompt, counts those it is asked for, and stops after so many calls."""

    def __init__(self, stop_after=None, fingerprint="counted"):
        self.asked, self.calls, self.stop_after = [], 0, stop_after
        self.labels, self.fingerprint = LABELS, fingerprint

    def score(self, families):
        if self.calls == self.stop_after:
            raise KeyboardInterrupt
        self.calls += 1
        prompts = [prompt for family in families for prompt in family]
        self.asked += prompts
        return known(prompts)


def known(prompts):
    return [Row(np.log(np.array([1, 2, len(prompt)]) + sum(map(ord, prompt)) % 97), len(prompt)) for prompt in prompts]


def test_cache_keeps_every_window(tmp_path):
    prompts = [[f"{query} {i} A:" for query in QUERIES] for i in range(48)]
    flat = [prompt for family in prompts for prompt in family]
    with CachedLabels(Counted(stop_after=2), tmp_path / "new" / "p.sqlite") as cache, pytest.raises(KeyboardInterrupt):
        cache.score(prompts)
    model, seen = Counted(), []
    with CachedLabels(model, tmp_path / "new" / "p.sqlite") as cache:
        same(cache.score(prompts, lambda *step: seen.append(step)), known(flat))
        assert (cache.hits, cache.misses) == (96, 48)
        assert sorted(model.asked) == sorted(set(model.asked))
        assert seen == [(0, 16), (16, 16)]
        # Families overlap what is there, and repeat themselves.
        again = [[*prompts[3][:2], QUERIES[0], *prompts[3][:1]], [QUERIES[0]]]
        same(cache.score(again), known([prompt for family in again for prompt in family]))
        assert model.asked[48:] == [QUERIES[0]]
    with CachedLabels(Counted(fingerprint="other"), tmp_path / "new" / "p.sqlite") as cache:
        cache.score([prompts[0]])
        assert cache.hits == 0


@pytest.mark.parametrize("theirs", [2, 3])
def test_what_another_process_scores_meanwhile_is_not_scored_again(tmp_path, theirs):
    prompts = [[f"{query} {i:02} A:" for query in QUERIES] for i in range(40)]

    class Slow(Counted):
        def score(self, families):
            if not self.calls:
                with CachedLabels(Counted(), tmp_path / "p.sqlite") as other:
                    other.score([family[:theirs] for family in prompts])
            return super().score(families)

    model, seen = Slow(), []
    with CachedLabels(model, tmp_path / "p.sqlite") as cache:
        rows = cache.score(prompts, lambda *step: seen.append(step))
        same(rows, known([prompt for family in prompts for prompt in family]))
        assert sorted(model.asked) == sorted(
            [p for family in prompts[:16] for p in family] + [p for family in prompts[16:] for p in family[theirs:]]
        )
        assert model.calls == (3 if theirs == 2 else 1)  # a model is asked for something or not at all
        assert (cache.hits, cache.misses) == (24 * theirs, 120 - 24 * theirs)
        assert seen[-1] == (40, 40)


def test_a_nan_is_not_kept(tmp_path):
    class Broken:
        labels, fingerprint = LABELS, "broken"

        def score(self, prompts):
            return [Row(np.full(3, np.nan), 1) for family in prompts for _ in family]

    with CachedLabels(Broken(), tmp_path / "p.sqlite") as cache, pytest.raises(ValueError, match="got NaN after 'Q'"):
        cache.score([["Q"]])
