"""Folders of corpora in segments: they grow and change, and readers have one version for as long as they hold it.

    corpus.json           the description: what counts now
    segments/NAME/        a saved corpus each (folder.py); never changed
    segments/NAME.keys    short keys of ids, to open few segments for an append (id_keys.py); readers do without it
    deleted/NAME.bits     the deleted rows of a segment, a bit each, least significant first; never changed
    .lock                 which process writes

The description of format 3::

    {"format": 3, "version": ..., "metric": ..., "dtype": ..., "shape": [N, D], "columns": [...],
     "rows_per_segment": ..., "index": where there is one, what it is made of, as of a saved corpus,
     "id_keys": where there are ids, {"name": ..., "bytes": ..., "crc32": ...},
     "segments": [{"name": ..., "rows": ..., "bytes": ..., "sha256": of its corpus.json,
     "max_norm": of its rows that are not deleted, "deleted": null | {"name": ..., "rows": ..., "sha256": ...}}, ...],
     "sha256": of all before}

Row i of a segment is the row i + (rows of the segments before it) of the corpus, whether or not rows are deleted.
versions.py writes these folders; here they are read, and rows appended to a corpus in memory.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._base import arrays as _arrays
from .._base import files as _files
from .._base.checks import shown
from .._base.types import PathLike
from ..selection.problem import COLUMNS, Rows
from . import folder, groups, id_keys, ids, joined_ids, spans
from .fetched import Store
from .folder import ARRAYS, DESCRIPTION, SEGMENTED, DamageError, one_form
from .folder_index import FILE, FolderIndex, Part, Recipe
from .joined_ids import Joined
from .spans import Piece

SEGMENTS, DELETED = "segments", "deleted"
_NAME = re.compile(r"[0-9a-z-]{1,64}")
DUPLICATES = ("error", "replace")

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
    index: FolderIndex | None = None


# --- Reading.


def load(path: PathLike, verify: bool, compared: set[str] | None = None) -> Opened:
    """Return the rows of a folder and their ids, mapped into memory; see `Corpus.load`.

    With `verify`, segments in `compared` have been before, and need not be again; others are added to it.
    """
    seen: set[str] = set() if compared is None else compared
    return folder.steadily(path, lambda found: _opened(found, verify or _is_url(path), seen), _fetch_whole)


def version_of(path: PathLike) -> dict[str, Any]:
    """Return the description of the version that a folder of segments has now."""
    return folder.steadily(path, _version_of, lambda *_: None)


def part(
    path: PathLike, description: dict[str, Any], numbers: range, names: ids.Ids | None, verify: bool = False
) -> Opened:
    """Return consecutive segments of a version, `version_of` a folder, as a corpus of their own; verified as by `load`.

    ``names``: those of the groups of the whole corpus, where they are strings, which the numbers of groups are of.
    """
    some = {**description, "segments": [description["segments"][number] for number in numbers]}
    verify = verify or _is_url(path)
    return folder.steadily(
        path,
        lambda place: _opened_of(place, some, verify, set(), names),
        lambda store, place: _fetch(store, place, some),
    )


def group_names(path: PathLike, description: dict[str, Any]) -> ids.Ids | None:
    """Return the names of the groups of all segments of a version, read from the files of names alone."""
    if "groups of str" not in description["columns"]:
        return None

    def read(place: Path) -> ids.Ids:
        found = []
        for segment in description["segments"]:
            with naming(segment):
                found.append(folder.names_in(*own_folder(place, segment)))
        return groups.joined(found)

    only = {f"{name}.npy" for name in groups.ARRAYS}
    return folder.steadily(path, read, lambda store, place: _fetch(store, place, description, only))


def problems(path: PathLike) -> list[str]:
    """Read all files of a folder; return what is wrong with each: nothing, if all are as they were saved."""
    return folder.steadily(path, _problems, _fetch_whole)


def described(path: PathLike) -> dict[str, Any]:
    """Return what `corpus show` prints of a folder: its version, rows, and of each segment rows, deleted and bytes."""
    return folder.steadily(path, _described)


def is_segmented(path: PathLike) -> bool:
    """Whether a folder is one of segments; False of what is no folder of a corpus."""
    if _is_url(path):
        with suppress(ValueError):
            return bool(folder.steadily(path, folder.described, lambda *_: None)[0]["format"] == SEGMENTED)
        return False
    with suppress(DamageError):
        return bool(folder.described(_files.standing(folder.place_of(path)))[0]["format"] == SEGMENTED)
    return False


def files(path: Path) -> list[str]:
    """Return the files of the version that a folder has now, relative to it, sorted, the description among them."""
    description = description_of(path)
    found = [DESCRIPTION]
    for segment in description["segments"]:
        inner = path / SEGMENTS / segment["name"]
        found += [f"{SEGMENTS}/{segment['name']}/{name}" for name in os.listdir(inner)]
        if segment["deleted"]:
            found.append(bits_file(segment["deleted"]["name"]))
    if "id_keys" in description and (path / SEGMENTS / description["id_keys"]["name"]).is_file():
        found.append(f"{SEGMENTS}/{description['id_keys']['name']}")
    return sorted(found)


def _is_url(path: PathLike) -> bool:
    """Whether it is a URL, of which all that is fetched is compared with its checksums."""
    return isinstance(path, (str, os.PathLike)) and _files.is_url(path)


def _fetch_whole(store: Store, place: Path) -> None:
    with one_form():
        description = folder.described(place)[0]
        segmented = description["format"] == SEGMENTED
        description = description_of(place) if segmented else folder.description_of(place)
        size = sum(each["bytes"] for each in ([] if segmented else description["files"].values()))
    if segmented:
        _fetch(store, place, description)
    else:
        store.check_room(size, place)
        store.copy(folder.files_of(description), place)


def _fetch(store: Store, place: Path, description: dict[str, Any], only: Collection[str] | None = None) -> None:
    """Copy the segments of a description, or some files of each; who opens them says what is missing or another's."""
    store.check_room(sum(segment["bytes"] for segment in description["segments"]), place)
    names = [f"{SEGMENTS}/{segment['name']}/{DESCRIPTION}" for segment in description["segments"]]
    names += [bits_file(segment["deleted"]["name"]) for segment in description["segments"] if segment["deleted"]]
    store.copy(names, place)
    names = []
    for segment in description["segments"]:
        with suppress(DamageError), one_form():
            inner, own = own_folder(place, segment)
            names += [
                f"{SEGMENTS}/{inner.name}/{name}" for name in folder.files_of(own) if only is None or name in only
            ]
    store.copy(names, place)


def _opened(place: Path, verify: bool, compared: set[str]) -> Opened:
    with one_form():
        described = folder.described(place)[0]
        if described["format"] != SEGMENTED:
            opened = Opened(*folder.opened(place, verify))
            opened = replace(opened, index=_index_of(described, [place], [len(opened.rows.data)]))
            if verify:
                groups.check(opened.rows, opened.rows.group_names)
            return opened
        return _opened_of(place, description_of(place), verify, compared)


def _opened_of(
    place: Path, description: dict[str, Any], verify: bool, compared: set[str], names: ids.Ids | None = None
) -> Opened:
    with one_form():
        sums = [segment["sha256"] for segment in description["segments"]]
        new = [number for number, each in enumerate(sums) if verify and each not in compared]
        found = [
            segment_of(place, description, segment, number in new)
            for number, segment in enumerate(description["segments"])
        ]
        live = [live_of(place, segment) for segment in description["segments"]]
        rows, parts = _joined([each for each, _ in found], [known for _, known in found], place, description)
        rows = replace(rows, group_names=names or rows.group_names)
        if verify:
            groups.check(rows, rows.group_names)
        most = max(segment["max_norm"] for segment in description["segments"])
        lengths = [segment["rows"] for segment in description["segments"]]
        mask = joined_live(live, lengths)
        known = joined_ids.joined(parts.ids, mask)
        if new and isinstance(known, Joined) and (twice := known.twice(new)) is not None:
            raise DamageError(f"its ids must be unique, got {shown(twice)} twice")
        compared.update(sums[number] for number in new)
        index = _index_of(description, [place / SEGMENTS / each["name"] for each in description["segments"]], lengths)
        return Opened(replace(rows, max_norm=most, live=mask), known, parts, index)


def _index_of(description: dict[str, Any], folders: list[Path], lengths: list[int]) -> FolderIndex | None:
    """Return the index of folders that were opened, whose rows follow one another."""
    recipe = Recipe.of(description.get("index"))
    if recipe is None:
        return None
    ends = itertools.accumulate(lengths)
    files = [(end - rows, end, inner / FILE) for end, rows, inner in zip(ends, lengths, folders, strict=True)]
    return FolderIndex(recipe, [Part.mapped(*each) for each in files if each[2].exists()])


def _version_of(place: Path) -> dict[str, Any]:
    with one_form():
        return description_of(place)


def description_of(place: Path) -> dict[str, Any]:
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
        and ("id_keys" not in description or id_keys.is_described(description["id_keys"]))
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
def naming(segment: dict[str, Any]) -> Iterator[None]:
    """Name the segment in errors of its files."""
    try:
        with one_form():
            yield
    except DamageError as damaged:
        why = damaged.why.removeprefix(": ") or f"it must {damaged.rule}, got {damaged.got}".removesuffix(" in ")
        raise DamageError(f"segment {segment['name']}: {why}") from damaged.__cause__


def own_folder(place: Path, segment: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a segment and its description; refuse one that is missing or another's."""
    inner: Path = place / SEGMENTS / segment["name"]
    if not inner.is_dir():
        raise DamageError("it is missing")
    try:
        content = _files.read(inner / DESCRIPTION, folder.MOST_BYTES)
    except FileNotFoundError:
        raise DamageError(f"{DESCRIPTION} is missing") from None
    except ValueError as error:
        raise DamageError(error) from None
    if hashlib.sha256(content).hexdigest() != segment["sha256"]:
        raise DamageError(f"{DESCRIPTION} is damaged or another corpus's: it is not the one that was written here")
    return inner, json.loads(content)


def segment_of(place: Path, whole: dict[str, Any], segment: dict[str, Any], verify: bool) -> tuple[Rows, ids.Ids]:
    with naming(segment):
        inner, description = own_folder(place, segment)
        found, known = folder.opened(inner, verify, description)
        columns = columns_of(found, known)
        if (found.metric, found.dtype, len(found.data), found.dims) != (
            whole["metric"], whole["dtype"], segment["rows"], whole["shape"][1],
        ) or columns != whole["columns"]:  # fmt: skip
            raise DamageError("its rows differ from the description of the corpus")
        return found, known


def live_of(place: Path, segment: dict[str, Any]) -> np.ndarray | None:
    """Return which rows of a segment are not deleted, None: all."""
    deleted = segment["deleted"]
    if not deleted:
        return None
    with naming(segment):
        try:
            content = _files.read(place / bits_file(deleted["name"]), (segment["rows"] + 7) // 8)
        except FileNotFoundError:
            raise DamageError("the file of its deleted rows is missing") from None
        except ValueError as error:
            raise DamageError(f"the file of its deleted rows is damaged: {error}") from None
        if hashlib.sha256(content).hexdigest() != deleted["sha256"]:
            raise DamageError("the file of its deleted rows is damaged")
        bits = np.unpackbits(np.frombuffer(content, np.uint8), count=segment["rows"], bitorder="little")
        if np.count_nonzero(bits) != deleted["rows"] or len(content) != (segment["rows"] + 7) // 8:
            raise DamageError("the file of its deleted rows is another's")
        return np.asarray(bits == 0)


def bits_file(name: str) -> str:
    return f"{DELETED}/{name}.bits"


def _joined(found: list[Rows], known: list[ids.Ids], place: Path, description: dict[str, Any]) -> tuple[Rows, Parts]:
    """Return the rows of all segments as one."""
    inner = [place / SEGMENTS / segment["name"] for segment in description["segments"]]
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
    return Piece(array, file, os.stat(file).st_size - array.nbytes)  # it ends with its array


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
    names = [name for name in COLUMNS if getattr(rows, name) is not None]
    if rows.group_names is not None:
        names[names.index("groups")] = "groups of str"
    return names + ([] if known.kind == "row" else [f"ids of {known.kind}"])


def _described(place: Path) -> dict[str, Any]:
    with one_form():
        whole = folder.described(place)[0]
        if whole["format"] != SEGMENTED:
            rows, known = folder.opened(place, False)
            size = sum((place / name).stat().st_size for name in os.listdir(place))
            one = {"name": place.name, "rows": len(rows.data), "deleted": 0, "bytes": size}
            segments = [{**one, "index bytes": _bytes_of(place / FILE)}]
            return {**_summed(segments), **kinds(rows, known), "index": Recipe.of(whole.get("index"))}
        whole = description_of(place)
        segments = [
            {
                "name": segment["name"],
                "rows": segment["rows"],
                "deleted": segment["deleted"]["rows"] if segment["deleted"] else 0,
                "bytes": segment["bytes"],
                "index bytes": _bytes_of(place / SEGMENTS / segment["name"] / FILE),
            }
            for segment in whole["segments"]
        ]
        found = {"version": whole["version"], **_summed(segments), **kinds_of(whole)}
        return {**found, "index": Recipe.of(whole.get("index"))}


def _summed(segments: list[dict[str, Any]]) -> dict[str, Any]:
    sums = {name: sum(segment[name] for segment in segments) for name in ("rows", "deleted", "bytes", "index bytes")}
    return {**sums, "segments": segments}


def _bytes_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def kinds_of(description: dict[str, Any]) -> dict[str, Any]:
    """Return what new rows must have in common with those that a description counts; `kinds` of rows."""
    return {
        "metric": description["metric"],
        "dtype": description["dtype"],
        "dims": int(description["shape"][1]),
        "columns": description["columns"],
    }


def _problems(place: Path) -> list[str]:
    with one_form():
        if folder.described(place)[0]["format"] != SEGMENTED:
            return folder.problems(place)
        whole = description_of(place)
        found = []
        for segment in whole["segments"]:
            try:
                with naming(segment):
                    inner, _ = own_folder(place, segment)
                    found += [f"segment {segment['name']}: {each}" for each in folder.problems(inner)]
                live_of(place, segment)
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
    segments = known.parts if isinstance(known, Joined) else [known]
    return {name: [piece] for name, piece in pieces.items()}, segments


def appended(old: tuple[Rows, ids.Ids, Parts | None], new: tuple[Rows, ids.Ids], on_duplicate: str, op: str) -> Opened:
    """Return the rows of a corpus with others after them; the old ones are not copied, where they are in segments."""
    (rows, known, parts), (more, names) = old, whole(*new)
    check_alike(op, kinds(rows, known), kinds(more, names))
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
    return Opened(_arrays.changed(found, live=live, max_norm=norm), joined_ids.joined(made.ids, live), made)


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


def kinds(rows: Rows, known: ids.Ids) -> dict[str, Any]:
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


def duplicates(op: str, known: ids.Ids, names: ids.Ids, on_duplicate: str, first: int | None = None) -> np.ndarray:
    """Return the rows of a corpus whose ids new rows have, to be replaced; refuse them unless that is asked for.

    ``first``: the row from which on the others are new rows too, of the same source.
    """
    if known.kind == "row":
        return np.zeros(0, np.int64)
    found = (known if isinstance(known, Joined) else Joined([known])).rows_with(names)
    there = found >= 0
    if there.any() and on_duplicate != "replace":
        row = int(np.argmax(there))
        got, old, new = shown(names[row]), int(found[row]), row
        if first is not None:
            new += len(known) - first
            if old >= first:
                raise ValueError(f"{op}: ids must be unique, got {got} in rows {old - first} and {new}")
        more = int(there.sum()) - 1
        others = f", and {more} more like it" if more else ""
        raise ValueError(
            f"{op}: ids must not be in the corpus, got {got} in row {new} of the new rows, "
            f"which is in row {old}{others}; on_duplicate='replace' deletes the old rows"
        )
    return found[there]


def whole(rows: Rows, known: ids.Ids) -> tuple[Rows, ids.Ids]:
    """Return the rows that are not deleted, with their ids, as a saved corpus has them."""
    if rows.live is not None:
        return taken(rows, known, np.flatnonzero(_arrays.to_host(rows.live)))
    rows = groups.whole(rows)
    return rows, ids.make("Corpus", known.whole(), len(known)) if isinstance(known, Joined) else known


def taken(rows: Rows, known: ids.Ids, some: np.ndarray) -> tuple[Rows, ids.Ids]:
    """Return some rows of a corpus as those of one of their own, copied."""
    arrays = {name: _arrays.to_host(array)[some] for name in ARRAYS if (array := getattr(rows, name)) is not None}
    new = groups.whole(_arrays.changed(rows, **arrays, live=None))
    norm = _norm(rows) if rows.metric == "cosine" else _largest(new, np.arange(len(some)))
    names = ids.Ids(len(some)) if known.kind == "row" else ids.make("Corpus", known[some], len(some))
    return _arrays.changed(new, max_norm=norm), names
