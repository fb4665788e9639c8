"""The next version of a folder of segments, which a writer makes; segments.py says what is in the folder.

A writer writes new files, syncs them, and replaces the description in one step; then it removes what no description
names. What a killed writer has left goes with the next one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from .._base import files as _files
from .._base.lock import locked
from .._base.types import PathLike
from ..selection.problem import Rows
from . import faiss_index, folder, groups, id_keys, ids, segments
from .folder import ARRAYS, DESCRIPTION, SEGMENTED, DamageError, one_form
from .folder_index import FILE, Maker, Recipe, columns_of
from .joined_ids import Joined

_log = logging.getLogger(__name__)

_PROGRESS = "_build.json"  # of a build that is under way
# Bytes of a segment of `compacted` where the folder does not say how many rows it has.
_COMPACT_BYTES = 1 << 30


@dataclass
class _Segment:
    """A segment of the version: what the description says of it, its rows and ids once they are asked for, and what is
    left. An append opens those that may have its ids, and all where groups are of str."""

    described: dict[str, Any]
    open: Callable[[], tuple[Rows, ids.Ids]]
    live: np.ndarray | None = None  # which rows are not deleted; None: all
    masked: bool = False  # rows of it have been deleted in this version
    keys: np.ndarray | None = None  # of its ids, where it is small and they are known

    @cached_property
    def _opened(self) -> tuple[Rows, ids.Ids]:
        with one_form():
            return self.open()

    @property
    def rows(self) -> Rows:
        return self._opened[0]

    @property
    def known(self) -> ids.Ids:
        return self._opened[1]

    def __len__(self) -> int:
        return int(self.described["rows"])


class Version:
    """The next version of a folder of segments, while a writer makes it. Nothing of it shows before `commit`."""

    def __init__(self, op: str, place: Path, before: dict[str, Any] | None) -> None:
        self._op, self._place = op, place
        self._kinds: dict[str, Any] | None = None
        self._keys_file: dict[str, Any] | None = None
        self._keyed = 0  # segments whose keys the file has
        self.version, self.rows_per_segment = 1, None
        self._segments: list[_Segment] = []
        self._unsynced: list[Path] = []  # files and folders that were written
        self.changed = False
        self.recipe = None if before is None else Recipe.of(before.get("index"))
        self._maker: Maker | None = None
        if before is not None:
            self._kinds = segments.kinds_of(before)
            self.version, self.rows_per_segment = before["version"] + 1, before["rows_per_segment"]
            for segment in before["segments"]:
                opened = partial(segments.segment_of, place, before, segment, False)
                self._segments.append(_Segment(segment, opened, segments.live_of(place, segment)))
            self._read_keys(before)
        self.first = self.num_rows  # of the rows that are added

    @property
    def kinds(self) -> dict[str, Any]:
        """The metric, dtype, dims and columns of the rows that are there."""
        assert self._kinds is not None
        return self._kinds

    @property
    def num_rows(self) -> int:
        return sum(map(len, self._segments))

    def known(self) -> ids.Ids:
        """Return the ids of all rows, to look up those that are not deleted."""
        return _Known(self, self._kind())

    def having(self, keys: np.ndarray) -> Joined:
        """Return the ids of all rows, as far as they may have these keys; a segment is opened where it may."""
        live = segments.joined_live([each.live for each in self._segments], list(map(len, self._segments)))
        if self._kind() == "row":
            return Joined([ids.Ids(self.num_rows)], live)
        starts = list(itertools.accumulate(map(len, self._segments), initial=0))
        some = [
            number
            for number, each in enumerate(self._segments)
            if each.keys is None or id_keys.may_share(each.keys, keys)
        ] or [0]  # which says of what kind ids are
        begins = [*(starts[each] for each in some), starts[-1]]
        return Joined([self._segments[each].known for each in some], live, begins)

    def _kind(self) -> str:
        columns = [] if self._kinds is None else self._kinds["columns"]
        return next((name.removeprefix("ids of ") for name in columns if name.startswith("ids of ")), "row")

    def add(self, rows: Rows, known: ids.Ids, on_duplicate: str = "error") -> None:
        """Write rows as a segment."""
        kinds = segments.kinds(rows, known)
        if self._kinds is not None:
            segments.check_alike(self._op, self._kinds, kinds)
        self._kinds = kinds
        if self._segments:
            if known.kind != "row":
                there = self.having(id_keys.of(known))
                self.delete(segments.duplicates(self._op, there, known, on_duplicate, self.first))
            if rows.group_names is not None:
                rows = groups.continued(rows, groups.joined(each.rows.group_names for each in self._segments))
        name = self._name()
        inner = self._place / segments.SEGMENTS / name
        with _worded(self._op, self._place):
            inner.mkdir(parents=True)
            content = folder.fill(inner, rows, known, self.num_rows, self._index_of(rows))
            self._unsynced += [*(inner / each for each in os.listdir(inner)), inner]
        segment = {
            "name": name,
            "rows": len(rows.data),
            "bytes": sum(file.stat().st_size for file in inner.iterdir()),
            "sha256": hashlib.sha256(content).hexdigest(),
            "max_norm": rows.max_norm,
            "deleted": None,
        }
        self._segments.append(_Segment(segment, partial(folder.opened, inner, False), keys=_keys_of(known)))
        self.changed = True

    def maker(self, columns: int) -> Maker:
        """Return what makes the indexes of segments: as those that there are have been trained, if there are some."""
        assert self.recipe is not None
        if self._maker is None:
            self._maker = Maker(self._op, self.recipe, columns)
            files = [self._place / segments.SEGMENTS / each["name"] / FILE for each in self._described()]
            there = next((file for file in files if file.exists()), None)
            if not self._maker.ready and there is not None:
                self._maker.go_on(there)
        return self._maker

    def _index_of(self, rows: Rows) -> folder.Index | None:
        if self.recipe is None:
            return None
        made = self.maker(columns_of(rows)).of(rows)
        return None if made is None else (self.recipe, made)

    def delete(self, rows: np.ndarray) -> None:
        """Delete rows, given by their numbers."""
        starts = np.cumsum([0, *map(len, self._segments)])
        of_segment = np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(of_segment).tolist():
            segment = self._segments[number]
            live = np.ones(len(segment), bool) if segment.live is None else segment.live.copy()
            live[rows[of_segment == number] - starts[number]] = False
            segment.live, segment.masked = live, True
            self.changed = True

    def _described(self) -> list[dict[str, Any]]:
        return [each.described for each in self._segments]

    def note(self, key: str) -> None:
        """Write down what there is, for another process to go on with; see `build`."""
        with _worded(self._op, self._place), _files.replacing(self._place / _PROGRESS) as file:
            self._sync()
            file.write(json.dumps({"key": key, "segments": self._described()}).encode())

    def go_on(self, noted: list[dict[str, Any]]) -> None:
        """Take the segments that another process has noted, as far as they are whole."""
        with suppress(DamageError):
            for segment in noted:
                with segments.naming(segment):
                    inner, description = segments.own_folder(self._place, segment)
                    opened = folder.opened(inner, False, description)
                self._kinds = segments.kinds(*opened)
                self._segments.append(_Segment(segment, partial(folder.opened, inner, False)))
        _sweep(self._place, {"segments": self._described()})

    def replace_all(self) -> None:
        """Leave out all segments that there are: what is added counts alone."""
        self._segments, self._keys_file, self._keyed = [], None, 0

    def commit(self) -> dict[str, Any]:
        """Make it the version of the folder, in one step; return its description."""
        with _worded(self._op, self._place):
            return self._commit()

    def _commit(self) -> dict[str, Any]:
        if masked := [each for each in self._segments if each.masked]:
            (self._place / segments.DELETED).mkdir(exist_ok=True)
            for segment in masked:
                segment.described = self._with_deleted(segment)
            self._unsynced.append(self._place / segments.DELETED)
        self._unsynced.append(self._place / segments.SEGMENTS)
        self._write_keys()
        self._sync()
        description = {
            "format": SEGMENTED,
            "version": self.version,
            "metric": self.kinds["metric"],
            "dtype": self.kinds["dtype"],
            "shape": [self.num_rows, self.kinds["dims"]],
            "columns": self.kinds["columns"],
            "rows_per_segment": self.rows_per_segment,
            **({} if self.recipe is None else {"index": self.recipe.described()}),
            **({} if self._keys_file is None else {"id_keys": self._keys_file}),
            "segments": self._described(),
        }
        with _files.replacing(self._place / DESCRIPTION) as file:
            file.write(folder.content_of(description))
        return description

    def _read_keys(self, before: dict[str, Any]) -> None:
        described = before.get("id_keys")
        found = id_keys.read(self._place / segments.SEGMENTS, described, list(map(len, self._segments)))
        if found is not None:
            self._keys_file, self._keyed = described, len(found)
            for segment, keys in zip(self._segments, found, strict=True):
                segment.keys = keys

    def _write_keys(self) -> None:
        """Write the keys of the segments that the file has not; where they are not known, these are opened."""
        new = self._segments[self._keyed :]
        if self._kind() == "row" or not new:
            return
        keys = [_keys_of(each.known) if each.keys is None and id_keys.kept(len(each)) else each.keys for each in new]
        at, name = self._place / segments.SEGMENTS, (self._keys_file or {"name": self._name() + id_keys.ENDING})["name"]
        self._keys_file = id_keys.write(at, name, keys, self._keys_file)
        self._unsynced.append(at / name)

    def _with_deleted(self, segment: _Segment) -> dict[str, Any]:
        """Write which rows of a segment are deleted; return what the description says of it then."""
        described, live = segment.described, segment.live
        assert live is not None
        bits = np.packbits(~live, bitorder="little").tobytes()
        name = self._name()
        file = self._place / segments.bits_file(name)
        file.write_bytes(bits)
        self._unsynced.append(file)
        deleted = {"name": name, "rows": int((~live).sum()), "sha256": hashlib.sha256(bits).hexdigest()}
        found = {**described, "deleted": deleted}
        if self.kinds["metric"] == "dot":
            rows = replace(segment.rows, max_norm=described["max_norm"])
            found["max_norm"] = segments.remaining_norm(rows, live, np.flatnonzero(~live))
        return found

    def _sync(self) -> None:
        """Wait until all that was written is on disk, which must be before a description names it."""
        _files.sync_all(self._unsynced)
        self._unsynced = []

    def _name(self) -> str:
        """Return a name that no file of any version has had: who holds an old one may look for it by its name."""
        return f"{self.version:06d}-{uuid.uuid4().hex[:12]}"


class _Known(ids.Ids):
    """The ids of all rows of a version, of whose segments those are opened that may have what is looked up."""

    def __init__(self, version: Version, kind: str) -> None:
        super().__init__(version.num_rows)
        self.kind, self._version = kind, version

    def _rows_of(self, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
        return self._version.having(id_keys.of_wanted(self.kind, wanted))._rows_of(wanted)


def _keys_of(known: ids.Ids) -> np.ndarray | None:
    return id_keys.of(known) if known.kind != "row" and id_keys.kept(len(known)) else None


@contextmanager
def _worded(op: str, place: Path) -> Iterator[None]:
    """Say in errors of the disk, which may be full in any step, that the corpus is as it was."""
    try:
        yield
    except OSError as error:
        raise folder.unwritable(error, f"{op}: folder must be one", place, "it is as it was") from error


@contextmanager
def changing(op: str, path: PathLike) -> Iterator[Version]:
    """Yield the next version of a folder of segments, which it is when the block ends without an error.

    One process at a time: a second one is refused with the name of the first.
    """
    place = folder.place_of(path)
    _files.check_local(op, "folder", path)
    _files.restore(place)
    if not segments.is_segmented(place):
        found = f"the saved corpus {place}, which is one piece" if (place / DESCRIPTION).is_file() else str(place)
        raise ValueError(f"{op}: folder must be one of corpus build with rows_per_segment, got {found}")
    with locked(place, f"{op}: folder"):
        try:
            with one_form():
                before = segments.description_of(place)
                _sweep(place, before)
                version = Version(op, place, before)
        except DamageError as damaged:
            raise damaged.error(path) from damaged.__cause__
        stands = None  # unless what is on disk is known
        try:
            yield version
            stands = version.commit() if version.changed else before
        except DamageError as damaged:  # of a segment that was not opened before
            raise damaged.error(path) from damaged.__cause__
        finally:
            with suppress(DamageError, OSError):
                _sweep(place, stands or segments.description_of(place))


def build(
    op: str,
    path: PathLike,
    made: Callable[[int], Iterable[tuple[Rows, ids.Ids]]],
    rows_per_segment: int,
    overwrite: bool,
    key: str = "",
    recipe: Recipe | None = None,
    trains: Callable[[Maker], None] | None = None,
) -> None:
    """Write a folder of segments, which exists whole or not at all.

    ``made`` yields the segments from a row on. With a ``key``, which says of what they are made, a build that was
    killed goes on with the segments that it had. ``trains`` trains what makes their indexes.
    """
    place = folder.place_of(path)

    def goes_on(left: Path) -> bool:
        try:
            return bool(_progress(left)["key"] == key)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    with _owned(op, place), folder.replaced(path, overwrite, goes_on if key else None) as staged:
        version = Version(op, staged, None)
        version.rows_per_segment, version.recipe = rows_per_segment, recipe
        if (staged / _PROGRESS).exists():
            version.go_on(_progress(staged)["segments"])
            _log.info("%s: goes on from %d rows that an earlier call has written", op, version.num_rows)
        for rows, known in made(version.num_rows):
            if trains is not None and not (maker := version.maker(columns_of(rows))).ready:
                trains(maker)
            version.add(rows, known)
            if key:
                version.note(key)
        (staged / _PROGRESS).unlink(missing_ok=True)
        version.commit()


def _progress(staged: Path) -> Any:
    return json.loads(_files.read(staged / _PROGRESS, folder.MOST_BYTES))


@contextmanager
def _owned(op: str, place: Path) -> Iterator[None]:
    """Own a folder of segments that is to be replaced: a writer must not lose what it writes."""
    if not segments.is_segmented(place):
        yield
        return
    with locked(place, f"{op}: folder"):
        yield


def compacted(op: str, path: PathLike, rows_per_segment: int | None) -> tuple[int, int]:
    """Write the rows that are not deleted as new segments; return how many rows and segments there are."""
    with changing(op, path) as version:
        opened = segments.load(path, False)
        rows = opened.rows
        live = np.arange(len(rows.data)) if rows.live is None else np.flatnonzero(rows.live)
        if not live.size:
            raise ValueError(f"{op}: folder must have a row that is not deleted, got none of {len(rows.data)}")
        row = sum(getattr(rows, name)[:1].nbytes for name in ARRAYS if getattr(rows, name) is not None)
        size = rows_per_segment or version.rows_per_segment or max(1, _COMPACT_BYTES // row)
        version.replace_all()
        if version.recipe is not None and not (maker := version.maker(columns_of(rows))).ready:
            some = faiss_index.sample(len(live), maker.wanted(min(size, len(live))))
            maker.train(faiss_index.stored(rows, live[some]))
        parts = range(0, len(live), size)
        for begin in parts:
            version.add(*segments.taken(rows, opened.ids, live[begin : begin + size]))  # a segment in memory at a time
    return len(live), len(parts)


def _sweep(place: Path, description: dict[str, Any]) -> None:
    """Remove what the description does not name; the folder is locked."""
    named = {segment["name"] for segment in description["segments"]}
    named |= {description["id_keys"]["name"]} if "id_keys" in description else set()
    bits = {f"{segment['deleted']['name']}.bits" for segment in description["segments"] if segment["deleted"]}
    for name, kept in ((segments.SEGMENTS, named), (segments.DELETED, bits)):
        with suppress(FileNotFoundError):
            for left in set(os.listdir(place / name)) - kept:
                inner = place / name / left
                if inner.is_dir() and not inner.is_symlink():
                    shutil.rmtree(inner, ignore_errors=True)
                else:
                    with suppress(OSError):
                        inner.unlink()
    for left in os.listdir(place):
        if folder.is_left(left):
            with suppress(OSError):
                (place / left).unlink()
