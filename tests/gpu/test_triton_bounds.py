"""MMR out of large pools reads a row again only where its bound calls for it, and has the bits of reading all rows."""

import interpreted
import numpy as np
import pytest
from clustered_pools import pools
from traffic import counted

import ragsys_kernels as rk

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if interpreted.HERE:
    import triton.language as tl

    from ragsys_kernels.selection.triton import bounds as triton_bounds
    from ragsys_kernels.selection.triton import gram as triton_gram
    from ragsys_kernels.selection.triton.launch import row_tile

pytestmark = [pytest.mark.sampled(20), pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")]


@pytest.fixture(autouse=interpreted.HERE)
def no_pool_is_small(monkeypatch):
    monkeypatch.setattr(triton_gram, "GRAM_SLOTS", 0)


def summed(rows, vector, dims):
    """Products of rows with a vector in float32, in the order of the kernel's tiles."""
    lanes = np.zeros((len(rows), dims), np.float32)
    for begin in range(0, rows.shape[1], dims):
        part = rows[:, begin : begin + dims] * vector[begin : begin + dims]
        lanes[:, : part.shape[1]] += part
    return lanes.sum(1)


def dense(problem, k, lambda_d, initial=()):
    """Every item meets every pick: indices, scores and redundancies in float32."""
    rows, weight = problem["embeddings"], np.float32(lambda_d)
    dims = row_tile("float32", rows.shape[1]).dims
    answers = []
    for query, ids in zip(problem["queries"], problem["candidates"], strict=True):
        pool, closed = rows[ids], np.isin(ids, initial)
        v = summed(pool, query, dims)
        m = np.full(len(ids), -np.inf, np.float32)
        for item in initial:
            m = np.maximum(m, summed(pool, rows[item], dims))
        picks = []
        for step in range(k):
            first = step == 0 and not len(initial)
            w = np.where(closed, -np.inf, v if first else weight * v - (np.float32(1) - weight) * m)
            best = int(np.argmax(w))
            picks.append((ids[best], weight * v[best] if first else w[best], np.float32(0) if first else m[best]))
            closed[best] = True
            m = np.maximum(m, summed(pool, pool[best], dims))
        answers.append(picks)
    return (np.array([[pick[i] for pick in picks] for picks in answers]) for i in range(3))


@pytest.mark.parametrize(
    ("order", "lambda_d", "initial", "rounds"),
    [("best first", 0.5, (), 8), ("any", 0.5, (3, 70), 8), ("best first", 0.25, (), 1), ("any", 0.25, (), 1)],
)
def test_bits_are_those_of_the_dense_rule(monkeypatch, order, lambda_d, initial, rounds):
    """``rounds``: how often a step looks for the best bounds before it goes through all tiles."""
    monkeypatch.setattr(triton_bounds, "ROUNDS", tl.constexpr(rounds))
    problem = pools(90, 70, order)
    options = {"initial": np.array([initial])} if initial else {}
    found = rk.mmr(**problem, **options, k=5, lambda_d=lambda_d, metric="dot", backend="triton")
    indices, scores, redundancy = dense(problem, 5, lambda_d, initial)
    np.testing.assert_array_equal(np.asarray(found.indices), indices)
    np.testing.assert_array_equal(np.asarray(found.scores), scores)
    np.testing.assert_array_equal(np.asarray(found.redundancy), redundancy)


def test_an_equal_bound_at_a_lower_position_is_looked_at():
    """Of items that all have one score, some of them met and some not, the lowest position is picked at every step."""
    rows = np.zeros((150, 8), np.float32)
    rows[:, 0] = 1
    ids = np.arange(150)[None, ::-1]
    found = rk.mmr(np.eye(1, 8, dtype=np.float32), rows, 8, candidates=ids, lambda_d=1, metric="dot", backend="triton")
    assert np.asarray(found.indices).tolist() == [list(range(149, 141, -1))]


@pytest.mark.parametrize(("lambda_d", "most"), [(0.75, 1.5), pytest.param(0.5, 2.4, marks=pytest.mark.slow)])
def test_rows_are_hardly_read_more_than_once(lambda_d, most):
    problem = pools(600, 32, "best first")
    rows = torch.tensor(problem["embeddings"])  # whose memory starts with a sector
    one_read = 600 * 32 * 4
    with counted(rows=rows) as moved:
        rk.mmr(**problem | {"embeddings": rows.numpy()}, k=10, lambda_d=lambda_d, metric="dot", backend="triton")
    assert one_read < moved.read["rows"] <= most * one_read
    assert moved.launches == {"select_bounds_kernel": 1}


interpreted.elsewhere(globals())
