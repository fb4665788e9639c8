"""Folders of segments, changed: rows added, deleted, and written anew."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import ragsys_kernels as rk

from .._base import checks, tables
from ..corpus import loaded_when_used, segments, versions
from ..corpus.ids import Ids
from . import sources
from .build import columns_of, pieces, words_of
from .sources import PathLike

_NAMED = 5


def append_corpus(
    corpus: PathLike | rk.Corpus,
    to: PathLike,
    *,
    ids: PathLike | None = None,
    bias: PathLike | None = None,
    groups: PathLike | None = None,
    costs: PathLike | None = None,
    time: PathLike | None = None,
    vector_column: str | None = None,
    id_column: str | None = None,
    bias_column: str | None = None,
    group_column: str | None = None,
    cost_column: str | None = None,
    time_column: str | None = None,
    on_duplicate: Literal["error", "replace"] = "error",
) -> rk.Corpus:
    """Add the vectors of a file, or a corpus, to a folder of segments.

    The new rows have numbers from N on and are stored as those before are. The folder changes in one step: a process
    that is killed leaves it as it was, and who has loaded it keeps what it was.

    Parameters
    ----------
    corpus : path, URL or Corpus
        Vectors (M, D), in any format that `build_corpus` takes; a folder that `Corpus.load` maps; or a corpus.
    to : path
        A folder that `build_corpus` wrote with ``rows_per_segment``.
    ids, bias, groups, costs, time, vector_column, id_column, bias_column, group_column, cost_column, time_column
        As of `build_corpus`. New rows have what the rows before have, and nothing else.
    on_duplicate : {"error", "replace"}
        How to treat an id that is already in the corpus. "replace": the row that has it is deleted.

    Returns
    -------
    Corpus
        As loaded from the folder, when it is first used.

    Raises
    ------
    ValueError
        An id that is there already, rows of another kind, a folder that is damaged or of another form.
    BlockingIOError
        Another process writes to the folder; it is named.
    """
    op = "append_corpus"
    named = {
        "ids": ids, "bias": bias, "groups": groups, "costs": costs, "time": time, "vector_column": vector_column,
        "id_column": id_column, "bias_column": bias_column, "group_column": group_column, "cost_column": cost_column,
        "time_column": time_column,
    }  # fmt: skip
    checks.choice(op, "on_duplicate", on_duplicate, segments.DUPLICATES)
    with words_of(op), versions.changing(op, to) as version:
        if isinstance(corpus, rk.Corpus) or sources.is_saved(sources.Place(corpus, "corpus")):
            if any(value is not None for value in named.values()):
                raise ValueError("corpus must be vectors where ids or other columns are named, got a corpus of its own")
            made = corpus if isinstance(corpus, rk.Corpus) else rk.Corpus.load(corpus)
            version.add(*segments.whole(made.to("cpu"), made.ids), on_duplicate)
        else:
            given, kinds = columns_of(corpus, named, known=version.known()), version.kinds
            size = version.rows_per_segment or given[0].rows
            options = {"metric": kinds["metric"], "dtype": kinds["dtype"]}
            for rows, names in pieces(*given, options, size):
                version.add(rows, names, on_duplicate)
    return loaded_when_used(to)


@dataclass(frozen=True)
class Deleted:
    """What `delete_rows` did: how many rows it deleted, and which ids it found no row for, in their order."""

    rows: int
    unknown: list[Any]

    def __str__(self) -> str:
        deleted = f"{checks.counted(self.rows, 'row')} deleted"
        if not self.unknown:
            return deleted
        some = ", ".join(map(checks.shown, self.unknown[:_NAMED])) + (", ..." if len(self.unknown) > _NAMED else "")
        return f"{deleted}, {checks.counted(len(self.unknown), 'id')} not in the corpus: {some}"


def delete_rows(ids: PathLike | Sequence[Any], folder: PathLike, *, id_column: str | None = None) -> Deleted:
    """Delete rows of a folder of segments.

    The other rows keep their numbers; the space is kept until `compact_corpus`.

    Parameters
    ----------
    ids : path, or ids in an array or list
        A text file or a pipe with an id in each line, or any other file of which `build_corpus` reads ids; empty lines
        are none. A text file's ids and a CSV's are read as those of the corpus are: integers in plain decimal form, or
        strings. Without ids, rows.
    folder : path
        A folder that `build_corpus` wrote with ``rows_per_segment``.
    id_column : str, optional
        Column of the ids; default: "id".

    Returns
    -------
    Deleted
        How many rows were deleted, and the ids that are not in the corpus, or were deleted before.

    Raises
    ------
    ValueError, TypeError
        A file that cannot be read, ids of another type than the corpus has, a folder that is damaged.
    BlockingIOError
        Another process writes to the folder; it is named.
    """
    op = "delete_rows"
    with words_of(op), versions.changing(op, folder) as version:
        known = version.known()
        wanted = _wanted(ids, id_column, known)
        rows = known.rows_of(wanted, unknown="pad")
        version.delete(np.unique(rows[rows >= 0]))
        values = wanted if isinstance(wanted, list) else wanted.tolist()
        return Deleted(len(np.unique(rows[rows >= 0])), [values[i] for i in np.flatnonzero(rows < 0).tolist()])


def compact_corpus(folder: PathLike, *, rows_per_segment: int | None = None) -> rk.Corpus:
    """Write the rows of a folder of segments anew, without the deleted ones; rows get new numbers, in their order.

    Parameters
    ----------
    folder : path
        A folder that `build_corpus` wrote with ``rows_per_segment``.
    rows_per_segment : int, optional
        Default: as the folder was made.

    Returns
    -------
    Corpus
        As loaded from the folder.

    Raises
    ------
    ValueError
        A folder that is damaged, or has no row that is not deleted.
    BlockingIOError
        Another process writes to the folder; it is named.

    Notes
    -----
    Memory holds a segment at a time; the disk holds the old segments and the new ones until the end. Who has loaded
    the folder keeps its rows: on Linux and macOS a file that is mapped can be read when its name is gone. Over NFS that
    holds only for processes of the machine that compacts.
    """
    op = "compact_corpus"
    size = None if rows_per_segment is None else checks.count(op, "rows_per_segment", rows_per_segment)
    versions.compacted(op, folder, size)
    return rk.Corpus.load(folder)


def _wanted(ids: PathLike | Sequence[Any], column: str | None, known: Ids) -> Any:
    """Return ids of a file, or as they are given: strings in a list, where the corpus has such, else an array."""
    if not isinstance(ids, (str, os.PathLike)):
        return _flat(ids, known)
    found = sources.ids_of_file(ids, column, known)
    return _flat(found.given() if isinstance(found, sources.IdLines) else found.whole(), known)


def _flat(ids: Any, known: Ids) -> Any:
    """Return ids of any shape as a list of strings, where a corpus has such, or as an array of integers."""
    if known.kind == "str":
        return tables.texts(ids).reshape(-1).tolist()
    if tables.holds_text(ids):  # refused as they are looked up
        return ids
    return np.asarray(ids, None if len(ids) else np.int64).reshape(-1)
