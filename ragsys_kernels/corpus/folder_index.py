"""The index of a saved corpus: FAISS's, of each segment a file beside its rows, which is mapped into memory.

One index is trained for a folder, and each segment has a copy with its rows; a segment that is too small for one has
none, and is searched exactly (index_search.py).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..selection.problem import Rows
from . import faiss_index, spans

FILE = "index.faiss"
_SAMPLED, _BLOCK = 64, 1 << 12  # blocks of the file that a load compares, and their bytes
_SETTINGS = 4  # kept open at once, with different parameters


@dataclass(frozen=True)
class Recipe:
    """What indexes of a folder are made of: a factory string of FAISS, and the parameters that they are searched with.

    These are as FAISS's ParameterSpace takes them, such as "nprobe=32" or "efSearch=64"; "" are its defaults.
    """

    factory: str
    parameters: str = ""

    @classmethod
    def of(cls, described: Any) -> Recipe | None:
        """Return the recipe that a description of a folder names, if any."""
        return None if described is None else cls(str(described["factory"]), str(described["search_parameters"]))

    def described(self) -> dict[str, str]:
        return {"factory": self.factory, "search_parameters": self.parameters}

    def __str__(self) -> str:
        return f"{self.factory} ({self.parameters})" if self.parameters else self.factory

    def empty(self, op: str, columns: int) -> Any:
        """Return an index without rows; refuse a factory string or parameters that FAISS does."""
        index = faiss_index.empty(op, columns, self.factory)
        faiss_index.set_parameters(op, index, self.parameters)
        return index


class Maker:
    """Makes the indexes of the segments of a folder: one is trained, and each segment gets a copy with its rows."""

    def __init__(self, op: str, recipe: Recipe, columns: int) -> None:
        self._op, self._recipe = op, recipe
        self._blank = recipe.empty(op, columns)
        self._ready = bool(self._blank.is_trained)
        # A segment of fewer rows gets none: to search it exactly takes less time than to look for the nearest cells.
        self.least = 1 if self._ready else faiss_index.centroids(op, self._blank)

    @property
    def cells(self) -> tuple[int, int] | None:
        """How many cells a search looks into, and how many there are; None without cells."""
        return faiss_index.cells(self._op, self._blank)

    @property
    def ready(self) -> bool:
        """Whether it has been trained, or need not be."""
        return self._ready

    def wanted(self, most: int) -> int:
        """Return how many rows it is trained on, of ``most`` that there is the memory for."""
        return faiss_index.wanted(self.least, most)

    def train(self, vectors: np.ndarray) -> None:
        """Train on rows as `faiss_index.stored` returns them."""
        with faiss_index.buildable(self._op, repr(self._recipe.factory), len(vectors)):
            self._blank.train(vectors)
        # Tried only once it is trained.
        faiss_index.set_parameters(self._op, self._blank, self._recipe.parameters)
        self._ready = True

    def go_on(self, file: Path) -> None:
        """Take what has been trained from the index of a segment."""
        self._blank = faiss_index.emptied(self._op, np.fromfile(file, np.uint8), file)
        self._ready = True

    def of(self, rows: Rows) -> Any:
        """Return the index of some rows, or None where they are too few for one."""
        count = len(rows.data)
        if count < self.least:
            return None
        if not self._ready:
            self.train(faiss_index.stored(rows, faiss_index.sample(count, self.wanted(count))))
        with faiss_index.buildable(self._op, repr(self._recipe.factory), count):
            index = faiss_index.copied(self._op, self._blank)
            faiss_index.fill(index, rows)
        return index


def columns_of(rows: Rows) -> int:
    """Return how many columns the index of some rows has."""
    return rows.dims + (rows.bias is not None)


def write(index: Any, file: Any) -> None:
    """Write an index to a file."""
    faiss_index.write(index, file.write)


def sample_of(file: Path) -> str:
    """Return the SHA-256 of some blocks of a file, from the first to the last."""
    size = file.stat().st_size
    blocks = np.unique(np.linspace(0, max(0, size - _BLOCK), _SAMPLED).astype(np.int64))
    summed = hashlib.sha256()
    with open(file, "rb") as opened:
        for begin in blocks.tolist():
            opened.seek(begin)
            summed.update(opened.read(_BLOCK))
    return summed.hexdigest()


def _content(file: Path) -> np.ndarray:
    with open(file, "rb", buffering=0) as opened:
        return spans.mapped(opened.fileno(), os.fstat(opened.fileno()).st_size)


@dataclass(frozen=True)
class Part:
    """The index of rows ``begin`` to ``end``, in a file."""

    begin: int
    end: int
    file: Path
    content: np.ndarray | None = field(default=None, repr=False)  # of the file, mapped

    @classmethod
    def mapped(cls, begin: int, end: int, file: Path) -> Part:
        """Return the part with its file mapped: who has it keeps it when another version takes its place."""
        return cls(begin, end, file, _content(file))

    def __reduce__(self) -> Any:  # another process maps the file when it searches; one that was fetched has no name
        content = None if self.content is None or self.file.exists() else np.array(self.content)
        return Part, (self.begin, self.end, self.file, content)

    def opened(self, op: str, columns: tuple[int, ...], parameters: str) -> tuple[Any, np.ndarray]:
        content = self.content
        if content is None:
            try:
                content = _content(self.file)
            except OSError as error:
                raise ValueError(f"{op}: index must be that of the corpus, got {self.file}: {error}") from error
        index = faiss_index.mapped(op, content, self.file)
        if index.d not in columns or index.ntotal != self.end - self.begin:
            raise ValueError(
                f"{op}: index must be that of the {self.end - self.begin} rows beside it, got {self.file} with "
                f"{index.ntotal} of {index.d} columns"
            )
        faiss_index.set_parameters(op, index, parameters)
        return index, content


class FolderIndex:
    """The index of a corpus as it was loaded from a folder. Rows beyond its parts have none."""

    def __init__(self, recipe: Recipe, parts: Sequence[Part], parameters: str | None = None) -> None:
        self.recipe, self._parts = recipe, tuple(parts)
        self.parameters = recipe.parameters if parameters is None else parameters
        self._opened: dict[tuple[int, str], tuple[Any, np.ndarray]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return FolderIndex, (self.recipe, self._parts, self.parameters)

    def __str__(self) -> str:
        return str(Recipe(self.recipe.factory, self.parameters))

    def with_parameters(self, parameters: str) -> FolderIndex:
        """Return the same index, searched with other parameters."""
        if parameters == self.parameters:
            return self
        other = FolderIndex(self.recipe, self._parts, parameters)
        other._opened, other._lock = self._opened, self._lock
        return other

    def ranges(self, num_rows: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield runs of rows, from the first to the last, and the number of their part, None where they have none."""
        begin = 0
        for number, part in enumerate(self._parts):
            if begin < part.begin:
                yield begin, part.begin, None
            yield part.begin, part.end, number
            begin = part.end
        if begin < num_rows:
            yield begin, num_rows, None

    def opened(self, op: str, number: int, columns: tuple[int, ...]) -> tuple[Any, np.ndarray]:
        """Return the index of a part, and the bytes that it reads from its file."""
        key = number, self.parameters
        with self._lock:
            if (found := self._opened.get(key)) is None:
                if len(self._opened) >= _SETTINGS * len(self._parts):
                    del self._opened[next(iter(self._opened))]
                found = self._opened[key] = self._parts[number].opened(op, columns, self.parameters)
        return found


def chosen(corpus: Any, index: Any, backend: str) -> Any:
    """Return what finds rows: an index, or False for the exact search.

    ``index`` is what a call says: None for that of the corpus, if it has one, with text for its parameters.
    """
    if index is not None and not isinstance(index, str):
        return index
    own = getattr(corpus, "_index", None)
    here = isinstance(corpus.data, np.ndarray) and backend != "triton"  # others find rows exactly
    if own is None or not here:
        return False if index is None else index  # which is refused as any other text
    return own if index is None else own.with_parameters(index)
