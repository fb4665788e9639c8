"""Files and folders that are in their place whole or not at all."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ragsys_kernels._base import files as _files


@pytest.fixture(params=["exchange", "one_by_one"])
def renaming(request, monkeypatch):
    """File systems that exchange two names in one step, and those that cannot."""
    if request.param == "one_by_one":
        monkeypatch.setattr(_files, "_exchange", lambda a, b: False)


@pytest.fixture
def events(monkeypatch):
    """What was synced and renamed, in order."""
    seen = []
    sync, rename, replace = os.fsync, os.rename, os.replace
    swap = _files._exchange

    def renamed(function, word):
        def call(a, b, *rest, **options):
            result = function(a, b, *rest, **options)
            seen.append((word, Path(a).name, Path(b).name))
            return result

        return call

    def synced(descriptor):
        sync(descriptor)
        seen.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed(rename, "rename"))
    monkeypatch.setattr(os, "replace", renamed(replace, "rename"))
    monkeypatch.setattr(_files, "_exchange", renamed(swap, "exchange"))
    return seen


def fill(place, text, **options):
    with _files.staging(place) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text(text)
        _files.put(folder, place, **options)


def text(place):
    return (place / "inner" / "file").read_text()


def test_file_is_synced_then_renamed_then_its_folder_synced(tmp_path, events):
    path = tmp_path / "file"
    path.write_text("old")
    with _files.replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    (_, aside), *rest = events
    assert aside.startswith(".file.")
    assert aside.endswith(".partial")
    assert rest == [("rename", aside, "file"), ("sync", tmp_path.name)]
    assert path.read_text() == "new"
    assert file.sha256 == "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"


def test_file_need_not_be_durable(tmp_path, events):
    with _files.replacing(tmp_path / "file", durable=False) as file:
        file.write(b"new")
    assert [event[0] for event in events] == ["rename"]


@pytest.mark.parametrize("where", ["block", "sync", "write"])
def test_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch, where):
    """The guard words the errors of the file and leaves others alone."""
    path = tmp_path / "file"
    path.write_text("old")

    @contextmanager
    def guard():
        try:
            yield
        except OSError as error:
            raise OSError("worded") from error

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def write():
        with _files.replacing(path, guard=guard) as file:
            if where == "write":
                monkeypatch.setattr(file, "_file", Full(file._file))
            file.write(b"new")
            if where == "block":
                full()

    class Full:
        def __init__(self, file):
            self.close, self.write = file.close, full

    if where == "sync":
        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"^worded$" if where != "block" else "No space"):
        write()
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


OTHER = """
import sys, pathlib
from ragsys_kernels._base import files as _files
place = pathlib.Path(sys.argv[1])
def wait():
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(code, place):
    """A process that has come to its `wait`, until its input is closed."""
    command = [sys.executable, "-c", OTHER + code, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "ready\n"
        yield other


def test_file_of_a_killed_process_is_removed(tmp_path):
    """And that of one at work is not: it takes its place later."""
    path = tmp_path / "file"
    code = "with _files.replacing_and_sweeping(place) as file: file.write(b'theirs'), wait()"
    for fate in ("killed", "finished"):
        with another_process(code, path) as other:
            if fate == "killed":
                other.kill()
                other.wait()
            assert len(os.listdir(tmp_path)) == 1
            with _files.replacing_and_sweeping(path) as file:
                file.write(b"ours")
            assert path.read_bytes() == b"ours"
            assert len(os.listdir(tmp_path)) == (1 if fate == "killed" else 2)
            path.unlink()
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"theirs"


def test_folder_is_synced_with_its_files_before_it_has_its_name(tmp_path, events, renaming):
    place = tmp_path / "folder"
    for number in range(2):
        events.clear()
        fill(place, str(number), overwrite=True)
        named = next(i for i, event in enumerate(events) if event[0] != "sync" and event[2] == "folder")
        aside = events[named][1]
        assert aside.startswith(".folder.")
        assert aside.endswith(".partial")
        assert {("sync", "file"), ("sync", "inner"), ("sync", aside)} <= set(events[:named])
        assert ("sync", tmp_path.name) in events[named:]
        assert text(place) == str(number)
        assert os.listdir(tmp_path) == ["folder"]


def test_folder_takes_an_empty_ones_place_and_no_others_unasked(tmp_path):
    place = tmp_path / "folder"
    place.mkdir()
    fill(place, "first")
    with pytest.raises(OSError, match="not empty"):
        fill(place, "second")
    assert text(place) == "first"
    assert os.listdir(tmp_path) == ["folder"]


def test_folder_is_there_at_every_moment(tmp_path, monkeypatch, renaming):
    """Whatever is renamed, synced or removed while another folder is put there."""
    place, seen = tmp_path / "folder", []
    fill(place, "old")

    def watched(function):
        def call(*arguments, **options):
            seen.append(text(_files.standing(place)))
            result = function(*arguments, **options)
            seen.append(text(_files.standing(place)))
            return result

        return call

    for name in ("rename", "unlink", "rmdir", "fsync", "open"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    fill(place, "new", overwrite=True)
    assert seen == sorted(seen, key=("old", "new").index)
    assert {"old", "new"} == set(seen)


def left_by_a_kill(place, ending):
    """What a process leaves that is killed with the folder under such a name."""
    folder = place.with_name(f".{place.name}.0123456789ab{ending}")
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("left")
    return folder


def test_what_killed_processes_left_is_removed(tmp_path):
    place = tmp_path / "folder"
    fill(place, "old")
    others = [
        tmp_path / name
        for name in (
            ".folder.0123456789ab.partially", ".folder.0123.partial", ".folder2.0123456789ab.partial",
            "folder.0123456789ab.partial", ".folder.x.0123456789ab.partial",
        )
    ]  # fmt: skip
    for other in others:
        other.mkdir()
    (tmp_path / ".folder.0123456789ac.partial").write_text("a file")
    left_by_a_kill(place, ".partial")
    left_by_a_kill(place, ".old")
    fill(place, "new", overwrite=True)
    expected = {"folder", ".folder.0123456789ac.partial", *(other.name for other in others)}
    assert set(os.listdir(tmp_path)) == expected
    assert text(place) == "new"


def test_what_another_process_writes_is_left_alone(tmp_path):
    """Also by a process that ends before the other: it is the lock that counts."""
    place = tmp_path / "folder"
    code = """
with _files.staging(place) as folder:
    (folder / "mine").write_text("x")
    wait()
    _files.put(folder, place, overwrite=True)
"""
    with another_process(code, place) as other:
        fill(place, "ours")
        assert len(os.listdir(tmp_path)) == 2
        other.stdin.close()
        assert other.wait() == 0
    assert os.listdir(place) == ["mine"]
    assert os.listdir(tmp_path) == ["folder"]


def test_folder_that_lost_its_name_is_found_and_gets_it_back(tmp_path):
    place = tmp_path / "folder"
    old = left_by_a_kill(place, ".old")
    assert _files.standing(place) == old
    _files.restore(place)
    assert _files.standing(place) == place
    assert text(place) == "left"
    assert os.listdir(tmp_path) == ["folder"]
    assert _files.standing(tmp_path / "other") == tmp_path / "other"


def test_last_one_filled_is_found(tmp_path):
    for number, text_of in ((5, "second"), (1, "first"), (9, "third")):
        old = tmp_path / f".folder.{number:012}.old"
        (old / "inner").mkdir(parents=True)
        (old / "inner" / "file").write_text(text_of)
        filled = ("first", "second", "third").index(text_of)
        os.utime(old, (filled, filled))
    assert text(_files.standing(tmp_path / "folder")) == "third"


def test_interrupted_renaming_leaves_the_old_folder(tmp_path, monkeypatch):
    place = tmp_path / "folder"
    fill(place, "old")
    monkeypatch.setattr(_files, "_exchange", lambda a, b: False)
    rename = os.rename

    def interrupted(a, b):
        if Path(a).suffix == ".partial":
            raise KeyboardInterrupt
        rename(a, b)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(place, "new", overwrite=True)
    assert text(place) == "old"
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("moment", [1, 2])
def test_another_process_puts_its_folder_there_meanwhile(tmp_path, monkeypatch, renaming, moment):
    """Before our first step, or between renaming the old one and the new one."""
    place = tmp_path / "folder"
    fill(place, "old")
    name, calls = ("_exchange", []) if _files._exchange.__name__ == "_exchange" else ("rename", [])
    module = _files if name == "_exchange" else os
    function = getattr(module, name)

    def meanwhile(a, b):
        calls.append(1)
        if len(calls) == moment:
            monkeypatch.setattr(module, name, function)
            fill(place, "other", overwrite=True)
            monkeypatch.setattr(module, name, meanwhile)
        return function(a, b)

    monkeypatch.setattr(module, name, meanwhile)
    fill(place, "ours", overwrite=True)
    assert text(place) == "ours"
    assert os.listdir(tmp_path) == ["folder"]


NOWHERE = ["s3://bucket/made", "simplecache::gs://bucket/made", Path("s3://bucket/made")]


@pytest.mark.parametrize("out", NOWHERE, ids=str)
def test_a_url_is_refused_where_only_local_paths_are_written(tmp_path, monkeypatch, out):
    """Before anything is read, and no folder named ``s3:`` is made."""
    import ragsys_kernels as rk
    from ragsys_kernels import offline
    from ragsys_kernels.comparison import compare, compare_files

    monkeypatch.chdir(tmp_path)
    rows = np.eye(8, dtype=np.float32)
    texts = {"model": "no-model", "out": out.parent / "v.npy" if isinstance(out, Path) else f"{out}/v.npy"}
    for op, argument, call in (
        ("Corpus", "path", lambda: rk.Corpus(rows).save(out)),
        ("build_corpus", "out", lambda: offline.build_corpus("no.npy", out)),
        ("compare", "out", lambda: compare(rows, rows, k=2, pool=4, out=out)),
        ("compare", "out", lambda: compare_files("no.npy", "no.npy", out)),
        ("embed", "out", lambda: offline.embed(texts="no.csv", **texts)),
        ("bias", "out", lambda: offline.bias(pairs="no.csv", **texts)),
    ):
        with pytest.raises(ValueError, match=f"^{op}: {argument} must be a local path, got "):
            call()
    assert not list(tmp_path.iterdir())
