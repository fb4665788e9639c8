"""NumPy's functions on the arrays of any library, so that what follows the kernels is written once."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


class _Torch:
    """torch, where it has other names or rules than NumPy."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["torch"], name)

    def minimum(self, x: Any, bound: Any) -> Any:  # torch's own takes no number
        return x.clamp(max=bound)

    def maximum(self, x: Any, bound: Any) -> Any:
        return x.clamp(min=bound)


_TORCH = _Torch()


def namespace(x: Any) -> Any:
    """The module whose functions take ``x``."""
    if isinstance(x, (np.ndarray, np.generic)):
        return np
    torch = sys.modules.get("torch")
    return _TORCH if torch is not None and isinstance(x, torch.Tensor) else sys.modules["cupy"]


def cast(x: Any, dtype: Any) -> Any:
    """``x`` as ``dtype`` of its namespace."""
    return x.astype(dtype) if hasattr(x, "astype") else x.to(dtype)


def arange(n: int, like: Any) -> Any:
    """0 .. n - 1 where ``like`` is."""
    xp = namespace(like)
    return xp.arange(n, device=like.device) if xp is _TORCH else xp.arange(n)


def stable_order(x: Any) -> Any:
    """The order that sorts a vector and keeps equals as they are."""
    return x.argsort(stable=True) if namespace(x) is _TORCH else x.argsort(kind="stable")


def segmented(operation: Any, x: Any, place: Any) -> Any:
    """Running results of an associative operation along the last axis, begun anew where ``place`` is 0.

    ``place`` is the position of an element within its segment. Pairs that are 1, 2, 4, .. apart are combined, so that
    a result depends on its segment alone, bit for bit.
    """
    xp = namespace(x)
    step = 1
    while step < x.shape[-1]:
        y = operation(x[..., :-step], x[..., step:])
        x = xp.concatenate([x[..., :step], xp.where(place[step:] >= step, y, x[..., step:])], -1)
        step *= 2
    return x
