"""The end of the prompt and the beginning of the continuation, in tokens; no other module decides it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .language_model import PairError

_OPTIONS = {"add_special_tokens": False, "padding": False, "truncation": False, "verbose": False}


class TokenPair(NamedTuple):
    """Token ids of one pair: the answer's are scored, each given the context and the answer's tokens before it."""

    context: tuple[int, ...]  # at least one token, unless the answer is empty
    answer: tuple[int, ...]


def encode_pairs(op: str, tokenizer: Any, prompts: Sequence[str], continuations: Sequence[str]) -> list[TokenPair]:
    """Tokenise each prompt together with its continuation, then split the tokens.

    The text ``prompt + continuation`` is tokenised as a whole, so that the model sees the tokens it was trained on. **A
    token belongs to the continuation if it ends beyond the end of the prompt**, that is, if any of its characters is
    the continuation's. So a token that merges both, like " Paris" of "A: " + "Paris", is scored, no character of
    the continuation is left out, and no token of the prompt alone is scored.

    This is what lm-eval does where the prompt's own tokens begin the whole's. Where they do not, it takes as many
    tokens off as the prompt alone has, which can score characters of the prompt or lose some of the continuation; and
    it always scores white space at the prompt's end with the continuation.

    Special tokens that the tokenizer puts before a text (BOS) begin the context, once, also where the prompt spells
    them out; those it puts after a text are left out. A context without any token (an empty prompt) becomes BOS.

    A tokenizer without character positions (one written in Python) also tokenises the prompt alone, and the tokens
    after the common beginning are the continuation's: the same split, or an earlier one after a merge.

    Raises
    ------
    PairError
        No token comes before the continuation, and the tokenizer has no BOS.
    """
    first = leading(tokenizer)
    whole = [prompt + continuation for prompt, continuation in zip(prompts, continuations, strict=True)]
    if not whole:
        return []
    if getattr(tokenizer, "is_fast", False):
        tokens, ends = tokens_and_ends(tokenizer, whole)
        splits = [_first_beyond(some, len(prompt)) for some, prompt in zip(ends, prompts, strict=True)]
    else:
        tokens, alone = tokens_alone(tokenizer, whole), tokens_alone(tokenizer, prompts)
        splits = [common(a, b) for a, b in zip(tokens, alone, strict=True)]
    pairs = []
    for i, (ids, split) in enumerate(zip(tokens, splits, strict=True)):
        if not continuations[i]:
            split = len(ids)
        context = ids[:split] if ids[: len(first)] == first else [*first, *ids[:split]]
        if not context and split < len(ids):
            if tokenizer.bos_token_id is None:
                rule = "prompts must have a token before the continuation, or the tokenizer a BOS token, got"
                raise PairError(op, f"{rule} {prompts[i]!r} before {continuations[i][:20]!r}", i)
            context = [tokenizer.bos_token_id]
        pairs.append(TokenPair(tuple(context), tuple(ids[split:])))
    return pairs


def tokens_alone(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return a tokenizer's tokens of each text, none added."""
    found: list[list[int]] = tokenizer(list(texts), **_OPTIONS)["input_ids"]
    return found


def tokens_and_ends(tokenizer: Any, texts: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
    """Return a fast tokenizer's tokens of each text, none added, and where the characters of each token end."""
    encoded = tokenizer(list(texts), return_offsets_mapping=True, **_OPTIONS)
    offsets = encoded["offset_mapping"]
    if trims(tokenizer):
        untrimmed = _untrimmed(tokenizer.backend_tokenizer).encode_batch(list(texts), add_special_tokens=False)
        offsets = [one.offsets for one in untrimmed]
    return encoded["input_ids"], [[end for _, end in some] for some in offsets]


def trims(tokenizer: Any) -> bool:
    """Whether a tokenizer's positions leave out white space: a token "\\n  " seems to end with its new line."""
    processor = tokenizer.backend_tokenizer.post_processor if getattr(tokenizer, "is_fast", False) else None
    return processor is not None and b'"trim_offsets":true' in processor.__getstate__()


def _untrimmed(backend: Any) -> Any:
    """Return a tokenizer of the same parts, but for the last one, which trims positions and adds special tokens."""
    bare = type(backend)(backend.model)
    bare.normalizer, bare.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    bare.encode_special_tokens = backend.encode_special_tokens
    added = [token for _, token in sorted(backend.get_added_tokens_decoder().items())]
    bare.add_special_tokens([token for token in added if token.special])
    bare.add_tokens([token for token in added if not token.special])
    return bare


def token_pairs(
    op: str, contexts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], size: float = math.inf
) -> list[TokenPair]:
    """Check pairs that are token ids already; `size` is the vocabulary's."""
    if len(contexts) != len(answers):
        raise ValueError(f"{op}: answers must be as many as contexts, {len(contexts)}, got {len(answers)}")
    pairs = []
    for i, (context, answer) in enumerate(zip(contexts, answers, strict=True)):
        pair = TokenPair(_ids(op, "contexts", context, size, i), _ids(op, "answers", answer, size, i))
        if pair.answer and not pair.context:
            raise PairError(op, "contexts must have a token before the answer, got none", i)
        pairs.append(pair)
    return pairs


def _ids(op: str, name: str, tokens: Sequence[int], size: float, pair: int) -> tuple[int, ...]:
    ids = np.asarray(tokens)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        got = f"shape {ids.shape} of {ids.dtype}"
        raise TypeError(f"{op}: {name} must be sequences of token ids, got {got} in pair {pair}")
    if ids.size and not 0 <= ids.min() <= ids.max() < size:
        bad = ids[(ids < 0) | (ids >= size)][0]
        limit = "at least 0" if size == math.inf else f"from 0 to {size - 1}"
        raise PairError(op, f"{name} must be tokens {limit}, got {bad}", pair)
    return tuple(ids.tolist())


def _first_beyond(ends: Sequence[int], length: int) -> int:
    return next((i for i, end in enumerate(ends) if end > length), len(ends))


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many items a and b have in common at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def leading(tokenizer: Any) -> list[int]:
    """Return the special tokens that the tokenizer puts before a text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    places = (i for i in range(len(full)) if full[i : i + len(bare)] == bare)
    return list(full[: next(places, 0)])


def vocabulary(tokenizer: Any) -> str:
    """Return all that decides what a tokenizer makes of a text, for fingerprints."""
    if not getattr(tokenizer, "is_fast", False):
        return str(sorted(tokenizer.get_vocab().items()))
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("padding", "truncation"):  # of the last call
        content.pop(name, None)
    return json.dumps(content, sort_keys=True)
