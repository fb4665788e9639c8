"""Counts in memory that kernels leave at zero, by which the last program of a row knows that it is the last.

Launches on a stream follow one another, so they share their counts; every stream has its own, and every thread, for the
handle of its default stream may be that of all. What a graph captures may run beside anything: its counts belong to it,
and each replay sets them to zero first.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from .._base import arrays
from . import cuda_module

_LEAST = 4096
_counts: dict[Any, Any] = {}


def zeros(like: Any, size: int) -> Any:
    """Return int32 zeros, ``size`` of them or more, for launches on the current stream of the device of ``like``."""
    library = "torch" if hasattr(like, "is_cuda") else arrays.library_of(like)  # a plan asks at every call
    key: Any = library, threading.get_ident()
    if library == "cupy" or (library == "torch" and like.is_cuda):  # else the interpreter's, or a test's
        if _captured(like, library):
            return _made(like, library, size)
        key += cuda_module.device_of(like), cuda_module.stream_of(like)
    held = _counts.get(key)
    if held is None or len(held) < size:
        held = _counts[key] = _made(like, library, max(_LEAST, 2 * size))
    return held


def _captured(like: Any, library: str) -> bool:
    """Return whether a graph is being captured, to which memory that is made now belongs."""
    if library == "torch":
        return bool(sys.modules["torch"].cuda.is_current_stream_capturing())
    with like.device:
        return bool(sys.modules["cupy"].cuda.get_current_stream().is_capturing())


def _made(like: Any, library: str, size: int) -> Any:
    if library == "numpy":
        return np.zeros(size, np.int32)
    if library == "cupy":
        with like.device:
            return sys.modules["cupy"].zeros(size, np.int32)
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return torch.zeros(size, dtype=torch.int32, device=like.device)
