"""The texts of documents, read from their file by row when somebody asks for them.

Texts are not held in memory: the row groups of Parquet that contain the rows are read, a thousand rows at a time, and
an Arrow file is mapped. Only the place of the text of each row is kept, in four or eight bytes, unless the rows of the
file are in the order of the corpus.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .._base.checks import line, shown
from ..corpus import Corpus
from .limits import RefusedError

_ARROW = (".arrow", ".feather", ".ipc")
_ROWS = 1024  # that are unpacked at a time
_IDS = 1 << 16  # that are looked up at a time
_OPEN = 32  # files of a folder


@dataclass(frozen=True)
class TextFile:
    """A file with the texts of a corpus.

    Parameters
    ----------
    path : str
        A ``.parquet`` file or a folder of such, in the order of their names, or an ``.arrow`` file, which is mapped.
    column : str
        The column of the texts.
    id_column : str, optional
        The column of the corpus's ids; default: ``id``. A corpus without ids takes the rows in their order instead,
        unless a column is named.
    """

    path: str
    column: str = "text"
    id_column: str | None = None


class Text(NamedTuple):
    """A text, or where it begins: ``chars`` is how many characters the whole has."""

    text: str
    chars: int


class _Part(NamedTuple):
    """Rows that follow each other: a row group of Parquet, or a batch of an Arrow file."""

    file: str
    place: int
    rows: int


class Texts:
    """The texts of one version of a corpus. One thread reads at a time."""

    def __init__(self, given: TextFile, corpus: Corpus) -> None:
        self._given = given
        self._open: OrderedDict[str, Any] = OrderedDict()
        try:
            self._parts = [part for file in _files(given.path) for part in self._parts_of(file)]
            self._begins = np.cumsum([0, *(part.rows for part in self._parts)])
            for file in dict.fromkeys(part.file for part in self._parts):
                self._check(file, given.column, _is_text, "text")
            self._places = self._found(corpus)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise ValueError(f"serve: texts must be readable, got {given.path}: {line(error)}") from error
        self.count = len(corpus) if self._places is None else int((self._places >= 0).sum())

    def read(self, rows: Sequence[int] | np.ndarray, chars: int | None, most: int) -> list[Text | None]:
        """Return the texts of rows of the corpus, each its first ``chars`` characters; None where there is none.

        Raises
        ------
        RefusedError
            413: they have more than ``most`` bytes in all. 500: the file has changed, or is damaged.
        """
        asked = np.asarray(rows, np.int64)
        places = asked if self._places is None else np.where(asked >= 0, self._places[asked], -1)
        found: dict[int, Text] = {}
        try:
            for place, text in self._texts(np.unique(places[places >= 0]), chars):
                most -= len(text.text.encode("utf-8", "surrogatepass"))
                if most < 0:
                    raise RefusedError(413, "texts: ids must be of fewer or shorter texts, see chars, got more", "ids")
                found[place] = text
        except (pa.ArrowException, OSError, UnicodeError, ValueError) as error:
            raise RefusedError(500, f"texts: the file of the texts must be readable: {line(error)}") from error
        return [found.get(place) for place in places.tolist()]

    def _texts(self, places: np.ndarray, chars: int | None) -> Iterator[tuple[int, Text]]:
        """Yield the texts at places that ascend."""
        of_part = np.searchsorted(self._begins, places, side="right") - 1
        for number in np.unique(of_part).tolist():
            begin = int(self._begins[number])
            wanted = places[of_part == number] - begin
            done = 0
            for batch in self._batches(self._parts[number], self._given.column, int(wanted[-1]) + 1):
                here = wanted[(wanted >= done) & (wanted < done + len(batch))]
                for first in range(0, len(here), _ROWS):
                    some = here[first : first + _ROWS]
                    taken = batch.take(pa.array(some - done)).cast(pa.large_string())
                    cut = taken if chars is None else pc.utf8_slice_codeunits(taken, 0, chars)
                    for row, text, length in zip(some, cut, pc.utf8_length(taken), strict=True):
                        if text.is_valid:
                            yield begin + int(row), Text(text.as_py(), length.as_py())
                done += len(batch)

    def _batches(self, part: _Part, column: str, stop: int) -> Iterator[pa.Array]:
        """Yield a column of a part up to a row, some rows at a time."""
        opened = self._opened(part.file)
        if not isinstance(opened, pq.ParquetFile):
            yield opened.get_batch(part.place).column(column)
            return
        done = 0
        for batch in opened.iter_batches(_ROWS, row_groups=[part.place], columns=[column], use_threads=False):
            yield batch.column(0)
            done += len(batch)
            if done >= stop:
                return

    def _opened(self, file: str) -> Any:
        """Return an open file; the least recently used ones are closed."""
        opened = self._open.pop(file, None)
        if opened is None:
            if file.endswith(".parquet"):
                opened = pq.ParquetFile(file, memory_map=True, pre_buffer=False)
            else:
                opened = pa.ipc.open_file(pa.memory_map(file))
        self._open[file] = opened
        if len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return opened

    def _parts_of(self, file: str) -> list[_Part]:
        opened = self._opened(file)
        if isinstance(opened, pq.ParquetFile):
            groups = opened.metadata
            return [_Part(file, i, groups.row_group(i).num_rows) for i in range(groups.num_row_groups)]
        return [_Part(file, i, opened.get_batch(i).num_rows) for i in range(opened.num_record_batches)]

    def _schema(self, file: str) -> pa.Schema:
        opened = self._opened(file)
        return opened.schema_arrow if isinstance(opened, pq.ParquetFile) else opened.schema

    def _check(self, file: str, column: str, accepts: Any, what: str) -> None:
        schema = self._schema(file)
        if schema.names.count(column) != 1:
            raise ValueError(f"serve: texts must have one column {shown(column)}, got {schema.names} in {file}")
        kind = schema.field(column).type
        if not accepts(kind):
            raise ValueError(f"serve: texts must have {what} in column {shown(column)}, got {kind} in {file}")

    def _found(self, corpus: Corpus) -> np.ndarray | None:
        """Return the place in the file of the text of each row, -1 if it has none; None: each at its own number."""
        total, path = int(self._begins[-1]), self._given.path
        if corpus.ids.kind == "row" and self._given.id_column is None:
            if total != len(corpus):
                rule = f"have a row for each of the corpus's {len(corpus)}, for it has no ids"
                raise ValueError(f"serve: texts must {rule}, got {total} in {path}")
            return None
        places = np.full(len(corpus), -1, np.int32 if total < 2**31 else np.int64)
        for begin, ids in self._ids(self._given.id_column or "id"):
            try:
                rows = corpus.rows_of(ids, unknown="pad")
            except (TypeError, ValueError) as error:
                raise ValueError(f"serve: texts must have the corpus's ids, got {path}: {line(error)}") from error
            known = np.flatnonzero(rows >= 0)
            rows = rows[known]
            there = np.flatnonzero(places[rows] >= 0)
            places[rows] = known + begin
            again = np.flatnonzero(places[rows] != known + begin)  # twice in this batch
            if len(there) or len(again):
                twice = corpus.ids[int(rows[(there if len(there) else again)[0]])]
                raise ValueError(f"serve: texts must have an id once, got {shown(twice)} twice in {path}")
        if not len(corpus) or (places < 0).all():
            raise ValueError(f"serve: texts must have ids of the corpus, got none in {path}")
        return None if np.array_equal(places, np.arange(len(corpus))) else places

    def _ids(self, column: str) -> Iterator[tuple[int, Any]]:
        """Yield a column of ids, some at a time, each with the number of its first row."""
        for begin, part in zip(self._begins.tolist(), self._parts, strict=False):
            self._check(part.file, column, lambda kind: pa.types.is_integer(kind) or _is_text(kind), "ids")
            waiting: list[pa.Array] = []
            for batch in self._batches(part, column, part.rows):
                waiting.append(batch)
                if (size := sum(map(len, waiting))) >= _IDS:
                    yield begin, _plain(waiting)
                    begin, waiting = begin + size, []
            if waiting:
                yield begin, _plain(waiting)


def _files(path: str) -> list[str]:
    place = Path(path)
    if place.is_dir():
        files = sorted(str(file) for file in place.rglob("*.parquet") if not file.name.startswith((".", "_")))
        if not files:
            raise ValueError(f"serve: texts must be a folder of .parquet files, got none in {path}")
        for file in files:
            if not os.path.isfile(file):  # reading a pipe would wait
                raise FileNotFoundError(f"serve: texts must be a folder of files, got {file}")
        return files
    if not place.is_file():
        raise FileNotFoundError(f"serve: texts must be an existing file or folder, got {path}")
    if place.suffix not in (".parquet", *_ARROW):
        raise ValueError(f"serve: texts must be a .parquet, {', '.join(_ARROW)} file, got {path}")
    return [os.fspath(place)]


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    view = hasattr(pa.types, "is_string_view") and pa.types.is_string_view(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or view)


def _plain(arrays: list[pa.Array]) -> Any:
    """Return ids as a corpus takes them, with an id that no corpus has for null."""
    column = pa.chunked_array(arrays)
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).fill_null(-1).to_numpy()
    return column.to_pylist()
