"""Counts in memory that kernels leave at zero, by which the last program of a row knows that it is the last.

Launches on a stream follow one another, so they share their counts; every stream has its own. What a graph captures may
run beside anything: its counts belong to it, and each replay sets them to zero first.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_LEAST = 4096
_counts: dict[Any, Any] = {}


def zeros(like: Any, size: int) -> Any:
    """Return int32 zeros, ``size`` of them or more, for launches on the current stream of the device of ``like``."""
    device = like.device
    if not like.is_cuda:  # the interpreter's
        key: Any = threading.get_ident()
    elif torch.cuda.is_current_stream_capturing():
        return torch.zeros(size, dtype=torch.int32, device=device)
    else:
        key = device.index, torch.cuda.current_stream(device).cuda_stream
    held = _counts.get(key)
    if held is None or len(held) < size:
        with _disable_current_modes():
            held = torch.zeros(max(_LEAST, 2 * size), dtype=torch.int32, device=device)
        _counts[key] = held
    return held
