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
import threading
import zlib
from pathlib import Path

import killed_saves
import numpy as np
import pytest
from fuzz_runs import printed
from segmented import is_mapped

import ragsys_kernels as rk
from ragsys_kernels.corpus import folder as corpus_folder

ARRAYS = (
    "data", "scales", "bias", "groups", "codes", "costs", "id_text", "id_offsets", "id_keys", "id_order", "group_text",
    "group_offsets", "group_keys", "group_order",
)  # fmt: skip
SMALL = {  # the dtype, the metric, whether there are bias and groups
    "float32": ("float32", "cosine", True), "float16": ("float16", "cosine", True), "int8": ("int8", "cosine", False),
    "dot": ("bfloat16", "dot", True), "int8_dot": ("int8", "dot", True),
}  # fmt: skip


def corpus_of(dtype="float32", metric="cosine", extras=True, rows=150, dims=13, seed=0, **columns):
    rng = np.random.default_rng(seed)
    bias, groups = (rng.standard_normal(rows), rng.integers(0, 9, rows)) if extras else (None, None)
    columns = {"bias": bias, "groups": groups, **columns}
    return rk.Corpus(rng.standard_normal((rows, dims)).astype(np.float32), metric=metric, dtype=dtype, **columns)


def large_of(seed):
    """With all that may belong to rows."""
    groups = [f"{10**seed} of {each}" for each in np.random.default_rng(seed).integers(0, 700, 15000)]
    columns = {"ids": [f"{10**seed}/{row}" for row in range(15000)], "groups": groups, "costs": np.arange(15000) + seed}
    return corpus_of("float16", rows=15000, dims=50, seed=seed, **columns)


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
        large_of(seed).save(folder / name)
    assert sum(file.stat().st_size for file in (folder / "corpus").iterdir()) > 1.2 * corpus_folder._SMALL
    return folder


@pytest.fixture
def saved(large, tmp_path):
    shutil.copytree(large / "corpus", tmp_path / "corpus")
    return tmp_path / "corpus"


def test_large_folder_is_loaded_without_reading_its_rows(large, monkeypatch):
    monkeypatch.setattr(corpus_folder, "_is_right", lambda file, known: pytest.fail("read"))
    loaded, expected = rk.Corpus.load(large / "corpus"), large_of(1)
    for array, same in (
        *((getattr(loaded, name), getattr(expected, name)) for name in ARRAYS[:6]),
        *zip(loaded.ids.arrays().values(), expected.ids.arrays().values(), strict=True),
    ):
        assert is_mapped(array)
        np.testing.assert_array_equal(array, same)
    assert (loaded.max_norm, loaded.code_error) == (expected.max_norm, expected.code_error)


@pytest.mark.parametrize("damage", ["deleted", "zeroed", "another_corpus", "one_row_later", "longer", "link", "folder"])
def test_damaged_array_is_found_by_loading(compiled, saved, large, damage):
    for name in ARRAYS:
        file, reason = saved / f"{name}.npy", ""
        array, content = np.load(file), file.read_bytes()
        if damage in ("deleted", "link", "folder"):
            file.unlink()
        if damage == "zeroed":
            np.save(file, np.zeros_like(array))
        elif damage == "another_corpus":
            shutil.copy(large / "other" / file.name, file)
        elif damage == "one_row_later":
            np.save(file, np.roll(array, 1, axis=0))
        elif damage == "longer":
            file.write_bytes(content + b"\0")
            reason = f"has {len(content) + 1} bytes, not {len(content)}$"
        elif damage == "link":
            file.symlink_to(saved / "nowhere.npy")
        elif damage == "folder":
            file.mkdir()
        text = name.split("_")[0] + "_text"  # whose length is the last of the offsets
        match = (
            rf"^Corpus: path must hold (the files that Corpus\.save wrote, .*: {name}\.npy {reason}|.* another {text} )"
        )
        with pytest.raises(ValueError, match=match):
            rk.Corpus.load(saved)
        file.rmdir() if damage == "folder" else file.unlink(missing_ok=True)
        file.write_bytes(content)


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
    right = "right: Corpus(N=15000, D=50, metric='cosine', dtype='float16', bias, groups=str, costs, ids=str)\n"
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
    assert errors.startswith("error: corpus verify: path must be a folder written by ")
    assert errors.count("\n") == 1


# --- Lies in the description.


VALUES = (
    None, 0, -1, 1e308, float("nan"), float("inf"), "", "x", [], {}, True, 10**30, [2, 3], [10**9, 10**9], [0, 0],
    [1.5, 2], ["a"], {"data.npy": {}}, {"data.npy": 3}, {"../data.npy": {"bytes": 1}},
)  # fmt: skip


@pytest.mark.parametrize("kind", ["float16", "int8"])  # under "dot" a norm of 1e308 refuses queries
def test_odd_descriptions_are_refused_or_change_nothing(tmp_path, kind):
    """With checksums that fit: any field, and any of what is said of a file, with any value."""
    path, refused = tmp_path / "corpus", 0
    corpus_of(*SMALL[kind]).save(path)
    expected = found(rk.Corpus.load(path))
    content = (path / "corpus.json").read_bytes()
    said = json.loads(content)
    of_file = said["files"]["data.npy"]
    names = [*sorted(said.keys() - {"sha256"}), "more", *((field,) for field in of_file)]
    for number, (name, value) in enumerate(itertools.product(names, VALUES)):
        of_files = {**said["files"], "data.npy": {**of_file, name[0]: value}}
        signed(path, **({"files": of_files} if isinstance(name, tuple) else {name: value}))
        refused += check(path, expected, verify=number % 2 == 0)
        (path / "corpus.json").write_bytes(content)
    assert refused > 100


# --- Saving.


@pytest.mark.parametrize("kind", SMALL)
def test_loaded_corpus_equals_the_saved_one(tmp_path, kind):
    corpus = corpus_of(*SMALL[kind])
    corpus.save(tmp_path / "a" / "corpus")
    loaded = rk.Corpus.load(str(tmp_path / "a" / "corpus"))
    assert repr(loaded) == repr(corpus)
    assert is_mapped(loaded.data)
    assert not loaded.data.flags.writeable
    for name in ARRAYS[:6]:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(corpus, name))
    for a, b in zip(found(loaded), found(corpus), strict=True):
        np.testing.assert_array_equal(a, b)


def test_existing_corpus_is_replaced_only_if_asked(tmp_path):
    path = tmp_path / "corpus"
    path.mkdir()  # an empty folder is taken
    corpus_of().save(path)
    arrays = {file.name: file.read_bytes() for file in path.iterdir()}
    assert set(arrays) - {"codes.npy"} == {"bias.npy", "corpus.json", "data.npy", "groups.npy"}
    with pytest.raises(FileExistsError, match=r"pass overwrite=True to replace a corpus$"):
        corpus_of("float16").save(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == arrays
    rk.Corpus.load(path).save(path, overwrite=True)  # also the one that is mapped from it
    assert {file.name: file.read_bytes() for file in path.iterdir()} == arrays
    corpus_of("float16", extras=False).save(path, overwrite=True)
    assert rk.Corpus.load(path).dtype == "float16"
    assert set(os.listdir(path)) - {"codes.npy"} == {"corpus.json", "data.npy", "scales.npy"}
    assert os.listdir(tmp_path) == ["corpus"]


def test_options_of_folders_are_true_or_false(tmp_path):
    with pytest.raises(TypeError, match=r"^Corpus: overwrite must be True or False, got 'no'$"):
        corpus_of().save(tmp_path / "c", overwrite="no")
    corpus_of().save(tmp_path / "c")
    with pytest.raises(TypeError, match=r"^Corpus: verify must be True or False, got ndarray$"):
        rk.Corpus.load(tmp_path / "c", verify=np.ones(2))


@pytest.mark.parametrize("content", ["dear", "{}", "[1]", "not json", '{"format": 1}'])
def test_what_is_no_corpus_is_never_replaced_nor_loaded(tmp_path, content):
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder").mkdir()
    inner = tmp_path / "folder" / ("corpus.json" if content != "dear" else "to_keep.txt")
    for file in (tmp_path / "file", inner):
        file.write_text(content)
    for path, overwrite in itertools.product((tmp_path / "file", tmp_path / "folder"), (False, True)):
        with pytest.raises(FileExistsError, match=r"^Corpus: path must "):
            corpus_of().save(path, overwrite=overwrite)
    for name in ("missing", "empty", "file", *(["folder"] if content == "dear" else [])):
        with pytest.raises(ValueError, match=r"^Corpus: path must be a folder written by Corpus\.save, got "):
            rk.Corpus.load(tmp_path / name)
    assert (tmp_path / "file").read_text() == inner.read_text() == content
    assert sorted(os.listdir(tmp_path)) == ["empty", "file", "folder"]


def test_kills_while_saving_lose_nothing(tmp_path):
    """Of the renaming one by one too, in the middle of which there is no folder of that name."""
    done = printed(killed_saves.__file__, tmp_path, 2, 25)
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
