"""An id is the text that it is in a file or a list, whatever is in it: what is done to it is done to its row alone."""

import contextlib
import csv
import itertools
import os
import threading

import numpy as np
import odd_ids
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels._base import checks

folders = itertools.count()
FEW = settings(max_examples=3)  # each writes and reads folders
KNOWN = example(ids=["\ufeffa", "a\0", "a", "x\u2028y", "x", "y", "\x85", "\x0c", " a", odd_ids.LONG])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("ids")


def left(folder):
    corpus = rk.Corpus.load(folder)
    return corpus.ids[:].tolist() if corpus.live is None else corpus.ids[np.flatnonzero(corpus.live)].tolist()


def built(place, ids):
    folder = place / f"corpus{next(folders)}"
    offline.build_corpus(odd_ids.written(place, "parquet", ids), folder, rows_per_segment=3)
    return folder


@pytest.mark.parametrize("form", odd_ids.FILES)
@FEW
@KNOWN
@given(ids=odd_ids.IDS)
def test_files_give_ids_as_they_are_written(place, form, ids):
    file = odd_ids.written(place, form, ids)
    found = offline.build_corpus(file, place / f"corpus{next(folders)}").ids[:].tolist()
    assert list(map(str, found)) == ids
    synced = place / f"corpus{next(folders)}"
    assert offline.sync_corpus(file, synced).added == len(ids)
    again = offline.sync_corpus(file, synced)
    assert (again.rows, again.added, again.changed, again.deleted) == (len(ids), 0, 0, 0)


def as_list(place, ids):
    return ids


def as_text(place, ids):
    (place / "gone.txt").write_text("".join(f"{each}\n" for each in ids), encoding="utf-8", newline="")
    return place / "gone.txt"


def as_text_of_windows(place, ids):
    content = "\r\n".join(ids).encode("utf-8")
    (place / "gone.ids").write_bytes(content if ids[0].startswith("\ufeff") else b"\xef\xbb\xbf" + content)
    return place / "gone.ids"


def as_column(place, ids):
    pq.write_table(pa.table({"id": ids}), place / "gone.parquet")
    return place / "gone.parquet"


@pytest.mark.parametrize("how", [as_list, as_text, as_column])
@FEW
@KNOWN
@given(ids=odd_ids.IDS)
def test_only_the_rows_of_the_ids_are_deleted(place, how, ids):
    folder = built(place, ids)
    for gone, kept in ((ids[:1], ids[1:]), (ids[1::2], ids[2::2])):
        done = offline.delete_rows(how(place, gone), folder)
        assert (done.rows, done.unknown) == (len(gone), [])
        assert left(folder) == kept


@FEW
@KNOWN
@given(ids=odd_ids.IDS)
def test_a_byte_order_mark_and_crlf_are_not_of_an_id(place, ids):
    names = [x for x in ids if not x.startswith("\ufeff")]
    if len(names) > 1:
        folder = built(place, names)
        assert offline.delete_rows(as_text_of_windows(place, names[:1]), folder).rows == 1
        assert left(folder) == names[1:]


def test_one_long_id_takes_no_more_memory_for_the_others(place):
    import tracemalloc

    folder = built(place, ["a", odd_ids.LONG, "b"])
    wanted = [f"n{i}" for i in range(2000)] + [odd_ids.LONG]
    tracemalloc.start()
    try:
        done = offline.delete_rows(wanted, folder)
        assert tracemalloc.get_traced_memory()[1] < 20e6  # as an array of NumPy's strings 560 MB
    finally:
        tracemalloc.stop()
    assert (done.rows, len(done.unknown), left(folder)) == (1, 2000, ["a", "b"])


# Texts from which `int` makes a row of twelve, or a number that int64 does not hold.
NO_IDS = ["1_0", "٣", "010", "+10", " 10", "10 ", "10\t", "-0", "00", "0x1", "1.0", "1\u20282", "9" * 30]
NO_IDS += [str(2**63), str(-(2**63) - 1), "9" * 19]


@pytest.fixture(scope="module")
def rows(place):
    np.save(place / "rows.npy", np.eye(12, 3, dtype=np.float32) + 1)
    return place / "rows.npy"


@pytest.mark.parametrize("form", ["txt", "csv"])
@pytest.mark.parametrize("named", [True, False], ids=["ids", "row numbers"])
def test_only_plain_decimals_are_integer_ids(place, rows, form, named):
    folder, gone = place / f"corpus{next(folders)}", place / f"gone.{form}"
    (place / "ids.txt").write_text("".join(f"{i}\n" for i in range(12)))
    offline.build_corpus(rows, folder, rows_per_segment=20, ids=place / "ids.txt" if named else None)
    head, where = ("", "line 2") if form == "txt" else ("id\n", "row 1")
    for text in NO_IDS:
        gone.write_text(f"{head}1\n{text}\n", encoding="utf-8")
        rule = "delete_rows: ids must be integers of 64 bits in plain decimal form as those of the corpus are"
        with pytest.raises(ValueError) as refused:
            offline.delete_rows(gone, folder)
        assert str(refused.value) == f"{rule}, got {checks.shown(text)} in {where} of {gone}"
    gone.write_text(f"\ufeff{head}3\r\n\r\n0\n-1\n{2**63 - 1}\n{-(2**63)}\n", encoding="utf-8", newline="")
    assert offline.delete_rows(gone, folder) == offline.change.Deleted(2, [-1, 2**63 - 1, -(2**63)])
    assert left(folder) == [1, 2, *range(4, 12)]


@pytest.mark.parametrize("ids", [["NA", "null", "NULL", "NaN", "nan", "N/A"], ["1", "NA", "3"], ["nan", "1.5"]])
@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
def test_words_that_readers_take_for_nothing_are_ids(place, ids, quoting):
    file, folder = place / "words.csv", place / f"corpus{next(folders)}"
    with open(file, "w", newline="") as out:
        lines = csv.writer(out, quoting=quoting)
        rows = zip(ids, odd_ids.vectors(len(ids)).tolist(), strict=True)
        lines.writerows([("id", "vector"), *rows])
    assert offline.build_corpus(file, folder, rows_per_segment=5).ids[:].tolist() == ids
    assert offline.sync_corpus(file, folder).changed == 0
    assert offline.delete_rows(file, folder).rows == len(ids)


def test_the_ids_of_the_corpus_decide_what_those_of_a_csv_are(place):
    folder = built(place, ["a", "b"])
    file = odd_ids.written(place, "csv", ["7", "8", "9"])  # all of them look like integers
    assert offline.append_corpus(file, folder).ids[:].tolist() == ["a", "b", "7", "8", "9"]
    odd_ids.written(place, "csv", ["7", "9"])
    assert offline.delete_rows(file, folder) == offline.change.Deleted(2, [])
    assert left(folder) == ["a", "b", "8"]
    odd_ids.written(place, "csv", ["8", "10"])
    assert (offline.sync_corpus(file, folder).added, left(folder)) == (1, ["8", "10"])


@pytest.mark.parametrize("call", ["append", "delete", "sync"])
def test_ids_of_another_type_are_named_with_their_file(place, call):
    def changed(file):
        if call == "append":
            return offline.append_corpus(file, folder)
        return offline.delete_rows(file, folder) if call == "delete" else offline.sync_corpus(file, folder)

    folder, texts = place / f"corpus{next(folders)}", built(place, ["a", "b"])
    integers = pa.table({"id": [1, 2], "vector": odd_ids.vectors(2).tolist()})
    pq.write_table(integers, place / "integers.parquet")
    offline.build_corpus(place / "integers.parquet", folder, rows_per_segment=3)
    with pytest.raises(
        ValueError, match=r"ids must be integers of 64 bits in plain decimal .*, got '007' in row 1 of .*rows\.csv"
    ):
        changed(odd_ids.written(place, "csv", ["7", "007"]))
    with pytest.raises(ValueError, match=r"ids must be integers as those of .*, got strings in .*rows\.parquet"):
        changed(odd_ids.written(place, "parquet", ["7", "8"]))
    folder = texts
    with pytest.raises(ValueError, match=r"ids must be strings as those of .*, got integers in .*integers\.parquet"):
        changed(place / "integers.parquet")


def test_files_of_a_pattern_have_ids_of_one_type(place):
    parts = place / "parts"
    parts.mkdir()
    for number, ids in enumerate((["a"], ["1", "2"], ["NA"])):
        odd_ids.written(place, "csv", ids).rename(parts / f"{number}.csv")
    built = offline.build_corpus(parts / "*.csv", place / f"corpus{next(folders)}")
    assert built.ids[:].tolist() == ["a", "1", "2", "NA"]


@pytest.mark.parametrize("name", ["ids.txt", "ids.list", "ids", "pipe"])
@pytest.mark.parametrize(
    ("lines", "ids"),
    [("3\n-4\n0\n", [3, -4, 0]), ("3\n04\n0\n", ["3", "04", "0"]), ("\ufeffa\r\n b\nc", ["a", " b", "c"])],
)
def test_a_text_file_with_any_suffix_has_an_id_in_each_line(place, name, lines, ids):
    np.save(place / "three.npy", odd_ids.vectors(3))
    folder = place / f"corpus{next(folders)}"
    with given_text(place / name, lines) as file:
        built = offline.build_corpus(place / "three.npy", folder, ids=file, rows_per_segment=2)
    assert built.ids[:].tolist() == ids
    with given_text(place / name, f"{lines}\n\n") as file:
        assert offline.delete_rows(file, folder).rows == 3


@contextlib.contextmanager
def given_text(path, text):
    """Give a file of the text, or a pipe through which it comes."""
    path.unlink(missing_ok=True)
    if path.name != "pipe":
        path.write_text(text, encoding="utf-8", newline="")
        yield path
        return
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=[text.encode()], daemon=True)
    writer.start()
    yield path
    writer.join()


def test_files_of_ids_that_cannot_be_are_refused(place, rows):
    def refused(match, name, content=None, kind=ValueError, **options):
        if content is not None:
            (place / name).write_bytes(content)
        with pytest.raises(kind, match=match):
            offline.build_corpus(rows, place / "none", ids=place / name, **options)

    refused(r"ids must have no null rows, got one in line 2 of .*ids\.txt", "ids.txt", b"a\n\nb\n" + b"c\n" * 9)
    refused(r"ids must have one row for each of the 12 rows of corpus, got 1 in .*ids\.txt", "ids.txt", b"a")
    refused(r"ids must be a text file in UTF-8, got .*ids\.list: 'utf-8' codec", "ids.list", b"\xff\xfea\0")
    refused(r"ids must not be a text file to have a column 'c', got .*ids\.txt", "ids.txt", b"a", id_column="c")
    refused(r"ids must be in a column id or the one that id_column names, got none in .*x\.csv", "x.csv", b"x\n1\n2\n")
    refused(r"ids must be an existing file, got .*nothing\.txt", "nothing.txt", kind=FileNotFoundError)
    for names in (np.array(["a"] * 12), np.array(["a"] * 12, object)):
        np.save(place / "names.npy", names, allow_pickle=True)
        refused(r"got .*; strings can be in a text file, one a line, or a column of a table$", "names.npy")
    folder = built(place, ["a", "b"])
    np.save(place / "numbers.npy", np.arange(2))
    with pytest.raises(ValueError, match=r"ids must be strings as those of the corpus are, got integers in .*numbers"):
        offline.delete_rows(place / "numbers.npy", folder)
    (place / "none.csv").write_text("id\n")
    assert offline.delete_rows(place / "none.csv", folder) == offline.change.Deleted(0, [])


# What Arrow reads as numbers, dates or nothing, and so loses.
WRITTEN = {
    "zeros": ["007", "7", "8"],
    "hexadecimal": ["0x10", "16"],
    "signs": ["+7", "7"],
    "blanks": [" 7", "7"],
    "floats": ["1.50", "1.5"],
    "large": ["18446744073709551617", "1"],
    "words": ["true", "1"],
    "dates": ["2020-01-01", "2020-01-02"],
    "times": ["2020-01-01T00:00:00Z", "2020-01-01 00:00:00Z"],
}


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("case", WRITTEN)
def test_text_that_looks_like_another_value_is_an_id_as_it_is_written(place, case, form):
    ids = WRITTEN[case]
    folder, file = place / f"corpus{next(folders)}", odd_ids.written(place, form, ids)
    assert offline.build_corpus(file, folder, rows_per_segment=5).ids[:].tolist() == ids
    odd_ids.written(place, form, ids[:1])
    assert offline.delete_rows(file, folder).rows == 1
    assert left(folder) == ids[1:]


def test_integers_of_a_csv_are_integers_and_none_is_missing(place):
    file = odd_ids.written(place, "csv", ["7", "-8", "0", str(2**63 - 1)])
    assert offline.build_corpus(file, place / f"corpus{next(folders)}").ids[:].tolist() == [7, -8, 0, 2**63 - 1]
    file = odd_ids.written(place, "csv", ["007", "", "8"])
    with pytest.raises(ValueError, match=r"id column must have no null rows, got one in row 1 of .*csv"):
        offline.build_corpus(file, place / f"corpus{next(folders)}")


@given(ids=odd_ids.IDS)
def test_rows_that_are_left_out_are_listed_by_their_ids(place, ids):
    ids = [*ids, "a\rb", "a\nb", "\r", "c\r\n"]
    rows = odd_ids.vectors(len(ids))
    rows[1:] = np.nan
    pq.write_table(pa.table({"id": ids, "vector": rows.tolist()}), place / "bad.parquet")
    out = place / f"corpus{next(folders)}"
    offline.build_corpus(place / "bad.parquet", out, bad_rows="skip")
    with open(f"{out}.skipped.csv", encoding="utf-8", newline="") as file:
        assert [row[:3] for row in csv.reader(file)][1:] == [["corpus", str(i), x] for i, x in enumerate(ids) if i]


@given(ids=odd_ids.IDS)
def test_a_job_picks_by_ids_and_shows_their_texts(place, ids):
    queries = odd_ids.table(ids).append_column("candidates", pa.array([[x, ids[0]] for x in ids[1:]] + [[ids[0]]]))
    queries = queries.set_column(0, "id", pa.array([*ids[1:], ids[0]]))
    pq.write_table(queries, place / "queries.parquet")
    corpus = odd_ids.table(ids).append_column("text", pa.array([f"text {i}" for i in range(len(ids))]))
    pq.write_table(corpus, place / "texts.parquet")
    out = place / f"job{next(folders)}"
    offline.select(
        corpus=place / "texts.parquet", queries=place / "queries.parquet", out=out, k=1,
        candidates=place / "queries.parquet", candidate_column="candidates", candidate_ids=True,
    )  # fmt: skip
    found = pq.read_table(out)
    assert found["query_id"].to_pylist() == [*ids[1:], ids[0]]
    assert {x for (x,) in found["ids"].to_pylist()} <= set(ids)
    shown = offline.show(picks=out, texts=place / "texts.parquet")
    assert [f"text {ids.index(pick.id)}" for pick in shown] == [pick.text for pick in shown]


def test_a_lone_surrogate_is_refused_by_one_error(place):
    with pytest.raises(ValueError, match="ids must be text that UTF-8 can hold, got a lone surrogate in row 1"):
        rk.Corpus(odd_ids.vectors(2), ids=["a", "\ud800"])
    folder = built(place, ["a", "b"])
    assert offline.delete_rows(["\ud800"], folder).unknown == ["\ud800"]
    (place / "gone.txt").write_bytes("\ud800\n".encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=r"ids must be a text file in UTF-8, got .*gone\.txt"):
        offline.delete_rows(place / "gone.txt", folder)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_rows_of_a_csv_end_as_the_page_says(place, end, mark):
    lines = [f"{mark}id,vector", 'a,"[1.0,2.0]"', '"b\rc","[2.0,1.0]"', ""]
    (place / "ends.csv").write_text(end.join(lines), encoding="utf-8", newline="")
    assert offline.build_corpus(place / "ends.csv", place / f"corpus{next(folders)}").ids[:].tolist() == ["a", "b\rc"]
