"""SSD in a window against its definition: the part of an item that the picks in the window do not span."""

import numpy as np
import pytest

import ragsys_kernels as rk

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def with_one(rows):
    rows = np.asarray(rows, np.float64)
    return np.hstack([rows / np.linalg.norm(rows, axis=1, keepdims=True), np.ones((len(rows), 1))])


def left_of(items, picks):
    """The lengths of what the span of some picks leaves of items, by least squares."""
    if not len(picks):
        return np.linalg.norm(items, axis=1)
    found = np.linalg.lstsq(picks.T, items.T, rcond=1e-3)[0]
    return np.linalg.norm(items - found.T @ picks, axis=1)


def in_order(rows, k, window, backend, initial=()):
    """What is left of each pick, of rows that are picked in their order as the volume counts for little."""
    n = len(rows) - len(initial)
    relevance = np.float32(np.arange(n, 0, -1))
    found = rk.ssd(
        None, rows, k, candidates=np.arange(n)[None], relevance=relevance[None], lambda_d=0.5, gamma=0.01,
        window=window, initial=np.asarray(initial)[None] if len(initial) else None, backend=backend,
    )  # fmt: skip
    np.testing.assert_array_equal(found.indices[0], np.arange(k))
    z = (relevance - relevance.mean()) / (relevance.std(dtype=np.float64) + 2.0**-23 * n)
    return (found.scores[0] - 0.5 * z[:k]) / 0.005


def test_of_a_copy_of_the_last_pick_nothing_is_left(backend):
    a, b = [1, 0, 0], [1, 0.35, 0]
    found = rk.ssd(None, np.float32([a, b, b]), 3, relevance=np.float32([[3, 2, 1]]), lambda_d=0.0, window=1,
                   backend=backend)  # fmt: skip
    np.testing.assert_array_equal(found.indices, [[0, 1, 2]])
    assert found.scores[0, 2] < 1e-3


@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_a_copy_counts_as_long_as_its_original_is_in_the_window(backend, window):
    rng = np.random.default_rng(window)
    rows = rng.standard_normal((4, 24)).astype(np.float32)
    for apart in range(1, 5):  # picks from an item to its copy
        left = in_order(rows[np.arange(12) % apart], 12, window, backend)
        assert (left[apart:] < 1e-2).all() == (apart <= window)
        assert (left[:apart] > 0.1).all()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("window", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("kind", ["random", "alike", "copies"])
@pytest.mark.parametrize("shown", [0, 2, 7])
def test_what_is_left_is_that_of_least_squares(backend, window, kind, shown):
    rng = np.random.default_rng(10 * window + shown)
    rows = rng.standard_normal((12 + shown, 24)).astype(np.float32)
    if kind == "alike":
        rows = rows[rng.integers(0, 4, len(rows))] + np.float32(0.3) * rows
    elif kind == "copies":
        rows = rows[rng.integers(0, 4, len(rows))]
    items, initial = with_one(rows), np.arange(12, 12 + shown)
    found = in_order(rows, 12, window, backend, initial)
    taken = [*initial, *range(12)]
    expected = [left_of(items[[i]], items[taken[: shown + i][-window:]])[0] for i in range(12)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-2 if kind == "copies" else 2e-4)
