"""One process at a time in a folder that is written to."""

from __future__ import annotations

import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK_FILE = ".lock"
_TRIES, _WAIT = 5, 0.02  # seconds; `owner` holds the lock for a moment


@contextmanager
def locked(folder: Path, what: str = "select: out") -> Iterator[None]:
    """Own the folder for a block; the kernel gives it free when the process ends, however it ends.

    ``what`` names call and argument in errors. A folder that is in use is refused with its owner's name.
    """
    path = folder / LOCK_FILE
    descriptor = _acquire(path, what)
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
    import fcntl  # here, so that the package can be imported on Windows, which has none

    try:
        descriptor = _open(folder / LOCK_FILE, os.O_RDONLY, "select: out")
    except OSError:  # no file, or one that is nobody's lock
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _text(descriptor)
    finally:
        os.close(descriptor)
    return None


def _acquire(path: Path, what: str) -> int:
    import fcntl

    holder = "another process"
    for _ in range(_TRIES):
        descriptor = _open(path, os.O_RDWR | os.O_CREAT, what)
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
    raise BlockingIOError(f"{what} must not be in use, got {path.parent}, in use by {holder}")


def _open(path: Path, flags: int, what: str) -> int:
    """Open the folder's own file: what is written to a link would be written to a file that is somewhere else."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)  # nor wait for a pipe's other end
    except OSError as error:
        if path.is_symlink() or path.is_dir():
            raise FileExistsError(f"{what} must have its lock as a file, got a link or folder {path}") from error
        raise OSError(f"{what} must be writable, got {path}: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise FileExistsError(f"{what} must have its lock as a file of one name, got {path}")
    return descriptor


def _text(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
