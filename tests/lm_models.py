"""Small language models with random weights, and a tokenizer trained on a few words, for the tests of `icl`."""

from __future__ import annotations

from functools import cache

import tokenizers
import torch
import transformers

WORDS = (
    "Q: What is the capital of France? A: The capital is Paris, in the north. Why do cats purr? A: They are content."
)
VOCABULARY = 320


@cache
def tokenizer(bos: str | None = "<s>", leading: bool = False):
    """Byte-level BPE; with `leading` it puts BOS before every text, as Llama's does."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY - 2,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator([WORDS], trainer)
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
    "phi": lambda: transformers.PhiConfig(**SMALL, intermediate_size=48),  # a bias in the output layer
    "opt": lambda: transformers.OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=16, max_position_embeddings=128),
    "bloom": lambda: transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=2),
    "mamba": lambda: transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2),
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


def save(folder, kind: str = "llama"):
    model(kind).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
