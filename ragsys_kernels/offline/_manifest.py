"""The state of a job in its folder: the manifest, a record for each finished shard, fingerprints of the inputs.

``_job.json`` is written when a job begins and when it ends. In between, each finished shard adds one small hidden file,
so that its cost does not grow with their number. Each file ends with a checksum: what has the right one is what a job
wrote. A shard whose record is damaged counts as not done; a damaged manifest is refused, since nothing else describes
the job.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

import ragsys_kernels as rk

from .._base.checks import counted
from .._base.lock import LOCK_FILE
from ._options import JobSpec, absolute
from ._spec import Inputs, selection_options
from .sinks import JOB_FILE, Folder

_FORMAT = 2
_SHARD = re.compile(r"part-(\d{5,})\.parquet")
_ERRORS = re.compile(r"_errors-(\d{5,})\.parquet")
_RECORD = re.compile(r"\.part-\d{5,}\.json")
_OURS = re.compile(
    rf"{re.escape(JOB_FILE)}|{re.escape(LOCK_FILE)}|{_SHARD.pattern}|{_ERRORS.pattern}|{_RECORD.pattern}|\..+\.partial"
)
# Whatever a damaged file makes of its reader.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
# With fingerprints of the full content, names and times of files do not matter.
_NAMES, _TIMES = {"name"}, {"mtime_ns", "mtime", "etag"}


def shard_file(index: int) -> str:
    return f"part-{index:05d}.parquet"


def errors_file(index: int) -> str:
    return f"_errors-{index:05d}.parquet"


@dataclass(frozen=True)
class ShardRecord:
    """A finished shard: which rows of the queries it has, and the SHA-256 of its files.

    ``skipped`` queries could not be used, ``short`` others got fewer than k picks. The picks of ``certified`` are
    proven to be those of the whole corpus; None where that is not known. ``recall`` are the numbers of `Recall`.
    ``unknown`` candidate ids, which are not in the corpus, were left out; None if such ids are errors. The picks of
    ``unmet`` queries lack some of a group's minimum; None without ``min_per_group``.
    """

    index: int
    file: str
    first_row: int
    rows: int
    sha256: str
    skipped: int = 0
    short: int = 0
    errors_sha256: str | None = None
    certified: int | None = None
    recall: list[float] | None = None
    unknown: int | None = None
    unmet: int | None = None

    def damage(self, folder: Folder) -> str | None:
        """Return what is wrong with the files, None if they are as they were written."""
        files = {self.file: self.sha256}
        if self.errors_sha256 is not None:
            files[errors_file(self.index)] = self.errors_sha256
        for name, digest in files.items():
            if not folder.is_file(name):
                return f"{name} is missing"
            try:
                found = folder.digest(name)
            except OSError as error:
                return f"{name} cannot be read: {error.strerror or error}"
            if found != digest:
                return f"{name} is damaged: its checksum is not the one it was written with"
        return None


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job. Records with the key of another job are ignored."""

    folder: Folder
    key: str

    def add(self, record: ShardRecord) -> None:
        """Record a finished shard; twice is once."""
        with self.folder.writing(_record_file(record.index), durable=False) as file:
            file.write(sealed({"job": self.key, **asdict(record)}))

    def records(self) -> Iterator[tuple[str, ShardRecord | None]]:
        """Yield the shards recorded since the manifest was written, by the record's name; None for a damaged one."""
        for name in self.folder.names():
            if not _RECORD.fullmatch(name):
                continue
            try:
                content = unsealed(self.folder.read(name)) if self.folder.is_file(name) else {}
                if content.pop("job") != self.key:
                    continue
                record = ShardRecord(**content)
            except FileNotFoundError:  # the job has ended meanwhile
                continue
            except (*DAMAGE, OSError):
                yield name, None
            else:
                yield name, record if name == _record_file(record.index) else None

    def remove_records(self) -> None:
        for name in self.folder.names():
            if _RECORD.fullmatch(name):
                self.folder.remove(name)


@dataclass(frozen=True)
class Manifest:
    """The job's file: what the job is, and with `complete` that it is done, with all its shards.

    ``damaged`` are the names of records that cannot be read.
    """

    description: dict[str, Any]
    complete: bool
    shards: dict[int, ShardRecord]
    damaged: tuple[str, ...] = ()

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

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Return the names of results that are none of this job, as far as it has come."""
        names = list(names)
        found = [name for index, name in shard_names(names).items() if index >= self.num_shards]
        for index, name in errors_names(names).items():
            record = self.shards.get(index)
            if index >= self.num_shards or (record is not None and not record.skipped):
                found.append(name)
        return found

    def shard(self, index: int) -> range:
        """Return the rows of a shard."""
        return range(index * self.shard_size, min((index + 1) * self.shard_size, self.rows))

    def has(self, record: ShardRecord) -> bool:
        """Return whether a record is of a shard of this job: its file and rows are used as they are."""
        rows = self.shard(record.index)
        return (record.file, record.first_row, record.rows) == (shard_file(record.index), rows.start, len(rows))

    @classmethod
    def read(cls, folder: Folder, op: str = "select") -> Manifest | None:
        """Return the manifest of the folder with all shards recorded; None if it has none."""
        if not folder.is_file(JOB_FILE):
            return None
        try:
            content = unsealed(folder.read(JOB_FILE))
            complete, shards = content.pop("complete"), content.pop("shards")
            manifest = cls(content, complete, {item["index"]: ShardRecord(**item) for item in shards})
            if len(manifest.shards) != len(shards) or not all(map(manifest.has, manifest.shards.values())):
                raise ValueError("its shards are not those of its rows")
        except DAMAGE as error:
            reason = error if isinstance(error, ValueError) else f"it has not the fields that a job writes ({error!r})"
            raise ValueError(
                f"{op}: {JOB_FILE} must be as a job wrote it, or overwrite be given, got {folder}: {reason}"
            ) from error
        except OSError as error:
            raise OSError(f"{op}: {JOB_FILE} must be readable, got {folder}: {error.strerror or error}") from error
        return manifest._with_records(folder)

    def _with_records(self, folder: Folder) -> Manifest:
        """Return the manifest with the shards that were finished since."""
        found, damaged = dict(self.shards), []
        for name, record in JobFolder(folder, self.key).records():
            if record is not None and self.has(record):
                found[record.index] = record
            else:
                damaged.append(name)
        return replace(self, shards=found, damaged=tuple(damaged))

    def content(self) -> bytes:
        """Return the file's bytes."""
        shards = [asdict(self.shards[index]) for index in sorted(self.shards)]
        return sealed({**self.description, "complete": self.complete, "shards": shards})

    def write(self, folder: Folder) -> None:
        """Replace the manifest; it then contains the records, whose files are removed."""
        content = self.content()
        with folder.writing(JOB_FILE) as file:
            file.write(content)
        JobFolder(folder, self.key).remove_records()  # not before the manifest is on the disk, with its name
        folder.sync()


def describe(spec: JobSpec, inputs: Inputs, schema: pa.Schema, fingerprint: str) -> dict[str, Any]:
    """Return what identifies the job: version, inputs, and the options that the result depends on."""
    options = {"k": spec.request.k, **selection_options(spec, inputs), **inputs.held, **spec.columns()}
    options.update(spec.unusual())  # a job without such keeps its key
    if inputs.index is not None:  # which may find other rows in other batches
        options["chunk_size"] = spec.chunk_size
    return {
        "version": rk.__version__,
        "backend": spec.request.backend,
        "instruction_set": spec.instruction_set,
        "options": options,
        "fingerprint": fingerprint,
        "inputs": described(inputs, fingerprint),
        "rows": inputs.queries.rows,
        "shard_size": spec.shard_size,
        "schema": column_types(schema),
    }


def totals(records: Collection[ShardRecord]) -> dict[str, Any]:
    """Return the sums over some shards: queries done, skipped, with fewer picks; proven and unmet, None: not known."""
    done, skipped, short = (sum(getattr(each, name) for each in records) for name in ("rows", "skipped", "short"))
    return {
        "done": done,
        "skipped": skipped,
        "short": short,
        "certified": _sum([record.certified for record in records]),
        "unmet": _sum([record.unmet for record in records]),
        "shards": len(records),
    }


def _sum(counts: Collection[int | None]) -> int | None:
    """Return a sum, None if it is not known of all."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def fallen_short(short: int, k: int, unmet: int | None) -> str:
    """Return what a line says of queries that have not got the picks that were asked for."""
    text = f", {short} got fewer than {counted(k, 'pick')}" if short else ""
    return text + (f", {unmet} lack picks of min_per_group" if unmet else "")


def proven(count: int | None, of: int) -> str:
    """Return what a line says of the queries that are proven, of all that were answered; 100 % are all of them."""
    if count is None or not of:
        return ""
    share = min(round(100 * count / of), 100 if count == of else 99)
    return f", {share} % of queries proven equal to the whole corpus"


def column_types(schema: pa.Schema) -> dict[str, str]:
    """Return the types as text; how Parquet calls what is in a list depends on the version of pyarrow."""
    return {
        field.name: f"list of {field.type.value_type}" if pa.types.is_list(field.type) else str(field.type)
        for field in schema
    }


def described(inputs: Inputs, fingerprint: str) -> dict[str, Any]:
    """Return what identifies the inputs, by name."""
    known: dict[str, Any] = {}
    return {
        name: {
            **column.identity(fingerprint == "full", known),
            "path": os.fspath(absolute(column.path)),
            "rows": column.rows,
        }
        for name, column in inputs.opened().items()
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return how the given job differs from the one in the folder, old and new value of each."""
    names = ("version", "backend", "instruction_set", "fingerprint", "shard_size")
    found = _changes({name: before.get(name) for name in names}, {name: now.get(name) for name in names})
    found += _changes(before["options"], now["options"])
    found += _changes(before["schema"], now["schema"], "column ")
    if before["fingerprint"] != now["fingerprint"]:  # which cannot be compared
        return found
    return found + input_differences(before["inputs"], now["inputs"], full=now["fingerprint"] == "full")


def input_differences(before: dict[str, Any], now: dict[str, Any], full: bool) -> list[str]:
    """Return how inputs differ by what `described` says of them; `full` where that knows all of their content."""
    aside, found = _NAMES | (_TIMES if full else set()), []
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if old is None or new is None:
            found += _changes({name: old and old["path"]}, {name: new and new["path"]})
            continue
        found += _changes(old, new, f"{name}'s ", but={"path", "files"})
        files, others = old["files"], new["files"]
        if len(files) != len(others):
            found += _changes({"files": len(files)}, {"files": len(others)}, f"{name}'s number of ")
            continue
        for one, other in zip(files, others, strict=True):
            found += _changes(one, other, of=f" of {name} {other['name']}", but=aside)
    return found


def _changes(
    old: dict[str, Any], new: dict[str, Any], noun: str = "", of: str = "", but: Collection[str] = ()
) -> list[str]:
    """Return the entries that differ, in words: what, which value it had, and which it has now."""
    return [
        f"{noun}{name}{of} {'none' if old.get(name) is None else old[name]}, "
        f"now {'none' if new.get(name) is None else new[name]}"
        for name in dict.fromkeys((*old, *new))
        if name not in but and old.get(name) != new.get(name)
    ]


def foreign(names: Iterable[str]) -> list[str]:
    """Return the names that are not of a job's files."""
    return [name for name in names if not _OURS.fullmatch(name)]


def shard_names(names: Iterable[str]) -> dict[int, str]:
    """Return the shards among the names."""
    return {int(match[1]): name for name in names if (match := _SHARD.fullmatch(name))}


def errors_names(names: Iterable[str]) -> dict[int, str]:
    """Return the files of skipped queries among the names, by the number of the shard."""
    return {int(match[1]): name for name in names if (match := _ERRORS.fullmatch(name))}


def _record_file(index: int) -> str:
    return f".part-{index:05d}.json"


def sealed(content: dict[str, Any]) -> bytes:
    """Return the text of a file that tells whether it is whole."""
    content = {"format": _FORMAT, **content}
    digest = hashlib.sha256(_text(content)).hexdigest()
    return _text({**content, "checksum": digest})


def unsealed(text: bytes) -> dict[str, Any]:
    """Return what `sealed` was given; `ValueError` where one bit is another one."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it has no fields")
    known = content.pop("format", None)
    if known != _FORMAT:
        raise ValueError(f"it is of format {known}, not {_FORMAT}: of another version, or damaged")
    content.pop("checksum", None)
    if sealed(content) != text:
        raise ValueError("its checksum is not the one it was written with")
    return content


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"  # in ASCII: names of files may be any bytes
