"""A table of results in a SQLite file, found by a hash of what they were made from."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..._base.types import PathLike
from .portions import portions

K = TypeVar("K", bound="Kept")

_TIMEOUT = 60.0  # seconds to wait for another process that writes


class Database:
    """One table ``key -> columns``; every `add` is a transaction. Threads and processes may share the file.

    Parameters
    ----------
    path : path
        Made if missing; the folder must exist.
    contents : str
        What the rows are, for messages.
    application, version : int
        Mark the file; the version changes with the meaning or form of the rows.
    columns : str
        SQL of the columns beside the key.
    """

    def __init__(self, path: PathLike, contents: str, application: int, version: int, columns: str) -> None:
        self.path, self._contents, self._marks = Path(path), contents, (application, version)
        self._table = f"CREATE TABLE {contents} (key BLOB PRIMARY KEY, {columns}) WITHOUT ROWID"
        self._find = (
            f"SELECT {', '.join(column.split()[0] for column in columns.split(','))} FROM {contents} WHERE key = ?"
        )
        self._one_at_a_time = threading.Lock()  # threads: a transaction belongs to the connection
        self._add = f"INSERT OR REPLACE INTO {contents} VALUES ({', '.join('?' * (columns.count(',') + 2))})"
        try:
            self._connection = sqlite3.connect(self.path, timeout=_TIMEOUT, check_same_thread=False)
        except sqlite3.Error as error:
            raise OSError(f"cache must be a file that can be opened, got {self.path}: {error}") from error
        try:
            with self._errors():
                self._prepare()
        except BaseException:
            self.close()
            raise

    def find(self, keys: Iterable[bytes]) -> dict[bytes, tuple[Any, ...]]:
        """Return the rows that exist, by key."""
        with self._one_at_a_time, self._errors():
            rows = ((key, self._connection.execute(self._find, (key,)).fetchone()) for key in dict.fromkeys(keys))
            return {key: row for key, row in rows if row is not None}

    def fill(
        self,
        keys: Sequence[bytes],
        size: int,
        make: Callable[[list[bytes]], Iterable[tuple[Any, ...]]],
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[dict[bytes, tuple[Any, ...]], int]:
        """Add the rows of ``keys``; return them, and the number of those that were made here.

        ``size`` rows are made and added at a time, in one transaction. Before each such window the database is searched
        again, so that rows which another process has added meanwhile are not made. ``progress`` gets the number of keys
        done and of all keys, first with 0.
        """
        found: dict[bytes, tuple[Any, ...]] = {}
        made = 0
        for part in portions(len(keys), size, progress):
            found |= self.find(keys[part])
            missing = [key for key in keys[part] if key not in found]
            if missing:
                rows = list(make(missing))
                self.add(rows)
                found |= {row[0]: row[1:] for row in rows}
                made += len(rows)
        return found, made

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows that begin with their key, all or none."""
        with self._one_at_a_time, self._errors(), self._connection:
            self._connection.executemany(self._add, rows)

    def close(self) -> None:
        with self._one_at_a_time:
            self._connection.close()

    def _prepare(self) -> None:
        with self._connection:
            self._connection.execute("BEGIN")  # one view of marks and tables: another process may create the file
            if self._is_known():
                return
        with self._connection:  # one transaction, so that other processes see an empty or a complete file
            self._connection.execute("BEGIN IMMEDIATE")
            if not self._is_known():
                self._connection.execute(self._table)
                self._connection.execute(f"PRAGMA application_id = {self._marks[0]}")
                self._connection.execute(f"PRAGMA user_version = {self._marks[1]}")

    def _is_known(self) -> bool:
        """Return whether the file has its table; refuse a file that is neither new nor of this kind."""
        marks = tuple(
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if marks != self._marks and (any(marks) or self._tables()):
            raise ValueError(f"cache must be a new file or one made by this version, got {self.path}")
        return marks == self._marks

    def _tables(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # full, read-only, locked
            if not self.path.exists():  # as a job without a cache of its own does at its end
                raise OSError(
                    f"cache must not be removed while it is written, got {self.path}, which was removed"
                ) from error
            raise OSError(f"cache must be a file that can be read and written, got {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ValueError(f"cache must be a file of {self._contents}, got {self.path}: {error}") from error


class Kept:
    """Results of a source that are kept in a `Database`, which is closed at the end of a ``with`` block.

    Other parameters are those of `Database`.
    """

    def __init__(
        self, source: Any, path: PathLike, contents: str, application: int, version: int, columns: str
    ) -> None:
        self._source, self.path = source, Path(path)
        self._database = Database(path, contents, application, version, columns)

    @property
    def fingerprint(self) -> str:
        return str(self._source.fingerprint)

    def _filled(
        self,
        keys: Mapping[str, bytes],
        size: int,
        make: Callable[[list[str]], Iterable[Any]],
        progress: Callable[[int, int], None] | None,
    ) -> tuple[dict[bytes, tuple[Any, ...]], int]:
        """Return the rows of texts by their keys, and how many were made; those missing are made longest text first."""
        found = self._database.find(keys.values())
        new = {key: text for text, key in keys.items() if key not in found}
        order = sorted(new, key=lambda key: (-len(new[key]), new[key]))

        def made(window: list[bytes]) -> Iterator[tuple[Any, ...]]:
            return zip(window, make([new[key] for key in window]), strict=True)

        filled, number = self._database.fill(order, size, made, progress if order else None)
        return found | filled, number

    def close(self) -> None:
        self._database.close()

    def __enter__(self: K) -> K:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hash_key(*texts: str) -> bytes:
    """Return a key that differs for every sequence of texts."""
    digest = hashlib.blake2b(digest_size=20)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
