"""An id is the text that it is in a file or a list, whatever is in it: what is done to it is done to its row alone."""

import csv
import itertools

import numpy as np
import odd_ids
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings

import ragsys_kernels as rk
from ragsys_kernels import offline

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


@pytest.mark.parametrize("text", ["1_0", "٣", "0x1", "1.0", "7 8", "1\u20282", "9" * 30, str(2**63)])
def test_a_text_file_has_integers_as_ascii_has_them(place, text):
    np.save(place / "rows.npy", np.eye(12, 3, dtype=np.float32) + 1)
    folder = place / f"corpus{next(folders)}"
    offline.build_corpus(place / "rows.npy", folder, rows_per_segment=20)
    (place / "gone.txt").write_text(f"1\n {text}\t\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^delete_rows: ids must be integers as those of the corpus, one a line, got"):
        offline.delete_rows(place / "gone.txt", folder)
    (place / "gone.txt").write_text("\ufeff 3 \r\n\r\n+0\n-1\n", encoding="utf-8", newline="")
    assert offline.delete_rows(place / "gone.txt", folder) == offline.change.Deleted(2, [-1])


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
    file = odd_ids.written(place, "csv", ["7", "NA", "8"])
    with pytest.raises(ValueError, match=r"id column must have no null rows, got one in row 1 of .*csv"):
        offline.build_corpus(file, place / f"corpus{next(folders)}")
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
