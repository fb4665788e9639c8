"""Search by bits, interpreted: no row of the best is lost, whatever the products in 16 bits leave out.

``TRITON_INTERPRET=1 pytest tests/gpu/test_triton_filter.py`` runs the tests here, without the variable they run in a
process that has it.
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
    from searches import check, found, values_of

    from ragsys_kernels.selection.triton import backend as triton_kernels
    from ragsys_kernels.selection.triton import bit_search as triton_filter

N, D = 700, 40


def corpora(kind):
    """Rows of a corpus."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((N, D))
    if kind == "repeated":
        rows = rows[rng.integers(0, 60, N)]
    elif kind == "near ties":  # of which most differ by a unit of rounding in one element
        rows = np.repeat(rows[:10], N // 10, axis=0)
        rows[np.arange(N), rng.integers(0, D, N)] *= 1 + 2.0**-10
    elif kind == "zeros":
        rows[::3] = 0
    elif kind == "lengths":
        rows *= 2.0 ** rng.integers(-8, 8, (N, 1))
    return rows.astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "dtype", "metric"),
    [
        ("random", "float16", "dot"),
        ("random", "bfloat16", "cosine"),
        ("random", "int8", "cosine"),
        ("repeated", "float16", "cosine"),
        ("near ties", "float16", "cosine"),
        ("near ties", "bfloat16", "dot"),
        ("zeros", "int8", "dot"),
        ("lengths", "float16", "dot"),
        ("random", "float32", "cosine"),
        ("lengths", "float32", "dot"),
    ],
)
def test_the_best_rows_are_found(kind, dtype, metric):
    rows = corpora(kind)
    held = rk.Corpus(rows, metric=metric, dtype=dtype)
    queries = np.random.default_rng(1).standard_normal((6, D)).astype(np.float32)
    queries[3] = 0
    queries[4] *= 1e-20
    queries[5] = rows[7]
    check(validate.selection("search", queries, held, 2, k_name="n"))


@pytest.mark.parametrize(("dtype", "lambda_b"), [("float16", 0.4), ("bfloat16", 1.0), ("int8", 0.0)])
def test_the_best_rows_with_bias_and_groups_are_found(dtype, lambda_b):
    rng = np.random.default_rng(2)
    bias = rng.standard_normal(N) * 10.0 ** rng.integers(-3, 3, N)
    held = rk.Corpus(corpora("random"), bias, rng.integers(0, 3, N), dtype=dtype)
    queries, own = rng.standard_normal((6, D)).astype(np.float32), rng.integers(0, 3, 6)
    check(validate.selection("search", queries, held, 2, lambda_b=lambda_b, query_groups=own, k_name="n"))


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


@pytest.mark.parametrize("allowed", [1, 5, 300])
def test_rows_that_may_be_picked(allowed):
    rng = np.random.default_rng(4)
    held = rk.Corpus(corpora("random"), dtype="float16")
    mask = np.zeros((3, N), bool)
    for q in range(3):
        mask[q, rng.permutation(N)[:allowed]] = True
    queries = rng.standard_normal((3, D)).astype(np.float32)
    problem = validate.selection("search", queries, held, 2, allowed=mask, k_name="n")
    index, _ = (x.numpy() for x in triton_kernels.search(problem, 1))
    expected = reference.search(problem, 1)
    np.testing.assert_array_equal(index, expected[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_that_rounding_puts_behind_are_found(dtype):
    """Of two rows the better one lies along what the query loses in 16 bits, so that its product is the smaller one."""
    rng = np.random.default_rng(5)
    kind = torch.float16 if dtype == "float16" else torch.bfloat16
    behind = 0
    rows, queries = np.zeros((512, 64)), []
    for pair in range(40):
        query = rng.standard_normal(64)
        query = (query / np.linalg.norm(query)).astype(np.float32).astype(np.float64)
        rounded = torch.from_numpy(query).to(torch.float32).to(kind).double().numpy()
        lost = query - rounded
        along = lost - (lost @ query) * query
        along /= np.linalg.norm(along)
        better = 0.7 * query + 0.7 * along
        worse = 0.7 * (1 - rng.uniform(0.5, 1) * (along @ lost)) * query - 0.7 * along
        rows[pair], rows[300 + pair] = better, worse
        queries.append(query)
    held = rk.Corpus(rows.astype(np.float32), metric="dot", dtype=dtype)
    problem = validate.selection("search", np.array(queries, np.float32), held, 1, k_name="n")
    v, stored = values_of(problem), held.vectors(np.arange(512)).astype(np.float64)
    index, _ = found(problem)
    for q, query in enumerate(queries):
        approximate = stored @ torch.from_numpy(query).to(torch.float32).to(kind).double().numpy()
        best = v[q].argmax()
        behind += approximate[best] < approximate.max()
        assert v[q][index[q, 0]] >= v[q][best] - 1e-7
    assert behind > 8


def test_batches_of_queries_do_not_change_a_search(monkeypatch):
    held = rk.Corpus(corpora("random"), dtype="float16")
    queries = np.random.default_rng(6).standard_normal((6, D)).astype(np.float32)
    problem = validate.selection("search", queries, held, 2, k_name="n")
    whole = [x.copy() for x in found(problem)]
    monkeypatch.setattr(triton_filter, "WORKSPACE_BYTES", 500)
    for a, b in zip(found(problem), whole, strict=True):
        np.testing.assert_array_equal(a, b)


def test_few_groups_of_tiles_and_many_words(monkeypatch):
    held = rk.Corpus(corpora("random"), dtype="float16")
    queries = np.random.default_rng(7).standard_normal((5, D)).astype(np.float32)
    problem = validate.selection("search", queries, held, 2, k_name="n")
    monkeypatch.setattr(triton_filter, "GROUPS", 2)
    monkeypatch.setattr(triton_filter, "WORDS", 8)
    check(problem)


def test_other_searches_go_densely():
    held = rk.Corpus(corpora("random"), dtype="float16")
    queries = np.ones((2, D), np.float32)
    for k, fits in ((1, True), (3, True), (4, False)):
        assert triton_filter.fits(validate.selection("search", queries, held, k, k_name="n")) is fits
    for rows, fits in ((rk.Corpus(corpora("random")), True), (corpora("random"), False)):
        assert triton_filter.fits(validate.selection("search", queries, rows, 1, k_name="n")) is fits


interpreted.elsewhere(globals())
