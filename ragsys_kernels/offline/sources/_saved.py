"""A saved corpus (`Corpus.save`) used as a file of vectors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import ragsys_kernels as rk

from ..._base.types import PathLike
from ...corpus.folder import DESCRIPTION
from ...corpus.ids import Ids
from ...corpus.joined_ids import Joined
from ...corpus.segments import files, is_segmented
from ..spread import check_spread, in_turns
from ._column import Column
from ._place import Place


class SavedColumn(Column):
    """Values of the rows of a saved corpus, vectors or ids."""

    def __init__(self, place: Place, shape: tuple[int, int], values: Callable[[slice], Any]) -> None:
        self.path, (self.rows, self.dims) = place.path, shape
        self._place, self._values = place, values

    def _some(self, begin: int, end: int, bad: dict[int, str] | None) -> Any:
        return self._values(slice(begin, end))

    def whole(self) -> Any:
        return self._values(slice(None))

    def embeddings(self) -> Any:
        return self.whole()

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"path": str(self.path), "files": [file.identity(full, known) for file in files_of(self._place)]}


def files_of(place: Place) -> list[Place]:
    """Return the files of a saved corpus as it is now; of one at a URL that which has the checksums of the others."""
    if place.local is None:
        return [place.child(DESCRIPTION)]
    names = place.names() if not is_segmented(place.local) else files(place.local)
    return [place.child(name) for name in names]


class SavedIds(SavedColumn):
    """Ids of the rows of a saved corpus, all of them without a copy."""

    def __init__(self, place: Place, ids: Ids) -> None:
        super().__init__(place, (len(ids), 0), lambda part: pa.array(ids[part]))
        self._ids = ids

    def whole(self) -> Any:
        try:
            return pa.chunked_array([id_values(self._ids)])
        except pa.ArrowInvalid as error:
            raise ValueError(f"select: corpus must be usable, got {self.path}: {error}") from error


def id_values(ids: Ids) -> pa.Array:
    """Return the ids of a corpus, if it has any, as Arrow's in the same memory; strings with 64-bit offsets."""
    if isinstance(ids, Joined) and ids.kind != "row":
        return pa.array(ids.whole(), pa.large_string() if ids.kind == "str" else pa.int64())
    arrays = ids.arrays()
    if ids.kind != "str":
        return pa.array(arrays["ids"]) if arrays else None
    offsets, text = (pa.py_buffer(arrays[name]) for name in ("id_offsets", "id_text"))
    found = pa.LargeStringArray.from_buffers(len(ids), offsets, text)
    found.validate(full=True)  # a large folder is not read whole when it is loaded, and Arrow trusts its offsets
    return found


def is_saved(place: Place) -> bool:
    """Whether it is the folder of a saved corpus."""
    if place.local is not None:
        return (place.local / DESCRIPTION).is_file()
    # HTTP knows no folders: what it has at the name of one is a page.
    return (not place.suffix or place.kind() == "folder") and place.child(DESCRIPTION).kind() == "file"


def saved(
    path: PathLike,
    options: dict[str, Any],
    verify: bool = True,
    memory: int | None = None,
    num_threads: int | None = None,
    spread: bool = False,
) -> rk.Corpus | None:
    """Return the corpus, mapped into memory; None if the path is not a saved corpus.

    One at a URL is fetched, and with ``memory`` its segments in turns. All bytes are compared with the checksums unless
    ``verify`` is False. Options that contradict the saved corpus are refused. With ``spread`` other processes hold its
    segments, at most ``memory`` each, and fetch and verify them: a corpus in segments alone.
    """
    place = Place(path, "corpus")
    if not is_saved(place):
        return None
    at = os.fspath(path) if place.local is None else place.local
    if spread:
        assert memory is not None
        check_spread("select", at, memory)
    if place.local is None and memory is not None and is_segmented(at):
        corpus: rk.Corpus = in_turns("select", at, memory, num_threads)
    else:
        try:
            corpus = rk.Corpus.load(at, verify=verify and not spread, memory=memory)
        except ValueError as error:
            raise ValueError(f"select: corpus must be usable, got {path}: {error}") from error
    for name, value in options.items():
        known = getattr(corpus, name) if name in ("metric", "dtype") else None
        if value is None or value == known:
            continue
        if known is None:
            raise ValueError(f"select: {name} must be left out with the saved corpus {path}, got {value}")
        raise ValueError(
            f"select: {name} must be that of the saved corpus {path}, {known!r}, or left out, got {value!r}"
        )
    return corpus


def saved_columns(path: PathLike, corpus: rk.Corpus) -> tuple[SavedColumn, SavedColumn | None]:
    """Return the vectors and the ids of a corpus that has been loaded from a folder."""
    place = Place(path, "corpus")
    vectors = SavedColumn(place, (len(corpus), corpus.dims), corpus.vectors)
    return vectors, None if corpus.ids.kind == "row" else SavedIds(place, corpus.ids)
