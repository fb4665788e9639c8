"""Regime c by draft and check, interpreted: whatever is drafted, the picks are those of the reference.

``TRITON_INTERPRET=1 pytest tests/gpu/test_triton_check.py`` runs the tests here, without the variable they run in a
process that has it.
"""

from types import SimpleNamespace

import interpreted
import numpy as np
import pytest
import traffic

import ragsys_kernels as rk
from ragsys_kernels import _arrays, _env, testing
from ragsys_kernels.selection import validate

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if interpreted.HERE:
    from ragsys_kernels.selection import triton_check, triton_kernels, triton_whole_corpus
    from ragsys_kernels.selection.triton_launch import Tile

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

N, D = 150, 24


@pytest.fixture(autouse=interpreted.HERE)
def small(monkeypatch):
    """Tiles so small that few rows are many; arrays that kernels must write come full of NaN or of no index."""
    monkeypatch.setattr(_env, "variants", lambda: "corpus=checked")
    tile = Tile(32, 16, 4, 4, 2)
    monkeypatch.setattr(triton_check, "check_tile", lambda *_: tile)
    monkeypatch.setattr(triton_check, "pool_tile", lambda *_: tile)
    for name, value in {"WHOLE_CORPUS": 32, "FIRST": 16, "MOST_ADDED": 2, "MANY_PROGRAMS": 2, "PART_BLOCK": 16}.items():
        monkeypatch.setattr(triton_check, name, value)
    monkeypatch.setattr(triton_check, "chunks", lambda n, *_: [(q, min(4, n - q)) for q in range(0, n, 4)])

    def empty(like, shape, dtype):
        value = float("nan") if dtype.startswith(("float", "bfloat")) else -77
        return torch.full(shape, value, dtype=getattr(torch, dtype))

    monkeypatch.setattr(_arrays, "empty", empty)


@pytest.fixture
def checks(monkeypatch):
    """How many queries each check had, and what is drafted: by the kernels unless ``draft`` is set."""

    found, settle, draft = (
        SimpleNamespace(queries=[], draft=None),
        triton_check.Rounds.settle,
        triton_check.Rounds._draft,
    )

    def counting(self, drafted):
        found.queries.append(int(self.count))
        settle(self, drafted)

    def drafting(self, *given):
        picks = draft(self, *given)
        return picks if found.draft is None else found.draft(picks)

    monkeypatch.setattr(triton_check.Rounds, "settle", counting)
    monkeypatch.setattr(triton_check.Rounds, "_draft", drafting)
    return found


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


@pytest.mark.parametrize(("dtype", "lambda_d"), [("float16", 0.75), ("bfloat16", 0.25)])
def test_picks_are_the_references(dtype, lambda_d, checks):
    run(problem(dtype) | {"lambda_d": lambda_d})
    assert checks.queries[0] == 4, "the check did not run"


def test_every_option_together(checks):
    given = problem(bias=True, groups=True, Q=3)
    given["initial"] = np.array([[0, -1], [-1, 3], [-1, -1]])
    given["k"] = np.array([3, 2, 1])
    given.update(lambda_d=np.array([0.5, 0.25, 1.0]), lambda_b=np.array([0.5, 1.0, 0.25]), max_per_group=1)
    run(given)
    assert checks.queries


def test_relevance_and_bias_of_each_pair(checks):
    rng = np.random.default_rng(0)
    given = problem()
    given["relevance"], given["bias"] = rng.integers(-3, 4, (2, 4, N)).astype(np.float32)
    run({**given, "queries": None, "lambda_b": 0.5})
    assert checks.queries


@pytest.mark.parametrize("drafted", ["nothing", "the last rows", "one row", "rows out of range"])
def test_whatever_is_drafted(drafted, checks):
    """A draft says where to look for what follows, never what is picked; each check makes one pick certain."""
    value = {"nothing": -1, "one row": 5, "rows out of range": 10**9}.get(drafted)
    checks.draft = lambda picks: N - 1 - picks % 7 if value is None else torch.full_like(picks, value)
    run(problem() | {"lambda_d": 0.5})
    assert checks.queries[0] == 4


def test_ties_go_to_the_lowest_row(checks):
    """Many equal rows, more than any pool holds, in clusters."""
    rows = np.zeros((N, 8), np.float16)
    rows[:, 0] = 1
    rows[::13, 1] = 1
    given = {"queries": np.eye(2, 8, dtype=np.float32), "embeddings": rows, "k": 4, "metric": "dot"}
    assert run({**given, "lambda_d": 1.0}).indices[0].tolist() == [0, 1, 2, 3]
    run({**given, "lambda_d": 0.5})
    run({**given, "lambda_d": 0.5, "metric": "cosine"}, same=False)
    assert checks.queries


def test_items_run_out(checks):
    """Three groups, one item of each: the fourth step finds nothing."""
    given = problem(Q=3, k=4) | {"groups": np.arange(N) % 3, "max_per_group": 1}
    given["query_groups"] = np.array([0, 1, 99])
    assert run(given).lengths.tolist() == [2, 2, 3]
    assert checks.queries


def test_items_that_are_nan_are_never_picked(checks):
    checked = validate.selection("mmr", **problem(kind="random", Q=2, k=4))
    checked.rows.data[[5, 60]] = np.nan
    result = triton_kernels.mmr(checked, 1)
    assert not {5, 60} & set(result.indices.flatten().tolist())
    assert result.lengths.tolist() == [4, 4]
    assert checks.queries


def test_bits_do_not_depend_on_the_batch(checks):
    """Easy and hard queries together, each alone, and in another order."""
    given = problem(kind="random", Q=3) | {"lambda_d": np.array([1.0, 0.1, 0.5])}
    together = run(given, same=False)
    for order in ([1], [2, 1, 0]):
        part = run({**given, "queries": given["queries"][order], "lambda_d": given["lambda_d"][order]}, same=False)
        for a, b in zip(part, together, strict=True):
            np.testing.assert_array_equal(a, b[order])
    assert checks.queries[0] == 3


def test_same_picks_as_the_dense_form(checks, monkeypatch):
    given = problem(kind="random", Q=2) | {"lambda_d": 0.3}
    by_checks = run(given, same=False)
    assert checks.queries
    monkeypatch.setattr(_env, "variants", lambda: "corpus=dense")
    monkeypatch.setattr(triton_whole_corpus, "corpus_tile", lambda *_: Tile(32, 16, 2, 4, 2))
    rounds = list(checks.queries)
    np.testing.assert_array_equal(run(given, same=False).indices, by_checks.indices)
    assert checks.queries == rounds


def test_which_calls_are_checked():
    """By shape alone: 16-bit rows of MMR, and pools that a Gram matrix has room for."""
    int8 = rk.Corpus(np.ones((N, D), np.float32), metric="dot", dtype="int8")
    for change, expected in (
        ({}, True),
        ({"k": 1}, False),
        ({"k": 17}, False),
        ({"initial": np.full((4, 120), -1)}, False),
        ({"embeddings": np.zeros((31, D), np.float16)}, False),
        ({"embeddings": np.zeros((N, D), np.float32)}, False),
        ({"embeddings": int8}, False),
    ):
        assert triton_check.fits(validate.selection("mmr", **problem() | change)) == expected, change


def test_a_right_draft_takes_two_reads_of_the_corpus(monkeypatch):
    """One for the pools, and one for all picks."""
    dims, reads = 32, 2
    assert [triton_check.looked_at(n) for n in (50, 384)] == [50, 192]  # half of one, where rows are long
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((160, dims)).astype(np.float16)
    rows[3::40] += 3 * rows[3]  # what the query, row 3, is like
    memory = torch.empty(160 * dims + 16, dtype=torch.float16)
    begin = -memory.data_ptr() % 32 // 2
    rows = memory[begin : begin + 160 * dims].view(160, dims).copy_(torch.from_numpy(rows))  # starts with a sector
    given = {"queries": rows[3:4].float(), "embeddings": rows, "k": 3, "lambda_d": 0.95, "metric": "dot"}
    checked = _arrays.tensors(validate.selection("mmr", **given))
    kernel, copy = triton_check.corpus_check_kernel, rows.clone()

    class Apart:
        """The drafted items, which every program reads, are counted apart from the rows."""

        def __getitem__(self, grid):
            return lambda **arguments: kernel[grid](**arguments | {"items": copy})

    monkeypatch.setattr(triton_check, "corpus_check_kernel", Apart())
    with traffic.counted(rows=checked.rows.data) as moved:
        triton_kernels.mmr(checked, 1)
    pools = moved.launches["select_gram_kernel"] * 32 * dims * 2
    corpus = 160 * dims * 2
    assert reads * corpus <= moved.read["rows"] <= reads * corpus + pools


interpreted.elsewhere(globals(), slow=True)
