"""Jobs that are refused: other options or inputs, and a folder that another process works on."""

import os
import subprocess
import sys

import numpy as np
import pytest
from job_files import contents
from jobs import spec_of

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels._base import lock as _lock
from ragsys_kernels.offline import _worker


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"k": 4}, "with k 3, now 4$"),
        ({"method": "vrsd"}, "with method mmr, now vrsd; lambda_d 0.75, now none; lambda_b 0.95, now none$"),
        ({"lambda_d": 0.5, "dtype": "float16"}, "with lambda_d 0.75, now 0.5; dtype float32, now float16$"),
        ({"shard_size": 10}, "with shard_size 150, now 10$"),
        ({"backend": "reference"}, "with backend cpu, now reference; instruction_set .*"),
        (
            {"candidates": None, "pool": 6},
            "with pool none, now 6; column certified none, now bool; candidates .*candidates.npy, now none$",
        ),
        ({"fingerprint": "full"}, "with fingerprint sampled, now full$"),
        ({"bad_rows": "skip"}, "with bad_rows none, now skip$"),
    ],
    ids=str,
)  # fmt: skip
def test_other_options_are_refused(job, changed, match):
    with pytest.raises(ValueError, match=r"select: out must hold a job of the same inputs, options.*" + match):
        job.run(job.done, **changed)
    assert contents(job.done) == job.expected


def test_other_version_is_refused(job, monkeypatch):
    monkeypatch.setattr(rk, "__version__", "99.0")
    with pytest.raises(ValueError, match=r"with version \d.*, now 99\.0$"):
        job.run(job.done)


def test_other_instruction_set_is_refused(job, monkeypatch):
    monkeypatch.setenv("RAGSYS_KERNELS_ISA", "base")
    with pytest.raises(ValueError, match=r"with instruction_set avx\d+, now base$"):
        job.run(job.done)
    spec = spec_of(corpus=job.options["corpus"], queries=job.options["queries"], instruction_set="avx1024")
    with pytest.raises(ValueError, match="instruction_set must be that of the job, avx1024, got base"):
        _worker.Worker(spec)


def keep_time(path, content):
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("name", ["corpus", "queries", "candidates"])
def test_changed_input_is_refused(tmp_path, job, name):
    array = np.load(job.options[name])
    array[-1] = array[0]
    np.save(tmp_path / "other.npy", array)
    keep_time(job.options[name], (tmp_path / "other.npy").read_bytes())
    with pytest.raises(ValueError, match=rf"with sha256 of {name} {name}\.npy \w+, now \w+$"):
        job.run(job.done)


def test_touched_input_is_another_one_by_samples_and_the_same_by_its_content(tmp_path, job):
    job.run(tmp_path / "full", fingerprint="full")
    whole = contents(tmp_path / "full")
    os.utime(job.options["queries"], (1, 1))
    with pytest.raises(ValueError, match=r"with mtime_ns of queries queries\.npy \d+, now 1000000000$"):
        job.run(job.done)
    for fingerprint in (None, "full"):  # as the job began
        assert job.run(tmp_path / "full", fingerprint=fingerprint).selected == 0
    assert contents(tmp_path / "full") == whole


def test_moved_input_is_the_same_one(tmp_path, job):
    (tmp_path / "elsewhere").mkdir()
    moved = {}
    for name in ("corpus", "queries", "candidates"):
        moved[name] = job.options[name].rename(tmp_path / "elsewhere" / f"moved-{name}.npy")
    assert job.run(job.done, **moved).selected == 0
    assert contents(job.done) == job.expected


def test_input_that_changes_meanwhile_is_refused(job):

    def progress(done, total):
        if done == total:
            os.utime(job.options["queries"], (1, 1))

    with pytest.raises(ValueError, match="inputs must not change while the job runs, got mtime_ns of queries"):
        job.run(progress=progress)
    assert not offline.status(job.out).complete


def test_input_that_is_cut_short_meanwhile_is_an_error(job):
    """Not a bus error, which would end the process."""
    content = job.options["queries"].read_bytes()

    def progress(done, total):
        os.truncate(job.options["queries"], len(content) // 2)

    with pytest.raises(ValueError, match=r"queries\.npy must keep its rows while it is read"):
        job.run(progress=progress)
    assert not offline.status(job.out).complete


def test_shard_that_misses_rows_is_not_put_in_its_place(job, monkeypatch):
    pieces = _worker.Worker._pieces

    def short(self, start, stop):
        yield from list(pieces(self, start, stop))[:-1]

    monkeypatch.setattr(_worker.Worker, "_pieces", short)
    with pytest.raises(ValueError, match=r"^select: queries must keep their rows while they are read, got .*queries"):
        job.run()
    assert offline.status(job.out).shards == offline.status(job.out).num_shards - 1


# --- one process at a time ----------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from ragsys_kernels._base.lock import locked

with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_second_process_is_refused_until_the_first_dies(job):
    out = job.done
    command = [sys.executable, "-c", HOLD, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(OSError, match=rf"out must not be in use, got .*, in use by process {process.pid} on "):
            job.run(out)
        assert offline.status(out).owner.startswith(f"process {process.pid} on ")
        process.kill()
        process.wait()
        assert (out / ".lock").exists()
        assert offline.status(out).owner is None
        assert job.run(out).complete
    assert contents(out) == job.expected


@pytest.mark.parametrize("link", [os.symlink, os.link, lambda _, path: os.mkfifo(path), lambda _, path: os.mkdir(path)])
def test_lock_that_is_a_link_is_not_followed(tmp_path, job, link):
    """Who owns the folder is written into its lock: through a link, over a file that is somewhere else."""
    elsewhere, lock = tmp_path / "elsewhere", job.done / ".lock"
    elsewhere.write_text("precious")
    link(elsewhere, lock)
    with pytest.raises(FileExistsError, match=r"^select: out must have its lock as a file.* got .*undisturbed/\.lock$"):
        _lock.locked(job.done).__enter__()
    with pytest.raises(FileExistsError, match=r"^select: out must have (its lock as a file|files under a job's names)"):
        job.run(job.done)
    assert elsewhere.read_text() == "precious"
    assert offline.status(job.done).owner is None
    (lock.rmdir if lock.is_dir() else lock.unlink)()
    assert contents(job.done) == job.expected


def test_lock_of_a_removed_file_is_not_the_folders(tmp_path, monkeypatch):
    """Who opened the file before its owner removed it does not own the folder beside the next one."""
    opened, opens = [], os.open

    def open_too_late(path, *arguments):
        opened.append(opens(path, *arguments))
        if len(opened) == 1:
            os.unlink(path)
        return opened[-1]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_too_late)
        owned = _lock.locked(tmp_path)
        owned.__enter__()
    with pytest.raises(BlockingIOError, match="must not be in use"), _lock.locked(tmp_path):
        pass
    owned.__exit__(None, None, None)
    assert (len(opened), os.listdir(tmp_path)) == (2, [])
