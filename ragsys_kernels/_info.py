"""What is installed and active, and why the rest is not."""

from __future__ import annotations

import platform

import numpy as np

from . import _dispatch
from ._base import env
from ._base.extras import installed
from ._gpu import compilers, cuda_module, preference
from ._version import __version__

_LIBRARIES = ("numpy", "torch", "triton", "cupy", "pyarrow", "typer", "rich")
# Where the name to import is not the distribution's.
_DISTRIBUTIONS = {"cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy")}


def active(device: str | None = None) -> tuple[str, str]:
    """Return backend and instruction set of ``backend="auto"`` for CPU arrays or those of a device.

    The set is "" for all but the compiled kernels. Where nothing runs on a device it is the backend that is tried
    first: it may run where the call is made.
    """
    name, _ = _dispatch.wanted("auto", _dispatch.NAMES["selection"])
    if name == "auto":
        order = ("cpu", "reference") if device is None else preference.BACKENDS
        name = next((each for each in order if _dispatch.why_not(each) is None), order[0])
    return name, _dispatch.isa() if name == "cpu" else ""


def config() -> str:
    """Return the text that `show_config` prints."""
    lines = [
        f"ragsys_kernels {__version__}",
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}",
        "libraries: " + ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES),
    ]
    families = {family: (*names, *_dispatch.DEVICE_BACKENDS[family]) for family, names in _dispatch.BACKENDS.items()}
    on_host = (name for names in _dispatch.BACKENDS.values() for name in names)
    for backend in dict.fromkeys([*on_host, *preference.BACKENDS]):
        having = [family for family, names in families.items() if backend in names]
        of = "" if len(having) == len(families) else f" ({', '.join(having)})"
        reason = _dispatch.why_not(backend)
        lines.append(f"backend {backend}{of}: " + ("available" if reason is None else f"unavailable: {reason}"))
    lines.append(f"kernels of backend triton: {compilers.summary()}")
    lines.append(f"kernels of backend cuda: {cuda_module.described()}")
    lines.append(f"auto on a device: {preference.described()}")
    if _dispatch.why_not("cpu") is None:
        module = _dispatch.extension()
        built, here = ", ".join(module.ISAS), ", ".join(module.SUPPORTED_ISAS)
        lines.append(f"instruction set: {_dispatch.isa()} (built: {built}; on this processor: {here})")
        unit = module.bf16_unit(_dispatch.isa_index()) or "as float32"
        lines.append(f"products of bfloat16: {unit}")
    lines.append("scoring of hidden states by backend numpy: " + _numpy_bits())
    lines.append(f"threads: {env.num_threads()}")
    return "\n".join(lines)


def _numpy_bits() -> str:
    """Return whether equal rows, or equal columns, got unequal bits in a product of NumPy.

    A BLAS may add in another order at the edges of its tiles and where threads share the work.
    """
    rng = np.random.default_rng(0)
    hidden, weight = (rng.standard_normal((n, 64), np.float32) for n in (64, 1024))  # as scoring/numpy_kernels.py has
    by_row = np.repeat(hidden[:1], len(hidden), 0) @ weight.T
    by_column = hidden @ np.repeat(weight[:1], len(weight), 0).T
    if (by_row == by_row[:1]).all() and (by_column == by_column[:, :1]).all():
        return "a row was not seen to have other bits in another place of the batch; NumPy's BLAS promises nothing"
    return "a row has other last bits in another place of the batch, by NumPy's BLAS"


def show_config() -> None:
    """Print versions, backends with the reason each is unavailable, instruction set and threads."""
    print(config())


def _version(name: str) -> str:
    return next(iter(installed(_DISTRIBUTIONS.get(name, (name,))).values()), "not installed")
