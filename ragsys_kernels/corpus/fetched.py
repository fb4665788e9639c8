"""Corpora at URLs that fsspec opens: what is read of one is copied to a temporary folder first.

Its description names the segments, and these name their files: nothing is listed, and nothing else is fetched. The
folder is there while its files are opened and verified; mapped files need no name, so that they go with the arrays.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from .._base.types import PathLike
from .._base.urls import filesystem, protocols

_AT_ONCE = 8  # files


class Store:
    """A folder at a URL; errors say that it cannot be read."""

    def __init__(self, path: PathLike) -> None:
        self._url = url = os.fsdecode(path)
        self._files, inner = filesystem("Corpus", "path", url)
        self._inner = inner.rstrip("/")
        self.local = Path(inner) if "file" in protocols(self._files) else None

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file, of which no more than ``most`` bytes are read, as it is now."""
        with self._worded():
            self._files.invalidate_cache()
            content: bytes = self._files.cat_file(f"{self._inner}/{name}", start=0, end=most)
            return content

    def copy(self, names: Iterable[str], to: Path) -> None:
        """Copy files into a folder, several at a time; those that are missing there are missing here."""

        def one(name: str) -> None:
            with suppress(FileNotFoundError), self._worded():
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(f"{self._inner}/{name}", str(to / name))

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for _ in threads.map(one, names):
                pass

    def check_room(self, size: int, place: Path) -> None:
        """Refuse to copy more bytes than the disk has."""
        if size > (free := shutil.disk_usage(place).free):
            rule = "fit into the folder for temporary files, which TMPDIR names"
            raise OSError(f"Corpus: path must {rule}, got {size} bytes of {self._url} and {free} in {place.parent}")

    @contextmanager
    def _worded(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # of the protocol's own package: no credentials, no such host
            raise OSError(f"Corpus: path must be a URL that can be read, got {self._url}: {error}") from error


@contextmanager
def temporary() -> Iterator[Path]:
    """Yield a folder that is removed when the block ends."""
    with tempfile.TemporaryDirectory(prefix="ragsys_kernels-", ignore_cleanup_errors=True) as made:
        yield Path(os.path.realpath(made))
