"""Ids that are written as text: in a CSV, or one a line in a text file. The ids of a corpus decide what they are."""

from __future__ import annotations

import hashlib
from codecs import BOM_UTF8
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..._base.checks import shown
from ..._base.files import lines_of
from ...corpus.ids import PLAIN, Ids, integer
from . import _rows
from ._column import Column
from ._place import Place
from ._rows import RowSource


def integers(written: Any) -> Any:
    """Return ids that are written in plain decimal form as int64, null for all others: 007 and 0x10 are none."""
    plain = pc.match_substring_regex(written, rf"\A({PLAIN})\z")
    try:
        return pc.if_else(plain, written, None).cast(pa.int64())
    except pa.ArrowInvalid:  # of 19 digits, beyond int64
        return pa.array([None if each is None else integer(each) for each in written.to_pylist()], pa.int64())


def are_integers(written: Any) -> bool:
    """Return whether all ids that there are, as text, are written as integers."""
    return bool(integers(written).null_count == written.null_count)


def as_integers(written: pa.Array, rows: RowSource, argument: str = "ids") -> pa.Array:
    """Return ids as int64; refuse those that are not written so."""
    found = integers(written)
    wrong = _rows.numpy(pc.and_(found.is_null(), written.is_valid()))
    rule = "be integers of 64 bits in plain decimal form as those of the corpus are"
    RowSource(argument, rows.first, rows.where, rows.bad).refuse(wrong, rule, lambda row: shown(written[row].as_py()))
    return found


class IdLines(Column):
    """Ids of a text file or a pipe, one a line, which LF or CRLF ends; held in memory.

    Of a corpus whose ids are `known` they are what these are, else integers if all of them are written so.
    """

    def __init__(self, place: Place, known: Ids | None = None) -> None:
        self.path, self._name, self._argument = place.path, place.name, place.argument
        with place.open() as file:
            content = file.read()
        self._sha256 = hashlib.sha256(content).hexdigest()
        try:
            lines = lines_of(content)
        except UnicodeDecodeError as error:
            raise ValueError(f"select: {place.argument} must be a text file in UTF-8, got {place}: {error}") from error
        # A byte order mark is of no id, unless the corpus has the id with it.
        if lines and content.startswith(BOM_UTF8) and known is not None and known.kind == "str":
            lines[0] = whole if (whole := f"\ufeff{lines[0]}") in known else lines[0]
        self.rows, self._written = len(lines), pa.array([line or None for line in lines], pa.large_string())
        self._as_integers = known.kind != "str" if known is not None else are_integers(self._written)

    def given(self) -> pa.Array:
        """Return the ids of the lines that are not empty."""
        return self._of(0, self.rows, None).drop_null()

    def where(self, row: int) -> str:
        return f"line {row + 1} of {self.path}"

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"path": str(self.path), "files": [{"name": self._name, "sha256": self._sha256}]}

    def _some(self, begin: int, end: int, bad: dict[int, str] | None) -> Any:
        return _rows.present(self._of(begin, end, bad), self._source(begin, bad), self._argument)

    def _of(self, begin: int, end: int, bad: dict[int, str] | None) -> pa.Array:
        written = self._written[begin:end]
        return as_integers(written, self._source(begin, bad), self._argument) if self._as_integers else written

    def _source(self, begin: int, bad: dict[int, str] | None) -> RowSource:
        return RowSource(self._argument, begin, self.where, bad)
