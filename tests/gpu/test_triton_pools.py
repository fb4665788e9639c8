"""Regime a of the Triton kernels, interpreted: what it multiplies and reads."""

import contextlib

import interpreted
import numpy as np
import pytest
import traffic

import ragsys_kernels as rk
from ragsys_kernels import testing

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

pytestmark = pytest.mark.sampled(3)

if interpreted.HERE:
    from triton.runtime.interpreter import InterpreterBuilder

    from ragsys_kernels.selection.triton import gram as triton_gram

METHODS = {"mmr": rk.mmr, "vrsd": rk.vrsd}


@contextlib.contextmanager
def multiplied():
    """Count the multiplications of tiles, element by element and in products of matrices."""
    fmul, dot, count = InterpreterBuilder.create_fmul, InterpreterBuilder.create_dot, [0]

    def counted_fmul(self, a, b):
        result = fmul(self, a, b)
        count[0] += result.data.size if result.data.ndim == 2 else 0
        return result

    def counted_dot(self, a, b, *rest):
        count[0] += a.data.size * b.data.shape[1]
        return dot(self, a, b, *rest)

    InterpreterBuilder.create_fmul, InterpreterBuilder.create_dot = counted_fmul, counted_dot
    try:
        yield count
    finally:
        InterpreterBuilder.create_fmul, InterpreterBuilder.create_dot = fmul, dot


def problem_of(method, *sizes, **options):
    problem = testing.selection_problem(*sizes, **options)
    if method == "mmr":
        return problem
    return {name: value for name, value in problem.items() if name not in ("bias", "lambda_d", "lambda_b")}


@pytest.mark.parametrize("held", [0, 2, 10])
@pytest.mark.parametrize("method", METHODS)
def test_float32_rows_meet_the_query_themselves_and_all_picks_but_the_last(method, held, monkeypatch):
    Q, P, K, D = 2, 32, 5, 96
    monkeypatch.setattr(triton_gram, "HOPPER_SLICES", (held, held))
    problem = problem_of(method, Q, P, K, D, seed=1)
    with multiplied() as count:
        result = METHODS[method](**problem, backend="triton")
    testing.check_selection(method, problem, result)
    assert count[0] == Q * D * (K + 1) * P  # and K * (P + 1) + P is what issue and bench allow
    assert count[0] <= Q * D * (K * (P + 1) + P)


def test_a_matrix_has_all_products():
    with multiplied() as count:
        rk.mmr(**testing.selection_problem(1, 32, 5, 64, dtype="float16", seed=1), backend="triton")
    assert count[0] == 64 * (32 * 32 + 32)


@pytest.mark.parametrize(("held", "again"), [(10, 0), (2, 1), (0, 3)])
def test_float32_rows_that_are_held_are_read_once(held, again, monkeypatch):
    """Of three slices of a row; what is not held is read again at each pick, and so is the pick's own row."""
    Q, P, K, D = 2, 32, 5, 96
    monkeypatch.setattr(triton_gram, "HOPPER_SLICES", (held, held))
    problem = testing.selection_problem(Q, P, K, D, N=Q * P, seed=1)
    problem["candidates"] = np.arange(Q * P).reshape(Q, P)
    rows = torch.from_numpy(problem["embeddings"]).clone()  # which starts at a whole sector
    with traffic.counted(rows=rows) as moved:
        rk.mmr(**problem | {"embeddings": rows.numpy()}, backend="triton")
    once = P * D * 4
    assert moved.read["rows"] == Q * (once + (K - 1) * (once * again // 3 + D * 4))


# --- The query as rows of the tile.


def through_matrices(problem, method="mmr"):
    """The selection; it is wrong to ask where float32 multiplications meet rows."""
    with multiplied() as count:
        result = METHODS[method](**problem, backend="triton")
    Q, D = problem["queries"].shape
    P = problem["candidates"].shape[1] + np.shape(problem.get("initial", np.zeros((Q, 0))))[1]
    rows = max(16, triton.next_power_of_2(P))
    return result, count[0] == Q * rows * rows * (-(-D // 64) * 64 if D > 64 else max(16, triton.next_power_of_2(D)))


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_query_in_the_tile_is_as_precise_as_float32(dtype, method, metric):
    problem = problem_of(method, 3, 29, 5, 72, dtype=dtype, seed=8)
    # With numbers far below those that float16 has, beside large ones.
    problem["queries"] *= np.array([[1e-5], [1], [1e5]] if metric == "dot" else [[1e-25], [1], [1e25]], np.float32)
    problem["queries"][:, ::3] *= 1e-6
    result, matrices = through_matrices({**problem, "metric": metric}, method)
    assert matrices
    testing.check_selection(method, {**problem, "metric": metric}, result)
    exact = METHODS[method](**problem, metric=metric, backend="reference")
    np.testing.assert_array_equal(result.indices, exact.indices)
    largest = np.ones((3, 1))
    if metric == "dot" and method == "mmr":  # else relevance is a cosine
        longest = torch.as_tensor(problem["embeddings"]).double().norm(dim=1).max()
        largest = longest.item() * np.linalg.norm(np.asarray(problem["queries"], np.float64), axis=1)[:, None]
    error = np.abs(np.asarray(result.relevance, np.float64) - np.asarray(exact.relevance)) / largest
    assert error.max() < 2**-22


@pytest.mark.parametrize("method", METHODS)
def test_a_query_in_the_tile_with_every_option(method):
    problem = problem_of(method, 3, 20, 4, 40, dtype="float16", kind="integers", ragged=True, bias=True, groups=True)
    problem["initial"] = np.array([[0, -1], [-1, 3], [-1, -1]])
    problem["k"] = np.array([4, 2, 3])
    problem["max_per_group"] = 1
    result, matrices = through_matrices(problem, method)
    assert matrices
    expected = METHODS[method](**problem, backend="reference")
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_array_equal(result.lengths, expected.lengths)


@pytest.mark.parametrize(("pool", "dims", "dtype"), [(31, 64, "float16"), (30, 64, "bfloat16"), (24, 60, "float16")])
def test_a_query_that_has_no_room_in_the_tile_stays_beside_it(pool, dims, dtype):
    problem = testing.selection_problem(2, pool, 3, dims, dtype=dtype, seed=2)
    result, matrices = through_matrices(problem)
    assert not matrices
    np.testing.assert_array_equal(result.indices, rk.mmr(**problem, backend="reference").indices)


interpreted.elsewhere(globals())
