"""The commands ``corpus``: the folder of a corpus made of files, changed, shown and checked."""

from __future__ import annotations

import time
from enum import Enum
from typing import Annotated

import typer

import ragsys_kernels as rk

from .. import offline
from ..corpus.segments import described, problems
from ._app import COLUMNS, INPUT, RULE, Commands, app, notices, one_line_errors, option, progress_bar
from ._options import BadRows, OfBadRows, OfDuplicates, Quiet
from ._options import OnDuplicate as OfOneId
from .files import Dtype, Metric

corpus = Commands(help="Make the folder of a corpus from files, change, show or check one.", no_args_is_help=True)
app.add_typer(corpus, name="corpus")


Vectors = Annotated[
    str,
    option(INPUT, "Vectors, of shape (N, D): a path or URL in any format that select takes.", metavar="FILE"),
]
Ids = Annotated[
    str | None,
    option(
        INPUT,
        "Id of each row, integers or strings.",
        metavar="FILE",
        show_default="the column id of --corpus, else row numbers",
    ),
]
Bias = Annotated[str | None, option(INPUT, "Quality of each row, floats of shape (N,).", metavar="FILE")]
Groups = Annotated[
    str | None,
    option(INPUT, "Group of each row, such as its source: integers or strings of shape (N,).", metavar="FILE"),
]
Costs = Annotated[
    str | None, option(INPUT, "What it costs to pick each row, such as its tokens: numbers (N,).", metavar="FILE")
]
VectorColumn = Annotated[str | None, option(COLUMNS, "Column of the vectors.", show_default="the only float list")]
IdColumn = Annotated[
    str | None,
    option(COLUMNS, "Column of the ids, in the file of --ids, else in that of --corpus.", show_default="id"),
]
BiasColumn = Annotated[
    str | None, option(COLUMNS, "Column of the bias, in the file of --bias, else in that of --corpus.")
]
GroupColumn = Annotated[
    str | None, option(COLUMNS, "Column of the groups, in the file of --groups, else in that of --corpus.")
]
CostColumn = Annotated[
    str | None, option(COLUMNS, "Column of the costs, in the file of --costs, else in that of --corpus.")
]
Segments = Annotated[
    int | None,
    option(
        INPUT,
        "Rows of a segment. Memory holds three segments at most, and the folder can grow and change.",
        metavar="N",
    ),
]
Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of corpus build --rows-per-segment.")]


class OnDuplicate(str, Enum):
    ERROR = "error"
    REPLACE = "replace"


@corpus.command()
def build(
    corpus: Vectors,
    out: Annotated[str, option(INPUT, "Folder of the corpus, which Corpus.load maps.", metavar="DIR")],
    ids: Ids = None,
    bias: Bias = None,
    groups: Groups = None,
    costs: Costs = None,
    rows_per_segment: Segments = None,
    bad_rows: OfBadRows = BadRows.raise_,
    on_duplicate: OfDuplicates = OfOneId.error,
    memory: Annotated[
        str | None,
        option(INPUT, "Memory for the rows, in place of --rows-per-segment: segments are a third of it.", metavar="2G"),
    ] = None,
    overwrite: Annotated[bool, option(INPUT, "Replace a saved corpus at --out.", "--overwrite")] = False,
    vector_column: VectorColumn = None,
    id_column: IdColumn = None,
    bias_column: BiasColumn = None,
    group_column: GroupColumn = None,
    cost_column: CostColumn = None,
    metric: Annotated[
        Metric, option(RULE, "Similarity of vectors: cosine normalises them, dot takes them as they are.")
    ] = Metric.cosine,
    dtype: Annotated[Dtype, option(RULE, "How the rows are stored.")] = Dtype.float32,
) -> None:
    """Write vectors with their ids, bias, groups and costs as one folder, which is loaded in about a millisecond.

    The folder appears whole or not at all. With --overwrite it takes the place of a saved corpus in one step: what is
    loaded meanwhile is the old one or the new one. With --rows-per-segment it is a folder of segments, which corpus
    append, delete and compact change; it holds the same rows, and every answer has the same bits.
    """
    with one_line_errors("build_corpus"), notices(False):
        print(
            offline.build_corpus(
                corpus=corpus,
                out=out,
                ids=ids,
                bias=bias,
                groups=groups,
                costs=costs,
                vector_column=vector_column,
                id_column=id_column,
                bias_column=bias_column,
                group_column=group_column,
                cost_column=cost_column,
                metric=metric.value,
                dtype=dtype.value,
                overwrite=overwrite,
                rows_per_segment=rows_per_segment,
                memory=memory,
                bad_rows=bad_rows.value,
                on_duplicate=on_duplicate.value,
            )
        )


@corpus.command()
def append(
    corpus: Annotated[
        str,
        option(
            INPUT,
            "Vectors of the new rows, of shape (M, D): a path or URL in any format that select takes, or the folder of "
            "a corpus.",
            metavar="FILE",
        ),
    ],
    to: Annotated[str, option(INPUT, "Folder of corpus build --rows-per-segment.", metavar="FOLDER")],
    ids: Ids = None,
    bias: Bias = None,
    groups: Groups = None,
    costs: Costs = None,
    on_duplicate: Annotated[
        OnDuplicate,
        option(INPUT, "An id that is already in the corpus: error changes nothing, replace deletes its old row."),
    ] = OnDuplicate.ERROR,
    vector_column: VectorColumn = None,
    id_column: IdColumn = None,
    bias_column: BiasColumn = None,
    group_column: GroupColumn = None,
    cost_column: CostColumn = None,
) -> None:
    """Add rows to a folder of segments, after those that are there.

    The folder changes in one step. Who has loaded it keeps the rows that it had.
    """
    with one_line_errors("append_corpus"):
        print(
            offline.append_corpus(
                corpus=corpus,
                to=to,
                ids=ids,
                bias=bias,
                groups=groups,
                costs=costs,
                vector_column=vector_column,
                id_column=id_column,
                bias_column=bias_column,
                group_column=group_column,
                cost_column=cost_column,
                on_duplicate=on_duplicate.value,
            )
        )


@corpus.command()
def delete(
    ids: Annotated[
        str,
        option(INPUT, "Ids of the rows: a text file with one a line, or a column of a table.", metavar="FILE"),
    ],
    folder: Annotated[str, option(INPUT, "Folder of corpus build --rows-per-segment.", "--from", metavar="FOLDER")],
    id_column: Annotated[str | None, option(COLUMNS, "Column of the ids.", show_default="id")] = None,
) -> None:
    """Delete rows of a folder of segments, given by their ids, or by their numbers where the corpus has no ids.

    The other rows keep their numbers. Ids that are not in the corpus are counted and named. The space is free after
    corpus compact.
    """
    with one_line_errors("delete_rows"):
        print(offline.delete_rows(ids=ids, folder=folder, id_column=id_column))


@corpus.command()
def compact(
    folder: Folder,
    rows_per_segment: Annotated[
        int | None, option(INPUT, "Rows of a segment.", metavar="N", show_default="as the folder was made")
    ] = None,
) -> None:
    """Write the rows of a folder of segments anew, without the deleted ones; rows get new numbers.

    Who has loaded the folder keeps the rows that it had.
    """
    with one_line_errors("compact_corpus"):
        print(offline.compact_corpus(folder=folder, rows_per_segment=rows_per_segment))


def _seconds(text: str) -> float:
    """Read 60, 60s, 5m or 1h."""
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    number = text[:-1] if factor else text
    if not number.isdecimal() or not int(number):
        raise typer.BadParameter("must be a time above 0, as 60s, 5m or 1h")
    return float(int(number) * (factor or 1))


@corpus.command()
def sync(
    source: Annotated[
        str,
        option(
            INPUT,
            "Vectors with ids: a file or a folder of Parquet; or a store, sqlite-vec:FILE?table=T, "
            "lancedb:DIR?table=T, chroma:DIR?collection=C, qdrant:DIR|URL?collection=C, milvus:FILE|URL?collection=C, "
            "postgresql://HOST/BASE?table=T, each with id= and vector= for the names of columns.",
            "--from",
            metavar="SOURCE",
        ),
    ],
    to: Annotated[str, option(INPUT, "Folder of segments, which is made if there is none.", metavar="FOLDER")],
    every: Annotated[
        float | None,
        option(INPUT, "Go on, and look again so often: 60s, 5m, 1h.", parser=_seconds, metavar="TIME"),
    ] = None,
    rows_per_segment: Annotated[int, option(INPUT, "Most rows of a new segment.", metavar="N")] = 100_000,
    vector_column: VectorColumn = None,
    id_column: IdColumn = None,
    bias_column: BiasColumn = None,
    group_column: GroupColumn = None,
    cost_column: CostColumn = None,
    metric: Annotated[
        Metric | None, option(RULE, "Similarity of vectors.", show_default="that of the folder, else cosine")
    ] = None,
    dtype: Annotated[
        Dtype | None, option(RULE, "How the rows are stored.", show_default="as in the folder, else float32")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Make a folder of segments hold the rows of a store: add what is new or has changed, delete what has gone.

    The folder changes in one step; after a kill run the same command again. Who has loaded it keeps the rows that it
    had.
    """
    while True:
        with (
            one_line_errors("sync_corpus", "interrupted: the folder is as it was, or as the source is"),
            progress_bar(quiet, "rows", "opening the source", "comparing") as progress,
        ):
            found = offline.sync_corpus(
                source=source,
                to=to,
                vector_column=vector_column,
                id_column=id_column,
                bias_column=bias_column,
                group_column=group_column,
                cost_column=cost_column,
                metric=None if metric is None else metric.value,
                dtype=None if dtype is None else dtype.value,
                rows_per_segment=rows_per_segment,
                progress=progress,
            )
        print(found, flush=True)
        if every is None:
            return
        with one_line_errors("sync_corpus", "interrupted"):
            time.sleep(every)


@corpus.command()
def show(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of a corpus.")],
) -> None:
    """Print the segments of a folder, with their rows, how many of these are deleted, and bytes."""
    with one_line_errors("show"):
        found = described(folder)
    columns = ", ".join([found["metric"], found["dtype"], f"{found['dims']} dimensions", *found["columns"]])
    print(f"version {found['version']}: {columns}" if "version" in found else columns)
    numbers = ("rows", "deleted", "bytes")
    table: list[tuple[str, ...]] = [("segment", *numbers)]
    for part in (*found["segments"], {"name": f"all {len(found['segments'])}", **found}):
        table.append((part["name"], *(str(part[name]) for name in numbers)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *rest in table:
        print("  ".join([name.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]))


@corpus.command()
def verify(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of a corpus.")],
) -> None:
    """Read all files and compare their checksums; the exit code is 1 if anything is wrong."""
    with one_line_errors("verify"):
        found = problems(folder)
        if not found:
            rows = rk.Corpus.load(folder)
            print(f"right: {rows}")
            return
    for problem in found:
        print(problem)
    raise typer.Exit(1)
