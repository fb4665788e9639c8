"""The picks of a job beside their texts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from .._base.checks import count, line
from .._base.files import check_local
from .._base.types import PathLike
from . import text_files
from ._manifest import Manifest
from .sinks import folder_at

_COLUMNS = {"ids", "scores", "relevance", "redundancy"}


class Pick(NamedTuple):
    """One pick of a query."""

    query: Any  # id of the query
    question: str | None  # its text, where texts of queries are given
    rank: int  # from 1
    id: Any
    score: float
    relevance: float
    redundancy: float
    text: str
    nearest: int | None = None  # rank of the earlier pick that it is most similar to, where the job has asked for it
    unmet: dict[str, int] | None = None  # with ``min_per_group``: how many picks groups lack in the query


def show(
    *,
    picks: PathLike,
    texts: PathLike,
    queries: PathLike | None = None,
    only: Sequence[str] = (),
    limit: int | None = None,
    text_column: str = "text",
    id_column: str | None = None,
) -> list[Pick]:
    """Return the picks that a job wrote, each with its text.

    Parameters
    ----------
    picks : path
        Folder that ``select`` wrote, finished or not, or one of its Parquet files.
    texts : path
        The file of texts that the corpus was made of: ``.parquet``, ``.csv`` with a header, or ``.jsonl``.
    queries : path, optional
        The same of the queries.
    only : sequence of str
        Ids of the queries to show. Default: all.
    limit : int, optional
        Most queries.
    text_column, id_column : str
        Columns of both files. Ids are by default the column "id", else numbers of rows, as in ``select``; where the job
        had no ids, numbers of rows.

    Raises
    ------
    ValueError, OSError
        A file that is missing or cannot be read; an id without a text, or with two; a query that has no picks.
    """
    op = "show"
    if limit is not None:
        limit = count(op, "limit", limit)
    for argument, path in (("picks", picks), ("texts", texts), ("queries", queries)):
        if path is not None:
            check_local(op, argument, path)
    rows = _picks(op, Path(picks), {str(query) for query in only}, limit)
    job = _inputs(op, Path(picks))
    of_items = _by_id(op, "texts", Path(texts), text_column, id_column, "corpus_ids" in job)
    of_queries = None
    if queries is not None:
        of_queries = _by_id(op, "queries", Path(queries), text_column, id_column, "query_ids" in job)
    shown = []
    for row in rows:
        query = row["query_id"]
        question = None if of_queries is None else _text(op, "queries", of_queries, query)
        unmet = None if row.get("unmet") is None else dict(row["unmet"])
        nearest = row.get("nearest") or [-1] * len(row["ids"])
        parts = zip(row["ids"], row["scores"], row["relevance"], row["redundancy"], nearest, strict=True)
        for rank, (item, score, relevance, redundancy, near) in enumerate(parts, 1):
            text = _text(op, "texts", of_items, item)
            like = None if near < 0 else near + 1
            shown.append(Pick(query, question, rank, item, score, relevance, redundancy, text, like, unmet))
    return shown


def _inputs(op: str, picks: Path) -> Container[str]:
    """Return the names of the inputs of the job that wrote the picks; if unknown, assume that it had ids."""
    try:
        job = Manifest.read(folder_at(picks if picks.is_dir() else picks.parent).of_job(), op)
    except (ValueError, OSError):  # the picks of a damaged job can still be shown
        job = None
    return ("corpus_ids", "query_ids") if job is None else job.description["inputs"]


def _picks(op: str, path: Path, wanted: set[str], limit: int | None) -> list[dict[str, Any]]:
    """Return the rows of the queries that are wanted, all if none is named; the others are not made objects."""
    files = sorted(path.glob("part-*.parquet"), key=lambda file: (len(file.name), file.name)) or [path]
    if not files[0].is_file():
        raise FileNotFoundError(f"{op}: picks must be a folder that select wrote, or a file of it, got {path}")
    found: list[dict[str, Any]] = []
    missing = set(wanted)
    try:
        for queries, read in chain.from_iterable(_row_groups(op, file) for file in files):
            chosen = [row for row, query in enumerate(queries) if not wanted or query in wanted]
            missing.difference_update(queries)
            if chosen and (limit is None or len(found) < limit):
                found += read().take(chosen[:limit]).to_pylist()
            if limit is not None and len(found) >= limit and not missing:
                break
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise ValueError(f"{op}: picks must be readable Parquet files, got {path}: {line(error)}") from error
    if missing:
        raise ValueError(f"{op}: query must have picks, got {min(missing)!r}, which has none in {path}")
    return found[:limit]


def _row_groups(op: str, file: Path) -> Iterator[tuple[list[str], Callable[[], pa.Table]]]:
    """Yield the ids of the queries of each row group, and what reads its rows."""
    with pq.ParquetFile(file) as opened:
        names = opened.schema_arrow.names
        if not set(names) >= {*_COLUMNS, "query_id"}:
            raise ValueError(f"{op}: picks must be files that select wrote, got columns {names} in {file}")
        wanted = [name for name in names if name in {*_COLUMNS, "query_id", "nearest", "unmet"}]
        for group in range(opened.num_row_groups):
            queries = opened.read_row_group(group, ["query_id"])["query_id"]
            yield list(map(str, queries.to_pylist())), partial(opened.read_row_group, group, wanted)


def _by_id(
    op: str, argument: str, path: Path, text_column: str, id_column: str | None, has_ids: bool
) -> dict[str, str]:
    table = text_files.read(op, argument, path, (text_column,), id_column)
    texts = text_files.texts(op, argument, table, text_column, path)
    if id_column is None and has_ids and "id" in table.column_names:
        id_column = "id"
    if id_column is None:
        return {str(row): text for row, text in enumerate(texts)}
    if id_column not in table.column_names:
        raise ValueError(f"{op}: {argument} must have the column {id_column!r}, got {table.column_names} in {path}")
    found: dict[str, str] = {}
    for row, (item, text) in enumerate(zip(map(str, table[id_column].to_pylist()), texts, strict=True)):
        if found.setdefault(item, text) != text:
            raise ValueError(
                f"{op}: {argument} must have one text for each id, got another of {item!r} in row {row} of {path}"
            )
    return found


def _text(op: str, argument: str, texts: dict[str, str], item: Any) -> str:
    if str(item) not in texts:
        raise ValueError(f"{op}: {argument} must have a text for every id of the picks, got none for {item!r}")
    return texts[str(item)]
