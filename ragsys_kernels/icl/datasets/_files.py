"""Places of the data sets, how their files are read, and what is said when they are missing."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..._base import env
from ..._base.types import PathLike

T = TypeVar("T")

# The data folder beside a checkout, as seen from the working folder and from the package in the checkout.
_BESIDE = (Path("..") / "shared" / "data", Path(__file__).resolve().parents[4] / "shared" / "data")


class Hub(NamedTuple):
    """A data set that the package ``datasets`` fetches: its splits, end to end."""

    name: str
    configuration: str | None
    splits: tuple[str, ...]
    columns: tuple[str, ...]  # that are read


class File(NamedTuple):
    """The content of a file of a data set, unpacked."""

    path: Path
    content: bytes

    @property
    def text(self) -> str:
        """Return the content as UTF-8, without a byte order mark."""
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"data must be UTF-8 text, got {self.path}: {error}") from error


def data_folder(folder: PathLike | None = None) -> Path | None:
    """Return the folder given, else ``RAGSYS_KERNELS_DATA``, else ``../shared/data`` if it exists."""
    for name, found in (("data", folder), ("RAGSYS_KERNELS_DATA", env.data_folder())):
        if found is not None:
            if not Path(found).is_dir():
                raise FileNotFoundError(f"{name} must be an existing folder, got {found}")
            return Path(found)
    return next((path for path in _BESIDE if path.is_dir()), None)


def read(
    name: str,
    files: Mapping[str, Callable[[File], Iterable[T]]],
    folder: PathLike | None,
    hub: Hub | None = None,
    of_hub: Callable[[list[Any]], Iterable[T]] = iter,
    *,
    with_folders: bool = False,
) -> tuple[list[T], dict[str, str]]:
    """Return the items of the set `name`, and their source: names of files with the SHA-256, or the data set.

    Parameters
    ----------
    files : mapping
        Paths, each of a file as it is or with ``.gz``, and what makes items of its content.
    hub : Hub, optional
        What to fetch where a file is missing.
    of_hub : callable
        Makes items of its rows.
    with_folders : bool
        Whether the names of files have the folder before them.

    Raises
    ------
    FileNotFoundError
        The set is missing; the message says what to pass.
    """
    home = data_folder(folder)
    paths = [_present(home / file) for file in files] if home is not None else [None]
    if not all(paths):
        rows = _fetched(name, [*files], home, hub)
        return list(of_hub(rows)), {hub.name: ""} if hub else {}
    found = [File(path, _content(path)) for path in paths if path is not None]
    items = [item for file, parse in zip(found, files.values(), strict=True) for item in parse(file)]
    names = ["/".join(file.path.parts[-1 - with_folders :]) for file in found]
    return items, {name: hashlib.sha256(file.content).hexdigest() for name, file in zip(names, found, strict=True)}


def json_lines(what: str, read: Callable[[Any], T], file: File) -> Iterator[T]:
    """Yield what ``read`` makes of each line of JSON that is not blank; ``what`` names the content in errors."""
    for number, line in enumerate(file.content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = read(json.loads(line))
        except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
            got = f"{file.path}, line {number}: {type(error).__name__} {error}"
            raise ValueError(f"data must hold {what}, got {got}") from error
        yield found


def _present(path: Path) -> Path | None:
    return next((found for found in (path, path.with_name(f"{path.name}.gz")) if found.is_file()), None)


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"data must be a whole gzip file, got {path}: {error}") from error


def _fetched(name: str, files: Sequence[str], home: Path | None, hub: Hub | None) -> list[Any]:
    where = "none is known: pass data (--data) or set RAGSYS_KERNELS_DATA" if home is None else f"{home} lacks it"
    missing = f"set {name} needs {', '.join(files)} in a data folder, and {where}"
    if hub is None:
        raise FileNotFoundError(missing)
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise FileNotFoundError(f"{missing}; to fetch {hub.name}: pip install datasets") from error
    try:
        loaded = datasets.load_dataset(hub.name, hub.configuration, trust_remote_code=False)
        rows = [row for split in hub.splits for row in loaded[split]]
    except Exception as error:  # of the network, the hub, or the data set
        raise FileNotFoundError(f"{missing}; fetching {hub.name} failed: {type(error).__name__}: {error}") from error
    if not rows:
        raise ValueError(f"set {name} must have rows, got none from {hub.name}")
    lacking = next((column for column in hub.columns if column not in rows[0]), None)
    if lacking is not None:
        raise ValueError(f"set {name} must have the column {lacking!r}, got {', '.join(rows[0])} from {hub.name}")
    return rows
