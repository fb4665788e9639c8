"""The folder of a comparison: its description, and a file for each finished method, so that a killed run can resume.

``comparison.json`` says by digests all that the results depend on; a run over anything else is refused. Each file of
``methods/`` appears whole, with the key of the comparison in it, and is of a zip's checksums: one that is damaged, or
of another comparison, is made again. Methods may be added later: what is done stays.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .._base import warn
from .._base.files import read, replacing
from .._base.types import NDArray as Array
from .._base.types import PathLike
from .settings import OP, Setting
from .work import Outcome

Kept = Callable[[str, Callable[[], dict[str, Array]]], dict[str, Array]]  # as `Store.kept`

_ABOUT, _METHODS = "comparison.json", "methods"
_FORMAT = 1
_MOST_BYTES = 1 << 28  # of its description
# What a damaged file makes of its reader; MemoryError: of the shape that it says.
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError)


class Store:
    """The folder at `out`, or none."""

    def __init__(self, out: PathLike | None, described: dict[str, Any], *, reports: tuple[str, ...], overwrite: bool):
        text = json.dumps(described, sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()
        self.folder = None if out is None else Path(out)
        if self.folder is None:
            return
        self._check(self.folder, described, {_ABOUT, _METHODS, *reports}, overwrite)
        methods = self.folder / _METHODS
        methods.mkdir(parents=True, exist_ok=True)
        for left in methods.glob(".*.partial"):  # by a kill
            left.unlink(missing_ok=True)
        with replacing(self.folder / _ABOUT) as file:
            file.write(json.dumps({"format": _FORMAT, **described}, indent=1).encode() + b"\n")

    def outcome(self, setting: Setting, make: Callable[[], Outcome]) -> Outcome:
        """Return what is there of a method, or make and keep it."""

        def arrays() -> dict[str, Array]:
            made = make()
            measures = {f"measure {name}": values for name, values in made.values.items()}
            return {"indices": made.indices, "seconds": made.seconds, **measures}

        found = self.kept(file_name(setting), arrays)
        values = {name.removeprefix("measure "): found[name] for name in found if name.startswith("measure ")}
        return Outcome(found["indices"], values, found["seconds"])

    def kept(self, name: str, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
        """Return arrays that are there under a name, or make and keep them."""
        if self.folder is None:
            return make()
        path = self.folder / _METHODS / f"{name}.npz"
        found = self._read(path)
        if found is not None:
            return found
        made = make()
        content = io.BytesIO()
        np.savez(content, key=np.array(self._key), **made)  # type: ignore[arg-type]
        with replacing(path) as file:
            file.write(content.getvalue())
        return made

    def _read(self, path: Path) -> dict[str, Array] | None:
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(read(path)), allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
            if str(found.pop("key")) == self._key:
                return found
        except _DAMAGE as error:
            warn.warn(f"{OP}: {path} is damaged and made again: {error}", UserWarning)
        return None

    @staticmethod
    def _check(folder: Path, described: dict[str, Any], ours: set[str], overwrite: bool) -> None:
        """Refuse a folder of anything else, or of a comparison of other inputs unless it may be overwritten."""
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(f"{OP}: out must be a folder, got the file {folder}")
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        names = [name for name in names if not re.fullmatch(r"\..*\.partial", name)]
        others = [name for name in names if name not in ours]
        if others or (names and _ABOUT not in names):
            got = others[0] if others else names[0]
            raise FileExistsError(
                f"{OP}: out must be new, empty, or hold an earlier comparison, got {folder} with {got}"
            )
        if not names:
            return
        try:
            before = json.loads(read(folder / _ABOUT, _MOST_BYTES))
            if before.pop("format") != _FORMAT:
                raise ValueError("it is of another format")
        except (OSError, ValueError, KeyError, AttributeError) as error:
            if not overwrite:
                raise ValueError(
                    f"{OP}: {_ABOUT} must be as a comparison wrote it, or overwrite be given, got {folder}: {error}"
                ) from error
            return
        fields = dict.fromkeys((*before, *described))
        changed = [
            f"{name} {before.get(name)}, now {described.get(name)}"
            for name in fields
            if before.get(name) != described.get(name)
        ]
        if changed and not overwrite:
            raise ValueError(
                f"{OP}: out must hold a comparison of the same inputs and options to go on with, or overwrite be "
                f"given, got {folder} with {'; '.join(changed)}"
            )


def file_name(setting: Setting) -> str:
    """Return the name of a method's file: of what it calls too, for labels are free."""
    text = json.dumps([setting.rule, setting.arguments], sort_keys=True, default=_plain)
    digest = hashlib.sha256(f"{setting.name} {text}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', setting.name)[:40]}-{digest}"


def _plain(value: Any) -> str:
    array = np.ascontiguousarray(value)
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
