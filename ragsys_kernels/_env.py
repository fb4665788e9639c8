"""Every environment variable of the library, read here and nowhere else.

RAGSYS_KERNELS_BACKEND      backend used where ``backend="auto"`` is asked for: ``cpu``, ``numpy`` or ``reference``
RAGSYS_KERNELS_ISA          instruction set of the compiled kernels: ``base``, ``avx2`` or ``avx512``
RAGSYS_KERNELS_NUM_THREADS  threads used where ``num_threads`` is not given
RAGSYS_KERNELS_NO_EXT       (build) ``1``: leave the extension out
RAGSYS_KERNELS_REQUIRE_EXT  (build) ``1``: a failed compilation is a failed installation
"""

from __future__ import annotations

import os


def backend() -> str:
    return os.environ.get("RAGSYS_KERNELS_BACKEND") or "auto"


def isa() -> str | None:
    return os.environ.get("RAGSYS_KERNELS_ISA") or None


def num_threads() -> int:
    """Threads of a call that names no number: the variable, else the processors this process may use."""
    text = os.environ.get("RAGSYS_KERNELS_NUM_THREADS")
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"RAGSYS_KERNELS_NUM_THREADS must be a whole number of at least 1, got {text!r}")
    return int(text)
