"""The folder of a `Corpus` from files: vectors, and what belongs to their rows."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np

import ragsys_kernels as rk

from .._base import checks
from .._base.arrays import HOST
from .._base.files import check_local
from .._base.types import BadRows, Metric, OnDuplicate, Storage
from ..corpus import faiss_index, folder, versions
from ..corpus.folder_index import Maker, Recipe
from ..corpus.ids import Ids
from ..corpus.rows import Blocks, as_is
from ..selection import codes
from . import sources
from ._options import OF_ROWS
from ._pipeline import ahead
from .sinks import skipped_list, write_skipped
from .sources import Column, PathLike

_OP = "build_corpus"
_log = logging.getLogger(__name__)
_Given = tuple[Column, dict[str, Column]]  # the vectors, and what belongs to their rows
_ROWS = re.compile(r"(?<= in )(row \d+|rows \d+ and \d+)$")
_BLOCK_BYTES = 1 << 24  # of vectors read at once: from a URL, with one request
_PLACES = 64  # of the source, from which an index is trained
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "binary": 1}  # of an element, at most


def build_corpus(
    corpus: PathLike,
    out: PathLike,
    *,
    ids: PathLike | None = None,
    bias: PathLike | None = None,
    groups: PathLike | None = None,
    costs: PathLike | None = None,
    time: PathLike | None = None,
    vector_column: str | None = None,
    id_column: str | None = None,
    bias_column: str | None = None,
    group_column: str | None = None,
    cost_column: str | None = None,
    time_column: str | None = None,
    metric: Metric = "cosine",
    dtype: Storage = "float32",
    overwrite: bool = False,
    rows_per_segment: int | None = None,
    memory: int | str | None = None,
    bad_rows: BadRows = "raise",
    on_duplicate: OnDuplicate = "error",
    index: str | None = None,
    search_parameters: str | None = None,
) -> rk.Corpus:
    """Write the vectors of a file, with their ids, bias, groups, costs and times, as a folder that `Corpus.load` maps.

    Parameters
    ----------
    corpus : path or URL
        Vectors (N, D), in any format that `select` takes.
    out : path
        The folder, a local one; see `Corpus.save`.
    ids, bias, groups, costs, time : path or URL, optional
        Files of what belongs to the rows: integers or strings, floats, integers or strings, numbers, times. The
        first may be any such file but a ``.npy`` file of strings; or a text file, with any suffix that no format has,
        or a pipe, with an id in each line, which LF or CRLF ends. There, and in a CSV, ids are integers if all of them
        are written so, in plain decimal form.
    vector_column, id_column, bias_column, group_column, cost_column, time_column : str, optional
        Columns, in the files of ``ids`` to ``time`` where given, else in that of ``corpus``. Ids are in the column
        "id" by default; where there is none, rows are known by their numbers.
    metric, dtype
        As of `Corpus`.
    overwrite : bool
        Replace a saved corpus at `out`.
    rows_per_segment : int, optional
        Write segments of so many rows, the last of fewer. A build that was killed or interrupted goes on with the
        segments that it had, when it is called again with the same files and options. Memory holds three of them at
        most, and `append_corpus`, `delete_rows` and `compact_corpus` can change the folder. The rows are the same, to
        the last bit.
    memory : int or str, optional
        Bytes that the rows may take while the folder is made, as a number or as "2G", in place of `rows_per_segment`:
        segments are a third of that.
    bad_rows : {"raise", "skip"}
        How to treat a row that cannot be used: one without a vector, an id or another value, with NaN or inf, with a
        vector of another length, or in a part of a file that cannot be read. "raise": an error. "skip": leave the row
        out; ``OUT.skipped.csv`` lists it with its number, id and the reason. The files are then read twice, and rows
        without ids have their numbers in the file as ids.
    on_duplicate : {"error", "first", "last"}
        How to treat rows with the same id: an error, or keep only the first, or the last; the others are listed
        likewise.
    index : str, optional
        Factory string of FAISS, such as "IVF4096,Flat" or "HNSW32,Flat": the folder gets an index, of each segment a
        file beside its rows, and `Corpus.search` and `Corpus.select` find rows through it unless they are told not to.
        One index is trained on a sample that is spread over all rows, of at most a segment, and each segment gets a
        copy with its rows; one with fewer rows than the index has cells (at least 256) has none, and is searched
        exactly. With ``memory`` segments are then a quarter of it. Needs the package faiss.
    search_parameters : str, optional
        What the index is searched with unless a call says otherwise, as FAISS's ParameterSpace takes it: "nprobe=32",
        "efSearch=64". Default: FAISS's.

    Returns
    -------
    Corpus
        As loaded from the folder.

    Raises
    ------
    ValueError, TypeError
        A file that cannot be read, or holds what `Corpus` refuses; an id that occurs twice is named.
    FileExistsError
        ``out`` exists and must not be replaced.
    """
    named = {
        "ids": ids, "bias": bias, "groups": groups, "costs": costs, "time": time, "vector_column": vector_column,
        "id_column": id_column, "bias_column": bias_column, "group_column": group_column, "cost_column": cost_column,
        "time_column": time_column,
    }  # fmt: skip
    check_local(_OP, "out", out)
    replaces = checks.flag(_OP, "overwrite", overwrite)
    inputs = {"corpus": corpus, "ids": ids, "bias": bias, "groups": groups, "costs": costs, "time": time}
    with words_of(_OP):
        sources.check_apart(_OP, {"out": out, **skipped_list(out, (bad_rows, on_duplicate))}, inputs)
        vectors, more = columns_of(corpus, named, usual=bad_rows == "skip")
        read = {"corpus": vectors, **more}
        found = sources.usable("corpus", read, bad_rows, on_duplicate)
        given = found.columns["corpus"], {name: column for name, column in found.columns.items() if name != "corpus"}
        options = {"metric": metric, "dtype": dtype}
        if memory is not None:
            if rows_per_segment is not None:
                raise ValueError(f"memory must come without rows_per_segment, got {memory} and {rows_per_segment}")
            size = checks.size(_OP, "memory", memory)
            rows_per_segment = _rows_of(size, given[0].dims, dtype, 3 if index is None else 4)
        recipe = _recipe(index, search_parameters, given, rows_per_segment)
        if rows_per_segment is None:
            made = loaded(*given, options)
            one = None if recipe is None else (recipe, Maker(_OP, recipe, _columns(given)).of(made))
            folder.save(made, made.ids, out, replaces, one)
        else:
            size = checks.count(_OP, "rows_per_segment", rows_per_segment)
            rules: dict[str, Any] = {
                **options,
                "bad_rows": bad_rows,
                "on_duplicate": on_duplicate,
                "rows_per_segment": size,
            }
            rules |= {} if recipe is None else {"index": recipe.described()}
            parts = partial(pieces, *given, options, size)
            trains = None if recipe is None else partial(_train, given, options, size)
            versions.build(_OP, out, parts, size, replaces, _key(read, rules), recipe, trains)
        write_skipped(_OP, out, (bad_rows, on_duplicate), corpus=found)
    return rk.Corpus.load(out)


def _key(read: dict[str, Column], rules: dict[str, Any]) -> str:
    """Return a key of the files and options, equal when the same build is run again."""
    known: dict[str, Any] = {}
    files = {name: column.identity(False, known) for name, column in read.items()}
    return hashlib.sha256(json.dumps([rk.__version__, files, rules], sort_keys=True).encode()).hexdigest()


def _rows_of(memory: int, dims: int, dtype: str, parts: int) -> int:
    """Return the rows of a segment for this memory, which holds three: one read, one made and one written.

    ``parts``: 3, or 4 with the index of one.
    """
    stored = dims * _BYTES[dtype] + codes.row_bytes(dims)
    return max(1, memory // parts // (4 * dims + stored))


def _columns(given: _Given) -> int:
    return given[0].dims + ("bias" in given[1])


def _recipe(index: str | None, parameters: str | None, given: _Given, size: int | None) -> Recipe | None:
    """Return what indexes are made of; refuse what FAISS does, and one that the first segment is too small for."""
    if index is None:
        if parameters is not None:
            raise ValueError(f"search_parameters must come with index, got {parameters!r} alone")
        return None
    for name, value in (("index", index), ("search_parameters", parameters)):
        if not isinstance(value, str | None):
            raise TypeError(f"{_OP}: {name} must be a str, got {type(value).__name__}")
    recipe = Recipe(index, parameters or "")
    maker = Maker(_OP, recipe, _columns(given))
    rows = min(given[0].rows, size or given[0].rows)
    if rows < maker.least:
        least = f"which needs {maker.least}; fewer are searched exactly, without index"
        raise ValueError(f"index must be one for {rows} rows a segment, got {index!r}, {least}")
    if not recipe.parameters and (cells := maker.cells) is not None and cells[0] < cells[1]:
        _log.info(
            "%s: searches look into %d of the %d cells of %s, FAISS's default, and miss most rows; search_parameters, "
            "such as nprobe=%d, says into how many",
            _OP, *cells, index, max(2, cells[1] // 8),
        )  # fmt: skip
    return recipe


def _train(given: _Given, options: dict[str, Any], size: int, maker: Maker) -> None:
    """Train an index on rows from all over the source."""
    vectors, columns = given
    wanted = maker.wanted(min(size, vectors.rows))
    count = -(-wanted // min(_PLACES, wanted))
    begins = np.unique(np.linspace(0, vectors.rows - count, min(_PLACES, wanted)).astype(np.int64))
    parts = []
    for begin in begins.tolist():
        with closing(_made(vectors, columns, options, count, begin)) as made:
            parts.append(faiss_index.stored(next(made)[0], slice(None)))
    maker.train(np.concatenate(parts))


@contextmanager
def words_of(op: str) -> Iterator[None]:
    """Replace the prefix ``select:`` of errors about files by the name of this call."""
    try:
        yield
    except (ValueError, OSError) as error:
        text = str(error)
        if text.startswith((f"{op}: ", "Corpus: ")) or isinstance(error, FileExistsError):
            raise
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and not text.startswith("select: "):
            raise  # the system's, with its number
        raise type(error)(f"{op}: {text.removeprefix('select: ')}") from error


@sources.one_version()
def columns_of(
    corpus: PathLike, named: Mapping[str, PathLike | None], usual: bool = False, known: Ids | None = None
) -> tuple[Column, dict[str, Column]]:
    """Open the vectors, and what belongs to their rows, as `OF_ROWS` names it; ``usual`` as of `sources.vectors`.

    ``known`` are the ids of the corpus that the rows are for. ``quality_column`` is that of a bias by another name,
    which may be integers.
    """
    options: dict[str, Any] = {**dict.fromkeys(OF_ROWS), **named}
    vectors = sources.vectors(corpus, "corpus", options["vector_column"], usual=usual, bytes_stay=True)
    known = None if known is None or known.kind == "row" else known
    if options["ids"] is None:
        ids = sources.ids(corpus, "corpus", options["id_column"], None if known is None else known.kind)
    else:
        ids = sources.ids_of_file(options["ids"], options["id_column"], known)
    quality = sources.numbers("quality", None, None, options.get("quality_column"), corpus)
    columns = {**sources.of_rows(corpus, options), "ids": ids, "quality": quality}
    given = {name: column for name, column in columns.items() if column is not None}
    for name, column in given.items():
        if column.rows != vectors.rows:
            raise ValueError(
                f"{name} must have one row for each of the {vectors.rows} rows of corpus, "
                f"got {column.rows} in {column.path}"
            )
    return vectors, given


def loaded(vectors: Column, given: dict[str, Column], options: dict[str, Any]) -> rk.Corpus:
    """Read the vectors, and what belongs to their rows, into memory."""
    more: dict[str, Any] = {name: given[name].whole() for name in ("ids", "costs", "time") if name in given}
    return sources.load_corpus(vectors, given.get("bias"), given.get("groups"), {**more, **options})


def pieces(
    vectors: Column, given: dict[str, Column], options: dict[str, Any], size: int, start: int = 0
) -> Generator[tuple[rk.Corpus, Ids], None, None]:
    """Yield the rows from one on as corpora of so many rows, the next of which is made while the caller has one."""
    yield from ahead(_made(vectors, given, options, size, start), 1)


def _made(
    vectors: Column, given: dict[str, Column], options: dict[str, Any], size: int, begin: int
) -> Generator[tuple[rk.Corpus, Ids], None, None]:
    rest = _Rest(vectors, begin)
    read = [column.chunks(size, begin) for column in given.values()]
    while rest.block is not None:
        columns: dict[str, Any] = dict(zip(given, map(next, read), strict=True))
        if "bias" in columns:
            columns["bias"] = np.asarray(columns["bias"], np.float32)
        rows: Any = rest.take(min(size, vectors.rows - begin))
        try:
            made = rk.Corpus(rows, **columns, **options)
        except ValueError as error:
            if not str(error).startswith("Corpus: "):
                raise  # of the file
            text = of_source(str(error), range(begin, vectors.rows))
            raise ValueError(f"corpus must be usable, got {vectors.path}: {text}") from error
        yield made, made.ids
        begin += rows.shape[0]
    if not begin:
        raise ValueError(f"corpus must have at least one row, got none in {vectors.path}")


def of_source(text: str, rows: Sequence[int]) -> str:
    """Replace the row numbers at the end of an error of Corpus by the numbers of these rows in the source."""
    end = _ROWS.search(text)
    if end is None:
        return text
    return text[: end.start()] + re.sub(r"\d+", lambda found: str(rows[int(found[0])]), end[0])


class _Rest:
    """Vectors from a row on, of which segments take what they store.

    They are read in small blocks, each into the memory of the last: the system clears pages of new memory, which took a
    quarter of a build.
    """

    def __init__(self, vectors: Column, begin: int) -> None:
        step = max(1, _BLOCK_BYTES // (4 * max(1, vectors.dims)))
        self._blocks = vectors.chunks(step, begin) if begin < max(1, vectors.rows) else iter(())
        self.block: np.ndarray | None = next(self._blocks, None)

    def take(self, count: int) -> Blocks:
        assert self.block is not None
        return Blocks((count, self.block.shape[1]), as_is("Corpus", self.block, HOST)[1], lambda _: self._some(count))

    def _some(self, count: int) -> Iterator[np.ndarray]:
        while count and self.block is not None:
            block, more = self.block[:count], self.block[count:]
            count -= len(block)
            yield block
            self.block = more if len(more) else next(self._blocks, None)
