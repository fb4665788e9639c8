"""The passes of a language model of transformers: rows of tokens in, hidden states out, keys and values kept."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ._loading import required

_CACHE_FACTOR = 8  # keys and values are held for so many times the tokens of a pass


class Head(NamedTuple):
    """The output layer: logits = softcap(scale * (hidden @ weight.T + bias))."""

    weight: Any  # (V, D) tensor
    bias: Any  # (V,) float32 tensor or None
    scale: float
    softcap: float | None

    @property
    def options(self) -> dict[str, Any]:
        """Options of the scoring ops, which take the place of this layer."""
        return {"weight": self.weight, "bias": self.bias, "logit_scale": self.scale, "softcap": self.softcap}


class State(NamedTuple):
    """What the model keeps of R texts that it has read, padded on the left."""

    cache: Any  # their keys and values
    mask: Any  # (R, L) tensor, 1 for a token
    last: Any  # (R, D) tensor, hidden states that predict the next token


class Network:
    """A causal language model of transformers, run without its output layer.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    keep : bool
        Whether keys and values are kept where the model allows it.

    Attributes
    ----------
    limit : int or None
        Most tokens of a text.
    window : int or None
        Keys that a token sees in layers where it does not see all; padding among them takes the place of tokens.
    head : Head
    keeps : bool
        Whether keys and values are kept, and can be repeated.
    device : torch.device
        Of the model: the tensors of all passes are there.

    Raises
    ------
    ValueError
        The output layer computes something else than `Head` says.
    """

    def __init__(self, model: Any, keep: bool) -> None:
        self.torch = required("torch")
        self._base = model.base_model
        self.device = model.device
        self._takes_positions = "position_ids" in inspect.signature(self._base.forward).parameters
        self.limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.window = _window(model.config.get_text_config())
        self.keeps = keep and not getattr(model, "_is_stateful", False)
        self.head = self._probe(model)

    def forward(self, ids: Any, mask: Any, positions: Any = None, **options: Any) -> Any:
        """Run rows of tokens; `positions` is for those that follow keys and values."""
        if self._takes_positions and positions is not None:
            options["position_ids"] = positions
        return self._base(input_ids=ids, attention_mask=mask, **options)

    def read(self, rows: Sequence[Sequence[int]], state: State | None = None, owners: Sequence[int] = ()) -> State:
        """Read texts, each after row owners[r] of a state if one is given.

        Padding of `rows` stands between a state and what follows it, so that a layer with a `window` that is shorter
        than all of it sees less than it should: there `rows` must be of one length.
        """
        ids, mask = self.padded(rows, "left")
        positions, options = (mask.cumsum(1) - 1).clamp(min=0), {}
        if state is not None:
            before = state.mask[self.tensor(owners)]
            positions = positions + before.sum(1, keepdim=True)
            mask = self.torch.cat([before, mask], dim=1)
            options["past_key_values"] = selected(state.cache, self.tensor(owners))
        output = self.forward(ids, mask, positions, use_cache=True, **options)
        return State(output.past_key_values, mask, output.last_hidden_state[:, -1])

    def padded(self, rows: Sequence[Sequence[int]], side: str) -> tuple[Any, Any]:
        """Return token ids and mask, (R, longest); padding is token 0, which the mask takes out."""
        longest = max(map(len, rows))
        ids, mask = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), longest), np.int64)
        for r, row in enumerate(rows):
            where = slice(0, len(row)) if side == "right" else slice(longest - len(row), longest)
            ids[r, where], mask[r, where] = row, 1
        return self.tensor(ids), self.tensor(mask)

    def tensor(self, values: Any) -> Any:
        """Return integers as a tensor on the model's device."""
        return self.torch.from_numpy(np.asarray(values, np.int64)).to(self.device)

    def _probe(self, model: Any) -> Head:
        """Read the output layer, and compare it with the model's own logits in a run of a few tokens."""
        torch, config = self.torch, model.config.get_text_config()
        layer = model.get_output_embeddings()
        weight = getattr(layer, "weight", None)
        if weight is None or weight.ndim != 2:
            raise ValueError(f"HuggingFaceModel: model must have a linear output layer, got {type(model).__name__}")
        bias = getattr(layer, "bias", None)
        scale = 1.0
        for name, power in (
            ("logit_scale", 1),
            ("lm_head_multiplier", 1),
            ("logits_scaling", -1),
        ):  # Cohere; Falcon-H1; Granite
            scale *= (getattr(config, name, None) or 1.0) ** power
        softcap = getattr(config, "final_logit_softcapping", None)  # Gemma 2 and later
        head = Head(weight.detach(), None if bias is None else bias.detach().float(), float(scale), softcap)
        with torch.inference_mode():
            ids = torch.arange(4, device=self.device)[None] % len(weight)
            expected = model(input_ids=ids, use_cache=False).logits.float()
            output = self.forward(ids, torch.ones_like(ids), use_cache=self.keeps)
            hidden = output.last_hidden_state
            cache = getattr(output, "past_key_values", None)
            self.keeps &= hasattr(cache, "layers") and hasattr(cache, "batch_select_indices")
            logits = head.scale * torch.nn.functional.linear(hidden, head.weight).float()
            if head.bias is not None:
                logits += head.scale * head.bias
            if softcap:
                logits = softcap * torch.tanh(logits / softcap)
        tolerance = (1e-4 if weight.dtype is torch.float32 else 3e-2) * float(expected.abs().max())
        if logits.shape != expected.shape or not float((logits - expected).abs().max()) <= tolerance:
            raise ValueError(
                "HuggingFaceModel: model must compute its logits as softcap(scale * (hidden @ weight.T + bias)), "
                f"got others from {type(model).__name__}"
            )
        return head


def most_rows(batch_tokens: int, width: int) -> int:
    """Return the most rows in one pass of so many tokens for which keys and values of `width` tokens are repeated."""
    return max(1, _CACHE_FACTOR * batch_tokens // width)


def selected(cache: Any, rows: Any) -> Any:
    """Return a cache of these rows; the given one stays as it is: its layers get other tensors, not other values."""
    chosen = copy.copy(cache)
    chosen.layers = [copy.copy(layer) for layer in cache.layers]
    chosen.batch_select_indices(rows)
    return chosen


def _window(config: Any) -> int | None:
    """Return how many keys a token sees where a layer does not see all, else None."""
    kinds = getattr(config, "layer_types", None)
    if kinds and all(kind == "full_attention" for kind in kinds):
        return None
    named = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min((size for size in named if size), default=1 if kinds else None)
