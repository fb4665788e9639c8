"""A folder of segments in step with a store: what is new or changed there is appended, what has gone is deleted.

Rows are compared as the folder stores them: a row of the source is made what it would be stored as, and its bytes are
those that are there, or it has changed. So nothing has to be remembered between two runs, and a run after a kill finds
what is left to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import ragsys_kernels as rk

from .._base import checks
from .._base.arrays import BYTES, HOST
from .._base.types import BadRows, Metric, PathLike, Storage
from ..corpus import id_keys, segments, versions
from ..corpus import rows as stored_rows
from ..corpus.ids import Ids, make
from ..selection.problem import COLUMNS
from . import sources, stores
from ._pipeline import ahead
from .build import columns_of, of_source, words_of
from .sinks import skipped_list, write_skipped

_OP = stores.OP
_BATCH = 8192  # rows that are read and compared at a time
# A folder of more segments, or of which a larger share is deleted, is compacted.
_SEGMENTS, _DELETED = 64, 0.3
# That a run which fails waits for its source: it may be a server that does not answer.
_PATIENCE = 5.0

# Ids, vectors, what belongs to the rows, and their numbers in the source.
_Rows = tuple[Any, np.ndarray, dict[str, Any], np.ndarray]


@dataclass(frozen=True)
class Synced:
    """What `sync_corpus` did, in rows; as text, one line. ``compacted``: the folder was written anew in the end."""

    rows: int
    added: int
    changed: int
    deleted: int
    compacted: bool

    def __str__(self) -> str:
        done = f"{checks.counted(self.rows, 'row')}: {self.added} added, {self.changed} changed, {self.deleted} deleted"
        return done + (", compacted" if self.compacted else "")


def sync_corpus(
    source: PathLike,
    to: PathLike,
    *,
    vector_column: str | None = None,
    id_column: str | None = None,
    bias_column: str | None = None,
    group_column: str | None = None,
    cost_column: str | None = None,
    time_column: str | None = None,
    metric: Metric | None = None,
    dtype: Storage | None = None,
    rows_per_segment: int = 100_000,
    bad_rows: BadRows = "raise",
    progress: Callable[[int, int], None] | None = None,
) -> Synced:
    """Make a folder of segments hold the rows of a store: its ids, and for each its vector as it is there now.

    The folder changes in one step: a process that is killed leaves it as it was, and the next run does what is left.
    Who has loaded the folder keeps what it was. Memory holds a batch and up to `rows_per_segment` rows of what is new.

    Parameters
    ----------
    source : path, URL or str
        Vectors with ids in any format that `build_corpus` takes, such as a folder of Parquet; or a store, which its own
        client reads: ``"sqlite-vec:notes.db?table=vectors"``, ``"lancedb:folder?table=notes"``,
        ``"chroma:folder?collection=notes"``, ``"qdrant:folder?collection=notes"``,
        ``"milvus:notes.db?collection=notes"``, ``"postgresql://host/base?table=notes"``. `offline.stores` has their
        options, and where keys come from. Others may write to it meanwhile: a row that is there before, while and after
        it is read is in the folder.
    to : path
        The folder, which is made if there is none: one of `build_corpus` with ``rows_per_segment``, with ids.
    vector_column, id_column, bias_column, group_column, cost_column, time_column : str, optional
        Columns of a file, as of `build_corpus`.
    metric, dtype : optional
        Of a new folder, as of `Corpus`; default: "cosine" and "float32". A folder that exists keeps its own.
    rows_per_segment : int
        Of a new folder, and the most rows of a new segment.
    bad_rows : {"raise", "skip"}
        How to treat a row that cannot be used, as of `build_corpus`, such as one whose vector is null. "raise": an
        error that names its id. "skip": leave the row out, also one that the folder has; ``TO.skipped.csv`` lists it.
    progress : callable, optional
        Called with the rows read, and how many there are.

    Returns
    -------
    Synced

    Raises
    ------
    ValueError, TypeError
        A source without rows or without ids, an id that is there twice, rows of another length or with other columns
        than the folder has.
    OSError
        What may pass: a store that does not answer, a file that is not there or has changed while it was read, a full
        disk; as BlockingIOError, another process that writes to the folder. No error has a key or password in it.
    ModuleNotFoundError
        The store's client is not installed.

    Notes
    -----
    Rows are compared byte by byte as they are stored, so that a change below the precision of ``dtype`` is none. Where
    a folder has gathered 64 segments, or 30 % of its rows are deleted, it is compacted in a second step.
    """
    columns = {
        "vector_column": vector_column, "id_column": id_column, "bias_column": bias_column,
        "group_column": group_column, "cost_column": cost_column, "time_column": time_column,
    }  # fmt: skip
    size = checks.count(_OP, "rows_per_segment", rows_per_segment)
    checks.choice(_OP, "bad_rows", bad_rows, sources.BAD_ROWS)
    checks.function(_OP, "progress", progress)
    skipped = sources.Usable() if bad_rows == "skip" else None
    if not stores.is_store(source):
        with words_of(_OP):
            sources.check_apart(_OP, {"to": to, **skipped_list(to, (bad_rows,))}, {"source": source})
    read = _read(source, to, columns, skipped, progress)
    with words_of(_OP), closing(ahead(read, 2, _PATIENCE)) as rows:
        if segments.is_segmented(os.fspath(to)):
            done = _changed(rows, to, metric, dtype, size)
        else:
            waiting = _Waiting({"metric": metric or "cosine", "dtype": dtype or "float32"}, size)
            try:
                versions.build(_OP, to, lambda _: waiting.all(rows), size, False)
            except FileExistsError:
                raise FileExistsError(
                    f"{_OP}: to must be new, or a folder of corpus build with rows_per_segment, got {os.fsdecode(to)}"
                ) from None
            done = Synced(waiting.total, waiting.total, 0, 0, False)
    if skipped is not None:
        write_skipped(_OP, to, (bad_rows,), source=skipped)
    found = segments.described(to)
    many = len(found["segments"]) > _SEGMENTS or found["deleted"] > _DELETED * found["rows"]
    if many:
        versions.compacted(_OP, to, None)
    return Synced(done.rows, done.added, done.changed, done.deleted, many)


class _Waiting:
    """Rows that are collected until there are enough for a segment."""

    def __init__(self, options: dict[str, Any], size: int) -> None:
        self._options, self._size = options, size
        self._parts: list[_Rows] = []
        self.total = 0  # rows that were added

    def __len__(self) -> int:
        return sum(len(numbers) for *_, numbers in self._parts)

    def all(self, rows: Iterator[_Rows]) -> Iterator[tuple[rk.Corpus, Ids]]:
        """Yield the segments of all rows."""
        for part in rows:
            self.add(part)
            yield from self.full()
        yield from self.full(last=True)

    def add(self, part: _Rows) -> None:
        self._parts.append(part)
        self.total += len(part[1])

    def full(self, last: bool = False) -> Iterator[tuple[rk.Corpus, Ids]]:
        """Yield the segments that there are enough rows for, at the end one with the others too."""
        while len(self) >= (1 if last else self._size):
            ids, vectors, numbers = (_end_to_end([part[i] for part in self._parts]) for i in (0, 1, 3))
            columns = {name: _end_to_end([part[2][name] for part in self._parts]) for name in self._parts[0][2]}
            first, rest = (
                (ids[some], vectors[some], {name: column[some] for name, column in columns.items()}, numbers[some])
                for some in (slice(self._size), slice(self._size, None))
            )
            self._parts = [rest] if len(rest[1]) else []
            with _of_source(first[3], *first[:2]):
                corpus = rk.Corpus(first[1], ids=first[0], **first[2], **self._options)
            yield corpus, corpus.ids


@contextmanager
def _of_source(numbers: np.ndarray, ids: Any, vectors: np.ndarray) -> Iterator[None]:
    """Name a refused vector in an error by its id, or by its row in the source, not by its row in the part read."""
    try:
        yield
    except ValueError as error:
        finite = np.isfinite(np.asarray(vectors, np.float64)).all(axis=1)
        if not finite.all():
            name = checks.shown(ids[int(np.argmin(finite))])
            raise ValueError(f"{_OP}: source must have finite vectors, got NaN or inf for id {name}") from None
        if not str(error).startswith("Corpus: "):
            raise
        text = of_source(str(error), numbers.tolist()).removeprefix("Corpus: ")
        raise ValueError(f"{_OP}: {text} of the source") from error


def _end_to_end(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], list):
        return [each for part in parts for each in part]
    return np.concatenate(parts)


def _changed(rows: Iterator[_Rows], to: PathLike, metric: str | None, dtype: str | None, size: int) -> Synced:
    """Update a folder so that it holds the rows of a source."""
    with versions.changing(_OP, to) as version:
        options = {"metric": version.kinds["metric"], "dtype": version.kinds["dtype"]}
        for name, asked in (("metric", metric), ("dtype", dtype)):
            if asked not in (None, options[name]):
                raise ValueError(f"{name} must be that of the folder, {options[name]!r}, got {asked!r}")
        old = rk.Corpus.load(to)
        if old.ids.kind == "row":
            raise ValueError("to must be a folder of rows with ids, got one without")
        seen, last, count, added = np.zeros(len(old), bool), np.zeros(len(old), int), 0, 0
        waiting = _Waiting(options, size)
        for ids, vectors, columns, numbers in rows:
            with _of_source(numbers, ids, vectors):
                given = _Batch(old, ids, vectors, columns)
            places = old.rows_of(ids, unknown="pad")
            there = np.flatnonzero(places >= 0)
            twice = seen[places[there]]
            last[places[there]] = there  # of those of one place
            twice |= last[places[there]] != there
            if twice.any():
                name = ids[there[int(np.argmax(twice))]]
                raise ValueError(f"ids must be unique, got {checks.shown(name)} twice in the source")
            seen[places[there]] = True
            with _of_source(numbers, ids, vectors):
                kept = given.equal(places)
            count += len(vectors)
            added += len(vectors) - len(there)
            if not kept.all():
                fresh = np.flatnonzero(~kept)
                names = [ids[i] for i in fresh.tolist()] if isinstance(ids, list) else ids[fresh]
                parts = {name: np.asarray(x)[fresh] for name, x in columns.items()}
                waiting.add((names, vectors[fresh], parts, numbers[fresh]))
            for made in waiting.full():
                _add(version, made)
        live = np.ones(len(old), bool) if old.live is None else old.live
        gone = np.flatnonzero(live & ~seen)
        for made in waiting.full(last=True):
            _add(version, made)
        version.delete(gone)
    return Synced(count, added, waiting.total - added, len(gone), False)


def _add(version: versions.Version, made: tuple[rk.Corpus, Ids]) -> None:
    """Add a segment, whose rows replace those that were there before; refuse an id that is new twice."""
    known = version.having(id_keys.of(made[1]))
    old = segments.duplicates(_OP, known, made[1], "replace")
    if (again := old[old >= version.first]).size:
        raise ValueError(f"ids must be unique, got {checks.shown(known[int(again[0])])} twice in the source")
    version.add(*made, "replace")


class _Batch:
    """Rows of the source, to be compared with the rows of a folder."""

    def __init__(self, old: rk.Corpus, ids: Any, vectors: np.ndarray, given: dict[str, Any]) -> None:
        self._old = old
        self._vectors, self._dtype = stored_rows.as_is("Corpus", vectors, HOST)
        self._kind = make("Corpus", ids[:1], len(ids[:1])).kind  # the others are checked as they are looked up
        self._columns = stored_rows.columns("Corpus", dict.fromkeys(COLUMNS) | given, len(vectors), HOST)
        dims = self._vectors.shape[1]
        if old.dtype == "binary" and self._dtype in BYTES:  # packed signs
            dims *= 8
        if dims != old.dims:
            raise ValueError(f"source must have the folder's {old.dims} dimensions, got {dims}")
        if self._kind != old.ids.kind:
            had, got = ({"str": "strings", "int64": "integers"}[kind] for kind in (old.ids.kind, self._kind))
            raise ValueError(f"ids must be {had} as in the folder, got {got}")
        for name in COLUMNS:
            if (getattr(old, name) is None) != (self._columns[name] is None):
                has = "have" if self._columns[name] is None else "have no"
                raise ValueError(f"source must {has} {name}, as the folder does")

    def equal(self, places: np.ndarray) -> np.ndarray:
        """Return which rows the folder has at these places, bit by bit; -1: nowhere."""
        old = self._old
        equal = stored_rows.equal(self._vectors, self._dtype, old.metric, old.data, old.dtype, old.scales, places)
        rows = np.flatnonzero(equal)
        for name in COLUMNS:
            if self._columns[name] is not None:
                had, has = getattr(old, name)[places[rows]], self._columns[name][rows]
                if name == "groups":
                    had, has = _named(had, old.group_names), _named(has, self._columns["group_names"])
                same = had == has
                equal[rows] &= same | ((had != had) & (has != has)) if name == "time" else same  # of NaN, no time
        return equal


def _named(groups: Any, names: Any) -> Any:
    """Return groups that are strings by their names, for each corpus numbers its own."""
    return groups if names is None else names[groups]


def _read(
    source: PathLike,
    to: PathLike,
    columns: dict[str, str | None],
    skipped: sources.Usable | None,
    progress: Callable[[int, int], None] | None,
) -> Generator[_Rows, None, None]:
    """Yield the rows of a source, some at a time; ``skipped`` takes those that cannot be used."""
    if stores.is_store(source):
        for name, column in columns.items():
            if column is not None:
                raise ValueError(f"{name} must be left out with a store, whose options name columns, got {column!r}")
        total, found = stores.opened(str(source), _BATCH, skipped)
    else:
        known = rk.Corpus.load(to).ids if segments.is_segmented(os.fspath(to)) else None
        vectors, given = columns_of(source, columns, known=known, usual=skipped is not None)
        if "ids" not in given:
            raise ValueError(
                f"source must have ids, in a column 'id' or one that id_column names, got none in {source}"
            )
        usable = sources.usable("corpus", {"corpus": vectors, **given}, "raise" if skipped is None else "skip")
        if skipped is not None:
            skipped.skipped.update(usable.skipped)
            skipped.ids.update(usable.ids)
        numbers = np.arange(vectors.rows) if usable.kept is None else usable.kept
        total, found = len(numbers), _of_file(dict(usable.columns), numbers)
    count = 0
    with closing(found):
        for rows in found:
            yield rows
            count += len(rows[1])
            if progress is not None:
                progress(count, total)
    if not count:  # it is more likely lost than empty
        why = next(iter(skipped.skipped.values()), "") if skipped is not None else ""
        raise ValueError(f"source must have at least one row, got none{why and f' that can be used: {why}'}")


def _of_file(read: dict[str, Any], numbers: np.ndarray) -> Generator[_Rows, None, None]:
    vectors, first = read.pop("corpus"), 0
    chunks = [column.chunks(_BATCH) for column in read.values()]
    for rows in vectors.chunks(_BATCH):
        columns: dict[str, Any] = dict(zip(read, map(next, chunks), strict=True))
        names = columns.pop("ids")
        if "bias" in columns:
            columns["bias"] = np.asarray(columns["bias"], np.float32)
        columns = {name: _array(column) for name, column in columns.items()}
        ids: Any = names if isinstance(names, np.ndarray) else names.to_pylist()
        if not isinstance(ids, np.ndarray) and ids and isinstance(ids[0], int):
            ids = np.array(ids, np.int64)
        yield ids, np.asarray(rows), columns, numbers[first : first + len(rows)]
        first += len(rows)


def _array(column: Any) -> np.ndarray:
    """Return a column as an array; groups may be strings."""
    return column if isinstance(column, np.ndarray) else np.array(column.to_pylist(), object)
