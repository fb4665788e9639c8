"""Ids and vectors out of stores, a batch at a time, each read through the store's own client.

A store is named as ``KIND:PLACE?NAME=VALUE&...``; what is named is read, and nothing is written:

    sqlite-vec:notes.db?table=vectors          id (default rowid) and vector (default embedding) name columns
    lancedb:folder?table=notes                 id (default id), vector (default vector)
    chroma:folder?collection=notes             or chroma:http://host:8000?collection=notes
    qdrant:folder?collection=notes             or qdrant:http://host:6333?collection=notes; vector: of named ones
    milvus:notes.db?collection=notes           or milvus:http://host:19530?...; id (default id), vector (default vector)
    postgresql://host/base?table=notes         id (default id), vector (default embedding): an array, or pgvector's type

Servers of Chroma, Qdrant and Milvus get a key from the environment (CHROMA_API_KEY, QDRANT_API_KEY, MILVUS_TOKEN) or
from the first line of the file that ``key_file`` names; ``ca_file`` names the certificates that https trusts. libpq
has variables and options of its own.

A row that a store has before, while and after it is read is read, whatever others write meanwhile: SQLite, LanceDB and
PostgreSQL show one state of the table, Qdrant and Milvus are read in the order of ids from the last id on, and Chroma
by ids that one call has listed. Pages by their number would not do: rows that are deleted before them shift the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import closing
from typing import Any

import numpy as np

from ..._base.checks import shown
from ..sources import Usable
from . import _files, _servers
from ._source import OP, Reader, Rows, Source

__all__ = ["OP", "is_store", "opened"]

_READERS: dict[str, Reader] = {
    "sqlite-vec": _files.sqlite_vec,
    "lancedb": _files.lancedb,
    "chroma": _servers.chroma,
    "qdrant": _servers.qdrant,
    "milvus": _servers.milvus,
    "postgresql": _servers.postgresql,
    "postgres": _servers.postgresql,
}

_Read = Generator[tuple[Any, np.ndarray, dict[str, Any], np.ndarray], None, None]


def is_store(source: object) -> bool:
    """Return whether a source names a store, and not a file."""
    return isinstance(source, str) and ":" in source and source.partition(":")[0] in _READERS


def opened(text: str, size: int, skipped: Usable | None = None) -> tuple[int, _Read]:
    """Return how many rows a store has, and so many at a time their ids, int64 or strings, their vectors (n, D)
    float32, an empty dict, for stores have no bias, groups or costs, and their numbers in the order of reading.

    ``skipped`` takes the rows that cannot be used: without a vector or an id, with a vector of another length than most
    of the first rows have, or with NaN or inf. Without it the first such row is an error; NaN and inf are left to the
    caller.

    Raises
    ------
    ValueError
        A name that the store does not have, or that is missing; a key or password that it refuses; vectors or ids that
        are none.
    OSError
        What may pass: a server that does not answer, a folder that is not there.
    ModuleNotFoundError
        The store's client is not installed.

    No error has a key or password in it.
    """
    source = Source(text)
    found = source.told(_READERS[source.kind](source, size))
    rows: int = next(found)
    return rows, source.told(_batches(found, source.kind, skipped))


def _batches(found: Rows, kind: str, skipped: Usable | None) -> _Read:
    dims, first = 0, 0
    with closing(found):  # and with it the store, whatever happens to those who read: it may hold locks
        for ids, vectors in found:
            dims = dims or _usual_length(vectors)
            reasons = _reasons(ids, vectors, dims, skipped is not None)
            numbers = np.arange(first, first + len(ids))
            first += len(ids)
            if reasons:
                if skipped is None:
                    row, reason = next(iter(reasons.items()))
                    name = f"row {numbers[row]}" if _is_no_id(ids[row]) else f"id {shown(ids[row])}"
                    raise ValueError(f"{OP}: {reason} for {name} in {kind}")
                for row, reason in reasons.items():
                    skipped.skipped[int(numbers[row])], skipped.ids[int(numbers[row])] = reason, ids[row]
                kept = np.setdiff1d(np.arange(len(ids)), list(reasons))
                ids, vectors = ([values[row] for row in kept.tolist()] for values in (ids, vectors))
                numbers = numbers[kept]
            if len(ids):
                yield _ids(ids, kind), np.asarray(vectors, np.float32), {}, numbers


def _reasons(ids: Any, vectors: Any, dims: int, finite: bool) -> dict[int, str]:
    """Return which rows cannot be used, and why."""
    found = {}
    if not isinstance(ids, np.ndarray):
        for row, each in enumerate(ids):
            if _is_no_id(each):
                found[row] = f"ids must be integers or strings, got {_kind(each)}"
    whole = _array(vectors)
    if whole is not None and whole.shape == (len(ids), dims):
        if finite:
            for row in np.flatnonzero(~np.isfinite(whole).all(axis=1)).tolist():
                found.setdefault(row, "vectors must be finite, got NaN or inf")
        return dict(sorted(found.items()))
    for row, each in enumerate(vectors):
        array = _array(each)
        if array is None or array.ndim != 1:
            found.setdefault(row, f"vectors must be lists of numbers, got {_kind(each)}")
        elif len(array) != dims:
            found.setdefault(row, f"vectors must have {dims} values as most have, got {len(array)}")
        elif finite and not np.isfinite(array).all():
            found.setdefault(row, "vectors must be finite, got NaN or inf")
    return dict(sorted(found.items()))


def _usual_length(vectors: Any) -> int:
    """Return the length that most of some vectors have, 0 where none is one."""
    arrays = [array for array in map(_array, vectors) if array is not None and array.ndim == 1]
    return Counter(map(len, arrays)).most_common(1)[0][0] if arrays else 0


def _array(values: Any) -> np.ndarray | None:
    try:
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is refused with its row
            return np.asarray(values, np.float32)
    except (TypeError, ValueError):
        return None


def _is_no_id(value: Any) -> bool:
    return value is None or isinstance(value, (bytes, memoryview))  # whose text would be an id of its own


def _kind(value: Any) -> str:
    return "none" if value is None else type(value).__name__


def _ids(ids: Any, kind: str) -> np.ndarray | list[str]:
    if isinstance(ids, np.ndarray):
        return ids.astype(np.int64, copy=False)
    kinds = set(map(type, ids))
    if kinds == {int}:
        return np.array(ids, np.int64)
    if int not in kinds:  # such as UUIDs
        return list(map(str, ids))
    raise ValueError(f"{OP}: ids must all be integers or all strings, got both in {kind}")
