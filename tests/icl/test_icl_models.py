"""Scores against plain full logits and log_softmax, for small random models of several kinds."""

import copy
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import lm_models  # noqa: E402

from ragsys_kernels.icl import HuggingFaceModel, PairError  # noqa: E402
from ragsys_kernels.icl.forward.network import Network  # noqa: E402
from ragsys_kernels.icl.forward.sharing import Group, batches, clustered  # noqa: E402
from ragsys_kernels.icl.forward.widened import widened  # noqa: E402
from ragsys_kernels.icl.generation import GreedyGenerator, Stop  # noqa: E402
from ragsys_kernels.icl.posteriors import LabelModel  # noqa: E402

PROMPTS = ["Q: What is the capital of France?\nA:", "A: ", "Why do cats purr? Why do they? Why, why, why?\nA:", "Cats"]
NEAR = "Q: What is the capital of the north?\nA:"  # of nearly the length of the first: they run together, padded
ANSWERS = [" Paris", " The capital is Paris, in the north.", "!", " They are content.", "?? zzz \n é"]
# Prompts of several lengths with one to five answers each, a repeated pair, an empty answer, an empty prompt.
PAIRS = [(PROMPTS[p], ANSWERS[a]) for p in range(3) for a in range(5 - 2 * p)]
PAIRS += [(NEAR, ANSWERS[0]), (NEAR, ANSWERS[3])]
PAIRS += [(PROMPTS[3], ANSWERS[1]), PAIRS[1], (PROMPTS[0], ""), ("", ANSWERS[0]), ("Q", ANSWERS[2])]
PAIRS = [PAIRS[i] for i in np.random.default_rng(0).permutation(len(PAIRS))]


def plain(prompt, continuation, kind, tokens):
    """Log-probabilities of the last tokens of the text, one text at a time, from the model's own logits."""
    if not len(tokens):
        return np.zeros(0), True
    ids = lm_models.tokenizer()(prompt + continuation)["input_ids"]
    ids = ids if len(ids) > len(tokens) else [0, *ids]
    assert ids[-len(tokens) :] == list(tokens)
    greedy = lm_models.logits(ids, kind)[:-1].argmax(-1)[-len(tokens) :].tolist() == list(tokens)
    return lm_models.logprobs(ids, kind)[-len(tokens) :], greedy


def check(scores, kind, tolerance=1e-4):
    for a, (prompt, continuation) in enumerate(PAIRS):
        begin, end = scores.cu_answers[a : a + 2]
        expected, greedy = plain(prompt, continuation, kind, scores.tokens[begin:end])
        np.testing.assert_allclose(scores.logp[begin:end], expected, rtol=0, atol=tolerance)
        assert scores.sum[a] == pytest.approx(expected.sum(), abs=20 * tolerance)
        assert scores.count[a] == len(expected)
        assert scores.greedy[a] == greedy
        if len(expected):
            assert scores.mean[a] == pytest.approx(expected.mean(), abs=tolerance)
        else:
            assert np.isnan(scores.mean[a])
            assert scores.sum[a] == 0


def check_alone(scores, texts, of):
    """That the last tokens of each text, which are its answer, have the scores of the text alone."""
    for begin, end, text in zip(scores.cu_answers, scores.cu_answers[1:], texts, strict=False):
        np.testing.assert_allclose(
            scores.logp[begin:end], lm_models.logprobs(text, of)[begin - end :], rtol=0, atol=1e-4
        )


WAYS = [{}, {"share_prompts": False}, {"batch_tokens": 40}, {"batch_tokens": 1}]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "options"),
    [("llama", way) for way in WAYS[1:]] + [*zip(lm_models.CONFIGS, itertools.cycle([WAYS[0], WAYS[2]]))],
    ids=lambda x: str(x or ""),
)
def test_scores_are_those_of_full_logits(kind, options):
    model = HuggingFaceModel(lm_models.model(kind), lm_models.tokenizer(), **options)
    scores = model.score(*zip(*PAIRS, strict=True))
    check(scores, kind)
    assert np.ptp(scores.logp) > 1  # far from the uniform distribution, which would hide mistakes


@pytest.mark.parametrize("options", WAYS[::2], ids=str)
def test_top_logprobs_are_those_of_full_logits(options):
    model, k = HuggingFaceModel(lm_models.model("llama"), lm_models.tokenizer(), **options), 4
    top, scores = model.top_logprobs(*zip(*PAIRS, strict=True), k=k), model.score(*zip(*PAIRS, strict=True))
    np.testing.assert_array_equal(top.tokens, scores.tokens)
    np.testing.assert_array_equal(top.cu_answers, scores.cu_answers)
    for (prompt, continuation), begin, end in zip(PAIRS, top.cu_answers, top.cu_answers[1:], strict=False):
        if begin < end:
            ids = lm_models.tokenizer()(prompt + continuation)["input_ids"]
            ids = ids if len(ids) > end - begin else [0, *ids]
            every = torch.log_softmax(lm_models.logits(ids)[:-1], -1)[begin - end :]
            np.testing.assert_allclose(top.log_probs[begin:end], every.topk(k).values, rtol=0, atol=1e-4)
            own = every.gather(1, torch.from_numpy(top.ids[begin:end]))
            np.testing.assert_allclose(top.log_probs[begin:end], own, rtol=0, atol=1e-4)
    assert all(len(set(row)) == k for row in top.ids.tolist())
    with pytest.raises(ValueError, match="top_logprobs: k must be at least 1, got 0"):
        model.top_logprobs([PROMPTS[0]], [ANSWERS[0]], k=0)
    assert model.top_logprobs([], [], k=2).ids.shape == (0, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "pads", "keeps"),
    [
        ("llama", {"left", "right"}, True),
        ("llama4", {"left", "right"}, True),
        ("bloom", {"left", "right"}, True),
        ("mpt", {"left", "right"}, False),
        ("marian", {"right"}, False),
        ("lfm2", {"left", "right"}, False),
    ],
)
def test_a_trial_tells_what_padding_and_kept_keys_change(kind, pads, keeps, dtype):
    network = Network(copy.deepcopy(lm_models.model(kind)).to(dtype), True)
    assert (network.pads, network.keeps, network.uneven) == (pads, keeps, not keeps)


def test_states_of_another_type_than_the_weights_are_scored():
    inner, encoded = copy.deepcopy(lm_models.model("mamba")).bfloat16(), lm_models.tokenizer()("Q:A")["input_ids"]
    with torch.inference_mode():
        assert inner.backbone(torch.tensor([encoded]))[0].dtype == torch.float32
    expected = lm_models.logprobs(encoded, inner)[-1]
    model = HuggingFaceModel(inner, lm_models.tokenizer())
    scores, labels = model.score(["Q:"], ["A"]), LabelModel(model, ("A", "C")).score([["Q:"]])
    np.testing.assert_allclose([scores.logp[0], labels[0].logp[0]], expected, rtol=0, atol=0.02)


def test_rounding_in_many_layers_is_not_taken_for_a_change():
    config = transformers.LlamaConfig(
        **lm_models.SMALL | {"num_hidden_layers": 40}, intermediate_size=48, num_key_value_heads=1,
        initializer_range=0.3,
    )  # fmt: skip
    ids = torch.arange(2, 56).reshape(3, 18)
    lost = 0.0
    for seed in range(20):  # how much is lost is the processor's: the first model of which it is enough
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config).eval().bfloat16()
        with torch.inference_mode():
            alone, among = model.model(ids[:2, :9])[0][1, -1], model.model(ids)[0][1, 8]
        lost = float((among - alone).float().norm() / alone.float().norm())  # the same text, but for rounding
        if lost > 0.03:
            break
    assert lost > 0.03
    network = Network(model, True)
    assert (network.pads, network.keeps) == ({"left", "right"}, True)


@pytest.mark.parametrize("kind", ["gpt_neo", "gemma2"])
def test_a_window_sees_tokens_where_rests_of_two_lengths_follow_a_beginning(kind):
    rng = np.random.default_rng(0)
    beginning = rng.integers(2, 300, 24).tolist()
    contexts = [beginning + rest for rest in (rng.integers(2, 300, size).tolist() for size in (3, 6, 9)) for _ in "ab"]
    answers = [rng.integers(2, 300, 3).tolist() for _ in contexts]
    scores = HuggingFaceModel(lm_models.model(kind), lm_models.tokenizer()).score_tokens(contexts, answers)
    check_alone(scores, [c + a for c, a in zip(contexts, answers, strict=True)], kind)


class Watched(torch.nn.Module):
    """A layer that says in which type it runs."""

    def __init__(self, inner, run_in):
        super().__init__()
        self.inner, self.run_in = inner, run_in  # a function, which copies of the layer share

    def forward(self, *args, **options):
        self.run_in(next(self.inner.parameters()).dtype)
        return self.inner(*args, **options)


@pytest.mark.parametrize("fails", [False, True])
def test_a_trial_leaves_the_model_as_it_is(fails):
    """While it goes on, too: another thread may run the model."""
    model, seen = copy.deepcopy(lm_models.model()).bfloat16(), []

    def tensors():
        return dict(model.named_parameters()) | dict(model.named_buffers())

    def run_in(dtype):
        touched = any(tensors()[name] is not tensor for name, tensor in before.items())
        touched |= any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
        seen.append((dtype, torch.get_float32_matmul_precision(), touched))
        if fails and dtype == torch.float32 and len(seen) > 1:
            raise RuntimeError("mixed types")

    model.model.layers[1] = Watched(model.model.layers[1], run_in)
    before = tensors()
    torch.set_float32_matmul_precision("high")
    try:
        network = Network(model, True)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    after = tensors()
    assert before.keys() == after.keys()
    assert all(after[name] is tensor for name, tensor in before.items())
    assert network.pads == {"left", "right"}
    assert set(seen) == {(torch.float32, "highest", False), (torch.bfloat16, "high", False)}


def test_of_an_embedding_only_what_is_looked_up_is_widened():
    model, seen = copy.deepcopy(lm_models.model()).bfloat16().model, []
    with widened(model) as twin, torch.inference_mode():
        twin.embed_tokens.register_forward_pre_hook(lambda module, _: seen.append(module.weight))
        assert twin(torch.arange(2, 9)[None]).last_hidden_state.dtype == torch.float32
    assert seen[0] is model.embed_tokens.weight


def test_a_trial_sets_no_precision_that_is_the_highest(monkeypatch):
    """Once set, it does not follow `torch.backends.fp32_precision` any more."""
    model = copy.deepcopy(lm_models.model()).bfloat16()
    assert torch.get_float32_matmul_precision() == "highest"
    monkeypatch.setattr(torch, "set_float32_matmul_precision", pytest.fail)
    assert Network(model, True).pads == {"left", "right"}


def test_a_state_that_is_meant_to_be_one_is_not_uneven():
    network = Network(lm_models.model("mamba"), True)
    assert (network.keeps, network.uneven) == (False, False)


def test_texts_of_one_length_run_together_where_padding_changes_scores(monkeypatch):
    """GPT-2 that counts places from the right, as if all padding were on the left."""
    inner = copy.deepcopy(lm_models.model("gpt2"))
    forward, shapes = inner.transformer.forward, []

    def counting(input_ids, attention_mask=None, **options):
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        shapes.append(attention_mask)
        places = torch.arange(input_ids.shape[1]) - (attention_mask == 0).sum(1, keepdim=True)
        options["position_ids"] = places.clamp(min=0)
        return forward(input_ids, attention_mask=attention_mask, **options)

    monkeypatch.setattr(inner.transformer, "forward", counting)
    model = HuggingFaceModel(inner, lm_models.tokenizer())
    assert (model.network.pads, model.share_prompts) == ({"left"}, False)
    shapes.clear()
    check(model.score(*zip(*PAIRS, strict=True)), "gpt2")
    assert all(mask.all() for mask in shapes)
    assert 1 < len(shapes) < len(PAIRS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_model_in_which_later_tokens_count_little_is_refused(dtype):
    """By less than the rounding of two bytes."""
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(
        **lm_models.SMALL, intermediate_size=48, num_key_value_heads=1, head_dim=16, use_bidirectional_attention=True
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for layer, share in zip(model.model.layers, (0, 1 / 256), strict=True):
            layer.post_attention_layernorm.weight.fill_(share - 1)  # of 1 + weight
    with pytest.raises(ValueError, match="model must be causal, got Gemma3ForCausalLM"):
        Network(model.to(dtype), True)


def test_a_model_whose_output_layer_is_offloaded_is_refused():
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(copy.deepcopy(lm_models.model()), torch.device("cpu"))
    with pytest.raises(ValueError, match="must have its output layer on a device, got LlamaForCausalLM"):
        HuggingFaceModel(model, lm_models.tokenizer())


def test_a_compiled_model_shares_prompts():
    model = copy.deepcopy(lm_models.model())
    model.model = torch.compile(model.model, backend="eager")
    with torch.compiler.set_stance("force_eager"):  # compiling takes ten seconds, and is torch's to test
        scorer = HuggingFaceModel(model, lm_models.tokenizer())
        assert scorer.share_prompts
        check(scorer.score(*zip(*PAIRS, strict=True)), "llama")


def test_the_copy_that_is_tried_is_not_compiled(monkeypatch):
    """It is thrown away after a few tokens."""
    model, tried = copy.deepcopy(lm_models.model()).bfloat16(), []
    model.model = torch.compile(model.model, backend="eager")
    trial = Network._trial
    monkeypatch.setattr(Network, "_trial", lambda network: tried.append(network._base) or trial(network))
    with torch.compiler.set_stance("force_eager"):
        network = Network(model, True)
    assert [type(one) for one in tried] == [type(model.model._orig_mod)]
    assert network.keeps
    assert network._base is model.model


def test_a_model_that_overflows_is_told_so():
    model = copy.deepcopy(lm_models.model()).half()
    with torch.no_grad():
        model.lm_head.weight.mul_(6e4)
    message = "model must have finite logits, got NaN or inf from LlamaForCausalLM in torch.float16; load it in another"
    with pytest.raises(ValueError, match=message):
        HuggingFaceModel(model, lm_models.tokenizer())


class Adapted(torch.nn.Module):
    """What PEFT makes of a linear layer, and of a model: the weight is not all that counts."""

    def __init__(self, inner, scale):
        super().__init__()
        self.base_layer, self.scaling = inner, {"default": scale}
        self.active_adapters, self.disable_adapters = ["default"], False
        torch.manual_seed(1)
        self.lora = torch.nn.Linear(inner.in_features, inner.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.scaling["default"] * self.lora(x)


class AdaptedModel(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.inner = copy.deepcopy(lm_models.model())
        for layer in self.inner.model.layers:
            layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj, scale)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    @property
    def base_model(self):  # of PEFT: no part of transformers' model
        return self

    def get_base_model(self):
        return self.inner

    def forward(self, *arguments, **options):
        return self.inner(*arguments, **options)


def test_a_model_with_adapters():
    fingerprints = set()
    for scale in (0.5, 3.0):
        adapted = AdaptedModel(scale).eval()
        model = HuggingFaceModel(adapted, lm_models.tokenizer())
        ids = lm_models.tokenizer()(PROMPTS[0] + ANSWERS[0])["input_ids"]
        found = model.score([PROMPTS[0]] * 2, ANSWERS[:2])
        expected = lm_models.logprobs(ids, adapted)[-found.count[0] :]
        np.testing.assert_allclose(found.logp[: found.count[0]], expected, rtol=0, atol=1e-4)
        assert model.share_prompts
        fingerprints.add(model.fingerprint)
    assert len(fingerprints) == 2  # the scale is no weight


def test_tensors_are_made_on_the_device_of_the_model():
    """On a GPU a tensor of the CPU beside one of the device is an error."""
    made = []

    class Watched(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            caller = sys._getframe(1).f_code.co_filename
            if function in (torch.arange, torch.tensor, torch.zeros, torch.ones, torch.full) and "/icl/" in caller:
                made.append((caller, function.__name__, "device" in (kwargs or {})))
            return function(*args, **(kwargs or {}))

    model = HuggingFaceModel(lm_models.model(), lm_models.tokenizer())
    prompts = [PROMPTS[0], NEAR, PROMPTS[0] + ANSWERS[0]]
    with Watched():
        model.score(*zip(*PAIRS, strict=True))
        LabelModel(model, [" Paris", " the"]).score([prompts])
        GreedyGenerator(model).generate(prompts, Stop(3))
    assert {Path(caller).stem for caller, _, _ in made} == {"huggingface", "posteriors", "generation"}
    assert all(placed for _, _, placed in made), made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights(dtype):
    half = copy.deepcopy(lm_models.model()).to(dtype)
    scores = HuggingFaceModel(half, lm_models.tokenizer()).score(*zip(*PAIRS, strict=True))
    assert scores.logp.dtype == np.float32
    exact = HuggingFaceModel(lm_models.model(), lm_models.tokenizer()).score(*zip(*PAIRS, strict=True))
    np.testing.assert_array_equal(scores.tokens, exact.tokens)
    assert np.abs(scores.logp - exact.logp).mean() < (0.2 if dtype is torch.bfloat16 else 0.02)


# Sorted: a and b share 20 tokens, c and d 40, all four 17; e shares nothing, f to h 16, i to k 15.
LONG = list(range(100, 117))
CONTEXTS = {
    "a": [*LONG, 1, 1, 1, 1], "b": [*LONG, 1, 1, 1, 2, 5],
    "c": [*LONG, *range(200, 223), 1], "d": [*LONG, *range(200, 224)],
    "e": [300], **{name: [*range(400, 416), i] for i, name in enumerate("fgh")},
    **{name: [*range(500, 515), i] for i, name in enumerate("ijk")},
}  # fmt: skip


def brute_clusters(contexts):
    """The most tokens that any way to put neighbours together saves, by trying all ways to cut the sorted list."""
    order = sorted(contexts)

    def common(rows):
        least = min(map(len, rows))
        return next((i for i in range(least) if len({row[i] for row in rows}) > 1), least)

    best = [0] * (len(order) + 1)
    for end in range(1, len(order) + 1):
        for begin in range(end):
            shared = common(order[begin:end])
            saved = (end - begin - 1) * shared if shared >= 16 else 0
            best[end] = max(best[end], best[begin] + saved)
    return best[-1]


def saved(clusters):
    return sum((len(groups) - 1) * len(beginning) for beginning, groups in clusters if len(groups) > 1)


def test_contexts_that_begin_alike_are_put_together():
    groups = [Group(tuple(context), [(1,)], [[0]]) for context in CONTEXTS.values()]
    found = clustered(groups)
    names = {tuple(context): name for name, context in CONTEXTS.items()}
    assert [("".join(names[g.context] for g in some), len(begin)) for begin, some in found] == [
        ("ab", 20), ("cd", 40), ("e", 1), ("fgh", 16), ("i", 16), ("j", 16), ("k", 16),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 12, 40):
        for _ in range(5):
            starts = rng.integers(0, 3, (size, 4))
            rows = {tuple(np.repeat(start, 9)) + tuple(rng.integers(0, 2, 3)) for start in starts}
            contexts = [tuple(map(int, row)) for row in rows]
            made = clustered([Group(context, [(1,)], [[0]]) for context in contexts])
            assert sorted(group.context for cluster in made for group in cluster.groups) == sorted(contexts)
            for beginning, some in made:
                assert all(group.context[: len(beginning)] == beginning for group in some)
            most = brute_clusters(contexts)
            assert 0.9 * most <= saved(made) <= most
    assert clustered([]) == []


def test_batches_are_of_like_length_and_bounded():
    assert list(batches([3, 40, 38, 30, 5, 900, 4], int, 100)) == [[900], [40, 38], [30], [5, 4, 3]]
    assert list(batches([4] * 5, int, 100, 2)) == [[4, 4], [4, 4], [4]]
    assert list(batches([0, 0], int, 1)) == [[0, 0]]
    assert list(batches([], int, 1)) == []


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2", "bloom"])
@pytest.mark.parametrize("batch_tokens", [512, 30])
def test_beginnings_that_prompts_share_are_read_once(kind, batch_tokens, monkeypatch):
    """Two beginnings of unlike length, contexts after them with one answer and with several, and one alone."""
    inner, tokenizer = lm_models.model(kind), lm_models.tokenizer()
    model = HuggingFaceModel(inner, tokenizer, batch_tokens=batch_tokens)
    first, second = "Why do cats purr? " * 3, "What is the capital of France? The north. " * 2
    # The first two are beginnings of others.
    prompts = [first.rstrip(), second.rstrip(), first + "A:", first + "Paris is the capital", second + "Q"]
    prompts += [second + "Why? Why?", "Cats purr."]
    pairs = [(prompt, answer) for i, prompt in enumerate(prompts) for answer in ANSWERS[: 1 + i % 2 * 3]]
    seen = lm_models.reads(monkeypatch, model.network)
    scores = model.score(*zip(*pairs, strict=True))
    check_alone(scores, [tokenizer(prompt + answer)["input_ids"] for prompt, answer in pairs], inner)
    rows = [list(row) for batch in seen for row in batch]
    for text in prompts[:2]:
        head = tokenizer(text)["input_ids"]
        assert sum(row[: len(head)] == head for row in rows) == 1


@pytest.mark.parametrize("window", [6, 40, 200])
def test_padding_takes_no_place_in_a_sliding_window(window, monkeypatch):
    """Contexts that begin alike, with several answers each and ends of unlike length; 200 tokens see all."""
    config = copy.deepcopy(lm_models.model("gemma2").config)
    config.sliding_window = window
    inner = type(lm_models.model("gemma2"))(config).eval()
    inner.load_state_dict(lm_models.model("gemma2").state_dict())
    ends = range(10, 13), range(30, 39), range(50, 61), range(70, 79)
    contexts = [[*range(100, 150), *end] for end in ends]
    pairs = [(context, answer) for context in contexts for answer in ([20, 21], [22, 23, 24], [25])]
    model = HuggingFaceModel(inner, lm_models.tokenizer())
    seen = lm_models.reads(monkeypatch, model.network)
    found = model.score_tokens(*zip(*pairs, strict=True))
    lengths = [[*map(len, rows)] for rows in seen]
    assert lengths == ([[50], [11, 9, 9, 3]] if window == 200 else [[50], [11], [9, 9], [3]])
    check_alone(found, [context + answer for context, answer in pairs], inner)


def test_prompt_runs_once_for_all_its_answers(monkeypatch):
    """Positions fed to the model: the prompt once, then the answers without their last tokens."""
    inner = lm_models.model()
    fed = []
    forward = inner.model.forward

    def counting(input_ids, **options):
        fed.append(tuple(input_ids.shape))
        return forward(input_ids, **options)

    prompt, answers = PROMPTS[0], [*ANSWERS[:4], ANSWERS[0]]
    model = HuggingFaceModel(inner, lm_models.tokenizer())
    monkeypatch.setattr(inner.model, "forward", counting)
    monkeypatch.setattr(inner.lm_head, "forward", lambda *_: pytest.fail("the model made logits"))
    scores = model.score([prompt] * 5, answers)
    length = len(lm_models.tokenizer()(prompt)["input_ids"])
    assert fed == [(1, length), (4, scores.count.max() - 1)]


@pytest.mark.parametrize(("kind", "limit"), [("gpt2", 128), ("opt", 128)])
def test_longest_pair_that_fits(kind, limit):
    model = HuggingFaceModel(lm_models.model(kind), lm_models.tokenizer())
    letters = "Z" * limit  # one token each: no such pair of letters was seen in training
    assert len(lm_models.tokenizer()(letters)["input_ids"]) == limit
    assert model.score(["Z" * (limit - 4)], ["Z" * 5]).count.tolist() == [5]
    with pytest.raises(PairError) as caught:
        model.score(["A", "Z" * (limit - 4)], ["Z", "Z" * 6])
    assert str(caught.value) == (
        f"score: prompts must leave room for the continuation in the model's context of {limit} tokens, "
        f"got {limit - 4} and 6 tokens in pair 1"
    )


def test_output_layer_that_is_no_linear_map_is_refused():
    class Twisted(type(lm_models.model())):
        def forward(self, *arguments, **options):
            output = super().forward(*arguments, **options)
            output.logits = output.logits * 3
            return output

    twisted = Twisted(lm_models.model().config)
    with pytest.raises(ValueError, match=r"HuggingFaceModel: model must compute its logits as .*, got others from Tw"):
        HuggingFaceModel(twisted, lm_models.tokenizer())


def test_bad_arguments():
    model = HuggingFaceModel(lm_models.model(), lm_models.tokenizer())
    with pytest.raises(ValueError, match="score: continuations must be as many as prompts, 2, got 1"):
        model.score(["a", "b"], ["c"])
    with pytest.raises(TypeError, match="score: prompts must be a sequence of str, got a str"):
        model.score("a", ["c"])
    with pytest.raises(TypeError, match="score: continuations must be str, got int at 1"):
        model.score(["a", "b"], ["c", 4])
    with pytest.raises(ValueError, match="HuggingFaceModel: batch_tokens must be at least 1, got 0"):
        HuggingFaceModel(lm_models.model(), lm_models.tokenizer(), batch_tokens=0)
    none = model.score([], [])
    assert (len(none.logp), none.cu_answers.tolist(), len(none.greedy)) == (0, [0], 0)


def test_from_pretrained(tmp_path):
    folder = lm_models.save(tmp_path / "model")
    loaded = HuggingFaceModel.from_pretrained(folder, batch_tokens=64)
    check(loaded.score(*zip(*PAIRS, strict=True)), "llama")
    assert HuggingFaceModel.from_pretrained(folder, dtype="bfloat16").model.dtype is torch.bfloat16
    for path, match in (
        (tmp_path / "no.gguf", "model must be an existing file"),
        (tmp_path / "nothing", "model must be a hub name or an existing path"),
        ("./nothing", "model must be a hub name or an existing path"),
        (tmp_path, r"model must be a folder with config.json or one .gguf"),
    ):
        with pytest.raises(FileNotFoundError, match=f"HuggingFaceModel: {match}, got "):
            HuggingFaceModel.from_pretrained(path)
    with pytest.raises(ValueError, match="dtype must be float32, float16 or bfloat16, got 'int8'"):
        HuggingFaceModel.from_pretrained(folder, dtype="int8")


def test_checkpoint_without_all_weights_is_refused(tmp_path):
    """transformers only warns, and goes on with random numbers."""
    from safetensors.torch import load_file, save_file

    folder = lm_models.save(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"model must have all its weights, got none for lm_head\.weight"):
        HuggingFaceModel.from_pretrained(folder)


def test_tied_weights_are_not_missing(tmp_path):
    loaded = HuggingFaceModel.from_pretrained(lm_models.save(tmp_path / "model", "gpt2"))
    check(loaded.score(*zip(*PAIRS, strict=True)), "gpt2")


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs transformers: pip install '.+\[lm\]'"):
        HuggingFaceModel.from_pretrained("some/model")
