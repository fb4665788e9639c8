"""SSD in a window against its definition: the part of an item that the picks in the window do not span."""

import numpy as np
import pytest

import ragsys_kernels as rk

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def with_one(rows, metric="cosine"):
    rows = np.asarray(rows, np.float64)
    if metric == "cosine":
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.hstack([rows, np.ones((len(rows), 1))])


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


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("max_similarity", [None, 0.9])
def test_every_pick_is_the_best_by_least_squares(backend, metric, max_similarity):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        window, shown, n = int(rng.integers(1, 6)), int(rng.integers(0, 7)), 60
        rows = rng.standard_normal((n + shown, 16)).astype(np.float32) + np.float32(0.5)
        rows *= np.float32(0.2 if metric == "dot" else 1.0)
        relevance = rng.standard_normal(n).astype(np.float32)
        lambda_d, initial = rng.uniform(0.1, 0.9), np.arange(n, n + shown)
        found = rk.ssd(
            None, rows, 12, candidates=np.arange(n)[None], relevance=relevance[None], lambda_d=lambda_d, gamma=1.3,
            window=window, initial=initial[None] if shown else None, metric=metric, max_similarity=max_similarity,
            backend=backend,
        )  # fmt: skip
        items, taken = with_one(rows, metric), initial.tolist()
        z = (relevance - relevance.mean()) / (relevance.std(dtype=np.float64) + 2.0**-23 * np.abs(relevance).max())
        for pick, score in zip(found.indices[0, : found.lengths[0]], found.scores[0], strict=False):
            may = np.setdiff1d(np.arange(n), taken)
            if max_similarity is not None and taken:
                similarity = (items[may] @ items[taken].T - 1).max(axis=1)
                may = may[similarity <= max_similarity]
            worth = lambda_d * z + (1 - lambda_d) * 1.3 * left_of(items[:n], items[taken[-window:]])
            np.testing.assert_allclose(score, worth[pick], rtol=1e-5, atol=1e-5)
            best = z if not taken else worth
            assert pick in may
            assert best[pick] >= best[may].max() - 1e-5
            taken.append(int(pick))
        assert found.lengths[0] == 12 or max_similarity is not None
        assert found.lengths[0] > 2


def test_copies_of_the_last_picks_are_rarely_picked(backend):
    copies = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        centres = rng.standard_normal((3, 8))
        rows = (centres[rng.integers(0, 3, 10)] + 0.5 * rng.standard_normal((10, 8))).astype(np.float32)
        query = rng.standard_normal((1, 8)).astype(np.float32)
        picks = rk.ssd(query, np.vstack([rows, rows]), 8, lambda_d=0.25, window=2, backend=backend).indices[0] % 10
        copies += any(picks[i] in picks[max(0, i - 2) : i] for i in range(8))
    assert copies <= 1
