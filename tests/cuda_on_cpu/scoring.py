"""The CUDA backend of scoring, with the package's own launcher, on host arrays."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from cuda_on_cpu import emulator
from ragsys_kernels import _dispatch
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._gpu import cuda_module
from ragsys_kernels.scoring.cuda import backend as cuda_kernels
from ragsys_kernels.scoring.cuda import configuration as cuda_configuration

SOURCE = cuda_configuration.SOURCE


def why_not() -> str | None:
    """The reason the kernels cannot be run here, or None."""
    return emulator.why_not() if emulator.SOURCES.is_dir() else "the tests run outside of the source tree"


@functools.cache
def kernels() -> emulator.Module:
    return emulator.Module(SOURCE)


def dirty(like: object, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Memory full of NaN, and of -1 for integers: what a kernel leaves unwritten shows."""
    array = np.empty(shape, dtype)
    array.view(np.uint8).fill(0xFF)
    return array


@contextmanager
def on_host_arrays() -> Iterator[emulator.Module]:
    """The launchers of `cuda_kernels` run the kernels here, in a schedule that is not the threads' order."""
    module = kernels()
    module.seed, module.removed = 1, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_module, "load", lambda name: {SOURCE: module}[name])
        patch.setattr(_arrays, "empty", dirty)
        yield module


@contextmanager
def as_backend() -> Iterator[str]:
    """``backend="cuda"`` takes host arrays; every other backend is chosen as ever."""
    choose = _dispatch.choose

    def with_cuda(op, family, device, backend, *of_call, **lacking):
        return ("cuda", cuda_kernels) if backend == "cuda" else choose(op, family, device, backend, *of_call, **lacking)

    with on_host_arrays(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_dispatch, "choose", with_cuda)
        yield "cuda"
