"""Resident memory of this process, from /proc; an OSError on other systems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def now() -> int:
    """Return the bytes that are resident."""
    return _bytes("VmRSS")


def peak() -> int:
    """Return the most bytes that were resident since the start, or since `reset`."""
    return _bytes("VmHWM")


def reset() -> None:
    """Let the peak start again."""
    _RESET.write_text("5")


def growth(run: Callable[[], Any]) -> int | None:
    """Return the most bytes that are resident during a call above those before; None where the system does not say."""
    try:
        reset()
        before = now()
        run()
        return peak() - before
    except OSError:
        return None


def _bytes(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])
