"""The command ``corpus verify``: whether the folder of a saved corpus is as it was saved."""

from __future__ import annotations

from typing import Annotated

import typer

import ragsys_kernels as rk

from ..corpus.folder import problems
from ._app import Commands, app, one_line_errors

corpus = Commands(help="Check the folder of a saved corpus.", no_args_is_help=True)
app.add_typer(corpus, name="corpus")


@corpus.callback()
def _group() -> None:  # else the only command would be the group itself
    pass


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
