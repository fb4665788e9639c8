"""Values as people have them: what lists and the arrays of pandas, polars and Arrow hold, as NumPy's or as strings.

None of these libraries is imported: their objects are known by the module of their type, and by what they share.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Any

import numpy as np

_TABLES = frozenset(("pandas", "polars", "pyarrow"))


def of_table(x: Any) -> str:
    """Return ``"pandas"``, ``"polars"`` or ``"pyarrow"`` for an object of one of these, else an empty string."""
    root = type(x).__module__.partition(".")[0]
    return root if root in _TABLES else ""


def _is_2d(x: Any) -> bool:
    """Return whether an object of a table library is a whole table, not a column."""
    return len(getattr(x, "shape", ())) == 2


def holds_text(x: Any) -> bool:
    """Return whether the values of an array or list are strings, by the first that is not missing."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind in "UT" or (x.dtype.kind == "O" and _is_text(x.flat))
    if isinstance(x, (list, tuple)):
        return _is_text(x)
    if not of_table(x):
        return False
    if _is_2d(x):
        return holds_text(np.asarray(x))
    kind = str(getattr(x, "dtype", getattr(x, "type", ""))).removeprefix("dictionary<values=").lower()
    if kind == "object" or kind.startswith("cat"):
        return holds_text(np.asarray(x))
    if "list" in kind or kind.startswith("array"):  # polars
        return holds_text(_listed(x))
    return kind.startswith(("str", "large_string", "enum"))


def _is_text(values: Iterable[Any]) -> bool:
    first = next((each for each in values if not _is_missing(each)), None)
    return isinstance(first, str) or (isinstance(first, (list, tuple, np.ndarray)) and _is_text(first))


def _is_missing(x: Any) -> bool:
    return x is None or (isinstance(x, float) and x != x)


def texts(x: Any) -> np.ndarray:
    """Return strings as an array of objects; what is missing or no string stays as it is."""
    if isinstance(x, np.ndarray):
        return x.astype(object)
    if _is_2d(x):
        return np.asarray(x).astype(object)
    if of_table(x):
        x = _listed(x)
    if isinstance(x, (list, tuple)) and not any(isinstance(each, (list, tuple, np.ndarray)) for each in islice(x, 1)):
        found = np.empty(len(x), object)
        found[:] = x
        return found
    return np.array(x, object)


def _listed(column: Any) -> Any:
    """Return a column as a list; Arrow's own arrays take a missing value of a dictionary for its last one."""
    return column.to_pylist() if of_table(column) == "pyarrow" else column.to_list()


def numbered(op: str, name: str, x: Any) -> tuple[list[str], np.ndarray]:
    """Return the different strings of an array, in the order in which they first come, and in their place numbers.

    Arrow's dictionaries are taken as they are but for their order: no string of theirs is looked at twice.
    """
    if of_table(x) == "pyarrow" and hasattr(x, "dictionary_encode") and "list" not in str(x.type):
        x = x.dictionary_encode()  # itself, if it is one
    dictionary = _dictionary(x)
    if dictionary is not None:
        values, indices = dictionary
        places, first = np.unique(indices, return_index=True)
        if not len(places) or places[0] >= 0:  # else something is missing, which is named below
            order = places[np.argsort(first)]
            named, numbers = numbered(op, name, [values[place].as_py() for place in order.tolist()])
            lookup = np.zeros(len(values) + 1, np.int64)
            lookup[order] = numbers
            return named, lookup[indices]
    array = texts(x)
    flat = array.reshape(-1).tolist()
    seen: dict[Any, int] = {}
    try:
        numbers = np.fromiter((seen.setdefault(each, len(seen)) for each in flat), np.int64, len(flat))
    except TypeError as error:  # what cannot be a key
        raise TypeError(
            f"{op}: {name} must be all integers or all strings, got {type(x).__name__} of others"
        ) from error
    for value, number in seen.items():
        if not isinstance(value, str):
            row = int(np.argmax(numbers == number))
            if _is_missing(value):
                raise ValueError(f"{op}: {name} must have no missing values, got {value} in row {row}")
            raise TypeError(
                f"{op}: {name} must be all integers or all strings, got {type(value).__name__} in row {row}"
            )
    return list(seen), numbers.reshape(array.shape)


def _dictionary(x: Any) -> tuple[Any, np.ndarray] | None:
    """Return the values of an Arrow dictionary, and each row's place among them, -1 where it is missing."""
    if of_table(x) != "pyarrow" or not str(getattr(x, "type", "")).startswith("dictionary"):
        return None
    if hasattr(x, "unify_dictionaries"):  # chunks
        x = x.unify_dictionaries().combine_chunks()
        if hasattr(x, "chunks"):
            if x.num_chunks != 1:
                return None
            x = x.chunk(0)
    return x.dictionary, np.asarray(x.indices.fill_null(-1), np.int64)


def is_nested(x: Any) -> bool:
    """Return whether `array` makes NumPy's array of an object: one of a table library, or a list of arrays."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind == "O" and x.ndim == 1 and len(x) > 0 and isinstance(x[0], (list, tuple, np.ndarray))
    if isinstance(x, (list, tuple)):
        return bool(x) and hasattr(x[0], "__array__") and not isinstance(x[0], np.generic)
    return bool(of_table(x))


def array(op: str, name: str, x: Any) -> np.ndarray:
    """Return an object of pandas, polars or Arrow, or a list of arrays, as an array; lists of one length as its rows.

    Raises
    ------
    ValueError
        Something is missing.
    TypeError
        Rows of unequal length, or what is no number.
    """
    if of_table(x) == "pyarrow" and hasattr(x, "as_py"):
        return np.asarray(x.as_py())
    if of_table(x) == "pyarrow" and hasattr(x, "type"):
        return _of_arrow(op, name, x)
    try:
        found = x if isinstance(x, (list, tuple)) else np.asarray(x)
    except (TypeError, NotImplementedError, RuntimeError) as error:
        raise TypeError(
            f"{op}: {name} must be an array that NumPy can read, got {type(x).__name__}: {error}"
        ) from error
    if isinstance(found, np.ndarray) and found.dtype != object:
        return found
    check_present(op, name, found)
    try:
        return np.asarray([np.asarray(each) for each in found])
    except (TypeError, ValueError, RuntimeError) as error:
        lengths = sorted({len(each) for each in found if hasattr(each, "__len__")})
        got = f"rows of {lengths[0]} to {lengths[-1]} values" if len(lengths) > 1 else f"{type(x).__name__}: {error}"
        raise TypeError(f"{op}: {name} must be an array, got {got}") from error


def check_present(op: str, name: str, values: Any) -> None:
    """Refuse a list, or an array of objects, in which a row or a value is None."""
    listed = isinstance(values, (list, tuple)) or (isinstance(values, np.ndarray) and values.ndim > 0)
    for row, each in enumerate(values if listed else ()):
        if each is None or type(each).__name__ in ("NAType", "NaTType"):
            raise ValueError(f"{op}: {name} must have no missing values, got {each} in row {row}")


def _of_arrow(op: str, name: str, x: Any, first: int = 0) -> np.ndarray:
    """Return an Arrow array as NumPy's; ``first`` is the number of its first row. Fixed-size lists are not copied."""
    if hasattr(x, "combine_chunks"):
        chunks = [chunk for chunk in x.chunks if len(chunk)] or [x.combine_chunks()]  # none has the type too
        firsts = accumulate(map(len, chunks), initial=first)
        parts = [_of_arrow(op, name, chunk, row) for chunk, row in zip(chunks, firsts, strict=False)]
        if len(shapes := sorted({part.shape[1:] for part in parts})) > 1:
            raise TypeError(f"{op}: {name} must be an array, got rows of {shapes[0][0]} to {shapes[-1][0]} values")
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    if x.null_count:
        row = first + int(np.argmax(np.asarray(x.is_null())))
        raise ValueError(f"{op}: {name} must have no missing values, got None in row {row}")
    if "list" not in str(x.type).partition("<")[0]:
        try:
            return np.asarray(x.to_numpy(zero_copy_only=False))
        except (TypeError, NotImplementedError) as error:
            raise TypeError(f"{op}: {name} must be an array that NumPy can read, got {x.type}: {error}") from error
    flat = x.flatten()
    length = len(flat) // len(x) if len(x) else getattr(x.type, "list_size", 0)
    lengths = np.asarray(x.value_lengths())
    if (lengths != length).any():
        raise TypeError(f"{op}: {name} must be an array, got rows of {lengths.min()} to {lengths.max()} values")
    if flat.null_count:
        row = first + int(np.argmax(np.asarray(flat.is_null()))) // length
        raise ValueError(f"{op}: {name} must have no missing values, got None in row {row}")
    values = _of_arrow(op, name, flat)
    return values.reshape(len(x), length, *values.shape[1:])


def padded(x: Any, kinds: str = "iu", value: float = -1) -> Any:
    """Return lists of ids of unequal lengths as one array, -1 behind the end of each; others as they are.

    With other ``kinds`` of elements and another ``value`` behind the ends the array has that one's type.
    """
    if (found := _lists(x)) is None:
        return x
    x, lengths = found
    if not lengths.size or lengths.min() == (width := lengths.max()) > 0:
        return x
    rows = [np.asarray(row) for row, length in zip(x, lengths, strict=True) if length]
    if any(row.ndim != 1 or row.dtype.kind not in kinds for row in rows):
        return x  # refused as what it is
    # One list alone is as empty as beside others.
    made = np.full((len(x), max(1, width)), value, np.int64 if isinstance(value, int) else np.float64)
    if width:
        made[np.arange(width) < lengths[:, None]] = np.concatenate(rows)
    return made


def lengths(x: Any) -> np.ndarray | None:
    """Return the lengths of lists in a list or column, or None for anything else."""
    found = _lists(x)
    return None if found is None else found[1]


def _lists(x: Any) -> tuple[Any, np.ndarray] | None:
    """Return lists in a list or column as a sequence, and their lengths; None for anything else."""
    if x is None or (isinstance(x, np.ndarray) and x.dtype.kind != "O"):
        return None
    if of_table(x):
        if _is_2d(x):  # a table of numbers: its iterator gives columns, or their names
            return None
        if hasattr(x, "type") and "list" not in str(x.type).partition("<")[0]:
            return None
        x = x.to_pylist() if hasattr(x, "to_pylist") else list(x)
    if not isinstance(x, (list, tuple, np.ndarray)):
        return None
    try:
        return x, np.fromiter(map(len, x), np.int64, len(x))
    except TypeError:  # numbers
        return None
