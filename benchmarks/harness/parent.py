"""A process that ends with the one that started it, however that ended: one that is left disturbs what runs next."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1
# Loaded here: a process that was only just forked can load nothing.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def end_with(parent: int | None = None) -> None:
    """Have Linux kill this process when the thread that started it is gone.

    ``parent`` is the id of that process: if it is gone by now, this one ends at once. Who waits for its parent's first
    word needs none. Works between fork and exec.
    """
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL.value, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


@contextmanager
def forking() -> Iterator[None]:
    """Libraries with threads warn of a fork, though what follows it is `end_with` and a new program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
