"""Groups that are strings: the picks of integers that say the same, kept by folders and segments; what is refused."""

import copy
import hashlib
import json
import pickle

import numpy as np
import pytest
from code_rows import normal

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import folder, segments, versions

pa = pytest.importorskip("pyarrow")

N, Q, D = 120, 7, 9
NAMES = ["web", "wiki", "", "日本", "plumless", "buckeroo"]  # the last two have one CRC-32
ASKED = ["web", "absent", None, "", "日本", "buckeroo", "wiki"]
# Queries and rows are few: k = 4 of 3 rows in places.
pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.selection.validate.PoolSizeWarning")


EMBEDDINGS, QUERIES = normal(0, N, D), normal(1, Q, D)
NUMBERS = np.random.default_rng(2).integers(0, len(NAMES), N)
GROUPS = [NAMES[i] for i in NUMBERS]
ASKED_NUMBERS = [NAMES.index(each) if each in NAMES else -1 for each in ASKED]


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def forms(values):
    """The same strings as people have them."""
    yield values
    yield tuple(values)
    yield np.array(values, object)
    yield pa.array(values)
    yield pa.array(values).dictionary_encode()
    yield pa.chunked_array([pa.array(values[:3]), pa.array(values[3:])]).dictionary_encode()
    yield pa.chunked_array([pa.array(values[:3], pa.large_string()), pa.array(values[3:], pa.large_string())])
    if None not in values:
        yield np.array(values)
        pandas = pytest.importorskip("pandas")
        yield pandas.Series(values)
        yield pandas.Series(values, dtype="category")


@pytest.mark.parametrize("pool", [None, 30])
def test_picks_are_those_of_integers(pool):
    by_number = rk.Corpus(EMBEDDINGS, groups=NUMBERS)
    options = {"k": 4, "max_per_group": 1, "pool": pool}
    expected = by_number.select(QUERIES, query_groups=ASKED_NUMBERS, **options)
    assert (expected.lengths > 0).all()
    for groups in forms(GROUPS):
        corpus = rk.Corpus(EMBEDDINGS, groups=groups)
        assert corpus.group_names[corpus.groups].tolist() == GROUPS
        assert len(corpus.group_names) == len(NAMES)
        same(corpus.select(QUERIES, query_groups=ASKED, **options), expected)
    for asked in forms(ASKED):
        same(corpus.select(QUERIES, query_groups=asked, **options), expected)
        same(corpus.search(QUERIES, 5, query_groups=asked), by_number.search(QUERIES, 5, query_groups=ASKED_NUMBERS))
        same(by_number.select(QUERIES, groups=GROUPS, query_groups=asked, **options), expected)
    same(corpus.search(QUERIES[:2], 5, query_groups=[None, None]), by_number.search(QUERIES[:2], 5))


@pytest.mark.parametrize("groups", list(forms(GROUPS)), ids=lambda groups: type(groups).__name__)
def test_calls_without_a_corpus_take_strings(groups):
    options = {"k": 4, "max_per_group": 2}
    for method in (rk.mmr, rk.vrsd):
        expected = method(QUERIES, EMBEDDINGS, groups=NUMBERS, query_groups=ASKED_NUMBERS, **options)
        same(method(QUERIES, EMBEDDINGS, groups=groups, query_groups=ASKED, **options), expected)
    pools, numbers = normal(3, Q, 8, D), np.random.default_rng(4).integers(0, len(NAMES), (Q, 8))
    names = np.array(NAMES, object)[numbers]
    expected = rk.mmr(QUERIES, pools, groups=numbers, query_groups=ASKED_NUMBERS, **options)
    for each in (names, names.tolist()):
        same(rk.mmr(QUERIES, pools, groups=each, query_groups=ASKED, **options), expected)


def test_torch_takes_strings():
    torch = pytest.importorskip("torch")
    expected = rk.mmr(QUERIES, EMBEDDINGS, 4, groups=NUMBERS, query_groups=ASKED_NUMBERS)
    found = rk.mmr(*map(torch.from_numpy, (QUERIES, EMBEDDINGS)), 4, groups=GROUPS, query_groups=ASKED)
    same([each.numpy() for each in found], expected)


def check(corpus, kept):
    names = [GROUPS[row] for row in kept]
    live = np.arange(len(corpus)) if corpus.live is None else np.flatnonzero(corpus.live)
    assert corpus.group_names[corpus.groups[live]].tolist() == names
    assert len(set(corpus.group_names[:])) == len(corpus.group_names)
    expected = rk.Corpus(EMBEDDINGS[kept], groups=NUMBERS[kept]).select(
        QUERIES, 4, query_groups=ASKED_NUMBERS, max_per_group=1
    )
    found = corpus.select(QUERIES, 4, query_groups=ASKED, max_per_group=1)
    np.testing.assert_array_equal(found.indices, live[expected.indices])
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_folders_pickles_copies_and_deletions_keep_names(tmp_path):
    corpus, rows = rk.Corpus(EMBEDDINGS, groups=GROUPS), np.arange(N)
    corpus.save(tmp_path / "corpus")
    for verify in (False, True):
        check(rk.Corpus.load(tmp_path / "corpus", verify=verify), rows)
    for made in (pickle.loads(pickle.dumps(corpus)), copy.copy(corpus), copy.deepcopy(corpus), corpus.to("cpu")):
        check(made, rows)
        assert "groups=str" in repr(made)
    gone = np.flatnonzero(NUMBERS == 1)  # a name that no row has any more
    fewer = corpus.delete(gone)
    check(fewer, np.setdiff1d(rows, gone))
    fewer.save(tmp_path / "fewer")
    loaded = rk.Corpus.load(tmp_path / "fewer", verify=True)
    check(loaded, np.setdiff1d(rows, gone))
    assert sorted(loaded.group_names) == sorted(set(NAMES) - {"wiki"})


def test_segments_keep_names_once_and_grow(tmp_path):
    known = next(row for row in range(1, N) if GROUPS[row] in GROUPS[:row])
    assert len(set(GROUPS[:known])) < len(NAMES)
    parts = np.split(np.arange(90), [known, known + 1])  # the second has no new name, the third has
    made = (rk.Corpus(EMBEDDINGS[part], groups=[GROUPS[row] for row in part], ids=part) for part in parts)
    versions.build("test", tmp_path / "corpus", lambda _: ((each, each.ids) for each in made), 100, False)
    check(rk.Corpus.load(tmp_path / "corpus", verify=True), np.arange(90))
    rest = np.arange(90, N)
    more = rk.Corpus(EMBEDDINGS[rest], groups=[GROUPS[row] for row in rest], ids=rest)
    check(rk.Corpus.load(tmp_path / "corpus").append(more), np.arange(N))
    check(offline.append_corpus(more, tmp_path / "corpus"), np.arange(N))
    assert segments.problems(tmp_path / "corpus") == []
    gone = np.flatnonzero(NUMBERS == 0)
    offline.delete_rows(gone, tmp_path / "corpus")
    kept = np.setdiff1d(np.arange(N), gone)
    check(rk.Corpus.load(tmp_path / "corpus"), kept)
    rk.Corpus.load(tmp_path / "corpus").save(tmp_path / "whole")
    check(rk.Corpus.load(tmp_path / "whole", verify=True), kept)
    compacted = offline.compact_corpus(tmp_path / "corpus", rows_per_segment=17)
    check(compacted, kept)
    assert len(compacted.group_names) == len(NAMES) - 1
    assert segments.described(tmp_path / "corpus")["columns"] == ["groups of str", "ids of int64"]


def signed(path, change):
    """Change a description, checksum and all; return it."""
    content = json.loads((path / "corpus.json").read_text())
    del content["sha256"]
    change(content)
    written = folder.content_of(content)
    (path / "corpus.json").write_bytes(written)
    return hashlib.sha256(written).hexdigest()


@pytest.mark.parametrize("number", [-1, 4, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("segmented", [False, True], ids=["folder", "segments"])
def test_numbers_of_no_name_in_a_damaged_folder_are_refused(tmp_path, segmented, number):
    """Numbers for which there is no name, with checksums that fit."""
    path = tmp_path / "corpus"
    parts = [["a", "b", "c"], ["b", "d"]] if segmented else [["a", "b", "c", "d", "d"]]
    made = [rk.Corpus(EMBEDDINGS[: len(own)], groups=own, ids=[f"{own}{i}" for i in range(len(own))]) for own in parts]
    if segmented:
        versions.build("test", path, lambda _: ((each, each.ids) for each in made), 100, False)
    else:
        made[0].save(path)
    assert rk.Corpus.load(path, verify=True).group_names[:].tolist() == ["a", "b", "c", "d"]
    last = path / "segments" / segments.described(path)["segments"][-1]["name"] if segmented else path
    array = np.load(last / "groups.npy")
    array[-1] = number
    said = folder._write(last / "groups.npy", array, len(array))
    digest = signed(last, lambda whole: whole["files"].update({"groups.npy": said}))
    if segmented:
        signed(path, lambda whole: whole["segments"][-1].update(sha256=digest))
    with pytest.raises(ValueError, match=r"^Corpus: path must .*: groups must be numbers of their names, got others$"):
        rk.Corpus.load(path, verify=True)


def test_appended_in_memory():
    corpus = rk.Corpus(EMBEDDINGS[:2], groups=GROUPS[:2])
    for begin in range(2, N, 59):
        corpus = corpus.append(EMBEDDINGS[begin : begin + 59], groups=GROUPS[begin : begin + 59])
    check(corpus, np.arange(N))
    with pytest.raises(ValueError, match=r"have what belongs to the rows of the corpus, groups of str, got groups$"):
        corpus.append(EMBEDDINGS[:2], groups=[1, 2])


def broken(row, value):
    return [*GROUPS[:row], value, *GROUPS[row + 1 :]]


REFUSED = {
    "missing": (
        lambda: rk.Corpus(EMBEDDINGS, groups=broken(5, value=None)), ValueError,
        "Corpus: groups must have no missing values, got None in row 5",
    ),
    "missing_in_arrow": (
        lambda: rk.Corpus(EMBEDDINGS, groups=pa.array(broken(5, value=None))), ValueError,
        "Corpus: groups must have no missing values, got None in row 5",
    ),
    "nan": (
        lambda: rk.Corpus(EMBEDDINGS, groups=broken(0, value=float("nan"))), ValueError,
        "Corpus: groups must have no missing values, got nan in row 0",
    ),
    "mixed": (
        lambda: rk.Corpus(EMBEDDINGS, groups=broken(9, value=4)), TypeError,
        "Corpus: groups must be all integers or all strings, got int in row 9",
    ),
    "lists": (
        lambda: rk.Corpus(EMBEDDINGS, groups=broken(9, value=["a"])), TypeError,
        "Corpus: groups must be all integers or all strings, got list of others",
    ),
    "surrogate": (
        lambda: rk.Corpus(EMBEDDINGS, groups=broken(0, value="\ud800")), ValueError,
        "Corpus: groups must be text that UTF-8 can hold, got a lone surrogate in row 0",
    ),
    "shape": (
        lambda: rk.Corpus(EMBEDDINGS, groups=GROUPS[1:]), ValueError,
        "Corpus: groups must have shape (N,) = (120,), got (119,)",
    ),
    "without_use": (
        lambda: rk.Corpus(EMBEDDINGS).select(QUERIES, 3, groups=GROUPS, pool=50), ValueError,
        "select: groups must come with query_groups, max_per_group or min_per_group, got none",
    ),
    "asked_integers": (
        lambda: rk.Corpus(EMBEDDINGS, groups=GROUPS).search(QUERIES, 3, query_groups=ASKED_NUMBERS), TypeError,
        "search: query_groups must be strings as the groups of rows are, or None, got 0 in row 0",
    ),
    "asked_strings": (
        lambda: rk.Corpus(EMBEDDINGS, groups=NUMBERS).search(QUERIES, 3, query_groups=ASKED), TypeError,
        "search: query_groups must be integers as the groups of rows are, got strings",
    ),
    "asked_shape": (
        lambda: rk.mmr(QUERIES, EMBEDDINGS, 3, groups=GROUPS, query_groups=["web"]), ValueError,
        "mmr: query_groups must have shape (Q,) = (7,), got (1,)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message
