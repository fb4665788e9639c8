"""Tables with columns of text: Parquet, CSV with a header, JSON lines; held in memory. What jobs make of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from .._base.checks import line
from .._base.files import replacing_and_sweeping
from .._base.types import PathLike
from .sources import are_integers, integers, parquet_batches

_BLOCK, _MOST = 1 << 20, 2**31 - 1  # bytes; Arrow's usual block and the largest
_SUFFIXES = (".parquet", ".csv", ".jsonl")
OUTPUTS = (".npy", ".parquet")


def read(op: str, argument: str, path: Path, names: Sequence[str] = (), id_column: str | None = None) -> pa.Table:
    """Return the table of a file; the columns of these names are read as text, whatever they look like.

    Ids ("id" by default) are as they stand there: of a CSV integers where all of them are written as integers are, else
    text, so that 007 is not 7.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{op}: {argument} must be an existing file, got {path}")
    kind = path.suffix.lower()
    if kind not in _SUFFIXES:
        raise ValueError(f"{op}: {argument} must be a {', '.join(_SUFFIXES)} file, got {path}")
    if id_column is None:
        id_column = "id"
    as_text = dict.fromkeys((*names, id_column), pa.string())
    try:
        if kind == ".parquet":
            with _opened(path) as file:
                table = _parquet(file)
            table.validate(full=True)  # text may be no UTF-8, as may a name
            _ = table.column_names
        else:
            table = _blockwise(_json if kind == ".jsonl" else _csv, path, as_text)
        if kind == ".csv" and id_column not in names and table.column_names.count(id_column) == 1:
            place = table.column_names.index(id_column)
            table = table.set_column(place, id_column, _ids(table[place]))
    except MemoryError:  # Arrow's is an ArrowException too
        raise
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise ValueError(f"{op}: {argument} must be a readable {kind} file, got {path}: {line(error)}") from error
    if not table.num_rows:
        raise ValueError(f"{op}: {argument} must have at least one row, got none in {path}")
    return table


def _opened(path: Path) -> pa.NativeFile:
    return pa.OSFile(os.fsencode(path))  # a name as a str would have to be UTF-8


def _parquet(file: pa.NativeFile) -> pa.Table:
    """Read in batches: no memory is taken for rows that the file says it has and has not."""
    with pq.ParquetFile(file) as opened:
        table = pa.Table.from_batches(parquet_batches(opened), opened.schema_arrow)
        if table.num_rows != opened.metadata.num_rows:
            raise pa.ArrowInvalid(f"it has {table.num_rows} rows and says {opened.metadata.num_rows}")
    return table


def _blockwise(read: Callable[..., pa.Table], path: Path, as_text: dict[str, pa.DataType]) -> pa.Table:
    """Read in Arrow's blocks, which threads share; in one where that fails, since no row may be longer than a block."""
    with _opened(path) as file:
        try:
            return read(file, as_text, _BLOCK)
        except pa.ArrowInvalid:
            if file.size() <= _BLOCK:
                raise
            with _opened(path) as again:  # a thread that reads ahead may still move the place in the first
                return read(again, as_text, min(again.size(), _MOST))


def _json(file: pa.NativeFile, as_text: dict[str, pa.DataType], block: int) -> pa.Table:
    options = pyarrow.json.ReadOptions(block_size=block)
    table = pyarrow.json.read_json(file, options)
    dates = [each for each in table.schema if each.name in as_text and pa.types.is_timestamp(each.type)]
    if not dates:
        return table
    file.seek(0)  # texts that look like dates
    schema = pa.schema([(each.name, pa.string()) for each in dates])
    return pyarrow.json.read_json(file, options, pyarrow.json.ParseOptions(explicit_schema=schema))


def _csv(file: pa.NativeFile, as_text: dict[str, pa.DataType], block: int) -> pa.Table:
    # As text, whatever it looks like: an answer may be 42, or NA.
    return pyarrow.csv.read_csv(
        file,
        pyarrow.csv.ReadOptions(block_size=block),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=as_text),
    )


def _ids(written: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the ids of a CSV as integers if that changes none of them; none where there is nothing."""
    written = pc.if_else(pc.equal(written, ""), pa.scalar(None, pa.string()), written)
    return integers(written) if are_integers(written) else written


def texts(
    op: str, argument: str, table: pa.Table, name: str, path: Path, blank_rows: list[int] | None = None
) -> list[str]:
    """Return a column of text without missing or blank values: these are an error, or ``blank_rows`` takes them."""
    if table.column_names.count(name) != 1:
        raise ValueError(f"{op}: {argument} must have one column {name!r}, got {table.column_names} in {path}")
    column = table[name]
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(f"{op}: {argument} must hold text in column {name!r}, got {column.type} in {path}")
    column = column.cast(pa.large_string())
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True)
    if blank_rows is not None:
        blank_rows += pc.indices_nonzero(blank).to_pylist()
        column, blank = column.filter(pc.invert(blank)), pa.array([], pa.bool_())
    row = pc.index(blank, True).as_py()
    if row >= 0:
        raise ValueError(f"{op}: {argument} must hold text in every row of {name!r}, got none in row {row} of {path}")
    found: list[str] = column.to_pylist()
    return found


def check_out(op: str, out: PathLike, target: Path, folder: Path, overwrite: bool, argument: str = "out") -> None:
    """Refuse a file to write, given as `out`, that is not in an existing folder, or is there already."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{op}: {argument} must be in an existing folder, got {out}")
    if target.is_dir() or (target.exists() and not overwrite):
        raise FileExistsError(f"{op}: {argument} must be new, or overwrite be given for a file, got {out}")


def write(target: Path, array: np.ndarray, table: pa.Table, name: str, column: pa.Array) -> None:
    """Write an array as ``.npy``, or a table with it as one more column; there is the old file or the whole new one."""
    with replacing_and_sweeping(target) as file:
        if target.suffix.lower() == ".npy":
            np.save(file, array)
        else:
            pq.write_table(table.append_column(name, column), file)
