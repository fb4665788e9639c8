"""A job of seven shards, an undisturbed run of it, and runs that end early."""

import dataclasses
import functools
import shutil
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from job_files import at, contents, restate, write_inputs

from ragsys_kernels import offline
from ragsys_kernels.offline import sinks
from ragsys_kernels.offline._options import JobSpec
from ragsys_kernels.selection.request import Request

Q, SHARD, SHARDS = 1000, 150, 7
OPTIONS = {"k": 3, "shard_size": SHARD, "chunk_size": 40, "num_threads": 1}


class StoppedError(Exception):
    pass


def spec_of(*, method="mmr", k=6, **given):
    """The `JobSpec` of some arguments of `offline.select`."""
    own = {field.name for field in dataclasses.fields(JobSpec)}
    asked = {name: given.pop(name) for name in [*given] if name not in own}
    return JobSpec(request=Request(method, None, None, k, **{"lambda_d": None, "lambda_b": None, **asked}), **given)


@functools.cache
def _made():
    """A folder with the inputs of a job and its undisturbed result, of which each test has a copy."""
    kept = tempfile.TemporaryDirectory(prefix="jobs-")
    home = Path(kept.name)
    inputs = write_inputs(home, Q)
    offline.select(**inputs, **OPTIONS, out=home / "undisturbed")
    return kept


class Job:
    """The options of a job, its undisturbed result in the folder `done`, and the folder `out` of a test's own.

    `expected` are the files of the undisturbed run, by name.
    """

    def __init__(self, home):
        shutil.copytree(_made().name, home, dirs_exist_ok=True)
        inputs = {name: home / f"{name}.npy" for name in ("corpus", "queries", "candidates")}
        self.options = {**inputs, **OPTIONS}
        self.done, self.out = home / "undisturbed", home / "out"
        for name, path in inputs.items():
            restate(at(self.done, "_job.json"), set_("path", str(path), "inputs", name))
        self.expected = contents(self.done)

    def run(self, out=None, **changed):
        """Run the job, with other options where they are given."""
        return offline.select(**{**self.options, **changed}, out=self.out if out is None else out)

    def stop_after(self, shards, out=None, error=StoppedError, **changed):
        """Run the job until so many shards are done and the next one is begun, then let it fail."""

        def progress(done, total):
            if done > shards * SHARD:
                raise error

        with pytest.raises(error):
            self.run(out, progress=progress, **changed)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def set_(name, value, *place):
    """A function that sets an entry of what a manifest says."""

    def change(content):
        for part in place:
            content = content[part]
        content[name] = value

    return change


def rewritten(out, index, change):
    """A shard with other rows, of which the manifest has the right checksum."""
    path = out / f"part-{index:05d}.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    restate(at(out, "_job.json"), set_("sha256", sinks.Folder(out).digest(path.name), "shards", index))
