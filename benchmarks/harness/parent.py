"""A process that ends with the one that started it, however that ended: one that is left disturbs what runs next."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path


def bound(command: Sequence[str | Path]) -> list[str]:
    """Return a command whose process Linux kills when the thread that starts it is gone.

    This file becomes that process. A function for `subprocess` to call after its fork would do too, but not beside the
    threads of libraries, which warn of a fork.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *map(str, command)]


def end_with(parent: int | None = None) -> None:
    """Have Linux kill this process when the thread that started it is gone.

    ``parent`` is the id of that process: if it is gone by now, this one ends at once. Who waits for its parent's first
    word needs none.
    """
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL.value, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error}")
