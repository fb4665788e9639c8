"""What a job's folder says of itself: the manifest, a record for each finished shard, fingerprints of the inputs.

``_job.json`` is written when a job begins and when it ends. In between each finished shard adds one small hidden file,
which costs the same however many there are; a file that a kill or a power failure damaged is a shard that is not done.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

import ragsys_kernels as rk
from ragsys_kernels.offline._lock import LOCK_FILE
from ragsys_kernels.offline._spec import Inputs, JobSpec, absolute, held, rule
from ragsys_kernels.offline.sinks import Folder

JOB_FILE = "_job.json"  # readers of a whole folder of Parquet files skip names that begin with _ or .
_FORMAT = 1
_SHARD = re.compile(r"part-(\d{5,})\.parquet")
_ERRORS = re.compile(r"_errors-\d{5,}\.parquet")
_OURS = re.compile(
    rf"{re.escape(JOB_FILE)}|{re.escape(LOCK_FILE)}|{_SHARD.pattern}|{_ERRORS.pattern}"
    r"|\.part-\d{5,}\.json|\..+\.partial"
)
# What a file is called and when it was written say nothing of a content that is known whole.
_NAMES, _TIMES = {"name"}, {"mtime_ns", "mtime", "etag"}


def shard_file(index: int) -> str:
    return f"part-{index:05d}.parquet"


def errors_file(index: int) -> str:
    return f"_errors-{index:05d}.parquet"


@dataclass(frozen=True)
class ShardRecord:
    """A finished shard: which rows of the queries it has, and the SHA-256 of its files."""

    index: int
    file: str
    first_row: int
    rows: int
    sha256: str
    skipped: int = 0
    errors_sha256: str | None = None

    def damage(self, folder: Folder) -> str | None:
        """Return what is wrong with the files, None if they are as they were written."""
        files = {self.file: self.sha256}
        if self.errors_sha256 is not None:
            files[errors_file(self.index)] = self.errors_sha256
        for name, digest in files.items():
            if not folder.is_file(name):
                return f"{name} is missing"
            if folder.digest(name) != digest:
                return f"{name} is damaged: its checksum is not the one it was written with"
        return None


@dataclass(frozen=True)
class JobFolder:
    """Where the shards of one job go. Records of another job, known by its key, are not this one's."""

    folder: Folder
    key: str

    def add(self, record: ShardRecord) -> None:
        """Record a finished shard; twice is once."""
        with self.folder.writing(_record_file(record.index), durable=False) as file:
            file.write(json.dumps({"job": self.key, **asdict(record)}).encode())

    def records(self) -> dict[int, ShardRecord]:
        """Return the shards recorded since the manifest was written."""
        found = {}
        for name in self.folder.names():
            if not re.fullmatch(r"\.part-\d{5,}\.json", name):
                continue
            try:
                content = json.loads(self.folder.read(name))
                if content.pop("job") == self.key:
                    record = ShardRecord(**content)
                    found[record.index] = record
            except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError):
                continue  # cut short by a power failure: not done
        return found

    def remove_records(self) -> None:
        for name in self.folder.names():
            if re.fullmatch(r"\.part-\d{5,}\.json", name):
                self.folder.remove(name)


@dataclass(frozen=True)
class Manifest:
    """The job's file: what the job is, and with `complete` that it is done, with all its shards."""

    description: dict[str, Any]
    complete: bool
    shards: dict[int, ShardRecord]

    @property
    def key(self) -> str:
        text = json.dumps(self.description, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def rows(self) -> int:
        return int(self.description["rows"])

    @property
    def shard_size(self) -> int:
        return int(self.description["shard_size"])

    @property
    def num_shards(self) -> int:
        return -(-self.rows // self.shard_size)

    def shard(self, index: int) -> range:
        """Return the rows of a shard."""
        return range(index * self.shard_size, min((index + 1) * self.shard_size, self.rows))

    @classmethod
    def read(cls, folder: Folder, op: str = "select") -> Manifest | None:
        """Return the manifest of the folder with all shards recorded; None if it has none."""
        if not folder.is_file(JOB_FILE):
            return None
        try:
            content = json.loads(folder.read(JOB_FILE))
            if content.pop("format") != _FORMAT:
                raise ValueError("of another format")
            complete, shards = content.pop("complete"), content.pop("shards")
            manifest = cls(content, complete, {item["index"]: ShardRecord(**item) for item in shards})
            if not {"rows", "shard_size", "options", "inputs"} <= set(content):
                raise ValueError("cut short")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{op}: {JOB_FILE} must be as a job wrote it, got {folder}: {error}") from error
        manifest.shards.update(JobFolder(folder, manifest.key).records())
        return manifest

    def write(self, folder: Folder) -> None:
        """Put the manifest in the place of an earlier one; its records are in it from then on."""
        content = {
            "format": _FORMAT,
            **self.description,
            "complete": self.complete,
            "shards": [asdict(self.shards[index]) for index in sorted(self.shards)],
        }
        with folder.writing(JOB_FILE) as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
        JobFolder(folder, self.key).remove_records()
        folder.sync()


def describe(spec: JobSpec, inputs: Inputs, schema: pa.Schema, fingerprint: str) -> dict[str, Any]:
    """Return what makes the job the one it is: version, inputs, the options that the result depends on."""
    options = {"k": spec.k, **rule(spec, inputs), **held(spec), **spec.columns()}
    if inputs.index is not None:  # which may find other rows in other batches
        options["chunk_size"] = spec.chunk_size
    return {
        "version": rk.__version__,
        "backend": spec.backend,
        "instruction_set": spec.instruction_set,
        "options": options,
        "fingerprint": fingerprint,
        "inputs": described(inputs, fingerprint),
        "rows": inputs.queries.rows,
        "shard_size": spec.shard_size,
        "schema": column_types(schema),
    }


def column_types(schema: pa.Schema) -> dict[str, str]:
    """Return the types as text; how Parquet calls what is in a list depends on the version of pyarrow."""
    return {
        field.name: f"list of {field.type.value_type}" if pa.types.is_list(field.type) else str(field.type)
        for field in schema
    }


def described(inputs: Inputs, fingerprint: str) -> dict[str, Any]:
    """Return what tells the inputs from others, by name."""
    return {
        name: {
            **column.identity(full=fingerprint == "full"),
            "path": os.fspath(absolute(column.path)),
            "rows": column.rows,
        }
        for name, column in inputs.opened().items()
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return how the job that is asked for differs from the one in the folder, old and new value of each."""
    found = [
        _changed(name, before.get(name), now.get(name))
        for name in ("version", "backend", "instruction_set", "fingerprint", "shard_size")
        if before.get(name) != now.get(name)
    ]
    old, new = before["options"], now["options"]
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            found.append(_changed(name, old.get(name), new.get(name)))
    if before["fingerprint"] != now["fingerprint"]:  # which cannot be compared
        return found
    return found + input_differences(before["inputs"], now["inputs"], full=now["fingerprint"] == "full")


def input_differences(before: dict[str, Any], now: dict[str, Any], full: bool) -> list[str]:
    """Return how inputs differ by what `described` says of them; `full` where that knows all of their content."""
    names = dict.fromkeys((*before, *now))
    return [text for name in names for text in _one_input(name, before.get(name), now.get(name), full)]


def _one_input(name: str, old: dict[str, Any] | None, new: dict[str, Any] | None, full: bool) -> list[str]:
    if old is None or new is None:
        return [_changed(name, old and old["path"], new and new["path"])]
    aside = _NAMES | (_TIMES if full else set())
    found = [
        _changed(f"{name}'s {key}", old.get(key), new.get(key))
        for key in dict.fromkeys((*old, *new))
        if key not in ("path", "files") and old.get(key) != new.get(key)
    ]
    before, now = old["files"], new["files"]
    if len(before) != len(now):
        return [*found, _changed(f"{name}'s number of files", len(before), len(now))]
    for one, other in zip(before, now, strict=True):
        found += [
            _changed(f"{key} of {name} {other['name']}", one.get(key), other.get(key))
            for key in dict.fromkeys((*one, *other))
            if key not in aside and one.get(key) != other.get(key)
        ]
    return found


def _changed(what: str, old: Any, new: Any) -> str:
    return f"{what} {'none' if old is None else old}, now {'none' if new is None else new}"


def foreign(names: Iterable[str]) -> list[str]:
    """Return the names that are not of a job's files."""
    return [name for name in names if not _OURS.fullmatch(name)]


def result_names(names: Iterable[str]) -> list[str]:
    """Return the shards and the files of skipped queries among the names."""
    return [name for name in names if _SHARD.fullmatch(name) or _ERRORS.fullmatch(name)]


def shard_names(names: Iterable[str]) -> dict[int, str]:
    """Return the shards among the names."""
    return {int(match[1]): name for name in names if (match := _SHARD.fullmatch(name))}


def _record_file(index: int) -> str:
    return f".part-{index:05d}.json"
