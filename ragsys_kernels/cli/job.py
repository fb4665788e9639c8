"""The commands ``job status`` and ``job verify``: what there is in the folder of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from ragsys_kernels import offline
from ragsys_kernels.cli._app import Commands, app, one_line_errors

job = Commands(help="Look at the folder of a job: how far it is, whether its files are right.", no_args_is_help=True)
app.add_typer(job, name="job")

_Folder = Annotated[str, typer.Argument(metavar="DIR", help="Folder or URL that select was given as --out.")]


@job.command()
def status(folder: _Folder) -> None:
    """Print how much is done, what is missing, and whether a process works on it. Files are not read."""
    with one_line_errors("status"):
        print(offline.status(folder))


@job.command()
def verify(folder: _Folder) -> None:
    """Read all files: checksums, schema, numbers of rows, no gaps, nothing twice. Exit code 1 if anything is wrong.

    Damaged and missing files are made again when select is run again.
    """
    with one_line_errors("verify"):
        found = offline.verify(folder)
        if not found:
            state = offline.status(folder)
            print(f"right: {state.queries} queries in {state.shards} shard{'s' * (state.shards > 1)}")
            return
    for problem in found:
        print(problem)
    raise typer.Exit(1)
