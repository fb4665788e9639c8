"""Rows in their storage type: the compiled kernel gives the bits of the NumPy code, with every instruction set."""

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._base import env as _env
from ragsys_kernels._base.arrays import HOST
from ragsys_kernels.corpus import rows

ISAS = _dispatch.extension().SUPPORTED_ISAS if _dispatch.why_not("cpu") is None else []
TYPES = ("float32", "float16", "bfloat16")


def stored(*arguments, compiled=True):
    reason = None if compiled else "left out here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_dispatch, "why_not", lambda backend: reason)
        return rows.store(*arguments)


def embeddings(given, dims, dtype):
    """Rows of sizes from 1e-8 to 3e3, zero rows, and the smallest numbers of float16."""
    rng = np.random.default_rng(dims)
    made = (rng.standard_normal((40, dims)) * 10.0 ** rng.uniform(-8, 3.5, (40, 1))).astype(np.float32)
    made[3], made[4], made[5] = 0, -0.0, 2.0**-24
    if "float16" in (given, dtype):
        made = made.clip(-60_000, 60_000)
    return _arrays.narrow(made, given) if given != "float64" else made.astype(np.float64)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("given", [*TYPES, "float64"])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_bits_are_those_of_numpy(isa, given, metric):
    with _env.changed(RAGSYS_KERNELS_ISA=isa):
        for dtype in (*TYPES, "int8"):
            for dims in (1, 3, 7, 8, 16, 17, 33, 100, 385):
                arguments = embeddings(given, dims, dtype), given, metric, dtype, HOST
                data, scales, norm = stored(*arguments)
                expected, of_numpy, largest = stored(*arguments, compiled=False)
                assert np.array_equal(data.view(np.uint8), expected.view(np.uint8)), (dtype, dims)
                assert (scales is None) == (of_numpy is None)
                assert scales is None or np.array_equal(scales, of_numpy), (dtype, dims)
                assert norm == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("isa", ISAS)
def test_quotients_near_the_middle_of_two_floats(isa):
    """Products with 1 / |x|, which may stand for quotients, round to the other neighbour here."""
    rng = np.random.default_rng(2)
    x, below = rng.uniform(0.3, 0.9, (2, 40_000)).astype(np.float32)
    rest = (x / ((below.astype(np.float64) + np.nextafter(below, np.float32(1))) / 2)) ** 2 - x.astype(np.float64) ** 2
    columns, rest = [x[rest > 0.01]], rest[rest > 0.01]
    for _ in range(3):  # |x|^2 is met by 24 bits more each time
        columns.append(np.nextafter(np.sqrt(rest.clip(0)).astype(np.float32), np.float32(0)))
        rest = rest - columns[-1].astype(np.float64) ** 2
    array = np.stack(columns, axis=1).astype(np.float64)
    norms = np.sqrt((array[:, :2] ** 2).sum(axis=1) + (array[:, 2:] ** 2).sum(axis=1))[:, None]
    expected = (array / norms).astype(np.float32)
    assert (expected != (array * (1 / norms)).astype(np.float32)).any(axis=1).sum() > 1000
    with _env.changed(RAGSYS_KERNELS_ISA=isa):
        assert np.array_equal(rk.Corpus(array.astype(np.float32)).data, expected)


def test_rows_that_are_not_contiguous():
    wide = np.random.default_rng(1).standard_normal((30, 24), dtype=np.float32)
    for given in (wide[:, ::3], wide[::-2, 2:19], np.asfortranarray(wide)):
        found = rk.Corpus(given, dtype="float16")
        assert np.array_equal(found.data, rk.Corpus(np.ascontiguousarray(given), dtype="float16").data)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("value", "given", "metric", "dtype", "message"),
    [
        (np.nan, "float32", "cosine", "float32", "must be finite, got NaN or inf in row 7777"),
        (-np.inf, "float16", "cosine", "int8", "must be finite, got NaN or inf in row 7777"),
        (7e4, "float32", "dot", "float16", "must be within the range of float16, got a larger value in row 7777"),
        (3.4e38, "float32", "dot", "bfloat16", "must be within the range of bfloat16, got a larger value in row 7777"),
        (1e39, "float64", "cosine", "float32", "must be within the range of float32, got a larger value in row 7777"),
    ],
)
def test_the_first_row_that_cannot_be_stored_is_named(compiled, value, given, metric, dtype, message):
    array = np.ones((20_000, 19), given)
    array[[7777, 7778, 19_000], [18, 0, 3]] = value
    with pytest.raises(ValueError, match=f"^Corpus: embeddings {message}$"):
        stored(array, given, metric, dtype, HOST, compiled=compiled)
