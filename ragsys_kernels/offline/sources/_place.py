"""Files and folders of a job: local paths, or any URL that fsspec opens."""

from __future__ import annotations

import copy
import glob
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, Protocol, TypeVar

import pyarrow as pa

from ..._base.files import blocks_of, is_url, sha256_of, was_url
from ..._base.types import PathLike
from ..._base.urls import filesystem, protocols

DATABASES = (".duckdb", ".sqlite", ".sqlite3", ".db")  # a table of one is FILE::TABLE

_BUFFER = 8 << 20  # bytes read ahead of a remote file; several are open at a time
_SAMPLE = 1 << 20  # bytes in each of the three samples of a file's content
_BLOCK = 1 << 22

# Copies of remote files, and what was read of files to open them, by path and version, as long as a column uses them.
_copies: weakref.WeakValueDictionary[tuple[str, ...], Copy] = weakref.WeakValueDictionary()
_opened: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()
# What is open in a block of `one_version`, by kind and path.
_same: ContextVar[dict[tuple[Any, str], Any] | None] = ContextVar("_same", default=None)


class Opened(Protocol):
    """A file that is open, and its version then."""

    version: dict[str, Any]


T = TypeVar("T", bound=Opened)


class ServerError(OSError):
    """The server of a file cannot send what is read of it."""


class Place:
    """A file or folder, which may not exist; as text, the path or URL it was given as."""

    def __init__(self, path: PathLike, argument: str) -> None:
        text, self.argument = os.fspath(path), argument
        self.path: str | Path = Path(text)
        file, sign, table = text.rpartition("::")
        self.table = table if sign and file.lower().endswith(DATABASES) and not is_url(text) else None
        self.local: Path | None = Path(text if self.table is None else file)
        self._fs: Any = None
        if is_url(text):
            self.path = text
            self._fs, self._inner = filesystem("select", argument, text)
            self.local = Path(self._inner) if "file" in protocols(self._fs) else None
        elif was_url(path):
            raise ValueError(f"select: {argument} must be a str where it is a URL, got Path({text!r})")

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return PurePosixPath(self._posix).name

    @property
    def filesystem(self) -> tuple[Any, str]:
        """The file system of fsspec that a URL names, and the path in it."""
        return self._fs, self._inner

    @property
    def suffix(self) -> str:
        return PurePosixPath(self._posix).suffix.lower()

    @property
    def _posix(self) -> str:
        return str(self.local) if self.local is not None else self._inner.partition("?")[0]

    def child(self, name: str) -> Place:
        """Return the file of that name in this folder."""
        child = copy.copy(self)
        if self.local is not None:
            child.local = self.local / name
        if self._fs is None:
            child.path = Path(self.path, name)
        else:
            child.path, child._inner = (f"{folder.rstrip('/')}/{name}" for folder in (str(self.path), self._inner))
        return child

    def within(self, other: Place) -> bool:
        """Whether it is the other place or lies in it, whatever links lead there."""
        own, others = self._parts, other._parts
        return own[: len(others)] == others

    @property
    def _parts(self) -> tuple[str, ...]:
        if self.local is not None:
            return self.local.resolve().parts
        return (*protocols(self._fs), *PurePosixPath(self._inner).parts)

    def kind(self) -> Literal["file", "folder", None]:
        """Return what exists at the place, if anything."""
        if self.local is not None:
            return "file" if self.local.is_file() else "folder" if self.local.is_dir() else None
        try:
            found = self._fs.info(self._inner)["type"]
        except FileNotFoundError:
            return None
        except Exception as error:  # of the protocol's own package: no credentials, no such host
            raise OSError(f"select: {self.argument} must be a URL that can be read, got {self}: {error}") from error
        return "file" if found == "file" else "folder"

    def is_pipe(self) -> bool:
        return self.local is not None and self.local.is_fifo()

    def names(self) -> list[str]:
        """Return the names in a folder, sorted, without hidden ones and those that begin with ``_``."""
        if self.local is not None:
            found = os.listdir(self.local)
        else:
            found = [PurePosixPath(item.rstrip("/")).name for item in self._fs.ls(self._inner, detail=False)]
        return sorted(name for name in found if not name.startswith((".", "_")))

    def is_pattern(self) -> bool:
        return any(sign in self._posix for sign in "*?[")

    def matches(self) -> list[Place]:
        """Return the files that match this place as a pattern, sorted; ``**`` stands for any folders."""
        if self.local is not None:
            found = sorted(glob.glob(str(self.local), recursive=True))
            return [Place(path, self.argument) for path in found if os.path.isfile(path)]
        inner = sorted(self._fs.glob(self._inner))
        return [Place(self._fs.unstrip_protocol(path), self.argument) for path in inner if self._fs.isfile(path)]

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        if self.local is not None:
            with open(self.local, "rb") as file:
                yield file
            return
        try:
            with self._fs.open(self._inner, "rb", block_size=_BUFFER) as file:
                yield file
        except ValueError as error:
            if any(words in str(error) for words in ("range requests", "seek streaming")):  # fsspec's
                raise self._whole_only() from error
            raise

    @cached_property
    def _in_parts(self) -> bool:
        """Whether parts of the file can be read: a server of HTTP may send the whole file whatever is asked for."""
        if not {"http", "https"} & {*protocols(self._fs)}:
            return True
        try:
            with self._fs.open(self._inner, "rb", block_size=1) as file:
                file.seek(1)
                file.read(1)
        except ValueError:  # before any of it is read
            return False
        return True

    def _whole_only(self) -> ServerError:
        rule = "be at a server that sends parts of files (HTTP Range, status 206)"
        return ServerError(f"select: {self.argument} must {rule}, got one that sends only the whole of {self}")

    def source(self) -> AbstractContextManager[Any]:
        """Return what pyarrow reads; not a path as a str, whose bytes may be no UTF-8."""
        if self.local is None:
            return self.open()
        file: AbstractContextManager[Any] = pa.OSFile(os.fsencode(self.local))
        return file

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`, fewer where the file ends."""
        if self.local is not None:
            with open(self.local, "rb") as file:
                file.seek(start)
                return file.read(stop - start)
        if not self._in_parts:
            raise self._whole_only()
        content: bytes = self._fs.cat_file(self._inner, start=start, end=min(stop, self.size()))
        return content

    def size(self) -> int:
        """Return the bytes of a file, or of all files of a local folder."""
        if self.local is not None and self.local.is_dir():
            return sum(file.stat().st_size for file in self._files())
        return self.local.stat().st_size if self.local is not None else self._size(self._fs.size(self._inner))

    def _size(self, found: int | None) -> int:
        if found is None:
            rule = "be at a server that tells the sizes of files"
            raise ServerError(f"select: {self.argument} must {rule}, got none for {self}")
        return int(found)

    def _files(self) -> list[Path]:
        return sorted(path for path in Path(self._posix).rglob("*") if path.is_file())

    def mapped(self) -> Copy:
        """Return a local file with the content: the file itself, or a copy of a remote one, which columns share."""
        if self.local is not None:
            return Copy(self.local)
        key = (str(self.path), *map(str, self.version().values()))
        held = _copies.get(key)
        if held is None:
            held = _copies[key] = unnamed(self._copy)
        return held

    def _copy(self, target: IO[bytes]) -> None:
        with self.open() as source:
            shutil.copyfileobj(source, target, _BLOCK)

    def shared(self, kind: Callable[[Place], T]) -> T:
        """Return the file opened as such a kind; columns of one file share it."""
        same = _same.get()
        opened: T | None = None if same is None else same.get((kind, str(self.path)))
        if opened is None:
            version = self.version()
            key = (kind, str(self.path), *version.values())
            opened = _opened.get(key)
            if opened is None:
                opened = _opened[key] = kind(self)
                opened.version = version
            if same is not None:
                same[kind, str(self.path)] = opened
        return opened

    def identity(self, full: bool, known: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return name, size, version and a hash of the content: of all of it, or of a MiB each at its beginning, middle
        and end. Results are kept in ``known`` by path."""
        known = {} if known is None else known
        if str(self.path) not in known:
            known[str(self.path)] = self._identity(full)
        found: dict[str, Any] = known[str(self.path)]
        return found

    def _identity(self, full: bool) -> dict[str, Any]:
        size = self.size()
        digest = sha256_of(self._blocks(size, full or size <= 3 * _SAMPLE))
        return {"name": self.name, **self.version(), "sha256": digest}

    def _blocks(self, size: int, full: bool) -> Iterator[bytes]:
        if self.kind() == "folder":  # of files that never change
            for each in self._files():
                yield f"{each.relative_to(self._posix)} {each.stat().st_size}\n".encode()
                if full:
                    yield from Place(each, self.argument)._blocks(0, True)
            return
        if not full:
            for start in (0, (size - _SAMPLE) // 2, size - _SAMPLE):
                yield self.read(start, start + _SAMPLE)
            return
        with self.open() as file:
            yield from blocks_of(file)

    def version(self) -> dict[str, Any]:
        """Return the size, and the ETag of an object or the time of the last change in nanoseconds."""
        if self.local is not None:
            return {"size": self.size(), "mtime_ns": self.local.stat().st_mtime_ns}
        self._fs.invalidate_cache()
        info = self._fs.info(self._inner)
        for name in ("ETag", "etag"):
            if info.get(name):
                return {"size": self._size(info["size"]), "etag": str(info[name])}
        changed = next((info[name] for name in ("mtime", "LastModified", "created") if info.get(name)), "")
        return {"size": self._size(info["size"]), "mtime": str(changed)}


def check_apart(op: str, outs: Mapping[str, PathLike | None], inputs: Mapping[str, PathLike | None]) -> None:
    """Refuse to write a file or folder that shares files with an input, or with another that is written.

    To replace it, or what an earlier run wrote there, would remove the input's. None is not given.
    """
    written = {name: Place(path, name) for name, path in outs.items() if path is not None}
    for name, path in inputs.items():
        if path is None:
            continue
        given = Place(path, name)
        kind = given.kind()
        folder = kind == "folder"
        files = [given, *(given.matches() if kind is None and given.is_pattern() else ())]
        if folder and given.local is not None:  # links may lead from it to files of another folder
            files += map(given.child, given.names())
        for argument, place in written.items():
            # What would lie in a file is refused as such.
            if (folder and place.within(given)) or any(file.within(place) for file in files):
                rule = "must not be an input, lie in one or hold one"
                raise ValueError(f"{op}: {argument} {rule}, got {place} and {name} {path}")
    for (first, one), (second, other) in combinations(written.items(), 2):
        if one.within(other) or other.within(one):
            raise ValueError(f"{op}: {second} must not share files with {first}, got {other} and {one}")


@contextmanager
def one_version() -> Iterator[None]:
    """Open all columns of a file as it is at the first in this block: a database may change between two of them."""
    token = _same.set({})
    try:
        yield
    finally:
        _same.reset(token)


class Copy:
    """A local file to map, for as long as this object lives."""

    def __init__(self, path: Path) -> None:
        self.path = path


def unnamed(write: Callable[[IO[bytes]], Any]) -> Copy:
    """Return a temporary file that `write` fills; without a name, it goes with the process, however that ends."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the copy)
    try:
        write(file)
        file.flush()
    except BaseException:
        file.close()
        raise
    copy = Copy(Path(f"/proc/self/fd/{file.fileno()}"))
    weakref.finalize(copy, file.close)
    return copy
