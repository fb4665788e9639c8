"""Files and folders that appear whole or not at all, also after a kill or a loss of power.

They are written beside their place as ``.<name>.<12 digits>.partial``, synced, and renamed when they are complete. A
folder that is being written is locked, which distinguishes it from one that a killed process has left.
"""

from __future__ import annotations

import codecs
import csv
import errno
import hashlib
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

Guard = Callable[[], AbstractContextManager[None]]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")
_PASSWORD = re.compile(r"(?<=://)[^\s/@]*:[^\s/@]+(?=@)")  # with the user before it
_TABLE = re.compile(r"[^:]+\.(duckdb|sqlite3?|db)::[^:]", re.IGNORECASE)  # a table of a file
_BROKEN_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")  # what pathlib makes of one

PARTIAL = ".partial"
_BLOCK = 1 << 20  # bytes read at a time
_FIRST = 1 << 16  # bytes that are read for a first line
_OLD = ".old"  # a folder that is being replaced, on file systems where two cannot change places in one step
_SYNCED = 8  # files synced at a time
_TRIES = 20  # of a step that fails only if another process works on the same name

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # constants of Linux


def without_password(text: str) -> str:
    """Return a text without the passwords of URLs in it."""
    return _PASSWORD.sub("***", text)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether it is for fsspec; a local path else, such as a table of a database, ``FILE.sqlite::TABLE``."""
    text = os.fsdecode(path)
    return _URL.match(text) is not None and _TABLE.match(text) is None


def was_url(path: str | os.PathLike[str]) -> bool:
    """Whether it is a URL that has been made a Path."""
    return isinstance(path, Path) and _BROKEN_URL.match(os.fspath(path)) is not None


def check_local(op: str, argument: str, path: str | os.PathLike[str]) -> None:
    """Refuse a URL where files are written that only local paths can have: it would be a folder named ``s3:`` here."""
    if is_url(path) or was_url(path):
        text = os.fsdecode(path)
        if was_url(path):
            scheme, _, rest = text.partition(":/")
            text = f"{scheme}://{'/' * (scheme == 'file')}{rest}"
        raise ValueError(f"{op}: {argument} must be a local path, got {text}")


def blocks_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file, some at a time."""
    while block := file.read(_BLOCK):
        yield block


def sha256_of(blocks: Iterable[bytes]) -> str:
    """Return the SHA-256 of blocks end to end, as ``sha256sum`` prints it."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def read(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Return the bytes of a regular file; `ValueError` for any other file, and for one with more than `most` bytes.

    Reading a pipe may wait forever, and a device may have no end. Python allocates the number of bytes to read first.
    """
    flag = getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | flag)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{os.path.basename(path)} is no regular file")
        if most is not None and found.st_size > most:
            raise ValueError(f"{os.path.basename(path)} has {found.st_size} bytes, more than {most}")
        return file.read(found.st_size)


def stamp(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """Return what is another number whenever a file has been written or replaced; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def first_line(path: str | os.PathLike[str]) -> str:
    """Return the first line of a file, such as a token's; it may be a pipe, or a device without an end."""
    with open(path, "rb") as file:
        return file.read(_FIRST).partition(b"\n")[0].decode().strip()


def lines_of(content: bytes) -> list[str]:
    """Return the lines of UTF-8 text, which end with LF or CRLF, without a byte order mark.

    `str.splitlines` also cuts at U+2028, U+0085, form feed and others, which ids and texts may hold.
    """
    lines = content.removeprefix(codecs.BOM_UTF8).decode().split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def csv_of(rows: Iterable[Sequence[object]]) -> bytes:
    """Return rows as CSV in UTF-8 with LF at the end of lines; fields with LF or CR are quoted."""
    lines: list[str] = []
    # The writer quotes only characters of its own line terminator, so this stays the default, CRLF.
    writer = csv.writer(cast(Any, SimpleNamespace(write=lambda line: lines.append(line[:-2] + "\n"))))
    writer.writerows(rows)
    return "".join(lines).encode()


class HashedFile:
    """A file written from its beginning to its end, with the SHA-256 of what was written."""

    def __init__(self, file: IO[bytes], guard: Guard = nullcontext) -> None:
        self._file, self._guard, self._digest = file, guard, hashlib.sha256()

    def write(self, data: Any) -> int:
        self._digest.update(data)
        with self._guard():
            return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def replacing(path: Path, *, durable: bool = True, guard: Guard = nullcontext) -> Iterator[HashedFile]:
    """Yield a file that takes the place of ``path`` when the block ends without an error; ``durable``: synced before.

    ``guard`` surrounds what is done to the file, and nothing else of the block: it words the errors.
    """
    aside = _beside(path, PARTIAL)
    with guard():
        file = HashedFile(open(aside, "wb"), guard)  # noqa: SIM115 (closed below)
    try:
        yield file
        with guard():
            file.flush()
            if durable:
                os.fsync(file.fileno())
            file.close()
            aside.replace(path)
            if durable:
                sync(path.parent)
    except BaseException:
        with suppress(OSError):  # a full disk makes closing fail too
            file.close()
        with suppress(OSError):
            aside.unlink()
        raise


@contextmanager
def staging(place: Path, goes_on: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Yield a new folder beside ``place``, to fill and `put` there; when the block ends, its name is removed.

    Folders that killed processes have left are removed first, but for one with which the caller goes on: then it is
    this one, which an interrupt leaves too.
    """
    restore(place)
    going_on: tuple[Path, int] | None = None
    for old in _left(place, _OLD):
        if os.path.lexists(place):
            _remove(old)
    for left in _left(place, PARTIAL):
        with suppress(OSError):  # another process is at work on it, or has removed it
            descriptor = _locked(left)
            if going_on is None and goes_on is not None and goes_on(left):
                going_on = left, descriptor
                continue
            try:
                _remove(left)
            finally:
                os.close(descriptor)
    folder, descriptor = going_on or _new(place)
    kept = False
    try:
        yield folder
    except KeyboardInterrupt:
        kept = goes_on is not None
        raise
    finally:
        if not kept:
            _remove(folder)
        os.close(descriptor)


@contextmanager
def replacing_and_sweeping(path: Path) -> Iterator[HashedFile]:
    """Yield a file as `replacing` does, after removing what killed processes have left of it. For a job's one file."""
    with staging(path) as folder:
        made = folder / path.name
        with replacing(made) as file:
            yield file
        made.replace(path)
        sync(path.parent)


def put(made: Path, place: Path, *, overwrite: bool = False) -> None:
    """Sync a filled folder and give it its name in one step.

    With ``overwrite`` it replaces another folder, which gets the name of ``made`` or is removed. Without, anything but
    an empty folder at ``place`` raises `OSError`.
    """
    sync_all(Path(folder, name) for folder, _, names in os.walk(made) for name in (*names, ""))
    for tries_left in reversed(range(_TRIES)):
        try:
            if not (overwrite and os.path.lexists(place)):
                os.rename(made, place)
            elif not _exchange(made, place):
                _swap(made, place)
            break
        except OSError as error:  # another process has just made or removed it
            passing = error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
            if not (overwrite and passing and tries_left):
                raise
    sync(place.parent)


def standing(place: Path) -> Path:
    """Return where the folder is: at ``place``, or where a kill in the middle of `put` left it."""
    for _ in range(_TRIES):
        if os.path.lexists(place):
            break
        if old := _left(place, _OLD):
            return old[0]
    return place


def restore(place: Path) -> None:
    """Give a folder its name back after a kill in the middle of `put`."""
    if not os.path.lexists(place):
        for old in _left(place, _OLD)[:1]:
            with suppress(OSError):  # another process has done it
                os.rename(old, place)
                sync(place.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[Path]) -> None:
    """Wait until files, and the names in folders, are on disk: together, as a journal writes several in one step.

    20 small files and folders take 0.02 s on ext4, one after the other 0.14 s.
    """
    with ThreadPoolExecutor(_SYNCED) as threads:
        for _ in threads.map(sync, paths):
            pass


def _beside(place: Path, ending: str) -> Path:
    return place.with_name(f".{place.name}.{uuid.uuid4().hex[:12]}{ending}")


def _left(place: Path, ending: str) -> list[Path]:
    """Return the folders beside ``place`` with such names, the newest first."""
    name = re.compile(re.escape(f".{place.name}.") + "[0-9a-f]{12}" + re.escape(ending))
    try:
        with os.scandir(place.parent) as entries:
            found = [entry for entry in entries if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
            found.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns, reverse=True)
    except OSError:  # no such folder, one that may not be listed, or an entry that has just gone
        return []
    return [Path(entry.path) for entry in found]


def _new(place: Path) -> tuple[Path, int]:
    """Make a locked folder beside ``place``; return it and the descriptor that holds the lock."""
    for _ in range(_TRIES):
        folder = _beside(place, PARTIAL)
        folder.mkdir()
        with suppress(FileNotFoundError, BlockingIOError):  # another process found it before it was locked
            descriptor = _locked(folder, where_possible=True)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), folder.stat()):
                    return folder, descriptor
            os.close(descriptor)
    raise BlockingIOError(errno.EAGAIN, "another process removes new folders", str(folder))


def _locked(folder: Path, where_possible: bool = False) -> int:
    """Lock a folder, if its file system has locks; return the descriptor that holds the lock until the process ends."""
    import fcntl  # here, so that the package can be imported on Windows, which has none

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError) or not where_possible:
            os.close(descriptor)
            raise
    return descriptor


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two names in one step; return whether that worked. If not, renaming works or raises the reason."""
    import ctypes

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    renameat2.argtypes = ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint
    return bool(renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0)


def _swap(made: Path, place: Path) -> None:
    """Rename the old folder, then the new one; between the two `standing` finds the old one."""
    old = _beside(place, _OLD)
    os.rename(place, old)
    try:
        os.rename(made, place)
    except BaseException:
        restore(place)
        raise
    finally:
        if os.path.lexists(place):
            sync(place.parent)  # before the old folder goes: a loss of power must leave one of the two
            _remove(old)


def _remove(folder: Path) -> None:
    if folder.suffix == _OLD:  # `standing` must not find it any more
        with suppress(OSError):
            doomed = folder.with_suffix(PARTIAL)
            os.rename(folder, doomed)
            folder = doomed
    shutil.rmtree(folder, ignore_errors=True)
