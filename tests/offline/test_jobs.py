"""Jobs that resume: what is done is kept and checked, damage is found and made again."""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import fuzz_jobs
import fuzz_runs
import numpy as np
import pyarrow.parquet as pq
import pytest
from job_files import at, contents, restate
from jobs import SHARD, SHARDS, Q, StoppedError, flip, truncate

from ragsys_kernels import offline
from ragsys_kernels.offline import _manifest, sinks


@pytest.mark.parametrize(("shards", "chunk_size"), [(1, 333), (3, 1), (6, 40)])
def test_job_goes_on_to_the_same_bytes(job, shards, chunk_size, caplog):
    caplog.set_level(logging.INFO, "ragsys_kernels")
    out = job.out
    job.stop_after(shards)
    assert sorted(_manifest.shard_names(os.listdir(out))) == list(range(shards))
    assert not caplog.messages
    calls = []
    summary = job.run(out, chunk_size=chunk_size, num_threads=2, progress=lambda *call: calls.append(call))
    assert contents(out) == job.expected
    assert (summary.queries, summary.done, summary.selected) == (Q, Q, Q - shards * SHARD)
    assert summary.complete
    assert calls[0] == (shards * SHARD, Q)
    assert calls[-1] == (Q, Q)
    assert caplog.messages == [f"select: goes on from {shards * SHARD} of {Q} queries, done before in {out}"]
    assert f", {shards * SHARD} of {Q} done before" in str(summary)


def test_finished_job_is_checked_and_left(job, monkeypatch):
    out = job.done
    times = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    monkeypatch.setattr("ragsys_kernels.offline.job.Worker", None)  # no corpus is read
    summary = job.run(out)
    assert str(summary).startswith(f"nothing to do: all {Q} queries are done")
    assert (summary.selected, summary.complete, summary.rate) == (0, True, 0.0)
    assert contents(out) == job.expected
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == times


def test_killed_before_the_last_word_is_finished_without_work(job, monkeypatch):
    out = job.done
    restate(at(out, "_job.json"), lambda state: state.update(complete=False))
    monkeypatch.setattr("ragsys_kernels.offline.job.Worker", None)
    assert offline.verify(out) == ["_job.json does not say that the job is complete: run it again to finish it"]
    job.run(out)
    assert contents(out) == job.expected


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("finished", [True, False])
def test_damaged_shards_are_made_again(tmp_path, job, damage, finished):
    out = tmp_path / ("undisturbed" if finished else "out")
    if not finished:
        job.stop_after(5, out)
    damage(out / "part-00001.parquet")
    damage(out / "part-00003.parquet")
    assert [problem.split()[0] for problem in offline.verify(out)][:2] == ["part-00001.parquet", "part-00003.parquet"]
    with pytest.warns(UserWarning, match=r"part-0000[13]\.parquet is (missing|damaged)") as caught:
        summary = job.run(out)
    assert [Path(each.filename).name for each in caught] == ["jobs.py"] * 2  # where the job is called
    assert summary.selected == (2 if finished else 3) * SHARD + (0 if finished else Q - 6 * SHARD)
    assert contents(out) == job.expected
    assert offline.verify(out) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"job": "x"}'])
def test_damaged_record_is_a_shard_that_is_not_done(job, content):
    out = job.out
    job.stop_after(4)
    at(out, ".part-00002.json").write_bytes(content)
    state = offline.status(out)
    assert (state.missing, state.damaged) == ((range(2, 3), range(4, 7)), (".part-00002.json",))
    assert "\ndamaged: .part-00002.json" in str(state)
    assert offline.verify(out)[0] == ".part-00002.json is damaged: its shard is not done"
    with pytest.warns(
        UserWarning, match=r"\.part-00002\.json is damaged in .*; what it recorded is made again"
    ) as caught:
        assert job.run(out).selected == Q - 3 * SHARD
    assert Path(caught[0].filename).name == "jobs.py"
    assert contents(out) == job.expected


def each_call(job, out):
    return {
        "select": lambda: job.run(out),
        "verify": lambda: offline.verify(out),
        "status": lambda: offline.status(out),
    }


@pytest.mark.parametrize(("old", "new"), [
    (b'"rows": 1000', b'"rows": 1001'), (b'"index": 2', b'"index": 3'), (b'"file": "part', b'"file": "pArt'),
])  # fmt: skip
def test_one_flipped_bit_of_a_manifest_is_found(job, old, new):
    out = job.done
    assert old in job.expected["_job.json"]
    at(out, "_job.json").write_bytes(job.expected["_job.json"].replace(old, new, 1))
    for call in each_call(job, out).values():
        with pytest.raises(ValueError, match="its checksum is not the one it was written with"):
            call()
    job.run(out, overwrite=True)
    assert contents(out) == job.expected


@pytest.mark.parametrize(
    "shard", [None, {"index": 3}, {"file": "../part-00002.parquet"}, {"first_row": 1}, {"rows": "x"}]
)
def test_a_manifest_with_a_new_checksum_has_the_shards_of_its_rows(job, shard):
    said = json.loads(job.expected["_job.json"])
    del said["format"], said["checksum"]
    if shard is None:
        said["rows"] = "x"
    else:
        said["shards"][2].update(shard)
    at(job.done, "_job.json").write_bytes(_manifest.sealed(said))
    for call in each_call(job, job.done).values():
        with pytest.raises(ValueError, match=r"_job\.json must be as a job wrote it"):
            call()


def test_manifest_of_the_first_format_is_refused(job):
    out = job.done
    content = json.loads(job.expected["_job.json"])
    del content["checksum"]
    at(out, "_job.json").write_text(json.dumps({**content, "format": 1}, indent=2) + "\n")
    for call in each_call(job, out).values():
        with pytest.raises(ValueError, match=r"_job\.json must be .*: it is of format 1, not 2: of another version"):
            call()
    job.run(out, overwrite=True)
    assert contents(out) == job.expected


def test_what_killed_processes_left_is_removed(job):
    out = job.out
    job.stop_after(2)
    (out / ".part-00002.parquet.0123456789ab.partial").write_bytes(b"PAR1")
    (out / "part-00002.parquet").write_bytes(b"in its place, but without a record")
    job.run(out)
    assert contents(out) == job.expected


def test_records_of_another_job_do_not_count(tmp_path, job):
    """As a worker that outlived an overwritten job would leave them."""
    job.stop_after(4, tmp_path / "other")
    job.stop_after(1, k=2)
    for index in range(4):
        record = f".part-{index:05d}.json"
        at(job.out, record).write_bytes(at(tmp_path / "other", record).read_bytes())
    assert job.run(k=2).selected == Q


def test_killed_overwrite_can_be_run_again(job, monkeypatch):
    """Whatever of the earlier job is left, the folder is still a job's."""
    out = job.done
    removed = []

    def remove(folder, name):
        if len(removed) == 3:
            raise StoppedError
        removed.append(name)
        folder.at(name).unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(sinks.Folder, "remove", remove)
        with pytest.raises(StoppedError):
            job.run(out, k=2, overwrite=True)
    with pytest.raises(ValueError, match="k 3, now 2"):
        job.run(out, k=2)
    job.run(out, shard_size=10**6, overwrite=True)
    assert sorted(contents(out)) == ["_job.json", "part-00000.parquet"]
    with pytest.raises(ValueError, match="shard_size 1000000, now 150"):
        job.run(out)
    job.run(out, overwrite=True)
    assert contents(out) == job.expected


def test_shard_of_nobody_is_refused(job):
    (job.done / "part-00007.parquet").write_bytes(job.expected["part-00006.parquet"])
    with pytest.raises(FileExistsError, match=r"only shards of its job to resume.*part-00007\.parquet"):
        job.run(job.done)
    at(job.done, "_errors-00001.parquet").write_bytes(job.expected["part-00006.parquet"])
    assert sorted(offline.verify(job.done)) == [
        "_errors-00001.parquet is not of this job",
        "part-00007.parquet is not of this job",
    ]


def test_stop_ends_after_a_shard(tmp_path, job):
    out = job.out
    answers = iter([False, False, False, True])
    summary = job.run(out, stop=lambda: next(answers))
    assert (summary.complete, summary.done, summary.shards) == (False, 3 * SHARD, 3)
    assert f", stopped with {Q - 3 * SHARD} left" in str(summary)
    assert json.loads(at(out, "_job.json").read_bytes())["complete"] is False
    assert not offline.status(out).complete
    assert not [name for name in os.listdir(out) if name.startswith(".")]
    assert not job.run(tmp_path / "none", stop=lambda: True).complete
    assert not (tmp_path / "none").exists()
    job.run(out)
    assert contents(out) == job.expected
    assert json.loads(job.expected["_job.json"])["complete"] is True


def test_files_are_on_the_disk_before_what_they_replace_goes(job, monkeypatch):
    """Power may fail at any moment: a file is synced before it has its name, and the name of the manifest that holds
    the shards before their records are removed."""
    out, events = job.out, []
    job.stop_after(3, out)

    def noted(what, name, call):
        return lambda *given: (events.append(f"{what} {name(*given)}"), call(*given))[1]

    monkeypatch.setattr(Path, "replace", noted("name", lambda _, place: place.name, Path.replace))
    opened = lambda file: os.path.basename(os.readlink(f"/proc/self/fd/{file}"))  # noqa: E731
    monkeypatch.setattr(os, "fsync", noted("sync", opened, os.fsync))
    monkeypatch.setattr(sinks.Folder, "remove", noted("remove", lambda _, name: name, sinks.Folder.remove))
    job.run(out)
    for shard in range(3, SHARDS):
        place = events.index(f"name part-{shard:05d}.parquet")
        assert re.fullmatch(rf"sync \.part-{shard:05d}\.parquet\..*partial", events[place - 1])
    begun, ended = (place for place, event in enumerate(events) if event == "name _job.json")
    for place, recorded in ((begun, [0, 1, 2]), (ended, [3, 4, 5, 6])):
        assert re.fullmatch(r"sync \._job\.json\..*partial", events[place - 1])
        assert events[place + 1] == "sync out.job"
        removed = [f"remove .part-{index:05d}.json" for index in recorded]
        assert events[place + 2 : place + 2 + len(recorded)] == removed
    assert sum(event.startswith("remove .part") for event in events) == SHARDS
    assert events[-2:] == ["sync out", "sync out.job"]


def test_records_that_a_kill_left_beside_a_complete_manifest_are_removed(job, monkeypatch):
    out = job.out
    monkeypatch.setattr(_manifest.JobFolder, "remove_records", lambda _: None)  # killed before
    job.run(out)
    monkeypatch.undo()
    assert len(contents(out)) == len(job.expected) + SHARDS
    assert (offline.status(out).complete, offline.verify(out)) == (True, [])
    assert job.run(out).selected == 0
    assert contents(out) == job.expected


STRANGE = {
    "folder": lambda _, place: place.mkdir(),
    "link": lambda elsewhere, place: place.symlink_to(elsewhere),
    "pipe": lambda _, place: os.mkfifo(place),
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize(
    "name", ["part-00002.parquet", ".part-00002.json", "_errors-00001.parquet", ".x.0.partial", "_job.json"]
)
def test_folders_and_links_under_a_jobs_names(tmp_path, job, kind, name):
    """They are not read, not written through and not removed, and nothing waits for a pipe."""
    out, elsewhere = job.done, tmp_path / "elsewhere"
    elsewhere.write_bytes(job.expected.get(name, b"precious"))
    place = at(out, name)
    place.unlink(missing_ok=True)
    STRANGE[kind](elsewhere, place)
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=rf"^select: out must .*, got .*undisturbed with {re.escape(name)}$"):
            job.run(out, overwrite=overwrite)
    if name == "_job.json":
        for call in (offline.status, offline.verify):
            with pytest.raises(FileNotFoundError, match=r"a file undisturbed\.job/_job\.json, got"):
                call(out)
    else:
        assert offline.status(out).complete is (name != "part-00002.parquet")
        assert offline.verify(out)[0] == f"{name} is a folder or a link, not a file of the job"
    assert elsewhere.read_bytes() == job.expected.get(name, b"precious")
    place.rmdir() if kind == "folder" else place.unlink()
    if name in job.expected:
        place.write_bytes(job.expected[name])
    assert contents(out) == job.expected


def test_damaged_folders():
    """Some seconds of the fuzzer of job folders; `make fuzz` runs it whole."""
    assert fuzz_runs.run(fuzz_jobs.FUZZER, fuzz_runs.Share(seed=1, first=0, step=1, amount=30)) == []


def test_what_is_broken_in_jobs_is_found_by_the_fuzzer(monkeypatch):
    share = fuzz_runs.Share(seed=2, first=0, step=1, amount=10)

    def unsealed(text):
        return {name: value for name, value in json.loads(text).items() if name not in ("format", "checksum")}

    with monkeypatch.context() as patch:  # no checksum is compared
        patch.setattr(_manifest, "unsealed", unsealed)
        assert fuzz_runs.run(fuzz_jobs.FUZZER, share)
    with monkeypatch.context() as patch:
        patch.setattr(_manifest.ShardRecord, "damage", lambda *_: None)
        assert fuzz_runs.run(fuzz_jobs.FUZZER, share)
    assert not fuzz_runs.run(fuzz_jobs.FUZZER, share)


# --- what is beside the folder -----------------------------------------------------------------------------------


def moved_inside(out):
    """The folder as versions before this one wrote it."""
    beside = out.with_name(f"{out.name}.job")
    for path in beside.iterdir():
        path.rename(out / path.name)
    beside.rmdir()


def test_readers_of_folders_find_the_result_alone(job):
    """They take every file, or every one that is called ``*.parquet``, for data."""
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    queries = np.load(job.options["queries"])
    queries[[5, 700]] = np.nan
    np.save(job.options["queries"], queries)
    job.run(on_error="skip")
    expected = pq.read_table(job.out)
    assert len(expected) == Q
    assert polars.read_parquet(job.out).to_arrow()["ids"].to_pylist() == expected["ids"].to_pylist()
    for path in (job.out, f"{job.out}/*.parquet"):
        assert duckdb.sql(f"select count(*) from read_parquet('{path}')").fetchall() == [(Q,)]
    assert all(re.fullmatch(r"part-\d+\.parquet", name) for name in os.listdir(job.out))


@pytest.mark.parametrize("shards", [3, SHARDS])
def test_jobs_of_earlier_versions_go_on_inside_and_move_when_begun_anew(job, shards):
    out, beside = job.out, job.out.with_name("out.job")
    job.stop_after(shards) if shards < SHARDS else job.run()
    moved_inside(out)
    assert job.run().selected == Q - min(Q, shards * SHARD)
    assert offline.verify(out) == []
    assert contents(out) == job.expected
    assert not beside.exists()
    job.run(overwrite=True)
    assert contents(out) == job.expected
    assert os.listdir(beside) == ["_job.json"]
    assert "_job.json" not in os.listdir(out)


def test_what_is_beside_a_folder_goes_with_it(tmp_path, job):
    """A folder that its user has removed is begun anew, with whatever options."""
    shutil.rmtree(job.done)
    assert job.run(job.done, k=2).selected == Q
    assert offline.status(job.done).k == 2
    shutil.rmtree(job.done)
    with pytest.raises(StoppedError):
        job.run(job.done, progress=lambda *_: (_ for _ in ()).throw(StoppedError))
    assert not job.done.with_name("undisturbed.job").exists()
    job.done.with_name("undisturbed.job").mkdir()
    (job.done.with_name("undisturbed.job") / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"out must be empty, new or .*undisturbed with notes\.txt"):
        job.run(job.done)
    shutil.rmtree(job.done.with_name("undisturbed.job"))
    job.done.with_name("undisturbed.job").write_text("a file")
    with pytest.raises(FileExistsError, match=r"out must be a folder, got the file .*undisturbed\.job"):
        job.run(job.done)


def test_where_nothing_can_be_made_beside_the_folder_its_description_is_in_it(job, monkeypatch):
    job.out.mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: path != job.out.parent)
    job.stop_after(3)
    monkeypatch.undo()
    job.run()
    assert not job.out.with_name("out.job").exists()
    assert contents(job.out) == job.expected


# --- full disks ---------------------------------------------------------------------------------------------------


def mounted(folder, size):
    return subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)


def test_full_disk_stops_cleanly_and_goes_on_when_there_is_room(tmp_path, job):
    """On a small file system of its own, where this process may mount one."""
    out = tmp_path / "small"
    out.mkdir()
    if mounted(out, "64k").returncode:
        pytest.skip("mount is not permitted here")
    try:
        with pytest.raises(OSError, match=r"out must be writable, got .*: No space left on device"):
            job.run(out)
        found = contents(out)
        assert found
        assert not [name for name in found if name.endswith(".partial") or name == ".lock"]
        done = [name for name in found if name.startswith("part-")]
        assert 0 < len(done) < SHARDS
        assert all(found[name] == job.expected[name] for name in done)
        assert subprocess.run(["mount", "-o", "remount,size=4m", str(out)]).returncode == 0
        assert 0 < job.run(out).selected < Q
        assert contents(out) == job.expected
    finally:
        subprocess.run(["umount", str(out)], check=True)


def test_sigterm_does_not_reach_the_library(job):
    """Only the command catches signals; the library leaves the handlers as they are."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    job.run()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
