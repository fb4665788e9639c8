"""The output folder of a job that begins: whose it is, what is done already, and what it is left with in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from .._base import warn
from .._base.lock import LOCK_FILE
from ._manifest import (
    Manifest,
    ShardRecord,
    differences,
    errors_names,
    foreign,
    shard_names,
)
from .sinks import JOB_FILE, Folder


def check_folder(folder: Folder, overwrite: bool) -> None:
    """Refuse an output folder that holds anything but a job's files."""
    folder.check()
    names = folder.names()
    others = foreign(names)
    if overwrite and others:
        raise FileExistsError(
            f"select: out must hold only an earlier job's files to be overwritten, got {folder} with {others[0]}"
        )
    if JOB_FILE not in names and (others or shard_names(names)):
        raise FileExistsError(
            f"select: out must be empty, new or an earlier job's folder, got {folder} with "
            f"{others[0] if others else f'shards but no {folder.job_file}'}"
        )
    strange = sorted(set(folder.strange()) - set(others))
    if strange:
        raise FileExistsError(
            f"select: out must have files under a job's names, no folders or links, got {folder} with {strange[0]}"
        )


@contextmanager
def owned(folder: Folder) -> Iterator[None]:
    """Keep other processes out of the folder, made if need be; one that stays empty is removed again."""
    new = folder.make()
    try:
        with folder.locked():
            if folder.path in new:  # its user has removed the folder, not what is beside it
                _clear(folder, JOB_FILE)
            folder.remove_unfinished()
            yield
    finally:
        folder.unmake(new)


def continued(before: Manifest, now: dict[str, Any], folder: Folder, on_error: str) -> dict[int, ShardRecord]:
    """Return the shards that are done and whole; refuse a job other than the one given."""
    found = differences(before.description, now)
    if found:
        raise ValueError(
            f"select: out must hold a job of the same inputs, options and version to resume, or overwrite be given, "
            f"got {folder} with {'; '.join(found)}"
        )
    unknown = before.unknown(folder.names())
    if unknown:
        raise FileExistsError(f"select: out must hold only shards of its job to resume, got {folder} with {unknown[0]}")
    done = {}
    for name in before.damaged:
        warn.warn(f"select: {name} is damaged in {folder}; what it recorded is made again", UserWarning)
    for index, record in before.shards.items():
        damage = record.damage(folder)
        if damage is None:
            done[index] = record
        else:
            warn.warn(f"select: {damage} in {folder}; the shard is made again", UserWarning)
    skipped = sum(record.skipped for record in done.values())
    if skipped and on_error == "raise":
        raise ValueError(f"select: on_error must be 'skip' to resume where queries were skipped, got {skipped} of them")
    return done


@contextmanager
def begun(manifest: Manifest, folder: Folder, new: bool) -> Iterator[None]:
    """Write down what the job is, and at the end how far it came; a new job without a shard leaves nothing."""
    manifest.content()  # what cannot be written down is an error while the earlier result still stands
    if new:
        _clear(folder, *([JOB_FILE] if folder.has_moved else []))
    for index, name in errors_names(folder.names()).items():
        if index not in manifest.shards:  # the shard is made again, and may have none
            folder.remove(name)
    manifest.write(folder)
    try:
        yield
        if manifest.shards or not new:
            replace(manifest, complete=len(manifest.shards) == manifest.num_shards).write(folder)
    finally:
        if new and not manifest.shards:  # else shards have their records: after an error the disk may be full
            _clear(folder, JOB_FILE)


def _clear(folder: Folder, *last: str) -> None:
    """Remove an earlier job's files, its manifest in the end if at all: without it the rest would be nobody's."""
    names = [name for name in folder.names() if name not in (JOB_FILE, LOCK_FILE)]
    for name in names:
        folder.remove(name)
    if names:  # for good, before another manifest is written
        folder.sync()
    for name in last:
        folder.remove(name)
