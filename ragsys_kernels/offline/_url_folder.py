"""An output folder behind a URL of fsspec."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from .._base.files import HashedFile
from .._base.types import PathLike
from .sinks import Folder, writing_to
from .sources import Place

# Object stores have no folders; to make one would make its bucket.
_WITHOUT_FOLDERS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"}


def folder_at(path: PathLike) -> Folder:
    """Return the folder at a path or URL."""
    place = Place(path, "out")
    return Folder(place.local.resolve()) if place.local is not None else UrlFolder(place)


class UrlFolder(Folder):
    """A folder of files that are uploaded when they are complete.

    There is no lock against other processes. What an interrupted upload leaves behind depends on the protocol (object
    stores leave nothing); checksums detect it.
    """

    def __init__(self, place: Place) -> None:
        self.path: Any = str(place).rstrip("/")
        self._fs, self._inner = place.filesystem

    def names(self) -> list[str]:
        self._fs.invalidate_cache()
        try:
            with self._using():
                found = self._fs.ls(self._inner, detail=False)
        except FileNotFoundError:
            return []
        names = {PurePosixPath(path.rstrip("/")).name for path in found if path.rstrip("/") != self._inner.rstrip("/")}
        return sorted(names)

    def strange(self) -> list[str]:
        return []

    def check(self) -> None:
        if self._fs.isfile(self._inner):
            raise FileExistsError(f"select: out must be a folder, got the file {self}")

    def make(self) -> list[Path]:
        protocol = self._fs.protocol
        if not _WITHOUT_FOLDERS.intersection([protocol] if isinstance(protocol, str) else protocol):
            self._fs.makedirs(self._inner, exist_ok=True)
        return []

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def owner(self) -> str | None:
        return None

    def read(self, name: str) -> bytes:
        content: bytes = self._fs.cat_file(self._file(name))
        return content

    def open(self, name: str) -> IO[bytes]:
        file: IO[bytes] = self._fs.open(self._file(name), "rb")
        return file

    def is_file(self, name: str) -> bool:
        # fsspec's isfile returns False on any error, and a job whose manifest is not seen would begin anew.
        try:
            with self._using():
                return bool(self._fs.info(self._file(name))["type"] == "file")
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
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._file(name))

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
        return os.path.join(self._inner, name)
