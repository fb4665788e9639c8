"""The state of a job's folder, and whether its files are intact; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .._base.checks import counted
from .._base.types import PathLike
from ._manifest import (
    Manifest,
    ShardRecord,
    column_types,
    errors_file,
    fallen_short,
    foreign,
    proven,
    shard_file,
    totals,
)
from .sinks import JOB_FILE, Folder, folder_at


@dataclass(frozen=True)
class JobStatus:
    """How far a job is; as text, a few lines.

    ``done`` of its ``queries`` are in ``shards`` of the ``num_shards`` files; ``missing`` are the numbers of the other
    files. ``owner`` is the process that works on it, if one does. Of the queries that are done ``skipped`` could not be
    used, ``short`` others got fewer than k picks, and those of ``certified`` are proven to be the whole corpus's (None:
    not known). ``unmet`` queries lack picks of a group's minimum (None without ``min_per_group``). ``damaged`` are
    records of shards that cannot be read.
    """

    folder: Path | str
    version: str
    method: str
    k: int
    backend: str
    queries: int
    done: int
    skipped: int
    shards: int
    num_shards: int
    shard_size: int
    missing: tuple[range, ...]
    complete: bool
    owner: str | None
    short: int = 0
    certified: int | None = None
    unmet: int | None = None
    damaged: tuple[str, ...] = ()

    def __str__(self) -> str:
        missing = ", ".join(_files(run) for run in self.missing)
        return "\n".join(
            [
                f"{self.folder}: {self.method}, k={self.k}, backend {self.backend}, ragsys_kernels {self.version}",
                f"queries: {self.done} of {self.queries} done, {self.skipped} of them skipped"
                + fallen_short(self.short, self.k, self.unmet)
                + proven(self.certified, self.done - self.skipped),
                f"shards: {self.shards} of {self.num_shards}, {counted(self.shard_size, 'query', 'queries')} each",
                f"complete: {'yes' if self.complete else 'no'}" + (f", missing {missing}" if missing else ""),
                f"running: {self.owner or 'no'}",
                *([f"damaged: {', '.join(self.damaged)}"] if self.damaged else []),
            ]
        )


def status(folder: PathLike) -> JobStatus:
    """Say how far a job is, from what it wrote down; files are looked for, not read (see `verify`).

    Parameters
    ----------
    folder : path
        The job's `out`; what describes it is in ``OUT.job`` beside it.

    Returns
    -------
    JobStatus

    Raises
    ------
    FileNotFoundError, ValueError
        The folder is not a job's, or its manifest is damaged.
    """
    place, manifest = _read(folder, "status")
    names = set(place.names()) - set(place.strange())
    done = {index: record for index, record in manifest.shards.items() if record.file in names}
    described = manifest.description
    backend, instruction_set = described["backend"], described["instruction_set"]
    return JobStatus(
        folder=place.path,
        version=described["version"],
        method=described["options"]["method"],
        k=described["options"]["k"],
        backend=f"{backend} ({instruction_set})" if instruction_set else backend,
        queries=manifest.rows,
        **totals(done.values()),
        damaged=manifest.damaged,
        num_shards=manifest.num_shards,
        shard_size=manifest.shard_size,
        missing=tuple(_gaps(sorted(done), manifest.num_shards)),
        complete=manifest.complete and len(done) == manifest.num_shards,
        owner=place.owner(),
    )


def verify(folder: PathLike) -> list[str]:
    """Read all files of a job and return what is wrong with them; nothing if the result is whole.

    Checked are, for each shard, its checksum, its schema, its number of rows, and that its rows are the queries it
    should have (by their numbers, where the queries have no ids); that no shard is missing and no other exists; and
    the files of skipped queries.

    Parameters
    ----------
    folder : path
        The job's `out`; what describes it is in ``OUT.job`` beside it.

    Returns
    -------
    list of str
        One for each thing that is wrong.

    Raises
    ------
    FileNotFoundError, ValueError
        The folder is not a job's, or its manifest is damaged.
    """
    place, manifest = _read(folder, "verify")
    names, strange = place.names(), place.strange()
    found = [f"{name} is a folder or a link, not a file of the job" for name in strange if not foreign([name])]
    found += [f"{name} is damaged: its shard is not done" for name in manifest.damaged if name not in strange]
    for index in sorted(manifest.shards):
        found += _wrong(place, manifest, manifest.shards[index])
    for run in _gaps(sorted(manifest.shards), manifest.num_shards):
        first, last = manifest.shard(run.start).start, manifest.shard(run.stop - 1).stop - 1
        found.append(
            f"{_files(run)} {'is' if len(run) == 1 else 'are'} missing: queries {first} to {last} are not done"
        )
    found += [f"{name} is not of this job" for name in manifest.unknown(names) if name not in strange]
    if not found and not manifest.complete:
        found.append(f"{JOB_FILE} does not say that the job is complete: run it again to finish it")
    return found


def _wrong(folder: Folder, manifest: Manifest, record: ShardRecord) -> Iterator[str]:
    damage = record.damage(folder)
    if damage is not None:
        yield damage
        return
    rows, name = manifest.shard(record.index), record.file
    try:
        with folder.open(name) as source, pq.ParquetFile(source) as file:
            schema, expected = file.schema_arrow, manifest.description["schema"]
            right = column_types(schema) == expected and len(schema) == len(expected)
            if not right:
                got = ", ".join(f"{field.name}: {field.type}" for field in schema)
                yield f"{name} must have the columns {expected}, got {got}"
            if file.metadata.num_rows != record.rows:
                yield f"{name} must have {record.rows} rows, got {file.metadata.num_rows}"
            elif "query_ids" not in manifest.description["inputs"] and right:
                numbers = file.read(["query_id"])["query_id"].to_numpy()
                if not np.array_equal(numbers, np.arange(rows.start, rows.stop)):
                    yield f"{name} must have queries {rows.start} to {rows.stop - 1}, each once and in order"
        if record.errors_sha256 is not None:
            with folder.open(errors_file(record.index)) as source:
                skipped = pq.read_metadata(source).num_rows
            if skipped != record.skipped:
                yield f"{errors_file(record.index)} must have {record.skipped} rows, got {skipped}"
    except MemoryError:  # Arrow's is an ArrowException too
        raise
    except (pa.ArrowException, OSError) as error:
        yield f"{name} cannot be read: {error}"


def _read(folder: PathLike, op: str) -> tuple[Folder, Manifest]:
    place = folder_at(folder).of_job()
    manifest = Manifest.read(place, op)
    if manifest is None:
        raise FileNotFoundError(f"{op}: folder must be a job's, with a file {place.job_file}, got {folder}")
    return place, manifest


def _gaps(done: list[int], num_shards: int) -> Iterator[range]:
    for before, after in pairwise([-1, *done, num_shards]):
        if before + 1 < after:
            yield range(before + 1, after)


def _files(run: range) -> str:
    first, last = shard_file(run.start), shard_file(run.stop - 1)
    return first if len(run) == 1 else f"{first} to {last}"
