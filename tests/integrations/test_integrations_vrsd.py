"""The call of the VRSD authors' script against what the survey says it does."""

import numpy as np
import pytest
from peer_pools import POOLS, unit

from ragsys_kernels.integrations.vrsd import VecRetSimDiv

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def script(vectors, query, k):
    """Item 0; then what makes the cosine of the sum of raw vectors largest and positive, the first of equals."""
    picks, query = [0], np.asarray(query, np.float64)
    total = np.array(vectors[0], np.float64)
    while len(picks) < k:
        best, found = 0.0, picks[-1]
        for i, each in enumerate(vectors):
            if i in picks:
                continue
            s = total + each
            cosine = s @ query / (np.linalg.norm(s) * np.linalg.norm(query))
            if cosine > best + 1e-9:
                best, found = cosine, i
        picks.append(found)
        total = total + vectors[found]
    return picks


@pytest.mark.parametrize(
    "pool", [pool for pool in POOLS if (pool.rows @ pool.query > 0).any()], ids=lambda pool: pool.name
)
def test_picks_are_the_scripts_on_sorted_pools(pool):
    cosines = unit(pool.rows) @ unit(pool.query)
    order = np.argsort(-cosines, kind="stable")
    rows = pool.rows[order]
    k = min(5, int((cosines > 0).sum()))
    results, index = VecRetSimDiv(rows.tolist(), pool.query, k)
    expected = script(rows, pool.query, k)
    assert all(type(i) is int for i in index)
    assert results == [rows[i].tolist() for i in index]
    if index != expected:  # near-ties
        for step in range(1, k + 1):
            a, b = (rows[picks[:step]].sum(axis=0) for picks in (index, expected))
            assert abs(unit(a) @ unit(pool.query) - unit(b) @ unit(pool.query)) < 1e-5


def test_no_item_is_repeated():
    away = -np.array([[1, 0.1], [1, 0.2], [1, 0.3], [1, 0.4]])
    assert sorted(VecRetSimDiv(away, [1, 0], 4)[1]) == [0, 1, 2, 3]
    assert VecRetSimDiv(np.eye(2), [1, 0.5], 4)[1] == [0, 1]


def test_edges():
    assert VecRetSimDiv([], [1, 0]) == VecRetSimDiv(np.eye(2), [1, 0], 0) == ([], [])
    vectors = [[0.0, 1.0], [1.0, 0.1], [1.0, 0.2]]
    assert VecRetSimDiv(vectors, np.array([[1, 0.5]]), 2) == ([vectors[2], vectors[1]], [2, 1])
    with pytest.raises(ValueError, match="embeddings must be finite, got NaN or inf in row 1"):
        VecRetSimDiv([[1, 0], [np.nan, 1], [0, 1]], [1, 0], 2)
    with pytest.raises(ValueError, match=r"VecRetSimDiv: query must have shape \(D,\) = \(2,\), got \(3,\)"):
        VecRetSimDiv(np.eye(2), [1, 0, 0], 1)
