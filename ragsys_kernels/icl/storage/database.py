"""Results of models in a SQLite file, found by a hash of what they were made from."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..._base.types import PathLike
from .portions import portions

K = TypeVar("K", bound="Kept")

_TIMEOUT = 60.0  # seconds to wait for another process that writes
_VERSION = 1  # changes with the meaning or form of the rows


class Kept:
    """Results of a source in one table ``key -> columns``, closed at the end of a ``with`` block.

    Every addition is a transaction. Threads and processes may share the file.

    Parameters
    ----------
    source : a model with a fingerprint
    path : path
        Made if missing; the folder must exist.
    contents : str
        What the rows are, for messages.
    mark : bytes
        Four letters that mark the file.
    columns : str
        SQL of the columns beside the key.

    Attributes
    ----------
    hits, misses : int
        Results asked for so far that were in the file, and that were not.
    """

    def __init__(self, source: Any, path: PathLike, contents: str, mark: bytes, columns: str) -> None:
        self._source, self.path, self._contents = source, Path(path), contents
        self.hits = self.misses = 0
        self._marks = (int.from_bytes(mark, "big"), _VERSION)
        self._table = f"CREATE TABLE {contents} (key BLOB PRIMARY KEY, {columns}) WITHOUT ROWID"
        names = ", ".join(column.split()[0] for column in columns.split(","))
        self._select = f"SELECT {names} FROM {contents} WHERE key = ?"
        self._insert = f"INSERT OR REPLACE INTO {contents} VALUES ({', '.join('?' * (columns.count(',') + 2))})"
        self._one_at_a_time = threading.Lock()  # threads: a transaction belongs to the connection
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

    @property
    def fingerprint(self) -> str:
        return str(self._source.fingerprint)

    def _find(self, keys: Iterable[bytes]) -> dict[bytes, tuple[Any, ...]]:
        """Return the rows that exist, by key."""
        with self._one_at_a_time, self._errors():
            rows = ((key, self._connection.execute(self._select, (key,)).fetchone()) for key in dict.fromkeys(keys))
            return {key: row for key, row in rows if row is not None}

    def _filled(
        self,
        keys: Mapping[str, bytes],
        size: int,
        make: Callable[[list[str]], Iterable[Any]],
        progress: Callable[[int, int], None] | None,
    ) -> dict[bytes, Any]:
        """Return the one column of the rows of texts, by their keys; those that are missing are made and added.

        The longest are made first, ``size`` in one transaction. Before each such window the file is searched again, so
        that rows which another process has added meanwhile are not made. ``progress`` gets the number of new texts done
        and of all, first with 0.
        """
        found = self._find(keys.values())
        new = {key: text for text, key in keys.items() if key not in found}
        order = sorted(new, key=lambda key: (-len(new[key]), new[key]))
        made = 0
        for part in portions(len(order), size, progress if order else None):
            found |= self._find(order[part])
            missing = [key for key in order[part] if key not in found]
            if missing:
                rows = list(zip(missing, make([new[key] for key in missing]), strict=True))
                self._add(rows)
                found |= {key: (value,) for key, value in rows}
                made += len(rows)
        self.misses, self.hits = self.misses + made, self.hits + len(keys) - made
        return {key: value for key, (value,) in found.items()}

    def _add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows that begin with their key, all or none."""
        with self._one_at_a_time, self._errors(), self._connection:
            self._connection.executemany(self._insert, rows)

    def close(self) -> None:
        with self._one_at_a_time:
            self._connection.close()

    def __enter__(self: K) -> K:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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


def hash_key(*texts: str) -> bytes:
    """Return a key that differs for every sequence of texts."""
    digest = hashlib.blake2b(digest_size=20)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
