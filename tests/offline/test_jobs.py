"""Jobs that resume: what is done is kept and checked, damage is found and made again."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import fuzz_jobs
import fuzz_runs
from job_files import contents, restate
from jobs import SHARD, SHARDS, Q, StoppedError, flip, set_, truncate

from ragsys_kernels import offline
from ragsys_kernels.offline import _manifest, sinks


@pytest.mark.parametrize(("shards", "chunk_size"), [(1, 333), (3, 1), (6, 40)])
def test_job_goes_on_to_the_same_bytes(job, shards, chunk_size):
    out = job.out
    job.stop_after(shards)
    assert sorted(_manifest.shard_names(os.listdir(out))) == list(range(shards))
    calls = []
    summary = job.run(out, chunk_size=chunk_size, num_threads=2, progress=lambda *call: calls.append(call))
    assert contents(out) == job.expected
    assert (summary.queries, summary.done, summary.selected) == (Q, Q, Q - shards * SHARD)
    assert summary.complete
    assert calls[0] == (shards * SHARD, Q)
    assert calls[-1] == (Q, Q)
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
    restate(out / "_job.json", lambda state: state.update(complete=False))
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
    (out / ".part-00002.json").write_bytes(content)
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


@pytest.mark.parametrize("change", [
    {"rows": 100}, {"index": 3}, {"first_row": 0}, {"file": "../x"}, {"file": "part-00001.parquet"}, {"sha256": "0"},
    {"skipped": 151}, {"skipped": 1}, {"errors_sha256": "0" * 64}, {"short": -1}, {"rows": 1e30}, {"rows": 150.0},
    {"index": None}, {"index": 10**30}, {"more": 1},
], ids=str)  # fmt: skip
def test_what_records_say_is_compared_with_the_job(tmp_path, job, change, monkeypatch):
    """With the right checksum too; a path that leaves the folder is never read."""
    out, opened = job.out, []
    job.stop_after(4, out)
    (tmp_path / "x").write_bytes(job.expected["part-00002.parquet"])
    restate(out / ".part-00002.json", lambda record: record.update(change))
    for name in ("open", "read"):
        method = getattr(sinks.Folder, name)
        monkeypatch.setattr(sinks.Folder, name, lambda s, n, method=method: (opened.append(n), method(s, n))[1])
    assert offline.status(out).missing == (range(2, 3), range(4, 7))
    assert offline.verify(out)[0] == ".part-00002.json is damaged: its shard is not done"
    with pytest.warns(UserWarning, match=r"\.part-00002\.json is damaged"):
        assert job.run(out).selected == Q - 3 * SHARD
    assert contents(out) == job.expected
    assert opened
    assert all("/" not in name for name in opened)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (set_("rows", 300), "rows must be 1000, those of queries, got 300"),
        (set_("rows", 1e30), r"rows must be a number above 0, got 1e\+30"),
        (set_("shard_size", 0), "shard_size must be a number above 0, got 0"),
        (set_("shard_size", 10**30), "shard_size must be a number above 0, got 10{30}"),
        (set_("shard_size", 1), "rows of shard 0 must be 1, got 150"),
        (set_("inputs", []), r"inputs must be present, got \[\]"),
        (set_("queries", None, "inputs"), "it has not the fields that a job writes"),
        (set_("files", [1], "inputs", "corpus"), "it has not the fields that a job writes"),
        (set_("path", 1, "inputs", "corpus"), "corpus must be of path, rows and files, got "),
        (set_("options", {}), "options must be with method, got {}"),
        (set_("version", None), "version must be present, got None"),
        (set_("complete", 1), "complete must be true or false, got 1"),
        (set_("shards", 1), "it has not the fields that a job writes"),
        (lambda content: content.pop("shards"), "it has not the fields that a job writes"),
        (lambda content: content["shards"].pop(), "shards must be 7, for the job is complete, got 6"),
        (lambda content: content["shards"].append(content["shards"][2]), "shards must be listed once each, got 8"),
        (set_("index", 3, "shards", 2), "shards must be listed once each, got 7"),
        (set_("index", 7, "shards", 6), "index must be below 7, got 7"),
        (set_("rows", 100, "shards", 2), "rows of shard 2 must be 150, got 100"),
        (set_("first_row", 0, "shards", 1), "first_row of shard 1 must be 150, got 0"),
        (set_("file", "../x", "shards", 2), r"file of shard 2 must be part-00002\.parquet, got \.\./x"),
        (set_("more", 1, "shards", 2), "it has not the fields that a job writes"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_a_manifest_says_is_compared_with_itself(job, change, match):
    """Each is one that no flipped bit makes, for the checksum is right."""
    out = job.done
    restate(out / "_job.json", change)
    for name, call in each_call(job, out).items():
        with pytest.raises(
            ValueError, match=rf"^{name}: _job\.json must be as a job wrote it, or overwrite .*: {match}"
        ):
            call()


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
    (out / "_job.json").write_bytes(job.expected["_job.json"].replace(old, new, 1))
    for call in each_call(job, out).values():
        with pytest.raises(ValueError, match="its checksum is not the one it was written with"):
            call()
    job.run(out, overwrite=True)
    assert contents(out) == job.expected


def test_manifest_of_the_first_format_is_refused(job):
    out = job.done
    content = json.loads(job.expected["_job.json"])
    del content["checksum"]
    (out / "_job.json").write_text(json.dumps({**content, "format": 1}, indent=2) + "\n")
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
        (job.out / record).write_bytes((tmp_path / "other" / record).read_bytes())
    assert job.run(k=2).selected == Q


def test_killed_overwrite_can_be_run_again(job, monkeypatch):
    """Whatever of the earlier job is left, the folder is still a job's."""
    out = job.done
    removed = []

    def remove(folder, name):
        if len(removed) == 3:
            raise StoppedError
        removed.append(name)
        (folder.path / name).unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(sinks.Folder, "remove", remove)
        with pytest.raises(StoppedError):
            job.run(out, k=2, overwrite=True)
    with pytest.raises(ValueError, match="k 3, now 2"):
        job.run(out, k=2)
    job.run(out, shard_size=10**6, overwrite=True)
    assert sorted(os.listdir(out)) == ["_job.json", "part-00000.parquet"]
    with pytest.raises(ValueError, match="shard_size 1000000, now 150"):
        job.run(out)
    job.run(out, overwrite=True)
    assert contents(out) == job.expected


def test_shard_of_nobody_is_refused(job):
    (job.done / "part-00007.parquet").write_bytes(job.expected["part-00006.parquet"])
    with pytest.raises(FileExistsError, match=r"only shards of its job to resume.*part-00007\.parquet"):
        job.run(job.done)
    (job.done / "_errors-00001.parquet").write_bytes(job.expected["part-00006.parquet"])
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
    assert json.loads((out / "_job.json").read_bytes())["complete"] is False
    assert not offline.status(out).complete
    assert not [name for name in os.listdir(out) if name.startswith(".")]
    assert not job.run(tmp_path / "none", stop=lambda: True).complete
    assert not (tmp_path / "none").exists()
    job.run(out)
    assert contents(out) == job.expected
    assert json.loads(job.expected["_job.json"])["complete"] is True


def test_records_are_removed_when_the_manifest_is_on_the_disk(job, monkeypatch):
    """Power may fail at any moment: the name of the manifest that holds the shards must not be lost after them."""
    out, events = job.out, []
    job.stop_after(3, out)

    def noted(what, name, call):
        return lambda *given: (events.append(f"{what} {name(*given)}"), call(*given))[1]

    monkeypatch.setattr(Path, "replace", noted("name", lambda _, place: place.name, Path.replace))
    opened = lambda file: os.path.basename(os.readlink(f"/proc/self/fd/{file}"))  # noqa: E731
    monkeypatch.setattr(os, "fsync", noted("sync", opened, os.fsync))
    monkeypatch.setattr(sinks.Folder, "remove", noted("remove", lambda _, name: name, sinks.Folder.remove))
    job.run(out)
    begun, ended = (place for place, event in enumerate(events) if event == "name _job.json")
    for place, recorded in ((begun, [0, 1, 2]), (ended, [3, 4, 5, 6])):
        assert re.fullmatch(r"sync \._job\.json\..*partial", events[place - 1])
        assert events[place + 1] == "sync out"
        removed = [f"remove .part-{index:05d}.json" for index in recorded]
        assert events[place + 2 : place + 2 + len(recorded)] == removed
    assert sum(event.startswith("remove .part") for event in events) == SHARDS


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
    (out / name).unlink(missing_ok=True)
    STRANGE[kind](elsewhere, out / name)
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=rf"^select: out must .*, got .*undisturbed with {re.escape(name)}$"):
            job.run(out, overwrite=overwrite)
    if name == "_job.json":
        for call in (offline.status, offline.verify):
            with pytest.raises(FileNotFoundError, match=r"folder must be a job's, with a file _job\.json, got"):
                call(out)
    else:
        assert offline.status(out).complete is (name != "part-00002.parquet")
        assert offline.verify(out)[0] == f"{name} is a folder or a link, not a file of the job"
    assert elsewhere.read_bytes() == job.expected.get(name, b"precious")
    (out / name).rmdir() if kind == "folder" else (out / name).unlink()
    if name in job.expected:
        (out / name).write_bytes(job.expected[name])
    assert contents(out) == job.expected


def test_damaged_folders():
    """Some seconds of the fuzzer of job folders; `make fuzz` runs it whole."""
    assert fuzz_runs.run(fuzz_jobs.FUZZER, fuzz_runs.Share(seed=1, first=0, step=1, amount=50)) == []


def test_what_is_broken_in_jobs_is_found_by_the_fuzzer(monkeypatch):
    share = fuzz_runs.Share(seed=2, first=0, step=1, amount=20)

    def unsealed(text):
        return {name: value for name, value in json.loads(text).items() if name not in ("format", "checksum")}

    with monkeypatch.context() as patch:  # no checksum is compared
        patch.setattr(_manifest, "_unsealed", unsealed)
        assert fuzz_runs.run(fuzz_jobs.FUZZER, share)
    with monkeypatch.context() as patch:
        patch.setattr(_manifest.ShardRecord, "damage", lambda *_: None)
        assert fuzz_runs.run(fuzz_jobs.FUZZER, share)
    assert not fuzz_runs.run(fuzz_jobs.FUZZER, share)


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
