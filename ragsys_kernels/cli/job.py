"""The commands ``job status`` and ``job verify``: how far a job is, and whether its files are right."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import offline
from .._base.checks import counted
from ._app import Commands, app, one_line_errors

job = Commands(help="Show how far a job is, or check its files.", no_args_is_help=True)
app.add_typer(job, name="job")

_Folder = Annotated[str, typer.Argument(metavar="DIR", help="Folder or URL that select was given as --out.")]


@job.command()
def status(folder: _Folder) -> None:
    """Print how much is done, what is missing, and whether a process works on it; files are not read."""
    with one_line_errors("status"):
        print(offline.status(folder))


@job.command()
def verify(folder: _Folder) -> None:
    """Read all files and check checksums, schema, numbers of rows, and that no query is missing or occurs twice.

    The exit code is 1 if anything is wrong. Damaged and missing files are made again when select is run again.
    """
    with one_line_errors("verify"):
        found = offline.verify(folder)
        if not found:
            state = offline.status(folder)
            print(f"right: {counted(state.queries, 'query', 'queries')} in {counted(state.shards, 'shard')}")
            return
    for problem in found:
        print(problem)
    raise typer.Exit(1)
