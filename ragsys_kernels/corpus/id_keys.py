"""Short keys of the ids of small segments in one file: who looks for some ids opens the segments that may have them.

    segments/NAME.keys    for each segment of at most 65,536 rows, in their order: uint32 keys of its ids, ascending

A key is the CRC-32 of a string, or a hash of an integer; deleted rows keep theirs. An append writes at the end, and the
description says how much of the file counts and the CRC-32 of that. The file saves time and nothing hangs on it: where
it is missing or damaged, all segments are opened, and it is written anew.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .ids import Ids, as_integers, as_strings

ENDING = ".keys"
_NAME = re.compile(r"[0-9a-z-]{1,64}\.keys")
_MOST_ROWS = 1 << 16  # of a segment that has keys; opening one takes 1 ms, as long as it takes to read 10^6 keys
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio (Knuth, volume 3, section 6.4)


def of(ids: Ids) -> np.ndarray:
    """Return the keys of some ids, ascending."""
    keys, _ = ids.sorted_keys()
    return keys if ids.kind == "str" else _hashed(keys)


def of_wanted(kind: str, wanted: Any) -> np.ndarray:
    """Return the keys of ids to be looked up, ascending; None and what int64 does not hold have none or any."""
    if kind == "str":
        encoded = (each.encode("utf-8", "surrogatepass") for each in as_strings(wanted)[1] if each is not None)
        return np.sort(np.fromiter(map(zlib.crc32, encoded), np.uint32))
    return _hashed(as_integers("rows_of", wanted)[0].reshape(-1))


def _hashed(values: np.ndarray) -> np.ndarray:
    return np.sort((np.ascontiguousarray(values).view(np.uint64) * _MULTIPLIER >> np.uint64(32)).astype(np.uint32))


def is_described(x: Any) -> bool:
    """Whether it is what `write` returns."""
    named = isinstance(x, dict) and isinstance(x.get("name"), str) and _NAME.fullmatch(x["name"])
    return bool(named) and all(isinstance(x.get(name), int) and x[name] >= 0 for name in ("bytes", "crc32"))


def kept(num_rows: int) -> bool:
    """Whether the file has the keys of a segment of so many rows."""
    return num_rows <= _MOST_ROWS


def may_share(some: np.ndarray, others: np.ndarray) -> bool:
    """Whether ids with these keys may be the same. O(m log M) of the fewer and the more."""
    few, many = sorted((some, others), key=len)
    if not len(few) or few[0] > many[-1] or few[-1] < many[0]:
        return False
    return bool((many.take(many.searchsorted(few), mode="clip") == few).any())


def read(folder: Path, described: dict[str, Any] | None, rows: list[int]) -> list[np.ndarray | None] | None:
    """Return the keys of segments of so many rows, None of those that are large; None without a file that is right."""
    sizes = [4 * each if kept(each) else 0 for each in rows]
    try:
        if described is None or described["bytes"] != sum(sizes):
            return None
        found, crc = list[np.ndarray | None](), 0
        with open(folder / described["name"], "rb") as file:
            for size in sizes:
                content = file.read(size)
                crc = zlib.crc32(content, crc)
                found.append(np.frombuffer(content, "<u4") if size else None)
        return found if crc == described["crc32"] else None
    except (OSError, ValueError):
        return None


def write(folder: Path, name: str, keys: list[np.ndarray | None], described: dict[str, Any] | None) -> dict[str, Any]:
    """Write the keys of segments after those that are ``described``, or to a new file; return its description."""
    size, crc = (0, 0) if described is None else (described["bytes"], described["crc32"])
    with open(folder / name, "wb" if described is None else "r+b") as file:
        file.truncate(size)  # what a killed writer has left
        file.seek(size)
        for each in keys:
            if each is not None:
                content = each.astype("<u4", copy=False).tobytes()
                size, crc = size + file.write(content), zlib.crc32(content, crc)
    return {"name": name, "bytes": size, "crc32": crc}
