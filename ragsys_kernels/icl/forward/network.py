"""The passes of a language model of transformers: rows of tokens in, hidden states out, keys and values kept."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .loading import required
from .widened import widened

_CACHE_FACTOR = 8  # keys and values are held for so many times the tokens of a pass
_SHORT, _LONG = 2, 9  # tokens of the texts that a model is tried with: padding moves places by the difference


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

    def takes(self, hidden: Any) -> Any:
        """Return hidden states in the type of the weight: Mamba's are float32 whatever its weights are."""
        return hidden.to(self.weight.dtype)


class State(NamedTuple):
    """What the model keeps of R texts that it has read, padded on the left."""

    cache: Any  # their keys and values
    mask: Any  # (R, L) tensor, 1 for a token
    last: Any  # (R, D) tensor, hidden states that predict the next token


class _NotCausalError(ValueError):
    """The trial says no: to run it again with more rounding would not make it right."""


class Network:
    """A causal language model of transformers, run without its output layer.

    Architectures differ in what they take for the place of a token: some count positions, some the keys before it,
    padding included. So a few tokens are run at the start, padded and after keys and values that were kept, and what
    gives other hidden states than a plain run is not done with this model. Rounding is kept out of it (`widened`).

    Parameters
    ----------
    model : transformers.PreTrainedModel or peft.PeftModel
    keep : bool
        Whether keys and values are kept where the model allows it.

    Attributes
    ----------
    model : transformers.PreTrainedModel
        The given one; of a model with adapters, the one that they are in.
    limit : int or None
        Most tokens of a text.
    window : int or None
        Keys that a token sees in layers where it does not see all; padding among them takes the place of tokens.
    head : Head
    pads : frozenset of {"left", "right"}
        On which sides padding changes nothing; where it does, the rows of a pass must be of one length.
    keeps : bool
        Whether keys and values are kept, and can be repeated.
    uneven : bool
        Whether padding, or keys and values that are repeated, change hidden states.
    device : torch.device
        Of the model: the tensors of all passes are there.

    Raises
    ------
    ValueError
        The output layer computes something else than `Head` says; a token changes with those after it.
    """

    def __init__(self, model: Any, keep: bool) -> None:
        self.torch = required("torch")
        self.model = getattr(model, "get_base_model", lambda: model)()
        base = self.model.base_model
        self._base = self.model.model if base is self.model else base  # Llama 4 names no part of it as its base
        self.device = model.device
        self._takes_positions = "position_ids" in inspect.signature(_plain(self._base).forward).parameters
        self.limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.window = _window(model.config.get_text_config())
        self.head = self._probe(model)
        with self.torch.inference_mode():
            self.pads, repeats = self._tried()
        stateful = bool(getattr(self.model, "_is_stateful", False))
        self.keeps = keep and repeats and not stateful
        self.uneven = len(self.pads) < 2 or not (repeats or stateful)

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
        positions, options = _positions(mask), {}
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
        if weight.is_meta:
            raise ValueError(
                f"HuggingFaceModel: model must have its output layer on a device, got {type(model).__name__} with that "
                "layer offloaded; give it one in device_map"
            )
        bias = getattr(layer, "bias", None)
        factor, scaling = 1.0, getattr(config, "logits_scaling", None) or 1.0
        # Cohere; Falcon-H1; Inkling
        for name, power in (("logit_scale", 1), ("lm_head_multiplier", 1), ("logits_mup_width_multiplier", -1)):
            factor *= (getattr(config, name, None) or 1.0) ** power
        caps = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
        softcap = next((cap for name in caps if (cap := getattr(config, name, None))), None)
        # Gemma 2 and later; RecurrentGemma; xLSTM
        weight, bias = weight.detach(), None if bias is None else bias.detach().float()
        with torch.inference_mode():
            ids = torch.arange(4, device=self.device)[None] % len(weight)
            expected = model(input_ids=ids, use_cache=False).logits.float()
            if not expected.isfinite().all():
                advice = "; load it in another dtype" if weight.element_size() < 4 else ""
                raise ValueError(
                    f"HuggingFaceModel: model must have finite logits, got NaN or inf from {type(model).__name__} in "
                    f"{weight.dtype}{advice}"
                )
            hidden = self.forward(ids, torch.ones_like(ids), use_cache=False).last_hidden_state
            tolerance = (1e-4 if weight.dtype is torch.float32 else 3e-2) * float(expected.abs().max())
            for scale in (factor / scaling, factor * scaling):  # Granite divides by it, HyperCLOVA X multiplies
                head = Head(weight, bias, scale, softcap)
                logits = scale * torch.nn.functional.linear(head.takes(hidden), weight).float()
                if bias is not None:
                    logits += scale * bias
                if softcap:
                    logits = softcap * torch.tanh(logits / softcap)
                if logits.shape == expected.shape and float((logits - expected).abs().max()) <= tolerance:
                    return head
        raise ValueError(
            "HuggingFaceModel: model must compute its logits as softcap(scale * (hidden @ weight.T + bias)), "
            f"got others from {type(model).__name__}"
        )

    def _tried(self) -> tuple[frozenset[str], bool]:
        """Return `_trial` in float32, or in the model's own type if it cannot run in that."""
        own = self._base
        try:
            with widened(_plain(own)) as self._base:
                return self._trial()
        except _NotCausalError:
            raise
        except Exception:  # of memory, or whatever a model raises whose weights and values are of two types
            self._base = own
            return self._trial()
        finally:
            self._base = own

    def _trial(self) -> tuple[frozenset[str], bool]:
        """Return `pads`, and whether texts after repeated keys and values have the hidden states of whole runs."""
        tokens = (np.arange(6 * _LONG).reshape(3, -1) + 2) % len(self.head.weight)
        tokens[2, :_LONG] = tokens[1, :_LONG]
        ids, rows = self.tensor(tokens), tokens.tolist()
        whole = self.forward(ids, self.torch.ones_like(ids), use_cache=False).last_hidden_state
        if not _alike(whole[1, :_LONG], whole[2, :_LONG]):
            raise _NotCausalError(
                f"HuggingFaceModel: model must be causal, got {type(self.model).__name__}, whose hidden states change "
                "with later tokens"
            )

        def same(ends: Sequence[int], run: Callable[[Sequence[int]], Any]) -> bool:
            """Whether a run gives the hidden state of the last of the first ends[r] tokens of each row r."""
            try:
                found = run(ends)
            except (MemoryError, self.torch.cuda.OutOfMemoryError):
                raise
            except Exception:  # whatever a model raises at what it was not made for
                return False
            return _alike(found, self.torch.stack([whole[r, end - 1] for r, end in enumerate(ends)]))

        def padded(side: str, ends: Sequence[int]) -> Any:
            ids, mask = self.padded([rows[r][:end] for r, end in enumerate(ends)], side)
            hidden = self.forward(ids, mask, _positions(mask), use_cache=False).last_hidden_state
            return hidden[:, -1] if side == "left" else last_states(hidden, mask)

        begins, owners = (_SHORT, _LONG), (0, 1, 1)

        def continued(ends: Sequence[int]) -> Any:
            state = self.read([rows[r][:begin] for r, begin in enumerate(begins)])
            return self.read([rows[r][begins[owners[r]] : end] for r, end in enumerate(ends)], state, owners).last

        # Texts of one length after beginnings of two have padding on both sides of the beginning. A window that does
        # not hold all of it wants what comes after the beginning to be of one length.
        narrow = self.window is not None and self.window < 3 * _LONG
        ends = (_SHORT + _LONG if narrow else 2 * _LONG, 2 * _LONG, 2 * _LONG)
        pads = frozenset(side for side in ("left", "right") if same(begins, partial(padded, side)))
        return pads, len(pads) == 2 and same(ends, continued)


def most_rows(batch_tokens: int, width: int) -> int:
    """Return the most rows in one pass of so many tokens for which keys and values of `width` tokens are repeated."""
    return max(1, _CACHE_FACTOR * batch_tokens // width)


def last_states(hidden: Any, mask: Any) -> Any:
    """Return the hidden states (R, D) of the last tokens of rows that are padded on the right."""
    ends = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, hidden.shape[2])
    return hidden.gather(1, ends)[:, 0]


def selected(cache: Any, rows: Any) -> Any:
    """Return a cache of these rows; the given one stays as it is: its layers get other tensors, not other values."""
    chosen = copy.copy(cache)
    chosen.layers = [copy.copy(layer) for layer in cache.layers]
    chosen.batch_select_indices(rows)
    return chosen


def _alike(found: Any, wanted: Any) -> bool:
    """Whether hidden states are the same, but for rounding."""
    tolerance = 3e-2 if wanted.element_size() < 4 else 1e-3
    return bool((found - wanted).float().norm() <= tolerance * wanted.float().norm())


def _positions(mask: Any) -> Any:
    """Return the positions of tokens in texts that are padded on the left."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def _plain(module: Any) -> Any:
    """Return what torch.compile has been given, else the module."""
    return getattr(module, "_orig_mod", module)


def _window(config: Any) -> int | None:
    """Return how many keys a token sees where a layer does not see all, else None."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)  # the latter of GPT-Neo
    if kinds and all(kind in ("full_attention", "global") for kind in kinds):
        return None
    names = ("sliding_window", "sliding_window_size", "attention_chunk_size", "attention_window_size")
    named = (getattr(config, name, None) for name in (*names, *(("window_size",) if kinds else ())))
    return min((size for size in named if size), default=1 if kinds else None)
