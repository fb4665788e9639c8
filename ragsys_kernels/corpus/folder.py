"""The folder of a saved corpus: a ``.npy`` file for each array, and ``corpus.json``, which describes them.

    {"format": 2, "metric": ..., "dtype": ..., "shape": [N, D], "max_norm": ..., "code_error": ..., "sampled_rows": ...,
     "group_names": ..., of groups that are strings: how many there are (of a segment: that are new in it),
     "index": {"factory": ..., "search_parameters": ...}, where there is one, in the file "index.faiss",
     "files": {"data.npy": {"bytes": ..., "sha256" or "blocks_crc32": ..., "sample_sha256": ...}, ...},
     "sha256": of all before}

`load` compares names, sizes, headers and a sample of the rows of each array, and reads a small folder whole; with
``verify`` it reads all bytes. Arrays of up to 1 MB have a SHA-256, larger ones "blocks_crc32": the CRC-32 of the
CRC-32s, of four bytes each in little-endian order, of the file's blocks of 16 MiB, which threads share.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .._base import arrays as _arrays
from .._base import env
from .._base import files as _files
from .._base.lock import LOCK_FILE
from .._base.npy import HEADER, header
from .._base.types import PathLike
from ..selection.codes import row_bytes
from ..selection.problem import COLUMNS, Rows
from . import fetched, folder_index, groups, ids, spans
from .fetched import Store
from .folder_index import Recipe

ARRAYS = ("data", "scales", *COLUMNS, "codes")

DESCRIPTION = "corpus.json"
_FORMAT = 2
SEGMENTED = 3  # a folder of segments, each of which is a saved corpus (segments.py)
_OF_SEGMENTS = {DESCRIPTION, "segments", "deleted", LOCK_FILE}
_OF_DELETED = re.compile(r'(?<="deleted": ){([^{}]*)}')
_LEFT = re.compile(r"\.corpus\.json\.[0-9a-f]{12}\.partial")  # by a killed process
_FILES = {folder_index.FILE, *(f"{name}.npy" for name in (*ARRAYS, *ids.ARRAYS, *groups.ARRAYS))}
_NAMES = {DESCRIPTION, *_FILES}
_STORED = {"float32": "float32", "float16": "float16", "bfloat16": "uint16", "int8": "int8", "binary": "uint8"}

MOST_BYTES = 1 << 24  # of a description
_SMALL = 1 << 20  # bytes; a folder of at most so many is read whole
_SAMPLED_ROWS, _SAMPLED_BYTES = 64, 1 << 20
_BLOCK = 1 << 20
# A CRC-32 takes 0.3 to 0.4 s of a processor for a GB (AMD EPYC), a SHA-256 0.65 to 2.5 s, more than storing the rows.
_SUMMED = 1 << 24
_STEP = 1 << 18  # bytes written at once
_TRIES = 20

_Found = TypeVar("_Found")
Index = tuple[Recipe, Any]


class DamageError(Exception):
    """A folder is refused: ``why``, the ``rule`` that it breaks, and what it has instead."""

    def __init__(self, why: object = "", rule: str = "hold the files that Corpus.save wrote", got: str = "") -> None:
        self.why, self.rule, self.got = f": {why}" if why else "", rule, f"{got} in " if got else ""

    def error(self, path: PathLike) -> ValueError:
        return ValueError(f"Corpus: path must {self.rule}, got {self.got}{os.fsdecode(path)}{self.why}")


@contextmanager
def one_form() -> Iterator[None]:
    """Turn every error into `DamageError`: damaged headers raise many kinds, even those of Python's tokenizer."""
    try:
        yield
    except DamageError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):  # files are not to blame
            raise
        raise DamageError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def save(rows: Rows, known: ids.Ids, path: PathLike, overwrite: bool, index: Index | None = None) -> None:
    """Write the rows and their ids to a folder, which exists whole or not at all; see `Corpus.save`."""
    with replaced(path, overwrite) as folder:
        fill(folder, rows, known, index=index)


@contextmanager
def replaced(path: PathLike, overwrite: bool, goes_on: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Yield a folder to fill, which gets the path in one step when the block ends without an error.

    ``goes_on`` says whether it is one that a killed process has left.
    """
    place = place_of(path)
    _files.check_local("Corpus", "path", path)
    _files.restore(place)
    _check_free(place, overwrite)
    with written_to(place), _files.staging(place, goes_on) as folder:
        yield folder
        try:
            _files.put(folder, place, overwrite=overwrite)
        except OSError:
            _check_free(place, overwrite)  # another process has made it
            raise


def fill(folder: Path, rows: Rows, known: ids.Ids, start: int = 0, index: Index | None = None) -> bytes:
    """Write the files of a saved corpus to a folder; return its description.

    ``start``: the number of its first row among those of segments, with which they can be mapped (`spans.offset`).
    ``index``: FAISS's over these rows, and what it is made of.
    """
    arrays = {name: _arrays.to_host(array) for name in ARRAYS if (array := getattr(rows, name)) is not None}
    num_rows, dims = len(arrays["data"]), rows.dims
    of_rows = set(arrays)
    names = rows.group_names
    arrays.update({**known.arrays(), **({} if names is None else names.arrays())})
    row = sum(array[0].nbytes for array in arrays.values())
    sampled = min(num_rows, _SAMPLED_ROWS, max(2, _SAMPLED_BYTES // row))

    def written(name: str) -> dict[str, Any]:
        return _write(folder / f"{name}.npy", arrays[name], sampled, start if name in of_rows else 0)

    with ThreadPoolExecutor(env.num_threads()) as threads:
        share = map if row * num_rows <= _SMALL else threads.map  # to start threads would take longer
        files = dict(zip((f"{name}.npy" for name in arrays), share(written, arrays), strict=True))
    if index is not None:
        files[folder_index.FILE] = _write_index(folder / folder_index.FILE, index[1])
    content = content_of({
        "format": _FORMAT,
        "metric": rows.metric,
        "dtype": rows.dtype,
        "shape": [num_rows, dims],
        "max_norm": rows.max_norm,
        "code_error": rows.code_error,
        "sampled_rows": sampled,
        **({} if names is None else {"group_names": len(names)}),
        **({} if index is None else {"index": index[0].described()}),
        "files": files,
    })  # fmt: skip
    (folder / DESCRIPTION).write_bytes(content)
    return content


@contextmanager
def written_to(place: Path) -> Iterator[None]:
    """Make its parent; say in errors of the disk, which may be full in any step, what has become of the folder."""
    before = _identity(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno is None:  # of what is read
            raise
        found = _identity(place)
        left = "nothing was written" if found is None else "it is as it was" if found == before else "it is the new one"
        raise unwritable(error, "Corpus: path must be a folder", place, left) from error


def unwritable(error: OSError, rule: str, place: Path, left: str) -> OSError:
    """Return an error of the disk as one of its kind that says which folder it is, and what has become of it."""
    worded = type(error)(f"{rule} that can be written, got {place}: {error.strerror or error}; {left}")
    worded.errno = error.errno
    return worded


def place_of(path: PathLike) -> Path:
    """Return the folder that a path leads to; a link stays a link when the folder is replaced."""
    try:
        return Path(os.path.realpath(os.fsdecode(path)))
    except TypeError:
        raise TypeError(f"Corpus: path must be a path, got {type(path).__name__}") from None
    except ValueError as error:
        raise ValueError(f"Corpus: path must be one of a folder, got {path!r}: {error}") from None


def steadily(
    path: PathLike, read: Callable[[Path], _Found], fetch: Callable[[Store, Path], None] | None = None
) -> _Found:
    """Return what ``read`` finds in the folder; read again if another folder or version has taken its place.

    ``fetch`` copies what it reads of a folder at a URL, beside the description; without, URLs are refused.
    """
    if fetch is not None and isinstance(path, (str, os.PathLike)) and _files.is_url(path):
        store = Store(path)
        if store.local is None:
            return _steadily_at(store, path, read, fetch)
        path = store.local
    place = place_of(path)
    _files.check_local("Corpus", "path", path)
    for tries_left in reversed(range(_TRIES)):
        folder = _files.standing(place)
        with _held(folder) as before:
            version = _version(folder)
            try:
                found = read(folder)
            except DamageError as damaged:
                same = _identity(_files.standing(place)) == before and _version(_files.standing(place)) == version
                if not tries_left or same:
                    raise damaged.error(path) from damaged.__cause__
            else:
                # Files of segments never change: what has been read of them is one version, the last or not.
                if not tries_left or _identity(_files.standing(place)) == before:
                    break
    return found


def _steadily_at(
    store: Store, path: PathLike, read: Callable[[Path], _Found], fetch: Callable[[Store, Path], None]
) -> _Found:
    for tries_left in reversed(range(_TRIES)):
        with fetched.temporary() as folder:
            content = _description_at(store)
            try:
                if content:
                    (folder / DESCRIPTION).write_bytes(content)
                    fetch(store, folder)
                found = read(folder)
                break
            except DamageError as damaged:
                if not tries_left or _description_at(store) == content:
                    raise damaged.error(path) from damaged.__cause__
    return found


def _description_at(store: Store) -> bytes:
    """Return the description at a URL, b"" where there is none."""
    with suppress(FileNotFoundError):
        return store.read(DESCRIPTION, MOST_BYTES)
    return b""


def _version(folder: Path) -> bytes:
    """Return the bytes of the description of a folder, which differ between versions; b"" without a description."""
    file = folder / DESCRIPTION
    with suppress(OSError, ValueError):
        return _files.read(file, MOST_BYTES)
    return b""


@contextmanager
def _held(folder: Path) -> Iterator[tuple[int, int] | None]:
    """Yield the identity of a folder and keep it open, so that no new folder gets the same identity."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # there is no such folder, or the system opens none
        yield _identity(folder)
        return
    try:
        yield _identity(descriptor)
    finally:
        os.close(descriptor)


def _identity(folder: Path | int) -> tuple[int, int] | None:
    """Return what identifies a folder, given by its path or a descriptor; None if it does not exist."""
    try:
        stat = os.stat(folder)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def is_left(name: str) -> bool:
    """Return whether a killed process has left a file of that name in a folder of segments."""
    return _LEFT.fullmatch(name) is not None


def _check_free(place: Path, overwrite: bool) -> None:
    """Refuse to replace a folder without ``overwrite``, or one that holds anything but a saved corpus."""
    if not os.path.lexists(place):
        return
    names = sorted(os.listdir(place)) if place.is_dir() else None
    if names == []:
        return
    if not overwrite:
        raise FileExistsError(f"Corpus: path must not exist, got {place}; pass overwrite=True to replace a corpus")
    rule = "Corpus: path must be a saved corpus to be overwritten"
    if names is None:
        raise FileExistsError(f"{rule}, got the file {place}")
    parts = _OF_SEGMENTS if (place / "segments").is_dir() else set()
    for name in names:
        right = (place / name).is_file() if name in _NAMES - parts else name in parts or is_left(name)
        if not right:
            raise FileExistsError(f"{rule}, and nothing else, got {place} with {name!r}")
    try:
        described(place)
    except DamageError as damaged:
        raise FileExistsError(f"{rule}, got {place}{damaged.why}; remove it if it is not needed") from damaged


class _Summed:
    """A file that is written, and the CRC-32 of its blocks."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._crc, self._filled, self._sums = 0, 0, b""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        while view:
            part = view[: _SUMMED - self._filled]
            self._crc, self._filled, view = zlib.crc32(part, self._crc), self._filled + len(part), view[len(part) :]
            if self._filled == _SUMMED:
                self._sums, self._crc, self._filled = self._sums + _bytes(self._crc), 0, 0
        return int(self._file.write(data))

    @property
    def blocks_crc32(self) -> int:
        return zlib.crc32(self._sums + (_bytes(self._crc) if self._filled else b""))


def _write(file: Path, array: np.ndarray, sampled: int, start: int = 0) -> dict[str, Any]:
    """Write an array, which begins with row number ``start``; return what the description says of its file."""
    with open(file, "wb") as plain:
        hashed = array.nbytes <= _SMALL
        summed: Any = _files.HashedFile(plain) if hashed else _Summed(plain)
        summed.write(_header(array, start))
        for begin in range(0, len(array), step := max(1, _STEP // max(1, array[:1].nbytes))):  # from one cache to all
            summed.write(np.ascontiguousarray(array[begin : begin + step]))
        return {
            "bytes": plain.tell(),
            **({"sha256": summed.sha256} if hashed else {"blocks_crc32": summed.blocks_crc32}),
            "sample_sha256": _sample(array, sampled),
        }


def _write_index(file: Path, index: Any) -> dict[str, Any]:
    with open(file, "wb") as plain:
        summed = _Summed(plain)
        folder_index.write(index, summed)
        size = plain.tell()
    return {"bytes": size, "blocks_crc32": summed.blocks_crc32, "sample_sha256": folder_index.sample_of(file)}


def _header(array: np.ndarray, start: int) -> bytes:
    """Return the header of a ``.npy`` file, filled up so that the array begins where `spans.offset` says."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(array))
    header = buffer.getvalue()
    more = spans.offset(start, array[:1].nbytes, len(header)) - len(header)
    length = len(header) - 10 + more  # after the magic string, the version and this length
    return header[:8] + length.to_bytes(2, "little") + header[10:-1] + b" " * more + b"\n"


def _bytes(crc: int) -> bytes:
    return crc.to_bytes(4, "little")


def _sample(array: np.ndarray, sampled: int) -> str:
    """Return the SHA-256 of so many rows of an array, spread from the first to the last."""
    rows = np.arange(sampled) * (len(array) - 1) // max(1, sampled - 1)
    return hashlib.sha256(array[rows].tobytes()).hexdigest()


def content_of(description: dict[str, Any]) -> bytes:
    """Return the bytes of ``corpus.json``, its own checksum included."""
    digest = hashlib.sha256(json.dumps(description).encode()).hexdigest()
    whole = {**description, "sha256": digest}
    parts = whole.get("segments")
    if not (isinstance(parts, list) and parts and all(map(_is_plain, parts))):
        return json.dumps(whole, indent=1).encode() + b"\n"
    before, after = json.dumps({**whole, "segments": []}, indent=1).split('\n "segments": []', 1)
    return f'{before}\n "segments": [\n  {_indented(parts)}\n ]{after}\n'.encode()


def _is_plain(segment: Any) -> bool:
    """Whether it is of values alone, but for those of what is deleted."""
    if not (isinstance(segment, dict) and segment):
        return False
    nested = [each for each in segment.values() if isinstance(each, (dict, list))]
    return not nested or (nested == [segment.get("deleted")] and _is_plain(nested[0]))


def _indented(parts: list[dict[str, Any]]) -> str:
    """Return segments as ``json.dumps`` writes them with ``indent=1``, which for 1,000 takes longer than an append."""
    lines = json.dumps(parts, separators=(",\n   ", ": "))[2:-2].replace("},\n   {", "\n  },\n  {\n   ")
    lines = _OF_DELETED.sub(lambda found: "{\n    " + found[1].replace("\n", "\n ") + "\n   }", lines)
    return f"{{\n   {lines}\n  }}"


def described(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return what ``corpus.json`` says and its bytes; it is a description, and no more is checked."""
    rule = "be a folder written by Corpus.save"
    file = folder / DESCRIPTION
    if not file.is_file():
        raise DamageError(f"it has no file {DESCRIPTION}", rule)
    try:
        content = _files.read(file, MOST_BYTES)
        description = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise DamageError(error, rule) from error
    if not isinstance(description, dict) or not {"format", "metric", "dtype"} <= set(description):
        raise DamageError(f"{DESCRIPTION} does not describe a corpus", rule)
    return description, content


def description_of(folder: Path) -> dict[str, Any]:
    """Return what ``corpus.json`` says, unchanged since it was written."""
    description, content = described(folder)
    if description["format"] not in (_FORMAT, SEGMENTED):
        raise DamageError(rule=f"have format {_FORMAT} or {SEGMENTED}", got=str(description["format"]))
    description.pop("sha256", None)
    if content != content_of(description):
        raise DamageError(f"{DESCRIPTION} is damaged or was edited")
    return description


def files_of(description: dict[str, Any]) -> list[str]:
    """Return the files beside the description of a saved corpus that it names, and a corpus may have."""
    return sorted(set(description["files"]) & _FILES)


def problems(folder: Path) -> list[str]:
    """Read all files of a folder; return what is wrong with each: nothing, if all are as they were saved."""
    with one_form():
        description = description_of(folder)
        return unlike(folder, description["files"], read=True)


def unlike(folder: Path, files: dict[str, Any], read: bool) -> list[str]:
    """Return which files differ from the description in name or size, with ``read`` in any byte."""
    with os.scandir(folder) as entries:  # which is faster than to ask for each name
        there = {each.name: each.stat().st_size if each.is_file() else None for each in entries if each.name in _FILES}
    found = []
    for name in sorted({*files, *there} & _FILES):
        known, size = files.get(name), there.get(name)
        if known is None:
            found.append(f"{name} is not one of its files")
        elif size is None:
            found.append(f"{name} is missing")
        elif size != known["bytes"]:
            found.append(f"{name} has {size} bytes, not {known['bytes']}")
        elif read and not _is_right(folder / name, known):
            found.append(f"{name} is damaged: its checksum is not the one it was written with")
    return found


def _is_right(file: Path, known: dict[str, Any]) -> bool:
    if "sha256" in known:
        with open(file, "rb") as opened:
            return bool(_files.sha256_of(_files.blocks_of(opened)) == known["sha256"])
    return bool(_blocks_crc32(file, known["bytes"]) == known["blocks_crc32"])


def _blocks_crc32(file: Path, size: int) -> int:
    def crc(begin: int) -> bytes:
        found, end, buffer = 0, min(begin + _SUMMED, size), memoryview(bytearray(_BLOCK))
        with open(file, "rb", buffering=0) as opened:  # not a map, which would end the process where a file is cut
            opened.seek(begin)
            while begin < end and (taken := opened.readinto(buffer[: end - begin])):
                found, begin = zlib.crc32(buffer[:taken], found), begin + taken
        return _bytes(found)

    with ThreadPoolExecutor(env.num_threads()) as threads:
        return zlib.crc32(b"".join(threads.map(crc, range(0, size, _SUMMED))))


def opened(folder: Path, verify: bool, description: dict[str, Any] | None = None) -> tuple[Rows, ids.Ids]:
    """Return the rows of a folder and their ids, mapped into memory; see `Corpus.load`.

    ``description``: what ``corpus.json`` says, where that has been read and compared with a checksum.
    """
    with one_form():
        return _checked(folder, description or description_of(folder), verify)


def _checked(folder: Path, description: dict[str, Any], verify: bool) -> tuple[Rows, ids.Ids]:
    files = description["files"]
    read = verify or sum(known["bytes"] for known in files.values()) <= _SMALL
    if wrong := unlike(folder, files, read):
        raise DamageError("; ".join(wrong))
    named = (*ARRAYS, *ids.ARRAYS, *groups.ARRAYS)
    arrays = {name: _mapped(folder / f"{name}.npy") for name in named if f"{name}.npy" in files}
    found = _fitting(description, arrays, tuple(description["shape"]))
    if read:
        try:
            found[1].check("Corpus")
            if found[0].group_names:
                found[0].group_names.check("Corpus")
        except ValueError as error:
            raise DamageError(str(error).removeprefix("Corpus: ")) from error
    for name, array in arrays.items():
        if not read and _sample(array, description["sampled_rows"]) != files[f"{name}.npy"]["sample_sha256"]:
            raise DamageError(f"{name}.npy is damaged or another corpus's: a sample of its rows is not as it was")
    known = files.get(name := folder_index.FILE)
    if not read and known is not None and folder_index.sample_of(folder / name) != known["sample_sha256"]:
        raise DamageError(f"{name} is damaged or another corpus's: a sample of its bytes is not as it was")
    return found


def names_in(folder: Path, description: dict[str, Any]) -> groups.Names:
    """Return the names of groups in a folder, of whose files they are the only ones that are read."""
    arrays = {}
    for name in groups.ARRAYS if description["group_names"] else ():
        file = folder / f"{name}.npy"
        if not (file.is_file() and _is_right(file, description["files"][file.name])):
            raise DamageError(f"{file.name} is missing or damaged")
        arrays[name] = _mapped(file)
    return groups.Names.opened(arrays)


def _mapped(file: Path) -> np.ndarray:
    if not file.is_file():
        raise DamageError(f"{file.name} is no file")
    with open(file, "rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        found = header(opened.read(HEADER), size)
        if found.end != size:
            raise DamageError(f"{file.name} does not end with its array")
        values = spans.mapped(opened.fileno(), size)[found.offset :].view(found.dtype)
    return values.reshape(found.shape[::-1]).T if found.fortran_order else values.reshape(found.shape)


def _fitting(
    description: dict[str, Any], arrays: dict[str, np.ndarray], shape: tuple[int, ...]
) -> tuple[Rows, ids.Ids]:
    """Return the rows if arrays and description fit each other: types, shapes, order of bytes and axes, sizes."""
    metric, dtype, max_norm, code_error = (description[name] for name in ("metric", "dtype", "max_norm", "code_error"))
    num_rows, dims = shape if len(shape) == 2 else (0, 0)
    num_names = description.get("group_names") or 0
    elements = dims // 8 if dtype == "binary" else dims
    kinds = {
        "data": (_STORED.get(str(dtype)), (num_rows, elements)),
        "scales": ("float32", (num_rows,)),
        **{name: (kind, (num_rows,)) for name, kind in COLUMNS.items()},
        "codes": ("uint8", (num_rows, row_bytes(dims))),
        "ids": ("int64", (num_rows,)),
        "id_text": ("uint8", (int(arrays["id_offsets"].flat[-1]) if "id_offsets" in arrays else 0,)),
        "id_offsets": ("int64", (num_rows + 1,)),
        "id_keys": ("int64" if "ids" in arrays else "uint32", (num_rows,)),
        "id_order": ("int64", (num_rows,)),
        "group_text": ("uint8", (int(arrays["group_offsets"].flat[-1]) if "group_offsets" in arrays else 0,)),
        "group_offsets": ("int64", (num_names + 1,)),
        "group_keys": ("uint32", (num_names,)),
        "group_order": ("int64", (num_names,)),
    }
    fits = {
        "metric": metric in ("cosine", "dot"),
        "dtype": dtype in _STORED,
        "max_norm": is_size(max_norm),
        "code_error": is_size(code_error),
        "shape": num_rows > 0 and dims > 0 and dims == _arrays.dims_of(str(dtype), elements),
        "scales": ("scales" in arrays) == _arrays.scaled(str(metric), str(dtype)),
        "ids": {name for name in ids.ARRAYS if name in arrays} in ids.SETS,
        "group_names": {name for name in groups.ARRAYS if name in arrays} == set(groups.ARRAYS if num_names else ())
        and ("groups" in arrays or "group_names" not in description),
    }
    for name, array in arrays.items():
        kind, expected = kinds[name]
        native = kind is not None and array.dtype == np.dtype(kind)  # an array of another byte order has another type
        right = native and array.shape == expected and array.flags.c_contiguous and array.flags.aligned
        fits[name] = fits.get(name, True) and right
    if not all(fits.values()):
        wrong = ", ".join(name for name, right in fits.items() if not right)
        raise DamageError(rule="hold arrays that fit their description", got=f"another {wrong}")
    known = ids.opened({name: arrays[name] for name in ids.ARRAYS if name in arrays}, num_rows)
    columns: dict[str, Any] = {name: arrays[name] for name in ARRAYS if name in arrays}
    if "group_names" in description:
        columns["group_names"] = groups.Names.opened({name: arrays[name] for name in groups.ARRAYS if name in arrays})
    norm = "scaled" if "scales" in arrays else "as_given"
    return Rows(dtype=dtype, metric=metric, norm=norm, max_norm=max_norm, code_error=code_error, **columns), known


def is_size(x: object) -> bool:
    return isinstance(x, float) and 0.0 <= x < float("inf")
