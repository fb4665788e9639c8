"""NumPy's functions for arrays of any library, so that what follows the kernels is written once."""

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

    def take_along_axis(self, x: Any, indices: Any, axis: int) -> Any:
        return x.take_along_dim(indices, axis)


_TORCH = _Torch()


def namespace(x: Any) -> Any:
    """Return the module whose functions take ``x``."""
    if isinstance(x, (np.ndarray, np.generic)):
        return np
    torch = sys.modules.get("torch")
    return _TORCH if torch is not None and isinstance(x, torch.Tensor) else sys.modules["cupy"]


def cast(x: Any, dtype: Any) -> Any:
    """Return ``x`` as ``dtype`` of its namespace."""
    return x.astype(dtype) if hasattr(x, "astype") else x.to(dtype)


def arange(n: int, like: Any) -> Any:
    """Return 0 .. n - 1 in the library and on the device of ``like``."""
    xp = namespace(like)
    return xp.arange(n, device=like.device) if xp is _TORCH else xp.arange(n)


def stable_order(x: Any) -> Any:
    """Return the order that sorts a vector and leaves equal elements in theirs."""
    return x.argsort(stable=True) if namespace(x) is _TORCH else x.argsort(kind="stable")


def segmented(operation: Any, x: Any, place: Any) -> Any:
    """Return running results of an associative operation along the last axis, which begin anew where ``place`` is 0.

    ``place`` is the position of an element in its segment. Elements that are 1, 2, 4, .. apart are combined, so that a
    result depends on its segment alone, bit for bit.
    """
    xp = namespace(x)
    step = 1
    while step < x.shape[-1]:
        y = operation(x[..., :-step], x[..., step:])
        x = xp.concatenate([x[..., :step], xp.where(place[step:] >= step, y, x[..., step:])], -1)
        step *= 2
    return x
