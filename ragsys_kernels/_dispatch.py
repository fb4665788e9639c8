"""The choice of backend and instruction set, and the reason that another cannot run."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection
from types import ModuleType
from typing import Any, Protocol

from ._base import env
from ._base.checks import choice
from ._base.extras import absent, imported
from ._base.loading import imports
from ._base.warn import warn
from ._gpu import plans, preference

# Backends of each family of operations for CPU arrays, in the order that `auto` tries them.
BACKENDS = {"selection": ("cpu", "reference"), "scoring": ("cpu", "numpy", "reference")}
# Backends for arrays on a device; which comes first is for the shape to say.
DEVICE_BACKENDS = {"selection": preference.BACKENDS, "scoring": ("triton",)}
# What ``backend`` may be in the calls of a family.
NAMES = {family: ("auto", *BACKENDS[family], *DEVICE_BACKENDS[family]) for family in BACKENDS}
# The variable of `env.backend`, which may name any of these, also for operations that have others.
VARIABLE = "RAGSYS_KERNELS_BACKEND"
_EVERY = ("auto", *BACKENDS["scoring"], *DEVICE_BACKENDS["selection"])
# Why a family has not the backend of another.
_WITHOUT = "log-probabilities have no kernels in CUDA C++; Triton has them"

# Where the functions of a backend are, if not in the module of its name.
MODULES = {"numpy": "numpy_kernels", "triton": "triton.backend", "cuda": "cuda.backend"}

# How to get the compiled kernels, in the words of setup.py.
BUILD = (
    "install a C++ compiler (Debian and Ubuntu: apt-get install g++) and reinstall, with RAGSYS_KERNELS_REQUIRE_EXT=1 "
    "to see what fails"
)

_SLOWER = {
    "numpy": "NumPy, which is slower than the compiled kernels",
    "reference": "the NumPy reference, which is slow",
}


class BackendUnavailableError(RuntimeError):
    """An explicitly requested backend or instruction set cannot run here; the message says why."""


class Needs(Protocol):
    """What a call needs of a backend that can run here."""

    def lacking(self, backend: str) -> str | None:
        """Return the reason that the backend does not have the call, or None if it has."""

    def has_rule(self, backend: str) -> bool:
        """Return whether the backend has the operation at all."""


@functools.cache
def _extension() -> tuple[Any, str | None]:
    """Return the compiled module and None, or None and the reason that it is missing."""
    try:
        with imports():
            from . import _C
    except ImportError as error:
        absent = error.name == f"{__package__}._C" or "cannot import name '_C'" in str(error)
        if absent:
            return None, f"the compiled extension is not installed; {BUILD}"
        return None, f"the compiled extension is broken: {error}"
    return _C, None


def why_not(backend: str) -> str | None:
    """Return the reason that a backend cannot run here, or None if it can."""
    if backend == "cpu":
        return _extension()[1]
    if backend == "triton":
        return _why_not_triton() or (None if env.triton_interpreter() else _why_no_gpu())
    if backend == "cuda":
        with imports():
            from ._gpu import cuda_module

        reason: str | None = cuda_module.why_not()
        return reason
    return None


@functools.cache
def _why_not_triton() -> str | None:
    for library in ("torch", "triton"):
        try:
            imported(library)
        except ModuleNotFoundError as error:
            if error.name == library:
                return absent(library, "cuda")
            return f"{library} is broken: {error}"
        except (ImportError, OSError) as error:
            return f"{library} is broken: {error}"
    with imports():
        from ._gpu import compilers, interpreter

    if env.triton_interpreter():
        interpreter.mend()
    return compilers.why_too_old()


@functools.cache
def _why_no_gpu() -> str | None:
    import torch

    if torch.cuda.is_available():
        from ._gpu import compilers

        return compilers.why_not(compilers.architecture())
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    found = "finds no GPU" if built else "is a build without GPU support"
    return f"torch {torch.__version__} {found}; TRITON_INTERPRET=1 runs the kernels on CPU arrays, slowly"


def extension() -> Any:
    """Return the compiled module, once its backend has been chosen."""
    return _extension()[0]


def isa() -> str:
    """Return the instruction set in force: RAGSYS_KERNELS_ISA, else the widest of this processor."""
    module, wanted = extension(), env.isa()
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
    """Return the number of the instruction set in force, for the extension."""
    return kernels()[1]


def kernels() -> tuple[Any, int]:
    """Return the compiled module and `isa_index`."""
    module = _extension()[0]
    return module, _isa_number(module, env.isa())


@functools.cache
def _isa_number(module: Any, wanted: str | None) -> int:
    return int(module.ISAS.index(isa()))


def wanted(backend: str, having: Collection[str]) -> tuple[str, str]:
    """Return the backend that a call asks for, and how errors name it: instead of "auto" that of the environment.

    A backend of the environment that is not among those the operation is ``having`` leaves "auto" as it is.
    """
    if backend != "auto" or (named := env.backend()) == "auto":
        return backend, repr(backend)
    if named not in _EVERY:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(map(repr, _EVERY))}, got {named!r}")
    return (named, f"{named!r} of {VARIABLE}") if named in having else (backend, repr(backend))


def choose(
    op: str,
    family: str,
    device: str,
    backend: Any,
    call: tuple[str, str, int, int] | None = None,
    needs: Needs | None = None,
    having: Collection[str] | None = None,
) -> tuple[str, ModuleType]:
    """Return the backend that runs ``op`` and its module in ``ragsys_kernels.<family>``, or raise the reason.

    ``call`` is what `preference.of` makes of its arrays; it decides the order on a device. ``needs``: of a call that
    not every backend has. ``having``: what ``backend`` may be, if not all that the family has.
    """
    told = ""
    if isinstance(backend, str):  # or it is refused below
        asked = backend
        backend, told = wanted(backend, having or NAMES[family])
        if backend != asked and needs is not None and why_not(backend) is None and not needs.has_rule(backend):
            backend = "auto"
        # The common case first.
        on_cpu = device == "cpu" and backend in ("auto", "cpu") and why_not("cpu") is None
        if on_cpu and (needs is None or needs.lacking("cpu") is None):
            return "cpu", module_of(family, "cpu")

    def reason_of(name: str) -> str | None:
        if name not in BACKENDS[family] and name not in DEVICE_BACKENDS[family]:
            return _WITHOUT
        return why_not(name) or (None if needs is None else needs.lacking(name))

    if having is not None or not told or backend not in preference.BACKENDS:
        backend = choice(op, "backend", backend, having or NAMES[family])
    order = _order(family, device, call)
    if backend == "auto":
        for name in order:
            if reason_of(name) is None:
                if name in _SLOWER and why_not("cpu") is not None:
                    _warn_slow(op, name)
                return name, module_of(family, name)
        reasons = "; ".join(f"{name}: {reason_of(name)}" for name in order) or "no kernels for such a device"
        raise BackendUnavailableError(f"{op}: no backend runs on arrays on {device!r}: {reasons}")
    reason = reason_of(backend)
    if backend not in order and (reason is None or backend not in preference.BACKENDS):
        reason = f"the arrays are on {device!r}"
    if reason is not None:
        others = [repr(name) for name in order if name != backend and reason_of(name) is None]
        raise BackendUnavailableError(
            f"{op}: backend {told} was requested but cannot run here: {reason}. "
            f"Available for arrays on {device!r}: {', '.join(others) or 'none'}"
        )
    return backend, module_of(family, backend)


def _order(family: str, device: str, call: tuple[str, str, int, int] | None) -> tuple[str, ...]:
    """Return the backends for arrays on a device, in the order that `auto` tries them."""
    kind = device.partition(":")[0]
    if kind == "cuda":
        plans.watch()
        return preference.order(call) if family == "selection" else DEVICE_BACKENDS[family]
    if kind != "cpu":
        return ()
    return (*BACKENDS[family], "triton") if env.triton_interpreter() else BACKENDS[family]


@functools.cache
def module_of(family: str, backend: str) -> ModuleType:
    """Return the module of a backend that can run here."""
    with imports():
        return importlib.import_module(f"ragsys_kernels.{family}.{MODULES.get(backend, backend)}")


@functools.cache
def _warn_slow(op: str, backend: str) -> None:
    warn(f"{op}: running {_SLOWER[backend]}: {why_not('cpu')}", RuntimeWarning)
