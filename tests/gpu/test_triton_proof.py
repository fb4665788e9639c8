"""Regime c by proof, interpreted: no wrong draft is proven, and what is not proven is answered too.

`test_proof_problems.py` holds thousands of queries against float64.
"""

from collections import Counter

import interpreted
import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels.selection import validate

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if interpreted.HERE:
    import proof_problems
    import traffic

    from ragsys_kernels.selection.triton import backend as triton_kernels
    from ragsys_kernels.selection.triton import bit_search as triton_search
    from ragsys_kernels.selection.triton import dense as triton_dense
    from ragsys_kernels.selection.triton import proof as triton_proof

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")]

N, D = 420, 24


@pytest.fixture(autouse=interpreted.HERE)
def calls(monkeypatch):
    """How many queries each call had left before each check, and after the last.

    Tiles and pools are small; arrays that kernels must write come full of NaN or of no index.
    """
    proof_problems.make_small(monkeypatch.setattr)

    def empty(like, shape, dtype):
        value = float("nan") if dtype.startswith(("float", "bfloat")) else -77
        return torch.full(shape, value, dtype=getattr(torch, dtype))

    monkeypatch.setattr(_arrays, "empty", empty)
    with proof_problems.counted() as found:
        yield found


def problem(dtype="float16", Q=4, k=3, kind="integers", **options):
    made = testing.selection_problem(Q, 21, k, D, N=N, kind=kind, dtype=dtype, seed=k, **options)
    del made["candidates"]
    return made


def run(given, *, same=True):
    result = rk.Selection(*map(np.asarray, rk.mmr(**given, backend="triton")))
    testing.check_selection("mmr", given, result)
    if same:
        expected = rk.mmr(**given, backend="reference")
        for name in ("indices", "scores", "relevance", "redundancy", "lengths"):
            np.testing.assert_array_equal(getattr(result, name), np.asarray(getattr(expected, name)), err_msg=name)
    return result


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_picks_are_the_references(dtype, calls):
    given = problem(dtype, Q=3) | {"lambda_d": 0.75}
    if dtype == "float32":
        corpus = rk.Corpus(given["embeddings"], metric="dot")
        given |= {"embeddings": corpus, "metric": "dot"}
    run(given)
    assert calls[0][0] == 3, "nothing was drafted"
    assert calls[0][-1] < 3, "nothing is proven"


def test_every_option_together(calls):
    given = problem(bias=True, groups=True, Q=3)
    given["initial"] = np.array([[0, -1], [-1, 3], [-1, -1]])
    given["k"] = np.array([3, 2, 1])
    given.update(lambda_d=np.array([0.5, 0.25, 1.0]), lambda_b=np.array([0.5, 1.0, 0.25]), max_per_group=1)
    run(given)
    assert calls


def test_more_columns_than_are_multiplied_at_a_time(calls):
    run(problem(Q=2, k=7) | {"lambda_d": np.array([0.75, 0.5])})
    assert calls[0][0] == 2


def test_ties_go_to_the_lowest_row(calls):
    """Many equal rows, more than any pool holds, in clusters."""
    rows = np.zeros((300, 8), np.float16)
    rows[:, 0] = 1
    rows[::13, 1] = 1
    given = {"queries": np.eye(2, 8, dtype=np.float32), "embeddings": rows, "k": 3, "metric": "dot"}
    given["lambda_d"] = np.array([1.0, 0.5])
    assert run(given).indices[0].tolist() == [0, 1, 2]
    run({**given, "metric": "cosine"}, same=False)
    assert calls[0][-1] > 0, "not all rows were looked at"


def test_items_run_out(calls):
    """Three groups, one item of each: the fourth step finds nothing."""
    given = problem(Q=3, k=4) | {"groups": np.arange(N) % 3, "max_per_group": 1}
    given["query_groups"] = np.array([0, 1, 99])
    assert run(given).lengths.tolist() == [2, 2, 3]
    assert calls


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_items_that_are_nan_or_infinitely_bad_are_never_picked(calls):
    checked = validate.selection("mmr", **problem(kind="random", Q=2, k=4, bias=True))
    checked.rows.data[[5, 60]] = np.nan
    checked.bias, checked.lambda_b = np.zeros((2, N), np.float32), np.full(2, 0.5, np.float32)
    checked.bias[0, 100:] = -np.inf
    checked.bias[1, :300] = np.nan
    result = triton_kernels.mmr(checked, 1)
    first, second = result.indices
    assert (first < 100).all()
    assert not {5, 60} & set(first.tolist())
    assert (second >= 300).all()
    assert result.lengths.tolist() == [4, 4]
    assert calls


def test_bits_do_not_depend_on_the_batch(calls):
    """Easy and hard queries together, each alone, and in another order."""
    given = problem(kind="random", Q=3) | {"lambda_d": np.array([1.0, 0.1, 0.5])}
    together = run(given, same=False)
    for order in ([1], [2, 0]):
        part = run({**given, "queries": given["queries"][order], "lambda_d": given["lambda_d"][order]}, same=False)
        for a, b in zip(part, together, strict=True):
            np.testing.assert_array_equal(a, b[order])
    assert calls[0][0] == 3


def test_however_many_programs_share_the_later_checks_they_find_the_same(calls, monkeypatch):
    given = problem(kind="random", Q=3) | {"lambda_d": np.array([1.0, 0.3, 0.5])}
    few = run(given, same=False)
    monkeypatch.setattr(triton_dense, "PROGRAMS", 1000)
    for a, b in zip(run(given, same=False), few, strict=True):
        np.testing.assert_array_equal(a, b)
    assert calls[0] == calls[1]
    assert calls[0][-2] > calls[0][-1], "no later check proved anything"


def test_queries_with_many_contenders_are_left_after_one_check(calls, monkeypatch):
    given = problem(kind="random", Q=3) | {"lambda_d": np.array([1.0, 0.3, 0.2])}
    expected = run(given, same=False)
    monkeypatch.setattr(triton_proof, "HOPELESS", 16)
    for a, b in zip(run(given, same=False), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert calls[1][:2] == [3, 0]
    assert calls[1][-1] == calls[0][1] == 2


def test_later_checks_by_smaller_tiles_find_the_same(calls, monkeypatch):
    """As on Hopper; all columns at once, or two at a time; more words of bits than the first check's, or as many."""
    monkeypatch.setattr(triton_proof, "FIRST", 4)  # half as many as there are larger tiles
    for rows, most in ((513, 5), (545, 2)):
        given = problem(kind="random", Q=4, k=4) | {"lambda_d": np.array([0.6, 0.7, 0.75, 0.8])}
        given["embeddings"] = np.resize(given["embeddings"], (rows, D))[::-1].copy()
        few = run(given, same=False)
        with monkeypatch.context() as hopper:
            hopper.setattr(triton_proof, "is_hopper", lambda: True)
            hopper.setattr(triton_search, "ROWS", 64)
            hopper.setattr(triton_proof, "MOST_TERMS", most)
            hopper.setattr(triton_proof, "TERMS", (4, min(3, most)))
            for a, b in zip(run(given, same=False), few, strict=True):
                np.testing.assert_array_equal(a, b)
        assert calls[-1] == calls[-2]
        assert calls[-1][1] > calls[-1][-1], "no later check proved anything"


def test_chunks_of_queries(calls, monkeypatch):
    given = problem(kind="random", Q=3, k=2, bias=True) | {"lambda_d": 0.6}
    whole = run(given, same=False)
    monkeypatch.setattr(triton_proof, "chunks", lambda n, *_: [(q, min(2, n - q)) for q in range(0, n, 2)])
    for a, b in zip(run(given, same=False), whole, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [call[0] for call in calls] == [3, 2, 1]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_of_unknown_length(dtype, calls):
    """A kernel finds the lengths of plain arrays; float32 rows, of which the host needs to know them, go densely."""
    given = problem(dtype, kind="random") | {"metric": "dot", "lambda_d": 0.7}
    given["embeddings"] = (given["embeddings"] * 30).astype(dtype)
    run(given, same=False)
    assert len(calls) == (dtype == "float16")


def test_rows_of_nan_do_not_hide_how_long_the_others_are(calls):
    given = problem(kind="random", Q=2) | {"metric": "dot", "lambda_d": 0.7}
    expected = run(given, same=False)
    checked = validate.selection("mmr", **given)
    lowest = sorted(set(range(N)) - set(expected.indices.flatten().tolist()))[0]
    checked.rows.data[lowest] = np.nan
    np.testing.assert_array_equal(triton_kernels.mmr(checked, 1).indices, expected.indices)
    assert len(calls) == 2


def test_which_calls_are_proven():
    """By shape alone."""
    for change, expected in (
        ({}, True),
        ({"k": 1}, False),
        ({"k": 8}, False),
        ({"initial": np.full((4, 13), -1)}, False),
        ({"initial": np.full((4, 12), -1)}, True),
        ({"embeddings": np.zeros((90, D), np.float16)}, False),
        ({"embeddings": rk.Corpus(np.ones((N, D), np.float32)), "metric": "cosine"}, True),
        ({"relevance": np.ones((4, N), np.float32)}, False),
        ({"groups": np.arange(N), "max_per_group": 1}, True),
    ):
        assert triton_proof.fits(validate.selection("mmr", **problem() | change)) == expected, change


@pytest.fixture
def left(monkeypatch):
    """What the kernels of each `dense.select` moved, and how many programs each had: of those that drafts leave."""
    found, select, launch = [], triton_dense.select, triton_dense.launch

    def counted(problem, out, left=None):
        with traffic.counted(rows=problem.rows.data) as moved:
            moved.grids = []
            found.append(moved)
            select(problem, out, left)

    def noted(kernel, grid, **arguments):
        if found:
            found[-1].grids.append(grid)
        launch(kernel, grid, **arguments)

    monkeypatch.setattr(triton_dense, "select", counted)
    monkeypatch.setattr(triton_dense, "launch", noted)
    return found


def easy(Q=1, dims=32):
    """A problem of which the first drafts are right: many rows are like each query, some more than others."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((N, dims)).astype(np.float16)
    rows[3::40] += 3 * rows[3]
    given = {"queries": rows[3:4].repeat(Q, 0).astype(np.float32), "metric": "dot", "k": 3, "lambda_d": 0.95}
    return given | {"embeddings": rk.Corpus(rows, dtype="float16", metric="dot")}


def test_a_right_draft_takes_two_reads_of_the_corpus_and_a_sample_and_no_other_is_made(calls, monkeypatch):
    checked = _arrays.tensors(validate.selection("mmr", **easy()))
    drafts, select = [], triton_proof.gram.select

    def counted(*given):
        with traffic.counted(rows=checked.rows.data) as moved:
            select(*given)
        drafts.append(moved.read["rows"])

    monkeypatch.setattr(triton_proof.gram, "select", counted)
    with traffic.counted(rows=checked.rows.data) as moved:
        triton_kernels.mmr(checked, 1)
    assert calls[0][1] == 0
    assert drafts[0] > 0
    assert set(drafts[1:]) == {0}
    corpus, pool = N * 32 * 2, 64 * 32 * 2
    assert 2.25 * corpus <= moved.read["rows"] <= 2.25 * corpus + 2 * pool + 64 * 64


def test_launches_for_queries_that_are_left_have_few_programs_and_do_nothing_where_none_is(calls, left):
    run(easy(Q=5), same=False)
    assert calls[0] == [5, 0, 0, 0]
    (moved,) = left
    assert sum(moved.written.values()) == 0
    # The queries' parts, the relevance, three picks, two reads of the rows between them.
    assert moved.grids == [(triton_dense.PROGRAMS,), (5,)] + 2 * [(triton_dense.PROGRAMS,), (5,)]
    programs = 5 + sum(grid for (grid,) in moved.grids)
    assert dict(+moved.read) == {"others": programs * traffic.SECTOR_BYTES}, "more than the number of queries"


def copied():
    """A corpus that has each of five rows 200 times, and others; the queries are these rows."""
    rows = np.random.default_rng(1).standard_normal((1400, D)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[100:1100] = np.tile(queries := rows[:5].copy(), (200, 1))
    return {"queries": queries, "embeddings": rows.astype(np.float16), "metric": "dot", "k": 4, "lambda_d": 0.75}


def test_queries_of_which_a_corpus_has_many_copies_cost_what_they_do_without_a_proof(calls, left, monkeypatch):
    given = copied()
    found = run(given, same=False)
    monkeypatch.setenv("RAGSYS_KERNELS_VARIANTS", "corpus=dense")
    expected = run(given, same=False)
    np.testing.assert_array_equal(found.indices, expected.indices)
    of_proof, dense = left
    assert of_proof.read["rows"] == dense.read["rows"] > 0
    assert dict(of_proof.launches) == dict(dense.launches - Counter(query_factors_kernel=1))
    assert calls == [[5, 5, 0, 5]], "checks that find the same again"


def test_what_is_left_is_done_in_chunks_too(calls, left, monkeypatch):
    rng = np.random.default_rng(0)
    given = copied() | {"lambda_d": np.array([0.75, 0.9, 0.8, 0.7, 0.85]), "lambda_b": rng.uniform(0.9, 1, 5)}
    given["bias"] = np.zeros(1400, np.float32)
    whole = run(given, same=False)
    monkeypatch.setattr(triton_dense, "WORKSPACE_BYTES", 2 * 8 * 1408)
    for a, b in zip(run(given, same=False), whole, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [moved.launches["corpus_relevance_kernel"] for moved in left] == [1, 3]
    assert calls[0][-1] > 2, "one chunk is enough"


interpreted.elsewhere(globals())
