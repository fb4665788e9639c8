"""Ids and vectors out of stores, a batch at a time, each read through the store's own client.

A store is named as ``KIND:PLACE?NAME=VALUE&...``; what is named is read, and nothing is written:

    sqlite-vec:notes.db?table=vectors          id (default rowid) and vector (default embedding) name columns
    lancedb:folder?table=notes                 id (default id), vector (default vector)
    chroma:folder?collection=notes
    qdrant:folder?collection=notes             or qdrant:http://host:6333?collection=notes; vector: of named ones
    milvus:notes.db?collection=notes           or milvus:http://host:19530?...; id (default id), vector (default vector)
    postgresql://host/base?table=notes         id (default id), vector (default embedding): an array, or pgvector's type
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from contextlib import closing
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pyarrow as pa

from .._base.checks import shown
from .._base.extras import missing

OP = "sync_corpus"
# How many rows there are, and then ids with vectors (n, D) or a list of them.
_Found = Generator[Any, None, None]
_Reader = Callable[[str, dict[str, str], int], _Found]


def is_store(source: object) -> bool:
    """Return whether a source names a store, and not a file."""
    return isinstance(source, str) and ":" in source and source.partition(":")[0] in _READERS


def opened(source: str, size: int) -> tuple[int, Generator[Any, None, None]]:
    """Return how many rows a store has, and so many at a time their ids, int64 or strings, their vectors (n, D)
    float32, and an empty dict: stores have no bias, groups or costs.

    Raises
    ------
    ValueError
        A name that the store does not have, or that is missing; vectors or ids that are none.
    ModuleNotFoundError
        The store's client is not installed.
    """
    kind, _, rest = source.partition(":")
    place, _, query = rest.partition("?")
    found = _READERS[kind](place, dict(parse_qsl(query, keep_blank_values=True)), size)
    rows: int = next(found)
    return rows, _batches(found, kind)


def _batches(found: _Found, kind: str) -> Generator[tuple[Any, np.ndarray, dict[str, Any]], None, None]:
    with closing(found):  # and with it the store, whatever happens to those who read: it may hold locks
        for ids, vectors in found:
            if len(ids):
                yield _ids(ids, kind), _vectors(vectors, kind), {}


def _ids(ids: Any, kind: str) -> np.ndarray | list[str]:
    if isinstance(ids, np.ndarray):
        return ids.astype(np.int64, copy=False)
    kinds = set(map(type, ids))
    if kinds == {int}:
        return np.array(ids, np.int64)
    if absent := kinds & {type(None), bytes, memoryview}:  # whose text would be an id of its own
        got = ", ".join(sorted(each.__name__ for each in absent))
        raise ValueError(f"{OP}: ids must be integers or strings, got {got} in {kind}")
    if int not in kinds:  # such as UUIDs
        return list(map(str, ids))
    raise ValueError(f"{OP}: ids must all be integers or all strings, got both in {kind}")


def _vectors(vectors: Any, kind: str) -> np.ndarray:
    try:
        array = np.asarray(vectors, np.float32)
    except (TypeError, ValueError):
        array = np.zeros(0, np.float32)
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"{OP}: vectors must be of one length and none missing, got others in {kind}")
    return array


def _client(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing(OP, package, f"pip install {package}", error.name) from error


def _taken(options: dict[str, str], kind: str, need: str, **usual: str) -> tuple[str, ...]:
    """Return the options of a source, those with a default last; refuse others."""
    known = {need, *usual}
    for name in options:
        if name not in known:
            raise ValueError(f"{OP}: {kind} must have options of {', '.join(sorted(known))}, got {shown(name)}")
    if not options.get(need):
        raise ValueError(f"{OP}: {kind} must have a {need}, as {kind}:PLACE?{need}=NAME, got none")
    return (options[need], *(options.get(name, value) for name, value in usual.items()))


def _quoted(name: str) -> str:
    """Return a name of SQL, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _exists(place: str, kind: str) -> str:
    if not os.path.exists(place):
        raise FileNotFoundError(f"{OP}: {kind} must be an existing file or folder, got {place}")
    return place


def _sqlite(place: str, options: dict[str, str], size: int) -> _Found:
    import sqlite3
    from pathlib import Path

    table, id_column, vector = _taken(options, "sqlite-vec", "table", id="rowid", vector="embedding")
    client = _client("sqlite_vec", "sqlite-vec")
    path = Path(_exists(place, "sqlite-vec")).resolve()
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as store:
        if not hasattr(store, "enable_load_extension"):
            raise ValueError(f"{OP}: sqlite-vec must have a Python whose sqlite3 loads extensions, got one without")
        store.enable_load_extension(True)
        client.load(store)
        try:
            yield store.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0]
            rows = store.execute(f"SELECT {_quoted(id_column)}, {_quoted(vector)} FROM {_quoted(table)}")
        except sqlite3.Error as error:
            raise ValueError(f"{OP}: sqlite-vec must have table and columns as named, got {error}") from error
        while found := rows.fetchmany(size):
            blobs = [blob for _, blob in found]
            if not all(isinstance(blob, bytes) and len(blob) == len(blobs[0]) for blob in blobs) or len(blobs[0]) % 4:
                raise ValueError(f"{OP}: vectors must be float32 blobs of one length, got others in {place}")
            yield [id for id, _ in found], np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1)


def _lancedb(place: str, options: dict[str, str], size: int) -> _Found:
    table, id_column, vector = _taken(options, "lancedb", "table", id="id", vector="vector")
    store = _client("lancedb", "lancedb").connect(_exists(place, "lancedb"))
    try:
        opened = store.open_table(table)
        yield opened.count_rows()
        for batch in opened.search().select([id_column, vector]).to_batches(size):
            vectors = batch.column(vector)
            if vectors.null_count:
                raise ValueError("a null among the vectors")
            flat = vectors.flatten().to_numpy(zero_copy_only=False)
            ids = batch.column(id_column)
            whole = ids.null_count == 0 and pa.types.is_integer(ids.type)
            yield ids.to_numpy() if whole else ids.to_pylist(), flat.reshape(len(batch), -1) if len(batch) else flat
    except (ValueError, RuntimeError, KeyError) as error:
        raise ValueError(f"{OP}: lancedb must have table and columns as named, got {error}") from error


def _chroma(place: str, options: dict[str, str], size: int) -> _Found:
    (name,) = _taken(options, "chroma", "collection")
    chromadb = _client("chromadb", "chromadb")
    client = chromadb.PersistentClient(_exists(place, "chroma"), settings=chromadb.Settings(anonymized_telemetry=False))
    try:
        collection = client.get_collection(name, embedding_function=None)
    except Exception as error:  # of one kind or another, by the version
        raise ValueError(f"{OP}: chroma must have collection {name!r}, got {error}") from error
    yield collection.count()
    begin = 0
    while (found := collection.get(limit=size, offset=begin, include=["embeddings"]))["ids"]:
        yield found["ids"], found["embeddings"]
        begin += len(found["ids"])


def _qdrant(place: str, options: dict[str, str], size: int) -> _Found:
    name, vector = _taken(options, "qdrant", "collection", vector="")
    client = _client("qdrant_client", "qdrant-client")
    where = {"url": place} if "://" in place else {"path": _exists(place, "qdrant")}
    store = client.QdrantClient(**where)
    try:
        if not store.collection_exists(name):
            raise ValueError(f"{OP}: qdrant must have collection {name!r}, got {place}")
        yield store.count(name).count
        following: Any = None
        while True:
            points, following = store.scroll(
                name, limit=size, offset=following, with_payload=False, with_vectors=[vector] if vector else True
            )
            vectors = [point.vector[vector] if vector else point.vector for point in points]
            yield [point.id for point in points], vectors
            if following is None:
                return
    finally:
        store.close()


def _milvus(place: str, options: dict[str, str], size: int) -> _Found:
    name, id_column, vector = _taken(options, "milvus", "collection", id="id", vector="vector")
    client = _client("pymilvus", "pymilvus")
    store = client.MilvusClient(place if "://" in place else _exists(place, "milvus"))
    try:
        if not store.has_collection(name):
            raise ValueError(f"{OP}: milvus must have collection {name!r}, got {place}")
        yield store.query(name, output_fields=["count(*)"])[0]["count(*)"]
        rows = store.query_iterator(name, batch_size=min(size, 1000), output_fields=[id_column, vector])
        while found := rows.next():
            yield [row[id_column] for row in found], [row[vector] for row in found]
        rows.close()
    finally:
        store.close()


def _postgresql(place: str, options: dict[str, str], size: int) -> _Found:
    own = {"table", "id", "vector"}
    named = {name: value for name, value in options.items() if name in own}
    others = {name: value for name, value in options.items() if name not in own}
    table, id_column, vector = _taken(named, "postgresql", "table", id="id", vector="embedding")
    psycopg = _client("psycopg", "psycopg[binary]")
    url = f"postgresql:{place}" + (f"?{urlencode(others)}" if others else "")
    text = f"SELECT {_quoted(id_column)}, {_quoted(vector)} FROM {_quoted(table)}"
    try:
        with psycopg.connect(url) as store, store.cursor("ragsys_kernels") as rows:  # which the server keeps
            yield store.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0]
            rows.execute(text)
            while found := rows.fetchmany(size):
                yield [id for id, _ in found], [_listed(each) for _, each in found]
    except psycopg.Error as error:
        raise ValueError(f"{OP}: postgresql must have table and columns as named, got {error}") from error


def _listed(vector: Any) -> Any:
    """Return a vector that pgvector has written as text, unless it is none."""
    try:
        return json.loads(vector) if isinstance(vector, str) else vector
    except ValueError:
        return None


_READERS: dict[str, _Reader] = {
    "sqlite-vec": _sqlite,
    "lancedb": _lancedb,
    "chroma": _chroma,
    "qdrant": _qdrant,
    "milvus": _milvus,
    "postgresql": _postgresql,
}
