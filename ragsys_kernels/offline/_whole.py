"""What the commands over a whole corpus share: the corpus itself, ids, and what is written of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import ragsys_kernels as rk

from .._base.checks import counted, shown
from .._base.files import check_local, replacing_and_sweeping
from .._base.types import PathLike, Storage
from . import sources, text_files
from .build import columns_of, loaded, words_of
from .planning import BYTES, row_bytes

QUALITY = "bias"  # as what a saved corpus has it


def opened(
    corpus: PathLike,
    quality: str | None,
    columns: Mapping[str, str | None],
    metric: str | None,
    dtype: Storage | None,
    memory: int | None = None,
) -> rk.Corpus:
    """Return a saved corpus or, with a column as its bias, that of a file; one within so many bytes of memory."""
    saved = sources.saved(corpus, {**columns, "metric": metric, "dtype": dtype}, verify=False)
    if saved is not None:
        _check_memory(memory, len(saved), saved.dims, saved.dtype)
    else:
        vectors, given = columns_of(corpus, {**columns, "quality_column": quality})
        _check_memory(memory, vectors.rows, vectors.dims, dtype or "float32")
        if quality is not None:
            given[QUALITY] = given.pop("quality")
        try:
            with np.errstate(over="ignore"):  # what is no float32 is inf, which is refused
                return loaded(vectors, given, {"metric": metric or "cosine", "dtype": dtype or "float32"})
        except ValueError as error:
            raise ValueError(str(error).replace("Corpus: bias must", "quality must")) from error
    if quality not in (None, QUALITY) or (quality and saved.bias is None):
        known = "none" if saved.bias is None else repr(QUALITY)
        raise ValueError(f"quality must be what the saved corpus {corpus} has, {known}, got {quality!r}")
    return saved


def _check_memory(memory: int | None, rows: int, dims: int, dtype: Any) -> None:
    """Refuse rows that take more memory than there is, and name the types of which they take no more."""
    if memory is None or dtype not in BYTES:  # signs: the smallest there are
        return
    taken = {name: rows * row_bytes(name, dims) for name in BYTES}
    if taken[dtype] > memory:
        fit = [name for name, size in taken.items() if size <= memory]
        instead = f"; as {' or '.join(fit)} they fit" if fit else "; no type is small enough"
        what = f"the bytes of {counted(rows, 'row')} of {dims} {dtype} with codes and ids"
        raise ValueError(f"memory must be at least {taken[dtype]}, {what}, got {memory}{instead}")


def rows_named(corpus: rk.Corpus, argument: str, file: PathLike | None, once: bool = False) -> np.ndarray | None:
    """Return the rows of a file of ids, or of row numbers where the corpus has no ids; of ids that are there `once`."""
    if file is None:
        return None
    column = sources.ids_of_file(file, known=None if corpus.ids.kind == "row" else corpus.ids, argument=argument)
    found = column.given() if isinstance(column, sources.IdLines) else column.whole()
    wanted = found.tolist() if isinstance(found, np.ndarray) else found.to_pylist()
    rows: np.ndarray = corpus.rows_of(wanted, unknown="pad")
    if (rows < 0).any():
        item = shown(wanted[int((rows < 0).argmax())])
        raise ValueError(f"{argument} must hold ids of the corpus, got {item} in {column.path}")
    if once and len(np.unique(rows)) < len(rows):
        item = shown(next(item for item, number in Counter(wanted).items() if number > 1))
        raise ValueError(f"{argument} must hold each id once, got {item} several times in {column.path}")
    return rows


def ids_of(corpus: rk.Corpus, rows: np.ndarray) -> pa.Array:
    """Return the ids of rows."""
    return pa.array(corpus.ids[rows].tolist(), pa.string() if corpus.ids.kind == "str" else pa.int64())


def targets(
    op: str, outs: Mapping[str, PathLike | None], inputs: Mapping[str, PathLike | None], overwrite: bool
) -> dict[str, Path]:
    """Return the Parquet files to write, by the arguments that name them, or refuse them."""
    given = {argument: path for argument, path in outs.items() if path is not None}
    places = {argument: Path(path).resolve() for argument, path in given.items()}
    for argument, path in given.items():
        check_local(op, argument, path)
        if places[argument].suffix.lower() != ".parquet":
            raise ValueError(f"{op}: {argument} must be a .parquet file, got {path}")
    with words_of(op):
        sources.check_apart(op, given, inputs)
    for argument, path in given.items():
        place = places[argument]
        text_files.check_out(op, path, place, place.parent, overwrite, argument)
    return places


def write(place: Path, own: dict[str, pa.Array]) -> None:
    """Write columns."""
    with replacing_and_sweeping(place) as file:
        pq.write_table(pa.table(own), file)


def write_rows(
    op: str, place: Path, own: dict[str, pa.Array], rows: np.ndarray, table: sources.Table | None, id_column: str | None
) -> None:
    """Write columns of some rows and, with a table, those that it has in these rows.

    Columns of ours whose names the table has too get the op before their names, but for its ids. Where the rows are
    ascending, memory holds a few of them.
    """
    if table is None or not len(rows):
        write(place, own)
        return
    names = table.schema.names
    if id_column in (None, "id") and "id" in names:
        own = {name: values for name, values in own.items() if name != "id"}
    mine = {}
    for name, values in own.items():
        while name in names:  # of the result of an earlier call also with the op
            name = f"{op}_{name}"
        mine[name] = values
    order = np.argsort(rows, kind="stable")
    parts: Iterator[pa.Table] = sources.taken(table, rows[order])
    if (np.diff(order) != 1).any():
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        parts = iter([pa.concat_tables(parts).take(pa.array(back))])
    with words_of(op), replacing_and_sweeping(place) as file, ExitStack() as stack:
        writer, begin = None, 0
        for part in parts:
            columns = [values[begin : begin + len(part)] for values in mine.values()]
            fields = [pa.field(name, values.type) for name, values in mine.items()]
            made = pa.Table.from_arrays([*columns, *part.columns], schema=pa.schema([*fields, *part.schema]))
            writer = writer or stack.enter_context(pq.ParquetWriter(file, made.schema))
            writer.write_table(made)
            begin += len(part)
