"""lm-evaluation-harness: a model whose log-likelihoods are computed from hidden states, without logits.

Importing this module registers the model ``ragsys-hf``, and ``python -m ragsys_kernels.integrations.lm_eval`` is the
harness's command line with it. Needs lm-evaluation-harness (extra ``lm-eval``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..icl import packaged
from ..icl.huggingface import HuggingFaceModel
from ..icl.language_model import Part
from . import _peers

with _peers.needed("lm-eval"):
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM, eval_logger
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm

# What changes how the harness makes log-probabilities out of logits; there are no logits here.
_OF_LOGITS = ("softmax_dtype", "mixed_precision_dtype")


@register_model("ragsys-hf")
class RagsysHF(HFLM):
    """The harness's ``hf`` model with log-likelihoods from hidden states (`ragsys_kernels.answer_logprobs`).

    It reads a context with several continuations once, as multiple choice has them, and makes no logits: memory does
    not grow with the vocabulary. Log-likelihoods do not depend on ``batch_size``, to the last bit: `batch_tokens`
    bounds a pass, and which requests share one is decided for all requests of a call together. They agree with those
    of ``hf`` to rounding, 1e-4 in float32.

    Parameters
    ----------
    pretrained : str or transformers.PreTrainedModel
        As for ``hf``: a causal model. "smollm2" and "gemma3" are the models that packages carry (`icl.packaged`).
    batch_tokens : int, optional
        Most tokens in a forward pass, padding included. Default: 512 on the CPU, where larger passes save nothing; on
        a device as many as the longest text may have.
    backend_scoring : str
        Option ``backend`` of `ragsys_kernels.answer_logprobs`.
    **options
        Of ``hf``. ``batch_size`` is that of generated answers.

    Raises
    ------
    ValueError
        A model that is not causal, or whose output layer is not ``softcap(scale * (hidden @ weight.T + bias))``;
        ``softmax_dtype`` or ``mixed_precision_dtype``, which are about logits.
    """

    def __init__(
        self,
        pretrained: Any,
        *args: Any,
        batch_tokens: int | None = None,
        backend_scoring: str = "auto",
        **options: Any,
    ) -> None:
        for name in _OF_LOGITS:
            if options.get(name) is not None:
                raise ValueError(f"ragsys-hf: {name} must be left out: no logits are made, got {options[name]!r}")
        if isinstance(pretrained, str) and pretrained in packaged.LANGUAGE_MODELS:
            dtype: Any = options.pop("dtype", None) or "auto"
            carried = HuggingFaceModel.from_pretrained(pretrained, dtype="float32" if dtype == "auto" else dtype)
            pretrained = carried.model
            options.setdefault("tokenizer", carried.tokenizer)
        super().__init__(pretrained, *args, **options)
        if self.backend != "causal":
            raise ValueError(f"ragsys-hf: pretrained must be a causal language model, got backend {self.backend!r}")
        if batch_tokens is None:
            batch_tokens = 512 if self.model.device.type == "cpu" else self.max_length
        self._scorer = HuggingFaceModel(
            self.model, self.tokenizer, batch_tokens=int(batch_tokens), backend=backend_scoring
        )

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, override_bs: Any = None
    ) -> list[tuple[float, bool]]:
        """Return (log-likelihood, is greedy) of each request: what it is called, tokens of context and continuation."""

        def keep(i: int, result: tuple[float, bool]) -> None:
            if requests[i][0] is not None:
                self.cache_hook.add_partial("loglikelihood", requests[i][0], result)

        return self._scored([pair for _, *pair in requests], disable_tqdm, keep)

    def _scored(
        self, pairs: list[Any], disable_tqdm: bool, keep: Callable[[int, tuple[float, bool]], None]
    ) -> list[tuple[float, bool]]:
        """Score pairs of tokens; `keep` gets the position and the result of each as soon as it is known.

        As in ``hf``, what is too long for the model loses tokens on the left.
        """
        contexts, answers, most = [], [], self.max_length + 1
        for context, answer in pairs:
            excess = len(context) + len(answer) - most
            if excess > 0:
                eval_logger.warning(
                    f"A request of {most + excess} tokens loses its first {excess}: the model takes {most}"
                )
            if len(answer) >= most:
                raise ValueError(
                    f"ragsys-hf: a continuation must have at most {self.max_length} tokens, got {len(answer)}"
                )
            contexts.append(context[max(excess, 0) :])
            answers.append(answer)
        hidden = disable_tqdm or self.rank != 0
        with tqdm(total=len(pairs), disable=hidden, desc="Running loglikelihood requests") as bar:

            def known(places: list[int], part: Part) -> None:
                for i in places:
                    keep(i, (float(part.logp.sum(dtype=np.float64)), part.greedy))
                bar.update(len(places))

            scores = self._scorer.score_tokens(contexts, answers, progress=known)
        return list(zip(map(float, scores.sum), map(bool, scores.greedy), strict=True))

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text: the sum over its windows, all of which are scored in one call."""
        texts = [request.args[0] for request in requests]
        windows = [[make_disjoint_window(window) for window in self._windows(self.tok_encode(text))] for text in texts]
        owners = [(t, w) for t, some in enumerate(windows) for w in range(len(some))]
        values, left = [[0.0] * len(some) for some in windows], [len(some) for some in windows]

        def keep(i: int, result: tuple[float, bool]) -> None:
            t, w = owners[i]
            values[t][w], left[t] = result[0], left[t] - 1
            if not left[t]:
                self.cache_hook.add_partial("loglikelihood_rolling", (texts[t],), sum(values[t]))

        self._scored([window for some in windows for window in some], disable_tqdm, keep)
        return [sum(some) for some in values]

    def _windows(self, tokens: list[int]) -> Any:
        return get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    sys.exit(cli_evaluate())
