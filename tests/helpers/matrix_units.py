"""A model of NVIDIA's matrix units, which add with truncation: what Triton's interpreter, which rounds, cannot show.

Each instruction multiplies 16 dimensions of 16-bit values exactly and adds the products to its float32 accumulator; the
sum loses the bits beyond float32's instead of being rounded (measured: Fasi, Higham, Mikaitis, Pranesh, "Numerical
behavior of NVIDIA tensor cores", PeerJ Computer Science 2021). So chains of instructions drift towards zero.
"""

import numpy as np

STEP = 16


def truncated(x):
    """float64 as float32, towards zero."""
    near = x.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def product(a, b, accumulator):
    """accumulator + a @ b; one of float32 values is not theirs to make."""
    assert a.dtype == b.dtype == np.float16
    a, b = a.astype(np.float64), b.astype(np.float64)
    for k in range(0, a.shape[1], STEP):
        accumulator = truncated(accumulator.astype(np.float64) + a[:, k : k + STEP] @ b[k : k + STEP])
    return accumulator
