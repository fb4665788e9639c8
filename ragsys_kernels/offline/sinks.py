"""The output folder: files that exist whole or not at all, and Parquet whose bytes depend on its rows alone.

polars takes every file in a folder, at any depth and of any name, for data, and DuckDB every ``*.parquet``. So the
folder OUT of a job has its shards alone; what describes the job and the queries that were skipped is in ``OUT.job``
beside it. It is in OUT itself where an earlier version began the job, and where nothing can be made beside OUT: it is
the root of a disk or a bucket, or its parent cannot be written to.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from .._base.checks import counted
from .._base.files import PARTIAL, HashedFile, blocks_of, read, replacing, sha256_of, sync
from .._base.lock import locked, owner
from .._base.types import PathLike
from .sources import Place, Usable, listed

_log = logging.getLogger(__name__)

# Object stores have no folders; to make one would make its bucket.
_WITHOUT_FOLDERS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"}
_MOST_BYTES = 1 << 28  # of a file that is read whole: the manifest has 300 bytes a file of the input
ROW_GROUP = 1 << 14  # rows; fixed, so that a shard's bytes do not depend on the pieces that it is written in


JOB_FILE = "_job.json"
_LIST = "OUT.skipped.csv"  # in errors
_BESIDE = ".job"  # after the name of a job's folder
_OF_JOB = re.compile(r"_job\.json|_errors-\d+\.parquet|\.part-\d+\.json")


class Folder:
    """A local folder of files; with a folder beside it, that has those that describe a job."""

    def __init__(self, path: Path, beside: Path | None = None) -> None:
        self.path, self.beside = path, beside

    def __str__(self) -> str:
        return str(self.path)

    def of_job(self, new: bool = False) -> Folder:
        """Return the folder as that of a job; with ``new`` as that of one which takes the place of an earlier one."""
        beside = self.path.with_name(self.path.name + _BESIDE)
        if os.path.lexists(self.path / JOB_FILE) and not new:
            return self
        alone = os.path.ismount(self.path) or (self.path.exists() and not os.access(self.path.parent, os.W_OK))
        return self if alone and not os.path.lexists(beside) else Folder(self.path, beside)

    @property
    def job_file(self) -> str:
        """The file that describes a job, by the path that the folder is in."""
        return JOB_FILE if self.beside is None else f"{self.beside.name}/{JOB_FILE}"

    @property
    def has_moved(self) -> bool:
        """Whether what describes an earlier job is in the folder, and that of the next one is to be beside it."""
        return self.beside is not None and os.path.lexists(self.path / JOB_FILE)

    def names(self) -> list[str]:
        """Return the names in the folder, hidden ones too, sorted; none without a folder."""
        return sorted({name for folder in self._folders if os.path.lexists(folder) for name in os.listdir(folder)})

    def strange(self) -> list[str]:
        """Return the names in the folder that are not regular files: folders, pipes, links."""
        found = set()
        for folder in self._folders:
            if folder.exists():
                with os.scandir(folder) as entries:
                    found |= {entry.name for entry in entries if not entry.is_file(follow_symlinks=False)}
        return sorted(found)

    @property
    def _folders(self) -> list[Path]:
        return [self.path] if self.beside is None else [self.path, self.beside]

    def at(self, name: str) -> Path:
        """Return where a file of that name is."""
        return (self.path if self.beside is None or not _OF_JOB.fullmatch(name) else self.beside) / name

    def check(self) -> None:
        """Refuse a path that is a file."""
        for folder in self._folders:
            if folder.exists() and not folder.is_dir():
                raise FileExistsError(f"select: out must be a folder, got the file {folder}")

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder for the time of a block."""
        return locked(self.path)

    def owner(self) -> str | None:
        """Return which process has locked the folder; None if none has, or it is unknown."""
        return owner(self.path)

    def make(self) -> list[Path]:
        """Make the folder and its parents; return those that are new, the innermost first."""
        own = self._folders if not self.path.exists() else []  # what is beside a folder goes with it
        new = [path for path in (*reversed(self._folders), *self.path.parents) if path in own or not path.exists()]
        try:
            for folder in self._folders:
                folder.mkdir(parents=True, exist_ok=True)
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
        return read(self.at(name), _MOST_BYTES)

    def open(self, name: str) -> IO[bytes]:
        return open(self.at(name), "rb")

    def is_file(self, name: str) -> bool:
        """Return whether it is a regular file, not a link."""
        try:
            return stat.S_ISREG(self.at(name).lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file, as ``sha256sum`` prints it."""
        with self.open(name) as file:
            return sha256_of(blocks_of(file))

    @contextmanager
    def writing(self, name: str, durable: bool = True) -> Iterator[HashedFile]:
        """Write a temporary file; it replaces the target, synced if `durable`, if the block ends without an error."""
        place = self.at(name)
        with replacing(place, durable=durable, guard=lambda: writing_to(place)) as file:
            yield file

    def remove(self, name: str) -> None:
        for folder in self._folders:
            with suppress(FileNotFoundError):
                (folder / name).unlink()

    def remove_unfinished(self) -> None:
        """Remove temporary files of killed processes."""
        for name in self.names():
            if name.startswith(".") and name.endswith(PARTIAL):
                self.remove(name)

    def sync(self) -> None:
        for folder in self._folders:
            sync(folder)


class UrlFolder(Folder):
    """A folder of files that are uploaded when they are complete.

    There is no lock against other processes. What an interrupted upload leaves behind depends on the protocol (object
    stores leave nothing); checksums detect it.
    """

    def __init__(self, place: Place, beside: str | None = None) -> None:
        self.path: Any = str(place).rstrip("/")
        self._place, self._beside = place, beside
        self._fs, self._inner = place.filesystem

    def of_job(self, new: bool = False) -> Folder:
        inner = self._inner.rstrip("/")
        least = 2 if self._without_folders else 1  # names in the path: a bucket is nothing that can be made
        if len(inner.strip("/").split("/")) < least or (not new and self.has_moved):
            return self
        return UrlFolder(self._place, inner + _BESIDE)

    @property
    def job_file(self) -> str:
        return JOB_FILE if self._beside is None else f"{PurePosixPath(self._beside).name}/{JOB_FILE}"

    @property
    def has_moved(self) -> bool:
        return self._is_file(os.path.join(self._inner, JOB_FILE))

    def names(self) -> list[str]:
        self._fs.invalidate_cache()
        names: set[str] = set()
        for folder in self._inner_folders:
            with suppress(FileNotFoundError), self._using():
                found = self._fs.ls(folder, detail=False)
                names |= {
                    PurePosixPath(path).name for each in found if (path := each.rstrip("/")) != folder.rstrip("/")
                }
        return sorted(names)

    @property
    def _inner_folders(self) -> list[str]:
        return [self._inner] if self._beside is None else [self._inner, self._beside]

    def strange(self) -> list[str]:
        return []

    def check(self) -> None:
        if self._fs.isfile(self._inner):
            raise FileExistsError(f"select: out must be a folder, got the file {self}")

    @property
    def _without_folders(self) -> bool:
        protocol = self._fs.protocol
        return bool(_WITHOUT_FOLDERS.intersection([protocol] if isinstance(protocol, str) else protocol))

    def make(self) -> list[Path]:
        if not self._without_folders:
            for folder in self._inner_folders:
                self._fs.makedirs(folder, exist_ok=True)
        return []

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def owner(self) -> str | None:
        return None

    def read(self, name: str) -> bytes:
        if (size := self._fs.size(self._file(name)) or 0) > _MOST_BYTES:
            raise ValueError(f"{name} has {size} bytes, more than {_MOST_BYTES}")
        content: bytes = self._fs.cat_file(self._file(name))
        return content

    def open(self, name: str) -> IO[bytes]:
        file: IO[bytes] = self._fs.open(self._file(name), "rb")
        return file

    def is_file(self, name: str) -> bool:
        return self._is_file(self._file(name))

    def _is_file(self, path: str) -> bool:
        # fsspec's isfile returns False on any error, and a job whose manifest is not seen would begin anew.
        try:
            with self._using():
                return bool(self._fs.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    @contextmanager
    def writing(self, name: str, durable: bool = True) -> Iterator[HashedFile]:
        """Write a local temporary file; upload it when the block ends without an error."""
        with tempfile.TemporaryFile() as local:
            file = HashedFile(local, lambda: writing_to(f"{self}/{name}"))
            yield file
            with writing_to(f"{self}/{name}"):
                file.flush()
                self._fs.put_file(f"/proc/self/fd/{file.fileno()}", self._file(name))

    def remove(self, name: str) -> None:
        for folder in self._inner_folders:
            with suppress(FileNotFoundError):
                self._fs.rm_file(os.path.join(folder, name))

    def remove_unfinished(self) -> None:
        pass

    def sync(self) -> None:
        pass

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Name the URL in errors, also those of the protocol's own package: no credentials, no such host."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            raise OSError(f"select: out must be a URL that can be used, got {self}: {error}") from error

    def _file(self, name: str) -> str:
        return os.path.join(self._beside if self._beside and _OF_JOB.fullmatch(name) else self._inner, name)


def folder_at(path: PathLike) -> Folder:
    """Return the folder at a path or URL."""
    place = Place(path, "out")
    return Folder(place.local.resolve()) if place.local is not None else UrlFolder(place)


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


def skipped_list(out: PathLike, asked: tuple[Any, ...]) -> dict[str, str]:
    """Return the file that `write_skipped` writes or removes, by its name in errors; nothing where there is none."""
    leaves_out = any(each in ("skip", "first", "last") for each in asked)
    return {_LIST: f"{os.fspath(out).rstrip('/')}.skipped.csv"} if leaves_out else {}


def write_skipped(op: str, out: PathLike, asked: tuple[str, ...], **found: Usable) -> None:
    """Write ``OUT.skipped.csv`` and log how many rows it has; where none is left out, remove an earlier one.

    Nothing happens unless rows were asked to be left out.
    """
    path = skipped_list(out, asked).get(_LIST)
    if path is None:
        return
    parent, slash, name = path.rpartition("/")
    folder = folder_at(parent + slash or ".")
    number = sum(len(each.skipped) for each in found.values())
    if not number:
        folder.remove(name)
        return
    folder.make()
    with folder.writing(name) as file:
        file.write(listed(**found))
    are, them = ("is", "it") if number == 1 else ("are", "them")
    _log.info(f"{op}: {counted(number, 'row')} that cannot be used {are} left out; {path} lists {them}")
