"""Appends and deletions open the segments that may have an id, and find each that has."""

import json

import numpy as np
import pytest
from segmented import Rows, corpus_of, in_folder, in_segments

from ragsys_kernels import offline
from ragsys_kernels.corpus import folder, id_keys, segments

LAYOUT = [5] * 40


@pytest.fixture(params=["int64", "str"])
def rows(request):
    return Rows(300, ids=request.param)


@pytest.fixture
def path(tmp_path, rows):
    in_folder(tmp_path / "corpus", rows, LAYOUT)
    return tmp_path / "corpus"


@pytest.fixture
def opened(monkeypatch):
    """The folders of segments that are opened."""
    found, real = [], folder.opened

    def counted(place, *rest):
        found.append(place.name)
        return real(place, *rest)

    monkeypatch.setattr(folder, "opened", counted)
    return found


def names(path):
    return [segment["name"] for segment in segments.described(path)["segments"]]


def keys_of(path):
    description = json.loads((path / "corpus.json").read_text())["id_keys"]
    return path / "segments" / description["name"], description


def as_older_versions_write(path):
    content = json.loads((path / "corpus.json").read_text())
    file = path / "segments" / content.pop("id_keys")["name"]
    content.pop("sha256")
    (path / "corpus.json").write_bytes(folder.content_of(content))
    file.unlink()


def damaged(path):
    file, _ = keys_of(path)
    file.write_bytes(bytes(file.stat().st_size))


def cut(path):
    file, _ = keys_of(path)
    file.write_bytes(file.read_bytes()[:-4])


def missing(path):
    keys_of(path)[0].unlink()


@pytest.mark.parametrize("number", [8, 40])
def test_append_and_delete_open_the_segments_that_may_have_an_id(tmp_path, rows, opened, number):
    path, ids = tmp_path / "corpus", rows.columns["ids"]
    in_folder(path, rows, LAYOUT[:number])
    before = names(path)
    opened.clear()
    offline.append_corpus(corpus_of(rows, np.arange(200, 210)), path)
    assert len(opened) <= 1
    opened.clear()
    some = np.r_[np.arange(210, 220), 13, 31]
    offline.append_corpus(corpus_of(rows, some), path, on_duplicate="replace")
    assert set(opened) == {before[2], before[6]}
    opened.clear()
    assert offline.delete_rows(ids[[17, 250]], path).rows == 1
    assert set(opened) == {before[3]}
    left = np.setdiff1d(np.arange(5 * number), [13, 31, 17])
    made = offline.append_corpus(corpus_of(rows, [220]), path)
    assert made.ids[np.flatnonzero(made.live)].tolist() == ids[np.r_[left, np.arange(200, 210), some, 220]].tolist()
    assert segments.problems(path) == []


@pytest.mark.parametrize("row", [0, 4, 99, 199, 203])
def test_ids_that_are_there_are_refused_and_deleted_ones_are_not(path, rows, row):
    offline.append_corpus(corpus_of(rows, np.arange(200, 205)), path)
    with pytest.raises(ValueError, match=rf"ids must not be in the corpus, got .* in row 1 .*, which is in row {row};"):
        offline.append_corpus(corpus_of(rows, [290, row]), path)
    offline.delete_rows(rows.columns["ids"][[row]], path)
    made = offline.append_corpus(corpus_of(rows, [290, row]), path)
    assert made.rows_of(rows.columns["ids"][[row, 290]]).tolist() == [206, 205]


@pytest.mark.parametrize("change", [as_older_versions_write, damaged, cut, missing])
def test_folder_without_the_file_is_as_one_with_it(path, rows, opened, change):
    change(path)
    with pytest.raises(ValueError, match=r"ids must not be in the corpus, .* which is in row 5;"):
        offline.append_corpus(corpus_of(rows, [5]), path)
    offline.append_corpus(corpus_of(rows, np.arange(200, 210)), path)
    opened.clear()
    made = offline.append_corpus(corpus_of(rows, np.arange(210, 220)), path)
    assert len(opened) <= 1
    np.testing.assert_array_equal(made.data, corpus_of(rows, np.arange(220)).data)
    assert made.ids[:].tolist() == rows.columns["ids"][:220].tolist()
    assert sorted(each.name for each in (path / "segments").iterdir()) == in_segments(path)


def test_what_a_killed_writer_has_left_in_the_file_does_not_count(path, rows, opened):
    file, described = keys_of(path)
    with file.open("ab") as end:
        end.write(bytes(1000))
    opened.clear()
    offline.append_corpus(corpus_of(rows, np.arange(200, 210)), path)
    assert len(opened) <= 1
    assert keys_of(path)[0] == file
    assert file.stat().st_size == keys_of(path)[1]["bytes"] == described["bytes"] + 4 * 10
    with pytest.raises(ValueError, match="which is in row 203;"):
        offline.append_corpus(corpus_of(rows, [203]), path)


def test_large_segments_have_no_keys_and_are_searched(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(id_keys, "_MOST_ROWS", 10)
    in_folder(tmp_path / "corpus", rows, [5, 30, 5])
    assert keys_of(tmp_path / "corpus")[1]["bytes"] == 4 * 10
    for row in (4, 20, 36):
        with pytest.raises(ValueError, match=f"which is in row {row};"):
            offline.append_corpus(corpus_of(rows, [row]), tmp_path / "corpus")


def test_name_of_the_file_must_be_one(path, rows):
    content = json.loads((path / "corpus.json").read_text())
    content.pop("sha256")
    content["id_keys"]["name"] = "../../x.keys"
    (path / "corpus.json").write_bytes(folder.content_of(content))
    with pytest.raises(ValueError, match=r"corpus\.json does not describe segments"):
        offline.append_corpus(corpus_of(rows, [250]), path)
