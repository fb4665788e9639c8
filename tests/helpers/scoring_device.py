"""The operations of scoring on tensors of the CPU that are taken as a device's."""

import contextlib
import functools

import interpreted
import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels._base import arrays as _arrays

try:
    import torch
except ImportError:
    torch = None


def as_tensor(x):
    if hasattr(x, "_fields"):
        return type(x)(*map(as_tensor, x))
    if x is None or isinstance(x, (int, float, str, tuple, torch.Tensor)):
        return x
    return torch.from_numpy(np.array(x, np.int64 if isinstance(x, list) and not x else None))


OPS = ("token_logprobs", "answer_logprobs", "logprob_partials", "label_posteriors", "top_logprobs")
EMPTY = _arrays.empty


def poisoned(like, shape, dtype):
    """Memory that kernels have to write holds NaN, or whole numbers out of every range."""
    array = EMPTY(like, shape, dtype)
    array[...] = True if dtype == "bool" else np.nan if "float" in dtype else np.iinfo(dtype).min // 2
    return array


class Device:
    """The operations on tensors that are taken as a device's: nothing may look at a value."""

    name = "device"

    def __init__(self, patch, backend="triton"):
        self.backend = backend
        self.ops = {op: getattr(rk, op) for op in OPS}
        place_of = _arrays.place_of
        there = _arrays.Torch("cpu")
        patch.setattr(
            _arrays,
            "place_of",
            lambda device, *of: there if of[0] in _dispatch.DEVICE_BACKENDS["scoring"] else place_of(device, *of),
        )
        self.waiting = interpreted.NoWaiting

    def __getattr__(self, op):
        def call(*args, **kwargs):
            kwargs = {name: as_tensor(x) if name not in ("want", "reduce") else x for name, x in kwargs.items()}
            with self.waiting():
                found = self.ops[op](*map(as_tensor, args), **kwargs, backend=self.backend)
            values = found if isinstance(found, tuple) else (found,)
            assert all(x is None or isinstance(x, torch.Tensor) for x in values)
            if not isinstance(found, tuple):
                return found.numpy()
            values = [x if x is None else x.numpy() for x in found]
            return type(found)(*values) if hasattr(found, "_fields") else tuple(values)

        return call


@contextlib.contextmanager
def interpreted_backend(name):
    """``backend="triton"`` runs on host arrays; "triton-device" takes them for a device's, and gives them back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_arrays, "empty", poisoned)
        device = Device(patch) if name == "triton-device" else None

        def ask(op, *args, backend="auto", **kwargs):
            if backend != "triton-device":
                return device.ops[op](*args, **kwargs, backend=backend)
            if "answer_ids" in kwargs:  # whose largest a device is not asked for
                kwargs.setdefault("num_answers", int(max(kwargs["answer_ids"], default=-1)) + 1)
            return getattr(device, op)(*args, **kwargs)

        for op in OPS if device else ():
            patch.setattr(rk, op, functools.partial(ask, op))
        yield name
