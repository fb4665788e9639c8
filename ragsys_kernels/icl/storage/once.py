"""Folders that are made once and kept, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..._base.files import put, staging


def made_once(folder: Path, make: Callable[[Path], Path]) -> Path:
    """Return `folder`; if it is missing, `make` fills a temporary folder beside it, which gets its name.

    Several processes may do so at once: the first one wins, and the others discard their folders.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with staging(folder) as aside:
        made = make(aside)
        try:
            put(made, folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder
