"""log p of few rows without options: the way of `token_logprobs` for what needs no layout, in a third of its time.

The general way words errors, lays out pairs and merges parts; for one row of logits that takes four times as long as
its kernel. What is plain is recognised here and computed by the same kernel and the same operations, so that it has
the same bits. Whatever is not plain, or wrong, is left to the general way.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from .. import _dispatch
from .._base import checks, env

# The types whose elements are what they say; the general way knows the others.
_TYPES = {np.dtype(np.float32): "float32", np.dtype(np.float16): "float16"}
_MOST_ROWS = 64
_NOT_READ: tuple[Any, ...] = (None, False, False, 0)  # target_logits, entropy, rank, top


def token_logprobs(logits: Any, targets: Any, num_threads: int | None) -> Any:
    """Return log p of one target in each row (T,) float32; None where the general way has to look.

    Parameters
    ----------
    logits : (T, V) float32 | float16, and targets : (T,) int64
        NumPy's arrays, or torch's on the host, of at most 64 rows.
    """
    torch = None
    if type(logits) is not np.ndarray or type(targets) is not np.ndarray:
        torch = sys.modules.get("torch")
        if torch is None or type(logits) is not torch.Tensor or type(targets) is not torch.Tensor:
            return None
        if not (logits.is_cpu and targets.is_cpu) or logits.requires_grad or logits.layout is not torch.strided:
            return None
        if logits.is_neg() or targets.is_neg():  # views that NumPy has no word for
            return None
        if logits.dtype is not torch.float32 and logits.dtype is not torch.float16:
            return None
        logits, targets = logits.numpy(), targets.numpy()
    dtype, shape = _TYPES.get(logits.dtype), logits.shape
    if dtype is None or logits.ndim != 2 or not 1 <= shape[0] <= _MOST_ROWS or not shape[1]:
        return None
    if targets.dtype != np.int64 or targets.shape != shape[:1]:
        return None
    if not (logits.flags.c_contiguous and logits.flags.aligned) or env.backend() not in ("auto", "cpu"):
        return None
    if _dispatch.why_not("cpu") is not None:
        return None
    T, V = shape
    columns = targets.copy()
    if T == 1:
        if not 0 <= columns.item() < V:
            return None
    elif (columns.view(np.uint64) >= V).any():
        return None
    threads = checks.threads("token_logprobs", num_threads)
    rows, ones, begin = _layout(T)
    ref, _, total, _, target, *_ = _dispatch.extension().score_logits(
        logits, dtype, rows, ones, 1.0, 0.0, V, None, begin, columns, *_NOT_READ, _dispatch.isa_index(), threads
    )
    with np.errstate(all="ignore"):  # -inf - -inf, log 0, what float32 cannot hold
        logp = np.minimum((target - ref.astype(np.float64)) - np.log(total), 0.0).astype(np.float32)
    return logp if torch is None else torch.from_numpy(logp)


@lru_cache(_MOST_ROWS)
def _layout(T: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of T slots, their inverse temperatures, and where their targets begin."""
    return np.arange(T), np.ones(T, np.float32), np.arange(T + 1)
