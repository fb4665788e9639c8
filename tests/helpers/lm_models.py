"""Small language models with random weights, and a tokenizer trained on a few words, for the tests of `icl`."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import metadata

import tokenizers
import torch
import transformers

WORDS = (
    "Q: What is the capital of France? A: The capital is Paris, in the north. Why do cats purr? A: They are content."
)
VOCABULARY = 320


def byte_level(text: str, size: int, special: list[str]):
    """Byte-level BPE trained on a text."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([text], trainer)
    return inner


@cache
def tokenizer(bos: str | None = "<s>", leading: bool = False):
    """Byte-level BPE; with `leading` it puts BOS before every text, as Llama's does."""
    inner = byte_level(WORDS, VOCABULARY - 2, ["<s>", "</s>"])
    if leading:
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=bos)


SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL, intermediate_size=48, num_key_value_heads=1),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=128),
    # A soft cap that bites, and a sliding window shorter than the prompts.
    "gemma2": lambda: transformers.Gemma2Config(
        **SMALL, intermediate_size=48, num_key_value_heads=1, head_dim=16, final_logit_softcapping=2.0, sliding_window=6
    ),
    "cohere": lambda: transformers.CohereConfig(**SMALL, intermediate_size=48, logit_scale=2.5),
    "granite": lambda: transformers.GraniteConfig(**SMALL, intermediate_size=48, logits_scaling=0.4),
    # The same name for a factor.
    "hyperclovax": lambda: transformers.HyperCLOVAXConfig(
        **SMALL, intermediate_size=48, num_key_value_heads=1, logits_scaling=0.4
    ),
    # Hidden states are divided before the output layer; convolutions and a window.
    "inkling": lambda: transformers.InklingTextConfig(
        **SMALL,
        num_key_value_heads=1,
        head_dim=16,
        swa_num_attention_heads=2,
        swa_num_key_value_heads=1,
        swa_head_dim=16,
        sliding_window_size=6,
        d_rel=4,
        rel_extent=64,
        intermediate_size=48,
        mlp_layer_types=["dense", "dense"],
        logits_mup_width_multiplier=0.4,
    ),
    # A window by another name, in the layers that are local.
    "gpt_neo": lambda: transformers.GPTNeoConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        intermediate_size=48,
        attention_types=[[["global", "local"], 1]],
        window_size=6,
        max_position_embeddings=128,
    ),
    # A recurrent state beside a window; the soft cap by another name.
    "recurrent_gemma": lambda: transformers.RecurrentGemmaConfig(
        **SMALL,
        num_key_value_heads=1,
        intermediate_size=48,
        lru_width=32,
        attention_window_size=6,
        logits_soft_cap=2.0,
        block_types=("recurrent", "attention"),
    ),
    # A recurrent state alone; the soft cap by a third name.
    "xlstm": lambda: transformers.xLSTMConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_heads=2, output_logit_soft_cap=2.0
    ),
    "phi": lambda: transformers.PhiConfig(**SMALL, intermediate_size=48),  # a bias in the output layer
    "opt": lambda: transformers.OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=16, max_position_embeddings=128),
    "bloom": lambda: transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=2),
    "mamba": lambda: transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2),
    # No part of it is its base; tokens see chunks shorter than the prompts.
    "llama4": lambda: transformers.Llama4TextConfig(
        **SMALL,
        intermediate_size=48,
        intermediate_size_mlp=48,
        num_key_value_heads=1,
        head_dim=16,
        num_local_experts=2,
        attention_chunk_size=6,
    ),
    # ALiBi by the number of a key, padding included.
    "mpt": lambda: transformers.MptConfig(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=2),
    # Learned places, counted from the first column, padding included.
    "marian": lambda: transformers.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        decoder_layers=2,
        encoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=48,
        max_position_embeddings=128,
    ),
    # Keeps a state of convolutions that cannot be repeated.
    "lfm2": lambda: transformers.Lfm2Config(
        **SMALL, intermediate_size=48, num_key_value_heads=1, layer_types=["conv", "full_attention"]
    ),
}


@cache
def model(kind: str = "llama"):
    """A model whose probabilities are far from equal."""
    torch.manual_seed(0)
    config = CONFIGS[kind]()
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 0, 1, 1  # the padding's embedding is zero
    made = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.ndim > 1:
                weight.mul_(6)
            elif name.endswith("bias"):
                weight.normal_()
    return made


def logits(ids, of="llama"):
    """The plain logits (T, V) of a text alone in float64, by a kind of model or a model."""
    return _of_kind(tuple(ids), of) if isinstance(of, str) else _logits(ids, of)


@lru_cache(maxsize=512)  # tests ask for the same texts again
def _of_kind(ids, kind):
    return _logits(ids, model(kind))


def _logits(ids, network):
    with torch.no_grad():
        return network(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].double()


def logprobs(ids, of="llama"):
    """The log-probability of each token but the first, from all logits of the text."""
    ids = list(ids)
    return torch.log_softmax(logits(ids, of), -1)[torch.arange(len(ids) - 1), ids[1:]].numpy()


def reads(monkeypatch, network):
    """The rows of tokens of each call of `read` from now on."""
    read, seen = network.read, []
    monkeypatch.setattr(network, "read", lambda rows, *state: seen.append([*map(tuple, rows)]) or read(rows, *state))
    return seen


def save(folder, kind: str = "llama"):
    model(kind).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def save_gguf(path, kind: str = "llama"):
    """A llama with random weights of 16 bits as a ``.gguf`` file, with the tokenizer."""
    import gguf
    import numpy as np

    config, rng = CONFIGS[kind](), np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    words = tokenizer().get_vocab()
    tokens = sorted(words, key=words.get)
    tokens += [f"<unused{i}>" for i in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(pair) for pair in _merges()])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    width, inner = config.hidden_size, config.intermediate_size
    kv = width // config.num_attention_heads * config.num_key_value_heads
    shapes = {"token_embd": (VOCABULARY, width), "output": (VOCABULARY, width), "output_norm": (width,)}
    layer = {
        "attn_q": (width, width), "attn_k": (kv, width), "attn_v": (kv, width), "attn_output": (width, width),
        "ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner),
        "attn_norm": (width,), "ffn_norm": (width,),
    }  # fmt: skip
    for number in range(config.num_hidden_layers):
        shapes |= {f"blk.{number}.{name}": shape for name, shape in layer.items()}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape) * (0.5 if len(shape) > 1 else 1)
        writer.add_tensor(f"{name}.weight", values.astype(np.float16 if len(shape) > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _merges():
    import json

    return json.loads(tokenizer().backend_tokenizer.to_str())["model"]["merges"]


def without_packages(monkeypatch):
    """Let no package be installed that carries a model."""

    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
