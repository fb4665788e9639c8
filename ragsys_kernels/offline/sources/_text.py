"""JSON lines and CSV, which are written as an Arrow stream once and read as one: rows of text have no places.

The stream is made block by block, so that memory does not depend on the file's length; its columns have the types of
the first block.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from ._arrow import ArrowPart, filled, streamed
from ._place import Copy, Place

JSON: tuple[str, ...] = (".jsonl", ".ndjson")
CSV = {".csv": ",", ".tsv": "\t"}
_COMPRESSED = (".gz", ".bz2", ".zst")
_BLOCK = 8 << 20  # bytes of text at a time; a line that is longer is an error


def suffix(place: Place) -> str:
    """Return the suffix of the format: of ``x.csv.gz`` it is ``.csv``."""
    path = PurePosixPath(place.name.lower())
    inner = PurePosixPath(path.stem).suffix
    return inner if path.suffix in _COMPRESSED and (inner in JSON or inner in CSV) else path.suffix


def is_text(place: Place) -> bool:
    return suffix(place) in JSON or suffix(place) in CSV


class TextPart(ArrowPart):
    """One file of text; with a column `alone`, that column as it is written."""

    def __init__(self, place: Place, alone: str | None = None) -> None:
        self._alone = alone
        super().__init__(place)

    def content(self, place: Place) -> Copy:
        return streamed(_batches(place, self._alone))


def _batches(place: Place, alone: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches, at least one; objects within a row become columns of it.

    A column `alone` is text as it is written, null where there is nothing.
    """
    form = suffix(place)
    compression = next((name for end, name in zip(_COMPRESSED, ("gzip", "bz2", "zstd"), strict=True)
                        if place.name.lower().endswith(end)), None)  # fmt: skip
    text = {} if alone is None else {alone: pa.string()}
    with place.source() as source:
        stream = pa.input_stream(source, compression=compression)
        if form in JSON:
            schema, rule = (None, "infer") if alone is None else (pa.schema(text), "ignore")
            reader = pyarrow.json.open_json(
                stream,
                read_options=pyarrow.json.ReadOptions(block_size=_BLOCK),
                parse_options=pyarrow.json.ParseOptions(schema, unexpected_field_behavior=rule),
            )
        else:
            options = {"include_columns": [alone], "strings_can_be_null": True, "null_values": [""]}
            reader = pyarrow.csv.open_csv(
                stream,
                read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK),
                parse_options=pyarrow.csv.ParseOptions(delimiter=CSV[form], newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(column_types=text, **(options if text else {})),
            )
        with reader:
            yield from map(flat, filled(reader))


def flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose objects, and lists of one object each, are columns by their path: ``response.body``."""
    names, columns = list(batch.schema.names), list(batch.columns)
    at = 0
    while at < len(names):
        name, column = names[at], columns[at]
        if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
            if column.null_count or pc.any(pc.not_equal(column.value_lengths(), 1)).as_py():
                at += 1
                continue
            column = column.flatten()
        if not pa.types.is_struct(column.type) or not column.type.num_fields:
            at += 1
            continue
        inner = [f"{name}.{field.name}" for field in column.type]
        names[at : at + 1], columns[at : at + 1] = inner, column.flatten()
    return pa.RecordBatch.from_arrays(columns, names=names)


def float_lists(texts: pa.Array) -> pa.Array:
    """Return lists of floats written as text, ``[0.1,0.2]`` or ``{0.1,0.2}``; null for what is none."""
    inner = pc.utf8_trim(texts, " \t\r\n[]{}")
    lists = pc.split_pattern(inner, ",")
    values = pc.utf8_trim_whitespace(lists.flatten())
    number = pc.match_substring_regex(values, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
    if not pc.all(number).as_py():
        values = pc.if_else(number, values, None)
    floats = pc.cast(values, pa.float64())
    parsed = pa.ListArray.from_arrays(lists.offsets, floats)
    return parsed if not lists.null_count else pc.if_else(pc.is_null(lists), None, parsed)
