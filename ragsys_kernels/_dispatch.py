"""Which backend and which instruction set run a call, and why another cannot."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from . import _env
from ._warn import warn

# Backends of each family of operations for CPU arrays, in the order `auto` tries them.
BACKENDS = {"selection": ("cpu", "reference"), "scoring": ("cpu", "numpy", "reference")}

# A file with the name of a library could shadow it.
FILES = {"numpy": "numpy_kernels"}

_SLOWER = {
    "numpy": "NumPy, which is slower than the compiled kernels",
    "reference": "the NumPy reference, which is slow",
}


class BackendUnavailableError(RuntimeError):
    """An explicitly requested backend or instruction set cannot run here; the message says why."""


@functools.cache
def _extension() -> tuple[Any, str | None]:
    """The compiled module, or None and the reason."""
    try:
        from . import _C
    except ImportError as error:
        absent = error.name == f"{__package__}._C" or "cannot import name '_C'" in str(error)
        if absent:
            return (
                None,
                "the compiled extension is not installed; reinstall with RAGSYS_KERNELS_REQUIRE_EXT=1 to see why",
            )
        return None, f"the compiled extension is broken: {error}"
    return _C, None


def why_not(backend: str) -> str | None:
    """The reason a backend cannot run here, or None if it can."""
    return _extension()[1] if backend == "cpu" else None


def extension() -> Any:
    """The compiled module, for the backend that has been chosen."""
    return _extension()[0]


def isa() -> str:
    """The instruction set in force: RAGSYS_KERNELS_ISA, else the widest this processor has."""
    module, wanted = extension(), _env.isa()
    if wanted is None:
        return str(module.SUPPORTED_ISAS[-1])
    if wanted not in module.SUPPORTED_ISAS:
        reason = "this processor lacks it" if wanted in module.ISAS else "it is not built in"
        raise BackendUnavailableError(
            f"RAGSYS_KERNELS_ISA: instruction set {wanted!r} was requested but cannot run here: {reason}. "
            f"Available: {', '.join(module.SUPPORTED_ISAS)}"
        )
    return wanted


def isa_index() -> int:
    """The number of the instruction set in force, for the extension."""
    return int(extension().ISAS.index(isa()))


def choose(op: str, family: str, device: str, backend: str) -> ModuleType:
    """The module of ``ragsys_kernels.<family>`` that runs ``op``, or an error with the reason."""
    if backend == "auto":
        backend = _env.backend()
    known = BACKENDS[family]
    if backend not in ("auto", *known):
        raise ValueError(f"{op}: backend must be one of 'auto', {', '.join(map(repr, known))}, got {backend!r}")
    order = known if device.partition(":")[0] == "cpu" else ()
    if backend == "auto":
        for name in order:
            if why_not(name) is None:
                if name != "cpu":
                    _warn_slow(op, name)
                return _module(family, name)
        raise BackendUnavailableError(f"{op}: no backend runs on arrays on {device!r}; move them to the CPU")
    reason = why_not(backend) if backend in order else f"the arrays are on {device!r}"
    if reason is not None:
        others = [repr(name) for name in order if name != backend and why_not(name) is None]
        raise BackendUnavailableError(
            f"{op}: backend {backend!r} was requested but cannot run here: {reason}. "
            f"Available for arrays on {device!r}: {', '.join(others) or 'none'}"
        )
    return _module(family, backend)


@functools.cache
def _module(family: str, backend: str) -> ModuleType:
    return importlib.import_module(f"ragsys_kernels.{family}.{FILES.get(backend, backend)}")


@functools.cache
def _warn_slow(op: str, backend: str) -> None:
    warn(f"{op}: running {_SLOWER[backend]}: {why_not('cpu')}", RuntimeWarning)
