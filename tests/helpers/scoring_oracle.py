"""log p by its definition in float64 with long sums, independent of every backend, and comparisons with it."""

import math

import numpy as np

EVERYTHING = ("logp", "lse", "max", "entropy", "rank")

# What is compared with float64 may be off by this much, and by half a unit in the last place of the float32 result.
FLOOR = 2e-6
# An entropy is a difference of sums of larger terms.
ENTROPY_FLOOR = 1e-5


def linear_gate(D):
    """What log p may be off by for normal rows and weights of 16 bits, and z of standard deviation 4.

    Products of at most 64 dimensions, each off by some units in its last place, are added in float32.
    """
    return 5e-6 * max(1, D / 1024) ** 0.5


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


def arrays(found):
    """The result with NumPy arrays."""
    return type(found)(*(None if x is None else np.asarray(x) for x in found))


def scaled(z, scale=1.0, softcap=None, temperature=1.0):
    z = z * scale
    if softcap is not None:
        z = np.where(np.isinf(z), z, softcap * np.tanh(z / softcap))
    return z / temperature


def check_logits(found, z, targets, rows=None):
    """Every field of the result against the definition, z being (T, V) in float64."""
    found = arrays(found)
    rows = np.arange(len(targets)) if rows is None else rows
    assert_close(found.logp, [logp(z[r], t) for r, t in zip(rows, targets, strict=True)])
    assert (found.logp <= 0).all()
    read = sorted(set(rows))
    assert_close(found.lse[read], [lse(z[r]) for r in read])
    assert_close(found.max[read], [z[r].max() for r in read])
    assert_close(found.entropy[read], [entropy(z[r]) for r in read], floor=ENTROPY_FLOOR)
    np.testing.assert_array_equal(found.rank, [rank(z[r], t) for r, t in zip(rows, targets, strict=True)])


def check_linear(found, z, targets, floor, rows=None):
    """As `check_logits`; two logits nearer than the floor may compare either way."""
    rows = np.arange(len(targets)) if rows is None else rows
    found = arrays(found)
    pairs = list(zip(rows, targets, strict=True))
    assert_close(found.logp, [logp(z[r], t) for r, t in pairs], floor)
    assert (found.logp <= 0).all()
    assert_close(found.lse[rows], [lse(z[r]) for r in rows], floor)
    assert_close(found.max[rows], [z[r].max() for r in rows], floor)
    assert_close(found.entropy[rows], [entropy(z[r]) for r in rows], 5 * floor)
    for got, (r, t) in zip(found.rank, pairs, strict=True):
        near = np.abs(z[r] - z[r, t]) <= 2 * floor  # may compare either way, but for the target itself
        assert rank(z[r], t) - near.sum() < got < rank(z[r], t) + near.sum()
