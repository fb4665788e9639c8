"""The commands ``embed``, texts to vectors, and ``show``, picks beside their texts."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import offline
from ._app import INPUT, RUN, TEXTS, app, one_line_errors, option, run
from ._options import BAD_ROWS, Quiet
from ._takes import takes

_TEXT_COLUMN = option(TEXTS, "Column of the texts.")


class Format(str, Enum):
    table = "table"
    md = "md"
    csv = "csv"
    jsonl = "jsonl"


@app.command()
@takes(
    offline.embed,
    texts=Annotated[Path, option(INPUT, "File of texts: .parquet, .csv with a header, or .jsonl.")],
    model=option(
        INPUT,
        "Encoder: minilm or mpnet, a name of sentence-transformers, a folder, or the URL of an API with OpenAI's "
        "/embeddings.",
    ),
    out=Annotated[
        Path,
        option(INPUT, "The texts' columns and their vectors: a .parquet file or a folder; or .npy, vectors alone."),
    ],
    cache=Annotated[
        Path | None,
        option(
            INPUT,
            "File that keeps the vectors, also for later jobs.",
            show_default="a hidden file beside --out until the job is complete",
        ),
    ],
    bad_rows=BAD_ROWS,
    overwrite=option(INPUT, "Replace an existing file at --out."),
    text_column=_TEXT_COLUMN,
    vector_column=option(TEXTS, "Column of the vectors."),
    id_column=option(TEXTS, "Column of the ids, which stay as they are written.", show_default="id"),
    model_name=option(RUN, "Name of the model on the server.", show_default="needed with a URL"),
    batch_size=option(RUN, "Texts in a forward pass or a request.", metavar="N"),
    num_threads=option(RUN, "Number of torch's threads.", metavar="N", show_default="torch's own"),
)
def embed(quiet: Quiet = False, **given: Any) -> None:
    """Encode every text of a file: the vectors that select, compare and corpus build take.

    A job that was stopped is resumed when the same command is run again. Needs the extra encoders, but for a server.
    """
    bar = ("texts", "loading the model", "encoding")
    run("embed", quiet, bar, lambda progress: offline.embed(progress=progress, **given), noted=True)


@app.command()
@takes(
    offline.show,
    picks=Annotated[Path, typer.Argument(metavar="PICKS", help="Folder that select wrote, or a file of it.")],
    texts=Annotated[Path, option(INPUT, "File of the corpus' texts: .parquet, .csv with a header, or .jsonl.")],
    queries=Annotated[Path | None, option(INPUT, "File of the queries' texts.", show_default="ids of queries alone")],
    query=...,
    limit=option(INPUT, "Most queries.", metavar="N", show_default="all; 10 as a table"),
    text_column=_TEXT_COLUMN,
    id_column=option(TEXTS, "Column of the ids.", show_default="id, else row numbers"),
)
def show(
    query: Annotated[
        list[str] | None, option(INPUT, "Id of a query; may be given several times.", show_default="all queries")
    ] = None,
    format: Annotated[Format, option(RUN, "How the picks are written.")] = Format.table,
    **given: Any,
) -> None:
    """Show the picks of each query beside their texts, with relevance and redundancy; after select --nearest also which
    earlier pick each is like, numbered from 1 as the picks are, after --min-per-group also which groups lack picks."""
    with one_line_errors("show"):
        if given["limit"] is None and format is Format.table and not query:
            given["limit"] = 10
        found = offline.show(only=query or (), **given)
        _WRITERS[format](found)


def _table(picks: Sequence[offline.Pick]) -> None:
    console = Console()
    for query, some in groupby(picks, key=lambda pick: pick.query):
        rows = list(some)
        question = rows[0].question
        name = f"{query}" if question is None else f"{query}: {question}"
        title = Text(name + _unmet(rows[0]))  # no markup: these are others' texts
        table = Table(title=title, title_justify="left", expand=True)
        like = any(pick.nearest for pick in rows)
        for name in ("#", "relevance", "redundancy", *["like #"] * like):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("text", ratio=1)
        for pick in rows:
            numbers = [str(pick.rank), _number(pick.relevance), _number(pick.redundancy), *[_rank(pick.nearest)] * like]
            table.add_row(*numbers, Text(pick.text))
        console.print(table)


def _markdown(picks: Sequence[offline.Pick]) -> None:
    for query, some in groupby(picks, key=lambda pick: pick.query):
        rows = list(some)
        question = rows[0].question
        print(f"\n**{_cell(str(query))}** {_cell((question or '') + _unmet(rows[0]))}".rstrip())
        like = any(pick.nearest for pick in rows)
        print(f"\n| # | relevance | redundancy |{' like # |' * like} text |\n|---:|---:|---:|{'---:|' * like}---|")
        for pick in rows:
            near = f" {_rank(pick.nearest)} |" * like
            numbers = f"{pick.rank} | {_number(pick.relevance)} | {_number(pick.redundancy)}"
            print(f"| {numbers} |{near} {_cell(pick.text)} |")


def _unmet(pick: offline.Pick) -> str:
    lacking = ", ".join(f"{group}: {n}" for group, n in (pick.unmet or {}).items())
    return f" (groups that lack picks: {lacking})" if lacking else ""


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"  # a rule without redundancy, as VRSD


def _rank(rank: int | None) -> str:
    return "–" if rank is None else str(rank)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")


def _csv(picks: Sequence[offline.Pick]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(offline.Pick._fields)
    for pick in picks:
        unmet = pick.unmet and json.dumps(pick.unmet, ensure_ascii=False)
        writer.writerow({**pick._asdict(), "unmet": unmet}.values())


def _jsonl(picks: Sequence[offline.Pick]) -> None:
    for pick in picks:
        # JSON has no NaN, which rules without redundancy have.
        values = {name: None if value != value else value for name, value in pick._asdict().items()}
        print(json.dumps(values, ensure_ascii=False, allow_nan=False))


_WRITERS: dict[Format, Callable[[Sequence[offline.Pick]], None]] = {
    Format.table: _table,
    Format.md: _markdown,
    Format.csv: _csv,
    Format.jsonl: _jsonl,
}
