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
