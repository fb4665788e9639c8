"""What a column of an input file gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Column(Protocol):
    """Rows of one kind: vectors, ids, numbers or candidate lists."""

    path: str | Path  # for messages; a URL is a str
    rows: int
    dims: int  # length of each row; 0 where rows are single values or lists of any length

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[Any]:
        """Yield the rows `start` to `stop` in order, `size` at a time (fewer in the last step).

        Reading begins at the row group, record batch or array row of `start`. With `bad`, rows that cannot be read
        (a row group that is damaged, a missing vector or one of another length) are entered there with the reason, and
        yielded as zeros, all -1 or null; without, the first is an error.
        """

    def whole(self) -> Any:
        """Return all rows; for the corpus, which has to fit."""

    def embeddings(self) -> Any:
        """Return what `Corpus` takes of vectors: an array that is mapped, or else `Blocks`, which are never whole."""

    def where(self, row: int) -> str:
        """Say where a row is: its number in its file, and that file."""

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what tells these rows from others: path, column, and each file's name, size, time of change or ETag,
        and SHA-256 of the content: of its first, middle and last MiB, or with `full` of all of it.

        `known` takes what is found out of a file, by its path, and spares to find it out for another column.
        """


def whole(column: Column, step: int, dtype: npt.DTypeLike | None) -> Any:
    """Return all rows of a column that is read in steps: of so many vectors, whose type is known, or of values."""
    if not column.dims:
        parts = list(column.chunks(1 << 16))
        return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.chunked_array(parts)
    array, start = np.empty((column.rows, column.dims), dtype), 0
    for part in column.chunks(step):
        array[start : start + len(part)] = part
        start += len(part)
    return array
