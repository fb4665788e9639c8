"""FAISS indexes in files, which retrieve the candidates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import ragsys_kernels as rk

from ..._types import PathLike
from ...corpus import faiss_index
from ._place import Place


class Index:
    """The file of an index over the `rows` rows of a corpus; only `of` reads it, since that loads it whole."""

    def __init__(self, file: PathLike, rows: int) -> None:
        self._place = Place(file, "index")
        if self._place.kind() != "file":
            raise FileNotFoundError(f"select: index must be an existing file, got {self._place}")
        self.path: str | Path = self._place.path
        self.rows = rows

    def of(self, corpus: rk.Corpus) -> Any:
        """Load the index; refuse one that is not of this corpus, as far as its sizes and its metric tell."""
        held = self._place.mapped()
        with open(held.path, "rb") as file:  # FAISS takes names in UTF-8 only
            index = faiss_index.read("select", f"/proc/self/fd/{file.fileno()}", self.path)
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
        return {"path": str(self.path), "files": [self._place.identity(full, known)]}
