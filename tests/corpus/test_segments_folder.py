"""Folders of segments: what is damaged is named, one process writes at a time, kills lose nothing."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import threading

import killed_segments
import numpy as np
import pytest
from fuzz_runs import printed
from segmented import Rows, check_equal, corpus_of, in_folder, in_segments

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels._base import files as _files
from ragsys_kernels.corpus import folder as corpus_folder
from ragsys_kernels.corpus import segments, versions

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def rows():
    return Rows(300)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three segments, the rows 3 and 120 deleted."""
    folder, rows = tmp_path_factory.mktemp("made") / "corpus", Rows(300)
    in_folder(folder, rows, [100, 30, 70])
    offline.delete_rows(rows.columns["ids"][[3, 120]], folder)
    return folder


@pytest.fixture
def path(made, tmp_path):
    return shutil.copytree(made, tmp_path / "corpus")


def names(path):
    return [segment["name"] for segment in segments.described(path)["segments"]]


def signed(path, change):
    file = path / "corpus.json"
    content = json.loads(file.read_text())
    del content["sha256"]
    change(content)
    file.write_bytes(corpus_folder.content_of(content))


def refused(path, match, verify=False):
    with pytest.raises(ValueError, match=match) as raised:
        rk.Corpus.load(path, verify=verify)
    message = str(raised.value)
    assert message.startswith("Corpus: path must ")
    assert str(path) in message
    assert "\n" not in message


# --- Damage.


def test_missing_segment_is_named(path):
    name = names(path)[1]
    shutil.rmtree(path / "segments" / name)
    refused(path, f"segment {name}: it is missing")
    assert segments.problems(path) == [f"segment {name}: it is missing"]


@pytest.mark.parametrize("file", ["data", "bias", "codes", "ids", "id_order"])
def test_damaged_segment_is_named(path, compiled, file):
    name = names(path)[2]
    changed = path / "segments" / name / f"{file}.npy"
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    refused(path, f"segment {name}: {file}.npy is damaged")  # small ones are read whole
    assert segments.problems(path) == [
        f"segment {name}: {file}.npy is damaged: its checksum is not the one it was written with"
    ]
    changed.unlink()
    refused(path, f"segment {name}: {file}.npy is missing")


@pytest.mark.parametrize("taken", ["another corpus", "another segment"])
def test_segment_of_another_is_named(path, tmp_path, taken):
    in_folder(tmp_path / "other", Rows(300, seed=1), [100, 30, 70])
    source = tmp_path / "other" if taken == "another corpus" else path
    first, _, last = names(path)
    shutil.rmtree(path / "segments" / last)
    shutil.copytree(source / "segments" / names(source)[0], path / "segments" / last)
    refused(path, f"segment {last}: corpus.json is damaged or another corpus's")
    assert [each.split(":")[0] for each in segments.problems(path)] == [f"segment {last}"]
    assert first != last


def as_pipe(file):
    os.mkfifo(file)


def as_device(file):
    file.symlink_to("/dev/null")


def as_giant(file):
    with open(file, "wb") as made:
        made.truncate(1 << 42)  # of no block: reading it whole is refused by the system


@pytest.mark.parametrize("other", [as_pipe, as_device, as_giant])
def test_descriptions_are_small_regular_files(path, other):
    """What has no end, or is waited for, is refused before it is read."""
    last = names(path)[-1]
    first = json.loads((path / "corpus.json").read_bytes())["segments"][0]
    got = r"has \d+ bytes, more than \d+" if other is as_giant else "is no regular file"
    for file, match in (
        (path / "segments" / last / "corpus.json", f"segment {last}: corpus.json {got}"),
        (path / "deleted" / f"{first['deleted']['name']}.bits",
         f"segment {first['name']}: the file of its deleted rows is damaged: .*bits {got}"),
        (path / "corpus.json", "corpus.json" if other is not as_giant else f"corpus.json {got}"),
    ):  # fmt: skip
        kept = file.rename(file.with_suffix(".kept"))
        other(file)
        refused(path, match)
        file.unlink()
        kept.rename(file)
    rk.Corpus.load(path, verify=True)


def test_damaged_deleted_rows_are_named(path):
    name = names(path)[0]
    with open(path / "corpus.json") as file:
        bits = path / "deleted" / (json.load(file)["segments"][0]["deleted"]["name"] + ".bits")
    content = bytearray(bits.read_bytes())
    content[0] ^= 1
    bits.write_bytes(content)
    refused(path, f"segment {name}: the file of its deleted rows is damaged")
    bits.unlink()
    refused(path, f"segment {name}: the file of its deleted rows is missing")


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole["segments"].pop(),
        lambda whole: whole["segments"][0].update(name="../../other"),
        lambda whole: whole["segments"][0].update(rows=99),
        lambda whole: whole["segments"].append(whole["segments"][0]),
        lambda whole: whole.update(segments=[], shape=[0, 13]),
        lambda whole: whole.update(shape=[201, 13]),
        lambda whole: whole.update(shape=[200, 12]),
        lambda whole: whole.update(metric="dot"),
        lambda whole: whole.update(columns=["bias"]),
        lambda whole: whole.pop("segments"),
        lambda whole: whole["segments"][0].update(max_norm="large"),
        lambda whole: whole["segments"][0]["deleted"].update(rows=2),
        lambda whole: whole.update(rows_per_segment=-1),
        lambda whole: whole["segments"][0].pop("deleted"),
    ],
)
def test_description_that_says_otherwise(path, change):
    signed(path, change)
    refused(path, "path must")


def test_segments_may_be_in_another_order(path, rows):
    """Rows and ids stay together; arrays that do not fit one after the other are copied."""
    signed(path, lambda whole: whole["segments"].reverse())
    corpus = rk.Corpus.load(path, verify=True)
    order = np.r_[130:200, 100:130, :100]
    np.testing.assert_array_equal(corpus.ids[:], rows.columns["ids"][order])
    np.testing.assert_array_equal(corpus.data, corpus_of(rows, order).data)
    assert np.flatnonzero(~corpus.live).tolist() == [90, 103]


def test_edited_description_is_refused(path):
    file = path / "corpus.json"
    file.write_text(file.read_text().replace('"rows": 30', '"rows": 31'))
    refused(path, "corpus.json is damaged or was edited")


def test_verify_finds_an_id_in_two_segments(path, tmp_path):
    rows = Rows(100, seed=4)
    other = in_folder(tmp_path / "other", rows, [100])
    rows.columns["ids"] = Rows(300).columns["ids"][100:200]
    made = corpus_of(rows, np.arange(100))
    inner = path / "segments" / names(path)[0]
    shutil.rmtree(inner)
    inner.mkdir()
    content = corpus_folder.fill(inner, made, made.ids)
    signed(path, lambda whole: whole["segments"][0].update(sha256=segments.hashlib.sha256(content).hexdigest()))
    assert len(other) == 100
    refused(path, "its ids must be unique, got .* twice", verify=True)


# --- Changes.


def test_changes_are_those_in_memory(path, rows):
    ids = rows.columns["ids"]
    expected = corpus_of(rows, np.arange(200)).delete(ids[[3, 120]])
    old = rk.Corpus.load(path)
    corpus = offline.append_corpus(corpus_of(rows, np.arange(200, 300)), path)
    expected = expected.append(**rows.part(np.arange(200, 300)))
    asked = rows.embeddings[:4]
    check_equal(corpus.search(asked, 50), expected.search(asked, 50), np.arange(300))
    done = offline.delete_rows([ids[250], ids[251], ids[3], 10**6], path)
    assert (done.rows, done.unknown) == (2, [ids[3], 10**6])
    assert str(done) == f"2 rows deleted, 2 ids not in the corpus: {ids[3]}, 1000000"
    expected = expected.delete(ids[[250, 251]])
    again = offline.append_corpus(corpus_of(rows, np.arange(5, 9)), path, on_duplicate="replace")
    expected = expected.append(**rows.part(np.arange(5, 9)), on_duplicate="replace")
    check_equal(again.search(asked, 50), expected.search(asked, 50), np.arange(304))
    compacted = offline.compact_corpus(path)
    left = np.flatnonzero(expected.live)
    assert len(compacted) == compacted.num_live == len(left)
    np.testing.assert_array_equal(compacted.ids[:], expected.ids[left])
    place = np.full(304, -1)
    place[left] = np.arange(len(left))
    check_equal(compacted.search(asked, 50), expected.search(asked, 50), place)
    assert [part["rows"] for part in segments.described(path)["segments"]] == [100, 100, 96]
    assert segments.described(path)["version"] == 6
    assert len(old) == 200  # who has loaded it keeps it
    check_equal(
        old.search(asked, 9), corpus_of(rows, np.arange(200)).delete(ids[[3, 120]]).search(asked, 9), np.arange(200)
    )


def test_refused_changes_leave_the_folder_as_it_was(path, rows):
    before = (path / "corpus.json").read_bytes()
    with pytest.raises(ValueError, match=r"append_corpus: ids must not be in the corpus, got .* in row 0"):
        offline.append_corpus(corpus_of(rows, np.arange(199, 210)), path)
    with pytest.raises(ValueError, match="append_corpus: new rows must have the D of the corpus, 13, got 14"):
        offline.append_corpus(corpus_of(Rows(9, dims=14), np.arange(9)), path)
    with pytest.raises(TypeError, match="ids must be integers"):
        offline.delete_rows(["a"], path)
    assert offline.delete_rows([10**6], path).unknown == [10**6]
    with pytest.raises(ValueError, match="compact_corpus: rows_per_segment must be at least 1"):
        offline.compact_corpus(path, rows_per_segment=0)
    assert (path / "corpus.json").read_bytes() == before
    assert sorted(os.listdir(path / "segments")) == in_segments(path)
    offline.delete_rows(rows.columns["ids"][:200], path)
    with pytest.raises(ValueError, match="must have a row that is not deleted, got none of 200"):
        offline.compact_corpus(path)


def test_other_folders_cannot_be_changed(tmp_path, rows):
    corpus_of(rows, np.arange(20)).save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"delete_rows: folder must be one of corpus build .*, got the saved corpus"):
        offline.delete_rows([1], tmp_path / "saved")
    with pytest.raises(ValueError, match="compact_corpus: folder must be one of corpus build"):
        offline.compact_corpus(tmp_path / "nothing")


def test_second_writer_is_refused_with_the_name_of_the_first(path, rows):
    with versions.changing("test", path):
        with pytest.raises(BlockingIOError, match=f"delete_rows: folder must .* in use by process {os.getpid()} on "):
            offline.delete_rows(rows.columns["ids"][:3], path)
        assert len(rk.Corpus.load(path)) == 200  # readers need no lock
    assert offline.delete_rows(rows.columns["ids"][:3], path).rows == 3


def test_lock_of_a_dead_process_is_no_lock(path, rows):
    code = (
        "import os, sys\nfrom ragsys_kernels.corpus import versions\n"
        "with versions.changing('test', sys.argv[1]):\n    os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, "-c", code, str(path)], env=environment, check=False)
    assert ended.returncode == -9
    assert (path / ".lock").exists()
    assert offline.delete_rows(rows.columns["ids"][:3], path).rows == 3
    assert not (path / ".lock").exists()


def test_full_disk_leaves_the_folder_as_it_was(path, rows, monkeypatch):
    before, real = (path / "corpus.json").read_bytes(), corpus_folder._write

    def full(file, *rest):
        if file.name == "codes.npy" or file.name == "bias.npy":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(corpus_folder, "_write", full)
        with pytest.raises(
            OSError, match=r"folder must be one that can be written, got .*: No space .*; it is as it was"
        ):
            offline.append_corpus(corpus_of(rows, np.arange(200, 300)), path)
    assert (path / "corpus.json").read_bytes() == before
    assert sorted(os.listdir(path / "segments")) == in_segments(path)
    assert len(offline.append_corpus(corpus_of(rows, np.arange(200, 300)), path)) == 300


def test_folder_takes_the_place_of_another(tmp_path, rows):
    path = tmp_path / "corpus"
    corpus_of(rows, np.arange(20)).save(path)
    np.save(tmp_path / "rows.npy", rows.embeddings)
    with pytest.raises(FileExistsError, match="must not exist"):
        offline.build_corpus(tmp_path / "rows.npy", path, rows_per_segment=128)
    for size in (128, 50, None, 300):
        corpus = offline.build_corpus(tmp_path / "rows.npy", path, rows_per_segment=size, overwrite=True)
        np.testing.assert_array_equal(corpus.data, rk.Corpus(rows.embeddings).data)
    offline.build_corpus(tmp_path / "rows.npy", path, rows_per_segment=128, overwrite=True)
    (path / "other.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"nothing else, got .*other.txt"):
        offline.build_corpus(tmp_path / "rows.npy", path, rows_per_segment=128, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["corpus", "rows.npy"]


def test_readers_beside_a_writer(path, rows):
    """Threads that load the folder while it changes see whole versions."""
    ids, failed, stop = rows.columns["ids"], [], threading.Event()

    def read():
        try:
            while not stop.is_set():
                corpus = rk.Corpus.load(path)
                live = np.flatnonzero(corpus.live) if corpus.live is not None else np.arange(len(corpus))
                order = np.argsort(ids)
                known = order[np.searchsorted(ids[order], corpus.ids[live])]
                np.testing.assert_array_equal(corpus.data[live], one.data[known])
                assert len(live) in (198, 199, 200, 297, 298, 299, 300)
        except BaseException as error:
            failed.append(error)

    one = corpus_of(rows, np.arange(300))
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(2):
        offline.append_corpus(corpus_of(rows, np.arange(200, 300)), path)
        offline.compact_corpus(path, rows_per_segment=60 + turn)
        offline.delete_rows(ids[200:], path)
    stop.set()
    for reader in readers:
        reader.join()
    assert not failed


def test_killed_changes_lose_nothing(tmp_path):
    """`make fuzz` has a hundred."""
    done = printed(killed_segments.__file__, tmp_path, 1, 4)
    assert (done["kills"], done["at steps"]) == (4, 2)
    assert done["loads"] >= 4


def test_memory_says_how_many_rows_a_segment_has(tmp_path):
    rows = np.random.default_rng(4).standard_normal((60_000, 32), dtype=np.float32)
    np.save(tmp_path / "rows.npy", rows)
    offline.build_corpus(tmp_path / "rows.npy", tmp_path / "c", memory="12M", dtype="int8")
    sizes = [segment["rows"] for segment in segments.described(tmp_path / "c")["segments"]]
    assert sum(sizes) == 60_000
    assert max(sizes) * 3 * (32 * 4 + 32) <= 12 << 20
    assert max(sizes) * 4 * (32 * 4 + 32 + 64) > 12 << 20
    with pytest.raises(ValueError, match=r"^build_corpus: memory must come without rows_per_segment, got 1G and 5$"):
        offline.build_corpus(tmp_path / "rows.npy", tmp_path / "d", memory="1G", rows_per_segment=5)
    with pytest.raises(ValueError, match=r"^build_corpus: memory must be a number of bytes, such as 2G, got 'much'$"):
        offline.build_corpus(tmp_path / "rows.npy", tmp_path / "d", memory="much")


class Stopped(BaseException):
    """As a kill: nothing is tidied up."""


def left_beside(place):
    return [each for each in place.parent.iterdir() if each.name.startswith(f".{place.name}.")]


def build_until(tmp_path, count, monkeypatch, error, **options):
    """Build from rows.npy, ended with an error once so many segments are written; return how many were added."""
    added, add = [], versions.Version.add

    def counted(self, *arguments):
        if len(added) == count:
            raise error
        add(self, *arguments)
        added.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(versions.Version, "add", counted)
        if error is Stopped:
            patch.setattr(_files, "_remove", lambda folder: None)
        with contextlib.suppress(error):
            offline.build_corpus(tmp_path / "rows.npy", tmp_path / "c", rows_per_segment=100, **options)
    return len(added)


@pytest.mark.parametrize(("count", "error"), [(1, Stopped), (4, KeyboardInterrupt), (6, Stopped)])
def test_a_build_that_was_ended_goes_on(tmp_path, monkeypatch, error, count):
    rows = np.random.default_rng(4).standard_normal((650, 16), dtype=np.float32)
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "ids.npy", np.arange(650)[::-1] * 3)
    names = [f"{i // 40}" if i % 3 else "often" for i in range(650)]  # each segment has new ones and old ones
    pq.write_table(pa.table({"source": names}), tmp_path / "names.parquet")
    options = {"ids": tmp_path / "ids.npy", "dtype": "float16", "groups": tmp_path / "names.parquet"}
    options["group_column"] = "source"
    assert build_until(tmp_path, count, monkeypatch, error, **options) == count
    assert not (tmp_path / "c").exists()
    (left,) = left_beside(tmp_path / "c")
    (left / "segments" / "half").mkdir()  # of a segment that was not whole
    assert build_until(tmp_path, -1, monkeypatch, error, **options) == 7 - count
    assert left_beside(tmp_path / "c") == []
    found = rk.Corpus.load(tmp_path / "c", verify=True)
    whole = rk.Corpus(rows, dtype="float16", ids=np.arange(650)[::-1] * 3)
    assert np.array_equal(found.data, whole.data)
    assert np.array_equal(found.ids[:], whole.ids[:])
    assert found.group_names[found.groups].tolist() == names
    assert len(found.group_names) == len(set(names))
    assert sorted(os.listdir(tmp_path / "c")) == ["corpus.json", "segments"]
    assert sorted(os.listdir(tmp_path / "c" / "segments")) == in_segments(tmp_path / "c")
    assert len(segments.described(tmp_path / "c")["segments"]) == 7


@pytest.mark.parametrize("change", ["rows", "dtype", "damage"])
def test_a_build_of_something_else_begins_anew(tmp_path, monkeypatch, change):
    rows = np.random.default_rng(4).standard_normal((650, 16), dtype=np.float32)
    np.save(tmp_path / "rows.npy", rows)
    build_until(tmp_path, 4, monkeypatch, Stopped)
    options, again = {}, 7
    if change == "rows":
        np.save(tmp_path / "rows.npy", rows[::-1])
    elif change == "dtype":
        options["dtype"] = "int8"
    else:
        (left,) = left_beside(tmp_path / "c")
        name = json.loads((left / "_build.json").read_bytes())["segments"][2]["name"]
        (left / "segments" / name / "data.npy").write_bytes(b"")
        again = 5  # the two before it are whole
    assert build_until(tmp_path, -1, monkeypatch, Stopped, **options) == again
    expected = rk.Corpus(rows[::-1] if change == "rows" else rows, **options)
    assert np.array_equal(rk.Corpus.load(tmp_path / "c", verify=True).data, expected.data)


def test_a_build_that_fails_leaves_nothing(tmp_path, monkeypatch):
    np.save(tmp_path / "rows.npy", np.ones((650, 16), np.float32))
    build_until(tmp_path, 4, monkeypatch, ZeroDivisionError)
    assert left_beside(tmp_path / "c") == []


def test_a_folder_is_not_damaged_because_too_many_files_are_open():
    with pytest.raises(OSError, match="Too many open files"), corpus_folder.one_form():
        raise OSError(errno.EMFILE, "Too many open files")
    with pytest.raises(corpus_folder.DamageError), corpus_folder.one_form():
        raise OSError(errno.EIO, "Input/output error")


def test_an_append_opens_no_segment_that_it_does_not_need(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).standard_normal((60, 4), dtype=np.float32)
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "ids.npy", np.arange(60))
    offline.build_corpus(tmp_path / "rows.npy", tmp_path / "plain", rows_per_segment=2)
    offline.build_corpus(tmp_path / "rows.npy", tmp_path / "named", ids=tmp_path / "ids.npy", rows_per_segment=2)
    seen, real = [], segments.segment_of
    monkeypatch.setattr(segments, "segment_of", lambda *given: (seen.append(given), real(*given))[1])
    grown = offline.append_corpus(tmp_path / "rows.npy", tmp_path / "plain")
    assert not seen
    assert grown.data.shape == (120, 4)  # which loads it
    assert len(seen) == 60
    assert type(grown) is rk.Corpus
    np.testing.assert_array_equal(grown.data, rk.Corpus(np.concatenate([rows, rows])).data)
    seen.clear()
    with pytest.raises(ValueError, match="ids must not be in the corpus, got 0 in row 0"):
        offline.append_corpus(tmp_path / "rows.npy", tmp_path / "named", ids=tmp_path / "ids.npy")
    assert len(seen) == 1  # that has the first id


def test_maps_keep_no_descriptor(path, rows):
    """A corpus of 1,000 segments is loaded where a process may have 1,024 files open."""
    before = len(os.listdir("/proc/self/fd"))
    corpus = rk.Corpus.load(path)
    inner = next(path.glob("segments/*/data.npy")).parent
    alone = rk.Corpus.load(inner)
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(corpus.data) > len(alone.data) > 0


def test_a_url_is_no_folder_to_write():
    with pytest.raises(ValueError, match=r"^append_corpus: folder must be a local path, got s3://bucket/corpus$"):
        offline.append_corpus(rk.Corpus(np.eye(4, dtype=np.float32)), "s3://bucket/corpus")


def test_a_version_is_named_when_all_of_it_is_on_disk(path, rows, monkeypatch):
    """Its segment and the deleted rows, with the names in their folders; and only then is the old one removed."""
    events, sync, replace = [], os.fsync, os.replace
    before = {*segments.files(path)}

    def synced(descriptor):
        sync(descriptor)
        events.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), path))

    def replaced(a, b):
        assert before <= {*map(str, (each.relative_to(path) for each in path.rglob("*")))}
        replace(a, b)
        events.append(None)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    taken = rows.part(np.arange(40))
    offline.append_corpus(rk.Corpus(**taken), path, on_duplicate="replace")
    assert events.count(None) == 1
    new = {*segments.files(path)} - before
    assert len([name for name in new if name.endswith(".bits")]) == 1
    folders = {os.path.dirname(name) for name in new} | {"segments"}
    assert new | folders <= {*events[: events.index(None)]}
    assert before - {*segments.files(path)}


def test_each_part_is_verified_by_the_names_of_all_groups(tmp_path):
    groups = ["a", "b", "c", "a", "b", "a"]
    table = pa.table({"vector": np.eye(6, dtype=np.float32).tolist(), "group": groups})
    pq.write_table(table, tmp_path / "rows.parquet")
    offline.build_corpus(tmp_path / "rows.parquet", tmp_path / "c", group_column="group", rows_per_segment=2)
    whole = rk.Corpus.load(tmp_path / "c")
    version = segments.version_of(tmp_path / "c")
    assert segments.group_names(tmp_path / "c", version)[:].tolist() == ["a", "b", "c"]
    for number in range(3):
        found = segments.part(tmp_path / "c", version, range(number, number + 1), whole.group_names, verify=True).rows
        assert found.group_names[found.groups].tolist() == groups[2 * number : 2 * number + 2]


@pytest.mark.parametrize("key", ["segments", "others"])
def test_descriptions_are_indented_json(key):
    """The same bytes as of ``json.dumps``, which takes longer."""
    odd = {"name": 'a\n "segments": []', "rows": 3, "x": [1, {"y": []}], "deleted": {"rows": 1, "sha256": "é"}}
    for parts in ([], [odd], [{"a": None}, odd, {"b": 1.5, "c": "\\,"}], [{}], [1], {"a": 1}, None):
        description = {"format": 3, "n": {"segments": []}, key: parts, "last": [1, 2]}
        content = corpus_folder.content_of(description)
        assert content == json.dumps(json.loads(content), indent=1).encode() + b"\n"
        assert {**json.loads(content), "sha256": 0} == {**description, "sha256": 0}
