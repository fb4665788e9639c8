"""Imports in a call, through which no fork may cut.

A module has a lock while it is imported. Where one thread imports and another forks, the child has that lock without
the thread that would release it, and waits for ever at its own import. So a fork waits until these imports have ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# The longest that a fork waits, in seconds: for imports that wait for the thread that forks.
LONGEST = 60.0

_changed = threading.Condition()
_importing: dict[int, int] = {}  # how many of the blocks below each thread is in


@contextmanager
def imports() -> Iterator[None]:
    """Let the forks of other threads wait until this block ends, which imports modules."""
    thread = threading.get_ident()
    with _changed:
        _importing[thread] = _importing.get(thread, 0) + 1
    try:
        yield
    finally:
        with _changed:
            _importing[thread] -= 1
            if not _importing[thread]:
                del _importing[thread]
            _changed.notify_all()


def _before_fork() -> None:
    thread = threading.get_ident()
    _changed.acquire()  # until the fork is done: no other thread begins an import meanwhile
    _changed.wait_for(lambda: not _importing.keys() - {thread}, LONGEST)


def _after_fork_in_parent() -> None:
    _changed.release()


def _after_fork_in_child() -> None:
    global _changed
    _changed = threading.Condition()
    for other in _importing.keys() - {threading.get_ident()}:
        del _importing[other]


if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
