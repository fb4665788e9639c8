"""8-bit codes of a corpus's rows, which show the kernels the rows that they need not read.

A code row is the same on the host and on a device but for its first D bytes: the host's are unsigned (the code + 128),
as its instructions multiply unsigned bytes with signed ones, a device's are signed, as its matrix units take them.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .. import _arrays, _dispatch, _env
from .problem import Rows

_MOST_DIMS = 1 << 16  # products of more dimensions may leave the range of int32
_HEADER = 12  # bytes of a code row that hold its scale, its error and the sum of its codes


def row_bytes(dims: int) -> int:
    """Return the bytes of a code row, which fills whole cache lines (csrc/cpu/selection/args.h)."""
    return (dims + _HEADER + 63) // 64 * 64


def useful(dtype: str, metric: str, dims: int) -> bool:
    """Return whether rows get codes: unit rows of floats do."""
    return metric == "cosine" and dtype in _arrays.STORAGE and dims <= _MOST_DIMS


def encode(data: np.ndarray, dtype: str, metric: str, scales: np.ndarray | None) -> tuple[np.ndarray | None, float]:
    """Return code rows (N, row_bytes(D)) uint8 of unit rows and their largest error, or None where codes are no use."""
    if not useful(dtype, metric, data.shape[1]) or _dispatch.why_not("cpu") is not None:
        return None, 0.0
    module = _dispatch.extension()
    codes = module.encode(data, _arrays.NUMBERS[dtype], scales, _dispatch.isa_index(), _env.num_threads())
    return codes, module.code_error(codes)


def of_tensor(data: Any, scales: Any, block: int) -> tuple[Any, float]:
    """Return code rows (N, row_bytes(D)) int8 of unit rows on a device and their largest error; so many rows at a time.

    Scales are those of the host, and so are codes, but for a few in a million that a product and a sum in one rounding
    take the other way. The error is computed in float64.
    """
    num_rows, dims = data.shape
    codes = data.new_zeros((num_rows, row_bytes(dims)), dtype=_torch().int8)
    for begin in range(0, num_rows, block):
        part = slice(begin, begin + block)
        rows = data[part].float()
        if scales is not None:
            rows = rows * scales[part, None]
        largest = rows.abs().amax(1)
        scale = largest / 127
        steps = (rows * (127 / largest).where(largest > 0, 0)[:, None]).round()
        lost = (rows.double() - steps.double() * scale.double()[:, None]).square().sum(1).sqrt()
        codes[part, :dims] = steps
        header = codes[part].view(_torch().float32)
        header[:, -3], header[:, -2] = scale, (lost * 1.0001 + 1e-6).float()
        codes[part].view(_torch().int32)[:, -1] = steps.sum(1)
    return codes, float(codes.view(_torch().float32)[:, -2].max())


def swapped(codes: np.ndarray, dims: int) -> np.ndarray:
    """Return the host's code rows of a device's, or a device's of the host's."""
    other: np.ndarray = np.array(codes).view(np.int8 if codes.dtype == np.uint8 else np.uint8)
    other.view(np.uint8)[:, :dims] ^= 0x80
    return other


def _torch() -> Any:
    """Return torch, which whoever has tensors has imported."""
    return sys.modules["torch"]


def can_scan(rows: Rows, vectors: int) -> bool:
    """Return whether a scan of all rows for so many vectors is fastest by codes; for many it needs AVX512-VNNI."""
    return rows.codes is not None and bool(_dispatch.extension().code_scan_supported(_dispatch.isa_index(), vectors))
