"""Stores that are servers, some of which are files as well: Chroma, Qdrant, Milvus, PostgreSQL."""

from __future__ import annotations

import json
import logging
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any
from urllib.parse import urlencode, urlsplit

from ._source import OP, Rows, Source, chain, quoted, quoted_table

_PAGE = 1000  # rows of an answer of a server: 1,000 vectors of 1,536 are 30 MB of JSON
_SECONDS = 60  # for an answer

# What waiting does not mend, in the words of libpq and PostgreSQL, which have no code while a client connects.
_NO_ENTRY = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) \".*\" does not exist"
)
# In the words of Milvus, which has many codes.
_NO_RIGHT = re.compile(r"auth check|unauthenticated|permission|privilege", re.IGNORECASE)


def chroma(source: Source, size: int) -> Rows:
    (name,) = source.taken("collection")
    client: Any = None
    try:
        client = _chroma_client(source)
        collection = client.get_collection(name, embedding_function=None)
    except Exception as error:  # of one kind or another, by the version
        known = ("NotFoundError", "InvalidCollectionException", "ChromaAuthError", "AuthorizationError", "ValueError")
        own = str(error).startswith(f"{OP}: ")
        if type(error).__name__ in known and not own and not any(isinstance(each, OSError) for each in chain(error)):
            raise source.refused(error, f"have collection {name!r}, and let it be read") from error
        raise
    else:
        ids, page = collection.get(include=[])["ids"], min(size, _PAGE)
        yield len(ids)
        for begin in range(0, len(ids), page):
            found = collection.get(ids=ids[begin : begin + page], include=["embeddings"])
            yield found["ids"], found["embeddings"]  # without the ids that are gone
    finally:
        if not source.is_remote and hasattr(client, "close"):  # since version 1.5
            client.close()


def _chroma_client(source: Source) -> Any:
    chromadb = source.client("chromadb", "chromadb")
    if not source.is_remote:
        return chromadb.PersistentClient(source.existing(), settings=chromadb.Settings(anonymized_telemetry=False))
    url = urlsplit(source.place)
    port = url.port or (443 if url.scheme == "https" else 8000)
    return _chroma_server(url.hostname, port, url.scheme == "https", source.key(), source.certificates())


@lru_cache(maxsize=4)
def _chroma_server(host: str, port: int, tls: bool, key: str | None, certificates: str | None) -> Any:
    """Return a client, which is kept for the next run: one that is closed leaves its connections open."""
    chromadb: Any = import_module("chromadb")
    # A server of one's own looks for one of these headers, by its settings; Chroma's own service for the other.
    headers = {} if key is None else {"Authorization": f"Bearer {key}", "X-Chroma-Token": key}
    settings = chromadb.Settings(anonymized_telemetry=False, chroma_server_ssl_verify=certificates)
    client = chromadb.HttpClient(host, port, tls, headers, settings)
    session = getattr(getattr(client, "_server", None), "_session", None)
    if session is not None:
        session.timeout = _SECONDS  # it would wait for ever, and has no option
    return client


def qdrant(source: Source, size: int) -> Rows:
    name, vector = source.taken("collection", vector="")
    client = source.client("qdrant_client", "qdrant-client")
    if source.is_remote:
        file = source.certificates()
        tls = {} if file is None else {"verify": ssl.create_default_context(cafile=file)}
        where = {"url": source.place, "api_key": source.key(), "timeout": _SECONDS, "check_compatibility": False, **tls}
    else:
        where = {"path": source.existing()}
    store = client.QdrantClient(**where)
    try:
        if not store.collection_exists(name):
            raise ValueError(f"{OP}: qdrant must have collection {name!r}, got {source.place}")
        yield store.count(name).count
        following: Any = None  # the least id that has not been read
        while True:
            points, following = store.scroll(
                name,
                limit=min(size, _PAGE),
                offset=following,
                with_payload=False,
                with_vectors=[vector] if vector else True,
            )
            yield [point.id for point in points], [_of_point(point.vector, vector) for point in points]
            if following is None:
                return
    except client.http.exceptions.UnexpectedResponse as error:
        if 400 <= error.status_code < 500 and error.status_code not in (408, 429):
            raise source.refused(error, "have collection and vector as named, and let them be read") from error
        raise
    finally:
        store.close()


def _of_point(vectors: Any, name: str) -> Any:
    """Return the vector of a point, or the one of that name; None where it has none."""
    if name:
        return vectors.get(name) if isinstance(vectors, dict) else None
    if isinstance(vectors, dict) and vectors:
        raise ValueError(f"{OP}: qdrant must have its vector named, as &vector={next(iter(vectors))}, got no name")
    return vectors or None


def milvus(source: Source, size: int) -> Rows:
    name, id_column, vector = source.taken("collection", id="id", vector="vector")
    client = source.client("pymilvus", "pymilvus")
    where: dict[str, Any] = {"uri": source.place if source.is_remote else source.existing()}
    if source.is_remote:
        where["token"] = source.key() or ""
        if source.certificates() is not None:
            where["server_pem_path"] = source.certificates()
    with _silent("pymilvus"):
        try:
            yield from _of_milvus(source, client.MilvusClient(**where), name, id_column, vector, size)
        except client.MilvusException as error:
            if any(_NO_RIGHT.search(str(each)) for each in chain(error)):
                raise source.refused(error, "let the collection be read") from error
            raise


def _of_milvus(source: Source, store: Any, name: str, id_column: str, vector: str, size: int) -> Rows:
    try:
        if not store.has_collection(name):
            raise ValueError(f"{OP}: milvus must have collection {name!r}, got {source.place}")
        described = store.describe_collection(name)
        fields = [field["name"] for field in described["fields"]]
        for each in {vector} if described.get("enable_dynamic_field") else {id_column, vector}:
            if each not in fields:
                raise source.refused(f"no field {each!r} among {', '.join(fields)}", "have fields as named")
        # Strong: all that was written before is there, on each of a cluster's machines.
        all_rows = {"consistency_level": "Strong"}
        yield store.query(name, output_fields=["count(*)"], **all_rows)[0]["count(*)"]
        page = min(size, _PAGE)
        rows = store.query_iterator(name, batch_size=page, output_fields=[id_column, vector], **all_rows)
        while found := rows.next():  # by ids, from the last one on
            yield [row.get(id_column) for row in found], [row.get(vector) for row in found]
            if len(found) < page and not source.is_remote:
                break  # a server shows what was there at the first, a file also what is added at the end meanwhile
        rows.close()
    finally:
        store.close()


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keep a library from writing its errors to a log of its own, with tracebacks, before it raises them."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def postgresql(source: Source, size: int) -> Rows:
    own = {"table", "id", "vector"}
    # A server that is gone is noticed, where nothing else is said.
    others = {"connect_timeout": "10", "keepalives_idle": "30"}
    others |= {name: value for name, value in source.options.items() if name not in own}
    source.options = {name: value for name, value in source.options.items() if name in own}
    table, id_column, vector = source.taken("table", id="id", vector="embedding")
    psycopg = source.client("psycopg", "psycopg[binary]")
    text = f"SELECT {quoted(id_column)}, {quoted(vector)} FROM {quoted_table(table)}"
    try:
        with psycopg.connect(f"postgresql:{source.place}?{urlencode(others)}") as store:
            # Both queries see the table as it is at the first.
            store.isolation_level, store.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
            yield store.execute(f"SELECT count(*) FROM {quoted_table(table)}").fetchone()[0]
            with store.cursor("ragsys_kernels") as rows:  # which the server keeps
                rows.execute(text)
                while found := rows.fetchmany(size):
                    yield [id for id, _ in found], [_listed(each) for _, each in found]
    except psycopg.Error as error:
        if isinstance(error, psycopg.ProgrammingError) or _NO_ENTRY.search(str(error)):
            raise source.refused(error, "have table and columns as named, and let them be read") from error
        raise


def _listed(vector: Any) -> Any:
    """Return a vector that pgvector has written as text; other text as it is."""
    try:
        return json.loads(vector) if isinstance(vector, str) else vector
    except ValueError:
        return vector
