"""The corpora in service: loaded from their folders, replaced in one step, never changed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .._base import arrays
from .._base.files import check_local, read, stamp
from ..corpus import Corpus, reloaded
from ..corpus.folder import DESCRIPTION, MOST_BYTES
from ..selection.problem import Rows
from .limits import UNKNOWN_CORPUS, RefusedError, invalid, shown
from .texts import TextFile, Texts

# What a model of queries that come with vectors is called, and the field that has these.
NOTHING = "vectors"

# What a folder that cannot be served raises, when it is loaded or first searched; without FAISS an index needs it.
UNUSABLE = (ValueError, OSError, MemoryError, ImportError)


@dataclass(frozen=True, eq=False)
class Served:
    """One version of a corpus. Requests under way keep the version that they began with."""

    name: str
    corpus: Corpus
    version: str = ""
    loaded: float = field(default_factory=time.time)
    kept: dict[str, Any] = field(default_factory=dict)  # checks of earlier requests, to be used again
    unknown: str = "error"  # or "skip": how unknown ids are treated, unless a request says otherwise
    nothing: str = ""  # for queries with candidate vectors, without a corpus: the rule that other queries break
    texts: Texts | None = None  # of its rows
    folder: Path | None = None  # that it was loaded from

    def __len__(self) -> int:
        return len(self.corpus)

    # Kept: a request asks for each of these several times.
    @cached_property
    def dims(self) -> int:
        return self.corpus.dims

    @cached_property
    def rows(self) -> int:
        return len(self.corpus)

    @cached_property
    def named(self) -> bool:
        """Whether ids are strings."""
        return self.corpus.ids.kind == "str"

    @cached_property
    def _plain(self) -> bool:
        """Whether ids are the numbers of rows."""
        return self.corpus.ids.kind == "row" and self.corpus.live is None

    def rows_of(self, ids: np.ndarray | Sequence[Any]) -> np.ndarray:
        """Return the rows (n,) int64 of ids; -1 where the corpus has no such id."""
        if self._plain and isinstance(ids, np.ndarray):  # the common case without its checks
            if not ids.size or np.maximum.reduce(ids.view(np.uint64)) < self.rows:  # no negative one either
                return ids
            return np.where((ids >= 0) & (ids < self.rows), ids, -1)
        rows: np.ndarray = self.corpus.rows_of(ids, unknown="pad")
        return rows

    def ids_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids of rows, in the same shape: int64, or objects that are strings."""
        if self.corpus.ids.kind == "row":
            return rows
        ids: np.ndarray = self.corpus.ids[rows]
        return ids

    def vectors_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (n, D) float32 that rows have as queries."""
        corpus = self.corpus
        if isinstance(corpus.data, np.ndarray):
            return corpus.vectors(rows).astype(np.float32)
        taken, scales = arrays.to_host(corpus.data[rows]), corpus.scales
        held = Rows(
            taken, corpus.dtype, corpus.metric, corpus.norm, None if scales is None else arrays.to_host(scales[rows])
        )
        return held.vectors(slice(None)).astype(np.float32)

    def described(self) -> dict[str, Any]:
        """Return what ``/info`` says of it."""
        corpus = self.corpus
        return {
            "rows": corpus.num_live,
            "dims": corpus.dims,
            "metric": corpus.metric,
            "dtype": corpus.dtype,
            "device": corpus.device,
            "ids": "string" if self.named else "int64",
            "bias": corpus.bias is not None,
            "groups": corpus.groups is not None,
            "costs": corpus.costs is not None,
            "time": corpus.time is not None,
            "unknown": self.unknown,
            "index": None if corpus._index is None else str(corpus._index),
            "texts": 0 if self.texts is None else self.texts.count,
            "version": self.version,
            "loaded": self.loaded,
        }


class Corpora:
    """The corpora by name, and the folders that they are loaded from.

    Parameters
    ----------
    sources : mapping of names to folders or to a `Corpus`
        Corpora that are given as such cannot be reloaded.
    device : str
        Where their rows are held.
    verify : bool
        Compare all bytes of a folder with its checksums, where it has them, whenever it is loaded.
    unknown : {"error", "skip"}
        How to treat an id that is not in the corpus if the request does not say it.
    texts : mapping of names to `TextFile`, optional
        The texts of the corpora that have some; they are opened anew when a corpus is loaded anew.
    """

    def __init__(
        self,
        sources: Mapping[str, str | Path | Corpus],
        device: str = "cpu",
        verify: bool = False,
        unknown: str = "error",
        texts: Mapping[str, TextFile] | None = None,
    ) -> None:
        if unknown not in ("error", "skip"):
            raise ValueError(f"serve: unknown must be one of 'error', 'skip', got {unknown!r}")
        self._texts = dict(texts or {})
        for name in self._texts:
            if name not in sources:
                raise ValueError(f"serve: texts must be of a corpus that is served, got {name!r}")
        self._device, self._verify, self._unknown = device, verify, unknown
        self.compared: set[str] = set()  # segments whose bytes are as they were saved
        self._served: dict[str, Served] = {}
        for name, source in sources.items():
            if not isinstance(source, Corpus):
                check_local("serve", "corpus", source)
            with naming(name):
                self._served[name] = (
                    self._made(name, source.to(device), "memory")
                    if isinstance(source, Corpus)
                    else self.load(name, Path(source))
                )
        self._name()

    def all(self) -> list[Served]:
        return list(self._served.values())

    def get(self, name: object, op: str = "select") -> Served:
        """Return the corpus of a request: by its name, or the only one."""
        if name is None and len(self._served) == 1:
            return next(iter(self._served.values()))
        served = self._served.get(name) if isinstance(name, str) else None
        if served is not None:
            return served
        if name == NOTHING:
            return self._nothing
        raise invalid(op, "corpus", self._rule, shown(name), UNKNOWN_CORPUS)

    def without(self, name: object) -> Served:
        """Return the corpus of queries that may bring vectors; `Rules.has_corpus` refuses those that do not."""
        return self._nothing if name is None and len(self._served) != 1 else self.get(name)

    def folder(self, name: str) -> Path:
        """Return the folder of a corpus that is to be reloaded, or refuse a name that has none."""
        folder = self.at(name, "reload").folder
        if folder is None:
            raise RefusedError(409, f"reload: name must be of a corpus loaded from a folder, got {shown(name)}", "name")
        return folder

    def load(self, name: str, folder: Path, verify: bool | None = None) -> Served:
        """Load a folder; what is in service stays. ``verify`` None: as the others."""
        verify = self._verify if verify is None else verify
        corpus, version = loaded(folder, self._device, verify, self.compared)
        return self._made(name, corpus, version, folder)

    def at(self, name: str, op: str) -> Served:
        """Return a corpus, or refuse a name that has none."""
        if name not in self._served:
            raise not_served(op, name)
        return self._served[name]

    def _made(self, name: str, corpus: Corpus, version: str, folder: Path | None = None) -> Served:
        given = self._texts.get(name)
        texts = None if given is None else Texts(given, corpus)
        return Served(name, corpus, version, unknown=self._unknown, texts=texts, folder=folder)

    def put(self, served: Served) -> None:
        """Put a loaded corpus in service: requests that begin now get it."""
        new = served.name not in self._served
        self._served = {**self._served, served.name: served}  # threads may read the one before
        if new:
            self._name()

    def remove(self, name: str) -> None:
        """Take a corpus out of service; requests under way keep it."""
        self._served = {each: served for each, served in self._served.items() if each != name}
        self._name()

    def _name(self) -> None:
        """Say in errors which corpora there are."""
        names = ", ".join(map(repr, self._served)) or f"those of the server, which has none: send {NOTHING}"
        self._rule = f"be one of {names}"
        self._nothing = Served(
            NOTHING, Corpus(np.zeros((1, 1), np.float32)), "vectors", unknown=self._unknown, nothing=self._rule
        )


def not_served(op: str, name: str) -> RefusedError:
    """Return the error of a request about a corpus that there is not."""
    message = f"{op}: name must be of a corpus that is served, got {shown(name)}"
    return RefusedError(404, message, "name", code=UNKNOWN_CORPUS)


NAMES = "of 1 to 200 characters without / : { and }"  # paths of models have further words behind the name


def can_be_named(name: str) -> bool:
    """Return whether a corpus can have a name."""
    return 0 < len(name) <= 200 and not set(name) & set("/:{}")


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Say in the errors of a corpus which one cannot be served."""
    try:
        yield
    except UNUSABLE as error:
        text = str(error).removeprefix("serve: ") or type(error).__name__
        raise ValueError(f"serve: corpus {name!r} cannot be served: {text}") from error


class Watch:
    """Polls folders for new versions."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, ...] | None] = {}

    def changed(self, folders: Mapping[str, str | Path | None], versions: Mapping[str, str]) -> list[str]:
        """Return the corpora whose folder has changed since the last call, or, at the first, since they were loaded.

        ``versions`` are those in service. A folder that has gone has changed; why it does not load is then told once.
        """
        found = []
        for name, version in versions.items():
            if (folder := folders.get(name)) is None:
                continue
            now, key = stamp(Path(folder) / DESCRIPTION), (name, str(folder))
            changed = now != self._seen[key] if key in self._seen else fingerprint(Path(folder)) != version
            self._seen[key] = now
            if changed:
                found.append(name)
        return found


def loaded(
    folder: Path, device: str = "cpu", verify: bool = False, compared: set[str] | None = None
) -> tuple[Corpus, str]:
    """Return the corpus of a folder and its version; with ``verify``, all bytes are as its checksums say.

    Segments in ``compared`` have been looked at before; others are added.
    """
    while True:
        version = fingerprint(folder)
        corpus = reloaded(folder, verify, compared).to(device)
        if fingerprint(folder) == version:  # no other save came between
            return corpus, version


def fingerprint(folder: Path) -> str:
    """Return a digest of the description of a saved corpus, which has the checksums of its files; '' without one."""
    try:
        return hashlib.sha256(read(folder / DESCRIPTION, MOST_BYTES)).hexdigest()[:16]
    except (OSError, ValueError):
        return ""
