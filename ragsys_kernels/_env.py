"""Every environment variable of the library, read here and nowhere else.

RAGSYS_KERNELS_BACKEND      backend used where ``backend="auto"`` is asked for: ``cpu``, ``numpy``, ``reference``,
                            ``triton`` or ``cuda``
RAGSYS_KERNELS_ISA          instruction set of the compiled kernels: ``base``, ``avx2`` or ``avx512``
RAGSYS_KERNELS_NUM_THREADS  threads used where ``num_threads`` is not given
RAGSYS_KERNELS_CACHE        folder of what is computed once and kept: embeddings, scores, unpacked models
RAGSYS_KERNELS_DATA         folder of the data sets that evaluations read
OPENAI_API_KEY              sent to servers with OpenAI's API where no other key is given
TRITON_INTERPRET            ``1``: ``backend="triton"`` takes CPU arrays and interprets its kernels, slowly
RAGSYS_KERNELS_NO_EXT       (build) ``1``: leave the extension out
RAGSYS_KERNELS_CUDA         (build) ``1``: compile the CUDA kernels into the package, with nvcc
RAGSYS_KERNELS_REQUIRE_EXT  (build) ``1``: a failed compilation is a failed installation
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def _lookup(name: str) -> Callable[[], str | None]:
    """A quick ``os.environ.get(name)``, for variables that every call reads.

    os.environ's own lookup encodes the name and raises an error inside where it is not set: 0.6 µs, three times in a
    call of 15. The dictionary that it keeps knows at once that a name is not set.
    """
    kept, key = getattr(os.environ, "_data", None), getattr(os.environ, "encodekey", str)(name)
    if not isinstance(kept, dict):
        return lambda: os.environ.get(name)
    return lambda: os.environ.get(name) if key in kept else None


_backend, _isa = _lookup("RAGSYS_KERNELS_BACKEND"), _lookup("RAGSYS_KERNELS_ISA")
_num_threads = _lookup("RAGSYS_KERNELS_NUM_THREADS")


def backend() -> str:
    return _backend() or "auto"


def triton_interpreter() -> bool:
    """Whether Triton interprets its kernels on CPU tensors; Triton's own variable, read when it is imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def isa() -> str | None:
    return _isa() or None


def num_threads() -> int:
    """Threads of a call that names no number: the variable, else the processors this process may use."""
    text = _num_threads()
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"RAGSYS_KERNELS_NUM_THREADS must be a whole number of at least 1, got {text!r}")
    return int(text)


def cache_folder() -> Path:
    """The variable, else ``ragsys_kernels`` in the user's cache folder; it need not exist yet."""
    named = os.environ.get("RAGSYS_KERNELS_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragsys_kernels"


def data_folder() -> Path | None:
    named = os.environ.get("RAGSYS_KERNELS_DATA")
    return Path(named) if named else None


def omp_threads() -> int | None:
    """What Ray gives an actor as its CPUs; the library's own number is `num_threads`."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else None


def openai_api_key() -> str | None:
    return os.environ.get("OPENAI_API_KEY") or None


def interpret_no_kernels() -> None:
    """For a process that compiles them: Triton has not been imported in it yet."""
    os.environ.pop("TRITON_INTERPRET", None)


def cuda_home() -> str:
    """Where the CUDA toolkit is, if it is not on the path."""
    return os.environ.get("CUDA_HOME", "/usr/local/cuda")


@contextmanager
def changed(**values: str) -> Iterator[None]:
    """Variables of other libraries for the time of a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
