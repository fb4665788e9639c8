"""8-bit codes of a corpus's rows, which show the compiled kernels the rows that they need not read."""

from __future__ import annotations

import numpy as np

from .. import _arrays, _dispatch, _env
from .problem import Rows

_MOST_DIMS = 1 << 16  # products of more dimensions may leave the range of int32
_HEADER = 12  # bytes of a code row that hold its scale, its error and the sum of its codes


def row_bytes(dims: int) -> int:
    """Return the bytes of a code row, which fills whole cache lines (csrc/cpu/selection/args.h)."""
    return (dims + _HEADER + 63) // 64 * 64


def encode(data: np.ndarray, dtype: str, metric: str, scales: np.ndarray | None) -> tuple[np.ndarray | None, float]:
    """Return code rows (N, row_bytes(D)) uint8 of unit rows and their largest error, or None where codes are no use."""
    useless = metric != "cosine" or dtype not in _arrays.STORAGE or data.shape[1] > _MOST_DIMS
    if useless or _dispatch.why_not("cpu") is not None:
        return None, 0.0
    module = _dispatch.extension()
    codes = module.encode(data, _arrays.NUMBERS[dtype], scales, _dispatch.isa_index(), _env.num_threads())
    return codes, module.code_error(codes)


def can_scan(rows: Rows, vectors: int) -> bool:
    """Return whether a scan of all rows for so many vectors is fastest by codes; for many it needs AVX512-VNNI."""
    return rows.codes is not None and bool(_dispatch.extension().code_scan_supported(_dispatch.isa_index(), vectors))
