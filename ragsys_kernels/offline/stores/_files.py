"""Stores that are files alone: tables of SQLite with sqlite-vec, and LanceDB. Each is read as it is at one time."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ._source import OP, Rows, Source, quoted, quoted_table


def sqlite_vec(source: Source, size: int) -> Rows:
    table, id_column, vector = source.taken("table", id="rowid", vector="embedding")
    client = source.client("sqlite_vec", "sqlite-vec")
    with closing(sqlite3.connect(f"{Path(source.existing()).as_uri()}?mode=ro", uri=True)) as store:
        if not hasattr(store, "enable_load_extension"):
            raise ValueError(f"{OP}: sqlite-vec must have a Python whose sqlite3 loads extensions, got one without")
        store.enable_load_extension(True)
        client.load(store)
        try:
            store.execute("BEGIN")  # what follows reads one state; with a write-ahead log others may write meanwhile
            yield store.execute(f"SELECT count(*) FROM {quoted_table(table)}").fetchone()[0]
            rows = store.execute(f"SELECT {quoted(id_column)}, {quoted(vector)} FROM {quoted_table(table)}")
        except sqlite3.OperationalError as error:
            if str(error).startswith("no such"):
                raise source.refused(error) from error
            raise  # such as a lock
        while found := rows.fetchmany(size):
            yield [id for id, _ in found], _floats([blob for _, blob in found])


def _floats(blobs: Sequence[Any]) -> Any:
    """Return float32 vectors of blobs, in one array where they have one length; others stay what they are."""
    if all(isinstance(blob, bytes) and len(blob) == len(blobs[0]) and len(blob) % 4 == 0 for blob in blobs):
        return np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1)
    whole = (isinstance(blob, bytes) and len(blob) % 4 == 0 for blob in blobs)
    return [np.frombuffer(blob, "<f4") if good else blob for blob, good in zip(blobs, whole, strict=True)]


def lancedb(source: Source, size: int) -> Rows:
    table, id_column, vector = source.taken("table", id="id", vector="vector")
    store = source.client("lancedb", "lancedb").connect(source.existing())
    try:
        opened = store.open_table(table)
    except ValueError as error:
        raise source.refused(error) from error
    for name in (id_column, vector):
        if name not in opened.schema.names:
            raise source.refused(f"no column {name!r} among {', '.join(opened.schema.names)}")
    opened.checkout(opened.version)  # the rows of this version, whatever is written meanwhile
    yield opened.count_rows()
    for batch in opened.search().select([id_column, vector]).to_batches(size):
        ids, vectors = batch.column(id_column), batch.column(vector)
        whole = ids.null_count == 0 and pa.types.is_integer(ids.type)
        plain = pa.types.is_fixed_size_list(vectors.type) and not vectors.null_count
        yield (
            ids.to_numpy() if whole else ids.to_pylist(),
            vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(batch), -1)
            if plain and len(batch)
            else vectors.to_pylist(),
        )
