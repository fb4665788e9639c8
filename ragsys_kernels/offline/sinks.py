"""Output folder: Parquet shards and a description, which appear all together or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_ROW_GROUP = 1 << 14  # rows; fixed, so that the shards' bytes do not depend on the chunk size
_JOB_FILE = "_job.json"  # readers of a whole folder of Parquet files skip names that begin with _
_SHARD_FILE = re.compile(r"part-\d{5,}\.parquet")


def check_free(out: Path, overwrite: bool) -> None:
    """Refuse an output folder that holds anything, or with `overwrite` anything but an earlier job's files."""
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise FileExistsError(f"select: out must be a folder, got the file {out}")
    if out.is_mount():  # the finished folder is renamed into place, which a mount point does not allow
        raise ValueError(f"select: out must not be a mount point, got {out}; name a folder inside it")
    names = sorted(path.name for path in out.iterdir())
    if names and not overwrite:
        raise FileExistsError(f"select: out must be empty or new, or overwrite be given, got {out} with {names[0]}")
    foreign = [name for name in names if name != _JOB_FILE and not _SHARD_FILE.fullmatch(name)]
    if names and (foreign or _JOB_FILE not in names):
        raise FileExistsError(
            f"select: out must hold only an earlier job's files to be overwritten, got {out} with "
            f"{foreign[0] if foreign else 'shards but no ' + _JOB_FILE}"
        )


class ShardSink:
    """Write tables into shards of `shard_size` rows, in a staging folder beside `out` that `finish` puts in its place.

    Leaving the ``with`` block without `finish` removes everything that was written; what was at `out` stays.
    """

    def __init__(self, out: Path, schema: pa.Schema, shard_size: int, overwrite: bool) -> None:
        check_free(out, overwrite)
        self._out, self._schema, self._shard_size, self._overwrite = out, schema, shard_size, overwrite
        self._staging = out.parent / f".{out.name}.{uuid.uuid4().hex[:12]}.partial"
        self._shard: _Shard | None = None
        self._pending = schema.empty_table()
        self.shards: list[dict[str, Any]] = []

    def __enter__(self) -> ShardSink:
        self._new_parents = [parent for parent in self._out.parents if not parent.exists()]
        try:
            self._staging.mkdir(parents=True)
        except OSError as error:
            self._discard()
            raise OSError(
                f"select: out must be a folder that can be made, got {self._out}: {error.strerror}"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._staging.exists():
            self._discard()

    def write(self, table: pa.Table) -> None:
        """Add rows; they reach the disk a row group at a time."""
        self._pending = pa.concat_tables([self._pending, table])
        while self._pending.num_rows >= self._room():
            self._write_group(self._room())

    def finish(self, description: dict[str, Any]) -> None:
        """Write the rest and the description, then put the folder in its place."""
        if self._pending.num_rows:
            self._write_group(self._pending.num_rows)
        self._end_shard()
        with open(self._staging / _JOB_FILE, "w", encoding="utf-8") as file:
            json.dump({**description, "shards": self.shards}, file, indent=2, ensure_ascii=False)
            file.write("\n")
            _sync(file.fileno())
        sync_folder(self._staging)
        self._put_in_place()
        sync_folder(self._out.parent)

    def _room(self) -> int:
        written = self._shard.rows if self._shard else 0
        return min(_ROW_GROUP, self._shard_size - written)

    def _write_group(self, rows: int) -> None:
        if self._shard is None:
            self._shard = _Shard(self._staging / f"part-{len(self.shards):05d}.parquet", self._schema)
        self._shard.write(self._pending.slice(0, rows))
        # A copy, so that the rows just written are freed.
        self._pending = self._pending.slice(rows).combine_chunks()
        if self._shard.rows == self._shard_size:
            self._end_shard()

    def _end_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
            self.shards.append({"file": self._shard.path.name, "rows": self._shard.rows})
            self._shard = None

    def _put_in_place(self) -> None:
        check_free(self._out, self._overwrite)  # once more: another process may have used the folder meanwhile
        if not self._out.exists() or not any(self._out.iterdir()):
            self._staging.rename(self._out)
            return
        old = self._staging.with_suffix(".old")
        self._out.rename(old)
        try:
            self._staging.rename(self._out)
        except BaseException:
            old.rename(self._out)
            raise
        shutil.rmtree(old)

    def _discard(self) -> None:
        if self._shard is not None:
            self._shard.abandon()
        shutil.rmtree(self._staging, ignore_errors=True)
        for parent in self._new_parents:
            with suppress(OSError):  # not ours, or in use by now
                parent.rmdir()


class _Shard:
    """One Parquet file being written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.rows = path, 0
        self._file = open(path, "wb")  # noqa: SIM115 (closed by close or abandon)
        self._writer = pq.ParquetWriter(self._file, schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.rows += table.num_rows

    def close(self) -> None:
        self._writer.close()
        self._file.flush()
        _sync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Close after an error, whose cause (a full disk) makes closing fail too."""
        with suppress(Exception):
            self._writer.close()
        self._writer.is_open = False  # else the writer's destructor tries again, and prints
        with suppress(OSError):
            self._file.close()


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
