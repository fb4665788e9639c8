"""The picks of a job beside their texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from .._types import PathLike
from . import text_files

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
        Columns of both files. Ids are by default the column "id", else numbers of rows, as in ``select``.

    Raises
    ------
    ValueError, OSError
        A file that is missing or cannot be read; an id without a text; a query that has no picks.
    """
    op = "show"
    if limit is not None and limit < 1:
        raise ValueError(f"{op}: limit must be at least 1, got {limit}")
    found = _picks(op, Path(picks))
    of_items = _by_id(op, "texts", Path(texts), text_column, id_column)
    of_queries = None if queries is None else _by_id(op, "queries", Path(queries), text_column, id_column)
    wanted = {str(query) for query in only}
    rows = [row for row in found.to_pylist() if not wanted or str(row["query_id"]) in wanted]
    missing = wanted - {str(row["query_id"]) for row in rows}
    if missing:
        raise ValueError(f"{op}: only must name queries that have picks, got {min(missing)!r}")
    shown = []
    for row in rows[:limit]:
        query = row["query_id"]
        question = None if of_queries is None else _text(op, "queries", of_queries, query)
        parts = zip(row["ids"], row["scores"], row["relevance"], row["redundancy"], strict=True)
        for rank, (item, score, relevance, redundancy) in enumerate(parts, 1):
            text = _text(op, "texts", of_items, item)
            shown.append(Pick(query, question, rank, item, score, relevance, redundancy, text))
    return shown


def _picks(op: str, path: Path) -> pa.Table:
    files = sorted(path.glob("part-*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise FileNotFoundError(f"{op}: picks must be a folder that select wrote, or a file of it, got {path}")
    try:
        tables = [pq.read_table(file) for file in files]
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{op}: picks must be readable Parquet files, got {path}: {error}") from error
    if not set(tables[0].column_names) >= {*_COLUMNS, "query_id"}:
        raise ValueError(f"{op}: picks must be files that select wrote, got columns {tables[0].column_names} in {path}")
    return pa.concat_tables(tables)


def _by_id(op: str, argument: str, path: Path, text_column: str, id_column: str | None) -> dict[str, str]:
    table = text_files.read(op, argument, path, (text_column,), id_column)
    texts = text_files.texts(op, argument, table, text_column, path)
    if id_column is None and "id" in table.column_names:
        id_column = "id"
    if id_column is None:
        return {str(row): text for row, text in enumerate(texts)}
    if id_column not in table.column_names:
        raise ValueError(f"{op}: {argument} must have the column {id_column!r}, got {table.column_names} in {path}")
    return dict(zip(map(str, table[id_column].to_pylist()), texts, strict=True))


def _text(op: str, argument: str, texts: dict[str, str], item: Any) -> str:
    if str(item) not in texts:
        raise ValueError(f"{op}: {argument} must have a text for every id of the picks, got none for {item!r}")
    return texts[str(item)]
