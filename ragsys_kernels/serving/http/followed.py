"""Files of the server that are read again when they have changed: its tokens, its certificate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from ..._base.files import stamp

_logger = logging.getLogger("ragsys_kernels.serving")


def follow(
    files: Mapping[str, str | Path],
    use: Callable[[], None],
    stays: str = "",
    ended: Callable[[str], None] | None = None,
) -> Callable[[], None]:
    """Return a function that calls ``use`` if files have changed since it was called last; at first it always does.

    Parameters
    ----------
    files : mapping of arguments to paths
        Their content is used together.
    use : function
        Reads the files. Where it raises `OSError` or `ValueError`, what was read before has to be in force still.
    stays : str
        What the log says then, if there is ``ended``.
    ended : function, optional
        Is told "loaded" or "refused", once a change. None: another process is, and has the line in the log.
    """
    seen: list[tuple[int, ...] | None] | None = None

    def look() -> None:
        nonlocal seen
        if (now := [stamp(file) for file in files.values()]) == seen:
            return
        first, seen = seen is None, now
        outcome = "loaded"
        try:
            for (argument, file), found in zip(files.items(), now, strict=True):
                if found is None:
                    raise FileNotFoundError(f"serve: {argument} must be a file that can be read, got none at {file}")
            use()
        except (OSError, ValueError) as error:
            outcome = "refused"
            if ended is not None:
                _logger.error("%s; %s", error, stays)
        if ended is not None and not (first and outcome == "loaded"):  # no reload yet
            ended(outcome)

    return look
