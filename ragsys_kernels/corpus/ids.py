"""External ids of the rows of a `Corpus`, integers or strings, and their lookup.

Strings are kept as Arrow keeps them, their UTF-8 end to end with N + 1 offsets. A lookup is a search in sorted keys:
the integers themselves, or the CRC-32 of strings, which are then compared. All of it is arrays, which folders hold and
loading maps: it is no work then, and processes that load a folder share one copy.
"""

from __future__ import annotations

import re
import zlib
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from .. import _dispatch
from .._base import arrays as _arrays
from .._base import checks
from .._base.tables import holds_text, texts

# Arrays of a folder, and which of them it may have; integers that ascend are their own sorted keys.
ARRAYS = ("ids", "id_text", "id_offsets", "id_keys", "id_order")
SETS: tuple[set[str], ...] = (set(), {"ids"}, {"ids", "id_keys", "id_order"}, set(ARRAYS) - {"ids"})

# The text of an integer id. Other texts of the number, such as 010, +10 and 1_0, are no id, or would name another row.
PLAIN = r"0|-?[1-9][0-9]{0,18}"
_PLAIN = re.compile(PLAIN)
_MOST = np.iinfo(np.int64).max
_BLOCK = 1 << 16  # strings encoded at once

_Strings = TypeVar("_Strings", bound="Strings")


class Ids:
    """The ids of all rows: ``ids[rows]`` translates rows, `rows_of` ids.

    Without external ids a row's number is its id. Indexing takes a row, a slice, or an integer array of any shape, such
    as the (Q, K) ``indices`` of a `Selection`, on any device. It returns an int64 array of that shape, or an object
    array of str. Row -1 stands for no row: its id is -1, or None among strings.
    """

    kind = "row"  # "row" | "int64" | "str"

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __repr__(self) -> str:
        return f"Ids(N={len(self)}, kind={self.kind!r})"

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = checks.integers("ids", "rows", _arrays.to_host(rows) if np.size(rows) else np.zeros(np.shape(rows), int))
        if (outside := (rows < -1) | (rows >= len(self))).any():
            raise IndexError(f"ids: rows must be from -1 to N - 1 = {len(self) - 1}, got {rows[outside].flat[0]}")
        return self._of(rows)[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[:], dtype)

    def __contains__(self, wanted: Any) -> bool:
        try:
            return bool(self.rows_of([wanted], unknown="pad")[0] >= 0)
        except TypeError:
            return False

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a folder by name; none without external ids."""
        return {}

    def sorted_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys by which ids are found, in ascending order, and whose they are."""
        raise NotImplementedError

    def check(self, op: str) -> None:
        """Raise `ValueError` unless each id is there once and is found: of arrays that a folder holds. O(N)."""

    def rows_of(self, wanted: Any, unknown: str = "raise") -> np.ndarray:
        """Return the rows of some ids; see `Corpus.rows_of`."""
        checks.choice("rows_of", "unknown", unknown, ("raise", "pad"))
        rows, known = self._rows_of(wanted)
        if unknown == "raise" and not known.all():
            place = int(np.argmin(known))
            got = checks.shown(np.asarray(_arrays.to_host(wanted), object).reshape(-1)[place])
            at = ", ".join(map(str, np.unravel_index(place, known.shape)))
            raise ValueError(f"rows_of: ids must be ids of the corpus, got {got}{at and f' at position {at}'}")
        return rows

    def _of(self, rows: np.ndarray) -> np.ndarray:
        return np.array(rows)

    def _rows_of(self, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows, -1 for what is unknown, and whether each was known or stands for no row."""
        return self._found(self._read(wanted))

    def _read(self, wanted: Any) -> Any:
        """Return ids as `_found` takes them."""
        return as_integers("rows_of", wanted)

    def _some(self, wanted: Any, places: np.ndarray) -> Any:
        """Return those of some ids, as `_read` makes them, that are at these places."""
        ids, fits = wanted
        return ids.reshape(-1)[places], fits.reshape(-1)[places]

    def _found(self, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
        ids, known = wanted
        known = known & (ids >= -1) & (ids < len(self))
        return np.where(known, ids, -1), known


class Integers(Ids):
    """Ids of int64."""

    kind = "int64"

    def __init__(self, ids: np.ndarray, id_keys: np.ndarray | None = None, id_order: np.ndarray | None = None) -> None:
        super().__init__(len(ids))
        self._ids, self._keys, self._order = ids, id_keys, id_order

    @classmethod
    def of(cls, op: str, ids: np.ndarray) -> Integers:
        if (absent := ids == -1).any():
            raise ValueError(f"{op}: ids must not be -1, which stands for no row, got it in row {int(absent.argmax())}")
        if (ids[1:] > ids[:-1]).all():
            return cls(ids)
        order = np.argsort(ids, kind="stable")
        keys = ids[order]
        _check_unique(op, ids, keys, order)
        return cls(ids, keys, order)

    def sorted_keys(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.arange(len(self)) if self._order is None else self._order
        return self._ids if self._keys is None else self._keys, order

    def check(self, op: str) -> None:
        keys, order = self.sorted_keys()
        if _within(order, len(self)):
            _check_unique(op, self._ids, keys, order)
            if (keys[1:] > keys[:-1]).all() and (self._keys is None or (self._ids[order] == keys).all()):
                return
        raise ValueError(f"{op}: ids must be in the order of their keys, got another order")

    def arrays(self) -> dict[str, np.ndarray]:
        found = {"ids": self._ids, "id_keys": self._keys, "id_order": self._order}
        return {name: array for name, array in found.items() if array is not None}

    def _of(self, rows: np.ndarray) -> np.ndarray:
        return np.where(rows < 0, -1, self._ids[rows])

    def _found(self, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
        ids, fits = wanted
        keys = self._ids if self._keys is None else self._keys
        if ids.size and (ids.min() > keys[-1] or ids.max() < keys[0]):  # those of another segment
            return np.full(ids.shape, -1, np.int64), fits & (ids == -1)
        places = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
        found = fits & (keys[places] == ids)
        rows = places if self._order is None else self._order[places]
        return np.where(found, rows, -1), found | (fits & (ids == -1))


class Strings(Ids):
    """Ids of str."""

    kind, what, may_be_empty = "str", "ids", False

    def __init__(self, id_text: np.ndarray, id_offsets: np.ndarray, id_keys: np.ndarray, id_order: np.ndarray) -> None:
        super().__init__(len(id_keys))
        self._text: Any = id_text
        self._offsets, self._keys, self._order = id_offsets, id_keys, id_order

    @classmethod
    def of(cls: type[_Strings], op: str, ids: list[str]) -> _Strings:
        text, offsets, crcs, bad = _compiled("texts_of", _texts_of)(ids)
        empty = np.flatnonzero(offsets[1:] == offsets[:-1])[:1].tolist() if not cls.may_be_empty else []
        if bad >= 0 and not (empty and empty[0] < bad):
            rule = f"{op}: {cls.what} must be text that UTF-8 can hold"
            raise ValueError(f"{rule}, got a lone surrogate in row {bad}")
        if empty:
            raise ValueError(f"{op}: {cls.what} must not be empty, got an empty string in row {empty[0]}")
        order = np.argsort(crcs, kind="stable")
        keys = crcs[order]
        _check_unique_texts(op, ids, keys, order)
        return cls(text, offsets, keys, order)

    def sorted_keys(self) -> tuple[np.ndarray, np.ndarray]:
        return self._keys, self._order

    def check(self, op: str) -> None:
        begins, keys, order = self._offsets[:-1], self._keys, self._order
        ends = self._offsets[1:]
        empty = begins == ends
        wrong = begins > ends if self.may_be_empty else begins >= ends
        if self._offsets[0] != 0 or self._offsets[-1] != len(self._text) or wrong.any():
            raise ValueError(f"{op}: {self.what} must lie one after the other in their text, got other offsets")
        if not _is_utf8(memoryview(self._text)) or ((self._text[begins[~empty]] & 0xC0) == 0x80).any():
            raise ValueError(f"{op}: {self.what} must be UTF-8, got other bytes")
        if not _within(order, len(self)) or np.bincount(order).max() > 1 or (keys[1:] < keys[:-1]).any():
            raise ValueError(f"{op}: {self.what} must be in the order of their keys, got another order")
        _check_unique_texts(op, self, keys, order)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"id_text": self._text, "id_offsets": self._offsets, "id_keys": self._keys, "id_order": self._order}

    def _of(self, rows: np.ndarray) -> np.ndarray:
        found = np.empty(rows.shape, object)
        flat = np.ascontiguousarray(rows, np.int64).reshape(-1)
        found.reshape(-1)[:] = _compiled("texts_at", _texts_at)(flat, self._text, self._offsets)
        return found

    def _read(self, wanted: Any) -> Any:
        return as_strings(wanted)

    def _some(self, wanted: Any, places: np.ndarray) -> Any:
        return places.shape, [wanted[1][i] for i in places.tolist()]

    def _found(self, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
        shape, strings = wanted
        find = _compiled("find_texts", _find_texts)
        rows = find(strings, self._text, self._offsets, self._keys, self._order).reshape(shape)
        return np.maximum(rows, -1), rows != -1


def make(op: str, ids: Any, num_rows: int) -> Ids:
    """Return the ids of a corpus of so many rows, checked; without any, the rows' numbers."""
    if ids is None:
        return Ids(num_rows)
    strings = isinstance(ids, (list, tuple)) and any(isinstance(each, str) for each in ids)
    if isinstance(ids, (list, tuple)) and not strings:
        # NumPy makes floats or objects of numbers that int64 does not hold.
        for each in ids:
            if isinstance(each, (int, np.integer)) and not -(2**63) <= each <= _MOST:
                rule = "at most 2^63 - 1" if each > 0 else "at least -2^63"
                raise ValueError(f"{op}: ids must be {rule}, got {checks.shown(each)}")
    if not strings and not isinstance(ids, np.ndarray) and holds_text(ids):  # NumPy's own strings lose NULs
        ids = texts(ids)
    array = ids if strings else _array(op, ids)
    shape = (len(array),) if strings else array.shape
    if shape != (num_rows,):
        raise ValueError(f"{op}: ids must have shape (N,) = ({num_rows},), got {checks.shape_text(shape)}")
    if strings or array.dtype.kind in "UOT":
        values = list(array) if strings else array.tolist()
        for row, each in enumerate(values):
            if not isinstance(each, str):
                raise TypeError(
                    f"{op}: ids must be all integers or all strings, got {type(each).__name__} in row {row}"
                )
        return Strings.of(op, values)
    integers, within = as_integers(op, array, " or strings")
    if not within.all():
        raise ValueError(f"{op}: ids must be at most 2^63 - 1, got {array[np.argmin(within)]}")
    return Integers.of(op, integers)


def integer(text: str) -> int | None:
    """Return the integer id that a text is in plain decimal form; None for other texts."""
    number = int(text) if _PLAIN.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number <= _MOST else None


def opened(arrays: dict[str, np.ndarray], num_rows: int) -> Ids:
    """Return the ids that the arrays of a folder hold."""
    if not arrays:
        return Ids(num_rows)
    return Integers(**arrays) if "ids" in arrays else Strings(**arrays)


def _array(op: str, ids: Any) -> np.ndarray:
    """Return ids of any library as NumPy's."""
    if isinstance(ids, np.ma.MaskedArray):
        raise TypeError(f"{op}: ids must be an array without a mask, got a masked one; fill it with .filled()")
    try:
        return np.asarray(_arrays.to_host(ids))
    except Exception as error:  # whatever an object's own conversion raises
        raise TypeError(f"{op}: ids must be an array of integers or strings, got {type(ids).__name__}") from error


def as_integers(op: str, ids: Any, more: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Return ids as int64, and which of them fit."""
    if holds_text(ids):  # before an array of them, each as long as the longest
        raise TypeError(f"{op}: ids must be integers{more}, got strings")
    array = _array(op, ids)
    if array.size == 0:  # an empty list has no type
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{op}: ids must be integers{more}, got {array.dtype}")
    fits = np.ones(array.shape, bool) if array.dtype.kind == "i" else np.asarray(array <= _MOST)
    held = array if fits.all() else np.where(fits, array, 0)
    return np.ascontiguousarray(held, np.int64).reshape(array.shape), fits


def as_strings(ids: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of some ids, and all of them, str or None for no row."""
    if isinstance(ids, list) and set(map(type, ids)) <= {str, type(None)}:
        return (len(ids),), ids
    try:
        array = ids if isinstance(ids, np.ndarray) else np.array(ids, object)
    except Exception as error:  # rows of unequal length, or what an object's own conversion raises
        raise TypeError(
            f"rows_of: ids must be an array, got {type(ids).__name__}; pad rows of unequal length"
        ) from error
    values = array.reshape(-1).tolist()
    for place, each in enumerate(values):
        if each is not None and not isinstance(each, str):
            raise TypeError(f"rows_of: ids must be strings, got {type(each).__name__} at position {place}")
    return array.shape, values


def _compiled(name: str, otherwise: Any) -> Any:
    """Return a function on strings of the extension, or the one that does the same without it."""
    return getattr(_dispatch.extension(), name) if _dispatch.why_not("cpu") is None else otherwise


def _texts_of(ids: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return UTF-8 end to end, offsets, CRC-32s, and the first row of a lone surrogate, or -1."""
    texts, offsets, crcs, bad = [], np.zeros(len(ids) + 1, np.int64), np.empty(len(ids), np.uint32), -1
    for begin in range(0, len(ids), _BLOCK):
        encoded = [each.encode("utf-8", "surrogatepass") for each in ids[begin : begin + _BLOCK]]
        part = slice(begin, begin + len(encoded))
        offsets[1:][part], crcs[part] = list(map(len, encoded)), list(map(zlib.crc32, encoded))
        texts.append(b"".join(encoded))
        if bad < 0 and not _is_utf8(texts[-1]):
            bad = begin + [_is_utf8(each) for each in encoded].index(False)
    np.cumsum(offsets, out=offsets)
    return np.frombuffer(b"".join(texts), np.uint8), offsets, crcs, bad


def _is_utf8(text: Any) -> bool:
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _find_texts(
    wanted: list[str | None], text: Any, offsets: np.ndarray, keys: np.ndarray, order: np.ndarray
) -> np.ndarray:
    """Return the row of each id: -1 where there is none, -2 of None."""
    rows, whole = np.full(len(wanted), -1, np.int64), memoryview(text)
    # A lone surrogate has no UTF-8, and no corpus has it.
    encoded = [b"" if each is None else each.encode("utf-8", "surrogatepass") for each in wanted]
    crcs = np.fromiter(map(zlib.crc32, encoded), np.uint32, len(encoded))
    for i, place in enumerate(np.searchsorted(keys, crcs).tolist()):
        while place < len(keys) and keys[place] == crcs[i]:
            row = int(order[place])
            if whole[offsets[row] : offsets[row + 1]] == encoded[i]:
                rows[i] = row
                break
            place += 1
    rows[[i for i, each in enumerate(wanted) if each is None]] = -2
    return rows


def _texts_at(rows: np.ndarray, text: Any, offsets: np.ndarray) -> list[str | None]:
    """Return the ids of some rows, None for those below 0."""
    begins, ends, whole = offsets[rows].tolist(), offsets[rows + 1].tolist(), memoryview(text)
    return [
        None if row < 0 else str(whole[begin:end], "utf-8")
        for row, begin, end in zip(rows.tolist(), begins, ends, strict=True)
    ]


def _within(order: np.ndarray, num_rows: int) -> bool:
    return bool(((order >= 0) & (order < num_rows)).all())


def _check_unique(op: str, ids: np.ndarray, keys: np.ndarray, order: np.ndarray) -> None:
    """Refuse integers that are there twice; ``keys`` are the sorted ids, ``order`` are their rows."""
    again = order[1:][keys[1:] == keys[:-1]]
    if again.size:
        row = int(again.min())
        raise _repeated(op, ids[row], int(np.argmax(ids == ids[row])), row)


def _check_unique_texts(op: str, ids: Any, keys: np.ndarray, order: np.ndarray) -> None:
    """Refuse strings that are there twice."""
    if again := texts_again(ids, keys, order):
        row, first = min(again)
        raise _repeated(op, ids[row], first, row)


def texts_again(ids: Any, keys: np.ndarray, order: np.ndarray) -> list[tuple[int, int]]:
    """Return rows whose string an earlier row has, and that row: a pair for each key. Few strings are compared."""
    return [pair for run in _runs(keys) if (pair := _first_repeated(ids, order[run])) is not None]


def _runs(keys: np.ndarray) -> list[slice]:
    """Return where more than one of the sorted keys are the same."""
    same = np.flatnonzero(keys[1:] == keys[:-1])
    if not same.size:
        return []
    gaps = np.flatnonzero(np.diff(same) > 1)
    begins, ends = chain([0], (gaps + 1).tolist()), chain(gaps.tolist(), [len(same) - 1])
    return [slice(int(same[begin]), int(same[end]) + 2) for begin, end in zip(begins, ends, strict=True)]


def _first_repeated(ids: Any, rows: np.ndarray) -> tuple[int, int] | None:
    """Return the first of some ascending rows whose id an earlier one has, and that one."""
    seen: dict[str, int] = {}
    for row in rows.tolist():
        if (first := seen.setdefault(ids[row], row)) != row:
            return row, first
    return None


def _repeated(op: str, value: Any, first: int, row: int) -> ValueError:
    return ValueError(f"{op}: ids must be unique, got {checks.shown(value)} in rows {first} and {row}")
