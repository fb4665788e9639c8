"""What retrieves the candidates: an index in a file, of FAISS or usearch, several over consecutive rows, a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import ragsys_kernels as rk

from ..._base.types import PathLike
from ...corpus import faiss_index, usearch_index
from ...corpus.folder import DESCRIPTION
from . import _saved
from ._place import Place


class Index:
    """The file of an index over the `rows` rows of a corpus; only `of` reads it, since that loads it whole.

    In a folder the files, in the order of their names, have the rows one after the other: one a segment, for instance.
    """

    def __init__(self, file: PathLike, rows: int) -> None:
        place = Place(file, "index")
        kind = place.kind()
        self._saved = place if kind == "folder" and DESCRIPTION in place.names() and place.local is not None else None
        if self._saved is not None:
            self._files = _saved.files_of(place)
        elif kind == "folder":
            self._files = [place.child(name) for name in sorted(place.names()) if not name.startswith((".", "_"))]
        else:
            self._files = [place] if kind == "file" else []
        if not self._files or any(each.kind() != "file" for each in self._files):
            raise FileNotFoundError(f"select: index must be an existing file, or a folder of such, got {place}")
        self._several = kind == "folder"
        self.path: str | Path = place.path
        self.rows = rows

    def of(self, corpus: rk.Corpus) -> Any:
        """Load the index; refuse one that is not of this corpus, as far as its sizes and its metric tell."""
        parts = [] if self._saved is None else [rk.Corpus.load(str(self._saved.path))]
        for place in self._files if self._saved is None else ():
            held = place.mapped()  # of a URL for as long as this is kept
            with open(held.path, "rb") as file:  # FAISS takes names in UTF-8 only
                library = usearch_index if str(place.path).endswith(usearch_index.SUFFIX) else faiss_index
                parts.append(library.read("select", f"/proc/self/fd/{file.fileno()}", place.path))
        index = faiss_index.consecutive("select", parts) if self._several and self._saved is None else parts[0]
        with self.searched():
            corpus.search(np.zeros((1, corpus.dims), np.float32), 1, index=index)
        return index

    @contextmanager
    def searched(self) -> Iterator[None]:
        """Name the file in errors of the index, which may also show when it is searched."""
        try:
            yield
        except ValueError as error:
            reason = str(error).partition(": ")[2]
            if not reason.startswith("index "):
                raise
            raise ValueError(f"select: index must be one of the corpus, got {self.path}: {reason}") from error

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"path": str(self.path), "files": [place.identity(full, known) for place in self._files]}
