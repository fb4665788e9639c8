"""Triton's interpreter, which runs kernels on the CPU."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import compilers


@contextlib.contextmanager
def quiet(like: Any) -> Iterator[None]:
    """Silence NumPy, with which the interpreter computes, where NaN and inf make it warn; nothing on a GPU."""
    if like.device.type != "cpu":
        yield
        return
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@functools.cache
def mend() -> None:
    """Let the interpreter of Triton 3.6 take the number out of an array of one element, as that of 3.7 does.

    It asks for ``int(array)``, which NumPy refuses from 2.4 on, and warns of from 1.25 on.
    """
    if compilers.version() >= (3, 7):
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_and_mend
