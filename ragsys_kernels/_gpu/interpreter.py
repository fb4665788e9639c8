"""Triton's interpreter, which runs kernels on the CPU."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np


@contextlib.contextmanager
def quiet(like: Any) -> Iterator[None]:
    """Silence NumPy, with which the interpreter computes, where NaN and inf make it warn; nothing on a GPU."""
    if like.device.type != "cpu":
        yield
        return
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
