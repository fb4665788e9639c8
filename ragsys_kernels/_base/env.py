"""All environment variables of the library; no other file reads one.

RAGSYS_KERNELS_BACKEND      backend of calls with ``backend="auto"``: ``cpu``, ``numpy``, ``reference``, ``triton`` or
                            ``cuda``
RAGSYS_KERNELS_ISA          instruction set of the compiled kernels: ``base``, ``avx2`` or ``avx512``
RAGSYS_KERNELS_NUM_THREADS  threads of calls without ``num_threads``
RAGSYS_KERNELS_VARIANTS     variants of GPU kernels to run in place of the default ones: ``kernel=variant``, with commas
RAGSYS_KERNELS_CACHE        folder for what is computed once: embeddings, scores, unpacked models
RAGSYS_KERNELS_DATA         folder of the data sets that evaluations read
PROMETHEUS_MULTIPROC_DIR    folder in which the workers of a server share their metrics; the server sets it for them
OPENAI_API_KEY              sent to servers with OpenAI's API where no other key is given
CHROMA_API_KEY, MILVUS_TOKEN, QDRANT_API_KEY
                            sent to a server of that store by `sync_corpus` where no file of a key is named
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
    """Return a quick ``os.environ.get(name)``, for variables that every call reads.

    The lookup of os.environ encodes the name, and raises and catches an error if it is not set: 0.6 µs, three times in
    a call of 15 µs. The dictionary inside os.environ tells at once that a name is not set.
    """
    kept, key = getattr(os.environ, "_data", None), getattr(os.environ, "encodekey", str)(name)
    if not isinstance(kept, dict):
        return lambda: os.environ.get(name)
    return lambda: os.environ.get(name) if key in kept else None


# The kernels count threads in 32 bits.
MOST_THREADS = 4096

_backend, _isa = _lookup("RAGSYS_KERNELS_BACKEND"), _lookup("RAGSYS_KERNELS_ISA")
_num_threads, _variants = _lookup("RAGSYS_KERNELS_NUM_THREADS"), _lookup("RAGSYS_KERNELS_VARIANTS")
_interpret = _lookup("TRITON_INTERPRET")


def backend() -> str:
    """Return the backend that replaces ``"auto"``, or ``"auto"``."""
    return _backend() or "auto"


def triton_interpreter() -> bool:
    """Return whether Triton interprets its kernels on CPU tensors; it reads this variable when it is imported."""
    return (_interpret() or "").lower() in ("1", "true", "on", "yes", "y")


def isa() -> str | None:
    """Return the instruction set that is asked for, if any."""
    return _isa() or None


def num_threads() -> int:
    """Return the threads of a call that names no number: the variable, else the processors of this process."""
    named = named_threads()
    if named:
        return named
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def named_threads() -> int:
    """Return the number in the variable, at most `MOST_THREADS`; 0 where it is not set."""
    text = _num_threads()
    if not text:
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"RAGSYS_KERNELS_NUM_THREADS must be a whole number of at least 1, got {text!r}")
    return min(int(text), MOST_THREADS)


def variants() -> str:
    """Return the variants of GPU kernels that are asked for; ``_gpu/variants.py`` reads the list."""
    return _variants() or ""


def cache_folder() -> Path:
    """Return the variable, else ``ragsys_kernels`` in the user's cache folder; it may not exist yet."""
    named = os.environ.get("RAGSYS_KERNELS_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragsys_kernels"


def data_folder() -> Path | None:
    """Return the folder of the data sets, if the variable is set."""
    named = os.environ.get("RAGSYS_KERNELS_DATA")
    return Path(named) if named else None


def omp_threads() -> int | None:
    """Return the CPUs that Ray gives an actor; the library's own number is `num_threads`."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else None


def metrics_folder() -> str | None:
    """Return where the workers of a server share their metrics; prometheus_client reads it too."""
    return os.environ.get("PROMETHEUS_MULTIPROC_DIR") or None


def openai_api_key() -> str | None:
    """Return the key for servers with OpenAI's API, if the variable is set."""
    return os.environ.get("OPENAI_API_KEY") or None


# By the kind of store, as `sync_corpus` names it.
STORE_KEYS = {"chroma": "CHROMA_API_KEY", "milvus": "MILVUS_TOKEN", "qdrant": "QDRANT_API_KEY"}


def store_key(kind: str) -> str | None:
    """Return the key for a server of a kind of store, if the variable is set."""
    return os.environ.get(STORE_KEYS[kind]) or None


@contextmanager
def changed(**values: str) -> Iterator[None]:
    """Set variables of other libraries in a block."""
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
