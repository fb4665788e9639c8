"""The folder of a corpus that `Corpus.save` wrote, in the place of a file of vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import ragsys_kernels as rk

from ..._types import PathLike
from ...corpus.folder import DESCRIPTION
from ._place import Place
from ._rows import span


class SavedColumn:
    """Values of the rows of a saved corpus, vectors or ids."""

    def __init__(self, place: Place, shape: tuple[int, int], values: Callable[[slice], Any]) -> None:
        self.path: str | Path = place.path
        self.rows, self.dims = shape
        self._place, self._values = place, values

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[Any]:
        start, stop = span(self.rows, start, stop)
        for begin in range(start, stop, size):
            yield self._values(slice(begin, min(begin + size, stop)))

    def whole(self) -> Any:
        values = self._values(slice(None))
        return values if self.dims else pa.chunked_array([values])

    embeddings = whole

    def where(self, row: int) -> str:
        return f"row {row} of {self.path}"

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        files = [self._place.child(name).identity(full, known) for name in self._place.names()]
        return {"path": str(self.path), "files": files}


def saved(path: PathLike) -> tuple[rk.Corpus, SavedColumn, SavedColumn | None] | None:
    """Return the corpus, mapped into memory, with its vectors and its ids; None where the path is not of such a one."""
    place = Place(path, "corpus")
    if place.local is None or not (place.local / DESCRIPTION).is_file():
        return None
    try:
        corpus = rk.Corpus.load(place.local)
    except ValueError as error:
        raise ValueError(f"select: corpus must be usable, got {path}: {error}") from error
    ids = SavedColumn(place, (len(corpus), 0), lambda part: pa.array(corpus.ids[part]))
    vectors = SavedColumn(place, (len(corpus), corpus.dims), corpus.vectors)
    return corpus, vectors, None if corpus.ids.kind == "row" else ids
