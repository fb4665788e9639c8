"""Regime c by codes, interpreted: what the codes prove and what they do not, the picks are those of the reference.

``TRITON_INTERPRET=1 pytest tests/gpu/test_triton_coded_corpus.py`` runs the tests here; without the variable they run
in a process that has it.
"""

from types import SimpleNamespace

import interpreted
import numpy as np
import pytest
import traffic

import ragsys_kernels as rk
from ragsys_kernels import _arrays, testing
from ragsys_kernels.selection import validate
from ragsys_kernels.selection.codes import swapped

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if interpreted.HERE:
    from ragsys_kernels.selection import triton_check, triton_coded_corpus, triton_kernels
    from ragsys_kernels.selection.triton_launch import Tile

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

N = 132


@pytest.fixture(autouse=interpreted.HERE)
def unfinished(monkeypatch):
    """Tiles and lists so small that few rows are many; arrays that kernels must write come full of NaN or no index.

    How many queries were left when codes were looked through, and when all rows were read; what is drafted first.
    """
    monkeypatch.setenv("RAGSYS_KERNELS_VARIANTS", "corpus=coded")
    looking, finding = Tile(64, 64, 4, 4, 2), Tile(32, 64, 4, 4, 2)
    monkeypatch.setattr(triton_coded_corpus, "looking_tile", lambda _, held: looking._replace(dims=64 if held else 32))
    monkeypatch.setattr(triton_coded_corpus, "finding_tile", lambda: finding)
    monkeypatch.setattr(triton_check, "check_tile", lambda *_: Tile(64, 16, 4, 4, 2))
    monkeypatch.setattr(triton_coded_corpus, "chunks", lambda n, *_: [(q, min(4, n - q)) for q in range(0, n, 4)])
    for name, value in {"LEAST_ROWS": 32, "ROUNDS": 2, "ROOM": 32, "LEVELS": 2, "POOL": 20}.items():
        monkeypatch.setattr(triton_coded_corpus, name, value)
    for name, value in {"FIRST": 8, "MOST_ADDED": 2, "MANY_PROGRAMS": 2, "PART_BLOCK": 16}.items():
        monkeypatch.setattr(triton_check, name, value)

    def empty(like, shape, dtype):
        value = float("nan") if dtype.startswith(("float", "bfloat")) else -77
        return torch.full(shape, value, dtype=getattr(torch, dtype))

    monkeypatch.setattr(_arrays, "empty", empty)
    found, rounds = SimpleNamespace(looks=[], reads=[], pools=None), triton_coded_corpus._CodedRounds
    look, check, first = rounds._look, rounds.check, rounds._first_pools
    monkeypatch.setattr(rounds, "_look", lambda self: (found.looks.append(int(self.count)), look(self)))
    monkeypatch.setattr(rounds, "check", lambda self, draft: (found.reads.append(int(self.count)), check(self, draft)))
    monkeypatch.setattr(rounds, "_first_pools", lambda self: (found.pools or (lambda pools: pools))(first(self)))
    return found


def rows(D=20, seed=0):
    """Rows in clusters, each row again 44 rows later."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((5, D))[rng.integers(0, 5, 44)] + 0.8 * rng.standard_normal((44, D))
    return np.tile(x, (3, 1)).astype(np.float32)


def run(embeddings, queries, k, dtype="float32", *, same=True, **given):
    corpus = rk.Corpus(embeddings, dtype=dtype)
    result = rk.Selection(*map(np.asarray, rk.mmr(queries, corpus, k, backend="triton", **given)))
    testing.check_selection("mmr", {"queries": queries, "embeddings": corpus, "k": k, **given}, result)
    if not same:
        return result
    expected = rk.mmr(queries, corpus, k, backend="reference", **given)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_array_equal(result.lengths, expected.lengths)
    for name in ("scores", "relevance", "redundancy"):
        np.testing.assert_allclose(getattr(result, name), getattr(expected, name), atol=2e-6, err_msg=name)
    return result


@pytest.mark.parametrize(("dtype", "D"), [("float32", 20), ("float16", 130), ("bfloat16", 64)])
def test_picks_are_the_references_and_of_equal_rows_the_lowest(dtype, D, unfinished):
    """Headers beside the codes and in a line of their own, rows of one line and of more."""
    embeddings = rows(D)
    run(embeddings, embeddings[:2] + 0.1, 3, dtype)
    assert unfinished.looks[0] == 2
    assert unfinished.reads == [0] * 3, "codes proved not all"


def test_every_option_together(unfinished):
    rng = np.random.default_rng(1)
    given = {
        "bias": rng.standard_normal(N).astype(np.float32),
        "groups": np.arange(N) % 7,
        "query_groups": np.array([0, 1, 99]),
        "initial": np.array([[3, -1], [-1, 60], [-1, -1]]),
        "lambda_d": np.array([0.5, 0.9, 1.0]),
        "lambda_b": np.array([0.5, 1.0, 0.25]),
    }
    run(rows(), rows()[:3] + 0.1, np.array([3, 2, 1]), **given)
    assert unfinished.looks


def test_relevance_and_bias_of_each_pair(unfinished):
    rng = np.random.default_rng(2)
    relevance, bias = rng.standard_normal((2, 3, N)).astype(np.float32)
    run(rows(), None, 3, relevance=relevance, bias=bias, lambda_b=0.5)
    assert unfinished.reads == [0] * 3


def test_whatever_is_drafted_first(unfinished):
    """A wrong draft has contenders that are better; one of nothing has all rows, of which some are looked at."""
    unfinished.pools = lambda found: torch.stack([N - 1 - found[0] % 20, torch.full_like(found[1], -1)])
    run(rows(), rows()[:2] + 0.1, 3, lambda_d=0.9)
    assert unfinished.looks == [2, 2]


def test_rows_that_codes_cannot_tell_apart_are_all_read(unfinished):
    rng = np.random.default_rng(3)
    embeddings = (1 + 4e-3 * rng.standard_normal((N, 20))).astype(np.float32)
    run(embeddings, embeddings[:1], 2, same=False)
    assert unfinished.reads[0] == 1


def test_bits_do_not_depend_on_the_batch(unfinished):
    """Easy queries, and one that codes do not prove, together and alone."""
    embeddings = rows(seed=4)
    queries, weight = embeddings[:2] + 0.1, np.array([0.3, 0.75])
    queries[0] = 0
    together = run(embeddings, queries, 2, lambda_d=weight)
    assert unfinished.reads[0] == 1
    part = rk.mmr(queries[1:], rk.Corpus(embeddings), 2, lambda_d=weight[1:], backend="triton")
    for a, b in zip(part, together, strict=True):
        np.testing.assert_array_equal(a, b[1:])


def test_which_calls_go_this_way():
    """By shape alone: rows with codes, MMR, few items, no cap of groups."""
    corpus, queries = rk.Corpus(rows()), rows()[:2]
    for change, expected in (
        ({}, True),
        ({"k": 1}, False),
        ({"k": 11}, False),
        ({"k": 10}, True),
        ({"k": 4, "initial": np.zeros((2, 2), int)}, True),
        ({"k": 4, "initial": np.zeros((2, 3), int)}, False),
        ({"embeddings": rows()}, False),
        ({"embeddings": rk.Corpus(rows(), metric="dot"), "metric": "dot"}, False),
        ({"embeddings": rk.Corpus(rows()[:31])}, False),
        ({"groups": np.arange(N), "query_groups": [0, 1]}, True),
        ({"groups": np.arange(N), "query_groups": [0, 1], "k": 7}, False),
        ({"groups": np.arange(N), "max_per_group": 1}, False),
    ):
        given = {"queries": queries, "embeddings": corpus, "k": 3, "metric": "cosine"} | change
        assert triton_coded_corpus.fits(validate.selection("mmr", **given)) == expected, change


def test_unless_told_otherwise_rows_of_16_bits_go_densely(monkeypatch):
    """On an H200 that is faster up to millions of rows; float32 rows, which no unit multiplies as they are, are not."""
    monkeypatch.delenv("RAGSYS_KERNELS_VARIANTS")
    for dtype in ("float32", "float16", "bfloat16"):
        problem = validate.selection("mmr", rows()[:2], rk.Corpus(rows(), dtype=dtype), 3)
        assert triton_coded_corpus.fits(problem) == (dtype == "float32")


def test_codes_are_read_twice_and_few_rows(unfinished):
    rng = np.random.default_rng(5)
    embeddings = rng.standard_normal((N, 384)).astype(np.float32)
    embeddings[3::40] += embeddings[3]  # what the query, row 3, is like
    corpus = rk.Corpus(embeddings)
    checked = _arrays.tensors(validate.selection("mmr", embeddings[3:4], corpus, 3, lambda_d=0.9))
    checked.rows = _arrays.changed(checked.rows, codes=torch.from_numpy(swapped(corpus.codes, 384)).clone())
    with traffic.counted(rows=checked.rows.data, codes=checked.rows.codes) as moved:
        triton_kernels.mmr(checked, 1)
    assert unfinished.reads == [0] * 3
    codes, pool = N * (384 + 32), 16 * 384 * 4
    assert 2 * codes <= moved.read["codes"] <= 2 * codes + 5 * 448
    assert moved.read["rows"] <= 3 * pool


interpreted.elsewhere(globals())
