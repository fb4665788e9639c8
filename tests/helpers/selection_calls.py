"""Good calls of the selections, to be made bad; how their errors and their bits are checked."""

import inspect

import numpy as np
import pytest

import ragsys_kernels as rk

METHODS = {"mmr": rk.mmr, "vrsd": rk.vrsd}
methods = pytest.mark.parametrize("method", METHODS)


def same(a, b, what=""):
    """Two results with the same bits."""
    for name, x, y in zip(getattr(b, "_fields", rk.Selection._fields), a, b, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=f"{what} {name}")


def for_method(method, problem):
    """Without what the method has no parameter for."""
    parameters = inspect.signature(getattr(rk, method)).parameters
    return {name: x for name, x in problem.items() if name in parameters}


def f32(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def good(**changes):
    """A correct call of Q = 3 queries, N = 12 rows, P = 5, D = 4, with changes."""
    candidates = np.array([[0, 1, 2, 3, 4], [5, 6, 7, 8, -1], [11, 10, 9, 8, 7]])
    return {"queries": f32(3, 4), "embeddings": f32(12, 4), "k": 2, "candidates": candidates, **changes}


def dense(**changes):
    return {"queries": f32(3, 4), "embeddings": f32(3, 5, 4), "k": 2, **changes}


def with_value(array, where, value):
    array = np.array(array)
    array[where] = value
    return array


def check_error(method, arguments, error, message, **more):
    arguments = {"backend": "auto", **more, **arguments}
    before = {name: np.array(value) for name, value in arguments.items() if isinstance(value, np.ndarray)}
    try:
        getattr(rk, method)(**arguments)
    except error as caught:
        assert str(caught) == f"{method}: {message}"  # noqa: PT017
        assert type(caught) is error  # noqa: PT017
    else:
        pytest.fail(f"not refused: {method}: {message}")
    for name, value in before.items():
        np.testing.assert_array_equal(arguments[name], value)
