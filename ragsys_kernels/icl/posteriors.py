"""A language model as a classifier: the posterior over label words after a prompt, and its uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

import ragsys_kernels as rk

from .._base.types import NDArray as Array
from .._base.types import PathLike
from .forward.network import last_states, most_rows, selected
from .forward.sharing import Tokens, batches
from .huggingface import HuggingFaceModel
from .language_model import texts
from .storage.database import Kept, hash_key
from .storage.portions import portions
from .tokenization import common, encode_pairs

_WINDOW = 16  # families; what a killed run loses at most, and what one progress step covers
_OP = "label_posteriors"

Label = str | tuple[str, ...]  # a word, or a verbaliser set of at least two


def words_of(label: Label) -> tuple[str, ...]:
    """Return the words that stand for a label."""
    return tuple(label) if isinstance(label, (tuple, list)) else (label,)


class Row(NamedTuple):
    """What was computed for one prompt."""

    logp: Array  # (L,) float64
    tokens: int


class Posteriors(NamedTuple):
    """What a model says of N prompts about L labels, in nats."""

    logp: Array  # (N, L) float64, log of the summed probability of the label's tokens, among the whole vocabulary
    log_posterior: Array  # (N, L) float64, of its share among the labels
    label: Array  # (N,) int64, of the largest posterior, the first of equals
    entropy: Array  # (N,) float64, of the posterior: 0 is certain, log L knows nothing
    tokens: Array  # (N,) int64, length of the prompt

    @classmethod
    def of(cls, rows: Iterable[Row], labels: int) -> Posteriors:
        rows = list(rows)
        logp = np.array([row.logp for row in rows], np.float64).reshape(len(rows), labels)
        log_posterior = logp - np.logaddexp.reduce(logp, axis=1, keepdims=True)
        return cls(
            logp=logp,
            log_posterior=log_posterior,
            label=log_posterior.argmax(axis=1) if rows else np.zeros(0, np.int64),
            entropy=-(np.exp(log_posterior) * np.where(np.isneginf(log_posterior), 0, log_posterior)).sum(axis=1),
            tokens=np.array([row.tokens for row in rows], np.int64),
        )


class Labeler(Protocol):
    """A model that says how probable each label is after a prompt."""

    labels: tuple[Label, ...]

    @property
    def fingerprint(self) -> str:
        """Text that changes with anything that changes a posterior: the model, and the labels."""

    def score(self, families: Sequence[Sequence[str]]) -> list[Row]:
        """Return a row for each prompt, families end to end. Prompts of one family may share their work."""


class LabelModel:
    """Label words after a prompt: their probabilities, from the hidden state of its last token.

    `ragsys_kernels.label_posteriors` takes the states and the output layer's weight: logits are never made. The prompts
    of a family share their common beginnings. The longest is run whole; of the others only what follows the tokens
    that they have in common with it, after its keys and values. So prompts with 0, 1, ..., M demonstrations cost the
    demonstrations once and the query M + 1 times, if the first ones do not depend on their number.

    Parameters
    ----------
    model : HuggingFaceModel
    labels : sequence of L str, or tuples of str
        What follows the prompt, with the space before it, if any. A word stands for its first token, in the
        prompt's context (`encode_pairs` says which that is), and these differ. A label of several words, a verbaliser
        set, has the sum of their probabilities.
    share : bool
        False runs every prompt whole: slower, the same up to rounding. So it is for models with a sliding window, and
        for those that `HuggingFaceModel` does not share prompts of.

    Attributes
    ----------
    tokens_run : int
        Tokens that went through the model so far.

    Notes
    -----
    One token a word follows the code of adaptive in-context learning (Chandra, Ganguly and Ounis, ECIR 2025).
    """

    def __init__(self, model: HuggingFaceModel, labels: Sequence[Label], *, share: bool = True) -> None:
        if isinstance(labels, str):
            raise TypeError(f"{_OP}: labels must be a sequence of str, got a str")
        sets = [texts(_OP, "labels", words_of(label)) for label in labels]
        if len(sets) < 2 or not all(sets) or not all(word for words in sets for word in words):
            raise ValueError(f"{_OP}: labels must be at least two words, got {list(labels)}")
        self.model, self.labels = model, tuple(tuple(words) if len(words) > 1 else words[0] for words in sets)
        self._words = [word for words in sets for word in words]
        self._begins = np.cumsum([0, *map(len, sets)])  # of each label among the words
        self.share = share and model.share_prompts and model.network.window is None
        self.tokens_run = 0

    @property
    def fingerprint(self) -> str:
        sets = () if len(self._words) == len(self.labels) else (repr(self._begins.tolist()),)
        return hash_key(self.model.fingerprint, *self._words, *sets).hex()

    def score(self, families: Sequence[Sequence[str]]) -> list[Row]:
        """Return a row for each prompt, families end to end.

        Raises
        ------
        ValueError, TypeError
            A prompt that is no str or longer than the model's context; labels that begin with the same token.
        """
        prompts = [prompt for family in families for prompt in texts(_OP, "prompts", family)]
        if not prompts:
            return []
        contexts, label_ids = self._encode(prompts)
        found: dict[Tokens, Array] = {}
        begin, groups = 0, []
        for family in families:
            group = sorted(set(contexts[begin : begin + len(family)]), key=lambda tokens: (-len(tokens), tokens))
            groups += [group] if self.share else [[tokens] for tokens in group]
            begin += len(family)
        with self.model.network.torch.inference_mode():
            kept = [group for group in groups if group]
            padded = "right" in self.model.network.pads
            for batch in batches(kept, lambda group: len(group[0]), self.model.batch_tokens, padded=padded):
                found.update(zip(*self._run(batch, label_ids), strict=True))
        return [Row(found[tokens], len(tokens)) for tokens in contexts]

    def _encode(self, prompts: list[str]) -> tuple[list[Tokens], list[int]]:
        tokenizer, first = self.model.tokenizer, self._words[0]
        pairs = encode_pairs(_OP, tokenizer, prompts, [first] * len(prompts))
        words = encode_pairs(_OP, tokenizer, [prompts[0]] * len(self._words), self._words)
        label_ids = [word.answer[0] for word in words]
        if len(set(label_ids)) < len(label_ids):
            raise ValueError(f"{_OP}: labels must begin with different tokens, got {self._words}")
        apart = [pair.answer[0] == label_ids[0] for pair in pairs]
        if not all(apart) or any(word.context != words[0].context for word in words):
            end = prompts[apart.index(False) if False in apart else 0][-20:]
            raise ValueError(
                f"{_OP}: prompts must end where a token of the labels begins, got {end!r} before {first!r}"
            )
        longest, limit = max(len(pair.context) for pair in pairs), self.model.network.limit
        if limit is not None and longest > limit:
            raise ValueError(f"{_OP}: prompts must fit the model's context of {limit} tokens, got one of {longest}")
        return [pair.context for pair in pairs], label_ids

    def _run(self, batch: list[list[Tokens]], label_ids: list[int]) -> tuple[list[Tokens], list[Array]]:
        """Run the longest prompt of each group, padded on the right, then the rest of the others after its keys."""
        model, network, torch = self.model, self.model.network, self.model.network.torch
        longest = [group[0] for group in batch]
        # The last token of a prompt is always run.
        rest = [(g, tokens, common(tokens[:-1], group[0])) for g, group in enumerate(batch) for tokens in group[1:]]
        ids, mask = network.padded(longest, "right")
        output = network.forward(ids, mask, use_cache=bool(rest))
        self.tokens_run += sum(map(len, longest))
        states = [last_states(output.last_hidden_state, mask)]
        ordered: list[tuple[int, Tokens, int]] = []
        rows = most_rows(model.batch_tokens, ids.shape[1])
        for some in batches(rest, lambda one: len(one[1]) - one[2], model.batch_tokens, rows):
            states.append(self._run_rest(some, output.past_key_values, ids.shape[1]))
            ordered += some
        found = rk.label_posteriors(
            hidden=network.head.takes(torch.cat(states)),
            label_ids=network.tensor(label_ids),
            cu_labels=network.tensor(self._begins),
            **model.scoring,
        )
        return longest + [tokens for _, tokens, _ in ordered], list(np.asarray(found.logp.cpu()))

    def _run_rest(self, rest: list[tuple[int, Tokens, int]], past: Any, width: int) -> Any:
        """Return last states (R, D) of prompts, after the first `shared` keys of prompt g, which are `width` in all."""
        network, torch = self.model.network, self.model.network.torch
        owners = network.tensor([g for g, _, _ in rest])
        shared = network.tensor([shared for _, _, shared in rest])
        ids, mask = network.padded([tokens[begin:] for _, tokens, begin in rest], "right")
        seen = (torch.arange(width, device=network.device) < shared[:, None]).to(mask.dtype)
        positions = shared[:, None] + torch.arange(ids.shape[1], device=network.device)
        output = network.forward(
            ids, torch.cat([seen, mask], dim=1), positions, past_key_values=selected(past, owners), use_cache=True
        )
        self.tokens_run += int(mask.sum())
        return last_states(output.last_hidden_state, mask)


class CachedLabels(Kept):
    """A `Labeler` whose rows are kept in a SQLite file, found by model, labels and prompt.

    Prompts that are new are run 16 families at a time, and each such window is added in one transaction: a killed run
    resumes where it was, and several processes that do the same share the file and the work.

    Parameters
    ----------
    labeler : Labeler
    path : path
        Made if missing, with its folder.

    Raises
    ------
    ValueError
        The file is something else; a probability that is NaN.
    OSError
        The file cannot be opened or written.
    """

    def __init__(self, labeler: Labeler, path: PathLike) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        super().__init__(labeler, path, "posteriors", b"RSKP", "logp BLOB, tokens INTEGER")
        self.labeler, self.labels = labeler, labeler.labels

    def score(self, families: Sequence[Sequence[str]], progress: Callable[[int, int], None] | None = None) -> list[Row]:
        """Score as `Labeler.score`; `progress` gets the families done and their number, first with 0."""
        prompts = [prompt for family in families for prompt in family]
        keys = {prompt: hash_key(self.fingerprint, prompt) for prompt in texts(_OP, "prompts", prompts)}
        found = self._kept(keys.values())
        taken, new = {prompt for prompt in prompts if keys[prompt] in found}, list[list[str]]()
        for family in families:
            new.append([prompt for prompt in dict.fromkeys(family) if prompt not in taken])
            taken.update(family)
        order = sorted(filter(None, new), key=lambda family: -max(map(len, family)))
        made = 0
        for part in portions(len(order), _WINDOW, progress):
            found |= self._kept(keys[prompt] for family in order[part] for prompt in family)  # by other processes
            left = ([prompt for prompt in family if keys[prompt] not in found] for family in order[part])
            window = [family for family in left if family]
            if not window:
                continue
            asked = [prompt for family in window for prompt in family]
            rows = {keys[prompt]: row for prompt, row in zip(asked, self.labeler.score(window), strict=True)}
            for prompt in asked:
                if np.isnan(rows[keys[prompt]].logp).any():
                    raise ValueError(f"{_OP}: model must give probabilities, got NaN after {prompt[-40:]!r}")
            self._add((key, row.logp.astype("<f8").tobytes(), row.tokens) for key, row in rows.items())
            found |= rows
            made += len(rows)
        self.misses, self.hits = self.misses + made, self.hits + len(keys) - made
        return [found[keys[prompt]] for prompt in prompts]

    def _kept(self, keys: Iterable[bytes]) -> dict[bytes, Row]:
        return {key: Row(np.frombuffer(logp, "<f8"), n) for key, (logp, n) in self._find(keys).items()}
