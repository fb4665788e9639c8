"""Scores kept in a SQLite file, found again by model, prompt and continuation, as texts or as tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from .._base.types import PathLike
from .language_model import LanguageModel, PairError, Part, Scores, paired
from .storage.database import Kept, hash_key
from .tokenization import token_pairs


class CachedModel(Kept):
    """A language model whose scores are kept in a file.

    Each call of `score` or `score_tokens` adds what it computed in one transaction: after a kill the file holds whole
    calls, and several processes may share it. Keys are hashes of the model's fingerprint and the pair, prompt and
    continuation or the tokens of both, so that one file serves any number of models, and a model is known again under
    another path.

    Parameters
    ----------
    model : LanguageModel
    path : path
        Made if missing; the folder must exist.

    Raises
    ------
    ValueError
        The file is something else.
    OSError
        The file cannot be opened or written.
    """

    def __init__(self, model: LanguageModel, path: PathLike) -> None:
        super().__init__(model, path, "scores", b"RSKC", "tokens BLOB, logp BLOB, greedy INTEGER")
        self.model = model

    @property
    def tokenizer(self) -> Any:
        """That of the model, if it has one."""
        return getattr(self.model, "tokenizer", None)

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> Scores:
        """Score as the model does; see `LanguageModel.score`."""
        prompts, continuations = paired("score", prompts, continuations)
        keys = [hash_key(self.fingerprint, *pair) for pair in zip(prompts, continuations, strict=True)]
        return self._score(keys, lambda some: self.model.score(*_taken(some, prompts, continuations)))

    def score_tokens(self, contexts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Scores:
        """Score as the model does, which has to be a `TokenModel`."""
        op, model = "score_tokens", self.model
        if not hasattr(model, "score_tokens"):
            raise TypeError(f"{op}: model must be one that scores tokens, got {type(model).__name__}")
        pairs = token_pairs(op, contexts, answers)
        # Four texts: no key of a prompt and a continuation is the same.
        keys = [hash_key(self.fingerprint, "tokens", *(" ".join(map(str, ids)) for ids in pair)) for pair in pairs]
        return self._score(keys, lambda some: model.score_tokens(*_taken(some, contexts, answers)))

    def _score(self, keys: list[bytes], ask: Callable[[list[int]], Scores]) -> Scores:
        """Return the scores of all keys; `ask` scores the pairs at the positions that it is given."""
        found = {key: _part(*row) for key, row in self._find(keys).items()}
        hits = sum(key in found for key in keys)
        self.hits, self.misses = self.hits + hits, self.misses + len(keys) - hits
        missing = {key: i for i, key in reversed([*enumerate(keys)]) if key not in found}  # each at its first place
        if missing:
            places = sorted(missing.values())
            try:
                new = ask(places)
            except PairError as error:
                raise PairError(error.op, error.rule, places[error.pair]) from error
            parts = {keys[i]: part for i, part in zip(places, new.parts(), strict=True)}
            self._add((key, *_stored(part)) for key, part in parts.items())
            found |= parts
        return Scores.of(found[key] for key in keys)


def _taken(positions: list[int], *columns: Sequence[Any]) -> list[list[Any]]:
    return [[column[i] for i in positions] for column in columns]


def _stored(part: Part) -> tuple[bytes, bytes, int]:
    return part.tokens.astype("<i8").tobytes(), part.logp.astype("<f4").tobytes(), int(part.greedy)


def _part(tokens: bytes, logp: bytes, greedy: int) -> Part:
    return Part(np.frombuffer(tokens, "<i8"), np.frombuffer(logp, "<f4"), bool(greedy))


@contextmanager
def cached(model: LanguageModel, path: PathLike | None) -> Iterator[LanguageModel]:
    """Yield the model itself, or with a cache for the time of the block."""
    if path is None:
        yield model
    else:
        with closing(CachedModel(model, path)) as scorer:
            yield scorer
