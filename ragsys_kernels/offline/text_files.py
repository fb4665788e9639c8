"""Tables with columns of text: Parquet, CSV with a header, JSON lines; held in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

_SUFFIXES = (".parquet", ".csv", ".jsonl")


def read(op: str, argument: str, path: Path, names: Sequence[str] = ()) -> pa.Table:
    """Return the table of a file; the columns of these names are read as text, whatever they look like."""
    if not path.is_file():
        raise FileNotFoundError(f"{op}: {argument} must be an existing file, got {path}")
    kind = path.suffix.lower()
    if kind not in _SUFFIXES:
        raise ValueError(f"{op}: {argument} must be a {', '.join(_SUFFIXES)} file, got {path}")
    try:
        with pa.OSFile(os.fsencode(path)) as file:  # a name as a str would have to be UTF-8
            if kind == ".parquet":
                table = pq.read_table(file)
            elif kind == ".jsonl":
                table = pyarrow.json.read_json(file)
            else:
                # As text, whatever it looks like: an answer may be 42, or NA.
                table = pyarrow.csv.read_csv(
                    file,
                    parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
                    convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
                )
    except MemoryError:  # Arrow's is an ArrowException too
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{op}: {argument} must be a readable {kind} file, got {path}: {error}") from error
    if not table.num_rows:
        raise ValueError(f"{op}: {argument} must have at least one row, got none in {path}")
    return table


def texts(op: str, argument: str, table: pa.Table, name: str, path: Path) -> list[str]:
    """Return a column of text without missing or blank values."""
    if table.column_names.count(name) != 1:
        raise ValueError(f"{op}: {argument} must have one column {name!r}, got {table.column_names} in {path}")
    column = table[name]
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(f"{op}: {argument} must hold text in column {name!r}, got {column.type} in {path}")
    column = column.cast(pa.large_string())
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True)
    row = pc.index(blank, True).as_py()
    if row >= 0:
        raise ValueError(f"{op}: {argument} must hold text in every row of {name!r}, got none in row {row} of {path}")
    found: list[str] = column.to_pylist()
    return found
