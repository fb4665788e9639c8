"""Rows whose codes are tested, what the codes say, and what must not change."""

import numpy as np
from hypothesis import strategies as st

import ragsys_kernels as rk
from ragsys_kernels import testing

DTYPES = ("float32", "float16", "bfloat16")
SEEDS = st.integers(0, 2**32 - 1)
BOOLEANS = st.booleans()
# Headers begin 12 bytes before the end of whole cache lines: 52, 116 and 180 leave them no room to spare.
DIMS = (1, 2, 3, 4, 7, 16, 33, 48, 51, 52, 53, 60, 63, 64, 65, 100, 115, 116, 117, 130, 180, 384)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def vectors_of(corpus):
    """The unit vectors that the kernels select from, in float64."""
    data = corpus.data
    if corpus.dtype == "bfloat16":
        data = (data.astype(np.uint32) << 16).view(np.float32)
    data = data.astype(np.float64)
    return data if corpus.scales is None else data * corpus.scales[:, None].astype(np.float64)


def decoded(codes, dims):
    """(N, D) signed codes and the fields of the headers."""
    assert codes.dtype == np.uint8
    assert codes.shape[1] == -(-(dims + 12) // 64) * 64
    assert not codes[:, dims:-12].any()
    header = np.ascontiguousarray(codes[:, -12:])
    scale, error = header[:, :8].view(np.float32).T
    return codes[:, :dims].astype(np.int64) - 128, scale, error, header[:, 8:].view(np.int32)[:, 0]


def coded_problem(*shape, dtype="float32", **options):
    """A problem of `testing.selection_problem` over a corpus of its rows."""
    problem = testing.selection_problem(*shape, **options)
    return problem | {"embeddings": rk.Corpus(problem["embeddings"], dtype=dtype)}
