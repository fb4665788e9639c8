"""Warnings that point at the caller's line."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the first caller outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
