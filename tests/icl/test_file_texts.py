"""Texts of a folder: which files are predicted, which are retrieved from, and that they have nothing in common."""

import gzip
import shutil
import sysconfig
from pathlib import Path

import pytest

from ragsys_kernels.icl.datasets import Passage, folder_texts, python_texts


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_every_fifth_file_is_predicted(tmp_path):
    files = {f"{name}.txt": f"text of {name}\n  more\n\n" for name in "abcdefghij"}
    files |= {"e.bin": b"\xff\xfe", "f.zero": b"a\0b", ".git/config": "hidden", "k.empty": " \n"}
    files["a.txt.gz"] = gzip.compress(files.pop("a.txt").encode())
    text, found = folder_texts(write(tmp_path / "pages", files))
    assert text.name == "pages"
    assert [article.title for article in text.articles] == ["e.txt", "j.txt"]
    assert text.text == "text of e\n  more\ntext of j\n  more\n"
    assert [passage.title for passage in found.passages] == [f"{name}.txt" for name in "abcdfghi"]
    assert found.passages[0] == Passage("a.txt", "text of a\n  more")
    assert list(text.source) == ["10 files, 2 of them evaluated"]
    changed = write(tmp_path / "pages", {"b.txt": "other"})
    assert folder_texts(changed)[0].source != text.source


def test_passages_keep_the_layout_and_have_nothing_of_the_text(tmp_path):
    code = "def one():\n    return 1\n\n\ndef two():\n    if one():\n        return 2\n"
    shared = "w1 w2 w3 w4 w5 w6 w7 w8"
    files = {f"{name}.py": code for name in "ab"} | {
        "c.py": f"{shared}\n",
        "d.py": "x = 1\n",
        "e.py": f"# {shared} y\n",
    }
    text, found = folder_texts(write(tmp_path, files), words=5)
    assert text.text == f"# {shared} y\n"
    assert found.passages[:2] == [
        Passage("a.py", "def one():\n    return 1\n\n\ndef"),
        Passage("a.py", " two():\n    if one():\n        return 2"),
    ]
    assert found.same_words == 0  # pieces of five words have no eight in common
    _, found = folder_texts(tmp_path, words=10)
    assert found.same_words == 1
    assert [passage.title for passage in found.passages] == ["a.py", "b.py", "d.py"]


def test_suffixes_and_folders(tmp_path):
    files = {f"{i}.py": f"x = {i}\n" for i in range(5)} | {"tests/t.py": "t\n", "notes.txt": "n\n", "sub/s.py": "s\n"}
    text, found = folder_texts(write(tmp_path, files), suffixes=[".py"], without=["tests"])
    titles = [article.title for article in text.articles] + [passage.title for passage in found.passages]
    assert sorted(titles) == ["0.py", "1.py", "2.py", "3.py", "4.py", "sub/s.py"]


def test_the_standard_library_has_code_and_no_tests(monkeypatch, tmp_path):
    """A tenth of it, beside tests and packages of others as they lie in it."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in ("abc.py", "json", "asyncio"):
        copy = shutil.copyfile if name.endswith(".py") else shutil.copytree
        copy(library / name, tmp_path / name)
    others = "test", "json/tests", "idlelib/idle_test", "site-packages/p"
    write(tmp_path, {"notes.txt": "n\n"} | {f"{name}/t.py": "t = 1\n" for name in others})
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    text, found = python_texts(words=200)
    titles = {article.title for article in text.articles} | {passage.title for passage in found.passages}
    assert {"abc.py", "json/decoder.py"} <= titles
    assert all((library / title).is_file() for title in titles)
    assert "t.py" not in {Path(title).name for title in titles}
    first = text.articles[0]
    assert first.text == (library / first.title).read_text(encoding="utf-8").rstrip() + "\n"


def test_bad_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder_texts: folder must be an existing folder, got .*gone"):
        folder_texts(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"folder_texts: folder must have at least 5 files of text, got 1 in "):
        folder_texts(write(tmp_path, {"a.txt": "a"}))
    with pytest.raises(ValueError, match="folder_texts: words must be at least 1, got 0"):
        folder_texts(tmp_path, words=0)
