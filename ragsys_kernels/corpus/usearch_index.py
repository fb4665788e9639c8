"""usearch indexes as retrievers, with the few names of FAISS's that a search needs.

The keys of an index are the numbers of the rows. It has the rows' vectors, or with one more column their bias, as
`faiss_index` describes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from .._base import checks
from .._base.extras import needed
from .index_rows import Held

SUFFIX = ".usearch"


def is_one(index: object) -> bool:
    """Return whether an index is usearch's; what is not imported made none."""
    usearch = sys.modules.get("usearch.index")
    return isinstance(index, Retriever) or (usearch is not None and isinstance(index, usearch.Index))


def read(op: str, file: str, path: object) -> Retriever:
    """Map the index of a file, which messages call `path`."""
    with needed(op, "usearch"):
        from usearch.index import Index
    try:
        stored = Index.metadata(file)
        # Vectors are stored before the graph: a file that has been cut is shorter than they are.
        wanted = 0 if stored is None else stored["count_present"] * stored["dimensions"] // 8
        if stored is None or Path(file).stat().st_size < wanted:
            raise ValueError("no index, or one that has been cut")
        index = Index.restore(file, view=True)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{op}: index must be a readable usearch file, got {path}: {checks.line(error)}") from error
    return Retriever(op, [index])


class Retriever:
    """One index, or several whose rows follow one another; `search` is FAISS's, without the distances."""

    def __init__(self, op: str, parts: list[Any]) -> None:
        self.parts, self.d = parts, int(parts[0].ndim)
        self.metric = parts[0].metric_kind.name  # "Cos", "IP", "L2sq" and others
        for part in parts:
            if (part.ndim, part.metric_kind.name) != (self.d, self.metric):
                raise ValueError(
                    f"{op}: index must have parts of one width and metric, got {self.d} columns of {self.metric} and "
                    f"{part.ndim} of {part.metric_kind.name}"
                )
        self._starts = np.cumsum([0, *map(len, parts)])
        self.ntotal = int(self._starts[-1])

    def held(self) -> Held:
        """Return what it holds: under its keys, or of several, under those and where each begins."""
        exact = all(part.dtype.name in ("F32", "F64") for part in self.parts)
        numbers = np.asarray(self.parts[0].keys[:], np.int64) if len(self.parts) == 1 else None
        return Held(numbers, self._vectors, exact)

    def _vectors(self, wanted: np.ndarray) -> np.ndarray | None:
        of_part = np.searchsorted(self._starts, wanted, side="right") - 1 if len(self.parts) > 1 else 0 * wanted
        pairs = zip(of_part.tolist(), (wanted - self._starts[of_part]).tolist(), strict=True)
        found = [self.parts[number].get(key) for number, key in pairs]
        if any(each is None or each.dtype.kind != "f" or each.shape != (self.d,) for each in found):
            return None  # bits, bytes, or several vectors for one key
        return np.stack(found)

    def search(self, vectors: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the distances and the rows (Q, n) of the nearest, from the nearest on; -1 where there are no more."""
        pairs = zip(self.parts, self._starts[:-1].tolist(), strict=True)
        found = [self._of_part(part, start, vectors, n) for part, start in pairs]
        distances, rows = (np.concatenate(each, axis=1) for each in zip(*found, strict=True))
        order = np.argsort(distances, axis=1, kind="stable")[:, :n]
        return np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)

    def _of_part(self, part: Any, start: int, vectors: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        distances, rows = np.full((len(vectors), n), np.inf, np.float32), np.full((len(vectors), n), -1, np.int64)
        matches = part.search(vectors, min(n, max(1, len(part))))
        keys, width = np.atleast_2d(matches.keys), min(n, np.atleast_2d(matches.keys).shape[1])
        there = np.arange(width) < np.atleast_1d(getattr(matches, "counts", width))[:, None]
        distances[:, :width] = np.where(there, np.atleast_2d(matches.distances)[:, :width], np.inf)
        rows[:, :width] = np.where(there, keys[:, :width].astype(np.int64) + start, -1)
        return distances, rows
