"""The folder of a saved corpus: what is changed in it is found, and a kill while saving loses nothing."""

import errno
import hashlib
import itertools
import json
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import killed_saves
import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.corpus import folder as corpus_folder

ARRAYS = ("data", "scales", "bias", "groups", "codes")
SMALL = {  # the dtype, the metric, whether there are bias and groups
    "float32": ("float32", "cosine", True), "float16": ("float16", "cosine", True), "int8": ("int8", "cosine", False),
    "dot": ("bfloat16", "dot", True), "int8_dot": ("int8", "dot", True),
}  # fmt: skip


def corpus_of(dtype="float32", metric="cosine", extras=True, rows=150, dims=13, seed=0):
    rng = np.random.default_rng(seed)
    bias, groups = (rng.standard_normal(rows), rng.integers(0, 9, rows)) if extras else (None, None)
    return rk.Corpus(rng.standard_normal((rows, dims)).astype(np.float32), bias, groups, metric, dtype)


def signed(path, **changes):
    """Change the description, checksum and all; None removes a field."""
    file = path / "corpus.json"
    content = {**json.loads(file.read_text()), **changes}
    del content["sha256"]
    file.write_bytes(corpus_folder.content_of({name: value for name, value in content.items() if value is not None}))


def found(corpus):
    """What it selects and finds."""
    queries = np.random.default_rng(9).standard_normal((3, corpus.dims)).astype(np.float32)
    picks = [corpus.select(queries, 6, pool=pool, method=method) for pool in (20, None) for method in ("mmr", "vrsd")]
    return [array for each in (*picks, corpus.search(queries, 9)) for array in each]


def check(path, expected, verify=False):
    """A damaged folder is refused in the one form, or selects as before; returns whether it was refused."""
    try:
        loaded = rk.Corpus.load(path, verify=verify)
    except ValueError as error:
        message = str(error)
    else:
        for a, b in zip(found(loaded), expected, strict=True):
            np.testing.assert_array_equal(a, b)
        return False
    assert message.startswith("Corpus: path must ")
    assert str(path) in message
    assert "\n" not in message
    return True


# --- What is cheap to find.


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A folder of more than is read whole when it is loaded, with another corpus of the same sizes beside it."""
    folder = tmp_path_factory.mktemp("large")
    for name, seed in (("corpus", 1), ("other", 2)):
        corpus_of("float16", rows=15000, dims=50, seed=seed).save(folder / name)
    assert sum(file.stat().st_size for file in (folder / "corpus").iterdir()) > 1.2 * corpus_folder._SMALL
    return folder


@pytest.fixture
def saved(large, tmp_path):
    shutil.copytree(large / "corpus", tmp_path / "corpus")
    return tmp_path / "corpus"


def arrays_in(path):
    return [name for name in ARRAYS if (path / f"{name}.npy").exists()]


def test_large_folder_is_loaded_without_reading_its_rows(large, monkeypatch):
    monkeypatch.setattr(corpus_folder, "_is_right", lambda file, known: pytest.fail("read"))
    loaded = rk.Corpus.load(large / "corpus")
    expected = corpus_of("float16", rows=15000, dims=50, seed=1)
    for name in arrays_in(large / "corpus"):
        array = getattr(loaded, name)
        assert isinstance(array.base, np.memmap)
        np.testing.assert_array_equal(array, getattr(expected, name))
    assert (loaded.max_norm, loaded.code_error) == (expected.max_norm, expected.code_error)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("damage", ["deleted", "zeroed", "another_corpus", "one_row_later", "longer", "link", "folder"])
def test_damaged_array_is_found_by_loading(compiled, saved, large, name, damage):
    file = saved / f"{name}.npy"
    array = np.load(file)
    if damage in ("deleted", "link", "folder"):
        file.unlink()
    if damage == "zeroed":
        np.save(file, np.zeros_like(array))
    elif damage == "another_corpus":
        shutil.copy(large / "other" / file.name, file)
    elif damage == "one_row_later":
        np.save(file, np.roll(array, 1, axis=0))
    elif damage == "longer":
        file.write_bytes(file.read_bytes() + b"\0")
        message = rf": {name}\.npy has {file.stat().st_size} bytes, not {file.stat().st_size - 1}$"
        with pytest.raises(ValueError, match=message):
            rk.Corpus.load(saved)
    elif damage == "link":
        file.symlink_to(saved / "nowhere.npy")
    elif damage == "folder":
        file.mkdir()
    with pytest.raises(
        ValueError, match=rf"^Corpus: path must hold the files that Corpus\.save wrote, .*: {name}\.npy "
    ):
        rk.Corpus.load(saved)


@pytest.mark.parametrize("row", [0, -1], ids=["first", "last"])
def test_rows_at_the_ends_are_looked_at(saved, row):
    array = np.load(saved / "data.npy")
    array[row, 3] += 1
    np.save(saved / "data.npy", array)
    with pytest.raises(ValueError, match=r": data\.npy is damaged or another corpus's"):
        rk.Corpus.load(saved)


@pytest.mark.parametrize("change", ["byte_order", "fortran_order", "element_type", "shape"])
def test_array_read_in_another_way_is_found(saved, change):
    """As many bytes, with sizes and checksums that fit: what is in the header counts."""
    file = saved / "data.npy"
    array = np.load(file)
    other = {
        "byte_order": array.astype(">f2"), "fortran_order": np.asfortranarray(array), "element_type": array.view("i2"),
        "shape": array.reshape(-1, 25),
    }  # fmt: skip
    np.save(file, other[change])
    files = json.loads((saved / "corpus.json").read_text())["files"]
    files["data.npy"] = corpus_folder._write(file, other[change], 64)
    signed(saved, files=files)
    with pytest.raises(ValueError, match=r"^Corpus: path must hold arrays that fit .*, got another data in "):
        rk.Corpus.load(saved)


@pytest.mark.parametrize("name", ["bias", "groups", "scales"])
def test_array_that_is_not_the_corpuss_is_refused(tmp_path, large, name):
    path = tmp_path / "corpus"
    corpus_of(extras=False).save(path)
    shutil.copy(large / "other" / f"{name}.npy", path)
    with pytest.raises(ValueError, match=f": {name}.npy is not one of its files$"):
        rk.Corpus.load(path)


def test_other_files_beside_the_arrays_are_left_alone(tmp_path):
    corpus_of().save(tmp_path / "corpus")
    (tmp_path / "corpus" / "README.txt").write_text("of mine")
    assert len(rk.Corpus.load(tmp_path / "corpus", verify=True)) == 150
    with pytest.raises(FileExistsError, match=r"and nothing else, got .* with 'README\.txt'$"):
        corpus_of().save(tmp_path / "corpus", overwrite=True)
    assert (tmp_path / "corpus" / "README.txt").read_text() == "of mine"


@pytest.mark.parametrize("value", [float("nan"), -1e-3, float("inf"), "0.1", None, True, 1])
@pytest.mark.parametrize("name", ["code_error", "max_norm"])
def test_size_that_is_none_is_refused(saved, name, value):
    signed(saved, **{name: value})
    with pytest.raises(ValueError, match=rf"^Corpus: path must hold .*{name}"):
        rk.Corpus.load(saved)


def test_edited_description_is_refused(saved):
    file = saved / "corpus.json"
    text = file.read_text()
    for changed in (text.replace('"float16"', '"bfloat16"'), text + " ", text.replace("\n ", "\n\t", 1)):
        assert changed != text
        file.write_text(changed)
        with pytest.raises(ValueError, match=r"corpus\.json is damaged or was edited$"):
            rk.Corpus.load(saved)


@pytest.mark.parametrize(
    "path", [None, 3, ["a"], np.zeros(2), "a\0b"], ids=["none", "number", "list", "array", "null_byte"]
)
def test_what_is_no_path_is_refused(path):
    for call in (rk.Corpus.load, corpus_of().save):
        with pytest.raises((TypeError, ValueError), match=r"^Corpus: path must be "):
            call(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_pipe_in_the_place_of_a_file_is_not_waited_for(saved):
    for name in ("bias.npy", "corpus.json"):
        (saved / name).unlink()
        os.mkfifo(saved / name)
        with pytest.raises(ValueError, match=r"^Corpus: path must "):
            rk.Corpus.load(saved)
        with pytest.raises(FileExistsError, match=r"^Corpus: path must "):
            corpus_of().save(saved, overwrite=True)


# --- Verifying.


def test_any_changed_byte_is_found(saved):
    dice = random.Random(3)
    assert rk.Corpus.load(saved, verify=True).dims == 50
    assert corpus_folder.problems(saved) == []
    for file in sorted(saved.iterdir()):
        content = file.read_bytes()
        for _ in range(8):
            changed = bytearray(content)
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
            file.write_bytes(changed)
            with pytest.raises(ValueError, match=rf"^Corpus: path must .*{file.name}|be a folder written by"):
                rk.Corpus.load(saved, verify=True)
        if file.suffix == ".npy":
            problem = f"{file.name} is damaged: its checksum is not the one it was written with"
            assert corpus_folder.problems(saved) == [problem]
        file.write_bytes(content)


@pytest.fixture
def verify(capsys):
    """The command; returns its exit code and what it printed, to either."""
    app = pytest.importorskip("ragsys_kernels.cli").app

    def run(path):
        with pytest.raises(SystemExit) as ended:
            app(["corpus", "verify", str(path)])
        return ended.value.code, *capsys.readouterr()

    return run


def test_verify_command(saved, verify):
    right = "right: Corpus(N=15000, D=50, metric='cosine', dtype='float16', bias, groups)\n"
    assert verify(saved) == (0, right, "")
    content = bytearray((saved / "data.npy").read_bytes())
    content[-1234] ^= 1
    (saved / "data.npy").write_bytes(content)
    (saved / "bias.npy").unlink()
    found = "bias.npy is missing\ndata.npy is damaged: its checksum is not the one it was written with\n"
    assert verify(saved) == (1, found, "")


def test_verify_command_where_nothing_can_be_verified(tmp_path, verify):
    code, out, errors = verify(tmp_path / "no")
    assert (code, out) == (1, "")
    assert errors.startswith("error: verify: Corpus: path must be a folder written by ")
    assert errors.count("\n") == 1


# --- Damage of all kinds.


VALUES = (
    None, 0, -1, 1e308, float("nan"), float("inf"), "", "x", [], {}, True, 10**30, [2, 3], [10**9, 10**9], [0, 0],
    [1.5, 2], ["a"], {"data.npy": {}}, {"data.npy": 3}, {"../data.npy": {"bytes": 1}},
)  # fmt: skip


def damage(path, other, dice):
    """Damage a folder in one of many ways; returns which."""
    files = sorted(path.iterdir())
    file = dice.choice(files)
    content = file.read_bytes()
    arrays = [each for each in files if each.suffix == ".npy"]
    kind = dice.choice((
        "flip", "flip", "flip_header", "flip_header", "header", "cut", "cut_header", "longer", "delete", "swap",
        "foreign", "zero", "empty", "folder", "value", "signed_value", "signed_file", "random",
    ))  # fmt: skip
    if kind in ("flip_header", "header", "cut_header", "swap"):
        file = dice.choice(arrays)
        content = file.read_bytes()
    changed = bytearray(content)
    if kind in ("flip", "flip_header"):
        place = dice.randrange(len(changed) if kind == "flip" else 128)
        changed[place] ^= 1 << dice.randrange(8)
        file.write_bytes(changed)
    elif kind == "header":
        header = dice.choice((
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (150, 13", b"(" * 117, b"'" * 117, b"{" + b"9" * 116,
            b"{'descr': '|O', 'fortran_order': False, 'shape': (150, 13), }", b"{'descr': '<f4'}", b"\\\n\t 'a", b"[",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 9), }",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 13), }", b"0x", b"{1: 2}",
            b"{'descr': [('a', '<f4', (150,))], 'fortran_order': False, 'shape': (13,), }", b"\xff\xfe", b"1 if",
            b"{'descr': [], 'a': 1}",
        ))  # fmt: skip
        changed[10:128] = header.ljust(117)[:117] + b"\n"
        file.write_bytes(changed)
    elif kind in ("cut", "cut_header"):
        file.write_bytes(changed[: dice.randrange(len(changed) if kind == "cut" else 129)])
    elif kind == "longer":
        file.write_bytes(content + dice.randbytes(dice.choice((1, 64, 4096))))
    elif kind == "delete":
        file.unlink()
    elif kind == "swap":
        second = dice.choice([each for each in arrays if each != file])
        file.write_bytes(second.read_bytes())
        second.write_bytes(content)
    elif kind == "foreign":
        shutil.copy(other / file.name, file)
    elif kind in ("zero", "random"):
        begin = dice.choice((0, 128)) if file.suffix == ".npy" else 0
        size = len(content) - begin
        file.write_bytes(content[:begin] + (bytes(size) if kind == "zero" else dice.randbytes(size)))
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "folder":
        file.unlink()
        file.mkdir()
    else:
        description = json.loads((path / "corpus.json").read_text())
        if kind == "signed_file":
            if "files" not in description:
                return damage(path, other, dice)
            name = dice.choice(sorted(description["files"]))
            changed = {
                **description["files"][name],
                dice.choice(("bytes", "sha256", "sample_sha256")): dice.choice(VALUES),
            }
            signed(path, files={**description["files"], name: changed})
        else:
            name, value = dice.choice(sorted(description)), dice.choice(VALUES)
            if kind == "signed_value" and "files" in description:
                signed(path, **({name: value} if name != "sha256" else {"more": value}))
            else:
                (path / "corpus.json").write_text(json.dumps({**description, name: value}))
    return kind


def test_damaged_folders_are_refused_or_select_as_before(tmp_path):
    dice = random.Random(2)
    refused = dict.fromkeys(SMALL, 0)
    expected = {}
    for name, (dtype, metric, extras) in SMALL.items():
        for folder, seed in (("right", 1), ("other", 2)):
            corpus = corpus_of(dtype, metric, extras, seed=seed)
            corpus.save(tmp_path / folder / name)
            if folder == "right":
                expected[name] = found(corpus)
    kinds = set()
    for _ in range(400):
        name = dice.choice(list(SMALL))
        path = tmp_path / "damaged"
        shutil.copytree(tmp_path / "right" / name, path)
        before = {file: file.read_bytes() for file in path.iterdir()}
        kind = damage(path, tmp_path / "other" / name, dice)
        kinds.add(kind)
        same = all(file.is_file() and file.read_bytes() == content for file, content in before.items())
        refused[name] += check(path, expected[name])
        assert check(path, expected[name], verify=True) == (not same) or kind.startswith("signed"), kind
        shutil.rmtree(path)
    assert len(kinds) == 16
    assert min(refused.values()) > 10


# --- Saving.


def test_kills_while_saving_lose_nothing(tmp_path):
    """Of the renaming one by one too, in the middle of which there is no folder of that name."""
    command = [sys.executable, killed_saves.__file__, str(tmp_path), "2", "25"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    done = json.loads(ended.stdout)
    assert done["kills"] == 25
    assert done["old"] > 0
    assert done["new"] > 0
    assert 0 < done["exchanged"] < 25
    assert done["turns"] >= 10
    assert done["left beside"] > 10
    assert os.listdir(tmp_path) == []


def test_link_to_a_corpus_stays_a_link(tmp_path):
    corpus_of().save(tmp_path / "v1")
    (tmp_path / "current").symlink_to("v1")
    corpus_of("float16").save(tmp_path / "current", overwrite=True)
    assert (tmp_path / "current").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["current", "v1"]
    assert rk.Corpus.load(tmp_path / "v1").dtype == rk.Corpus.load(tmp_path / "current").dtype == "float16"


def test_saved_folder_has_the_permissions_of_other_files(tmp_path):
    before = os.umask(0o027)
    try:
        corpus_of().save(tmp_path / "corpus")
    finally:
        os.umask(before)
    mode = {
        file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "corpus", tmp_path / "corpus/data.npy")
    }
    assert mode == {"corpus": 0o750, "data.npy": 0o640}


def test_corpus_that_lost_its_name_is_there_still(tmp_path):
    """As a kill leaves it where folders are renamed one by one."""
    corpus_of().save(tmp_path / "corpus")
    (tmp_path / "corpus").rename(tmp_path / ".corpus.0123456789ab.old")
    assert len(rk.Corpus.load(tmp_path / "corpus", verify=True)) == 150
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        corpus_of(rows=20).save(tmp_path / "corpus")
    assert os.listdir(tmp_path) == ["corpus"]
    assert len(rk.Corpus.load(tmp_path / "corpus")) == 150


def test_another_format_is_refused(saved):
    signed(saved, format=1)
    with pytest.raises(ValueError, match=r"^Corpus: path must have format 2 or 3, got 1 in "):
        rk.Corpus.load(saved)


@pytest.mark.parametrize("content", ["{}", "[1]", "not json", '{"format": 1}'])
def test_folder_with_a_corpus_json_of_something_else_is_not_replaced(tmp_path, content):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "corpus.json").write_text(content)
    with pytest.raises(FileExistsError, match=r"^Corpus: path must be a saved corpus to be overwritten, got "):
        corpus_of().save(tmp_path / "corpus", overwrite=True)
    assert (tmp_path / "corpus" / "corpus.json").read_text() == content


def test_damaged_corpus_can_be_replaced(saved):
    (saved / "data.npy").write_bytes(b"")
    (saved / "bias.npy").unlink()
    corpus_of().save(saved, overwrite=True)
    assert len(rk.Corpus.load(saved, verify=True)) == 150


def test_corpus_is_loaded_whole_while_it_is_replaced(tmp_path):
    """Never with the description of one and the arrays of another; they differ in everything."""
    path = tmp_path / "corpus"
    made = [corpus_of("float32", rows=50), corpus_of("float16", rows=70, extras=False)]
    made[0].save(path)
    stop = threading.Event()

    def replace():
        number = 0
        while not stop.is_set():
            number += 1
            made[number % 2].save(path, overwrite=True)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        seen = [repr(rk.Corpus.load(path, verify=True)) for _ in range(150)]
    finally:
        stop.set()
        thread.join()
    assert set(seen) == {repr(corpus) for corpus in made}


# --- Verifying quickly.


def unsampled(path):
    """Flip a bit that no sample of rows has."""
    content = bytearray((path / "data.npy").read_bytes())
    content[len(content) // 2 + 1000] ^= 4
    (path / "data.npy").write_bytes(content)


@pytest.mark.parametrize("block", [1 << 24, 1 << 20, 12_345])
def test_blocks_are_summed_as_the_format_says(tmp_path, monkeypatch, block):
    monkeypatch.setattr(corpus_folder, "_SUMMED", block)
    corpus_of("float16", rows=15000, dims=50).save(tmp_path / "corpus")
    files = json.loads((tmp_path / "corpus" / "corpus.json").read_text())["files"]
    for name, said in files.items():
        content = (tmp_path / "corpus" / name).read_bytes()
        if name != "data.npy":  # of less than 1 MB
            assert said["sha256"] == hashlib.sha256(content).hexdigest()
            continue
        sums = [zlib.crc32(content[begin : begin + block]) for begin in range(0, len(content), block)]
        assert said["blocks_crc32"] == zlib.crc32(b"".join(struct.pack("<I", each) for each in sums))
    rk.Corpus.load(tmp_path / "corpus", verify=True)
    unsampled(tmp_path / "corpus")
    rk.Corpus.load(tmp_path / "corpus")
    with pytest.raises(ValueError, match=r"data\.npy is damaged: its checksum is not the one it was written with"):
        rk.Corpus.load(tmp_path / "corpus", verify=True)


# --- Full disks.


@pytest.mark.parametrize("step", ["write_bytes", "fsync", "mkdir", "rename"])
def test_a_disk_that_is_full_in_any_step(tmp_path, monkeypatch, step):
    place = tmp_path / "corpus"
    corpus_of(seed=3).save(place)
    before = {file.name: file.read_bytes() for file in place.iterdir()}

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if step == "rename":  # on a file system that cannot exchange two names
            patch.setattr(corpus_folder._files, "_exchange", lambda *_: False)
        patch.setattr(*{"write_bytes": (Path, "write_bytes"), "mkdir": (Path, "mkdir")}.get(step, (os, step)), full)
        with pytest.raises(OSError, match=r"^Corpus: path .*: No space left on device; it is as it was$") as caught:
            corpus_of(seed=4).save(place, overwrite=True)
        if step != "rename":
            with pytest.raises(OSError, match=r"^Corpus: path .*: No space left on device; nothing was written$"):
                corpus_of(seed=4).save(tmp_path / "new")
    assert caught.value.errno == errno.ENOSPC
    assert [file.name for file in tmp_path.iterdir()] == ["corpus"]
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before


# --- Ids.


def test_ids_that_are_there_twice_are_refused(tmp_path, monkeypatch):
    """Of folders that another program has written, with checksums that fit."""
    for given, twice in (
        ([5, 9, 7, 9, 5, 11], "9 in rows 1 and 3"),
        ([5, 7, 7, 9], "7 in rows 1 and 2"),
        (["b", "a", "c", "b"], "'b' in rows 0 and 3"),
    ):
        with monkeypatch.context() as patch:
            for check in ("_check_unique", "_check_unique_texts"):
                patch.setattr(f"ragsys_kernels.corpus.ids.{check}", lambda *_: None)
            rk.Corpus(np.eye(len(given), dtype=np.float32), ids=given).save(tmp_path / "corpus", overwrite=True)
        with pytest.raises(ValueError, match=rf"^Corpus: path must .*: ids must be unique, got {twice}$"):
            rk.Corpus.load(tmp_path / "corpus")


@pytest.mark.parametrize("ids", [[5, 9, 7, 3], ["b", "a", "é", "d"]], ids=["int", "str"])
def test_a_lookup_that_is_not_of_the_ids_is_refused(tmp_path, ids):
    path = tmp_path / "corpus"
    rk.Corpus(np.eye(4, dtype=np.float32), ids=ids).save(path)
    files = json.loads((path / "corpus.json").read_text())["files"]
    lies = {"id_order": [3, 4, -1], "id_offsets": [2, 9, -1, 0], "id_keys": [0], "id_text": [255, 128], "ids": [8]}
    for name, values in lies.items():
        for row, value in itertools.product((1, 2), values if (path / f"{name}.npy").exists() else ()):
            array = np.load(path / f"{name}.npy")
            if array[row] == value:
                continue
            good, before = array.copy(), (path / "corpus.json").read_bytes()
            array[row] = value
            said = corpus_folder._write(path / f"{name}.npy", array, 4)
            signed(path, files={**files, f"{name}.npy": said})
            with pytest.raises(ValueError, match=r"^Corpus: path must hold .*(: ids must|got another id_)"):
                rk.Corpus.load(path)
            np.save(path / f"{name}.npy", good)
            (path / "corpus.json").write_bytes(before)
    rk.Corpus.load(path)
