"""Language models behind the completions endpoint of OpenAI, which vLLM, SGLang and others serve too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..language_model import NOTHING, PairError, Part, Scores, paired
from .server import Served

_OP = "OpenAICompatibleModel"


class OpenAICompatibleModel(Served):
    """A model on a server, scored by the log-probabilities of prompts that its completions endpoint echoes.

    A request holds prompt and continuation as one text, asks for its echo with log-probabilities (``echo``,
    ``logprobs``) and for one new token, which some servers cannot do without and which is left out. The tokens are the
    server's own. They are split by the rule of `encode_pairs`: a token belongs to the continuation if it ends beyond
    the end of the prompt. Where a token ends comes from ``text_offset``, or from the tokens' texts where the server's
    offsets do not fit them (BOS, bytes).

    Parameters
    ----------
    base_url : str
        URL of the API, "http://localhost:8000/v1" for instance; "/completions" is added.
    model : str
        Its name on the server.
    api_key : str, optional
        Default: the environment's ``OPENAI_API_KEY``; without one no key is sent. No redirect is followed.
    revision : str
        Part of the fingerprint: a server may have other weights under the same name, which nothing shows.
    batch_size : int
        Texts in one request.
    timeout : float
        Seconds that a request may take.
    retries : int
        How often a request is sent again after a refused connection, a time-out, or an answer that says to (429, 500 to
        504), after 1, 2, 4 ... seconds, a random part of them, or as long as the server says in ``Retry-After``.

    Notes
    -----
    Servers give texts of tokens, no numbers: `Scores.tokens` are -1. llama.cpp's server has no log-probabilities of
    prompts, and what it answers is refused. Text whose characters are split over tokens needs ``text_offset``.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        revision: str = "",
        batch_size: int = 16,
        timeout: float = 60.0,
        retries: int = 5,
    ) -> None:
        super().__init__(
            "completions", base_url, model, api_key=api_key, revision=revision, batch_size=batch_size, timeout=timeout,
            retries=retries,
        )  # fmt: skip

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> Scores:
        """Score continuations[a] after prompts[a].

        Raises
        ------
        PairError
            Nothing before the continuation.
        ValueError, TypeError
            Unequal numbers of prompts and continuations, something that is not a str; a server that refuses or
            redirects the request or gives no log-probabilities of prompts.
        OSError
            A server that cannot be reached, or is busy after all retries.
        """
        prompts, continuations = paired("score", prompts, continuations)
        parts = [NOTHING] * len(prompts)
        asked = [i for i, continuation in enumerate(continuations) if continuation]
        for begin in range(0, len(asked), self._batch_size):
            some = asked[begin : begin + self._batch_size]
            choices = self._choices([prompts[i] + continuations[i] for i in some])
            for i, choice in zip(some, choices, strict=True):
                parts[i] = _part(choice, prompts[i], continuations[i], i)
        return Scores.of(parts)

    def _choices(self, whole: list[str]) -> list[dict[str, Any]]:
        """Return the server's answers to the texts, in their order."""
        body = {"model": self.name, "prompt": whole, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        return self._items("choices", "choices", len(whole), body)


def _part(choice: dict[str, Any], prompt: str, continuation: str, pair: int) -> Part:
    """Return the tokens of the continuation in a choice, without the new token at its end."""
    found = choice.get("logprobs")
    needed = "server must give log-probabilities of the prompt (echo with logprobs)"
    if not isinstance(found, dict):
        raise ValueError(f"{_OP}: {needed}, got none")
    tokens, logp, top = (found.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not isinstance(tokens, list) or not isinstance(logp, list) or len(tokens) != len(logp):
        raise ValueError(f"{_OP}: {needed}, got {str(found)[:200]}")
    spans = _spans(tokens, found.get("text_offset"), prompt + continuation)
    if spans is None:
        raise ValueError(f"{_OP}: {needed}, got tokens of other texts, {''.join(map(str, tokens))[:80]!r}")
    length = len(prompt)
    # The first bytes of the continuation's first character end where they begin.
    chosen = [i for i, (start, end) in enumerate(spans) if end > length or (i and start >= length)]
    if any(logp[i] is None for i in chosen):
        rule = "prompts must have a token before the continuation, or the server put one there, got"
        raise PairError("score", f"{rule} {prompt!r} before {continuation[:20]!r}", pair)
    if not isinstance(top, list) or any(not top[i] for i in chosen):
        raise ValueError(f"{_OP}: server must give the most probable tokens (top_logprobs), got none")
    values = np.array([logp[i] for i in chosen], np.float32)
    best = np.array([max(top[i].values()) for i in chosen], np.float32)
    return Part(np.full(len(chosen), -1, np.int64), values, bool((values >= best).all()))


def _spans(tokens: list[str], offsets: Any, text: str) -> list[tuple[int, int]] | None:
    """Return where the tokens of the text begin and end, or None where they are not the text's.

    By the offsets, if they begin with 0, never fall, and reach the end of the text; else by the lengths of the tokens,
    if they make up the text, after a first token that is not in it (BOS).
    """
    ends = np.cumsum([len(token) for token in tokens]).tolist()
    for shift in (0, len(tokens[0]) if tokens else 0):
        joined = "".join(tokens)[shift:]
        if joined.startswith(text):
            starts = [0, *ends[:-1]]
            spans = [(start - shift, end - shift) for start, end in zip(starts, ends, strict=True)]
            return [span for span in spans if span[0] < len(text)]
    if isinstance(offsets, list) and len(offsets) == len(tokens) and offsets and offsets[0] == 0:
        rising = all(a <= b for a, b in pairwise(offsets))
        inside = [start for start in offsets if start < len(text)]
        if rising and len(inside) < len(offsets) and offsets[len(inside)] == len(text):
            return list(zip(inside, [*inside[1:], len(text)], strict=True))
    return None
