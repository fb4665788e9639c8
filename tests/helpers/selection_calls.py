"""Good calls of the selections, to be made bad; how their errors and their bits are checked."""

import numpy as np
import pytest

import ragsys_kernels as rk

METHODS = {"mmr": rk.mmr, "vrsd": rk.vrsd}
methods = pytest.mark.parametrize("method", METHODS)


def same(a, b):
    """Two selections with the same bits."""
    for name, x, y in zip(rk.Selection._fields, a, b, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=name)


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
    with pytest.raises(error) as caught:
        getattr(rk, method)(**arguments)
    assert str(caught.value) == f"{method}: {message}"
    assert type(caught.value) is error
    for name, value in before.items():
        np.testing.assert_array_equal(arguments[name], value)
