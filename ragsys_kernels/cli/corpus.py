"""The commands ``corpus build`` and ``corpus verify``: the folder of a corpus made of files, and checked."""

from __future__ import annotations

from typing import Annotated

import typer

import ragsys_kernels as rk

from .. import offline
from ..corpus.folder import problems
from ._app import COLUMNS, INPUT, RULE, Commands, app, one_line_errors, option
from .files import Dtype, Metric

corpus = Commands(help="Make the folder of a corpus from files, or check one.", no_args_is_help=True)
app.add_typer(corpus, name="corpus")


@corpus.command()
def build(
    corpus: Annotated[
        str,
        option(INPUT, "Vectors, of shape (N, D): a path or URL in any format that select takes.", metavar="FILE"),
    ],
    out: Annotated[str, option(INPUT, "Folder of the corpus, which Corpus.load maps.", metavar="DIR")],
    ids: Annotated[
        str | None,
        option(
            INPUT,
            "Id of each row, integers or strings.",
            metavar="FILE",
            show_default="the column id of --corpus, else row numbers",
        ),
    ] = None,
    bias: Annotated[str | None, option(INPUT, "Quality of each row, floats of shape (N,).", metavar="FILE")] = None,
    groups: Annotated[str | None, option(INPUT, "Group of each row, integers of shape (N,).", metavar="FILE")] = None,
    costs: Annotated[
        str | None, option(INPUT, "What it costs to pick each row, such as its tokens: numbers (N,).", metavar="FILE")
    ] = None,
    overwrite: Annotated[bool, option(INPUT, "Replace a saved corpus at --out.", "--overwrite")] = False,
    vector_column: Annotated[
        str | None, option(COLUMNS, "Column of the vectors.", show_default="the only float list")
    ] = None,
    id_column: Annotated[
        str | None,
        option(COLUMNS, "Column of the ids, in the file of --ids, else in that of --corpus.", show_default="id"),
    ] = None,
    bias_column: Annotated[
        str | None, option(COLUMNS, "Column of the bias, in the file of --bias, else in that of --corpus.")
    ] = None,
    group_column: Annotated[
        str | None, option(COLUMNS, "Column of the groups, in the file of --groups, else in that of --corpus.")
    ] = None,
    cost_column: Annotated[
        str | None, option(COLUMNS, "Column of the costs, in the file of --costs, else in that of --corpus.")
    ] = None,
    metric: Annotated[
        Metric, option(RULE, "Similarity of vectors: cosine normalises them, dot takes them as they are.")
    ] = Metric.cosine,
    dtype: Annotated[Dtype, option(RULE, "How the rows are stored.")] = Dtype.float32,
) -> None:
    """Write vectors with their ids, bias, groups and costs as one folder, which is loaded in about a millisecond.

    The folder appears whole or not at all. With --overwrite it takes the place of a saved corpus in one step: what is
    loaded meanwhile is the old one or the new one.
    """
    with one_line_errors("build_corpus"):
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
            )
        )


@corpus.command()
def verify(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder that Corpus.save wrote.")],
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
