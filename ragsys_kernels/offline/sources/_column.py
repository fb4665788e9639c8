"""What a column of an input file gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...corpus.rows import Blocks
from ._rows import span

BLOCK_BYTES = 1 << 24  # of vectors read at a time where all are


class Column:
    """Rows of one kind: vectors, ids, numbers or candidate lists."""

    path: str | Path  # for messages; a URL is a str
    rows: int
    dims: int = 0  # length of each row; 0 where rows are single values or lists of any length
    _dtype: Any = None  # of vectors

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[Any]:
        """Yield the rows `start` to `stop` in order, `size` at a time (fewer in the last step).

        Reading begins at the row group, record batch or array row of `start`. With `bad`, rows that cannot be read
        (a row group that is damaged, a missing vector or one of another length) are entered there with the reason, and
        yielded as zeros, all -1 or null; without, the first is an error.
        """
        start, stop = span(self.rows, start, stop)
        for begin in range(start, stop, size):
            yield self._some(begin, min(begin + size, stop), bad)

    def _some(self, begin: int, end: int, bad: dict[int, str] | None) -> Any:
        """Return some rows that exist, where each chunk can be read by itself."""
        raise NotImplementedError

    def whole(self) -> Any:
        """Return all rows; for the corpus, which has to fit."""
        if not self.dims:
            parts = list(self.chunks(1 << 16)) or [pa.nulls(0)]
            return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.chunked_array(parts)
        array, start = np.empty((self.rows, self.dims), self._dtype), 0
        for part in self.chunks(max(1, BLOCK_BYTES // (4 * self.dims))):
            array[start : start + len(part)] = part
            start += len(part)
        return array

    def embeddings(self) -> Any:
        """Return what `Corpus` takes of vectors: an array that is mapped, or else `Blocks`, which are never whole."""
        shape = self.rows, self.dims
        return Blocks(shape, np.dtype(self._dtype).name, self.chunks) if all(shape) else np.empty(shape, self._dtype)

    def where(self, row: int) -> str:
        """Say where a row is: its number in its file, and that file."""
        return f"row {row} of {self.path}"

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what tells these rows from others: path, column, and each file's name, size, time of change or ETag,
        and SHA-256 of the content: of its first, middle and last MiB, or with `full` of all of it.

        `known` takes what is found out of a file, by its path, and spares to find it out for another column.
        """
        raise NotImplementedError
