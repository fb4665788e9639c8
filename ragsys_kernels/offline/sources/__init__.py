"""Input files of a job, one column at a time, read in steps.

======================================  ===============================================================================
``.npy``                                arrays; mapped into memory, or read by ranges from a URL
``.parquet``, a folder of such files    columns; read in pieces of a row group. A folder's files follow each other in
                                        the order of their names; names that begin with ``.`` or ``_`` are left out
``.arrow``, ``.feather``, ``.ipc``      columns of an Arrow file or stream; mapped into memory
a folder of ``save_to_disk``            columns of a data set of the package `datasets`, one split of it
``.jsonl``, ``.ndjson``, ``.csv``,      columns; written to an unnamed temporary Arrow file first. Each may be
``.tsv``                                compressed: ``.jsonl.gz``, ``.zst``, ``.bz2``
``.fvecs``, ``.fbin`` and the like      arrays of the nearest-neighbour benchmarks (`_ann.py`)
``.safetensors``, ``.npz``, ``.hdf5``   arrays by name, where the others have columns; those of HDF5, as ann-benchmarks
                                        has them, are read a block at a time, the others mapped into memory
``.duckdb``, ``.sqlite``, ``.db``       columns of a table, ``FILE::TABLE`` where there are several; as text is
a folder ``.lance``                     columns of a data set of Lance, a local one
======================================  ===============================================================================

A corpus may also be the folder that `Corpus.save` wrote, a local one.

Each is a local path or a URL that fsspec opens (Arrow and safetensors files behind one are copied to a temporary file).
A column knows its number of rows, and for vectors their length, when it is opened, so that a job can check all its
inputs against each other before it starts. Errors name the file and the row in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import ragsys_kernels as rk

from ..._base.types import PathLike
from ...corpus.ids import Ids
from . import _ann, _named, _rows, _text, _written_ids
from ._column import Column
from ._fused import Fused
from ._index import Index
from ._lists import ByIds, Lists
from ._parquet import batches as parquet_batches
from ._place import DATABASES, Place, check_apart, one_version
from ._raw import ArrayColumn, npy
from ._rows import RowSource
from ._safetensors import Tensor, Tensors
from ._saved import id_values, is_saved, saved, saved_columns
from ._tables import ARROW, Table, TableColumn, find_column
from ._taken import taken
from ._usable import BAD_ROWS, Usable, listed, usable
from ._written_ids import IdLines, are_integers, integers

__all__ = [
    "BAD_ROWS",
    "ROW_NUMBERS",
    "ByIds",
    "Column",
    "Fused",
    "IdLines",
    "Index",
    "Lists",
    "PathLike",
    "Place",
    "Table",
    "Usable",
    "are_integers",
    "candidate_lists",
    "candidate_scores",
    "check_apart",
    "id_values",
    "ids",
    "ids_of_file",
    "integers",
    "is_saved",
    "listed",
    "load_corpus",
    "numbers",
    "of_rows",
    "one_version",
    "parquet_batches",
    "saved",
    "saved_columns",
    "table",
    "taken",
    "usable",
    "vector_lists",
    "vectors",
]

ROW_NUMBERS = "candidates are row numbers of the corpus, not its ids in {}; candidate_ids takes ids"  # to be noted

_TABLES = (".parquet", *ARROW, *_text.JSON, *_text.CSV, *DATABASES)
_SUFFIXES = (".npy", *_TABLES, *_ann.SUFFIXES, ".npz", *_named.HDF5, ".safetensors")
_ARRAYS: dict[str, Callable[[Place, str], _named.Arrays]] = {
    ".npz": _named.Npz,
    ".safetensors": Tensors,
    **dict.fromkeys(_named.HDF5, _named.Hdf),
}
_FLOATS = ("float32", "float16", "float64")
_BYTES = ("int8", "uint8")  # vectors that are quantised already
_INTEGERS = ("int64", "int32")
_TIMES = (pa.types.is_timestamp, pa.types.is_date)
_NUMBERS: dict[type | None, tuple[str, tuple[str, ...], Callable[[pa.DataType], bool], pa.DataType]] = {
    float: ("floats", _FLOATS, pa.types.is_floating, pa.float32()),
    int: ("integers", _INTEGERS, pa.types.is_integer, pa.int64()),
    None: (
        "numbers",
        (*_FLOATS, *_INTEGERS),
        lambda kind: bool(pa.types.is_floating(kind) or pa.types.is_integer(kind)),
        pa.float64(),
    ),
}
_NUMBERS[str] = (
    "integers or strings",
    (*_INTEGERS, "str"),
    lambda kind: bool(pa.types.is_integer(kind)) or _is_text(_plain(kind)),
    pa.int64(),
)
_NUMBERS[np.datetime64] = (
    "numbers or times",
    (*_FLOATS, *_INTEGERS, *(f"datetime64[{unit}]" for unit in ("D", "s", "ms", "us", "ns"))),
    lambda kind: any(check(kind) for check in (*_TIMES, pa.types.is_floating, pa.types.is_integer)),
    pa.float64(),
)
_USUAL = ("embedding", "embeddings", "vector", "vectors")


def vectors(
    file: PathLike,
    argument: str,
    column: str | None = None,
    dims: int | None = None,
    usual: bool = False,
    bytes_stay: bool = False,
) -> Column:
    """Open vectors: an array or tensor of rank 2, or a column of lists of floats, which may be written as text.

    `dims` is their length where the file does not say: lists of any length have that of the first row by default, or
    with `usual` the one that most of the first rows have. Bytes become floats unless they are to stay what they are.
    """
    source = _open(file, argument, column)
    if isinstance(source, Place):
        if source.suffix != ".npy":
            stays = bytes_stay and source.suffix in _ann.BYTES
            return _ann.column(source, argument, False, None if stays else _ann.as_floats)
        stored = npy(source, argument, rank=2, dtypes=(*_FLOATS, *_BYTES)).narrowed()
        return stored if bytes_stay else stored.as_floats(_BYTES)
    if not isinstance(source, Table):
        names = (*_USUAL, "train" if argument == "corpus" else "test")
        return _tensor(source, argument, column, (*_FLOATS, "bfloat16"), 2, names).narrowed()
    if source.is_csv and not source.rows:  # its columns have no type
        raise ValueError(f"select: {argument} must have at least one row, got none in {source.place}")
    column = column or _usual_name(source)
    accepts = _is_float_list
    if column is not None or not any(_is_float_list(field.type) for field in source.schema):
        accepts = _is_vector
    name, kind = _find(source, argument, column, "lists of floats", accepts, _USUAL)
    text = _is_text(kind)
    rule = "have {dims} values in each row"
    if pa.types.is_fixed_size_list(kind):
        dims = kind.list_size
    elif dims is None:
        dims, rule = _first_length(source, name, text, usual), rule + (" as most have" if usual else " as in the first")
    as_stored = not text and (kind.value_type == pa.float16() or (bytes_stay and _is_byte(kind.value_type)))
    dtype = np.dtype(kind.value_type.to_pandas_dtype() if as_stored else np.float32)
    rule = rule.format(dims=dims)

    def convert(lists: pa.Array, rows: RowSource) -> Any:
        return _rows.vectors(_text.float_lists(lists) if text else lists, rows, dims, rule, dtype)

    return TableColumn(source, argument, name, convert, dims, dtype)


def candidate_lists(file: PathLike | None, column: str | None = None, ids: bool = False) -> Column | None:
    """Open candidates as `Lists`, whose memory does not depend on the longest; with `ids` they may be strings.

    They are an array or tensor (Q, P), in which -1 is none, or a column of lists.
    """
    argument = "candidates"
    if file is None:
        if column is not None:
            raise ValueError(f"select: candidate_column must come with candidates, got {column!r} alone")
        return None
    source = _open(file, argument, column)
    if isinstance(source, Place):
        if source.suffix != ".npy":
            return _ann.column(source, argument, True, Lists.of_array)
        return npy(source, argument, rank=2, dtypes=("int32", "int64"), convert=Lists.of_array)
    if not isinstance(source, Table):
        names = (argument, "neighbors")
        return _tensor(source, argument, column, _INTEGERS, 2, names, convert=Lists.of_array)
    what, accepts = ("lists of integers or strings", _is_id_list) if ids else ("lists of integers", _is_int_list)
    name, _ = _find(source, argument, column, what, accepts, (argument,))
    return _lists(source, argument, name, _rows.lists)


def candidate_scores(file: PathLike | None, column: str | None) -> Column | None:
    """Open a column of lists of numbers, the relevance of each query's candidates, as `Lists` of float32."""
    argument = "relevance"
    if column is None:
        return None
    if file is None:
        raise ValueError(f"select: relevance_column must come with candidates, got {column!r} alone")
    source = _open(file, argument, column)
    if not isinstance(source, Table):
        raise ValueError(f"select: {argument} must be a column of a table, got {file}")
    name, _ = _find(source, argument, column, "lists of floats", _is_float_list)
    return _lists(source, argument, name, _rows.scores)


def vector_lists(file: PathLike, column: str, dims: int) -> Column:
    """Open a column of lists of vectors, those of the candidates of each query, as `Lists` of rows (n, D)."""
    argument = "candidates"
    source = _open(file, argument, column)
    if not isinstance(source, Table):
        raise ValueError(f"select: {argument} must be a table to have lists of vectors, got {file}")
    name, kind = _find(source, argument, column, "lists of lists of floats", _is_list_of_vectors)
    dtype = np.dtype(np.float16 if kind.value_type.value_type == pa.float16() else np.float32)
    found = _lists(source, argument, name, partial(_rows.vector_lists, dims=dims, dtype=dtype))
    found.dims = dims
    return found


def ids(file: PathLike, argument: str, column: str | None = None, kind: str | None = None) -> Column | None:
    """Open an id column; None if the file has none, and rows are known by their numbers.

    `kind` is that of the ids of the corpus that they are to be, "int64" or "str", as which a CSV's are read. Without it
    they are integers if all of them are written so. Other files have a type of their own.
    """
    source = _open(file, argument, column)
    if isinstance(source, Place):
        return None
    known = source.schema.names if isinstance(source, Table) else source.kinds
    if column is None and "id" not in known:
        return None
    column = column or "id"
    if not isinstance(source, Table):
        return _tensor(source, argument, column, _INTEGERS, 1, (), convert=pa.array, finish=_chunked)
    if column in source.schema.names:
        source = source.as_written(column)
    name, _ = _find(source, argument, column, "single values", lambda t: not pa.types.is_nested(t))
    plain, what = _plain(source.kind(name)), f"{argument}'s id column"
    if source.is_csv:
        of_column = partial(source.arrays, name, 1 << 16, 0, source.rows)
        whole = kind == "int64" or (kind is None and all(map(_written_ids.are_integers, of_column())))
    else:
        whole, got = False, "strings" if _is_text(plain) else "integers" if pa.types.is_integer(plain) else None
        _check_kind("ids" if argument == "corpus" else argument, kind, got, source.place)

    def convert(values: pa.Array, rows: RowSource) -> pa.Array:
        values = _rows.present(values.cast(plain), rows, what)  # a dictionary may hold a null
        return _written_ids.as_integers(values, rows) if whole else values

    return TableColumn(source, argument, name, convert)


def ids_of_file(file: PathLike, column: str | None = None, known: Ids | None = None, argument: str = "ids") -> Column:
    """Open the ids of a file of their own, to be like those of a corpus that are `known`.

    A ``.npy`` file has integers; a file whose suffix is that of no format, and a pipe, have an id in each line.
    """
    place = Place(file, argument)
    kind = None if known is None else "str" if known.kind == "str" else "int64"
    if place.suffix == ".npy":
        try:
            found = numbers(argument, int, file, column, file)
        except ValueError as error:
            raise ValueError(f"{error}; strings can be in a text file, one a line, or a column of a table") from error
        _check_kind(argument, kind, "integers", place)
    elif _text.suffix(place) not in _SUFFIXES and (place.kind() == "file" or place.is_pipe()):
        if column is not None:
            raise ValueError(f"select: {argument} must not be a text file to have a column {column!r}, got {place}")
        found = IdLines(place, known)
    else:
        found = ids(file, argument, column, kind)
    if found is None:
        other = " or the one that id_column names" if argument == "ids" else ""
        raise ValueError(f"select: {argument} must be in a column id{other}, got none in {place}")
    return found


def _check_kind(argument: str, kind: str | None, got: str | None, place: Place) -> None:
    """Refuse ids of another type than those of the corpus."""
    expected = {None: got, "int64": "integers", "str": "strings"}[kind]
    if got not in (None, expected):
        raise ValueError(f"select: {argument} must be {expected} as those of the corpus are, got {got} in {place}")


def numbers(
    argument: str, kind: type | None, file: PathLike | None, column: str | None, owner: PathLike
) -> Column | None:
    """Open one ``float`` or ``int`` a row, of a file of its own or, where only a column is named, of `owner`.

    `kind` None: either of the two; ``str``: integers, or strings, which stay Arrow's; `numpy.datetime64`: numbers, or
    times, which become seconds since 1970, NaN where there is none.
    """
    if file is None and column is None:
        return None
    place = Place(owner if file is None else file, argument)
    if column is not None and (place.suffix == ".npy" or place.suffix in _ann.SUFFIXES):
        if file is not None:
            raise ValueError(f"select: {argument} must be a file or a column, got both {place} and {column!r}")
        raise ValueError(
            f"select: {argument} must be a file of its own where the vectors are {place.suffix}, got column {column!r}"
        )
    what, dtypes, accepts, read_as = _NUMBERS[kind]
    source = _open(place.path, argument, column)
    if isinstance(source, Place):
        if source.suffix != ".npy":
            raise ValueError(f"select: {argument} must be one number a row, got {place}")
        found = npy(source, argument, rank=1, dtypes=dtypes)
        return found.as_seconds() if kind is np.datetime64 else found.as_texts()
    if not isinstance(source, Table):
        widened = (*dtypes, "bfloat16") if kind is float else dtypes
        return _tensor(source, argument, column, widened, 1, (argument,)).as_texts()
    name, stored = _find(source, argument, column, what, accepts, (argument,))
    plain = _plain(stored)

    def convert(values: pa.Array, rows: RowSource) -> Any:
        if _is_text(plain):
            return _rows.present(values.cast(plain), rows, argument)
        return _rows.seconds(values) if kind is np.datetime64 else _rows.numbers(values, rows, read_as)

    return TableColumn(source, argument, name, convert)


def table(file: PathLike) -> Table:
    """Open a table of which all columns are wanted."""
    source = _open(file, "corpus", None)
    if not isinstance(source, Table):
        raise ValueError(f"select: rows must be those of a table, got {file}")
    return source


def of_rows(owner: PathLike, given: Mapping[str, Any]) -> dict[str, Column | None]:
    """Open what belongs to the corpus's rows (`COLUMNS`): each a file or a column of it, else a column of `owner`."""
    kinds = (
        ("bias", float, "bias_column"),
        ("groups", str, "group_column"),
        ("costs", None, "cost_column"),
        ("time", np.datetime64, "time_column"),
    )
    return {name: numbers(name, kind, given[name], given[column], owner) for name, kind, column in kinds}


def load_corpus(corpus: Column, bias: Column | None, groups: Column | None, options: dict[str, Any]) -> rk.Corpus:
    """Read the vectors, bias and groups into a corpus."""
    try:
        return rk.Corpus(
            corpus.embeddings(),
            bias=None if bias is None else np.asarray(bias.whole(), np.float32),
            groups=None if groups is None else groups.whole(),
            **options,
        )
    except ValueError as error:
        if str(error).startswith("select: "):  # from reading, with the file's name
            raise
        raise ValueError(f"select: corpus must be usable, got {corpus.path}: {error}") from error


def _open(file: PathLike, argument: str, column: str | None) -> Place | Table | _named.Arrays:
    """Open a file by its kind, a ``.npy`` file as its place; refuse a missing one, another format, a column of .npy."""
    place = Place(file, argument)
    kind, suffix = place.kind(), _text.suffix(place)
    if kind is None and not place.is_pattern():
        raise FileNotFoundError(f"select: {argument} must be an existing file, got {place}")
    if kind != "file":
        return Table(place, argument)
    if suffix not in _SUFFIXES:
        known = f"{', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        raise ValueError(f"select: {argument} must be a {known} file, or a folder of such a kind, got {place}")
    if suffix == ".npy" or suffix in _ann.SUFFIXES:
        if column is not None:
            raise ValueError(f"select: {argument} must not be a {suffix} file to have a column {column!r}, got {place}")
        return place
    return _ARRAYS[suffix](place, argument) if suffix in _ARRAYS else Table(place, argument)


def _lists(table: Table, argument: str, name: str, read: Callable[..., tuple[Any, Any]]) -> TableColumn:
    """Return a column of lists, whose values end to end, and lengths, `read` takes out of Arrow's."""
    return TableColumn(table, argument, name, lambda values, rows: Lists.of(*read(values, rows)))


def _find(
    table: Table,
    argument: str,
    column: str | None,
    what: str,
    accepts: Callable[[pa.DataType], bool],
    usual: tuple[str, ...] = (),
) -> tuple[str, pa.DataType]:
    kinds = {field.name: field.type for field in table.schema}
    name = find_column(kinds, table.place, argument, column, what, accepts, usual)
    return name, table.kind(name)


def _tensor(
    tensors: _named.Arrays,
    argument: str,
    column: str | None,
    dtypes: tuple[str, ...],
    rank: int,
    usual: tuple[str, ...],
    **options: Any,
) -> ArrayColumn:
    def accepts(tensor: Tensor) -> bool:
        text = tensor.dtype.startswith("str") and "str" in dtypes  # NumPy's names have the length: str64
        return (text or tensor.dtype in dtypes) and len(tensor.shape) == rank

    what = f"{' or '.join(dtypes)} of rank {rank}"
    name = find_column(tensors.kinds, tensors.place, argument, column, what, accepts, usual, "tensor")
    return tensors.column(name, **options)


def _chunked(values: Any) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values)])


def _is_list(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _is_float_list(kind: pa.DataType) -> bool:
    return _is_list(kind) and bool(pa.types.is_floating(kind.value_type))


def _is_int_list(kind: pa.DataType) -> bool:
    return _is_list(kind) and bool(pa.types.is_integer(kind.value_type))


def _is_id_list(kind: pa.DataType) -> bool:
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return _is_int_list(kind) or (_is_list(kind) and any(check(kind.value_type) for check in text))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values themselves, without a dictionary, as Parquet gives it back."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    others = {"string_view": pa.large_string(), "binary_view": pa.large_binary(),
              "date64[ms]": pa.date32(), "time32[s]": pa.time32("ms")}  # fmt: skip
    return others.get(str(kind), kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_byte(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int8(kind) or pa.types.is_uint8(kind))


def _is_vector(kind: pa.DataType) -> bool:
    """Whether a column may hold vectors: lists of floats, or of bytes, or text."""
    return _is_float_list(kind) or _is_text(kind) or (_is_list(kind) and _is_byte(kind.value_type))


def _is_list_of_vectors(kind: pa.DataType) -> bool:
    return _is_list(kind) and _is_float_list(kind.value_type)


def _usual_name(table: Table) -> str | None:
    """Return the column with a usual name, where none has lists of floats: text, or integers, which may be refused."""
    kinds = {field.name: field.type for field in table.schema}
    if any(_is_float_list(kind) for kind in kinds.values()):
        return None
    return next(
        (each for each in _USUAL if each in kinds and (_is_text(kinds[each]) or _is_int_list(kinds[each]))), None
    )


def _first_length(table: Table, name: str, text: bool, usual: bool) -> int:
    """Return the length of the first list that is not missing, or the one that most of the lists near it have."""
    for lists in table.arrays(name, 64, 0, table.rows, {} if usual else None):
        if len(present := (_text.float_lists(lists) if text else lists).drop_null()):
            lengths: list[int] = present.value_lengths().to_pylist()
            return max(lengths, key=lengths.count) if usual else lengths[0]
    return 0
