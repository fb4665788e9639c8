"""Damaged folders of jobs: `python tests/fuzz/fuzz_jobs.py --seed 1 --folders 2000`.

A case is drawn from (seed, number) alone: the folder of a job that is complete, or that was killed before its last
shard, with one to three things done to it. `status`, `verify` and `select` have to end in a documented error that
begins with their name, or in what is right: a status that the files bear out, nothing wrong in a folder that is as it
was written, the bytes of the undisturbed job. Nothing outside the folder is written, and `select` with `overwrite`
begins anew where no name is a stranger's."""

import functools
import json
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from fuzz_runs import Fuzzer, WrongError, ended, main
from job_files import contents, write_inputs

from ragsys_kernels import offline
from ragsys_kernels.offline import sinks

Q, SHARD, SHARDS = 100, 30, 4
OPTIONS = {"k": 3, "shard_size": SHARD, "chunk_size": 16, "num_threads": 1, "on_error": "skip"}
DOCUMENTED = (ValueError, OSError)
STRANGER = os.fsdecode(b"odd\xff.parquet")
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 10**30, 2**63, 1e30, float("nan"), "", "x", "../x", "/x", "\udcff", [], {}, [1],
    {"a": 1},
]  # fmt: skip


class Template(NamedTuple):
    inputs: dict[str, Path]
    whole: dict[str, bytes]
    stopped: dict[str, bytes]
    folder: Path


class _StoppedError(Exception):
    pass


@functools.cache
def template() -> Template:
    folder = Path(_kept().name)
    inputs = write_inputs(folder, Q)
    queries = np.load(inputs["queries"])
    queries[40] = np.nan  # of the second shard, which gets a file of skipped queries
    np.save(inputs["queries"], queries)

    def progress(done: int, total: int) -> None:
        if done > 3 * SHARD:
            raise _StoppedError

    offline.select(**inputs, **OPTIONS, out=folder / "whole")
    with suppress(_StoppedError):
        offline.select(**inputs, **OPTIONS, out=folder / "stopped", progress=progress)
    (folder / "x").write_bytes((folder / "whole" / "part-00001.parquet").read_bytes())
    return Template(inputs, contents(folder / "whole"), contents(folder / "stopped"), folder)


@functools.cache
def _kept() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="fuzz-jobs-")


class Case:
    """A folder, and what was done to it."""

    def __init__(self, seed: int, number: int) -> None:
        self.dice = random.Random(f"{seed} {number}")
        self.files = dict(self.dice.choice((template().whole, template().stopped)))
        self.done = ["a complete job" if ".part-00000.json" not in self.files else "a job that was killed"]
        self.strange: dict[str, str] = {}  # names that are no files, and what they are
        for _ in range(self.dice.choice((1, 1, 1, 2, 3))):
            self.dice.choice((
                self.flip, self.flip, self.flip, self.cut, self.remove, self.fill, self.copy, self.edit, self.edit,
                self.estrange, self.add,
            ))()  # fmt: skip
        self.inside = self.dice.random() < 0.3  # as an earlier version began it: all files in one folder

    def name(self, pattern: str = "") -> str | None:
        names = [name for name in sorted(self.files) if re.search(pattern, name)]
        return self.dice.choice(names) if names else None

    def flip(self) -> None:
        name = self.name()
        if name is not None and self.files[name]:
            content = bytearray(self.files[name])
            place, bit = self.dice.randrange(len(content)), self.dice.randrange(8)
            content[place] ^= 1 << bit
            self.put(name, bytes(content), f"bit {bit} of byte {place} flipped")

    def cut(self) -> None:
        name = self.name()
        if name is not None:
            length = self.dice.choice((0, self.dice.randrange(len(self.files[name]) + 1)))
            self.put(name, self.files[name][:length], f"cut to {length} bytes")

    def remove(self) -> None:
        name = self.name()
        if name is not None:
            del self.files[name]
            self.done.append(f"{name} removed")

    def fill(self) -> None:
        name = self.name()
        if name is not None:
            content = self.dice.choice((b"{}", b"[]", b"null", b"1", b"[" * 100_000, b"PAR1", self.dice.randbytes(50)))
            self.put(name, content, f"filled with {content[:20]!r}")

    def copy(self) -> None:
        source, target = self.name(), self.name()
        if source is not None and target is not None:
            self.put(target, self.files[source], f"filled with {source}")

    def edit(self) -> None:
        """Change what a file says, without its checksum."""
        name = self.name("json$")
        if name is not None:
            try:
                content = json.loads(self.files[name])
                self._odd(content)
            except (ValueError, AttributeError, RecursionError, TypeError):  # damaged before
                return
            self.put(name, json.dumps(content).encode(), self.said)

    def _odd(self, content: dict[str, Any]) -> None:
        """Put an odd value in the place of one, which may be deep, or remove it."""
        place, path = content, []
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                return
            key = self.dice.choice(keys)
            path.append(str(key))
            inner = place[key]
            if isinstance(inner, (dict, list)) and inner and self.dice.random() < 0.8:
                place = inner
                continue
            value = self.dice.choice([*ODD, inner + 1] if type(inner) is int else ODD)
            if self.dice.random() < 0.1:
                del place[key]
                self.said = f"says no {'.'.join(path)}"
            else:
                place[key] = value
                self.said = f"says {'.'.join(path)}: {value!r}"
            return

    said = "says the same"

    def estrange(self) -> None:
        """Put a folder, a link or a pipe in the place of a file, or under a name that a job may have."""
        name = self.dice.choice(
            [*sorted(self.files), ".x.0.partial", "_errors-00002.parquet", ".part-00003.json", ".lock"]
        )
        self.files.pop(name, None)
        self.strange[name] = self.dice.choice(("folder", "link", "pipe"))
        self.done.append(f"a {self.strange[name]} {name}")

    def add(self) -> None:
        name = self.dice.choice(
            ["part-00004.parquet", "part-99999999.parquet", "_errors-00000.parquet", ".part-00003.json", ".lock",
             ".part-00001.parquet.0123456789ab.partial", "notes.txt", STRANGER]
        )  # fmt: skip
        if name not in self.strange:
            self.put(name, self.dice.choice((b"", b"x", template().whole["part-00001.parquet"])), "added")

    def put(self, name: str, content: bytes, what: str) -> None:
        self.files[name] = content
        self.done.append(f"{name} {what}")

    def make(self, out: Path) -> None:
        folder = sinks.Folder(out, None if self.inside else beside(out))
        folder.make()
        for name, content in self.files.items():
            folder.at(name).write_bytes(content)
        for name, kind in self.strange.items():
            if kind == "folder":
                folder.at(name).mkdir()
            elif kind == "link":
                folder.at(name).symlink_to(template().folder / "x")
            else:
                os.mkfifo(folder.at(name))


def beside(out: Path) -> Path:
    return out.with_name(f"{out.name}.job")


def run_one(seed: int, number: int) -> int:
    case, made = Case(seed, number), template()
    out = made.folder / f"out-{seed}-{number}"
    case.make(out)
    elsewhere = (made.folder / "x").read_bytes()
    try:
        with warnings.catch_warnings(), mock.patch("os.fsync"):  # which takes most of the time
            warnings.simplefilter("ignore", UserWarning)  # of what is made again
            _judge(case, made, out)
        if (made.folder / "x").read_bytes() != elsewhere:
            raise WrongError("a file outside the folder is another one")
    finally:
        shutil.rmtree(out)
        shutil.rmtree(beside(out), ignore_errors=True)
    return 1


def _judge(case: Case, made: Template, out: Path) -> None:
    def right(found: dict[str, bytes]) -> bool:
        """Whether all files of the undisturbed job are there."""
        return all(found.get(name) == content for name, content in made.whole.items())

    state, _ = ended("status", lambda: offline.status(out), DOCUMENTED)
    if state is not None:
        str(state)
        gone = {number for run in state.missing for number in run}
        for number in set(range(SHARDS)) - gone:
            if not (out / f"part-{number:05d}.parquet").is_file():
                raise WrongError(f"status: shard {number} is not missing")
        if state.complete and gone:
            raise WrongError("status: the job is complete, with shards missing")
    wrong, _ = ended("verify", lambda: offline.verify(out), DOCUMENTED)
    if wrong == [] and not right(_files(out)):
        raise WrongError("verify: nothing is wrong")
    before = _files(out)
    summary, refused = ended("select", lambda: offline.select(**made.inputs, **OPTIONS, out=out), DOCUMENTED)
    if refused is None:
        if not summary.complete or not right(_files(out)):
            raise WrongError("select: ends without an error and another result")
        if offline.verify(out):
            raise WrongError(f"verify: after select {offline.verify(out)}")
        left = [name for name in _files(out) if name not in made.whole and name not in ("notes.txt", STRANGER)]
        if left:
            raise WrongError(f"select: leaves {left}")
        return
    if {name: before[name] for name in before if name.startswith("part-")} != _shards(out):
        raise WrongError(f"select: refuses, and shards are others: {refused}")
    _, why = ended("select", lambda: offline.select(**made.inputs, **OPTIONS, out=out, overwrite=True), DOCUMENTED)
    if why is None:
        if contents(out) != made.whole:
            raise WrongError("select: overwrites, and ends in another result")
    elif not case.strange and "_job.json" in case.files and not {"notes.txt", STRANGER} & set(case.files):
        raise WrongError(f"select: does not overwrite: {why}")


def _files(out: Path) -> dict[str, bytes]:
    places = [*out.iterdir(), *(beside(out).iterdir() if beside(out).exists() else ())]
    return {path.name: path.read_bytes() for path in places if path.is_file() and not path.is_symlink()}


def _shards(out: Path) -> dict[str, bytes]:
    return {name: content for name, content in _files(out).items() if name.startswith("part-")}


def describe(seed: int, number: int) -> str:
    return "; ".join(Case(seed, number).done)


FUZZER = Fuzzer(__file__, "folders", 2_000, run_one, describe)

if __name__ == "__main__":
    sys.exit(main(FUZZER, __doc__))
