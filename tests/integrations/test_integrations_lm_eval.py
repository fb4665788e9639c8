"""lm-evaluation-harness: the model ``ragsys-hf`` against ``hf`` on models with random weights."""

import lm_models
import pytest

pytest.importorskip("lm_eval.models.huggingface", reason="lm-evaluation-harness is not installed")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from ragsys_kernels.integrations.lm_eval import RagsysHF

PAIRS = [("Q: What is the capital of France? A:", f" {end}") for end in ("Paris", "the north", "The capital is Paris")]
PAIRS += [("", "Why do cats purr?"), ("Why do cats", " purr?"), ("They are content. " * 20, "Why")]
TEXTS = ["Why do cats purr? They are content. " * 20, "Q", "The capital is Paris, in the north."]


def instances(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=given, idx=i) for i, given in enumerate(arguments)]


def results(model):
    pairs = model.loglikelihood(instances("loglikelihood", PAIRS), disable_tqdm=True)
    texts = instances("loglikelihood_rolling", [(text,) for text in TEXTS])
    return pairs, model.loglikelihood_rolling(texts, disable_tqdm=True)


class Hook:
    """What the harness keeps."""

    def __init__(self):
        self.kept = []

    def add_partial(self, *what):
        self.kept.append(what)


def made(kind, which, batch_size=1, **options):
    parts = {"pretrained": lm_models.model(kind), "tokenizer": lm_models.tokenizer()}
    return which(**parts, device="cpu", batch_size=batch_size, max_length=40, **options)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2", "phi", "mamba"])
@pytest.mark.filterwarnings("ignore")
def test_log_likelihoods_are_those_of_hf(kind):
    pairs, texts = results(made(kind, HFLM, 4))
    found, rolling = results(made(kind, RagsysHF))
    assert [greedy for _, greedy in found] == [greedy for _, greedy in pairs]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in pairs], abs=1e-4)
    assert rolling == pytest.approx(texts, abs=1e-3, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_any_batch_size_has_the_same_bits():
    first = results(made("llama", RagsysHF, 1))
    assert all(results(made("llama", RagsysHF, size)) == first for size in (8, 64))


@pytest.mark.filterwarnings("ignore")
def test_results_reach_the_cache_of_the_harness():
    model = made("llama", RagsysHF)
    model.cache_hook = hook = Hook()
    pairs, texts = results(model)
    assert sorted(hook.kept) == sorted(
        [("loglikelihood", pair, value) for pair, value in zip(PAIRS, pairs, strict=True)]
        + [("loglikelihood_rolling", (text,), value) for text, value in zip(TEXTS, texts, strict=True)]
    )


@pytest.mark.filterwarnings("ignore")
def test_what_was_scored_before_a_kill_is_kept(monkeypatch):
    """The model stops before its last pass."""
    model = made("llama", RagsysHF, batch_tokens=1)
    model.cache_hook = hook = Hook()
    score, calls, most = model._scorer._score_rows, [], 1 << 30

    def stopping(*arguments):
        if len(calls) == most:
            raise KeyboardInterrupt
        calls.append(arguments)
        return score(*arguments)

    monkeypatch.setattr(model._scorer, "_score_rows", stopping)
    for kind, asked in (("loglikelihood", PAIRS), ("loglikelihood_rolling", [(text,) for text in TEXTS])):
        expected = dict(zip(asked, getattr(model, kind)(instances(kind, asked), disable_tqdm=True), strict=True))
        most = len(calls) - 1
        calls.clear()
        hook.kept.clear()
        with pytest.raises(KeyboardInterrupt):
            getattr(model, kind)(instances(kind, asked), disable_tqdm=True)
        assert 0 < len(hook.kept) < len(asked)
        assert all(what == kind and expected[name] == value for what, name, value in hook.kept)
        calls.clear()
        most = 1 << 30


@pytest.mark.filterwarnings("ignore")
def test_what_is_about_logits_is_refused():
    with pytest.raises(
        ValueError, match="ragsys-hf: softmax_dtype must be left out: no logits are made, got 'float32'"
    ):
        made("llama", RagsysHF, softmax_dtype="float32")


@pytest.mark.filterwarnings("ignore")
def test_the_model_is_registered_by_name():
    from lm_eval.api.registry import get_model

    assert get_model("ragsys-hf") is RagsysHF
