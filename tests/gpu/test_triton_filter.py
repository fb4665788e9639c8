"""Search by bits, interpreted: no row of the best is lost, whatever the products in 16 bits leave out.

`test_proof_problems.py` searches corpora of every type and kind, with bias, groups and filters, against float64.
"""

import interpreted
import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.selection import reference, validate

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.slow

if interpreted.HERE:
    from searches import check, found

    from ragsys_kernels.selection.triton import bit_search as triton_filter

N, D = 700, 40


def corpus():
    return rk.Corpus(np.random.default_rng(0).standard_normal((N, D)).astype(np.float32), dtype="float16")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_best_rows_are_found_whatever_the_lengths(dtype):
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((N, D)) * 2.0 ** rng.integers(-8, 8, (N, 1))).astype(np.float32)
    queries = rng.standard_normal((4, D)).astype(np.float32)
    queries[1] = 0
    queries[2] *= 1e-20
    queries[3] = rows[7]
    check(validate.selection("search", queries, rk.Corpus(rows, metric="dot", dtype=dtype), 2, k_name="n"))


def test_whole_numbers_give_the_rows_of_the_reference():
    """Products are exact and many are tied."""
    rng = np.random.default_rng(3)
    rows = rng.integers(-2, 3, (900, 5)).astype(np.float32)
    held = rk.Corpus(rows, metric="dot", dtype="float16")
    problem = validate.selection("search", rng.integers(-2, 3, (4, 5)).astype(np.float32), held, 4, k_name="n")
    index, score = found(problem)
    expected = reference.search(problem, 1)
    np.testing.assert_array_equal(index, expected[0])
    np.testing.assert_array_equal(score, expected[1])


def test_more_equal_rows_than_there_is_room_for():
    held = rk.Corpus(np.ones((600, 16), np.float32), dtype="float16")
    problem = validate.selection("search", np.ones((2, 16), np.float32), held, 2, k_name="n")
    index, _ = found(problem)
    np.testing.assert_array_equal(index, [[0, 1], [0, 1]])


def test_a_sample_that_has_nearly_all_of_the_best_rows_hides_none(monkeypatch):
    """Its bar is above the values of others, as too few rows reach it; and one that has none of them."""
    monkeypatch.setattr(triton_filter, "ROWS", 32)
    rng, n = np.random.default_rng(8), 20
    rows = np.stack([rng.permutation(1400) / 64 for _ in range(16)], 1)
    sampled = sample_of(1400)
    # The former in 19 groups: 11 tiles have the rows of the sample in turn, and a second group begins at the eighth.
    best, other = sampled[np.r_[0:11, 88:96]], np.setdiff1d(np.arange(1400), sampled)[:30]
    rows[best, 0], rows[best, 1] = 40 + np.arange(19), 0
    rows[other, 0], rows[other, 1] = 0, 40 + np.arange(30)
    queries = np.eye(2, 16, dtype=np.float32)
    held = rk.Corpus(rows.astype(np.float32), metric="dot", dtype="float16")
    problem = validate.selection("search", queries, held, n, k_name="n")
    assert triton_filter.rank(n) <= len(best) < n, "the bar is of no use"
    counts = reached(monkeypatch)
    index, score = found(problem)
    for got, expected in zip((index, score), reference.search(problem, 1), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert counts[0][0] < n <= counts[0][1] < triton_filter.room_for(n), counts


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_sample_that_may_not_be_picked_hides_no_row(monkeypatch, dtype):
    """All of it, or all but fewer rows than a bar needs: of the query's own group, with a bias of -inf, or NaN."""
    monkeypatch.setattr(triton_filter, "ROWS", 32)
    rng, n, rows_of_all = np.random.default_rng(12), 3, 500
    sampled = sample_of(rows_of_all)
    rows = rng.standard_normal((rows_of_all, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    held = rk.Corpus(rows, dtype=dtype)
    groups = np.ones(rows_of_all, np.int64)
    groups[sampled] = 0
    bias = np.zeros((3, rows_of_all), np.float32)
    options = {"groups": groups, "query_groups": np.array([0, 7, 0]), "bias": bias, "lambda_b": 0.5}
    problem = validate.selection("search", rows[:3], held, n, k_name="n", **options)
    problem.bias[1, sampled[1:]] = -np.inf
    problem.bias[2, sampled] = np.nan
    counts = reached(monkeypatch)
    check(problem)
    assert (counts[0] > triton_filter.room_for(n)).all(), counts


def test_some_rows_reach_the_bar_and_no_row_is_sampled_twice(monkeypatch):
    """Twice to four times as many as are wanted, wherever the best rows are: here in one run, and at every fourth."""
    monkeypatch.setattr(triton_filter, "ROWS", 32)
    rng, n, N = np.random.default_rng(9), 30, 4000
    rows = np.zeros((N, 8), np.float32)
    order = np.arange(N)
    rows[:, 0] = -np.abs(order - 2000)
    rows[:, 1] = -np.where(order % 4 == 2, order, N + order)
    rows[:, 2] = -rng.permutation(N)
    held = rk.Corpus(rows / N, metric="dot", dtype="float32")
    problem = validate.selection("search", np.eye(3, 8, dtype=np.float32), held, n, k_name="n")
    counts = reached(monkeypatch)
    check(problem)
    assert ((counts[0] >= n) & (counts[0] <= triton_filter.room_for(n))).all(), counts


def sample_of(num_rows):
    """The rows of the sample, as the kernel draws it."""
    every = np.arange(0, num_rows, 4)
    every += every // 4 * 0x61C88647 % 2**32 >> 30
    return every[every < num_rows]


def reached(monkeypatch):
    """A list that gets, of each search, how many rows of each query reach the bar."""
    counts, launch = [], triton_filter.launch

    def noted(kernel, grid, **given):
        launch(kernel, grid, **given)
        if kernel is triton_filter.filter_list_kernel:
            counts.append(given["count"].numpy().copy())

    monkeypatch.setattr(triton_filter, "launch", noted)
    return counts


def test_batches_of_queries_do_not_change_a_search(monkeypatch):
    held = corpus()
    queries = np.random.default_rng(6).standard_normal((6, D)).astype(np.float32)
    problem = validate.selection("search", queries, held, 2, k_name="n")
    whole = [x.copy() for x in found(problem)]
    monkeypatch.setattr(triton_filter, "WORKSPACE_BYTES", 500)
    for a, b in zip(found(problem), whole, strict=True):
        np.testing.assert_array_equal(a, b)


def test_few_groups_of_tiles_and_many_words(monkeypatch):
    held = corpus()
    queries = np.random.default_rng(7).standard_normal((5, D)).astype(np.float32)
    problem = validate.selection("search", queries, held, 2, k_name="n")
    monkeypatch.setattr(triton_filter, "GROUPS", 2)
    monkeypatch.setattr(triton_filter, "WORDS", 8)
    check(problem)


def test_other_searches_go_densely():
    held = corpus()
    queries = np.ones((2, D), np.float32)
    for k, fits in ((1, True), (3, True), (4, False)):
        assert triton_filter.fits(validate.selection("search", queries, held, k, k_name="n")) is fits
    plain = np.float32(corpus().vectors(slice(None)))
    for rows, fits in ((rk.Corpus(plain), True), (plain, False)):
        assert triton_filter.fits(validate.selection("search", queries, rows, 1, k_name="n")) is fits


interpreted.elsewhere(globals())
