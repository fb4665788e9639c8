"""Jobs that go on: what is done is kept and checked, another job is refused, damage is found, one process at a time."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import fuzz_jobs  # noqa: E402
import fuzz_runs  # noqa: E402
from job_files import contents, restate, write_inputs  # noqa: E402

import ragsys_kernels as rk  # noqa: E402
from ragsys_kernels import offline  # noqa: E402
from ragsys_kernels.offline import _lock, _manifest, _worker, sinks  # noqa: E402
from ragsys_kernels.offline._pipeline import ahead  # noqa: E402
from ragsys_kernels.offline._spec import JobSpec  # noqa: E402

Q, SHARD, SHARDS = 1000, 150, 7


class StoppedError(Exception):
    pass


@pytest.fixture
def job(tmp_path):
    """Options of a job of seven shards, and the files of an undisturbed run of it."""
    options = {**write_inputs(tmp_path, Q), "k": 3, "shard_size": SHARD, "chunk_size": 40, "num_threads": 1}
    offline.select(**options, out=tmp_path / "undisturbed")
    return options, contents(tmp_path / "undisturbed")


def stop_after(options, out, shards, error=StoppedError):
    """Run the job until so many shards are done and the next one is begun, then let it fail."""

    def progress(done, total):
        if done > shards * SHARD:
            raise error

    with pytest.raises(error):
        offline.select(**options, out=out, progress=progress)


# --- going on -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3, 6])
@pytest.mark.parametrize("chunk_size", [1, 40, 333])
def test_job_goes_on_to_the_same_bytes(tmp_path, job, shards, chunk_size):
    options, expected = job
    out = tmp_path / "out"
    stop_after(options, out, shards)
    assert sorted(_manifest.shard_names(os.listdir(out))) == list(range(shards))
    calls = []
    summary = offline.select(
        **{**options, "chunk_size": chunk_size, "num_threads": 2}, out=out, progress=lambda *call: calls.append(call)
    )
    assert contents(out) == expected
    assert (summary.queries, summary.done, summary.selected) == (Q, Q, Q - shards * SHARD)
    assert summary.complete
    assert calls[0] == (shards * SHARD, Q)
    assert calls[-1] == (Q, Q)
    assert f", {shards * SHARD} of {Q} done before" in str(summary)


def test_finished_job_is_checked_and_left(tmp_path, job, monkeypatch):
    options, expected = job
    out = tmp_path / "undisturbed"
    times = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    monkeypatch.setattr("ragsys_kernels.offline.job.Worker", None)  # no corpus is read
    summary = offline.select(**options, out=out)
    assert str(summary).startswith(f"nothing to do: all {Q} queries are done")
    assert (summary.selected, summary.complete, summary.rate) == (0, True, 0.0)
    assert contents(out) == expected
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == times


def test_killed_before_the_last_word_is_finished_without_work(tmp_path, job, monkeypatch):
    options, expected = job
    out = tmp_path / "undisturbed"
    restate(out / "_job.json", lambda state: state.update(complete=False))
    monkeypatch.setattr("ragsys_kernels.offline.job.Worker", None)
    assert offline.verify(out) == ["_job.json does not say that the job is complete: run it again to finish it"]
    offline.select(**options, out=out)
    assert contents(out) == expected


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("finished", [True, False])
def test_damaged_shards_are_made_again(tmp_path, job, damage, finished):
    options, expected = job
    out = tmp_path / ("undisturbed" if finished else "out")
    if not finished:
        stop_after(options, out, 5)
    damage(out / "part-00001.parquet")
    damage(out / "part-00003.parquet")
    assert [problem.split()[0] for problem in offline.verify(out)][:2] == ["part-00001.parquet", "part-00003.parquet"]
    with pytest.warns(UserWarning, match=r"part-0000[13]\.parquet is (missing|damaged)") as caught:
        summary = offline.select(**options, out=out)
    assert len(caught) == 2
    assert summary.selected == (2 if finished else 3) * SHARD + (0 if finished else Q - 6 * SHARD)
    assert contents(out) == expected
    assert offline.verify(out) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"job": "x"}'])
def test_damaged_record_is_a_shard_that_is_not_done(tmp_path, job, content):
    options, expected = job
    out = tmp_path / "out"
    stop_after(options, out, 4)
    (out / ".part-00002.json").write_bytes(content)
    state = offline.status(out)
    assert (state.missing, state.damaged) == ((range(2, 3), range(4, 7)), (".part-00002.json",))
    assert "\ndamaged: .part-00002.json" in str(state)
    assert offline.verify(out)[0] == ".part-00002.json is damaged: its shard is not done"
    with pytest.warns(UserWarning, match=r"\.part-00002\.json is damaged in .*; what it recorded is made again"):
        assert offline.select(**options, out=out).selected == Q - 3 * SHARD
    assert contents(out) == expected


@pytest.mark.parametrize("change", [
    {"rows": 100}, {"index": 3}, {"first_row": 0}, {"file": "../x"}, {"file": "part-00001.parquet"}, {"sha256": "0"},
    {"skipped": 151}, {"skipped": 1}, {"errors_sha256": "0" * 64}, {"short": -1}, {"rows": 1e30}, {"rows": 150.0},
    {"index": None}, {"index": 10**30}, {"more": 1},
], ids=str)  # fmt: skip
def test_what_records_say_is_compared_with_the_job(tmp_path, job, change, monkeypatch):
    """With the right checksum too; a path that leaves the folder is never read."""
    options, expected = job
    out, opened = tmp_path / "out", []
    stop_after(options, out, 4)
    (tmp_path / "x").write_bytes(expected["part-00002.parquet"])
    restate(out / ".part-00002.json", lambda record: record.update(change))
    for name in ("open", "read"):
        method = getattr(sinks.Folder, name)
        monkeypatch.setattr(sinks.Folder, name, lambda s, n, method=method: (opened.append(n), method(s, n))[1])
    assert offline.status(out).missing == (range(2, 3), range(4, 7))
    assert offline.verify(out)[0] == ".part-00002.json is damaged: its shard is not done"
    with pytest.warns(UserWarning, match=r"\.part-00002\.json is damaged"):
        assert offline.select(**options, out=out).selected == Q - 3 * SHARD
    assert contents(out) == expected
    assert opened
    assert all("/" not in name for name in opened)


def set_(name, value, *place):
    """A function that sets an entry of what a manifest says."""

    def change(content):
        for part in place:
            content = content[part]
        content[name] = value

    return change


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
def test_what_a_manifest_says_is_compared_with_itself(tmp_path, job, change, match):
    """Each is one that no flipped bit makes, for the checksum is right."""
    options, _ = job
    out = tmp_path / "undisturbed"
    restate(out / "_job.json", change)
    for name, call in each_call(options, out).items():
        with pytest.raises(
            ValueError, match=rf"^{name}: _job\.json must be as a job wrote it, or overwrite .*: {match}"
        ):
            call()


def each_call(options, out):
    return {
        "select": lambda: offline.select(**options, out=out),
        "verify": lambda: offline.verify(out),
        "status": lambda: offline.status(out),
    }


@pytest.mark.parametrize(("old", "new"), [
    (b'"rows": 1000', b'"rows": 1001'), (b'"index": 2', b'"index": 3'), (b'"file": "part', b'"file": "pArt'),
])  # fmt: skip
def test_one_flipped_bit_of_a_manifest_is_found(tmp_path, job, old, new):
    options, expected = job
    out = tmp_path / "undisturbed"
    assert old in expected["_job.json"]
    (out / "_job.json").write_bytes(expected["_job.json"].replace(old, new, 1))
    for call in each_call(options, out).values():
        with pytest.raises(ValueError, match="its checksum is not the one it was written with"):
            call()
    offline.select(**options, out=out, overwrite=True)
    assert contents(out) == expected


def test_manifest_of_the_first_format_is_refused(tmp_path, job):
    options, expected = job
    out = tmp_path / "undisturbed"
    content = json.loads(expected["_job.json"])
    del content["checksum"]
    (out / "_job.json").write_text(json.dumps({**content, "format": 1}, indent=2) + "\n")
    for call in each_call(options, out).values():
        with pytest.raises(ValueError, match=r"_job\.json must be .*: it is of format 1, not 2: of another version"):
            call()
    offline.select(**options, out=out, overwrite=True)
    assert contents(out) == expected


def test_damaged_manifest_is_refused(tmp_path, job):
    options, _ = job
    out = tmp_path / "undisturbed"
    truncate(out / "_job.json")
    for call in (lambda: offline.select(**options, out=out), lambda: offline.verify(out), lambda: offline.status(out)):
        with pytest.raises(ValueError, match=r"_job\.json must be as a job wrote it"):
            call()


def test_what_killed_processes_left_is_removed(tmp_path, job):
    options, expected = job
    out = tmp_path / "out"
    stop_after(options, out, 2)
    (out / ".part-00002.parquet.0123456789ab.partial").write_bytes(b"PAR1")
    (out / "part-00002.parquet").write_bytes(b"in its place, but without a record")
    offline.select(**options, out=out)
    assert contents(out) == expected


def test_records_of_another_job_do_not_count(tmp_path, job):
    """As a worker that outlived an overwritten job would leave them."""
    options, _ = job
    stop_after(options, tmp_path / "other", 4)
    stop_after({**options, "k": 2}, tmp_path / "out", 1)
    for index in range(4):
        record = f".part-{index:05d}.json"
        (tmp_path / "out" / record).write_bytes((tmp_path / "other" / record).read_bytes())
    assert offline.select(**{**options, "k": 2}, out=tmp_path / "out").selected == Q


def test_killed_overwrite_can_be_run_again(tmp_path, job, monkeypatch):
    """Whatever of the earlier job is left, the folder is still a job's."""
    options, expected = job
    out = tmp_path / "undisturbed"
    removed = []

    def remove(folder, name):
        if len(removed) == 3:
            raise StoppedError
        removed.append(name)
        (folder.path / name).unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(sinks.Folder, "remove", remove)
        with pytest.raises(StoppedError):
            offline.select(**{**options, "k": 2}, out=out, overwrite=True)
    with pytest.raises(ValueError, match="k 3, now 2"):
        offline.select(**{**options, "k": 2}, out=out)
    offline.select(**{**options, "shard_size": 10**6}, out=out, overwrite=True)
    assert sorted(os.listdir(out)) == ["_job.json", "part-00000.parquet"]
    with pytest.raises(ValueError, match="shard_size 1000000, now 150"):
        offline.select(**options, out=out)
    offline.select(**options, out=out, overwrite=True)
    assert contents(out) == expected


def test_shard_of_nobody_is_refused(tmp_path, job):
    options, expected = job
    (tmp_path / "undisturbed" / "part-00007.parquet").write_bytes(expected["part-00006.parquet"])
    with pytest.raises(FileExistsError, match=r"only shards of its job to resume.*part-00007\.parquet"):
        offline.select(**options, out=tmp_path / "undisturbed")
    (tmp_path / "undisturbed" / "_errors-00001.parquet").write_bytes(expected["part-00006.parquet"])
    assert sorted(offline.verify(tmp_path / "undisturbed")) == [
        "_errors-00001.parquet is not of this job",
        "part-00007.parquet is not of this job",
    ]


def test_stop_ends_after_a_shard(tmp_path, job):
    options, expected = job
    out = tmp_path / "out"
    answers = iter([False, False, False, True])
    summary = offline.select(**options, out=out, stop=lambda: next(answers))
    assert (summary.complete, summary.done, summary.shards) == (False, 3 * SHARD, 3)
    assert f", stopped with {Q - 3 * SHARD} left" in str(summary)
    assert json.loads((out / "_job.json").read_bytes())["complete"] is False
    assert not offline.status(out).complete
    assert not [name for name in os.listdir(out) if name.startswith(".")]
    assert not offline.select(**options, out=tmp_path / "none", stop=lambda: True).complete
    assert not (tmp_path / "none").exists()
    offline.select(**options, out=out)
    assert contents(out) == expected
    assert json.loads(expected["_job.json"])["complete"] is True


def test_complete_job_is_not_when_a_shard_is_gone(tmp_path, job):
    out = tmp_path / "undisturbed"
    assert offline.status(out).complete
    (out / "part-00003.parquet").unlink()
    state = offline.status(out)
    assert (state.complete, state.missing, state.done) == (False, (range(3, 4),), Q - SHARD)
    assert "complete: no, missing part-00003.parquet" in str(state)


def test_records_are_removed_when_the_manifest_is_on_the_disk(tmp_path, job, monkeypatch):
    """Power may fail at any moment: the name of the manifest that holds the shards must not be lost after them."""
    options, _ = job
    out, events = tmp_path / "out", []
    stop_after(options, out, 3)

    def noted(what, name, call):
        return lambda *given: (events.append(f"{what} {name(*given)}"), call(*given))[1]

    monkeypatch.setattr(Path, "replace", noted("name", lambda _, place: place.name, Path.replace))
    opened = lambda file: os.path.basename(os.readlink(f"/proc/self/fd/{file}"))  # noqa: E731
    monkeypatch.setattr(os, "fsync", noted("sync", opened, os.fsync))
    monkeypatch.setattr(sinks.Folder, "remove", noted("remove", lambda _, name: name, sinks.Folder.remove))
    offline.select(**options, out=out)
    begun, ended = (place for place, event in enumerate(events) if event == "name _job.json")
    for place, recorded in ((begun, [0, 1, 2]), (ended, [3, 4, 5, 6])):
        assert re.fullmatch(r"sync \._job\.json\..*partial", events[place - 1])
        assert events[place + 1] == "sync out"
        removed = [f"remove .part-{index:05d}.json" for index in recorded]
        assert events[place + 2 : place + 2 + len(recorded)] == removed
    assert sum(event.startswith("remove .part") for event in events) == SHARDS


def test_records_that_a_kill_left_beside_a_complete_manifest_are_removed(tmp_path, job, monkeypatch):
    options, expected = job
    out = tmp_path / "out"
    monkeypatch.setattr(_manifest.JobFolder, "remove_records", lambda _: None)  # killed before
    offline.select(**options, out=out)
    monkeypatch.undo()
    assert len(contents(out)) == len(expected) + SHARDS
    assert (offline.status(out).complete, offline.verify(out)) == (True, [])
    assert offline.select(**options, out=out).selected == 0
    assert contents(out) == expected


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
    options, expected = job
    out, elsewhere = tmp_path / "undisturbed", tmp_path / "elsewhere"
    elsewhere.write_bytes(expected.get(name, b"precious"))
    (out / name).unlink(missing_ok=True)
    STRANGE[kind](elsewhere, out / name)
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=rf"^select: out must .*, got .*undisturbed with {re.escape(name)}$"):
            offline.select(**options, out=out, overwrite=overwrite)
    if name == "_job.json":
        for call in (offline.status, offline.verify):
            with pytest.raises(FileNotFoundError, match=r"folder must be a job's, with a file _job\.json, got"):
                call(out)
    else:
        assert offline.status(out).complete is (name != "part-00002.parquet")
        assert offline.verify(out)[0] == f"{name} is a folder or a link, not a file of the job"
    assert elsewhere.read_bytes() == expected.get(name, b"precious")
    (out / name).rmdir() if kind == "folder" else (out / name).unlink()
    if name in expected:
        (out / name).write_bytes(expected[name])
    assert contents(out) == expected


def test_damaged_folders(tmp_path):
    """Some seconds of the fuzzer of job folders; `make fuzz` runs it whole."""
    assert fuzz_runs.run(fuzz_jobs.FUZZER, fuzz_runs.Share(seed=1, first=0, step=1, amount=200)) == []


def test_what_is_broken_in_jobs_is_found_by_the_fuzzer(monkeypatch):
    share = fuzz_runs.Share(seed=2, first=0, step=1, amount=50)

    def unsealed(text):
        return {name: value for name, value in json.loads(text).items() if name not in ("format", "checksum")}

    with monkeypatch.context() as patch:  # no checksum is compared
        patch.setattr(_manifest, "_unsealed", unsealed)
        assert fuzz_runs.run(fuzz_jobs.FUZZER, share)
    with monkeypatch.context() as patch:
        patch.setattr(_manifest.ShardRecord, "damage", lambda *_: None)
        assert fuzz_runs.run(fuzz_jobs.FUZZER, share)
    assert not fuzz_runs.run(fuzz_jobs.FUZZER, share)


# --- another job --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"k": 4}, "with k 3, now 4$"),
        ({"method": "vrsd"}, "with method mmr, now vrsd; lambda_d 0.75, now none; lambda_b 0.95, now none$"),
        ({"lambda_d": 0.5, "dtype": "float16"}, "with lambda_d 0.75, now 0.5; dtype float32, now float16$"),
        ({"shard_size": 10}, "with shard_size 150, now 10$"),
        ({"backend": "reference"}, "with backend cpu, now reference; instruction_set .*"),
        ({"candidates": None, "pool": 6}, "with pool none, now 6; candidates .*candidates.npy, now none$"),
        ({"fingerprint": "full"}, "with fingerprint sampled, now full$"),
    ],
    ids=str,
)  # fmt: skip
def test_other_options_are_refused(tmp_path, job, changed, match):
    options, expected = job
    with pytest.raises(ValueError, match=r"select: out must hold a job of the same inputs, options.*" + match):
        offline.select(**{**options, **changed}, out=tmp_path / "undisturbed")
    assert contents(tmp_path / "undisturbed") == expected


def test_other_version_is_refused(tmp_path, job, monkeypatch):
    options, _ = job
    monkeypatch.setattr(rk, "__version__", "99.0")
    with pytest.raises(ValueError, match=r"with version \d.*, now 99\.0$"):
        offline.select(**options, out=tmp_path / "undisturbed")


def test_other_instruction_set_is_refused(tmp_path, job, monkeypatch):
    options, _ = job
    monkeypatch.setenv("RAGSYS_KERNELS_ISA", "base")
    with pytest.raises(ValueError, match=r"with instruction_set avx\d+, now base$"):
        offline.select(**options, out=tmp_path / "undisturbed")
    spec = JobSpec(corpus=options["corpus"], queries=options["queries"], instruction_set="avx1024")
    with pytest.raises(ValueError, match="instruction_set must be that of the job, avx1024, got base"):
        _worker.Worker(spec)


def keep_time(path, content):
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("name", ["corpus", "queries", "candidates"])
def test_changed_input_is_refused(tmp_path, job, name):
    options, _ = job
    array = np.load(options[name])
    array[-1] = array[0]
    np.save(tmp_path / "other.npy", array)
    keep_time(options[name], (tmp_path / "other.npy").read_bytes())
    with pytest.raises(ValueError, match=rf"with sha256 of {name} {name}\.npy \w+, now \w+$"):
        offline.select(**options, out=tmp_path / "undisturbed")


def test_touched_input_is_another_one_by_samples_and_the_same_by_its_content(tmp_path, job):
    options, _ = job
    offline.select(**options, out=tmp_path / "full", fingerprint="full")
    whole = contents(tmp_path / "full")
    os.utime(options["queries"], (1, 1))
    with pytest.raises(ValueError, match=r"with mtime_ns of queries queries\.npy \d+, now 1000000000$"):
        offline.select(**options, out=tmp_path / "undisturbed")
    for fingerprint in (None, "full"):  # as the job began
        assert offline.select(**options, out=tmp_path / "full", fingerprint=fingerprint).selected == 0
    assert contents(tmp_path / "full") == whole


def test_moved_input_is_the_same_one(tmp_path, job):
    options, expected = job
    (tmp_path / "elsewhere").mkdir()
    moved = {}
    for name in ("corpus", "queries", "candidates"):
        moved[name] = options[name].rename(tmp_path / "elsewhere" / f"moved-{name}.npy")
    assert offline.select(**{**options, **moved}, out=tmp_path / "undisturbed").selected == 0
    assert contents(tmp_path / "undisturbed") == expected


def test_input_that_changes_meanwhile_is_refused(tmp_path, job):
    options, _ = job

    def progress(done, total):
        if done == total:
            os.utime(options["queries"], (1, 1))

    with pytest.raises(ValueError, match="inputs must not change while the job runs, got mtime_ns of queries"):
        offline.select(**options, out=tmp_path / "out", progress=progress)
    assert not offline.status(tmp_path / "out").complete


def test_input_that_is_cut_short_meanwhile_is_an_error(tmp_path, job):
    """Not a bus error, which would end the process."""
    options, _ = job
    content = options["queries"].read_bytes()

    def progress(done, total):
        os.truncate(options["queries"], len(content) // 2)

    with pytest.raises(ValueError, match=r"queries\.npy must keep its rows while it is read"):
        offline.select(**options, out=tmp_path / "out", progress=progress)
    assert not offline.status(tmp_path / "out").complete


def test_shard_that_misses_rows_is_not_put_in_its_place(tmp_path, job, monkeypatch):
    options, _ = job
    pieces = _worker.Worker._pieces

    def short(self, start, stop):
        yield from list(pieces(self, start, stop))[:-1]

    monkeypatch.setattr(_worker.Worker, "_pieces", short)
    with pytest.raises(ValueError, match=r"^select: queries must keep their rows while they are read, got .*queries"):
        offline.select(**options, out=tmp_path / "out")
    assert offline.status(tmp_path / "out").shards == offline.status(tmp_path / "out").num_shards - 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fingerprint": "none"}, "fingerprint must be 'sampled' or 'full', got 'none'"),
        ({"on_error": "ignore"}, "on_error must be 'raise' or 'skip', got 'ignore'"),
    ],
)
def test_wrong_option(tmp_path, job, options, match):
    with pytest.raises(ValueError, match=match):
        offline.select(**{**job[0], **options}, out=tmp_path / "out")


# --- status and verify --------------------------------------------------------------------------------------------


def test_status_of_a_job_that_stopped(tmp_path, job):
    options, _ = job
    out = tmp_path / "out"
    stop_after(options, out, 3)
    (out / "part-00001.parquet").unlink()
    state = offline.status(out)
    assert (state.queries, state.done, state.shards, state.num_shards, state.shard_size) == (Q, 300, 2, 7, SHARD)
    assert (state.missing, state.complete, state.owner, state.skipped) == ((range(1, 2), range(3, 7)), False, None, 0)
    assert "complete: no, missing part-00001.parquet, part-00003.parquet to part-00006.parquet" in str(state)
    found = offline.verify(out)
    assert found[0] == "part-00001.parquet is missing"
    assert found[1] == "part-00003.parquet to part-00006.parquet are missing: queries 450 to 999 are not done"
    assert len(found) == 2


def rewritten(out, index, change):
    """A shard with other rows, of which the manifest has the right checksum."""
    path = out / f"part-{index:05d}.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    restate(out / "_job.json", set_("sha256", sinks.Folder(out).digest(path.name), "shards", index))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda table: table.slice(1), "part-00002.parquet must have 150 rows, got 149"),
        (lambda table: table.take(pa.array([0, *range(149)])), "must have queries 300 to 449, each once and in order"),
        (lambda table: table.drop_columns("scores"), "part-00002.parquet must have the columns"),
        (lambda table: table.append_column("query_id", table["query_id"]), "part-00002.parquet must have the columns"),
    ],
)
def test_verify_reads_the_rows(tmp_path, job, change, match):
    rewritten(tmp_path / "undisturbed", 2, change)
    (found,) = offline.verify(tmp_path / "undisturbed")
    assert match in found


# --- queries that cannot be used ----------------------------------------------------------------------------------


def test_skipped_queries_are_recorded_and_change_no_other(tmp_path, job):
    options, _ = job
    expected = pq.read_table(tmp_path / "undisturbed")
    queries, candidates = np.load(options["queries"]), np.load(options["candidates"])
    queries[[5, 160], 2] = np.nan, np.inf
    candidates[6, 1], candidates[163, 2], candidates[164, 0] = 200, -2, candidates[164, 1]
    np.save(options["queries"], queries)
    np.save(options["candidates"], candidates)
    with pytest.raises(ValueError, match="queries must be finite, got NaN or inf in row 5 of"):
        offline.select(**options, out=tmp_path / "out")
    summary = offline.select(**options, out=tmp_path / "out", on_error="skip")
    assert summary.skipped == 5
    assert ", 5 queries skipped," in str(summary)
    table, bad = pq.read_table(tmp_path / "out"), [5, 6, 160, 163, 164]
    assert table["query_id"].to_pylist() == list(range(Q))
    for name in ("ids", "scores", "relevance", "redundancy"):
        rows, right = table[name].to_pylist(), expected[name].to_pylist()
        assert [rows[row] for row in bad] == [[]] * 5
        assert [row for i, row in enumerate(rows) if i not in bad] == [
            row for i, row in enumerate(right) if i not in bad
        ]
    names = [name for name in sorted(os.listdir(tmp_path / "out")) if name.startswith("_errors")]
    assert names == ["_errors-00000.parquet", "_errors-00001.parquet"]
    errors = pa.concat_tables([pq.read_table(tmp_path / "out" / name) for name in names]).to_pylist()
    assert [(error["query_row"], error["query_id"]) for error in errors] == [(row, row) for row in bad]
    reasons = [error["reason"] for error in errors]
    assert reasons[0] == reasons[2] == "queries must be finite, got NaN or inf"
    assert reasons[1] == "candidates must be -1 or rows of the corpus, below N = 200, got 200"
    assert reasons[3] == "candidates must be -1 or rows of the corpus, below N = 200, got -2"
    assert reasons[4] == f"candidates must not repeat an id within a query, got {candidates[164, 0]} twice"
    assert offline.verify(tmp_path / "out") == []
    with pytest.raises(ValueError, match="on_error must be 'skip' to resume where queries were skipped, got 5"):
        offline.select(**options, out=tmp_path / "out")
    flip(tmp_path / "out" / "_errors-00001.parquet")
    assert offline.verify(tmp_path / "out")[0].startswith("_errors-00001.parquet is damaged")
    before = contents(tmp_path / "out")["part-00001.parquet"]
    with pytest.warns(UserWarning, match="_errors-00001"):
        assert offline.select(**options, out=tmp_path / "out", on_error="skip").selected == SHARD
    assert contents(tmp_path / "out")["part-00001.parquet"] == before


def test_queries_with_fewer_than_k_picks_are_counted(tmp_path, job):
    """Those done before, too; a query that is skipped is not one of them."""
    options, _ = job
    candidates, queries = np.load(options["candidates"]), np.load(options["queries"])
    candidates[[3, 160, 161], 2:] = -1
    candidates[500] = -1
    candidates[7, 3:] = -1  # as many as k
    queries[4] = np.nan
    candidates[4, 1:] = -1
    np.save(options["candidates"], candidates)
    np.save(options["queries"], queries)
    stop_after({**options, "on_error": "skip"}, tmp_path / "out", 2)
    for _ in range(2):
        summary = offline.select(**options, out=tmp_path / "out", on_error="skip")
        assert (summary.short, summary.skipped) == (4, 1)
        assert ", 1 queries skipped, 4 got fewer than 3 picks" in str(summary)
    lengths = [len(picks) for picks in pq.read_table(tmp_path / "out")["ids"].to_pylist()]
    assert sum(length < 3 for length in lengths) == 5
    state = offline.status(tmp_path / "out")
    assert (state.short, state.skipped) == (4, 1)
    assert f"queries: {Q} of {Q} done, 1 of them skipped, 4 got fewer than 3 picks\n" in str(state)


def test_job_that_failed_goes_on_with_skip(tmp_path, job):
    """What was done under "raise" has nothing to skip, so that it stays."""
    options, _ = job
    queries = np.load(options["queries"])
    queries[700] = np.nan
    np.save(options["queries"], queries)
    with pytest.raises(ValueError, match="row 700 of"):
        offline.select(**options, out=tmp_path / "out")
    summary = offline.select(**options, out=tmp_path / "out", on_error="skip")
    assert (summary.selected, summary.skipped) == (Q - 4 * SHARD, 1)


@pytest.mark.parametrize("candidates", [True, False])
def test_bad_rows_of_parquet_are_skipped(tmp_path, job, candidates):
    options, _ = job
    rows = np.load(options["queries"]).tolist()
    rows[0], rows[3], rows[500], rows[999] = None, [1.0], [None] * 8, [float("inf")] * 8
    ids = [f"q{row}" for row in range(Q)]
    ids[4] = None
    pq.write_table(pa.table({"id": ids, "v": rows}), tmp_path / "queries.parquet", row_group_size=64)
    paths = {**options, "queries": tmp_path / "queries.parquet"}
    if not candidates:
        paths = {**paths, "candidates": None, "pool": 6}
    summary = offline.select(**paths, out=tmp_path / "out", on_error="skip")
    assert summary.skipped == 5
    table = pq.read_table(tmp_path / "out")
    assert [row for row, picks in enumerate(table["ids"].to_pylist()) if not picks] == [0, 3, 4, 500, 999]
    assert table["query_id"].to_pylist() == ids
    errors = [pq.read_table(path).to_pylist() for path in sorted((tmp_path / "out").glob("_errors-*"))]
    assert [(error["query_row"], error["query_id"]) for shard in errors for error in shard] == [
        (row, ids[row]) for row in (0, 3, 4, 500, 999)
    ]
    assert offline.verify(tmp_path / "out") == []


# --- one process at a time ----------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from ragsys_kernels.offline._lock import locked

with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_second_process_is_refused_until_the_first_dies(tmp_path, job):
    options, expected = job
    out = tmp_path / "undisturbed"
    command = [sys.executable, "-c", HOLD, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(OSError, match=rf"out must not be in use, got .*, in use by process {process.pid} on "):
            offline.select(**options, out=out)
        assert offline.status(out).owner.startswith(f"process {process.pid} on ")
        process.kill()
        process.wait()
        assert (out / ".lock").exists()
        assert offline.status(out).owner is None
        assert offline.select(**options, out=out).complete
    assert contents(out) == expected


@pytest.mark.parametrize("link", [os.symlink, os.link, lambda _, path: os.mkfifo(path), lambda _, path: os.mkdir(path)])
def test_lock_that_is_a_link_is_not_followed(tmp_path, job, link):
    """Who owns the folder is written into its lock: through a link, over a file that is somewhere else."""
    options, expected = job
    elsewhere, lock = tmp_path / "elsewhere", tmp_path / "undisturbed" / ".lock"
    elsewhere.write_text("precious")
    link(elsewhere, lock)
    with pytest.raises(FileExistsError, match=r"^select: out must have its lock as a file.* got .*undisturbed/\.lock$"):
        _lock.locked(tmp_path / "undisturbed").__enter__()
    with pytest.raises(FileExistsError, match=r"^select: out must have (its lock as a file|files under a job's names)"):
        offline.select(**options, out=tmp_path / "undisturbed")
    assert elsewhere.read_text() == "precious"
    assert offline.status(tmp_path / "undisturbed").owner is None
    (lock.rmdir if lock.is_dir() else lock.unlink)()
    assert contents(tmp_path / "undisturbed") == expected


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


def test_files_are_synced_before_they_are_in_their_place(tmp_path, job, monkeypatch):
    options, _ = job
    events, sync, replace = [], os.fsync, Path.replace

    def synced(descriptor):
        events.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def replaced(path, target):
        events.append(target.name)
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    offline.select(**options, out=tmp_path / "out")
    for name in ["_job.json", *(f"part-{index:05d}.parquet" for index in range(SHARDS))]:
        place = events.index(name)
        assert events[place - 1].startswith(f".{name}.")
    assert events[-1] == "out"  # the folder


# --- the stages ---------------------------------------------------------------------------------------------------


def test_stages_run_at_the_same_time():
    """Each stage waits for the other: one after the other they would wait for ever."""
    meeting = threading.Barrier(2, timeout=10)

    def items():
        for item in range(5):
            meeting.wait()
            yield item

    stage = ahead(items(), 1)
    first = threading.Thread(target=meeting.wait)
    first.start()
    seen = []
    for item in stage:
        seen.append(item)
        if item < 4:
            meeting.wait()
    first.join()
    assert seen == list(range(5))


@pytest.mark.parametrize("depth", [1, 3])
def test_stage_keeps_few_items(depth):
    made = []

    def items():
        for item in range(100):
            made.append(item)
            yield item

    stage = ahead(items(), depth)
    next(stage)
    deadline = time.monotonic() + 10
    while len(made) <= depth and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(made) == depth + 1
    stage.close()


def test_error_in_a_stage_ends_all():
    ended = []

    def first():
        try:
            yield from range(1000)
        finally:
            ended.append("first")

    def second(items):
        try:
            for item in items:
                if item == 3:
                    raise KeyError("three")
                yield item
        finally:
            items.close()
            ended.append("second")

    seen, before = [], threading.active_count()
    stage = ahead(second(ahead(first(), 2)), 2)
    with pytest.raises(KeyError, match="three"):
        seen.extend(iter(stage.__next__, None))
    assert (seen, ended, threading.active_count()) == ([0, 1, 2], ["first", "second"], before)


def test_worker_makes_any_shard_in_another_process(tmp_path, job):
    """What other engines build on: a description that can be sent, shards by their number, twice at the same time."""
    options, expected = job
    spec = pickle.loads(pickle.dumps(JobSpec(**options).absolute().settled()))
    worker = _worker.Worker(spec)
    (tmp_path / "out").mkdir()
    folder = pickle.loads(pickle.dumps(_manifest.JobFolder(sinks.Folder(tmp_path / "out"), "key")))
    records = []
    threads = [threading.Thread(target=lambda: records.append(worker.write_shard(5, folder))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(tmp_path / "out")["part-00005.parquet"] == expected["part-00005.parquet"]
    assert len(set(map(str, map(asdict, records)))) == 1
    assert list(folder.records()) == [(".part-00005.json", records[0])]
    tables = [part.picks for part in worker.tables(130, 470)]
    direct = pq.read_table(tmp_path / "undisturbed").slice(130, 340)
    assert pa.concat_tables(tables).equals(direct.cast(tables[0].schema))


# --- full disks ---------------------------------------------------------------------------------------------------


def mounted(folder, size):
    return subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)


def test_full_disk_stops_cleanly_and_goes_on_when_there_is_room(tmp_path, job):
    """On a small file system of its own, where this process may mount one."""
    options, expected = job
    out = tmp_path / "small"
    out.mkdir()
    if mounted(out, "64k").returncode:
        pytest.skip("mount is not permitted here")
    try:
        with pytest.raises(OSError, match=r"out must be writable, got .*: No space left on device"):
            offline.select(**options, out=out)
        found = contents(out)
        assert found
        assert not [name for name in found if name.endswith(".partial") or name == ".lock"]
        done = [name for name in found if name.startswith("part-")]
        assert 0 < len(done) < SHARDS
        assert all(found[name] == expected[name] for name in done)
        assert subprocess.run(["mount", "-o", "remount,size=4m", str(out)]).returncode == 0
        assert 0 < offline.select(**options, out=out).selected < Q
        assert contents(out) == expected
    finally:
        subprocess.run(["umount", str(out)], check=True)


def test_sigterm_does_not_reach_the_library(tmp_path, job):
    """Only the command catches signals; the library leaves the handlers as they are."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    offline.select(**job[0], out=tmp_path / "out")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
