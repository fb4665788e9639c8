"""The output folder: files that exist whole or not at all, and Parquet whose bytes depend on its rows alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from .._base.files import PARTIAL, HashedFile, blocks_of, replacing, sha256_of, sync
from .._base.lock import locked, owner

ROW_GROUP = 1 << 14  # rows; fixed, so that a shard's bytes do not depend on the pieces that it is written in


class Folder:
    """A local folder of files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        """Return the names in the folder, hidden ones too, sorted; none without a folder."""
        return sorted(os.listdir(self.path)) if os.path.lexists(self.path) else []

    def strange(self) -> list[str]:
        """Return the names in the folder that are not regular files: folders, pipes, links."""
        if not self.path.exists():
            return []
        with os.scandir(self.path) as entries:
            return sorted(entry.name for entry in entries if not entry.is_file(follow_symlinks=False))

    def check(self) -> None:
        """Refuse a path that is a file."""
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"select: out must be a folder, got the file {self}")

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder for the time of a block."""
        return locked(self.path)

    def owner(self) -> str | None:
        """Return which process has locked the folder; None if none has, or it is unknown."""
        return owner(self.path)

    def make(self) -> list[Path]:
        """Make the folder and its parents; return those that are new, the innermost first."""
        new = [path for path in (self.path, *self.path.parents) if not path.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.unmake(new)
            raise OSError(
                f"select: out must be a folder that can be made, got {self.path}: {error.strerror}"
            ) from error
        return new

    def unmake(self, new: list[Path]) -> None:
        """Remove the folders that `make` made and that are empty."""
        for path in new:
            with suppress(OSError):
                path.rmdir()

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def open(self, name: str) -> IO[bytes]:
        return open(self.path / name, "rb")

    def is_file(self, name: str) -> bool:
        """Return whether it is a regular file, not a link."""
        try:
            return stat.S_ISREG((self.path / name).lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file, as ``sha256sum`` prints it."""
        with self.open(name) as file:
            return sha256_of(blocks_of(file))

    @contextmanager
    def writing(self, name: str, durable: bool = True) -> Iterator[HashedFile]:
        """Write a temporary file; it replaces the target, synced if `durable`, if the block ends without an error."""
        place = self.path / name
        with replacing(place, durable=durable, guard=lambda: writing_to(place)) as file:
            yield file

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (self.path / name).unlink()

    def remove_unfinished(self) -> None:
        """Remove temporary files of killed processes."""
        for name in self.names():
            if name.startswith(".") and name.endswith(PARTIAL):
                self.remove(name)

    def sync(self) -> None:
        sync(self.path)


class ParquetFile:
    """Rows of a Parquet file being written, a row group at a time."""

    def __init__(self, file: HashedFile, schema: pa.Schema) -> None:
        # Without dictionaries, for which few values of a result repeat: with 10 picks a query 0.8 µs a row, not 5 µs,
        # and files a third smaller.
        # Least and largest pick of a page are of no use to a reader.
        self._writer = pq.ParquetWriter(file, schema, use_dictionary=False, write_statistics=[schema.names[0]])
        self._pending: list[pa.Table] = []
        self._held = 0
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Add rows; a row group is encoded once it has all of its rows."""
        self.rows += table.num_rows
        while self._held + table.num_rows >= ROW_GROUP:
            room = ROW_GROUP - self._held
            self._pending.append(table.slice(0, room))
            self._write_group()
            table = table.slice(room)
        if table.num_rows:
            self._pending.append(table)
            self._held += table.num_rows

    def close(self) -> None:
        if self._pending:
            self._write_group()
        self._writer.close()

    def abandon(self) -> None:
        """Close after an error, whose cause (a full disk) makes closing fail too."""
        with suppress(Exception):
            self._writer.close()
        self._writer.is_open = False  # else the writer's destructor tries again, and prints

    def _write_group(self) -> None:
        group = pa.concat_tables(self._pending)
        self._pending, self._held = [], 0
        self._writer.write_table(group, row_group_size=group.num_rows)
        # Else Arrow's allocator keeps more and more: 12 MB from 200,000 to 2,000,000 rows, of 2 MB in use.
        pa.default_memory_pool().release_unused()


@contextmanager
def parquet(folder: Folder, name: str, schema: pa.Schema) -> Iterator[tuple[ParquetFile, HashedFile]]:
    """Write a Parquet file, which is in its place when the block ends without an error."""
    with folder.writing(name) as file:
        rows = ParquetFile(file, schema)
        try:
            yield rows, file
            rows.close()
        except BaseException:
            rows.abandon()
            raise


@contextmanager
def writing_to(path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(f"select: out must be writable, got {path}: {error.strerror or error}") from error
