"""The protocol of a language model, and the form of its answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .._base.types import NDArray as Array


class Part(NamedTuple):
    """One scored continuation."""

    tokens: Array  # (n,) int64
    logp: Array  # (n,) float32
    greedy: bool


NOTHING = Part(np.zeros(0, np.int64), np.zeros(0, np.float32), True)  # of an empty continuation


class Scores(NamedTuple):
    """Log-probabilities (nats) of A continuations with M tokens in all; ``cu_answers`` says whose they are."""

    tokens: Array  # (M,) int64, token ids of the continuations, end to end
    logp: Array  # (M,) float32, log-probability of each token given all before it
    cu_answers: Array  # (A + 1,) int64; tokens cu_answers[a] to cu_answers[a + 1] are of continuation a
    sum: Array  # (A,) float64; 0 for an empty continuation
    mean: Array  # (A,) float64; NaN for an empty continuation
    count: Array  # type: ignore[assignment]  # (A,) int64, number of tokens; not tuple.count
    greedy: Array  # (A,) bool; every token is the most probable one; True for an empty continuation

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Scores:
        parts = list(parts)
        count = np.array([len(part.logp) for part in parts], np.int64)
        sums = np.array([part.logp.sum(dtype=np.float64) for part in parts], np.float64)
        with np.errstate(invalid="ignore"):
            mean = sums / count
        return cls(
            tokens=np.concatenate([np.zeros(0, np.int64), *(part.tokens for part in parts)]),
            logp=np.concatenate([np.zeros(0, np.float32), *(part.logp for part in parts)]),
            cu_answers=np.concatenate((np.zeros(1, np.int64), np.cumsum(count))),
            sum=sums,
            mean=mean,
            count=count,
            greedy=np.array([part.greedy for part in parts], np.bool_),
        )

    def parts(self) -> list[Part]:
        """Continuations one by one."""
        ends = self.cu_answers[1:-1]
        pieces = zip(np.split(self.tokens, ends), np.split(self.logp, ends), self.greedy, strict=False)
        return [Part(tokens, logp, bool(greedy)) for tokens, logp, greedy in pieces]


class TopTokens(NamedTuple):
    """The k most probable tokens at every place of A continuations with M tokens in all: a set to distil a model with.

    Row ``cu_answers[a] + i`` is what the model says before token i of continuation a, given all before it.
    """

    tokens: Array  # (M,) int64, token ids of the continuations, end to end
    ids: Array  # (M, k) int64, from the most probable on; of equal logits the lower id first
    log_probs: Array  # (M, k) float32, nats, among the whole vocabulary
    cu_answers: Array  # (A + 1,) int64; tokens cu_answers[a] to cu_answers[a + 1] are of continuation a


class LanguageModel(Protocol):
    """A model that gives the log-probability of a continuation, token by token."""

    @property
    def fingerprint(self) -> str:
        """Text that changes with anything that changes a score: weights, configuration, tokenizer."""

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> Scores:
        """Score continuations[a] after prompts[a], for every a; equal prompts may share their work."""


class TokenModel(LanguageModel, Protocol):
    """A language model that also takes texts as the tokens they are made of."""

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of transformers, with character positions."""

    def score_tokens(self, contexts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Scores:
        """Score the tokens answers[a] after the tokens contexts[a], for every a."""


class PairError(ValueError):
    """A (prompt, continuation) pair that the model cannot score; ``pair`` is its position."""

    def __init__(self, op: str, rule: str, pair: int) -> None:
        super().__init__(f"{op}: {rule} in pair {pair}")
        self.op, self.rule, self.pair = op, rule, pair


def texts(op: str, name: str, values: Sequence[str]) -> list[str]:
    """Return `values` as a list of str; a single str is no list of texts."""
    if isinstance(values, str):
        raise TypeError(f"{op}: {name} must be a sequence of str, got a str")
    values = list(values)
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise TypeError(f"{op}: {name} must be str, got {type(value).__name__} at {i}")
    return values


def paired(op: str, prompts: Sequence[str], continuations: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return both as lists of str, which must be as many."""
    prompts, continuations = texts(op, "prompts", prompts), texts(op, "continuations", continuations)
    if len(prompts) != len(continuations):
        raise ValueError(f"{op}: continuations must be as many as prompts, {len(prompts)}, got {len(continuations)}")
    return prompts, continuations


def some_texts(op: str, name: str, values: Sequence[str]) -> list[str]:
    """Return what `texts` does; there must be at least one."""
    values = texts(op, name, values)
    if not values:
        raise ValueError(f"{op}: {name} must be at least one, got none")
    return values
