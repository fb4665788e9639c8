"""One process at a time in an output folder."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK_FILE = ".lock"
_TRIES, _WAIT = 5, 0.02  # seconds; `owner` holds the lock for a moment


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Own the folder for a block; the kernel gives it free when the process ends, however it ends."""
    path = folder / LOCK_FILE
    descriptor = _acquire(path)
    try:
        with suppress(OSError):  # on a full disk the lock holds without a name
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is locked: who opened it meanwhile sees that it is not the folder's any more
        os.close(descriptor)


def owner(folder: Path) -> str | None:
    """Return which process owns the folder, None if none does."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _text(descriptor)
    finally:
        os.close(descriptor)
    return None


def _acquire(path: Path) -> int:
    holder = "another process"
    for _ in range(_TRIES):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BlockingIOError:
            holder = _text(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(_WAIT)
    raise BlockingIOError(f"select: out must not be in use, got {path.parent}, in use by {holder}")


def _text(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
