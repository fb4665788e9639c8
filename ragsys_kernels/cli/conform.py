"""The command ``conform``: which MMR a function or a service is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import conformance
from .._base.files import check_local, first_line, replacing
from ..conformance.report import mark
from ._app import INPUT, RUN, app, one_line_errors, option

CALL = "How it is called"


class Format(str, Enum):
    text = "text"
    md = "md"
    json = "json"


Adapter = Enum("Adapter", {name: name for name in conformance.ADAPTERS}, type=str)  # type: ignore[misc]


@app.command()
def conform(
    function: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:NAME",
            help="A function of a query (or scores), vectors, k and a weight, or the class of a store or a ranker.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None, option(INPUT, "A service that speaks our /v1/select, instead of a function.", metavar="URL")
    ] = None,
    corpus: Annotated[
        str | None,
        option(INPUT, "The service's corpus of --vectors.", metavar="NAME", show_default="the only one it has"),
    ] = None,
    token_file: Annotated[
        Path | None, option(INPUT, "File with the service's token in its first line.", metavar="FILE")
    ] = None,
    vectors: Annotated[
        Path | None,
        option(INPUT, "Write the rows of all sets as .npy for a service to load, and ask nothing.", metavar="FILE"),
    ] = None,
    overwrite: Annotated[bool, option(INPUT, "Replace an existing file at --vectors.")] = False,
    form: Annotated[
        Format, option(INPUT, "A table, Markdown, or JSON.", "--format", case_sensitive=False)
    ] = Format.text,
    adapter: Annotated[Adapter, option(CALL, "Kind of call; auto finds out.")] = Adapter.auto,  # type: ignore[attr-defined]
    argument: Annotated[
        list[str] | None,
        option(
            CALL,
            "Which parameter is the query, rows, scores, k, weight, ids, shown or offset, if names do not say it.",
            metavar="ROLE=NAME",
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        option(CALL, "A further argument of the call; the value is JSON, or a text.", "--option", metavar="NAME=VALUE"),
    ] = None,
    evidence: Annotated[
        bool,
        option(RUN, "Show the sets that tell, with the picks that each variant makes.", "--evidence/--no-evidence"),
    ] = True,
) -> None:
    """Tell which MMR a function or a service is.

    It is asked to pick out of a few dozen designed vector sets that the variants of MMR answer differently. The exit
    code is 0 if it is MMR as Carbonell and Goldstein published it (SIGIR 1998), 1 if not, 2 if it could not be
    called.
    """
    with _status(), one_line_errors("conform", "interrupted"):
        if sum(x is not None for x in (function, url, vectors)) != 1:
            raise ValueError("conform: one of MODULE:NAME, --url and --vectors must be given")
        _check_companions(
            ("--url", url, {"--corpus": corpus, "--token-file": token_file}),
            ("--vectors", vectors, {"--overwrite": overwrite}),
            ("MODULE:NAME", function, {
                "--adapter": adapter is not Adapter.auto, "--argument": argument, "--option": options,  # type: ignore[attr-defined]
            }),
        )  # fmt: skip
        if vectors is not None:
            from ..offline.text_files import check_out  # takes pyarrow, which other calls do not need

            check_local("conform", "vectors", vectors)
            check_out("conform", vectors, vectors, vectors.parent, overwrite, "vectors")
            rows = conformance.vectors()
            with replacing(vectors) as file:
                np.save(file, rows)
            print(f"{len(rows)} rows of {rows.shape[1]} -> {vectors}")
            return
        if url is not None:
            if token_file is not None:
                check_local("conform", "token_file", token_file)
            token = None if token_file is None else first_line(token_file)
            report = conformance.conform_service(url, corpus=corpus, token=token)
        else:
            assert function is not None
            if "" not in sys.path:
                sys.path.insert(0, "")  # a function of the folder that the command is run in
            values = {name: _value(text) for name, text in _pairs(options).items()}
            kind = adapter.value
            report = conformance.conform(function, adapter=kind, arguments=_pairs(argument), options=values)
        _show(report, form, evidence)
    raise typer.Exit(0 if report.textbook else 1)


@contextmanager
def _status() -> Iterator[None]:
    """End with 2 where other commands end with 1: 1 is an answer here."""
    try:
        yield
    except typer.Exit as end:
        raise typer.Exit(2 if end.exit_code == 1 else end.exit_code) from None


def _pairs(given: list[str] | None) -> dict[str, str]:
    found = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise ValueError(f"conform: argument and option must be NAME=VALUE, got {each!r}")
        found[name] = value
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _show(report: conformance.Report, form: Format, evidence: bool) -> None:
    if form is Format.json:
        print(json.dumps(report.as_dict(), ensure_ascii=False, indent=1))
    elif form is Format.md:
        print(report.to_markdown(), end="")
    else:
        _print(report, evidence)


def _check_companions(*called: tuple[str, object, dict[str, object]]) -> None:
    """Refuse options of another way to call than the one that is given."""
    for way, given, options in called:
        for name in (name for name, value in options.items() if value and given is None):
            raise ValueError(f"conform: {name} must come with {way}, got {name} alone")


def _print(report: conformance.Report, evidence: bool) -> None:
    console = Console()
    table = Table(title=f"{report.target} ({report.adapter})", title_justify="left", show_lines=evidence)
    for name in ("Respect", "What it does", "MMR", *(["Evidence"] if evidence else [])):
        table.add_column(name, overflow="fold")
    styles = {True: "green", False: "bold red", None: ""}
    for each in report.findings:
        cells = [Text(each.title), Text(each.says, styles[each.textbook]), Text(mark(each.textbook))]
        table.add_row(*cells, *([Text("\n".join(map(str, each.evidence)))] if evidence else []))
    console.print(table)
    console.print(Text(report.verdict, "bold"))
    console.print(Text(f"{conformance.DEFINITION}. {conformance.SOURCE}."))
