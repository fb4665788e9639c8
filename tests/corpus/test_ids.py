"""External ids and costs of a corpus: translated both ways, kept by folders, pickles and copies, refused when wrong."""

import copy
import itertools
import json
import pickle
import tracemalloc
import zlib

import numpy as np
import odd_ids
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.testing as typer_testing
from hypothesis import given

import ragsys_kernels as rk
from ragsys_kernels import cli, offline
from ragsys_kernels import corpus as corpus_module
from ragsys_kernels._base.arrays import HOST
from ragsys_kernels.corpus import folder as corpus_folder
from ragsys_kernels.corpus import ids as corpus_ids
from ragsys_kernels.corpus.ids import make
from ragsys_kernels.corpus.joined_ids import Joined

# Two strings of one CRC-32: they share a key.
SAME_KEY = ("plumless", "buckeroo")

IDS = {
    "ascending": [-7, -3, 0, 2**40, 2**63 - 1],
    "integers": [30, -(2**63), 10, 5, 77],
    "strings": ["b", "Ärger", *SAME_KEY, "日本\0"],
}


def made(ids=None, costs=None, rows=5, **options):
    embeddings = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    return rk.Corpus(embeddings, ids=ids, costs=costs, **options)


def copies(corpus, tmp_path):
    corpus.save(tmp_path / "corpus")
    yield corpus
    yield rk.Corpus.load(tmp_path / "corpus", verify=True)
    yield pickle.loads(pickle.dumps(corpus))
    yield pickle.loads(pickle.dumps(rk.Corpus.load(tmp_path / "corpus")))
    yield copy.copy(corpus)
    yield copy.deepcopy(corpus)


@pytest.mark.parametrize("kind", IDS)
def test_ids_translate_both_ways_and_outlive_folders_pickles_and_copies(kind, tmp_path):
    ids, costs = IDS[kind], [3, 0, 2.5, 2**53 - 1, 1e-9]
    assert zlib.crc32(SAME_KEY[0].encode()) == zlib.crc32(SAME_KEY[1].encode())
    absent = None if kind == "strings" else -1
    rows = np.array([[4, 0, -1], [2, 2, 3]])
    expected = [[absent if row < 0 else ids[row] for row in each] for each in rows.tolist()]
    for corpus in copies(made(ids, costs), tmp_path):
        assert len(corpus.ids) == 5
        assert corpus.costs.dtype == np.float64
        assert corpus.costs.tolist() == costs
        found = corpus.ids[rows]
        assert found.dtype == (object if kind == "strings" else np.int64)
        assert found.tolist() == expected
        assert corpus.ids[1:].tolist() == ids[1:]
        assert [corpus.ids[row] for row in range(5)] == list(corpus.ids) == np.asarray(corpus.ids).tolist() == ids
        for asked in (expected, found, tuple(expected)):
            back = corpus.rows_of(asked)
            assert back.dtype == np.int64
            np.testing.assert_array_equal(back, rows)
        assert corpus.rows_of(ids[3]) == 3
        assert corpus.rows_of([]).shape == (0,)
        assert ids[2] in corpus.ids
        assert "no" not in corpus.ids
        assert 4 not in corpus.ids
        assert f"costs, ids={'str' if kind == 'strings' else 'int64'})" in repr(corpus)


def test_strings_are_found_without_the_extension_too(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_ids, "_compiled", lambda _, otherwise: otherwise)
    test_ids_translate_both_ways_and_outlive_folders_pickles_and_copies("strings", tmp_path)


def test_compiled_lookup_of_strings(compiled):
    """The UTF-8 and CRC-32 are Python's and zlib's, the rows are those of a dictionary; many strings share a key."""
    rng = np.random.default_rng(1)
    same = ["".join(words) for words in itertools.product(SAME_KEY, repeat=4)]
    assert len({zlib.crc32(each.encode()) for each in same}) == 1
    alphabet = [*"ab0-/\0", "é", "日", "\U0001f600"]
    ids = list(dict.fromkeys(["".join(rng.choice(alphabet, n)) for n in rng.integers(1, 40, 500)] + same[1:]))
    rng.shuffle(ids)
    text, offsets, crcs, bad = compiled.texts_of(ids)
    assert (text.tobytes(), bad) == ("".join(ids).encode(), -1)
    assert [text[a:b].tobytes().decode() for a, b in itertools.pairwise(offsets)] == ids
    assert crcs.tolist() == [zlib.crc32(each.encode()) for each in ids]
    order = np.argsort(crcs, kind="stable")
    wanted = [*ids[::-1], None, *same, "", "\ud800", "nowhere", ids[0] + "\0", ids[1][:-1]]
    rows = {each: row for row, each in enumerate(ids)} | {None: -2}
    expected = [rows.get(each, -1) for each in wanted]
    assert compiled.find_texts(wanted, text, offsets, crcs[order], order).tolist() == expected
    assert corpus_ids._find_texts(wanted, text, offsets, crcs[order], order).tolist() == expected
    some = np.array([3, -1, 0, len(ids) - 1, 3])
    assert compiled.texts_at(some, text, offsets) == [None if row < 0 else ids[row] for row in some]
    surrogates = ["a", "", "b\udfff", "\ud800"]
    assert compiled.texts_of(surrogates)[3] == corpus_ids._texts_of(surrogates)[3] == 2


@pytest.mark.parametrize(
    ("name", "offsets", "order"),
    [("row of an id", [0, 1, 2], [2, 0]), ("row of an id", [0, 1, 2], [0, -1]), ("id_offsets", [0, 1, 9], [0, 1]),
     ("id_offsets", [0, 2, 1], [0, 1]), ("id_offsets", [-1, 1, 2], [0, 1]), ("id_keys", [0, 1], [0])],
)  # fmt: skip
def test_compiled_lookup_stays_within_its_arrays(compiled, name, offsets, order):
    """Of a damaged folder, whose arrays are not read before they are used."""
    text, keys = np.frombuffer(b"ab", np.uint8), np.array([zlib.crc32(b"a"), zlib.crc32(b"b")], np.uint32)
    arrays = text, np.array(offsets), np.sort(keys), np.array(order)
    with pytest.raises(ValueError, match=name):
        compiled.find_texts(["a", "b"], *arrays)


def test_without_ids_rows_are_their_own(tmp_path):
    for corpus in copies(made(), tmp_path):
        rows = np.array([[4, -1], [0, 2]])
        np.testing.assert_array_equal(corpus.ids[rows], rows)
        np.testing.assert_array_equal(corpus.rows_of(rows), rows)
        np.testing.assert_array_equal(corpus.rows_of([5, 1, -2], unknown="pad"), [-1, 1, -1])
        assert corpus.costs is None
    assert sorted(file.name for file in (tmp_path / "corpus").iterdir() if "id" in file.name) == []


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_lookups_equal_a_dictionary(rows):
    rng = np.random.default_rng(rows)
    for ids in (rng.choice(10 * rows, rows, replace=False), [f"{i % 97}/{i}" for i in rng.permutation(rows)]):
        corpus, known = made(ids, rows=rows), {each: row for row, each in enumerate(ids)}
        asked = [ids[i] for i in rng.integers(0, rows, 50)]
        asked += [f"{i}" for i in range(200)] if isinstance(ids, list) else rng.integers(-5, 11 * rows, 200).tolist()
        expected = [known.get(each, -1) for each in asked]
        np.testing.assert_array_equal(corpus.rows_of(asked, unknown="pad"), expected)
        np.testing.assert_array_equal(corpus.rows_of(np.array(asked), unknown="pad"), expected)


def test_picks_translate():
    corpus = made(list("abcde"))
    rows = corpus.search(np.ones((2, 4), np.float32), 6).indices
    assert corpus.ids[rows].tolist() == [["abcde"[row] if row >= 0 else None for row in each] for each in rows.tolist()]


REFUSED = {
    "twice": ({"ids": [4, 9, 7, 9, 4]}, ValueError, "ids must be unique, got 9 in rows 1 and 3"),
    "twice_text": ({"ids": ["a", "b", "a", "b", "c"]}, ValueError, "ids must be unique, got 'a' in rows 0 and 2"),
    "same_key": (
        {"ids": [*SAME_KEY, "x", SAME_KEY[1], "y"]}, ValueError, "ids must be unique, got 'buckeroo' in rows 1 and 3",
    ),
    "minus_one": (
        {"ids": [4, 9, -1, 3, 5]}, ValueError, "ids must not be -1, which stands for no row, got it in row 2",
    ),
    "empty": ({"ids": ["a", "", "b", "c", "d"]}, ValueError, "ids must not be empty, got an empty string in row 1"),
    "surrogate": (
        {"ids": ["a", "\ud800", "b", "c", "d"]}, ValueError,
        "ids must be text that UTF-8 can hold, got a lone surrogate in row 1",
    ),
    "shape": ({"ids": [1, 2]}, ValueError, "ids must have shape (N,) = (5,), got (2,)"),
    "rank": ({"ids": np.arange(5)[:, None]}, ValueError, "ids must have shape (N,) = (5,), got (5, 1)"),
    "mixed": (
        {"ids": [1, "a", 2, 3, 4]}, TypeError, "ids must be all integers or all strings, got int in row 0",
    ),
    "bytes": (
        {"ids": np.array([b"a", "b", "c", "d", "e"], object)}, TypeError,
        "ids must be all integers or all strings, got bytes in row 0",
    ),
    "floats": ({"ids": np.arange(5.0)}, TypeError, "ids must be integers or strings, got float64"),
    "large": (
        {"ids": np.array([1, 2, 2**63, 3, 4], np.uint64)}, ValueError,
        "ids must be at most 2^63 - 1, got 9223372036854775808",
    ),
    "list_large": ({"ids": [5, 2**63, 1, 2, 3]}, ValueError, f"ids must be at most 2^63 - 1, got {2**63}"),
    "tuple_large": ({"ids": (5, 2**63, 1, 2, 3)}, ValueError, f"ids must be at most 2^63 - 1, got {2**63}"),
    "list_of_numpys": (
        {"ids": [np.uint64(2**63), 1, 2, 3, 4]}, ValueError, f"ids must be at most 2^63 - 1, got {2**63}",
    ),
    "list_larger": ({"ids": [1, 2**64, 2, 3, 4]}, ValueError, f"ids must be at most 2^63 - 1, got {2**64}"),
    "list_small": ({"ids": [1, -(2**70), 2, 3, 4]}, ValueError, f"ids must be at least -2^63, got {-(2**70)}"),
    "costs_negative": (
        {"costs": [1, 0, -2, 1, 1]}, ValueError, "costs must be finite and at least 0, got -2 in row 2",
    ),
    "costs_nan": (
        {"costs": [1, 0, 2, np.nan, 1]}, ValueError, "costs must be finite and at least 0, got nan in row 3",
    ),
    "costs_shape": ({"costs": [1, 2]}, ValueError, "costs must have shape (N,) = (5,), got (2,)"),
    "costs_text": ({"costs": np.ones(5, bool)}, TypeError, "costs must be numbers, got bool"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_ids_and_costs_are_refused(case):
    options, error, message = REFUSED[case]
    with pytest.raises(error) as caught:
        made(**options)
    assert str(caught.value) == f"Corpus: {message}"


UNKNOWN = {
    "integer": (IDS["integers"], [30, 5, 6], ValueError, "ids must be ids of the corpus, got 6 at position 2"),
    "pool": (IDS["integers"], [[30, 31]], ValueError, "ids must be ids of the corpus, got 31 at position 0, 1"),
    "one": (IDS["strings"], "c", ValueError, "ids must be ids of the corpus, got 'c'"),
    "huge": (
        IDS["integers"], np.array([2**63], np.uint64), ValueError,
        "ids must be ids of the corpus, got 9223372036854775808 at position 0",
    ),
    "empty": (IDS["strings"], ["b", ""], ValueError, "ids must be ids of the corpus, got '' at position 1"),
    "surrogate": (IDS["strings"], ["\ud800"], ValueError, "ids must be ids of the corpus, got '\\ud800' at position 0"),
    "row": (None, [0, 5], ValueError, "ids must be ids of the corpus, got 5 at position 1"),
    "text": (IDS["integers"], ["30"], TypeError, "ids must be integers, got strings"),
    "number": (IDS["strings"], ["b", 7], TypeError, "ids must be strings, got int at position 1"),
    "float": (IDS["integers"], [30.0], TypeError, "ids must be integers, got float64"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_ids_are_named_or_become_padding(case):
    ids, asked, error, message = UNKNOWN[case]
    corpus = made(ids)
    with pytest.raises(error) as caught:
        corpus.rows_of(asked)
    assert str(caught.value) == f"rows_of: {message}"
    if error is ValueError:
        assert corpus.rows_of(asked, unknown="pad").min() == -1


@pytest.mark.parametrize("row", [5, -2])
def test_rows_that_are_none_have_no_id(row):
    with pytest.raises(IndexError, match=f"^ids: rows must be from -1 to N - 1 = 4, got {row}$"):
        made(IDS["strings"]).ids[[0, row]]


def test_description_with_ids_of_another_kind_is_refused(tmp_path):
    made(IDS["strings"]).save(tmp_path / "corpus")
    file = tmp_path / "corpus" / "corpus.json"
    description = json.loads(file.read_text())
    del description["sha256"], description["files"]["id_order.npy"]
    file.write_bytes(corpus_folder.content_of(description))
    (tmp_path / "corpus" / "id_order.npy").unlink()
    with pytest.raises(ValueError, match="got another ids in "):
        rk.Corpus.load(tmp_path / "corpus")


def test_device_corpus_keeps_ids_and_costs(place, monkeypatch):
    monkeypatch.setattr(corpus_module, "place_of", lambda op, device: HOST if device == "cpu" else place)
    corpus = made(IDS["strings"], range(5), device="cuda:0")
    assert corpus.costs.tolist() == [0, 1, 2, 3, 4]
    assert type(corpus.costs).__name__ == "Tensor"
    for moved in (corpus, made(IDS["strings"], range(5)).to("cuda:0"), corpus.to("cpu")):
        assert moved.ids[:].tolist() == IDS["strings"]
        assert moved.costs.tolist() == [0, 1, 2, 3, 4]


def test_folder_is_built_from_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vectors = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    columns = {
        "v": pa.array(vectors.tolist(), pa.list_(pa.float32())),
        "url": IDS["strings"],
        "tokens": [7, 2, 0, 5, 1],
    }
    pq.write_table(pa.table(columns), "docs.parquet")
    run = typer_testing.CliRunner().invoke
    arguments = ["corpus", "build", "--corpus", "docs.parquet", "--out", "folder", "--cost-column", "tokens"]
    result = run(cli.app, [*arguments, "--id-column", "url"])
    assert (result.exit_code, result.output) == (
        0, "Corpus(N=5, D=4, metric='cosine', dtype='float32', costs, ids=str)\n",
    )  # fmt: skip
    loaded = rk.Corpus.load("folder")
    assert (loaded.ids[:].tolist(), loaded.costs.tolist()) == (IDS["strings"], columns["tokens"])
    result = run(cli.app, [*arguments, "--id-column", "nothing"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: corpus build: corpus must have a column 'nothing', got ")
    np.save("v.npy", vectors)
    np.save("i.npy", np.array(IDS["integers"]))
    made = offline.build_corpus("v.npy", "folder", ids="i.npy", overwrite=True)
    assert (made.ids[:].tolist(), made.costs) == (IDS["integers"], None)
    np.save("i.npy", [1, 1, 2, 3, 4])
    for ids, reason in (("i.npy", "ids must be unique, got 1 in rows 0 and 1"), ("docs.parquet", "ids must have")):
        np.save("v.npy", vectors[: 5 if ids == "i.npy" else 4])
        with pytest.raises(ValueError, match=f"^build_corpus: .*{reason}"):
            offline.build_corpus(
                "v.npy", "folder", ids=ids, id_column="url" if ids != "i.npy" else None, overwrite=True
            )
    assert rk.Corpus.load("folder", verify=True).ids[:].tolist() == IDS["integers"]


@pytest.mark.parametrize("kind", ["int", "str"])
def test_ids_of_several_parts_that_are_there_twice_are_found(kind, monkeypatch):
    rng = np.random.default_rng(8)
    if kind == "str":
        monkeypatch.setattr(corpus_ids, "_compiled", lambda _, otherwise: otherwise)
        monkeypatch.setattr(zlib, "crc32", lambda text, *_: len(text) % 3)  # many have the same key
    for trial in range(60):
        sizes = rng.integers(1, 9, rng.integers(1, 6))
        names = rng.permutation(200)[: sizes.sum()]
        if trial % 2 and len(sizes) > 1:  # one of the first part again in the last
            names[-1] = names[0]
        live = rng.random(len(names)) < 0.7 if trial % 3 == 0 else None
        made = [names[a:b] for a, b in itertools.pairwise(np.cumsum([0, *sizes]))]
        if kind == "str":
            made = [[f"n{x}" for x in part] for part in made]
        known = Joined([make("Corpus", part, len(part)) for part in made], live)
        kept = names if live is None else names[live]
        again = {x for x in kept.tolist() if np.count_nonzero(kept == x) > 1}
        expected = {f"n{x}" for x in again} if kind == "str" else again
        for new in (range(len(sizes)), [len(sizes) - 1]):
            found = known.twice(new)
            assert found in expected if expected else found is None


FORMS = {
    "list": list,
    "objects": lambda ids: np.array(ids, object),
    "Arrow": pa.array,
    "Arrow's chunks": lambda ids: pa.chunked_array([ids[:1], [], ids[1:]], pa.large_string()),
    "Arrow's dictionary": lambda ids: pa.array(ids).dictionary_encode(),
    "polars": lambda ids: pytest.importorskip("polars").Series(ids),
    "pandas": lambda ids: pytest.importorskip("pandas").Series(ids),
}


@pytest.mark.parametrize("form", FORMS)
@given(ids=odd_ids.IDS)
def test_an_id_is_its_text_in_any_array(form, ids):
    rows, given_ids = odd_ids.vectors(len(ids)), FORMS[form](ids)
    corpus = rk.Corpus(rows, ids=given_ids, groups=given_ids)
    assert corpus.ids[:].tolist() == corpus.group_names[corpus.groups].tolist() == ids
    assert rk.Corpus(rows, ids=ids).rows_of(given_ids).tolist() == list(range(len(ids)))
    assert np.flatnonzero(~corpus.delete(FORMS[form](ids[:1])).live).tolist() == [0]
    assert np.flatnonzero(~corpus.delete(ids[-1]).live).tolist() == [len(ids) - 1]
    found = corpus.search(rows, len(ids), query_groups=given_ids).indices
    assert all(set(each) == {*range(len(ids)), -1} - {q} for q, each in enumerate(found.tolist()))


def test_one_long_id_makes_no_array_of_its_length_for_each():
    ids = [*map(str, range(3000)), odd_ids.LONG]
    corpus, numbered = rk.Corpus(odd_ids.vectors(len(ids)), ids=ids), made(IDS["integers"])
    tracemalloc.start()
    try:
        assert corpus.rows_of(ids).tolist() == list(range(len(ids)))
        with pytest.raises(TypeError, match=r"^rows_of: ids must be integers, got strings$"):
            numbered.rows_of(ids)
        assert tracemalloc.get_traced_memory()[1] < 20e6  # NumPy's strings would take 840 MB
    finally:
        tracemalloc.stop()
