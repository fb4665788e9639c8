"""A job of seven shards, an undisturbed run of it, and runs that end early."""

import pyarrow.parquet as pq
import pytest
from job_files import contents, restate, write_inputs

from ragsys_kernels import offline
from ragsys_kernels.offline import sinks

Q, SHARD, SHARDS = 1000, 150, 7


class StoppedError(Exception):
    pass


class Job:
    """The options of a job, its undisturbed result in the folder `done`, and the folder `out` of a test's own.

    `expected` are the files of the undisturbed run, by name.
    """

    def __init__(self, home):
        self.options = {**write_inputs(home, Q), "k": 3, "shard_size": SHARD, "chunk_size": 40, "num_threads": 1}
        self.done, self.out = home / "undisturbed", home / "out"
        self.run(self.done)
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
    restate(out / "_job.json", set_("sha256", sinks.Folder(out).digest(path.name), "shards", index))
