"""The commands ``corpus``: the folder of a corpus made of files, changed, shown and checked."""

from __future__ import annotations

import random
import sys
import time
from typing import Annotated, Any

import typer

import ragsys_kernels as rk

from .. import offline
from ..corpus.segments import described, problems
from . import ClosedError
from ._app import COLUMNS, INPUT, RULE, Commands, app, notices, one_line_errors, option, progress_bar, worded
from ._options import BAD_ROWS, BIAS_COLUMN, COST_COLUMN, GROUP_COLUMN, ON_DUPLICATE, TIME_COLUMN, Quiet, seconds
from ._takes import takes

corpus = Commands(help="Make the folder of a corpus from files, change, show or check one.", no_args_is_help=True)
app.add_typer(corpus, name="corpus")


_LONGEST_PAUSE = 300.0  # seconds, before a sync that failed is tried again

_ROWS = {
    "ids": option(
        INPUT,
        "Id of each row, integers or strings.",
        metavar="FILE",
        show_default="the column id of --corpus, else row numbers",
    ),
    "bias": option(INPUT, "Quality of each row, floats of shape (N,).", metavar="FILE"),
    "groups": option(
        INPUT, "Group of each row, such as its source: integers or strings of shape (N,).", metavar="FILE"
    ),
    "costs": option(INPUT, "What it costs to pick each row, such as its tokens: numbers (N,).", metavar="FILE"),
    "time": option(INPUT, "When each row was written: times, or seconds since 1970 (N,).", metavar="FILE"),
}
_COLUMNS = {
    "vector_column": option(COLUMNS, "Column of the vectors.", show_default="the only float list"),
    "id_column": option(
        COLUMNS, "Column of the ids, in the file of --ids, else in that of --corpus.", show_default="id"
    ),
    "bias_column": BIAS_COLUMN,
    "group_column": GROUP_COLUMN,
    "cost_column": COST_COLUMN,
    "time_column": TIME_COLUMN,
}


@corpus.command()
@takes(
    offline.build_corpus,
    corpus=option(INPUT, "Vectors, of shape (N, D): a path or URL in any format that select takes.", metavar="FILE"),
    out=option(INPUT, "Folder of the corpus, which Corpus.load maps.", metavar="DIR"),
    **_ROWS,
    rows_per_segment=option(
        INPUT,
        "Rows of a segment. Memory holds three segments at most, and the folder can grow and change.",
        metavar="N",
    ),
    bad_rows=BAD_ROWS,
    on_duplicate=ON_DUPLICATE,
    memory=option(
        INPUT, "Memory for the rows, in place of --rows-per-segment: segments are a third of it.", metavar="2G"
    ),
    index=option(
        INPUT,
        "FAISS index to make of each segment, which then finds the pools: IVF4096,Flat, HNSW32,Flat and what else "
        "FAISS's index_factory takes; needs the extra faiss.",
        metavar="FACTORY",
        show_default="exact search",
    ),
    search_parameters=option(
        INPUT, "What the index is searched with: nprobe=32, efSearch=64.", metavar="TEXT", show_default="FAISS's"
    ),
    overwrite=option(INPUT, "Replace a saved corpus at --out."),
    **_COLUMNS,
    metric=option(RULE, "Similarity of vectors: cosine normalises them, dot takes them as they are."),
    dtype=option(RULE, "How the rows are stored."),
)
def build(**given: Any) -> None:
    """Write vectors and what belongs to them as one folder, which is loaded in about a millisecond.

    The folder appears whole or not at all. With --overwrite it takes the place of a saved corpus in one step: what is
    loaded meanwhile is the old one or the new one. With --rows-per-segment it is a folder of segments, which corpus
    append, delete and compact change; it holds the same rows, and every answer has the same bits.
    """
    with one_line_errors("corpus build"), notices(False):
        print(offline.build_corpus(**given))


@corpus.command()
@takes(
    offline.append_corpus,
    corpus=option(
        INPUT,
        "Vectors of the new rows, of shape (M, D): a path or URL in any format that select takes, or the folder of "
        "a corpus.",
        metavar="FILE",
    ),
    to=option(INPUT, "Folder of corpus build --rows-per-segment.", metavar="FOLDER"),
    **_ROWS,
    on_duplicate=option(
        INPUT, "An id that is already in the corpus: error changes nothing, replace deletes its old row."
    ),
    **_COLUMNS,
)
def append(**given: Any) -> None:
    """Add rows to a folder of segments, after those that are there.

    The folder changes in one step. Who has loaded it keeps the rows that it had.
    """
    with one_line_errors("corpus append"):
        print(offline.append_corpus(**given))


@corpus.command()
@takes(
    offline.delete_rows,
    ids=option(INPUT, "Ids of the rows: a text file or a pipe, one a line, or a column of a table.", metavar="FILE"),
    folder=option(INPUT, "Folder of corpus build --rows-per-segment.", "--from", metavar="FOLDER"),
    id_column=option(COLUMNS, "Column of the ids.", show_default="id"),
)
def delete(**given: Any) -> None:
    """Delete rows of a folder of segments, given by their ids, or by their numbers where the corpus has no ids.

    The other rows keep their numbers. Ids that are not in the corpus are counted and named. The space is free after
    corpus compact.
    """
    with one_line_errors("corpus delete"):
        print(offline.delete_rows(**given))


@corpus.command()
@takes(
    offline.compact_corpus,
    folder=Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of corpus build --rows-per-segment.")],
    rows_per_segment=option(INPUT, "Rows of a segment.", metavar="N", show_default="as the folder was made"),
)
def compact(**given: Any) -> None:
    """Write the rows of a folder of segments anew, without the deleted ones; rows get new numbers.

    Who has loaded the folder keeps the rows that it had.
    """
    with one_line_errors("corpus compact"):
        print(offline.compact_corpus(**given))


@corpus.command()
@takes(
    offline.sync_corpus,
    source=option(
        INPUT,
        "Vectors with ids: a file or a folder of Parquet; or a store, sqlite-vec:FILE?table=T, "
        "lancedb:DIR?table=T, chroma:DIR|URL?collection=C, qdrant:DIR|URL?collection=C, milvus:FILE|URL?collection=C, "
        "postgresql://HOST/BASE?table=T, each with id= and vector= for the names of columns.",
        "--from",
        metavar="SOURCE",
    ),
    to=option(INPUT, "Folder of segments, which is made if there is none.", metavar="FOLDER"),
    every=...,
    rows_per_segment=option(INPUT, "Most rows of a new segment.", metavar="N"),
    bad_rows=option(
        INPUT,
        "How to treat a row that cannot be used: no vector, NaN, another length. skip leaves it out, and "
        "TO.skipped.csv lists it with id and reason.",
    ),
    **_COLUMNS,
    metric=option(RULE, "Similarity of vectors.", show_default="that of the folder, else cosine"),
    dtype=option(RULE, "How the rows are stored.", show_default="as in the folder, else float32"),
)
def sync(
    every: Annotated[
        float | None,
        option(INPUT, "Go on, and look again so often: 60s, 5m, 1h.", parser=seconds, metavar="TIME"),
    ] = None,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Make a folder of segments hold the rows of a store: add what is new or has changed, delete what has gone.

    The folder changes in one step; after a kill run the same command again. Who has loaded it keeps the rows that it
    had. With --every, what can pass, such as a store that does not answer, is a line, and is tried again after a pause
    that grows to five minutes; so is every failure after a first success. Others end the command.
    """
    op, failures, worked = "corpus sync", 0, False
    with one_line_errors(op, "interrupted: the folder is as it was, or as the source is"), notices(quiet):
        while True:
            try:
                with progress_bar(quiet, "rows", "opening the source", "comparing") as progress:
                    found = offline.sync_corpus(progress=progress, **given)
            except ClosedError:
                raise
            except (ValueError, TypeError, OSError) as error:
                if every is None or not (worked or _can_pass(error)):
                    raise
                failures += 1
                # Not at the same moment as others that wait for the same store.
                pause = min(2.0 ** min(failures, 30), _LONGEST_PAUSE) * random.uniform(0.5, 1)
                print(f"error: {worded(op, error)}; trying again in {pause:.0f} s", file=sys.stderr, flush=True)
            else:
                if not quiet:
                    print(found, flush=True)
                if every is None:
                    return
                pause, failures, worked = every, 0, True
            time.sleep(pause)


def _can_pass(error: Exception) -> bool:
    """Return whether a sync may work later with the same arguments: what is wrong with these is no OSError."""
    return isinstance(error, OSError) and not isinstance(error, FileExistsError)


@corpus.command()
def show(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of a corpus.")],
) -> None:
    """Print the segments of a folder, with their rows, how many of these are deleted, and bytes."""
    with one_line_errors("corpus show"):
        found = described(folder)
    columns = ", ".join([found["metric"], found["dtype"], f"{found['dims']} dimensions", *found["columns"]])
    print(f"version {found['version']}: {columns}" if "version" in found else columns)
    numbers: tuple[str, ...] = ("rows", "deleted", "bytes")
    if found["index"] is not None:
        print(f"index: {found['index']}")
        numbers = (*numbers, "index bytes")
    table: list[tuple[str, ...]] = [("segment", *numbers)]
    for part in (*found["segments"], {**found, "name": f"all {len(found['segments'])}"}):
        table.append((part["name"], *(str(part[name]) for name in numbers)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *rest in table:
        print("  ".join([name.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]))


@corpus.command()
def verify(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of a corpus.")],
) -> None:
    """Read all files and compare their checksums; the exit code is 1 if anything is wrong."""
    with one_line_errors("corpus verify"):
        found = problems(folder)
        if not found:
            rows = rk.Corpus.load(folder)
            print(f"right: {rows}")
            return
    for problem in found:
        print(problem)
    raise typer.Exit(1)
