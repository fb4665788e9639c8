"""The operations of scoring on tensors of the CPU that are taken as a device's."""

import interpreted
import numpy as np

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels._base import arrays as _arrays

try:
    import torch
except ImportError:
    torch = None


def as_tensor(x):
    if x is None or isinstance(x, (int, float, str, tuple, torch.Tensor)):
        return x
    return torch.from_numpy(np.array(x, np.int64 if isinstance(x, list) and not x else None))


class Device:
    """The operations on tensors that are taken as a device's: nothing may look at a value."""

    name = "device"

    def __init__(self, patch, backend="triton"):
        self.backend = backend
        place_of = _arrays.place_of
        there = _arrays.Torch("cpu")
        patch.setattr(
            _arrays,
            "place_of",
            lambda device, *of: there if of[0] in _dispatch.DEVICE_BACKENDS else place_of(device, *of),
        )
        self.waiting = interpreted.NoWaiting

    def __getattr__(self, op):
        def call(*args, **kwargs):
            kwargs = {name: as_tensor(x) if name not in ("want", "reduce") else x for name, x in kwargs.items()}
            with self.waiting():
                found = getattr(rk, op)(*map(as_tensor, args), **kwargs, backend=self.backend)
            values = found if isinstance(found, tuple) else (found,)
            assert all(x is None or isinstance(x, torch.Tensor) for x in values)
            if not isinstance(found, tuple):
                return found.numpy()
            values = [x if x is None else x.numpy() for x in found]
            return type(found)(*values) if hasattr(found, "_fields") else tuple(values)

        return call
