"""Folders of corpora in segments: they grow and change, and readers have one version for as long as they hold it.

    corpus.json           the description: what counts now
    segments/NAME/        a saved corpus each (folder.py); never changed
    deleted/NAME.bits     the deleted rows of a segment, a bit each, least significant first; never changed
    .lock                 which process writes

The description of format 3::

    {"format": 3, "version": ..., "metric": ..., "dtype": ..., "shape": [N, D], "columns": [...],
     "rows_per_segment": ..., "segments": [{"name": ..., "rows": ..., "bytes": ..., "sha256": of its corpus.json,
     "max_norm": of its rows that are not deleted, "deleted": null | {"name": ..., "rows": ..., "sha256": ...}}, ...],
     "sha256": of all before}

Row i of a segment is the row i + (rows of the segments before it) of the corpus, whether or not rows are deleted. A
writer writes new files, syncs them, and replaces the description in one step; then it removes what no description
names. What a killed writer has left goes with the next one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._base import arrays as _arrays
from .._base import files as _files
from .._base.checks import shown
from .._base.lock import locked
from .._base.npy import HEADER, header
from .._base.types import PathLike
from ..selection.problem import Rows
from . import folder, groups, ids, spans
from .folder import ARRAYS, DESCRIPTION, SEGMENTED, DamageError, one_form
from .spans import Piece

_SEGMENTS, _DELETED = "segments", "deleted"
_PROGRESS = "_build.json"  # of a build that is under way
_NAME = re.compile(r"[0-9a-z-]{1,64}")
DUPLICATES = ("error", "replace")

# Bytes of a segment of `compacted` where the folder does not say how many rows it has.
_COMPACT_BYTES = 1 << 30
_BLOCK_BYTES = 1 << 24


@dataclass
class Parts:
    """The segments of a corpus in memory: the pieces of each of its arrays, which make up the array beside them."""

    arrays: dict[str, tuple[np.ndarray, list[Piece]]]
    ids: list[ids.Ids]

    def __reduce__(self) -> Any:  # other processes get the arrays alone
        return Parts, ({}, [])


@dataclass(frozen=True)
class Opened:
    """A folder of any kind, mapped into memory; ``parts`` is None where it is one saved corpus."""

    rows: Rows
    ids: ids.Ids
    parts: Parts | None = None


# --- Reading.


def load(path: PathLike, verify: bool, compared: set[str] | None = None) -> Opened:
    """Return the rows of a folder and their ids, mapped into memory; see `Corpus.load`.

    With `verify`, segments in `compared` have been before, and need not be again; others are added to it.
    """
    return folder.steadily(path, lambda found: _opened(found, verify, set() if compared is None else compared))


def version_of(path: PathLike) -> dict[str, Any]:
    """Return the description of the version that a folder of segments has now."""
    return folder.steadily(path, _version_of)


def part(path: PathLike, description: dict[str, Any], numbers: range) -> Opened:
    """Return consecutive segments of a version, `version_of` a folder, as a corpus of their own.

    Groups that are strings keep the numbers of the whole, without their names.
    """
    some = {**description, "segments": [description["segments"][number] for number in numbers]}
    return folder.steadily(path, lambda place: _opened_of(place, some, False, set()))


def problems(path: PathLike) -> list[str]:
    """Read all files of a folder; return what is wrong with each: nothing, if all are as they were saved."""
    return folder.steadily(path, _problems)


def described(path: PathLike) -> dict[str, Any]:
    """Return what `corpus show` prints of a folder: its version, rows, and of each segment rows, deleted and bytes."""
    return folder.steadily(path, _described)


def is_segmented(path: PathLike) -> bool:
    """Whether a folder is one of segments; False of what is no folder of a corpus."""
    with suppress(DamageError):
        return bool(folder.described(_files.standing(folder.place_of(path)))[0]["format"] == SEGMENTED)
    return False


def files(path: Path) -> list[str]:
    """Return the files of the version that a folder has now, relative to it, sorted, the description among them."""
    description = _description(path)
    found = [DESCRIPTION]
    for segment in description["segments"]:
        inner = path / _SEGMENTS / segment["name"]
        found += [f"{_SEGMENTS}/{segment['name']}/{name}" for name in os.listdir(inner)]
        if segment["deleted"]:
            found.append(_bits(segment["deleted"]["name"]))
    return sorted(found)


def _opened(place: Path, verify: bool, compared: set[str]) -> Opened:
    with one_form():
        if folder.described(place)[0]["format"] != SEGMENTED:
            return Opened(*folder.opened(place, verify))
        return _opened_of(place, _description(place), verify, compared)


def _opened_of(place: Path, description: dict[str, Any], verify: bool, compared: set[str]) -> Opened:
    with one_form():
        sums = [segment["sha256"] for segment in description["segments"]]
        new = [number for number, each in enumerate(sums) if verify and each not in compared]
        found = [
            _segment(place, description, segment, number in new)
            for number, segment in enumerate(description["segments"])
        ]
        live = [_live(place, segment) for segment in description["segments"]]
        rows, parts = _joined([each for each, _ in found], [known for _, known in found], place, description)
        if verify:
            groups.check(rows, rows.group_names)
        most = max(segment["max_norm"] for segment in description["segments"])
        mask = joined_live(live, [segment["rows"] for segment in description["segments"]])
        known = ids.joined(parts.ids, mask)
        if new and isinstance(known, ids.Joined) and (twice := known.twice(new)) is not None:
            raise DamageError(f"its ids must be unique, got {shown(twice)} twice")
        compared.update(sums[number] for number in new)
        return Opened(replace(rows, max_norm=most, live=mask), known, parts)


def _version_of(place: Path) -> dict[str, Any]:
    with one_form():
        return _description(place)


def _description(place: Path) -> dict[str, Any]:
    """Return the description of a folder of segments, checked."""
    description = folder.description_of(place)
    segments, shape = description.get("segments"), description.get("shape")
    right = (
        isinstance(segments, list)
        and len(segments) > 0
        and isinstance(shape, list)
        and all(_is_segment(segment) for segment in segments)
        and shape[0] == sum(segment["rows"] for segment in segments)
        and len({segment["name"] for segment in segments}) == len(segments)
        and isinstance(description["version"], int)
        and (description["rows_per_segment"] is None or _is_count(description["rows_per_segment"]))
    )
    if not right:
        raise DamageError(f"{DESCRIPTION} does not describe segments")
    return description


def _is_segment(segment: Any) -> bool:
    deleted = segment["deleted"]
    named = [segment["name"], *([deleted["name"]] if deleted else [])]
    sizes = [segment["rows"], segment["bytes"], *([deleted["rows"]] if deleted else [])]
    good = all(isinstance(name, str) and _NAME.fullmatch(name) for name in named)
    good = good and all(isinstance(size, int) and size >= 0 for size in sizes)
    return good and _is_count(segment["rows"]) and folder.is_size(segment["max_norm"])


def _is_count(x: object) -> bool:
    return isinstance(x, int) and x > 0


@contextmanager
def _of_segment(segment: dict[str, Any]) -> Iterator[None]:
    """Name the segment in errors of its files."""
    try:
        with one_form():
            yield
    except DamageError as damaged:
        why = damaged.why.removeprefix(": ") or f"it must {damaged.rule}, got {damaged.got}".removesuffix(" in ")
        raise DamageError(f"segment {segment['name']}: {why}") from damaged.__cause__


def _check_own(place: Path, segment: dict[str, Any]) -> Path:
    """Return the folder of a segment; refuse one that is missing or another's."""
    inner: Path = place / _SEGMENTS / segment["name"]
    if not inner.is_dir():
        raise DamageError("it is missing")
    try:
        content = (inner / DESCRIPTION).read_bytes()
    except FileNotFoundError:
        raise DamageError(f"{DESCRIPTION} is missing") from None
    if hashlib.sha256(content).hexdigest() != segment["sha256"]:
        raise DamageError(f"{DESCRIPTION} is damaged or another corpus's: it is not the one that was written here")
    return inner


def _segment(place: Path, whole: dict[str, Any], segment: dict[str, Any], verify: bool) -> tuple[Rows, ids.Ids]:
    with _of_segment(segment):
        found, known = folder.opened(_check_own(place, segment), verify)
        columns = columns_of(found, known)
        if (found.metric, found.dtype, len(found.data), found.dims) != (
            whole["metric"], whole["dtype"], segment["rows"], whole["shape"][1],
        ) or columns != whole["columns"]:  # fmt: skip
            raise DamageError("its rows differ from the description of the corpus")
        return found, known


def _live(place: Path, segment: dict[str, Any]) -> np.ndarray | None:
    """Return which rows of a segment are not deleted, None: all."""
    deleted = segment["deleted"]
    if not deleted:
        return None
    with _of_segment(segment):
        try:
            content = (place / _bits(deleted["name"])).read_bytes()
        except FileNotFoundError:
            raise DamageError("the file of its deleted rows is missing") from None
        if hashlib.sha256(content).hexdigest() != deleted["sha256"]:
            raise DamageError("the file of its deleted rows is damaged")
        bits = np.unpackbits(np.frombuffer(content, np.uint8), count=segment["rows"], bitorder="little")
        if np.count_nonzero(bits) != deleted["rows"] or len(content) != (segment["rows"] + 7) // 8:
            raise DamageError("the file of its deleted rows is another's")
        return np.asarray(bits == 0)


def _bits(name: str) -> str:
    return f"{_DELETED}/{name}.bits"


def _joined(found: list[Rows], known: list[ids.Ids], place: Path, description: dict[str, Any]) -> tuple[Rows, Parts]:
    """Return the rows of all segments as one."""
    inner = [place / _SEGMENTS / segment["name"] for segment in description["segments"]]
    pieces = {
        name: [_piece(getattr(rows, name), at / f"{name}.npy") for rows, at in zip(found, inner, strict=True)]
        for name in ARRAYS
        if getattr(found[0], name) is not None
    }
    like = found[0]
    if like.group_names is not None:
        like = replace(like, group_names=groups.joined(rows.group_names for rows in found))
    return _of_pieces(like, pieces, known, max(rows.code_error for rows in found))


def _piece(array: np.ndarray, file: Path) -> Piece:
    with open(file, "rb") as opened:
        offset = header(opened.read(HEADER), os.fstat(opened.fileno()).st_size).offset
    return Piece(array, file, offset)


def _of_pieces(
    like: Rows, pieces: dict[str, list[Piece]], known: list[ids.Ids], code_error: float
) -> tuple[Rows, Parts]:
    arrays, kept = {}, {}
    for name, some in pieces.items():
        whole = arrays[name] = spans.joined(some)
        starts = itertools.accumulate((len(piece.array) for piece in some), initial=0)
        # The arrays of the pieces are those of the whole: the maps of single segments are not kept.
        parts = [
            Piece(whole[start : start + len(piece.array)], piece.file, piece.offset)
            for start, piece in zip(starts, some, strict=False)
        ]
        kept[name] = (whole, parts)
    return _arrays.changed(like, **arrays, code_error=code_error), Parts(kept, known)


def joined_live(masks: list[np.ndarray | None], lengths: list[int]) -> np.ndarray | None:
    """Return which rows of all segments are not deleted, None: all."""
    if all(mask is None for mask in masks):
        return None
    found = [np.ones(n, bool) if mask is None else mask for mask, n in zip(masks, lengths, strict=True)]
    mask = np.concatenate(found)
    mask.flags.writeable = False
    return mask


def columns_of(rows: Rows, known: ids.Ids) -> list[str]:
    """Return what belongs to rows, as descriptions and errors name it."""
    names = [name for name in ("bias", "groups", "costs") if getattr(rows, name) is not None]
    if rows.group_names is not None:
        names[names.index("groups")] = "groups of str"
    return names + ([] if known.kind == "row" else [f"ids of {known.kind}"])


def _described(place: Path) -> dict[str, Any]:
    with one_form():
        whole = folder.described(place)[0]
        if whole["format"] != SEGMENTED:
            rows, known = folder.opened(place, False)
            size = sum((place / name).stat().st_size for name in os.listdir(place))
            segments = [{"name": place.name, "rows": len(rows.data), "deleted": 0, "bytes": size}]
            return {**_summed(segments), **_alike(rows, known)}
        whole = _description(place)
        segments = [
            {
                "name": segment["name"],
                "rows": segment["rows"],
                "deleted": segment["deleted"]["rows"] if segment["deleted"] else 0,
                "bytes": segment["bytes"],
            }
            for segment in whole["segments"]
        ]
        kinds = _kinds(whole["metric"], whole["dtype"], whole["shape"], whole["columns"])
        return {"version": whole["version"], **_summed(segments), **kinds}


def _summed(segments: list[dict[str, Any]]) -> dict[str, Any]:
    sums = {name: sum(segment[name] for segment in segments) for name in ("rows", "deleted", "bytes")}
    return {**sums, "segments": segments}


def _kinds(metric: str, dtype: str, shape: Any, columns: list[str]) -> dict[str, Any]:
    return {"metric": metric, "dtype": dtype, "dims": int(shape[1]), "columns": columns}


def _problems(place: Path) -> list[str]:
    with one_form():
        if folder.described(place)[0]["format"] != SEGMENTED:
            return folder.problems(place)
        whole = _description(place)
        found = []
        for segment in whole["segments"]:
            try:
                with _of_segment(segment):
                    inner = _check_own(place, segment)
                    found += [f"segment {segment['name']}: {each}" for each in folder.problems(inner)]
                _live(place, segment)
            except DamageError as damaged:
                found.append(damaged.why.removeprefix(": "))
        if not found:
            _opened(place, True, set())
        return found


# --- In memory.


def parts_of(rows: Rows, known: ids.Ids, parts: Parts | None) -> tuple[dict[str, list[Piece]], list[ids.Ids]]:
    """Return the pieces of the arrays of a corpus on the host, and the ids of its segments.

    Where an array is not made of pieces, it becomes one in memory that others can share.
    """
    own = {name: array for name in ARRAYS if (array := getattr(rows, name)) is not None}
    kept = {} if parts is None else parts.arrays
    if set(kept) == set(own) and all(kept[name][0] is array for name, array in own.items()):
        assert parts is not None
        return {name: list(pieces) for name, (_, pieces) in kept.items()}, list(parts.ids)
    pieces = spans.in_memory(own, dict.fromkeys(own, 128))  # as deep in a page as in a file
    segments = known.parts if isinstance(known, ids.Joined) else [known]
    return {name: [piece] for name, piece in pieces.items()}, segments


def appended(old: tuple[Rows, ids.Ids, Parts | None], new: tuple[Rows, ids.Ids], on_duplicate: str, op: str) -> Opened:
    """Return the rows of a corpus with others after them; the old ones are not copied, where they are in segments."""
    (rows, known, parts), (more, names) = old, whole(*new)
    check_alike(op, _alike(rows, known), _alike(more, names))
    gone = duplicates(op, known, names, on_duplicate)
    more = groups.continued(more, rows.group_names)
    if more.group_names is not None:
        rows = _arrays.changed(rows, group_names=groups.joined([rows.group_names, more.group_names]))
    pieces, segments = parts_of(rows, known, parts)
    arrays = {name: getattr(more, name) for name in pieces}
    start = len(rows.data)
    page = mmap.PAGESIZE
    leads = {name: (pieces[name][0].offset + start * array[:1].nbytes) % page for name, array in arrays.items()}
    for name, piece in spans.in_memory(arrays, leads).items():
        pieces[name].append(piece)
    found, made = _of_pieces(rows, pieces, [*segments, names], max(rows.code_error, more.code_error))
    masks = [rows.live, more.live]
    if gone.size:
        masks[0] = without(rows, gone)
    live = joined_live(masks, [start, len(more.data)])
    norm = max(remaining_norm(rows, masks[0], gone), _norm(more))
    return Opened(_arrays.changed(found, live=live, max_norm=norm), ids.joined(made.ids, live), made)


def without(rows: Rows, gone: np.ndarray) -> np.ndarray:
    """Return which rows are not deleted once some others are."""
    live = np.ones(len(rows.data), bool) if rows.live is None else np.array(_arrays.to_host(rows.live))
    live[gone] = False
    live.flags.writeable = False
    return live


def _norm(rows: Rows) -> float:
    assert rows.max_norm is not None
    return rows.max_norm


def remaining_norm(rows: Rows, live: np.ndarray | None, gone: np.ndarray) -> float:
    """Return the largest norm of the rows that are not deleted; that of unit rows is known."""
    if rows.metric == "cosine" or not gone.size or live is None:
        return _norm(rows)
    if _largest(rows, gone) * (1 + rows.dims**0.5 / 254) < _norm(rows):  # which others have
        return _norm(rows)
    return _largest(rows, np.flatnonzero(live))


def _largest(rows: Rows, some: np.ndarray) -> float:
    step, most = max(1, _BLOCK_BYTES // (8 * rows.dims)), 0.0
    for begin in range(0, len(some), step):
        norms = np.linalg.norm(rows.vectors(some[begin : begin + step]), axis=1)
        most = max(most, float(norms.max()))
    return most


def _alike(rows: Rows, known: ids.Ids) -> dict[str, Any]:
    return {
        "metric": rows.metric,
        "dtype": rows.dtype,
        "dims": rows.dims,
        "columns": columns_of(rows, known),
    }


def check_alike(op: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuse rows of another kind than those that are there."""
    for name, rule in (
        ("metric", "the metric"), ("dtype", "the dtype"), ("dims", "the D"), ("columns", "what belongs to the rows"),
    ):  # fmt: skip
        if old[name] != new[name]:
            raise ValueError(
                f"{op}: new rows must have {rule} of the corpus, {_said(old[name])}, got {_said(new[name])}"
            )


def _said(value: Any) -> str:
    return (", ".join(value) or "nothing") if isinstance(value, list) else str(value)


def duplicates(op: str, known: ids.Ids, names: ids.Ids, on_duplicate: str) -> np.ndarray:
    """Return the rows of a corpus whose ids new rows have, to be replaced; refuse them unless that is asked for."""
    if known.kind == "row":
        return np.zeros(0, np.int64)
    found = (known if isinstance(known, ids.Joined) else ids.Joined([known])).rows_with(names)
    there = found >= 0
    if there.any() and on_duplicate != "replace":
        row = int(np.argmax(there))
        more = int(there.sum()) - 1
        others = f", and {more} more like it" if more else ""
        raise ValueError(
            f"{op}: ids must not be in the corpus, got {shown(names[row])} in row {row} of the new rows, "
            f"which is in row {found[row]}{others}; on_duplicate='replace' deletes the old rows"
        )
    return found[there]


# --- Writing.


class Version:
    """The next version of a folder of segments, while a writer makes it. Nothing of it shows before `commit`."""

    def __init__(self, op: str, place: Path, before: dict[str, Any] | None) -> None:
        self._op, self._place = op, place
        self._kinds = None if before is None else _kinds_of(before)
        self.version = 1 if before is None else before["version"] + 1
        self.rows_per_segment = None if before is None else before["rows_per_segment"]
        self._segments: list[dict[str, Any]] = [] if before is None else list(before["segments"])
        opened = [_segment(place, before, segment, False) for segment in self._segments] if before else []
        self._known = [known for _, known in opened]
        self._names = [rows.group_names for rows, _ in opened]
        self._live = [_live(place, segment) for segment in self._segments]
        self._masked: set[int] = set()  # segments of which rows have been deleted
        self.changed = False

    @property
    def kinds(self) -> dict[str, Any]:
        """The metric, dtype, dims and columns of the rows that are there."""
        assert self._kinds is not None
        return self._kinds

    @property
    def num_rows(self) -> int:
        return sum(segment["rows"] for segment in self._segments)

    def known(self) -> ids.Joined:
        """Return the ids of all rows, to look up those that are not deleted."""
        return ids.Joined(self._known, joined_live(self._live, [segment["rows"] for segment in self._segments]))

    def add(self, rows: Rows, known: ids.Ids, on_duplicate: str = "error") -> None:
        """Write rows as a segment."""
        kinds = _alike(rows, known)
        if self._kinds is not None:
            check_alike(self._op, self._kinds, kinds)
        self._kinds = kinds
        if self._segments:
            self.delete(duplicates(self._op, self.known(), known, on_duplicate))
            if rows.group_names is not None:
                rows = groups.continued(rows, groups.joined(self._names))
        name = self._name()
        inner = self._place / _SEGMENTS / name
        with _worded(self._op, self._place):
            inner.mkdir(parents=True)
            content = folder.fill(inner, rows, known, self.num_rows)
            for each in os.listdir(inner):
                _files.sync(inner / each)
            _files.sync(inner)
        size = sum((inner / each).stat().st_size for each in os.listdir(inner))
        segment = {
            "name": name,
            "rows": len(rows.data),
            "bytes": size,
            "sha256": hashlib.sha256(content).hexdigest(),
            "max_norm": rows.max_norm,
            "deleted": None,
        }
        self._segments.append(segment)
        self._live.append(None)
        opened, ids_opened = folder.opened(inner, False)  # of the files: the rows may go
        self._known.append(ids_opened)
        self._names.append(opened.group_names)
        self.changed = True

    def delete(self, rows: np.ndarray) -> None:
        """Delete rows, given by their numbers."""
        starts = np.cumsum([0, *(segment["rows"] for segment in self._segments)])
        of_segment = np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(of_segment).tolist():
            before = self._live[number]
            live = np.ones(self._segments[number]["rows"], bool) if before is None else before.copy()
            live[rows[of_segment == number] - starts[number]] = False
            self._live[number] = live
            self._masked.add(number)
            self.changed = True

    def note(self, key: str) -> None:
        """Write down what there is, for another process to go on with; see `build`."""
        with _worded(self._op, self._place), _files.replacing(self._place / _PROGRESS) as file:
            file.write(json.dumps({"key": key, "segments": self._segments}).encode())

    def go_on(self, noted: list[dict[str, Any]]) -> None:
        """Take the segments that another process has noted, as far as they are whole."""
        with suppress(DamageError):
            for segment in noted:
                with _of_segment(segment):
                    rows, known = folder.opened(_check_own(self._place, segment), False)
                self._kinds = _alike(rows, known)
                self._segments.append(segment)
                self._live.append(None)
                self._known.append(known)
                self._names.append(rows.group_names)
        _sweep(self._place, {"segments": self._segments})

    def replace_all(self) -> None:
        """Leave out all segments that there are: what is added counts alone."""
        self._segments, self._known, self._names, self._live, self._masked = [], [], [], [], set()

    def commit(self) -> None:
        """Make it the version of the folder, in one step."""
        with _worded(self._op, self._place):
            self._commit()

    def _commit(self) -> None:
        assert self._kinds is not None
        if self._masked:
            (self._place / _DELETED).mkdir(exist_ok=True)
            for number in sorted(self._masked):
                self._segments[number] = self._with_deleted(number)
            _files.sync(self._place / _DELETED)
        _files.sync(self._place / _SEGMENTS)
        content = folder.content_of({
            "format": SEGMENTED,
            "version": self.version,
            "metric": self._kinds["metric"],
            "dtype": self._kinds["dtype"],
            "shape": [self.num_rows, self._kinds["dims"]],
            "columns": self._kinds["columns"],
            "rows_per_segment": self.rows_per_segment,
            "segments": self._segments,
        })  # fmt: skip
        with _files.replacing(self._place / DESCRIPTION) as file:
            file.write(content)

    def _with_deleted(self, number: int) -> dict[str, Any]:
        """Write which rows of a segment are deleted; return what the description says of it then."""
        segment, live = self._segments[number], self._live[number]
        assert live is not None
        bits = np.packbits(~live, bitorder="little").tobytes()
        name = self._name()
        (self._place / _bits(name)).write_bytes(bits)
        _files.sync(self._place / _bits(name))
        found = {**segment, "deleted": {
            "name": name, "rows": int((~live).sum()), "sha256": hashlib.sha256(bits).hexdigest(),
        }}  # fmt: skip
        assert self._kinds is not None
        if self._kinds["metric"] == "dot":
            rows = folder.opened(self._place / _SEGMENTS / segment["name"], False)[0]
            rows = replace(rows, max_norm=segment["max_norm"])
            found["max_norm"] = remaining_norm(rows, live, np.flatnonzero(~live))
        return found

    def _name(self) -> str:
        """Return a name that no file of any version has had: who holds an old one may look for it by its name."""
        return f"{self.version:06d}-{uuid.uuid4().hex[:12]}"


@contextmanager
def _worded(op: str, place: Path) -> Iterator[None]:
    """Say in errors of the disk, which may be full in any step, that the corpus is as it was."""
    try:
        yield
    except OSError as error:
        text = f"{op}: folder must be one that can be written, got {place}: {error.strerror or error}; it is as it was"
        worded = type(error)(text)
        worded.errno = error.errno
        raise worded from error


def _kinds_of(description: dict[str, Any]) -> dict[str, Any]:
    return _kinds(*(description[name] for name in ("metric", "dtype", "shape", "columns")))


@contextmanager
def changing(op: str, path: PathLike) -> Iterator[Version]:
    """Yield the next version of a folder of segments, which it is when the block ends without an error.

    One process at a time: a second one is refused with the name of the first.
    """
    place = folder.place_of(path)
    _files.check_local(op, "folder", path)
    _files.restore(place)
    if not is_segmented(place):
        found = f"the saved corpus {place}, which is one piece" if (place / DESCRIPTION).is_file() else str(place)
        raise ValueError(f"{op}: folder must be one of corpus build with rows_per_segment, got {found}")
    with locked(place, f"{op}: folder"):
        try:
            with one_form():
                before = _description(place)
                _sweep(place, before)
                version = Version(op, place, before)
        except DamageError as damaged:
            raise damaged.error(path) from damaged.__cause__
        try:
            yield version
            if version.changed:
                version.commit()
        finally:
            with suppress(DamageError, OSError):
                _sweep(place, _description(place))


def build(
    op: str,
    path: PathLike,
    made: Callable[[int], Iterable[tuple[Rows, ids.Ids]]],
    rows_per_segment: int,
    overwrite: bool,
    key: str = "",
) -> None:
    """Write a folder of segments, which exists whole or not at all.

    ``made`` yields the segments from a row on. With a ``key``, which says of what they are made, a build that was
    killed goes on with the segments that it had.
    """
    place = folder.place_of(path)

    def goes_on(left: Path) -> bool:
        try:
            return bool(json.loads((left / _PROGRESS).read_bytes())["key"] == key)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    with _owned(op, place), folder.replaced(path, overwrite, goes_on if key else None) as staged:
        version = Version(op, staged, None)
        version.rows_per_segment = rows_per_segment
        if (staged / _PROGRESS).exists():
            version.go_on(json.loads((staged / _PROGRESS).read_bytes())["segments"])
        for rows, known in made(version.num_rows):
            version.add(rows, known)
            if key:
                version.note(key)
        (staged / _PROGRESS).unlink(missing_ok=True)
        version.commit()


@contextmanager
def _owned(op: str, place: Path) -> Iterator[None]:
    """Own a folder of segments that is to be replaced: a writer must not lose what it writes."""
    if not is_segmented(place):
        yield
        return
    with locked(place, f"{op}: folder"):
        yield


def whole(rows: Rows, known: ids.Ids) -> tuple[Rows, ids.Ids]:
    """Return the rows that are not deleted, with their ids, as a saved corpus has them."""
    if rows.live is not None:
        return taken(rows, known, np.flatnonzero(_arrays.to_host(rows.live)))
    rows = groups.whole(rows)
    return rows, ids.make("Corpus", known.whole(), len(known)) if isinstance(known, ids.Joined) else known


def taken(rows: Rows, known: ids.Ids, some: np.ndarray) -> tuple[Rows, ids.Ids]:
    """Return some rows of a corpus as those of one of their own, copied."""
    arrays = {name: _arrays.to_host(array)[some] for name in ARRAYS if (array := getattr(rows, name)) is not None}
    new = groups.whole(_arrays.changed(rows, **arrays, live=None))
    norm = _norm(rows) if rows.metric == "cosine" else _largest(new, np.arange(len(some)))
    names = ids.Ids(len(some)) if known.kind == "row" else ids.make("Corpus", known[some], len(some))
    return _arrays.changed(new, max_norm=norm), names


def compacted(op: str, path: PathLike, rows_per_segment: int | None) -> tuple[int, int]:
    """Write the rows that are not deleted as new segments; return how many rows and segments there are."""
    with changing(op, path) as version:
        opened = _opened(folder.place_of(path), False, set())
        rows = opened.rows
        live = np.arange(len(rows.data)) if rows.live is None else np.flatnonzero(rows.live)
        if not live.size:
            raise ValueError(f"{op}: folder must have a row that is not deleted, got none of {len(rows.data)}")
        row = sum(getattr(rows, name)[:1].nbytes for name in ARRAYS if getattr(rows, name) is not None)
        size = rows_per_segment or version.rows_per_segment or max(1, _COMPACT_BYTES // row)
        version.replace_all()
        parts = range(0, len(live), size)
        for begin in parts:
            version.add(*taken(rows, opened.ids, live[begin : begin + size]))  # a segment in memory at a time
    return len(live), len(parts)


def _sweep(place: Path, description: dict[str, Any]) -> None:
    """Remove what the description does not name; the folder is locked."""
    segments = {segment["name"] for segment in description["segments"]}
    bits = {f"{segment['deleted']['name']}.bits" for segment in description["segments"] if segment["deleted"]}
    for name, kept in ((_SEGMENTS, segments), (_DELETED, bits)):
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
