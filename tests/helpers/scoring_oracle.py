"""log p by its definition in float64 with long sums, independent of every backend; and problems to try it on."""

import functools
import importlib.util
import math

import numpy as np
import pytest

DTYPES = ("float32", "float16", "bfloat16")

# What is compared with float64 may be off by this much, and by half a unit in the last place of the float32 result.
FLOOR = 2e-6
# An entropy is a difference of sums of larger terms.
ENTROPY_FLOOR = 1e-5


def half_ulp(values):
    values = np.asarray(values, np.float64)
    finite = np.where(np.isfinite(values), np.abs(values), 0)
    return np.spacing(finite.astype(np.float32)).astype(np.float64) / 2


def assert_close(got, want, floor=FLOOR):
    """Within the floor and half an ulp where finite, else the same."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    error = np.abs(got[finite] - want[finite]) - half_ulp(want[finite])
    assert error.size == 0 or error.max() <= floor, (error.max(), got[finite][error.argmax()])


def log_sum(z):
    """log Σ exp z of one row; -inf without a finite entry, NaN with NaN or +inf."""
    z = np.asarray(z, np.float64)
    if np.isnan(z).any() or (z == np.inf).any():
        return math.nan, math.nan
    finite = z[np.isfinite(z)]
    if not finite.size:
        return -math.inf, -math.inf
    top = float(finite.max())
    return top, float(np.log(np.exp(finite - top).sum(dtype=np.longdouble)))


def logp(z, target):
    top, log = log_sum(z)
    return (float(z[target]) - top) - log if top != -math.inf else math.nan


def lse(z):
    return sum(log_sum(z))


def entropy(z):
    z = np.asarray(z, np.float64)
    top, log = log_sum(z)
    if not math.isfinite(top):
        return math.nan
    d = z[np.isfinite(z)] - top
    terms = np.exp(d)
    return log - float((d * terms).sum(dtype=np.longdouble) / terms.sum(dtype=np.longdouble))


def rank(z, target):
    return int((np.asarray(z) > z[target]).sum())


def stored(values, dtype):
    """float32 values as an array of the element type, and what they then are in float64."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype != "bfloat16":
        array = values.astype(dtype)
        array.flags.writeable = False  # nothing may modify its input
        return array, array.astype(np.float64)
    if importlib.util.find_spec("torch") is None:
        array = values.astype(pytest.importorskip("ml_dtypes").bfloat16)
        return array, array.astype(np.float64)
    import torch

    tensor = torch.from_numpy(values).bfloat16()
    return tensor, tensor.double().numpy()


@functools.lru_cache(maxsize=8)
def logits(T, V, dtype="float32", scale=4.0, shift=0.0, seed=0):
    rng = np.random.default_rng([seed, T, V])
    values = rng.standard_normal((T, V)) * scale + shift
    return stored(values, dtype)
