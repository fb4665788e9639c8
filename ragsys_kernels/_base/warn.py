"""Warnings that point at the caller's line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PACKAGE = __name__.partition(".")[0]

count = 0  # of all warnings so far

_kept: ContextVar[list[tuple[str, type[Warning]]] | None] = ContextVar("_kept", default=None)
_muted: ContextVar[tuple[type[Warning], ...]] = ContextVar("_muted", default=())


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the first caller outside this package."""
    global count
    count += 1
    if issubclass(category, _muted.get()):
        return
    kept = _kept.get()
    if kept is not None:
        kept.append((message, category))
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def keep() -> list[tuple[str, type[Warning]]]:
    """Return a list that takes the warnings of this thread from now on: one of ours has no caller to point at."""
    kept: list[tuple[str, type[Warning]]] = []
    _kept.set(kept)
    return kept


@contextmanager
def muted(category: type[Warning]) -> Iterator[None]:
    """Leave out warnings of ours in this thread: where nobody who asked would see them, or they are known."""
    before = _muted.set((*_muted.get(), category))
    try:
        yield
    finally:
        _muted.reset(before)
