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
    """Let the interpreters of older Tritons do what that of 3.9 does.

    Before 3.9 a multiply-add rounds its product. That of 3.6 asks for ``int(array)`` of an array of one element, which
    NumPy refuses from 2.4 on, and warns of from 1.25 on.
    """
    if compilers.version() >= (3, 9):
        return
    from triton.runtime import interpreter

    def fma(_builder: Any, x: Any, y: Any, z: Any) -> Any:
        product = np.multiply(x.data, y.data, dtype=np.float64)  # exact for float32
        return interpreter.TensorHandle((product + z.data).astype(z.data.dtype), z.dtype.scalar)

    interpreter.InterpreterBuilder.create_fma = fma
    if compilers.version() >= (3, 7):
        return
    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_and_mend
