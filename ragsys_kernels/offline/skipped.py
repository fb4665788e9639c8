"""The list of the rows that a job or a corpus leaves out, beside its result."""

from __future__ import annotations

import logging
import os

from .._base.types import PathLike
from ._url_folder import folder_at
from .sources import Usable, listed

_log = logging.getLogger(__name__)


def write(op: str, out: PathLike, asked: tuple[str, ...], **found: Usable) -> None:
    """Write ``OUT.skipped.csv`` and log how many rows it has; where none is left out, remove an earlier one.

    Nothing happens unless rows were asked to be left out.
    """
    if not {"skip", "first", "last"}.intersection(asked):
        return
    parent, slash, name = os.fspath(out).rstrip("/").rpartition("/")
    folder, name = folder_at(parent + slash or "."), f"{name}.skipped.csv"
    number = sum(len(each.skipped) for each in found.values())
    if not number:
        folder.remove(name)
        return
    folder.make()
    with folder.writing(name) as file:
        file.write(listed(**found))
    _log.info(f"{op}: {number} rows that cannot be used are left out; {parent}{slash}{name} lists them")
