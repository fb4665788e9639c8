"""A corpus in segments answers as the one corpus that has the same rows: the same bits, whatever is asked."""

import itertools
import pickle

import numpy as np
import pytest
from segmented import LAYOUTS, Rows, check_equal, corpus_of, in_folder, in_memory, mixed

import ragsys_kernels as rk
from ragsys_kernels.corpus import spans

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.selection.validate.PoolSizeWarning")

RULES = {
    "mmr": {}, "vrsd": {}, "msd": {}, "dpp": {}, "ssd": {}, "sift": {}, "coverage": {}, "cover": {"kind": "cover"},
    "xquad": {"kind": "xquad"},
}  # fmt: skip
KINDS = {
    "float32": ("float32", "cosine"), "float16": ("float16", "cosine"), "bfloat16": ("bfloat16", "cosine"),
    "int8": ("int8", "cosine"), "dot": ("float32", "dot"), "int8 dot": ("int8", "dot"),
}  # fmt: skip


def method_of(rule):
    return "coverage" if rule in ("cover", "xquad") else rule


def queries_of(rows, number=4):
    return np.random.default_rng(9).standard_normal((number, rows.embeddings.shape[1])).astype(np.float32)


def deleted_of(rows, layout, share=0.3):
    """Rows to delete: a share of all, a whole segment where there are several, and those nearest to the queries."""
    number = sum(layout)
    gone = np.random.default_rng(5).random(number) < share
    if len(layout) > 2:
        starts = np.cumsum([0, *layout])
        gone[starts[2] : starts[3]] = True
        gone[: starts[1]] = True
    unit = rows.embeddings / np.linalg.norm(rows.embeddings, axis=1, keepdims=True)
    gone[np.argsort(-(unit @ queries_of(rows).T), axis=0)[:3].ravel()] = True
    return np.flatnonzero(gone)


def pair(tmp_path, rows, layout, gone, made="folder", **options):
    """The corpus in segments, the one corpus of the rows that are not deleted, and the numbers of these."""
    several = {"folder": in_folder, "mixed": mixed}.get(made, lambda _, *given, **more: in_memory(*given, **more))(
        tmp_path / "corpus", rows, layout, **options
    )
    kept = np.setdiff1d(np.arange(sum(layout)), gone)
    several = several.delete(several.ids[gone]) if len(gone) else several
    return several, corpus_of(rows, kept, **options), kept


@pytest.mark.parametrize(
    ("layout", "made"), [("one", "mixed"), ("two", "folder"), ("seven", "mixed"), ("thirty-two", "memory")]
)
def test_arrays_are_those_of_one_corpus(tmp_path, layout, made):
    rows = Rows(300)
    several, one, _ = pair(tmp_path, rows, LAYOUTS[layout], [], made)
    for name in ("data", "bias", "groups", "costs", "codes"):
        np.testing.assert_array_equal(getattr(several, name), getattr(one, name))
    np.testing.assert_array_equal(several.ids[:], one.ids[:])
    np.testing.assert_array_equal(several.rows_of(rows.columns["ids"]), np.arange(300))
    assert repr(several) == repr(one)
    assert len(several) == several.num_live == 300


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rule", "kind"), [*zip(RULES, itertools.cycle(KINDS))])
def test_rules_and_storage_types(backend, tmp_path, kind, rule):
    dtype, metric = KINDS[kind]
    if backend not in ("cpu", "reference"):
        pytest.skip("rows on the host")
    rows = Rows(300)
    gone = deleted_of(rows, LAYOUTS["seven"])
    if metric == "dot":  # what is deleted plays no part in what is too large
        rows.embeddings[gone[0]] = 1e30
    several, one, kept = pair(tmp_path, rows, LAYOUTS["seven"], gone, dtype=dtype, metric=metric)
    asked = queries_of(rows)
    for pool in (30, None):
        options = {"method": method_of(rule), "pool": pool, "backend": backend, **RULES[rule]}
        check_equal(several.select(asked, 5, **options), one.select(asked, 5, **options), kept)
    check_equal(several.search(asked, 20, backend=backend), one.search(asked, 20, backend=backend), kept)


@pytest.mark.parametrize(
    ("layout", "share", "made"),
    [*zip(LAYOUTS, itertools.cycle([0.0, 0.2, 0.97]), itertools.cycle(["mixed", "folder"]))],
)
def test_layouts_and_deleted_rows(compiled, tmp_path, layout, share, made):
    rows = Rows(300, ids="str")
    gone = deleted_of(rows, LAYOUTS[layout], share) if share else []
    several, one, kept = pair(tmp_path, rows, LAYOUTS[layout], gone, made)
    asked = queries_of(rows)
    for pool in (7, 1000, None, "certified"):
        check_equal(several.select(asked, 3, pool=pool), one.select(asked, 3, pool=pool), kept)
    check_equal(several.search(asked, 300), one.search(asked, 300), kept)
    assert several.num_live == len(one)


def test_constraints(backend, tmp_path):
    if backend not in ("cpu", "reference"):
        pytest.skip("rows on the host")
    rows = Rows(300)
    several, one, kept = pair(tmp_path, rows, LAYOUTS["seven"], deleted_of(rows, LAYOUTS["seven"]))
    rng, asked = np.random.default_rng(2), queries_of(rows)
    mask, masks = rng.random(300) < 0.5, rng.random((4, 300)) < 0.4
    place = np.full(300, -1)
    place[kept] = np.arange(len(kept))
    lists = rng.permuted(np.tile(np.arange(300), (4, 1)), axis=1)[:, :60]
    initial = kept[rng.integers(0, len(kept), (4, 1))]
    given = {
        "mask": ({"allowed": mask}, {"allowed": mask[kept]}),
        "masks": ({"exclude": masks}, {"exclude": masks[:, kept]}),
        "lists": ({"allowed": lists}, {"allowed": place[lists]}),
        "rows": ({"exclude": lists[0]}, {"exclude": place[lists[0]]}),
        "groups": ({"query_groups": [1, 2, 3, 99], "max_per_group": 1},) * 2,
        "budget": ({"budget": [5.0, 9.0, 20.0, 0.5]},) * 2,
        "similarity": ({"max_similarity": 0.3},) * 2,
        "initial": ({"initial": initial}, {"initial": place[initial]}),
        "candidates": ({"candidates": lists}, {"candidates": place[lists]}),
        "bias": ({"bias": np.arange(300.0) / 300}, {"bias": np.arange(300.0)[kept] / 300}),
    }
    for ours, others in given.values():
        for method in ("mmr", "vrsd", "msd") if "bias" not in ours else ("mmr",):
            for pool in (40, None):
                options = {"method": method, "pool": pool, "backend": backend}
                check_equal(
                    several.select(asked, 5, **ours, **options), one.select(asked, 5, **others, **options), kept
                )


@pytest.mark.parametrize("method", ["mmr", "vrsd"])
def test_many_rows_go_in_stages(compiled, tmp_path, method):
    layout = [1500, 1, 900, 700]
    rows = Rows(3101, dims=48)
    several, one, kept = pair(tmp_path, rows, layout, deleted_of(rows, layout, 0.1), "mixed", dtype="float16")
    asked = queries_of(rows, 300)
    check_equal(several.search(asked, 30), one.search(asked, 30), kept)
    for pool in (100, None, *(["certified"] if method == "mmr" else [])):
        check_equal(
            several.select(asked, 8, method=method, pool=pool), one.select(asked, 8, method=method, pool=pool), kept
        )


def test_functions_of_rules_leave_deleted_rows_out():
    rows = Rows(50, columns=())
    corpus = corpus_of(rows, np.arange(50)).delete(rows.columns["ids"][:20])
    picks = rk.mmr(queries_of(rows), corpus, 30)
    assert (picks.indices >= 20).all()
    picks = rk.vrsd(queries_of(rows), corpus, 5, candidates=np.tile(np.arange(25), (4, 1)))
    np.testing.assert_array_equal(np.sort(picks.indices), np.tile(np.arange(20, 25), (4, 1)))
    assert (rk.mmr_path(queries_of(rows), corpus, 4).indices >= 20).all()


def test_deleted_rows_are_no_errors():
    rows = Rows(50, columns=(), ids=None)
    rows.embeddings[7] = 1e18  # whose product with a query, and whose square, leave float32
    corpus = corpus_of(rows, np.arange(50), metric="dot")
    asked = np.full((2, 13), 1e20, np.float32)
    with pytest.raises(ValueError, match="range of float32"):
        corpus.search(asked, 3)
    with pytest.raises(ValueError, match="row norms"):
        corpus.select(asked[:1] / 1e20, 3, method="vrsd", pool=None)
    without = corpus.delete([7])
    assert (without.search(asked, 50).indices != 7).all()
    assert (without.select(asked[:1] / 1e20, 3, method="vrsd", pool=None).indices != 7).all()


def test_nothing_is_left():
    rows = Rows(9, ids=None)
    corpus = corpus_of(rows, np.arange(9)).delete(np.arange(9))
    assert corpus.num_live == 0
    assert (corpus.search(queries_of(rows), 3).indices == -1).all()
    for pool in (5, None):
        assert (corpus.select(queries_of(rows), 3, pool=pool).lengths == 0).all()


# --- A corpus never changes.


def test_append_and_delete_leave_the_corpus_as_it_was(tmp_path):
    rows = Rows(300)
    corpus = in_folder(tmp_path / "corpus", rows, [100, 100])
    before = corpus.search(queries_of(rows), 5)
    longer = corpus.append(**rows.part(np.arange(200, 300)))
    other = corpus.append(**rows.part(np.arange(250, 300)))
    shorter = longer.delete(rows.columns["ids"][before.indices[:, 0]])
    assert [len(each) for each in (corpus, longer, other, shorter)] == [200, 300, 250, 300]
    assert [each.num_live < len(each) for each in (corpus, longer, other, shorter)] == [False, False, False, True]
    for field, again in zip(before, corpus.search(queries_of(rows), 5), strict=True):
        np.testing.assert_array_equal(field, again)
    np.testing.assert_array_equal(other.data[200:], longer.data[250:])
    for array in (longer.data, longer.bias, shorter.live):
        assert not array.flags.writeable


def test_segments_are_shared(tmp_path):
    """Pages of the same files, or of the same memory: rows are not copied from version to version."""
    if not spans._can_map():
        pytest.skip("arrays are copied here")
    rows = Rows(3000, dims=64)

    def own_bytes(array):
        """Bytes of pages that belong to this process alone."""
        begin = array.ctypes.data
        own, within = 0, False
        with open("/proc/self/smaps") as file:
            for line in file:
                head = line.split()[0]
                if "-" in head and not head.endswith(":"):
                    low, high = (int(x, 16) for x in head.split("-"))
                    within = low < begin + array.nbytes and high > begin
                elif head in ("Private_Dirty:", "Anonymous:") and within:
                    own += int(line.split()[1]) * 1024 * (head == "Anonymous:")
        return own

    folder = in_folder(tmp_path / "corpus", rows, [1000, 1000])
    longer = folder.append(**rows.part(np.arange(2000, 2500))).append(**rows.part(np.arange(2500, 3000)))
    made = corpus_of(rows, np.arange(2000)).append(**rows.part(np.arange(2000, 2500)))
    made = made.append(**rows.part(np.arange(2500, 3000)))
    for corpus in (folder, longer, made):
        assert corpus.data.sum() != 0  # every page is there
        assert own_bytes(corpus.data) <= 4 * 4096
    np.testing.assert_array_equal(longer.data, made.data)


def test_append_finds_no_files_that_are_gone(tmp_path):
    import shutil

    rows = Rows(300)
    corpus = in_folder(tmp_path / "corpus", rows, [100, 100])
    shutil.rmtree(tmp_path / "corpus")
    check_equal(
        corpus.append(**rows.part(np.arange(200, 300))).search(queries_of(rows), 9),
        corpus_of(rows, np.arange(300)).search(queries_of(rows), 9),
        np.arange(300),
    )


@pytest.mark.parametrize("without", ["maps", "files in memory", "small pages"])
def test_systems_that_cannot_map_copy(tmp_path, monkeypatch, without):
    if without == "maps":
        monkeypatch.setattr(spans, "_can_map", lambda: False)
    elif without == "files in memory":
        monkeypatch.delattr(spans.os, "memfd_create")
    else:
        monkeypatch.setattr(spans.Piece, "opened", lambda self: None)
    rows = Rows(300)
    gone = deleted_of(rows, LAYOUTS["seven"])
    several, one, kept = pair(tmp_path, rows, LAYOUTS["seven"], gone, "mixed")
    check_equal(several.search(queries_of(rows), 9), one.search(queries_of(rows), 9), kept)


def test_copies_and_processes(tmp_path):
    rows = Rows(300)
    corpus = mixed(tmp_path / "corpus", rows, [100, 100, 100]).delete(rows.columns["ids"][:10])
    other = pickle.loads(pickle.dumps(corpus))
    check_equal(other.search(queries_of(rows), 9), corpus.search(queries_of(rows), 9), np.arange(300))
    np.testing.assert_array_equal(other.rows_of(rows.columns["ids"][10:]), np.arange(10, 300))
    more = Rows(9, seed=3)
    more.columns["ids"] = more.columns["ids"] + 5000
    assert len(other.append(**more.part(slice(None)))) == 309


def test_save_writes_what_is_left(tmp_path):
    rows = Rows(300, ids="str")
    several, one, kept = pair(tmp_path, rows, LAYOUTS["seven"], deleted_of(rows, LAYOUTS["seven"]))
    several.save(tmp_path / "saved")
    loaded = rk.Corpus.load(tmp_path / "saved", verify=True)
    check_equal(loaded.search(queries_of(rows), 9), one.search(queries_of(rows), 9), np.arange(len(kept)))
    np.testing.assert_array_equal(loaded.ids[:], one.ids[:])


# --- Ids.


@pytest.mark.parametrize("kind", ["int64", "str"])
def test_ids_of_deleted_and_replaced_rows(kind):
    rows = Rows(60, ids=kind)
    ids = rows.columns["ids"]
    corpus = in_memory(rows, [20, 20, 20]).delete([ids[3], ids[45]])
    assert corpus.rows_of([ids[3], ids[4]], unknown="pad").tolist() == [-1, 4]
    assert corpus.ids[3] == ids[3]  # a row keeps its id
    assert ids[45] not in corpus.ids
    with pytest.raises(ValueError, match="ids of the corpus"):
        corpus.rows_of(ids[3])
    with pytest.raises(ValueError, match=r"^delete: ids must be ids of the corpus, got .* at position 0$"):
        corpus.delete([ids[3]])
    assert corpus.delete([ids[3]], unknown="skip") is corpus
    with pytest.raises(ValueError, match=r"ids must not be in the corpus, got .* in row 1 .* and 1 more"):
        corpus.append(**rows.part([3, 4, 5]))
    replaced = corpus.append(**rows.part([3, 4, 5]), on_duplicate="replace")
    assert replaced.rows_of(ids[[3, 4, 5]]).tolist() == [60, 61, 62]
    assert (len(replaced), replaced.num_live) == (63, 59)
    again = replaced.append(**rows.part([4]), on_duplicate="replace")
    assert again.rows_of(ids[[3, 4, 5]]).tolist() == [60, 63, 62]
    pad = -1 if kind == "int64" else None
    assert again.rows_of(np.array([[ids[4], pad]], ids.dtype)).tolist() == [[63, -1]]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            {"bias": None},
            "what belongs to the rows of the corpus, bias, groups, costs, ids of int64, got groups, costs",
        ),
        ({"ids": [f"x{i}" for i in range(20)]}, "got bias, groups, costs, ids of str"),
        ({"embeddings": np.ones((20, 9), np.float32)}, "the D of the corpus, 13, got 9"),
        ({"on_duplicate": "keep"}, "on_duplicate must be"),
    ],
)
def test_append_refuses(given, match):
    rows = Rows(40)
    with pytest.raises(ValueError, match=match):
        corpus_of(rows, np.arange(20)).append(**{**rows.part(np.arange(20, 40)), **given})


def test_append_of_a_corpus_is_of_the_same_kind():
    rows = Rows(40)
    corpus = corpus_of(rows, np.arange(20))
    for options, what in (({"dtype": "int8"}, "dtype"), ({"metric": "dot"}, "metric")):
        with pytest.raises(ValueError, match=f"the {what} of the corpus"):
            corpus.append(corpus_of(rows, np.arange(20, 40), **options))
    with pytest.raises(ValueError, match="ids must be left out with a Corpus"):
        corpus.append(corpus_of(rows, np.arange(20, 40)), ids=np.arange(20))
    part = corpus_of(rows, np.arange(20, 40)).delete(rows.columns["ids"][20:25])
    assert len(corpus.append(part)) == 35
