"""TRL's functions of logits, on the scoring kernels: forward only, in one pass, without a copy of the logits.

Names, arguments, shapes and dtypes are those of ``trl.trainer.utils`` (1.16). They serve reference log-probabilities,
rewards, filters and evaluations, where TRL calls them under ``torch.no_grad()``; a loss that needs a gradient is told
so. TRL itself is not needed. Sums are kept in float32 and float64 for 16-bit logits too, then rounded once, and a
masked entry (-inf) adds nothing to an entropy, where TRL's formula gives NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base import checks
from ..scoring import answer_logprobs, token_logprobs
from ..scoring.validate import positive
from . import _peers

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["entropy_from_logits", "selective_log_softmax", "selective_log_softmax_and_entropy"]

_SKIPPED = int(np.iinfo(np.int64).min)  # the target of a masked row; no index can be it


def selective_log_softmax(
    logits: Tensor, index: Tensor, temperature: float = 1.0, row_mask: Tensor | None = None
) -> Tensor:
    """Return ``log_softmax(logits / temperature)`` at the given indices.

    Parameters
    ----------
    logits : (..., V) float32 | float16 | bfloat16 tensor
    index : (...) or (..., K) integer tensor
        One index a row, or K.
    temperature : float
    row_mask : of the shape of ``index``, optional
        What is 0 there is not computed and gives 0.

    Returns
    -------
    tensor of the shape of ``index`` and the dtype of ``logits``
        Natural-log probabilities (nats).

    Raises
    ------
    RuntimeError
        A gradient is asked for: ``logits`` requires one, and gradients are recorded.
    ValueError, TypeError
        Shapes that do not fit, an index outside of the vocabulary (on a device: NaN), another dtype.
    """
    op = "selective_log_softmax"
    _check(op, logits, temperature)
    return _scored(op, logits, index, temperature, row_mask, False)[0]


def entropy_from_logits(logits: Tensor, chunk_size: int = 128) -> Tensor:
    """Return the Shannon entropy (nats) of ``softmax(logits)``, row by row.

    Parameters
    ----------
    logits : (..., V) float32 | float16 | bfloat16 tensor
    chunk_size : int
        At least 1. It changes nothing: no copy of the logits is made, in chunks or at once.

    Returns
    -------
    (...) tensor of the dtype of ``logits``

    Raises
    ------
    RuntimeError, ValueError, TypeError
        As for `selective_log_softmax`.
    """
    op = "entropy_from_logits"
    checks.count(op, "chunk_size", chunk_size)
    _check(op, logits, 1.0)
    index = logits.new_zeros(logits.shape[:-1], dtype=_torch().int64)
    return _scored(op, logits, index, 1.0, None, True)[1]


def selective_log_softmax_and_entropy(
    logits: Tensor,
    index: Tensor,
    entropy_requires_grad: bool = True,
    temperature: float = 1.0,
    row_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return both of the above in one pass; ``index`` and ``row_mask`` have the shape (...).

    ``entropy_requires_grad`` changes nothing: nothing here has a gradient. ``temperature`` holds for both.
    """
    op = "selective_log_softmax_and_entropy"
    _check(op, logits, temperature)
    if tuple(index.shape) != tuple(logits.shape[:-1]):
        raise ValueError(f"{op}: index must have shape {tuple(logits.shape[:-1])}, got {tuple(index.shape)}")
    return _scored(op, logits, index, temperature, row_mask, True)


def _scored(op: str, logits: Any, index: Any, temperature: float, row_mask: Any, entropy: bool) -> tuple[Any, Any]:
    """Return log-probabilities of the shape of ``index``, and entropies if asked for."""
    torch, shape = _torch(), tuple(logits.shape[:-1])
    if tuple(index.shape) != shape and tuple(index.shape[:-1]) != shape:
        raise ValueError(f"{op}: index must have shape {shape} or {(*shape, 'K')}, got {tuple(index.shape)}")
    if row_mask is not None and row_mask.shape != index.shape:
        raise ValueError(f"{op}: row_mask must have the shape of index, got {tuple(row_mask.shape)}")
    for name, tensor in (("index", index), ("row_mask", row_mask)):
        if tensor is not None and tensor.device != logits.device:
            raise ValueError(f"{op}: {name} must be on the device of logits, {logits.device}, got {tensor.device}")
    if index.is_floating_point() or index.is_complex() or index.dtype is torch.bool:
        raise TypeError(f"{op}: index must be integers, got {index.dtype}")
    wide = index.to(torch.int64)
    if wide.device.type == "cpu":  # a device is not waited for: NaN there
        outside = (wide < 0) | (wide >= logits.shape[-1])
        if row_mask is not None:
            outside &= row_mask != 0
        if outside.any():
            raise ValueError(f"{op}: index must be within [0, {logits.shape[-1]}), got {int(index[outside][0])}")
    targets = wide.clamp(min=-1)  # so that none is the mark
    if row_mask is not None:
        targets = targets.masked_fill(row_mask == 0, _SKIPPED)
    logp = torch.empty(index.shape, dtype=logits.dtype, device=logits.device)
    entropies = torch.empty(shape, dtype=logits.dtype, device=logits.device) if entropy else None
    options: dict[str, Any] = {"temperature": float(temperature), "ignore_index": _SKIPPED}
    with torch.no_grad():
        for place, rows in _matrices(logits):
            here = targets[place].reshape(-1)
            if not len(here):
                continue
            if not entropy and len(here) == len(rows):
                logp[place] = token_logprobs(rows, here, **options).reshape(logp[place].shape)
                continue
            row = torch.arange(len(rows), device=rows.device).repeat_interleave(len(here) // len(rows))
            want = ("logp", "entropy") if entropy else ("logp",)
            found = answer_logprobs(rows, targets=here, rows=row, want=want, reduce=(), **options)
            logp[place] = found.logp.reshape(logp[place].shape).to(logits.dtype)
            if entropies is not None:
                entropies[place] = found.entropy.reshape(entropies[place].shape).to(logits.dtype)
    if entropies is not None and row_mask is not None:
        entropies.masked_fill_(row_mask == 0, 0)
    return logp, entropies


def _matrices(logits: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (place, rows) of matrices that make up the logits, without copies: ``logits[:, :-1]`` is no matrix."""
    try:
        yield ..., logits.view(-1, logits.shape[-1])
    except RuntimeError:  # not to be seen as one matrix
        for i, part in enumerate(logits):
            for place, rows in _matrices(part):
                yield (i if place is ... else (i, *(place if isinstance(place, tuple) else (place,)))), rows


def _check(op: str, logits: Any, temperature: Any) -> None:
    torch = _torch()
    if not isinstance(logits, torch.Tensor):
        raise TypeError(f"{op}: logits must be a torch tensor, got {type(logits).__name__}")
    if logits.ndim < 1 or not logits.shape[-1]:
        raise ValueError(f"{op}: logits must have shape (..., V), got {tuple(logits.shape)}")
    if logits.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{op}: logits must not require a gradient, got requires_grad=True: these kernels are forward only; call "
            "under torch.no_grad(), or take trl.trainer.utils' own function for a loss"
        )
    if logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(
            f"{op}: logits must be float32, float16 or bfloat16, got {logits.dtype}; convert them once with .float()"
        )
    if logits.numel() and logits.stride(-1) != 1 and logits.shape[-1] > 1:
        raise ValueError(
            f"{op}: logits must be contiguous along the last axis, got stride {logits.stride(-1)}; "
            "copy them once with .contiguous()"
        )
    positive(op, "temperature", float(temperature))


def _torch() -> Any:
    with _peers.needed("torch"):
        import torch
    return torch
