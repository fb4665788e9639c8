"""Greedy answers of a language model, kept in a SQLite file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from .._base.types import PathLike
from .forward.network import selected
from .forward.sharing import LEAST, Tokens, batches
from .huggingface import HuggingFaceModel
from .language_model import texts
from .storage.database import Kept, hash_key
from .tokenization import common, encode_pairs

_WINDOW = 32  # prompts; what a killed run loses at most, and what one progress step covers
_TOGETHER = 8  # times the model's batch_tokens in one run: a step reads all weights whatever its number of rows
_OP = "generate"


@dataclass(frozen=True)
class Stop:
    """End of an answer: after so many tokens, before one of these texts, or where the model ends it."""

    max_new_tokens: int = 32
    texts: tuple[str, ...] = ("\n",)

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"{_OP}: max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not all(texts(_OP, "stop texts", self.texts)):
            raise ValueError(f"{_OP}: stop texts must have a character, got {list(self.texts)}")


LINE = Stop()


class Generator(Protocol):
    """A model that continues prompts."""

    @property
    def fingerprint(self) -> str:
        """Text that changes with anything that changes an answer."""

    def generate(self, prompts: Sequence[str], stop: Stop) -> list[str]:
        """Return the continuation of each prompt."""


class GreedyGenerator:
    """Greedy generation, the most probable token after the other, by transformers with its key-value cache.

    Prompts of like length run together, padded on the left; what all of them begin with, such as a system's message
    and an instruction, is read once. A batch can change the last bits of a probability, and so, where two tokens are as
    good as equal, an answer.

    Parameters
    ----------
    model : HuggingFaceModel
        The prompts of a run have at most eight times its ``batch_tokens``, padding included, or are one.
    chat : bool, optional
        Whether a prompt is what the user says in the tokenizer's chat template, instead of a text to continue.
        Default: where the tokenizer has one.

    Raises
    ------
    ValueError
        `chat` without a chat template.
    """

    def __init__(self, model: HuggingFaceModel, *, chat: bool | None = None) -> None:
        template = getattr(model.tokenizer, "chat_template", None)
        if chat and not template:
            raise ValueError(f"{_OP}: chat must be False for a tokenizer without a chat template, got {chat}")
        self._share = model.share_prompts and model.network.window is None
        self.model, self.chat = model, bool(template) if chat is None else chat

    @property
    def fingerprint(self) -> str:
        template = str(self.model.tokenizer.chat_template) if self.chat else ""
        return hash_key(self.model.fingerprint, template, json.dumps(self._ends)).hex()

    @property
    def _ends(self) -> int | list[int] | None:
        """What ends a text: all that is taken of the model's own settings, as others may be for sampling."""
        ends: int | list[int] | None = getattr(self.model.network.model.generation_config, "eos_token_id", None)
        return ends

    def generate(self, prompts: Sequence[str], stop: Stop = LINE) -> list[str]:
        """Return the continuations, without the stop text and with no white space around them.

        Raises
        ------
        ValueError, TypeError
            A prompt that is no str, has no token, or leaves no room for ``max_new_tokens`` in the model's context.
        """
        prompts = texts(_OP, "prompts", prompts)
        tokenizer = self.model.tokenizer
        if self.chat:
            said = ([{"role": "user", "content": prompt}] for prompt in prompts)
            prompts = [tokenizer.apply_chat_template(one, add_generation_prompt=True, tokenize=False) for one in said]
        ids = [pair.context for pair in encode_pairs(_OP, tokenizer, prompts, [""] * len(prompts))]
        limit = self.model.network.limit
        for i, row in enumerate(ids):
            if not row:
                raise ValueError(f"{_OP}: prompts must have a token, got {prompts[i]!r}")
            if limit is not None and len(row) + stop.max_new_tokens > limit:
                raise ValueError(
                    f"{_OP}: prompts must leave room for {stop.max_new_tokens} tokens in the model's context of "
                    f"{limit}, got {len(row)} tokens"
                )
        found: dict[Tokens, str] = {}
        padded = "left" in self.model.network.pads
        for batch in batches(dict.fromkeys(ids), len, _TOGETHER * self.model.batch_tokens, padded=padded):
            found.update(zip(batch, self._run(batch, stop), strict=True))
        return [found[row] for row in ids]

    def _run(self, batch: list[Tokens], stop: Stop) -> list[str]:
        from transformers import GenerationConfig, StoppingCriteriaList

        network, tokenizer, ends = self.model.network, self.model.tokenizer, self._ends
        config = GenerationConfig(
            do_sample=False, max_new_tokens=stop.max_new_tokens, eos_token_id=ends, pad_token_id=_first(ends)
        )

        def written(rows: Any) -> list[str]:
            return list(tokenizer.batch_decode(rows[:, width:], skip_special_tokens=True))

        def done(rows: Any, *_: Any, **__: Any) -> Any:
            ended = [len(_cut(text, stop)) < len(text) for text in written(rows)]
            return network.torch.tensor(ended, device=rows.device)

        model = copy(network.model)
        model.generation_config = config  # else transformers fills what is not said here with the model's own settings
        with network.torch.inference_mode():
            ids, mask, kept = self._begun(batch)
            width = ids.shape[1]
            rows = model.generate(
                input_ids=ids, attention_mask=mask, generation_config=config,
                stopping_criteria=StoppingCriteriaList([done]), **kept,
            )  # fmt: skip
        return [_cut(text, stop).strip() for text in written(rows)]

    def _begun(self, batch: list[Tokens]) -> tuple[Any, Any, dict[str, Any]]:
        """Return token ids and mask of a batch, and the keys and values of what all begin with, read once."""
        network = self.model.network
        shared = min(len(batch[-1]) - 1, *(common(batch[0], row) for row in batch)) if self._share else 0
        if len(batch) == 1 or shared < LEAST:
            return *network.padded(batch, "left"), {}
        beginning, owners = batch[0][:shared], network.tensor([0] * len(batch))
        parts = (
            network.padded([beginning] * len(batch), "left"),
            network.padded([row[shared:] for row in batch], "left"),
        )
        ids, mask = (network.torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        return ids, mask, {"past_key_values": selected(network.read([beginning]).cache, owners)}


class CachedGenerator(Kept):
    """A `Generator` whose answers are kept in a SQLite file, found by model, prompt and where answers stop.

    Prompts that are new are run 32 at a time, longest first, and added as they are done: a killed run resumes
    where it was, and several processes may share the file.

    Parameters
    ----------
    generator : Generator
    path : path
        Made if missing, with its folder.

    Raises
    ------
    ValueError
        The file is something else.
    OSError
        The file cannot be opened or written.
    """

    def __init__(self, generator: Generator, path: PathLike) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        super().__init__(generator, path, "answers", b"RSKG", "answer TEXT")
        self.generator = generator

    def generate(
        self,
        prompts: Sequence[str],
        stop: Stop = LINE,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[str]:
        """Generate as `Generator.generate`; `progress` gets the new prompts done and their number, first with 0."""
        prompts = texts(_OP, "prompts", prompts)
        settings = json.dumps(asdict(stop), sort_keys=True)
        keys = {prompt: hash_key(self.fingerprint, settings, prompt) for prompt in prompts}
        found = self._filled(keys, _WINDOW, lambda window: self.generator.generate(window, stop), progress)
        return [found[keys[prompt]] for prompt in prompts]


def _cut(text: str, stop: Stop) -> str:
    """Return what comes before the first stop text, but for white space at the beginning."""
    begin = len(text) - len(text.lstrip())
    places = [place for place in (text.find(end, begin) for end in stop.texts) if place >= 0]
    return text[: min(places, default=len(text))]


def _first(ends: Any) -> int:
    """Return the token to pad with after an answer's end; where the model knows no end, any."""
    if isinstance(ends, (list, tuple)):
        return int(ends[0])
    return 0 if ends is None else int(ends)
